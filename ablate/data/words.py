"""Passages of running text whose words have classes, by a word list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ablate.config import RunConfig
from ablate.data.batches import gather
from ablate.data.passages import Passages, filled_up
from ablate.errors import AblateError
from ablate.evaluation import PASSAGE
from ablate.text import Tokens
from ablate.text.labels import FITTED, HELD_OUT, TESTED, VALIDATED
from ablate.text.lexicon import WORD, lower
from ablate.text.tasks import PASSAGES, WordList

NONE = -1  # the class of a token that carries no label


def tagged(config: RunConfig, tokens: Tokens, words: WordList) -> Passages:
    """Return passages of a run's corpus with the classes of words.

    Passages to train on are of the training part and have classes of the words to train on;
    passages to test on are of the held-out part and have classes of held-out words alone. The first
    token of a word carries its class (Devlin et al. 2019, §5.3); with causal attention it is the
    last one, which alone has seen the whole word. Words at the edges of a passage have no class,
    and a passage without classes is left out.

    Args:
        config: The run.
        tokens: The text of its corpus.
        words: The classes.

    Raises:
        AblateError: One of the parts has none of the words.
    """
    last = bool(config.part("attention").causal)
    length = min(PASSAGE, config.n_ctx)
    sides = [(tokens.train, PASSAGES, FITTED, 0, 1)]
    if words.count(VALIDATED):  # every other passage that is not trained on
        sides += [(tokens.held_out, PASSAGES // TESTED, VALIDATED, 0, 2)]
        sides += [(tokens.held_out, PASSAGES // TESTED, HELD_OUT, 1, 2)]
    else:
        sides += [(tokens.held_out, PASSAGES // TESTED, HELD_OUT, 0, 1)]
    rows: list[list[int]] = []
    tags: list[list[int]] = []
    of_side: list[int] = []
    for stream, n, side, first, step in sides:
        classes = {word: number for word, (number, its) in words.words.items() if its == side}
        spread = np.linspace(0, len(stream) - length - 1, step * n).astype(np.int64)
        passages = gather(stream, np.unique(spread)[first::step], length).tolist()
        found = [(row, tags_of(row, tokens.spelling or (), classes, last)) for row in passages]
        found = [(row, its) for row, its in found if max(its) != NONE]
        if not found:
            part = "training" if side == FITTED else "held-out"
            raise AblateError(
                f"task = {(config.model_extra or {})['task']!r}: none of its words to"
                f" {'train on' if side == FITTED else 'hold out'} stands in one of the"
                f" {len(passages):,} passages of the {part} part of corpus {config.corpus!r}"
            )
        rows += [row for row, _ in found]
        tags += [its for _, its in found]
        of_side += [side] * len(found)
    places = np.array(of_side)
    return Passages(
        filled_up(rows),
        np.zeros(len(rows), int),
        places == FITTED,
        validation=places == VALIDATED,
        tags=filled_up(tags, NONE).long().numpy(),
    )


def tags_of(
    tokens: Sequence[int], spelling: Sequence[bytes], classes: Mapping[str, int], last: bool
) -> list[int]:
    """Return the class of the word that each token carries, `NONE` for the others.

    Args:
        tokens: Of a passage.
        spelling: The bytes of each token.
        classes: Word in lower case → class.
        last: Whether the last token of a word carries its class; else the first.
    """
    pieces = [spelling[token] for token in tokens]
    ends = np.cumsum([len(piece) for piece in pieces])
    text = b"".join(pieces)
    found = [NONE] * len(tokens)
    for word in WORD.finditer(text):
        whole = word.start() > 0 and word.end() < len(text)
        number = classes.get(lower(word[0])) if whole else None
        if number is not None:
            at = word.end() - 1 if last else word.start()
            found[int(np.searchsorted(ends, at, side="right"))] = number
    return found
