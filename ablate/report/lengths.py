"""Longer contexts than a model was trained with: how the loss on the same targets changes."""

from __future__ import annotations

import math

from ablate import stats
from ablate.report.data import ReportData
from ablate.report.labels import decimals, ends, signed
from ablate.stats import Effect
from ablate.units import listed


def sentences(data: ReportData) -> list[str]:
    """Return a sentence a stratum on the change of loss at the longest context."""
    finals = data.finals[data.finals["name"] == "loss_at_length"]
    losses = finals.groupby(["cell", "run", "at"])["value"].mean().unstack()
    longest = finals["at"].max()
    if 1.0 not in losses or not longest > 1:
        return []
    changes = losses[longest] - losses[1.0]
    defined = set(finals.loc[finals["at"] == longest, "cell"])
    sentences = []
    for stratum in data.strata:
        arms = data.arms[data.arms["stratum"] == stratum].set_index("cell")["arm"].astype(str)
        measured = [cell for cell in arms.index if cell in losses.index]
        effects = {
            arms[cell]: stats.paired(changes.loc[cell]) for cell in measured if cell in defined
        }
        parts = [
            _text(arm, one)
            for arm, one in sorted(effects.items(), key=lambda item: item[1].mean)
            if one.n
        ]
        lacking = [arms[cell] for cell in measured if cell not in defined]
        beyond = f"; not defined for {listed(lacking)}" if lacking else ""
        at = f"At {stratum}, with" if stratum else "With"
        if parts:
            sentences.append(
                f"{at} {longest:g} times the training context the loss on the same targets"
                f" changes by {listed(parts)}{beyond}."
            )
    return sentences


def _text(arm: str, change: Effect) -> str:
    digits = decimals((change.hi - change.lo) / 2)
    interval = "" if math.isnan(change.lo) else f" ({ends(change.lo, change.hi, digits)})"
    over = f", over {change.n} of {change.n + change.lost} seeds" if change.lost else ""
    return f"{signed(change.mean, digits)}{interval} for {arm}{over}"
