"""A study in a database: runs never trained, through the real plan, journals and ingest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from store_plans import claim_next

from ablate import figures, store
from ablate.config import RunConfig
from ablate.figures import saving
from ablate.journal import Journal
from ablate.kinds.transformer import run_of
from ablate.plan import Cell, Contrast, Plan, PlannedRun
from ablate.report import fitted
from ablate.report.figure_set import FigureSet
from ablate.scaling import Losses, solve
from ablate.store import Database, ingest, owners, records, register
from ablate.study import Crossed, Study
from ablate.study.design import PARTWISE

NAN = math.nan
TUNING_SEED = 1000
VERSIONS = {"python": "3.11.9", "torch": "2.13.0", "ablate": "0.1.0"}


@dataclass
class Outcome:
    """How a run went. `points`: step → value of `series`; the last one is the final loss where
    `loss` is not given.
    """

    loss: float = NAN
    status: str = "complete"
    step: int = 0  # of the end; 0 for the last
    points: Mapping[int, float] = field(default_factory=dict)
    series: str = "loss"
    finals: Sequence[tuple[str, float, float]] = ()
    error: str = ""
    seconds: float = 10.0
    device: str = "cpu"


def column(coded: Any) -> list[Any]:
    """The values of a column of an exploration, see `ablate.report.explore`."""
    if isinstance(coded, list):
        return coded
    if "add" in coded:
        return list(itertools.accumulate(column(coded["add"])))
    return [coded["of"][at] for at in coded["at"]]


Levels = dict[str, str]


def study(
    folder: Path,
    factors: Mapping[str, Mapping[str, Mapping[str, Any]]],
    outcome: Callable[[Levels, int], Outcome | None],
    *,
    seeds: int | Crossed = 5,
    within: Sequence[str] = (),
    name: str = "topology",
    question: str = "Which wiring learns fastest?",
    metric: str = "loss",
    goal: str = "min",
    base: Mapping[str, Any] = {},
    toml: str = "",
    rates: Sequence[float] = (),
    design: str = "grid",
    left_out: Sequence[Levels] = (),
) -> Database:
    """A database with one study: every combination of levels, or each part by itself.

    Each run goes as `outcome(levels, seed)` says (None: not begun).

    rates: learning rates tried by each cell on seed 1000, by runs whose role is to tune; `outcome`
    finds it in levels["lr"]. left_out: combinations that the study does not have.
    """
    plan = _plan(factors, seeds, within, name, question, metric, goal, base, toml, design, left_out)
    tuning = [
        PlannedRun(cell.label, cell.run.with_(seed=TUNING_SEED, lr=rate), "tune")
        for cell in plan.cells
        for rate in rates
    ]
    plan = replace(plan, runs=(*tuning, *plan.runs))
    db = store.open(str(folder / "ablate.db"), create=True)
    study_id = register.register(db, plan)
    by_key = {planned.run.key: (planned.cell, planned.config.seed) for planned in plan.runs}
    levels = {cell.label: cell.levels for cell in plan.cells}
    with owners.Owner.here(db) as owner:
        claims = claim_next(db, study_id, owner, len(plan.runs))
        for claim in claims:
            cell, seed = by_key[claim.run.key]
            rate = {"lr": str(claim.run.config.lr)} if seed == TUNING_SEED else {}
            result = outcome(levels[cell] | rate, seed)
            if result is None:
                _forget(db, claim.attempt_id, claim.run_id)
            else:
                _play(db, claim, result)
    return db


def _plan(
    factors, seeds, within, name, question, metric, goal, base, toml, design, left_out=()
) -> Plan:  # type: ignore[no-untyped-def]
    text = toml or f'name = "{name}"\ndesign = "{design}"\n'
    crossed = seeds if isinstance(seeds, Crossed) else None
    if crossed and not toml:
        text += f"seeds = {{ init = {crossed.init}, data = {crossed.data} }}\n"
    seeds = crossed.seeds if crossed else tuple(range(seeds))
    described = Study(
        name,
        question,
        metric,
        goal,
        design,
        tuple(within),
        seeds,
        dict(base),
        dict(factors),
        toml=text,
        crossed=crossed,
    )  # type: ignore[arg-type]
    cells = []
    first = {factor: next(iter(levels)) for factor, levels in factors.items()}
    for combination in itertools.product(*factors.values()):
        levels = dict(zip(factors, combination, strict=True))
        if levels in left_out:
            continue
        if (
            design != "grid"
            and sum(
                level != first[factor] for factor, level in levels.items() if factor not in within
            )
            > 1
        ):
            continue
        fields = dict(base)
        for factor, level in levels.items():
            fields.update(factors[factor][level])
        config = RunConfig(**fields)
        stratum = _text({factor: levels[factor] for factor in within})
        label = _label(levels, first, within, design)
        cells.append(Cell(run_of(config), 1.0, label=label, levels=levels, stratum=stratum))
    contrasts = []
    for cell in cells:
        base_cell = next(
            c
            for c in cells
            if all(c.levels[f] == (cell.levels[f] if f in within else first[f]) for f in factors)
        )
        differs = {
            factor: level
            for factor, level in cell.levels.items()
            if base_cell.levels[factor] != level
        }
        if differs:
            factor = " × ".join(differs)
            group = "parts" if design in PARTWISE else factor
            family = f"{group} | {cell.stratum}" if cell.stratum else group
            level = " × ".join(differs.values())
            contrasts.append(
                Contrast(family, cell.stratum, factor, level, cell.label, base_cell.label)
            )
    planned = [
        PlannedRun(cell.label, cell.run.with_(seed=seed, **described.seed_fields(seed)))
        for seed in seeds
        for cell in cells
    ]
    return Plan(described, tuple(cells), tuple(contrasts), tuple(planned))


def _label(levels: Levels, first: Levels, within: Sequence[str], design: str) -> str:
    if design == "grid":
        return _text(levels)
    named = {
        name: level for name, level in levels.items() if name in within or level != first[name]
    }
    own = [] if {*named} - {*within} else ["baseline"]
    return ", ".join([_text(named)] * bool(named) + own)


def _text(levels: Levels) -> str:
    return ", ".join(f"{factor}={level}" for factor, level in levels.items())


def _forget(db: Database, attempt_id: int, run_id: int) -> None:
    with db.begin() as connection:
        connection.exec_driver_sql("DELETE FROM attempt WHERE id = ?", (attempt_id,))
        connection.exec_driver_sql("UPDATE run SET status = 'planned' WHERE id = ?", (run_id,))


def _play(db: Database, claim: records.Claim, result: Outcome) -> None:
    last = result.step or max(result.points, default=claim.run.config.steps)
    with Journal(claim.journal) as journal:
        journal.append(
            "start",
            step=0,
            time=1.7e9,
            host="lab",
            pid=1,
            device=result.device,
            threads=2,
            pack_size=1,
            compile_mode="none",
            versions=VERSIONS,
            commit="0123456789abcdef",
            dirty=False,
        )
        if result.points:
            journal.append(
                "metrics",
                steps=list(result.points),
                series={result.series: list(result.points.values())},
            )
        loss = result.loss if not math.isnan(result.loss) else result.points.get(last, NAN)
        if result.status in ("complete", "diverged"):
            final = NAN if result.status == "diverged" else loss
            journal.append(
                "final",
                values=[
                    ["loss", 0, final],
                    ["train_seconds", 0, result.seconds],
                    *map(list, result.finals),
                ],
            )
        journal.append(
            "end",
            status=result.status,
            step=last,
            error=result.error,
            device_seconds=result.seconds,
            peak_bytes=1 << 20,
            time=1.7e9 + 10,
        )
    ingest.ingest(db, claim.attempt_id)


def save_svg(figure: Figure, stem: Path, kinds: object = ()) -> list[Path]:
    """`figures.save`, quicker: the other two kinds of files are looked at elsewhere."""
    return saving.save(figure, stem, ("svg",))


@pytest.fixture
def svg_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "save", save_svg)


def leave_blank(figure_set: FigureSet) -> None:
    """`FigureSet.draw` for tests that read sentences and tables: the files are there, and empty."""
    figure_set.folder.mkdir(parents=True, exist_ok=True)
    for drawing in figure_set.drawings:
        (figure_set.folder / f"{drawing}.svg").write_text("<svg></svg>")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FigureSet, "draw", leave_blank)


@pytest.fixture
def few_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick curves. Losses that hardly fall with size take 2,000 iterations and have no optimum."""
    monkeypatch.setattr(solve, "ITERATIONS", 50)
    monkeypatch.setattr(Losses, "fit", partialmethod(Losses.fit, bootstraps=60))
    monkeypatch.setattr(fitted, "FEWER", 60)
