"""Numbers as people write them in tables: 1300000, 1.3e6, 1.3 × 10^6, 1,300,000, 1.300.000, 1,3
Mio, 1.3M, 2.31 ± 0.02.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

ABSENT = frozenset(
    (
        "",
        "-",
        "–",
        "—",
        ".",
        "?",
        "na",
        "n/a",
        "n.a.",
        "nan",
        "none",
        "null",
        "missing",
        "tbd",
        "oom",
        "failed",
        "crashed",
        "diverged",
    )
)
INFINITE = frozenset(sign + word for sign in ("", "+", "-") for word in ("inf", "infinity", "∞"))
BROKEN = re.compile(
    r"#[a-z/]+[0!?]?[!?]?"
)  # what a spreadsheet leaves where a formula failed: #DIV/0!, #N/A, #REF!

UNITS = {
    **dict.fromkeys(("k", "thousand"), 1e3),
    **dict.fromkeys(("m", "mn", "mio", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "g", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 1e12),
    "p": 1e15,
    "e": 1e18,
    "z": 1e21,
    **dict.fromkeys(("pf-day", "pf-days", "pfs-day", "pfs-days"), 8.64e19),
}
COUNTED = r"(?:\s*(?:flops?|tokens?|toks?|params?|parameters?))?"
NUMBER = re.compile(
    r"[~≈]?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?:\s*[x×*·]\s*10\s*(?:\^|\*\*)\s*([+-]?\d+))?"
    rf"\s*({'|'.join(sorted(UNITS, key=len, reverse=True))})?{COUNTED}",
    re.IGNORECASE,
)
POWER = re.compile(r"(2|10)\s*(?:\^|\*\*)\s*(\d+)")
IN_NAME = re.compile(
    rf"[(\[]\s*(?:in\s+)?(?:({'|'.join(sorted(UNITS, key=len, reverse=True))}){COUNTED}"
    r"|1e(\d+)|10\^(\d+))\s*[)\]]$",
    re.IGNORECASE,
)
COUNTS_IN = 1e6  # columns that stay below this are counted in the unit that their name gives
SPREAD = re.compile(r"\s*(?:±|\+/-|\+-).*|\(\d+\)$")  # 2.31 ± 0.02, 2.31(2)
SPACES = re.compile(r"(?<=\d)[\s'’_](?=\d{3}(?!\d))")


def unit_in(name: str) -> float:
    """What a column counts in by the end of its name, "Params (M)" or "FLOPs [1e18]"; 1 if it says
    none.
    """
    match = IN_NAME.search(name)
    if not match:
        return 1.0
    return UNITS[match[1].lower()] if match[1] else 10.0 ** int(match[2] or match[3])


@dataclass(frozen=True)
class Marks:
    """What commas and points mean in the numbers of a column."""

    thousands: str
    decimal: str

    @staticmethod
    def of(cells: Iterable[str], *, comma: bool, small: bool) -> Marks:
        """As the cells tell; where they leave it open, a comma is decimal if `comma`, or if numbers
        are `small` as losses are.
        """
        shown = [number for cell in cells for number in re.findall(r"\d[\d.,]*", cell)]

        def any_is(pattern: str) -> bool:
            return any(re.fullmatch(pattern, number) for number in shown)

        if any_is(r"\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}"):
            return Marks(".", ",")
        if any_is(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}"):
            return Marks(",", ".")
        if comma or small or any_is(r"\d*,(\d{1,2}|\d{4,})|0,\d+"):
            return Marks("", ",")
        return Marks(",", ".")

    def plain(self, text: str) -> str:
        return (
            text.replace(self.thousands, "").replace(self.decimal, ".")
            if self.thousands
            else text.replace(self.decimal, ".")
        )


def number(text: str, marks: Marks, *, units: bool) -> float | None:
    """A cell as a number; NaN where it says that there is none, None where it says something else.
    units: 1.3M is 1.3e6.
    """
    word = text.lower()
    if word in ABSENT or BROKEN.fullmatch(word):
        return math.nan
    if word in INFINITE:
        return math.inf
    word = SPREAD.sub("", SPACES.sub("", word.replace("−", "-"))).strip()
    if power := POWER.fullmatch(word):
        return float(power[1]) ** int(power[2])
    match = NUMBER.fullmatch(marks.plain(word).replace("_", ""))
    if not match or (match[3] and not units):
        return None
    return float(match[1]) * 10.0 ** int(match[2] or 0) * UNITS.get(match[3] or "", 1.0)
