"""Warnings on a table that does not look like finished runs in one unit; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ablate.scaling.forms import FLOPS_PER_PARAM_TOKEN, level_of
from ablate.scaling.noise import noise_of_repeats
from ablate.scaling.solve import Floats

# scaling curves have no model with fewer parameters or training tokens
FEW = 1e5
LARGEST_LOG = 100.0  # of numbers of parameters, tokens or FLOPs, to any base
# FLOPs over 6·N·D, or the inverse, that experts, attention and other counts of N do not explain
ODD = 30.0
UNITS = np.array([1e6, 1e9, 1e12, 1e15, 1e18])  # that a part of a column may be in
GAP = 1e3  # least ratio of neighbouring values between the parts of a column in two units
STEP = 10.0  # ratio that neighbouring sizes, tokens or budgets in one unit may have
TOKENS_A_PARAMETER = (1e-3, 1e7)
PERPLEXITY = 20.0  # nats a token: more than the logarithm of any vocabulary
SWEPT = 0.02  # sd of log loss at one point that is too large for seeds of one setting
CHECKPOINTS = 8  # evenly spaced token counts of one size that look like checkpoints
FEWEST = 4  # the same where a size has no others
EVENLY = 0.02  # of a step: largest deviation of an evenly spaced count
NEIGHBOURS = 5  # of a count on either side, whose distances are tried as steps
SAMPLED = 64  # counts of a size that are looked at
LOGARITHM = re.compile(r"(?:log|ln)\((.+)\)")  # of a column
SAME_EXPONENTS = "Exponents are the same in any unit."


def doubts(
    loss: Floats,
    columns: Mapping[str, Floats],
    curves: Sequence[str],
    names: Mapping[str, str],
    swept: Sequence[str],
    progress: Sequence[str],
    runs: Sequence[str],
) -> list[str]:
    """Return sentences on what looks wrong with P runs.

    Args:
        loss: [P].
        columns: n, d and c, [P] each.
        curves: Curve of each run.
        names: Key → name of the column in the table.
        swept: Other columns, which may be a sweep at one point.
        progress: Other columns that count steps, epochs or the like and differ at one point.
        runs: Columns that name a run, each of several rows.
    """
    notes = [
        *_two_units(columns, names),
        *_small(columns, names),
        *_price(columns, names),
        *_perplexity(loss, names["loss"]),
    ]
    along = list(_checkpoints(columns, curves, progress, runs))
    return notes + (along or list(_sweep(loss, columns, curves, swept)))


def _two_units(columns: Mapping[str, Floats], names: Mapping[str, str]) -> Iterator[str]:
    """Warn if a column falls into two parts with a gap, which one unit lays side by side."""
    for key, values in columns.items():
        ordered = np.sort(values)
        ratios = ordered[1:] / ordered[:-1]
        at = int(ratios.argmax()) + 1 if len(ratios) else 0
        others = np.delete(ratios, at - 1) if at else ratios
        # a ladder of long steps has several such gaps
        if not at or ratios[at - 1] <= max(GAP, float(others.max(initial=1.0)) ** 2):
            continue
        low, high = ordered[:at], ordered[at:]
        apart = np.log(UNITS * np.median(low) / np.median(high))
        unit = float(UNITS[np.abs(apart).argmin()])
        if low[0] / STEP <= high[-1] / unit and high[0] / unit <= low[-1] * STEP:
            yield (
                f"{names[key]} is at most {low[-1]:.4g} in {len(low):,} of {len(ordered):,} rows"
                f" and at least {high[0]:.4g} in the others: if some rows count in units of"
                f" {unit:g}, the column is in two units and the fit is wrong."
            )


def _small(columns: Mapping[str, Floats], names: Mapping[str, str]) -> Iterator[str]:
    for key, values in columns.items():
        if values.max() < LARGEST_LOG and re.search(r"log|ln", names[key], re.IGNORECASE):
            option = "flops" if key == "c" else key
            yield (
                f"{names[key]} is at most {values.max():.4g}: if it is a logarithm, --{option}"
                f" '10 ** {names[key]}' is the number."
            )
        elif values.max() < FEW:
            yield (
                f"{names[key]} is at most {values.max():.4g}: if it counts in millions or billions,"
                " so do the constants here, and budgets taken as C = 6·N·D are in the product of"
                f" those units. {SAME_EXPONENTS}"
            )


def _price(columns: Mapping[str, Floats], names: Mapping[str, str]) -> Iterator[str]:
    """Warn if FLOPs, parameters and tokens do not agree."""
    if columns.keys() >= {"n", "d", "c"}:
        ratio = float(
            np.median(columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns["n"] * columns["d"]))
        )
        if not 1 / ODD < ratio < ODD:
            yield (
                f"{names['c']} is {ratio:.2g} times 6·N·D: one of the columns counts in another"
                f" unit, such as GFLOPs, and so do the constants that go with it. {SAME_EXPONENTS}"
            )
    elif "c" in columns and len(columns) == 2:
        key = "n" if "n" in columns else "d"
        other = columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns[key])
        ratio = float(np.median(other / columns[key])) ** (1 if key == "n" else -1)
        if not TOKENS_A_PARAMETER[0] < ratio < TOKENS_A_PARAMETER[1]:
            yield (
                f"{names['c']} and {names[key]} come to {ratio:.2g} tokens a parameter: one of the"
                f" two counts in another unit, and so do the constants here. {SAME_EXPONENTS}"
            )


def _perplexity(loss: Floats, name: str) -> Iterator[str]:
    named = re.search(r"ppl|perplexity", name, re.IGNORECASE) and not LOGARITHM.fullmatch(name)
    if loss.max() > PERPLEXITY or named:
        yield (
            f"{name} reaches {loss.max():.4g}: if it is a perplexity, --loss 'log({name})' fits its"
            " logarithm, which is the loss."
        )


def _sweep(
    loss: Floats, columns: Mapping[str, Floats], curves: Sequence[str], swept: Sequence[str]
) -> Iterator[str]:
    """Warn if runs of one point differ by more than seeds do."""
    points = [
        np.unique(values, return_inverse=True)[1]
        for values in (*columns.values(), np.array(curves))
    ]
    if all(values.max() == 0 for values in points[:-1]):
        return  # one point: a column that sets the runs apart is missing
    spread = noise_of_repeats(np.stack(points), np.log(loss))
    if spread is not None and spread.sd > SWEPT:
        of = f" of {', '.join(swept)}" if swept else ""
        yield (
            f"Runs of one point differ by {spread.sd:.1%}, more than seeds do. If they are a"
            f" sweep{of}, --lowest takes the best of each point; if they are different settings,"
            " --where or --group separates them."
        )


def _checkpoints(
    columns: Mapping[str, Floats],
    curves: Sequence[str],
    progress: Sequence[str],
    named: Sequence[str],
) -> Iterator[str]:
    """Warn if most runs have evenly spaced token counts, or steps, as points along training do."""
    tokens = columns.get("d", columns.get("c") if "n" in columns else None)
    even = 0.0
    if tokens is not None:
        size = [level_of(columns.get("n", np.ones_like(tokens)))]
        size.append(np.unique(curves, return_inverse=True)[1])
        _, member, runs = np.unique(np.stack(size), axis=1, return_inverse=True, return_counts=True)
        shares = [_even(np.unique(tokens[member == one])) for one in range(len(runs))]
        even = float(runs @ shares) / len(tokens)
    if even > 0.5 or progress or named:
        what = (
            f"Each {named[0]} has several token counts, along which the loss falls"
            if named
            else "Most sizes have evenly spaced token counts"
            if even > 0.5
            else f"Runs of one point differ in {', '.join(progress)}"
        )
        yield (
            f"{what}. If these are points along"
            " training, all but the last point of a run are before annealing and are not runs of"
            " smaller budgets, and intervals that count each point as a run are too narrow: select"
            " the last points with --where."
        )


def _even(tokens: Floats) -> float:
    """Return the share of token counts, ascending, that are in a row of evenly spaced ones.

    Several schedules make several rows, one among the other. Fewer than `CHECKPOINTS` are points
    along training only if they all are in one row.
    """
    if len(tokens) < FEWEST:
        return 0.0
    if len(tokens) < CHECKPOINTS:
        steps = np.diff(tokens)
        return float(np.abs(steps / steps.mean() - 1).max() <= EVENLY)
    sample = np.unique(np.linspace(0, len(tokens) - 1, SAMPLED).astype(int))
    nodes = np.arange(1 - CHECKPOINTS, CHECKPOINTS)
    found = 0
    for at in sample:
        near = tokens[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS + 1]
        steps = np.abs(near[near != tokens[at]] - tokens[at])
        row = tokens[at] + steps[:, None] * nodes
        right = np.searchsorted(tokens, row).clip(1, len(tokens) - 1)
        off = np.minimum(np.abs(tokens[right] - row), np.abs(tokens[right - 1] - row))
        rows = sliding_window_view(off <= EVENLY * steps[:, None], CHECKPOINTS, axis=1)
        found += bool(rows.all(axis=2).any())
    return found / len(sample)
