"""Format of numbers with a size and of lists of words, the same on terminal, table and axis."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

_BRACKETS = re.compile(r"\([^)]*\)")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def count(value: float) -> str:
    """Return a count with three digits and the suffix that a study file takes.

    >>> [count(n) for n in (0, 950, 12_345, 3_400_000, 20_000_000, 1.25e9, 2e15)]
    ['0', '950', '12.3k', '3.4M', '20M', '1.25B', '2×10¹⁵']
    """
    if abs(value) >= 1e15:
        return power(value)
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "pair"), plural(3000, "pair")
    ('1 pair', '3,000 pairs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def power(value: float) -> str:
    """Return a number with a power of ten: 3×10¹⁴.

    >>> power(3.04e14), power(1e15), power(0)
    ('3.04×10¹⁴', '10¹⁵', '0')
    """
    if not value or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return ten if mantissa == "1" else f"{mantissa}×{ten}"


def three_digits(value: float) -> str:
    """Return any number with three digits, a large or small one with a power of ten.

    >>> [three_digits(x) for x in (0.3482, 482, 2143, 98_760, 3.04e14, 2.5e-7)]
    ['0.348', '482', '2,140', '98,800', '3.04×10¹⁴', '2.5×10⁻⁷']
    """
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    return f"{float(text):,.0f}" if 1e3 <= abs(value) < 1e5 else power(float(text))


def two_digits(value: float) -> str:
    """Return a number with two digits, a larger one in full.

    >>> [two_digits(x) for x in (0.0547, 1.0, 34.2, 349.6, 12_345)]
    ['0.055', '1', '34', '350', '12,345']
    """
    return f"{value:.2g}" if abs(value) < 99.5 else f"{value:,.0f}"


MINUS = "−"
MOST_DECIMALS = 12  # less is the rounding of a loss in 64 bits
LONG = 5  # numbers that begin after more decimals have a power of ten


# numbers whose standard deviation is at most this share of their size differ by rounding alone
SAME = 1e-12


def decimals(scale: float) -> int:
    """Return the decimals, at least one, that show two digits of an uncertainty of `scale`.

    >>> decimals(0.0123), decimals(0.5), decimals(40.0), decimals(float("nan")), decimals(3e-8)
    (3, 2, 1, 4, 9)
    """
    if not math.isfinite(scale) or scale <= 0:
        return 4
    return min(MOST_DECIMALS, max(1, 1 - math.floor(math.log10(scale))))


def number(value: float, places: int = 4) -> str:
    """Return a value with `places` decimals, or three digits from a billion on; "–" for NaN.

    >>> number(0.0312, 3), number(3.12e-7, 8), number(1.5000000312, 8), number(2e-9, 12)
    ('0.031', '3.1×10⁻⁷', '1.50000003', '2.000×10⁻⁹')
    >>> number(-3.456e12, 3)
    '−3.46×10¹²'
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if places > LONG and 0 < (size := abs(round(value, places))) < 10**-LONG:
        exponent = math.floor(math.log10(size))
        mantissa = f"{value / 10.0**exponent:.{max(0, places + exponent)}f}"
        return f"{mantissa}×{power(10.0**exponent)}".replace("-", MINUS)
    return (f"{value:.{places}f}" if abs(value) < 1e9 else power(value)).replace("-", MINUS)


def signed(value: float, places: int | None = None) -> str:
    """Return `number` with its sign, unless it rounds to zero.

    By default it has four decimals, a smaller value as many as show two digits of it.

    >>> signed(0.03, 2), signed(0.03), signed(-1e-7), signed(0.0)
    ('+0.03', '+0.0300', '−1.0×10⁻⁷', '0.0000')
    """
    text = number(value, max(4, decimals(abs(value))) if places is None else places)
    if text.strip(f"{MINUS}0.") == "":
        return text.lstrip(MINUS)
    return f"+{text}" if value > 0 else text


def ends(
    low: float,
    high: float,
    places: int,
    write: Callable[[float, int], str] = signed,
    unit: str = "",
) -> str:
    """Return an interval; an end other than zero gets more decimals rather than be shown as zero.

    >>> ends(-0.111, -0.0002, 3), ends(-0.1, 0.0, 2)
    ('−0.111 to −0.0002', '−0.10 to 0.00')
    """
    return " to ".join(write(end, _nonzero(end, places)) + unit for end in (low, high))


def _nonzero(value: float, places: int) -> int:
    """At least `places` decimals, with which a value that is not zero does not look like it."""
    return next((more for more in range(places, 12) if round(value, more)), places)


def known(value: float | None, write: Callable[[float], str]) -> str:
    """Return a number as `write` formats it; "unknown" for None.

    >>> known(12_345, count), known(None, count)
    ('12.3k', 'unknown')
    """
    return "unknown" if value is None else write(value)


def memory(n_bytes: float) -> str:
    """Return bytes in binary units: 640 KiB, 1.5 GiB."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if n_bytes >= 1 << exponent:
            return f"{n_bytes / (1 << exponent):.3g} {unit}"
    return f"{n_bytes / 1024:.3g} KiB"


def duration(seconds: float) -> str:
    """Return seconds in a readable unit with two digits.

    >>> [duration(s) for s in (0, 0.42, 12, 210, 7500, 400_000, 3e7)]
    ['0 s', '0.42 s', '12 s', '3.5 min', '2.1 h', '4.6 days', '347 days']
    """
    for size, least, unit in ((86400, 2 * 86400, "days"), (3600, 5400, "h"), (60, 89.5, "min")):
        if seconds >= least:
            return f"{two_digits(seconds / size)} {unit}"
    return f"{seconds:.2g} s"


def listed(items: Iterable[object], last: str = "and", most: int = 8) -> str:
    """Return "a, b and c"; "a=1, b=2; and a=2, b=2" where an item has a comma.

    Args:
        items: shown as text.
        last: the word before the last item.
        most: how many items are named; the rest is a count.
    """
    words = [str(item) for item in items]
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    if len(words) < 2:
        return "".join(words)
    if any(", " in _BRACKETS.sub("", word) for word in words):
        return f"{'; '.join(words[:-1])}; {last} {words[-1]}"
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
