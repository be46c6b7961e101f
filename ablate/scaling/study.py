"""A study's runs → `Losses`: which factors change size or budget, and which make another curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ablate import sizes
from ablate.config import SEED_FIELDS, RunConfig
from ablate.errors import AblateError, unknown
from ablate.scaling.losses import Losses
from ablate.scaling.table import complete
from ablate.units import listed

GROWS = 1.1  # sizes or token counts nearer than this ratio are the same
# a step of size or budget changes at least one of these
GROWN = frozenset(("n_layer", "d_model", "d_mlp", "steps"))
FOLLOW = frozenset(("n_head", "n_kv_head", "d_head", "lr"))  # these may change with it


@dataclass(frozen=True)
class Count:
    """What N and C are."""

    n: str
    c: str


COUNTS = {
    "body": Count(
        "parameters without embeddings and head", "FLOPs of training, the head's among them"
    ),
    "total": Count("all parameters", "FLOPs of training, the head's among them"),
    "headless": Count(
        "parameters without embeddings and head", "FLOPs of training without the head's"
    ),
}


def of_study(
    runs: pd.DataFrame,
    levels: Mapping[str, Mapping[str, str]],
    *,
    group: str = "",
    baseline: str = "",
    count: str = "body",
    own: Mapping[str, str] | None = None,
) -> Losses:
    """Return the compared runs of a study that completed, by the study's metric.

    Args:
        runs: `results.load`.
        levels: `results.levels`.
        group: The factor whose levels are compared; by default the one that changes neither size
            nor budget. Any further factor makes further curves, each compared with that of the
            group's baseline.
        baseline: A level of the group; by default its first one.
        count: A key of `COUNTS`.
        own: Of a script, "n" and "d" → the field that holds it; C is then 6·N·D.

    Raises:
        AblateError: No such factor, level or count, or no run has completed.
    """
    if count not in COUNTS:
        raise unknown("count", count, COUNTS)
    compared = runs[runs["role"] == "compare"].drop_duplicates(["cell", "run"])
    factors = list(dict.fromkeys(factor for cell in levels.values() for factor in cell))
    if group and group not in factors:
        raise unknown("factor in group", group, factors)
    steps = _deciding(compared, levels, [*own.values()]) if own else resources(compared, levels)
    several = [
        f for f in factors if len({chosen[f] for chosen in levels.values() if f in chosen}) > 1
    ]
    rest = [
        *([group] if group else []),
        *(factor for factor in several if factor not in (group, *steps)),
    ]
    compared_by = group or (rest[0] if len(rest) == 1 else "")
    if baseline and not compared_by:
        which = f": {listed(rest, 'or')}" if rest else ", but all runs are on one curve"
        raise AblateError(f"baseline {baseline!r} needs a group, whose level it is{which}")
    named = {cell: _curve(chosen, rest) for cell, chosen in levels.items()}
    good = compared[
        (compared["status"] == "complete") & np.isfinite(compared["metric"].astype(float))
    ]
    if good.empty:
        raise AblateError(
            "no compared run has completed its schedule with a finite loss: there is nothing to fit"
        )
    if not own and count != "total" and good["n_params_body"].isna().any():
        whole = good[good["n_params_body"].isna()]["cell"].unique()
        raise AblateError(
            f"the body of {listed(whole)} is unknown, as that of every whole model of one's own;"
            " count all parameters: --count total"
        )
    return Losses(
        loss=good["metric"].to_numpy(float),
        columns=(
            complete(good[own["n"]].to_numpy(float), good[own["d"]].to_numpy(float), None)[0]
            if own
            else _resources_of(good, count)
        ),
        curves=tuple(named[cell] for cell in good["cell"]),
        against=_against(levels, rest, compared_by, baseline),
        means={**own, "c": f"6 · {own['n']} · {own['d']}"}
        if own
        else {"n": COUNTS[count].n, "d": "training tokens", "c": COUNTS[count].c},
        notes=_left_out(compared, good),
    )


def _deciding(
    runs: pd.DataFrame, levels: Mapping[str, Mapping[str, str]], fields: Sequence[str]
) -> list[str]:
    """Return the factors that decide one of the fields, all other levels equal."""
    first = runs.drop_duplicates("cell").set_index("cell")
    found = []
    for factor in dict.fromkeys(factor for chosen in levels.values() for factor in chosen):
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for cell, chosen in levels.items():
            if cell in first.index:
                rest = tuple((name, level) for name, level in chosen.items() if name != factor)
                alike.setdefault(rest, []).append(cell)
        if any((first.loc[cells, list(fields)].nunique() > 1).any() for cells in alike.values()):
            found.append(factor)
    return found


def resources(runs: pd.DataFrame, levels: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the factors that change only size or training of the model at every step."""
    first = runs.drop_duplicates("cell").set_index("cell")
    cells = {cell: chosen for cell, chosen in levels.items() if cell in first.index}
    fields = [name for name in RunConfig.model_fields if name in first and name not in SEED_FIELDS]
    growing = []
    for factor in dict.fromkeys(factor for chosen in cells.values() for factor in chosen):
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for cell, chosen in cells.items():
            if factor in chosen:
                groups.setdefault(
                    tuple((other, level) for other, level in chosen.items() if other != factor), []
                ).append(cell)
        several = [group for group in groups.values() if len(group) > 1]
        if several and all(_grows(first.loc[group], fields) for group in several):
            growing.append(factor)
    return growing


def _grows(part: pd.DataFrame, fields: Sequence[str]) -> bool:
    changed = {name for name in fields if part[name].nunique() > 1}
    larger = [part[name].max() > GROWS * part[name].min() for name in ("n_params_body", "tokens")]
    return bool(changed & GROWN) and changed <= GROWN | FOLLOW and any(larger)


def _curve(chosen: Mapping[str, str], rest: Sequence[str]) -> str:
    """Return the name of a cell's curve: the level if one factor distinguishes curves."""
    return ", ".join(
        chosen[name] if len(rest) == 1 else f"{name}={chosen[name]}"
        for name in rest
        if name in chosen
    )


def _against(
    levels: Mapping[str, Mapping[str, str]], rest: Sequence[str], group: str, baseline: str
) -> dict[str, str]:
    """Return curve → that of the group's baseline, all else equal; the first if no group."""
    known = list(dict.fromkeys(chosen[group] for chosen in levels.values() if group in chosen))
    if baseline and baseline not in known:
        raise unknown(f"level of {group} as baseline", baseline, known)
    curves = []  # all else, name, whether it may be a baseline
    for chosen in levels.values():
        rest_of = {name: level for name, level in chosen.items() if name != group}
        others = _curve(rest_of, rest) if group else ""
        base = not baseline or chosen.get(group) == baseline
        curves.append((others, _curve(chosen, rest), base))
    first: dict[str, str] = {}
    for others, name, base in curves:
        if base:
            first.setdefault(others, name)
    return {name: first[others] for others, name, _ in curves if first.get(others, name) != name}


def _resources_of(runs: pd.DataFrame, count: str) -> dict[str, np.ndarray]:
    """Return N, D and C of every run."""
    flops, tokens = runs["flops"].to_numpy(float), runs["tokens"].to_numpy(float)
    if count == "headless":
        per_token = [
            sizes.head_flops_per_token(*row)
            for row in zip(
                runs["d_model"], runs["n_vocab"], runs["mlm_head_transform"], strict=True
            )
        ]
        flops = flops - 3 * np.array(per_token, float) * tokens
    return {
        "n": runs["n_params" if count == "total" else "n_params_body"].to_numpy(float),
        "d": tokens,
        "c": flops,
    }


def _left_out(compared: pd.DataFrame, good: pd.DataFrame) -> tuple[str, ...]:
    rest = compared[~compared["run"].isin(good["run"])].drop_duplicates("run")
    if rest.empty:
        return ()
    why = rest["status"].replace("complete", "without a finite loss").value_counts()
    counts = ", ".join(f"{number} {status}" for status, number in why.items())
    of = f"{len(rest)} of {compared['run'].nunique()} runs"
    return (
        f"{of} are left out, since they did not end a whole schedule with a finite loss: {counts}.",
    )
