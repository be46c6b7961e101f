"""Make the text of the corpora `cmudict` and `cmudict-long` from the CMU Pronouncing Dictionary.

Run `python studies/corpora/cmudict.py cmudict.dict ablate/text/shipped/cmudict.txt.xz` with the
dictionary of https://github.com/cmusphinx/cmudict. Of a word with several pronunciations the first
is kept; words that take more than 64 bytes with their phonemes are left out. Documents are
`word<TAB>phonemes`, with a form feed between, in the order of the dictionary.
"""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path

LONGEST = 64  # bytes of a document: a row of n_ctx = 64 holds it with its end


def pairs(text: str) -> list[str]:
    """Return the documents of a dictionary in the format of `cmudict.dict`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        word, _, phonemes = line.split("#")[0].strip().partition(" ")
        if phonemes and not re.search(r"\(\d+\)$", word):
            found.setdefault(word, phonemes)
    documents = (f"{word}\t{phonemes}" for word, phonemes in found.items())
    return [document for document in documents if len(document) <= LONGEST]


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    text = "\f".join(pairs(source.read_text(encoding="utf-8")))
    target.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
