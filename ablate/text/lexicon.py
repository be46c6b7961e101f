"""The words of a corpus, of which a task may give some a class; kept in the cache."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ablate import cache
from ablate.text import corpora, sources
from ablate.text.corpora import Corpus

WORD = re.compile(rb"[A-Za-z\x80-\xff]+(?:'[A-Za-z]+)*")
_LONGEST = 64  # bytes of a word that is kept; longer ones are data in letters


def words_of(corpus: Corpus) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of the training part and of the held-out part of a corpus, in lower case.

    Reads the corpus the first time.

    Args:
        corpus: A corpus of text, which does not hold tokens.

    Raises:
        AblateError: It can no longer be read, or has changed.
    """
    key = hashlib.sha256(f"{WORD.pattern!r}:{corpus.hash}:{corpus.location}".encode()).hexdigest()

    def build(folder: Path) -> None:
        found: tuple[set[str], set[str]] = (set(), set())
        with sources.readable(f"corpus {corpus.name}"):
            _, split = corpora.unchanged(corpus.location, corpus.hash)
            for number, document in enumerate(sources.at(corpus.location).documents()):
                for part, held_out in split.parts(document, number):
                    for piece in part.pieces():
                        words = {*WORD.findall(piece)}
                        found[held_out].update(map(lower, words))
            corpora.unchanged(corpus.location, corpus.hash)  # nor while it was read
        kept = [sorted(word for word in words if len(word) <= _LONGEST) for words in found]
        (folder / "words.json").write_text(json.dumps(kept))

    folder = cache.built("words", key, build)
    with cache.usable():
        train, held_out = json.loads((folder / "words.json").read_text())
    return frozenset(train), frozenset(held_out)


def lower(word: bytes) -> str:
    """Return a word as a word list has it."""
    return word.decode(errors="replace").lower()
