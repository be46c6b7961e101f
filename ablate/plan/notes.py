"""Notes about a valid plan: finals that are not defined, text that is lost, much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from ablate import sizes
from ablate.plan.model import Cell, Text
from ablate.plan.where import of_cell
from ablate.study import Study
from ablate.text import text_kept
from ablate.text.tokens import LOST_BYTES, LOST_TEXT
from ablate.units import count, listed

FEW = 50  # steps below which a run has learnt little beyond token frequencies


def notes(study: Study, cells: Sequence[Cell], texts: Sequence[Text]) -> tuple[str, ...]:
    """Return sentences about cells of the study."""
    return (
        *_undefined(study, cells),
        *_whole(study, cells, texts),
        *_lossy(cells, texts),
        *_one_document(cells, texts),
        *of_all(study, cells),
    )


def of_all(study: Study, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return sentences about cells of any data.

    Raises:
        AblateError: A part of the user's own fails in the model of a cell.
    """
    return (*_short(cells), *_scores(cells), *_alone(study, cells))


def _short(cells: Sequence[Cell]) -> Iterator[str]:
    """The cell with the fewest steps, where they are few."""
    few = [
        cell for cell in cells if cell.config.steps < FEW and not cell.config.part("start").given
    ]
    if few:
        least = min(few, key=lambda cell: cell.config.steps)
        where = repr(least.label) + (f", and below {FEW} in {len(few) - 1} more" if few[1:] else "")
        yield (
            f"steps = {least.config.steps} in {where}: too few to judge; give more tokens, or a"
            " smaller batch_tokens"
        )


def _undefined(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """Contexts for which a model is not defined; cells of one part are named together."""
    missing: dict[tuple[str, int, str], list[str]] = {}
    for cell in cells:
        limit, n_ctx = cell.config.longest_context, cell.config.n_ctx
        beyond = [
            f"loss_at_length@{factor:g}"
            for factor in study.evaluation.lengths
            if limit and factor * n_ctx > limit
        ]
        if beyond:
            one = next(p for p in cell.config.parts if p.longest_context(cell.config) == limit)
            key = f"{one.factor} = {one.name!r}", n_ctx, " and ".join(beyond)
            missing.setdefault(key, []).append(cell.label)
    for (part, n_ctx, finals), labels in missing.items():
        where = f"{labels[0]!r}" + (f" and {len(labels) - 1} more" if labels[1:] else "")
        yield (f"{part} is not defined beyond n_ctx = {n_ctx}: {where} will have no {finals}")


def _whole(study: Study, cells: Sequence[Cell], texts: Sequence[Text]) -> Iterator[str]:
    """Texts of which fewer tokens are held out than [eval] asks for."""
    evaluation = study.evaluation
    asked = [
        (key, getattr(evaluation, key), which)
        for key, which in (("tokens", "every"), ("final_tokens", "the final"))
        if key in evaluation.model_fields_set
    ]
    found: dict[str, None] = {}
    for cell, (key, n, which) in product(cells, asked):
        config = cell.config
        one = next(of for of in texts if of.is_of(config))
        held_out = one.held_out_tokens
        about = "about " if one.estimated else ""
        has = f"{about}{count(held_out)} tokens with tokenizer = {config.tokenizer!r}"
        if config.part("objective").pairs:  # each is a row
            held_out = cell.held_out
            has = f"{one.corpus.n_held_out_documents:,} pairs of n_ctx = {config.n_ctx} tokens"
        if held_out < n:
            found[
                f"[eval] {key} = {count(n)} exceeds the held-out part of corpus ="
                f" {config.corpus!r}, which has {has}: {which} evaluation reads all of them"
            ] = None
    yield from found


def _lossy(cells: Sequence[Cell], texts: Sequence[Text]) -> Iterator[str]:
    """Tokenizers that lose text, which makes bits per byte too low; of those with known tokens."""
    kept = {
        (one.corpus.hash, one.tokenizer.hash): text_kept(one.corpus, one.tokenizer) for one in texts
    }
    for tokenizer, byte_coverage, share in dict.fromkeys(
        (
            cell.config.tokenizer,
            cell.byte_coverage,
            kept.get((cell.config.corpus_hash, cell.config.tokenizer_hash), 1.0),
        )
        for cell in cells
    ):
        if abs(byte_coverage - 1) > LOST_BYTES:
            what = f"decodes to {byte_coverage:.0%} of the bytes it reads"
        elif 1 - share > LOST_TEXT:
            what = (
                f"decodes to a text in which {100 * (1 - share):.2g}% of the words and signs"
                " that it reads are others or missing"
            )
        else:
            continue
        yield (
            f"tokenizer = {tokenizer!r} {what}, so its bits_per_byte is not comparable with that"
            " of a lossless tokenizer: the report gives no verdict on the two"
        )


def _one_document(cells: Sequence[Cell], texts: Sequence[Text]) -> Iterator[str]:
    """Cells whose attention stays within a document of a text that is one document."""
    single = {
        one.corpus.hash
        for one in texts
        if max(one.corpus.n_train_documents, one.corpus.n_held_out_documents) == 1
    }
    for cell in cells:
        level = cell.config.part("document_mask")
        if level.within and cell.config.corpus_hash in single:
            yield (
                f"{cell.label!r} is the same model on this text as with document_mask = 'none':"
                f" corpus = {cell.config.corpus!r} is one document, and document_mask ="
                f" {level.name!r} keeps attention within one"
            )


def _scores(cells: Sequence[Cell]) -> Iterator[str]:
    """The memory of scores that keep more than fused attention does, where they need most."""
    largest = max(cells, key=lambda cell: sizes.score_bytes(cell.config))
    if (scores := sizes.score_bytes(largest.config)) and (whole := largest.cost.bytes):
        share = scores / whole
        yield (
            f"score = {largest.config.score!r} keeps n_ctx²·d_head numbers a head and sequence:"
            f" {scores / 2**20:,.0f} MiB, {share:.0%} of the memory of {largest.label!r}"
        )


def _alone(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """Cells whose runs do not train in packs, by the reason."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        with of_cell(study, cell.levels, cell.label):
            why = sizes.alone(cell.config)
        if why:
            found.setdefault(why, []).append(cell.label)
    for why, labels in found.items():
        yield f"Trained alone, not in packs: {listed(labels, most=3)}: {why}"
