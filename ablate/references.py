"""The works that levels, metrics, statistics and texts come from, as BibTeX: references.bib.

A text names a work by its arXiv number or by authors and year, as `source` of a level does:
"Vaswani et al. 2017, arXiv:1706.03762", "Loshchilov & Hutter 2019", "Elman 1990". What names an
entry follows from its fields `author`, `year` and `eprint`; a new work is one entry of that file.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_suffix(".bib")
# of that file alone: an entry ends with the first line that is a brace, a field is one line
_ENTRY = re.compile(r"^@\w+\{([^,]+),\n.*?^\}$", re.M | re.S)
_NUMBER = re.compile(r"arXiv:[\d.]+\d")
_ACCENT = re.compile(r"""\{\\(["'])(\w)\}""")
_MARKS = {'"': "\N{COMBINING DIAERESIS}", "'": "\N{COMBINING ACUTE ACCENT}"}
_FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.M)


@dataclass(frozen=True)
class Work:
    """One entry of references.bib.

    Attributes:
        key: Its citation key.
        text: The entry, as BibTeX reads it.
        names: What texts call it, such as "arXiv:1607.06450" and "Ba et al. 2016".
    """

    key: str
    text: str
    names: tuple[str, ...]


@functools.cache
def works() -> Mapping[str, Work]:
    """Return all works by their keys, in the order of the file."""
    found = {}
    for entry in _ENTRY.finditer(FILE.read_text(encoding="utf-8")):
        key, text = entry[1], entry[0]
        found[key] = Work(key, text, tuple(_names(dict(_FIELD.findall(text)))))
    return found


def named(text: str) -> list[str]:
    """Return the keys of the works that a text names, in the order of the file.

    Args:
        text: A `source`, or a sentence. In a part up to a semicolon that has arXiv numbers, these
            alone count: other works may have the same authors and year. What names no work of
            the file is passed over.
    """
    called: set[str] = set()
    for part in text.split(";"):
        called.update(_NUMBER.findall(part) or _called().findall(part))
    return [key for key, work in works().items() if called.intersection(work.names)]


@functools.cache
def _called() -> re.Pattern[str]:
    names = sorted((name for work in works().values() for name in work.names), reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?!\w)")


def _names(fields: Mapping[str, str]) -> list[str]:
    names = [f"arXiv:{fields['eprint']}"] if "eprint" in fields else []
    if "year" in fields:
        names.append(f"{_authors(fields['author'])} {fields['year']}")
    return names


def _authors(field: str) -> str:
    """Return authors as texts call them: one, two, or the first one "et al."."""
    plain = _ACCENT.sub(lambda of: unicodedata.normalize("NFC", of[2] + _MARKS[of[1]]), field)
    last = [name.partition(",")[0].strip("{}") for name in plain.split(" and ")]
    if len(last) == 1:
        return last[0]
    return " & ".join(last) if len(last) == 2 and last[1] != "others" else f"{last[0]} et al."
