"""`ablate data`: what a corpus holds, how it is split, and what speaks against the split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import complete
from ablate.cli.render import show_all, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.text.corpora import Corpus
    from ablate.text.tokenizers import TokenizerInfo


def data(
    what: Annotated[
        str,
        typer.Argument(
            metavar="STUDY|CORPUS",
            help="A study, or a corpus: austen, sotu, a file, a folder or a glob; images: digits,"
            " an .npz file, a folder with a folder of images for each class.",
            autocompletion=complete.studies,
        ),
    ],
) -> None:
    """Show the texts of a study, or a corpus: its parts, its split, duplicates, samples."""
    from ablate.images import sets as images
    from ablate.text import corpora, tokenizers

    if _is_study(what):
        from ablate.cli.planning import open_study

        plan = open_study(what, None, None)
        if not plan.texts:
            show_all(plan.about)
        for text in plan.texts:
            show_all(_about(text.corpus, text.tokenizer, plan.study.evaluation.tokens))
        return
    if what in images.NAMED or what.endswith(".npz") or images.is_folder(what, Path()):
        show_all([images.find(what, Path()).about])
        return
    corpus = corpora.find(what, Path())
    spec = "tokens" if corpus.holds_tokens else "byte"
    show_all(_about(corpus, tokenizers.describe(spec, corpus, Path()), 0))


def _is_study(what: str) -> bool:
    from ablate.text.corpora import NAMED

    if what in NAMED:
        return False
    return what.endswith(".toml") or (Path("studies") / f"{what}.toml").is_file()


def _about(corpus: Corpus, tokenizer: TokenizerInfo, scored: int) -> Iterator[RenderableType]:
    """Yield what is known about a corpus with a tokenizer.

    Args:
        corpus: The corpus.
        tokenizer: The tokenizer; a BPE is trained if it has not been.
        scored: Held-out tokens that an evaluation reads.
    """
    from ablate import text
    from ablate.text import describe, frequencies

    found = describe.describe(corpus)
    tokens = text.of(corpus, tokenizer)
    rows = [
        ("training", corpus.n_train_documents, corpus.n_train_bytes, len(tokens.train)),
        ("held out", corpus.n_held_out_documents, corpus.n_held_out_bytes, len(tokens.held_out)),
    ]
    headings = ["part", "documents", "bytes", "tokens"]
    yield table(
        headings, [(name, *(f"{n:,}" for n in row)) for name, *row in rows], right=headings[1:]
    )
    yield from describe.lines(corpus, found)
    yield frequencies.line(tokenizer, tokens)
    for warning in describe.warnings(corpus, found, len(tokens.held_out), scored):
        yield f"Warning: {warning}"
