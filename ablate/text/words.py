"""Which words of a pronouncing dictionary are held out."""

from __future__ import annotations

import hashlib
import re

# of inflected and derived words
_ENDINGS = (
    *("'s", "s'", "s", "'", "es", "e", "ed", "ing", "ings", "er", "ers", "or", "ors", "est"),
    *("ly", "ness", "nesses", "ment", "ments", "ion", "ions", "ation", "ations", "ative"),
    *("ive", "ives", "able", "ables", "ible", "al", "ally", "ity", "ities", "y", "ies", "ied"),
    *("ism", "isms", "ist", "ists", "ize", "izes", "ized", "izing", "ful", "fully", "less"),
    *("a", "o", "i", "man", "mann"),
)
_ENDING = re.compile(f"(?:{'|'.join(_ENDINGS)})$")  # finds the longest one
_LEFT = 3  # letters that an ending leaves at least
LONG = 10  # letters from which on a word is long
EVERY = 10  # one stem in so many is held out


def stem(word: str) -> str:
    """Return what a word and its inflections begin with: without endings and doubled consonants.

    Words that share nothing else may have a stem in common; a split by stems is only the stricter.
    """
    while found := _ENDING.search(word, _LEFT):
        word = word[: found.start()]
    return word[:-1] if word[-2:-1] == word[-1:] else word


def by_stem(word: str) -> bool:
    """Return whether a word is held out, as all words of its stem are: about one in `EVERY`."""
    digest = hashlib.sha256(stem(word).encode()).digest()
    return int.from_bytes(digest[:8], "big") % EVERY == 0


def by_length(word: str) -> bool:
    """Return whether a word is held out because it is long."""
    return sum(letter.isalpha() for letter in word) >= LONG
