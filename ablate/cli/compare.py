"""`ablate compare`: two runs side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ablate.cli.flags import option
from ablate.cli.output import echo
from ablate.cli.render import Db, RunName, show_all, table, writing
from ablate.cli.show import digits
from ablate.formats import printable, shown
from ablate.units import MINUS, count, decimals, number, power, signed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.store.details import RunDetails

LOSSES = ("loss", "train_loss")  # held-out first
SIZES: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("tokens", "n_params", "n_params_body"), "{:,}".format),
    "flops": power,
}
SHOWN = 10  # points of a curve that are printed as numbers
BARS = "▁▂▃▄▅▆▇█"
DRAWN = (".svg", ".pdf", ".png")
WIDTH = 40  # characters of a drawn curve

Curve = Mapping[int, float]  # tokens or steps → value
Spreads = Mapping[tuple[str, float], float]  # final → standard deviation over seeds


@dataclass(frozen=True)
class Common:
    """The curves that two runs have both.

    Attributes:
        over: What they are over: "tokens", or "step" where a run's tokens are unknown.
        series: Name of a series → its curve in each run. Metrics of the runs' studies come first,
            then held-out loss and training loss.
        deciding: How many of them, the first ones, are such metrics and losses.
    """

    over: str
    series: Mapping[str, Sequence[Curve]]
    deciding: int

    @property
    def main(self) -> list[str]:
        """The metrics and losses; all series where there is none."""
        return list(self.series)[: self.deciding or None]


def compare(
    first: RunName,
    second: RunName,
    plot: Annotated[
        Path | None, option("Draw their curves: .svg, .pdf or .png.", "--plot", metavar="FILE")
    ] = None,
    db: Db = None,
) -> None:
    """Compare two runs: the fields in which they differ, their final metrics and their curves."""
    from ablate import store
    from ablate.errors import AblateError, unknown
    from ablate.store import details
    from ablate.store.noise import over_seeds

    if plot and plot.suffix not in DRAWN:
        raise unknown("extension of --plot", plot.suffix or plot.name, DRAWN)
    with store.open(db) as database:
        runs = details.find(database, first, second, curves=True)
        if runs[0].id == runs[1].id:
            raise AblateError(
                f"{first} and {second} are the same run; `ablate show {first}` shows it"
            )
        show_all(_parts(runs, over_seeds(database, runs=[run.id for run in runs])))
        if plot:
            with writing(plot):
                _plot(runs, plot)


def _parts(runs: Sequence[RunDetails], spreads: Spreads) -> Iterator[RenderableType]:
    names = [f"run {run.id}" for run in runs]
    for run in runs:
        cells = (
            "; ".join(
                f"{printable(member.cell)} in {printable(member.study)}"
                for member in run.members
                if member.active
            )
            or "in no study"
        )
        yield f"Run {run.id}: {run.status}. {cells}, seed {run.row['seed']}"
    configs = [
        {**run.fields, "seed": run.row["seed"], **{name: run.row[name] for name in SIZES}}
        for run in runs
    ]
    differing = [
        name
        for name in dict.fromkeys([*configs[0], *configs[1]])
        if configs[0].get(name) != configs[1].get(name)
    ]
    yield table(
        ["differing field", *names],
        [(name, *(_field(name, config.get(name)) for config in configs)) for name in differing],
    )
    finals = [run.finals for run in runs]
    keys = sorted({*finals[0], *finals[1]})
    several = {name for name, at in keys if at}
    if rows := [
        (
            f"{shown(name)} at {at:g}" if name in several else shown(name),
            *_formatted(*(each.get((name, at)) for each in (*finals, spreads))),
        )
        for name, at in keys
    ]:
        yield table(["final", *names, "difference"], rows, right=[*names, "difference"])
        yield from _cautions(runs)
    common = _common(runs)
    if common.series:
        yield table(
            ["series", "", "from first to last point", "first", "last"],
            _drawn(common, names, spreads),
            right=["first", "last"],
        )
        yield _points(common, names, spreads)


def _cautions(runs: Sequence[RunDetails]) -> Iterator[str]:
    """Yield which finals of two runs cannot be compared, by the rule for metrics of studies."""
    from ablate.plan.check import comparable
    from ablate.study.model import OWN
    from ablate.units import listed

    if any(run.row["kind"] in OWN for run in runs):
        return
    one, other = (run.fields for run in runs)
    objectives = {fields["objective"] for fields in (one, other) if "objective" in fields}
    found: dict[str, list[str]] = {}
    for name in sorted({name for name, _ in {*runs[0].finals} & {*runs[1].finals}}):
        varied = [
            field.removesuffix("_hash")
            for field in comparable(name, objectives)
            if one.get(field) != other.get(field)
        ]
        if varied:
            found.setdefault(listed(varied), []).append(name)
    for fields, names in found.items():
        yield f"Not comparable, as the runs differ in {fields}: {listed(map(shown, names))}"
    if one.get("corpus_hash") != other.get("corpus_hash"):
        yield "The runs are measured on different texts: differences are also those of the texts"


def _common(runs: Sequence[RunDetails]) -> Common:
    """Return the curves that both runs have."""
    by_tokens = all(run.step_tokens for run in runs)
    first = dict.fromkeys([*_reported(runs), *LOSSES])
    both = [name for name in runs[0].curves if name in runs[1].curves]
    order = [name for name in first if name in both]
    return Common(
        "tokens" if by_tokens else "step",
        {
            name: [
                {
                    step * ((run.step_tokens or 1) if by_tokens else 1): value
                    for step, value in run.curves[name].items()
                }
                for run in runs
            ]
            for name in [*order, *sorted({*both} - {*order})]
        },
        len(order),
    )


def _reported(runs: Sequence[RunDetails]) -> Iterator[str]:
    """Yield the names under which runs report the metrics of their studies."""
    from ablate import metrics
    from ablate.study.model import OWN

    for run in runs:
        for member in run.members:
            if member.active:
                own = run.row["kind"] in OWN
                yield metrics.series(member.metric) if own else metrics.final(member.metric)[0]


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    if name in SIZES and value is not None:
        return SIZES[name](value)
    return (
        "–"
        if value is None
        else shown(int(value) if isinstance(value, float) and value.is_integer() else value)
    )


def _formatted(
    first: float | None, second: float | None, spread: float | None
) -> tuple[str, str, str]:
    """Return two values and second − first as text; "–" if not measured.

    Args:
        first: The first value.
        second: The second one.
        spread: Their standard deviation over seeds, which decides the digits, if it is known.
    """
    change = "–"
    if first is not None and second is not None and math.isfinite(first) and math.isfinite(second):
        change = f"{second - first:+.4g}".replace("-", MINUS)
        if spread:
            change = signed(second - first, decimals(spread))
    return _number(first, spread), _number(second, spread), change


def _number(value: float | None, spread: float | None) -> str:
    if value is None or not spread or not math.isfinite(value):
        return "–" if value is None else digits(value)
    return number(value, decimals(spread))


def _drawn(common: Common, names: Sequence[str], spreads: Spreads) -> Iterator[tuple[str, ...]]:
    """Yield two rows for each series, on one scale of tokens or steps and of values."""
    for name, pair in common.series.items():
        finite = [value for curve in pair for value in curve.values() if math.isfinite(value)]
        scale = (min(finite), max(finite)) if finite else (0.0, 0.0)
        end = max(max(curve) for curve in pair)
        for row, curve in enumerate(pair):
            values = list(curve.values())
            drawn = sparkline(curve, end, *scale)
            yield (
                "" if row else shown(name),
                names[row],
                drawn,
                _number(values[0], spreads.get((name, 0.0))),
                _number(values[-1], spreads.get((name, 0.0))),
            )


def sparkline(curve: Curve, end: int, low: float, high: float) -> str:
    """Draw a curve from 0 to `end` tokens, or steps, in `WIDTH` characters.

    Each character is the newest value of its span: a bar between `low` and `high`, "×" if it is not
    finite, blank before the first point; nothing follows the last one.
    """
    newest: dict[int, float] = {}
    for at, value in curve.items():
        newest[min(WIDTH - 1, at * WIDTH // max(end, 1))] = value
    unit = 1.0 if math.isfinite(high - low) else 0.5  # the span from -1e308 to 1e308 overflows
    span = (high * unit - low * unit) or 1.0
    drawn = ""
    for column in range(max(newest, default=-1) + 1):
        if column not in newest:
            drawn += drawn[-1:] or " "
        elif math.isfinite(value := newest[column]):
            drawn += BARS[min(7, int((value * unit - low * unit) / span * 8))]
        else:
            drawn += "×"
    return drawn


def _points(common: Common, names: Sequence[str], spreads: Spreads) -> RenderableType:
    """Return values of the first of the main series that both runs have at the same places."""
    for name in common.main:
        first, second = common.series[name]
        if places := sorted(first.keys() & second.keys()):
            chosen = sorted(
                {round(index * (len(places) - 1) / (SHOWN - 1)) for index in range(SHOWN)}
            )
            spread = spreads.get((name, 0.0))
            rows = [
                (
                    count(at) if common.over == "tokens" else f"{at:,}",
                    *_formatted(first[at], second[at], spread),
                )
                for at in (places[index] for index in chosen)
            ]
            heading = f"{shown(name)} at {common.over}"
            return table(
                [heading, *names, "difference"], rows, right=[heading, *names, "difference"]
            )
    where = "number of tokens" if common.over == "tokens" else "step"
    return f"The runs have no point of {shown(common.main[0])} at the same {where}."


def _plot(runs: Sequence[RunDetails], path: Path) -> None:
    """Save a figure of the first of the main series that both runs have, with several points."""
    import matplotlib.pyplot as plt
    import pandas as pd

    from ablate import figures
    from ablate.errors import AblateError

    common = _common(runs)
    if not common.series:
        raise AblateError("--plot: the two runs have no curve in common")
    long = (one for one in common.main if min(map(len, common.series[one])) > 1)
    series = next(long, common.main[0])
    rows: list[dict[str, Any]] = [
        {"arm": f"run {run.id}", "run": run.id, "step": at, "tokens": at, "value": value}
        for run, curve in zip(runs, common.series[series], strict=True)
        for at, value in curve.items()
    ]
    figure = figures.curves(
        pd.DataFrame(rows), x=common.over, label=_label(series, runs)
    ).get_figure(root=True)
    assert figure
    echo(f"Drawn: {figures.save(figure, path.with_suffix(''), [path.suffix[1:]])[0]}")
    plt.close(figure)


def _label(series: str, runs: Sequence[RunDetails]) -> str:
    """Return the name of the axis of a series, with its unit where ablate measured it."""
    from ablate import metrics
    from ablate.study.model import OWN

    kinds = {run.row["kind"] for run in runs}
    if kinds & {*OWN}:
        return series
    unit = metrics.unit("loss" if series in LOSSES else series)
    if series in LOSSES and kinds == {"finetune"}:
        unit = "nats per text"
    return series.replace("_", " ") + (f" ({unit})" if unit else "")
