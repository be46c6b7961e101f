"""Runs → a study in the database: its file's text, its plan, its numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, unknown
from ablate.imported.model import Asked, Gathered, ImportedRun, Level
from ablate.kinds import Run, kind
from ablate.plan import Plan, PlannedRun, plan
from ablate.store import Database
from ablate.store import imported as store
from ablate.store.imported import Numbers
from ablate.store.register import register
from ablate.study import write as study_file
from ablate.study.imported import CONTENT, FLOPS, PARAMS, SOURCE, TOKENS
from ablate.study.parse import parse
from ablate.study.values import label
from ablate.units import listed

SHOWN = 4  # most runs that a message names

Key = tuple[tuple[str, ...], int]  # labels of the levels, and the seed


@dataclass(frozen=True)
class Told:
    """Options of `ablate import` about the study.

    Attributes:
        name: Name of the study.
        question: The question that its report answers; "" for one about the factors.
        within: Factors whose levels form strata.
        baseline: Levels to compare with, "optimizer=sgd"; by default the first of each factor.
        replace: Whether the runs of the files replace those that were imported before.
    """

    name: str
    question: str = ""
    within: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    replace: bool = False


@dataclass(frozen=True)
class Prepared:
    """A study of imported runs, as it is to be stored.

    Attributes:
        plan: The study, with all runs.
        numbers: Numbers of the runs of the files.
        replace: Whether earlier runs may leave the study.
        notes: Sentences for the user.
    """

    plan: Plan
    numbers: list[Numbers]
    replace: bool
    notes: list[str]


def prepare(
    paths: Sequence[Path],
    found: Gathered,
    asked: Asked,
    told: Told,
    before: Sequence[store.Stored] = (),
) -> Prepared:
    """Make a study of the runs of files and folders.

    Runs that the study has already stay as they are; the runs of the files are added.

    Args:
        paths: Files and folders.
        found: The runs in them.
        asked: Which columns are factors, seed, step and metrics.
        told: Name, question and baselines of the study.
        before: The imported runs that the study has.

    Raises:
        AblateError: The runs cannot be a study, or the study has a run with different numbers.
    """
    before = () if told.replace else before
    factors = _levels(found, before, told)
    new = {_key(run): run for run in found.runs}
    kept = {
        (tuple(label(old.run.fields[name]) for name in factors), old.run.seed): old
        for old in before
    }
    made = {key: _made(factors, run, kept.get(key)) for key, run in new.items()}
    if changed := [key for key, (_, same) in made.items() if not same]:
        raise AblateError(_changed(told.name, factors, changed, new, kept, asked))
    toml = _toml(paths, asked, told, found, factors, {**kept, **new})
    planned = plan(parse(toml, Path(f"{told.name}.toml")))
    runs = {key: old.run for key, old in kept.items()}
    runs |= {key: run for key, (run, _) in made.items()}
    whole = replace(planned, runs=tuple(_planned(planned, factors, runs)))
    notes = [*found.notes, *_pairs(whole, factors, told)]
    numbers = [_numbers(run.key, new[key]) for key, (run, _) in made.items()]
    return Prepared(whole, numbers, told.replace or bool(before), notes)


def write(db: Database, prepared: Prepared) -> int:
    """Store a study and the numbers of its runs; return how many runs are new.

    Raises:
        AblateError: A study of this name has results that were not imported.
    """
    study_id = register(db, prepared.plan, replace=prepared.replace)
    return store.insert(db, study_id, prepared.numbers)


def _key(run: ImportedRun) -> Key:
    return tuple(map(label, run.cell)), run.seed


def _made(
    factors: Mapping[str, list[Level]], run: ImportedRun, old: store.Stored | None
) -> tuple[Run, bool]:
    """Return a run as the database has it, and whether it agrees with the stored one."""
    fields: dict[str, Any] = dict(run.resources)
    for (name, levels), own in zip(factors.items(), run.cell, strict=True):
        # a number that stands among texts in a later file is the number that it was
        fields[name] = next(level for level in levels if label(level) == label(own))
    fields |= {CONTENT: run.content, SOURCE: run.place}
    made = Run("imported", kind("imported").check(fields), run.seed)
    if old is None or old.run.key == made.key:
        return (old.run if old else made), True
    return made, store.agrees(old, _numbers(made.key, run))


def _numbers(key: str, run: ImportedRun) -> Numbers:
    return Numbers(key, run.status, run.finals, run.points, run.diverged_at, run.error)


def _levels(found: Gathered, before: Sequence[store.Stored], told: Told) -> dict[str, list[Level]]:
    """Return factor → levels of the new and the stored runs, the baseline first."""
    factors: dict[str, list[Level]] = {name: [] for name in found.factors}
    for old in before:
        own = old.run.fields.keys() - {CONTENT, SOURCE, PARAMS, TOKENS, FLOPS}
        if own != factors.keys():
            raise AblateError(
                f"study {told.name!r} was imported with the factors {listed(sorted(own))}, not"
                f" {listed(factors)}; choose another name, or replace the study with --replace"
            )
    for name, levels in factors.items():
        known = [old.run.fields[name] for old in before] + list(found.factors[name])
        labels = dict.fromkeys(map(label, known))
        levels += [next(one for one in known if label(one) == text) for text in labels]
    for text in told.baseline:
        name, equals, level = text.partition("=")
        if not equals:
            raise AblateError(f"--baseline {text!r}: expected FACTOR=LEVEL")
        field = _factor(found, name, "--baseline")
        chosen = next((one for one in factors[field] if label(one) == level), None)
        if chosen is None:
            raise unknown(f"--baseline level of {name}", level, map(label, factors[field]))
        factors[field].remove(chosen)
        factors[field].insert(0, chosen)
    return factors


def _factor(found: Gathered, name: str, option: str) -> str:
    """Return the field of a factor, which may be named by its column."""
    for field, column in found.columns.items():
        if name in (field, column):
            return field
    raise unknown(f"factor in {option}", name, found.columns.values())


def _changed(
    study: str,
    factors: Mapping[str, Any],
    changed: Sequence[Key],
    new: Mapping[Key, ImportedRun],
    old: Mapping[Key, store.Stored],
    asked: Asked,
) -> str:
    """Return the error for runs whose numbers differ from the stored ones."""
    said, metric = [], asked.names[asked.metrics[0]]
    for key in changed[:SHOWN]:
        cell = listed(f"{name}={level}" for name, level in zip(factors, key[0], strict=True))
        values = [
            "no value" if value is None else f"{value:.6g}"
            for value in (old[key].finals.get((metric, 0.0)), new[key].finals.get((metric, 0.0)))
        ]
        said.append(f"{cell}, seed {key[1]}: {values[0]}, now {values[1]} ({new[key].place})")
    more = len(changed) - SHOWN
    return (
        f"study {study!r} has different numbers for {len(changed):,} run{'s' * (len(changed) > 1)}:"
        f" {'; '.join(said)}{f'; {more:,} more' if more > 0 else ''}. Choose another name, or"
        " replace the study with --replace"
    )


def _toml(
    paths: Sequence[Path],
    asked: Asked,
    told: Told,
    found: Gathered,
    factors: Mapping[str, list[Level]],
    runs: Mapping[Key, Any],
) -> str:
    """Return the text of the study's file."""
    cells = {key[0] for key in runs}
    labels = [list(map(label, levels)) for levels in factors.values()]
    empty = [cell for cell in product(*labels) if cell not in cells]
    _has_baselines(told, found, factors, cells)
    names = listed(found.columns.values())
    table: dict[str, Any] = {
        "name": told.name,
        "question": told.question or f"How does {asked.metrics[0]} depend on {names}?",
        "metric": asked.names[asked.metrics[0]],
        "goal": found.goal,
        "within": [_factor(found, name, "--within") for name in told.within],
        "seeds": sorted({seed for _, seed in runs}),
        "imported": _without_empty(
            {
                "files": [os.fspath(path) for path in paths],
                "seed": asked.seed,
                "step": asked.step,
                "at": int(asked.at) if asked.at.isdigit() else asked.at,
                "columns": {k: v for k, v in found.columns.items() if k != v},
                "pattern": asked.pattern,
                "where": list(asked.where),
            }
        ),
        "factors": dict(factors),
        "exclude": [
            {
                name: levels[texts.index(text)]
                for (name, levels), texts, text in zip(factors.items(), labels, cell, strict=True)
            }
            for cell in empty
        ],
    }
    if {PARAMS, TOKENS} <= asked.resources.keys():
        table["fit"] = {"n": PARAMS, "d": TOKENS}
    return study_file.write(_without_empty(table))


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in ([], {}, "")}


def _has_baselines(
    told: Told, found: Gathered, factors: Mapping[str, list[Level]], cells: set[tuple[str, ...]]
) -> None:
    """Refuse a stratum whose baseline has no run."""
    within = [_factor(found, name, "--within") for name in told.within]
    first = {name: label(levels[0]) for name, levels in factors.items()}
    names = list(factors)
    for cell in sorted(cells):
        at = dict(zip(names, cell, strict=True))
        baseline = tuple(at[name] if name in within else first[name] for name in names)
        if baseline not in cells:
            lacking = listed(f"{name}={level}" for name, level in zip(names, baseline, strict=True))
            raise AblateError(
                f"no run has {lacking}, which the others are compared with: choose another level"
                " with --baseline FACTOR=LEVEL, or leave runs out with --where"
            )


def _planned(
    planned: Plan, factors: Mapping[str, Any], runs: Mapping[Key, Run]
) -> Iterator[PlannedRun]:
    """Yield the runs in the order of a plan: seed after seed."""
    of_cell = {tuple(cell.levels[name] for name in factors): cell.label for cell in planned.cells}
    for seed in planned.study.seeds:
        for levels, cell in of_cell.items():
            if run := runs.get((levels, seed)):
                yield PlannedRun(cell, run)


def _pairs(whole: Plan, factors: Mapping[str, list[Level]], told: Told) -> Iterator[str]:
    """Yield which level is the baseline, and which combinations of cell and seed have no run.

    Raises:
        AblateError: No cell shares a seed with its baseline.
    """
    seeds: dict[str, set[int]] = {}
    for one in whole.runs:
        seeds.setdefault(one.cell, set()).add(one.run.seed)
    compared = [(one.cell, one.baseline) for one in whole.contrasts]
    if not any(seeds[cell] & seeds[baseline] for cell, baseline in compared):
        cell, baseline = compared[0]
        raise AblateError(
            f"no cell shares a seed with its baseline, so that no runs can be paired: {baseline}"
            f" has {_few(seeds[baseline])}, {cell} has {_few(seeds[cell])}; if runs of different"
            " cells belong together, give them the same seed"
        )
    first = listed(
        f"{name}={label(levels[0])}"
        for name, levels in factors.items()
        if name not in whole.study.within
    )
    apart = f", in each level of {listed(whole.study.within)}" if whole.study.within else ""
    named = "" if told.baseline else ", the first in the file; --baseline chooses another"
    yield f"Baseline: {first}{apart}{named}."
    missing = [
        f"{cell}, seed {seed}"
        for cell, of in seeds.items()
        for seed in whole.study.seeds
        if seed not in of
    ]
    if missing:
        shown = "; ".join(missing[:SHOWN])
        more = f"; {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        yield (
            f"No run: {len(missing):,} of {len(seeds) * len(whole.study.seeds):,} combinations of"
            f" cell and seed ({shown}{more}). They make no pair."
        )


def _few(seeds: set[int]) -> str:
    shown = sorted(seeds)[:3]
    return f"seeds {', '.join(map(str, shown))}{', …' if len(seeds) > 3 else ''}"
