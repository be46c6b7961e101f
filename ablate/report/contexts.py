"""Longer contexts than a model was trained with: how the loss on the same targets changes."""

from __future__ import annotations

from ablate.report.material import Material
from ablate.report.words import decimals, signed
from ablate.units import listed


def sentences(material: Material) -> list[str]:
    """A sentence a stratum: the change from the context of training to the longest, arm by arm, the least first."""
    finals = material.finals[material.finals["name"] == "loss_at_length"].dropna(subset=["value"])
    if finals.empty or finals["at"].max() <= 1:
        return []
    longest = finals["at"].max()
    means = finals.groupby(["cell", "at"])["value"].mean().unstack()
    digits = decimals(float(finals.groupby(["cell", "at"])["value"].std().median()))
    said = []
    for stratum in material.strata:
        arms = material.arms[material.arms["stratum"] == stratum].set_index("cell")["arm"].astype(str)
        there = means.loc[[cell for cell in arms.index if cell in means.index]]
        changes = (there[longest] - there[1.0]).dropna().sort_values()
        if changes.empty:
            continue
        at = f"At {stratum}, with" if stratum else "With"
        told = [f"{signed(change, digits)} for {arms[cell]}" for cell, change in changes.items()]
        beyond = [arms[cell] for cell in there.index if cell not in changes.index]
        lacking = f"; not defined for {listed(beyond)}" if beyond else ""
        said.append(
            f"{at} {longest:g} times the context of training the loss on the same targets changes by {listed(told)}{lacking}."
        )
    return said
