"""Render findings as sentences, by the macros of templates/sentences.j2."""

from __future__ import annotations

import math
import re
import statistics
from functools import cache
from typing import Any

import jinja2
import numpy as np

from ablate import units
from ablate.analysis import ENDED
from ablate.analysis.records import Contrast, OfCell
from ablate.report import labels
from ablate.units import duration, listed

BROKEN = {
    "diverged": "diverged",
    "failed": "failed",
    "oom": "ran out of memory",
    "timeout": "ran out of time",
    "complete": "has no finite value",
}


def say(macro: str, *args: Any) -> str:
    """Return what a macro of templates/sentences.j2 says, on one line.

    Args:
        macro: Name of the macro.
        args: Its arguments: findings, labels.
    """
    text = str(getattr(_macros(), macro)(*args))
    # a dot may begin a name, as in ../tok/a.json
    return re.sub(r" ([,;:)]|\.(?![\w./]))", r"\1", re.sub(r"[ \n\t]+", " ", text).strip())


@cache
def _macros() -> Any:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ablate.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "signed": units.signed,
        "number": units.number,
        "ends": units.ends,
        "magnitudes": _magnitudes,
        "interval_of": interval_of,
        "same_on_new_text": same_on_new_text,
        "decimals": units.decimals,
        "places": places,
        "detectable": labels.detectable,
        "p_value": labels.p_value,
        "percent": labels.percent,
        "plural": units.plural,
        "named": labels.named,
        "full": labels.full,
        "arm_name": arm_name,
        "listed": listed,
        "duration": duration,
        "reasons": reasons,
        "zip": zip,
        "known": lambda value: not math.isnan(value),
        "finite": math.isfinite,
    }
    environment.filters["median"] = statistics.median
    return environment.get_template("sentences.j2").module


def arm_name(one: OfCell) -> str:
    """Return the name of the arm of a finding."""
    return labels.arm_of(one.cell, one.arm, one.stratum)


def places(one: Any) -> int:
    """Decimals that show two digits of the half width of a finding's interval."""
    return units.decimals((one.hi - one.lo) / 2)


def _magnitudes(lo: float, hi: float) -> str:
    """Return an interval on one side of zero without its sign."""
    low, high = sorted((abs(lo), abs(hi)))
    return units.ends(low, high, units.decimals((high - low) / 2), units.number)


def interval_of(one: Contrast, lo: float, hi: float) -> str:
    """Return an interval of a contrast: without its sign where the verdict says which it is."""
    if one.verdict in ("better", "worse") and lo * hi > 0:
        return _magnitudes(lo, hi)
    return units.ends(lo, hi, units.decimals((hi - lo) / 2))


def same_on_new_text(one: Contrast) -> bool:
    """Return whether the interval for new text shows the same digits as that for new seeds."""
    if math.isnan(one.text_lo) or math.isnan(one.lo):
        return False
    return interval_of(one, one.text_lo, one.text_hi) == interval_of(one, one.lo, one.hi)


def reasons(one: Contrast) -> str:
    """Return how runs ended without a value: "parallel diverged with seeds 1 and 3; …"."""
    ended = [pair for pair in one.pairs if {pair.status, pair.baseline_status} <= set(ENDED)]
    said = []
    for level, prefix in ((one.level, ""), (one.baseline_level, "baseline_")):
        name = labels.named(one.factor, level)
        broken: dict[str, list[int]] = {}
        for pair in ended:
            status, value = (getattr(pair, f"{prefix}{part}") for part in ("status", "value"))
            if status != "complete" or not np.isfinite(value):
                broken.setdefault(status, []).append(pair.seed)
        said += [
            f"{name} {BROKEN[why]} with seed{'s' if len(seeds) > 1 else ''} {listed(sorted(seeds))}"
            for why, seeds in sorted(broken.items())
        ]
    return "; ".join(said)


def numbers(one: Any) -> str:
    """Return a difference and its interval: "+0.178, +0.122 to +0.233"."""
    digits = places(one)
    return f"{units.signed(one.mean, digits)}, {units.ends(one.lo, one.hi, digits)}"
