"""Fit any table of losses: one curve a group, isoFLOP exponents where budgets repeat, and the groups against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablate.errors import AblateError
from ablate.scaling.fit import BOOTSTRAPS, MISFIT, Fit, chosen_check, chosen_form, fit, misfit
from ablate.scaling.forms import FLOPS_PER_PARAM_TOKEN, levels
from ablate.scaling.groups import Comparison, compare_groups
from ablate.scaling.isoflop import LEAST_SIZES, IsoFlop, isoflop
from ablate.scaling.solve import Floats


@dataclass(frozen=True)
class TableFit:
    """What a table of losses says. Groups in order of appearance; the first is the baseline. One group is called "all"."""

    fits: dict[str, Fit]
    isoflops: dict[str, IsoFlop]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The whole result as plain text, a line each."""
        parts = [fit_lines(name, one) for name, one in self.fits.items()]
        parts += [isoflop_lines(name, iso) for name, iso in self.isoflops.items()]
        parts += [comparison_lines(one) for one in self.comparisons]
        return [line for part in parts for line in part] + list(self.notes)


def fit_table(
    loss: Floats,
    *,
    n: Floats | None = None,
    d: Floats | None = None,
    flops: Floats | None = None,
    group: Sequence[str] | None = None,
    form: str = "",
    hold_out: str = "",
    rng: np.random.Generator,
    bootstraps: int = BOOTSTRAPS,
    confidence: float = 0.95,
) -> TableFit:
    """Fit P runs: loss [P], and of n (parameters), d (tokens), flops what the table has; group names a curve for each run.

    form: "n", "d", "c" or "nd"; by default L(N, D) where two columns are there (the third from C = 6·N·D), else the column there
    is. IsoFLOP minima are looked for besides where budgets are known or repeat. AblateError where nothing can be fitted.
    """
    for name, given in {"n": n, "d": d, "flops": flops, "group": group}.items():
        if given is not None and len(given) != len(loss):
            raise AblateError(f"column {name} has {len(given)} values for {len(loss)} losses.")
    columns, notes = complete(n, d, flops)
    chosen_check(hold_out, chosen_form(form, columns), columns)
    names = np.array(["all"] * len(loss) if group is None else [str(name) for name in group])
    order = np.lexsort([*columns.values()])  # runs of the same point stand at the same place in every group
    seed = int(rng.integers(2**63))
    fits: dict[str, Fit] = {}
    isoflops: dict[str, IsoFlop] = {}
    refused: list[str] = []
    for name in dict.fromkeys(names.tolist()):
        rows = order[names[order] == name]
        part, losses = {column: values[rows] for column, values in columns.items()}, np.asarray(loss, float)[rows]
        try:
            # One seed for every group: groups of the same points share their replicates' weights, and are compared as pairs.
            same = np.random.default_rng(seed)
            fits[name] = fit(losses, form, rng=same, hold_out=hold_out, bootstraps=bootstraps, confidence=confidence, **part)
        except AblateError as error:
            refused.append(f"{name}: {error}" if group is not None else str(error))
        if {"n", "c"} <= part.keys() and (flops is not None or repeating(part["c"])):
            try:
                isoflops[name] = isoflop(losses, rng=rng, bootstraps=bootstraps, confidence=confidence, **part)
            except AblateError as error:
                refused.append(f"{name}: {error}" if group is not None else str(error))
    if not fits and not isoflops:
        raise AblateError(" ".join(refused))
    for name in fits:
        if name in isoflops and fits[name].noise > MISFIT * isoflops[name].noise:
            notes.append(f"{name}: {misfit(fits[name].noise, isoflops[name].noise)}")
    comparisons = compare_groups(fits, next(iter(fits)), rng=rng, flops_per_param_token=per_param_token(columns)) if fits else []
    return TableFit(fits, isoflops, tuple(comparisons), tuple(refused + notes))


def complete(n: Floats | None, d: Floats | None, flops: Floats | None) -> tuple[dict[str, Floats], list[str]]:
    """The columns that are there, and the third of n, d and flops from the other two by C = 6·N·D."""
    columns = {name: np.asarray(c, float) for name, c in (("n", n), ("d", d), ("c", flops)) if c is not None}
    if not columns:
        raise AblateError("a table of losses needs at least one of the columns n, d, flops.")
    if columns.keys() == {"n", "c"}:
        return columns | {"d": columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns["n"])}, ["Tokens taken as d = flops / 6n."]
    if columns.keys() == {"d", "c"}:
        return columns | {"n": columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns["d"])}, ["Parameters taken as n = flops / 6d."]
    if columns.keys() == {"n", "d"}:
        return columns | {"c": FLOPS_PER_PARAM_TOKEN * columns["n"] * columns["d"]}, ["Budgets taken as C = 6·n·d."]
    return columns, []


def per_param_token(columns: dict[str, Floats]) -> float:
    """FLOPs per parameter and token: what the table says, or 6."""
    if columns.keys() == {"n", "d", "c"}:
        return float(np.median(columns["c"] / (columns["n"] * columns["d"])))
    return FLOPS_PER_PARAM_TOKEN


def repeating(c: Floats) -> bool:
    """Whether runs share budgets, as isoFLOP curves do."""
    return len(levels(c)) * LEAST_SIZES <= len(c)


def fit_lines(name: str, one: Fit) -> list[str]:
    out = [f"{name}: {one.form.symbol} = {one.form.equation}, {one.runs} runs, {one.noise:.2%} off the curve"]
    out += [f"  {constant} = {interval}" for constant, interval in one.constants.items()]
    if one.form.columns == ("n", "d"):
        out.append(f"  best N grows as C^a, a = {one.n_exponent}")
    out += [f"  {one.held_out}"] if one.held_out else []
    out += [f"  {one.lost} runs without a finite loss left out."] if one.lost else []
    return out + [f"  {note}" for note in one.notes]


def isoflop_lines(name: str, iso: IsoFlop) -> list[str]:
    found = sum(not minimum.reason for minimum in iso.minima)
    out = [f"{name}: isoFLOP minima of {found} budgets, noise {iso.noise:.2%} from {iso.noise_from}"]
    out.append(f"  best N grows as C^a, a = {iso.n_exponent}; best D as C^b, b = {iso.d_exponent}")
    if iso.frontier:
        constants = ", ".join(f"{constant} = {interval}" for constant, interval in iso.frontier.constants.items())
        out.append(f"  at the minima L(C) = {iso.frontier.form.equation}: {constants}")
        out += [f"  {iso.frontier.held_out}"] if iso.frontier.held_out else []
    return out + [f"  {note}" for note in iso.notes]


def comparison_lines(one: Comparison) -> list[str]:
    out = [f"{one.group} against {one.baseline}: {one.verdict}"]
    for title, tests in (("own floors", one.exponents), ("one floor for both", one.one_floor)):
        out += [f"  {constant}, {title}: difference {t.interval}, p (Holm) {t.p_holm:.3g}" for constant, t in tests.items()]
    places = (("", one.gap), (f" at {one.axis.upper()} = {one.low:.3g}", one.gap_low), (f" at {one.high:.3g}", one.gap_high))
    gaps = ", ".join(f"{gap.value:+.2%} [{gap.lo:+.2%}, {gap.hi:+.2%}]{where}" for where, gap in places)
    return [*out, f"  loss against the baseline's: {gaps}", f"  {one.crossing}"]
