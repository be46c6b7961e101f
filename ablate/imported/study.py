"""Runs → a study in the database: its file's text, its plan, its numbers."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, unknown
from ablate.imported.model import Asked, Gathered, ImportedRun, Level
from ablate.imported.rows import fields_of
from ablate.kinds import Run, kind
from ablate.plan import Plan, PlannedRun, plan
from ablate.store import Database
from ablate.store import imported as store
from ablate.store.imported import Difference, Numbers
from ablate.study import write as study_file
from ablate.study.design import MAX_CELLS, MAX_RUNS
from ablate.study.imported import CONTENT, FLOPS, PARAMS, SOURCE, TOKENS
from ablate.study.parse import parse
from ablate.study.values import label
from ablate.units import listed, plural

SHOWN = 4  # most runs that a message names

Key = tuple[tuple[str, ...], int]  # labels of the levels, and the seed


@dataclass(frozen=True)
class Told:
    """Options of `ablate import` about the study.

    Attributes:
        name: Name of the study.
        question: The question that its report answers; "" if not given.
        within: Factors whose levels form strata.
        baseline: Levels to compare with, "optimizer=sgd"; else the first of each factor.
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
        before: The study of this name in the database, None if there is none.
        notes: Sentences for the user.
    """

    plan: Plan
    numbers: list[Numbers]
    before: store.StoredStudy | None
    notes: list[str]


def completed(asked: Asked, told: Told, before: store.StoredStudy | None) -> tuple[Asked, Told]:
    """Return what is asked for, and what is not given as the study of that name has it.

    What the study is (metric, goal, `at`, question, strata, baseline, factors) stays as it is. How
    files are read (the seed, the step, conditions, the pattern, resources) is taken from the study
    where neither a factor nor the seed is given.

    Args:
        asked: What is asked for; "" or () for what is not given.
        told: Likewise.
        before: The study of this name in the database.

    Raises:
        AblateError: The study was not imported, or is another one than that asked for.
    """
    if before is None or told.replace:
        if before is not None:
            _tables(before, told.name)
        return replace(asked, at=asked.at or "last"), told
    raw, table = _tables(before, told.name)
    columns = table.get("columns", {})
    of_study = {columns.get(name, name): name for name in raw["factors"]}
    given = fields_of(asked.factors)
    if given and given.keys() != raw["factors"].keys():
        raise AblateError(
            f"study {told.name!r} was imported with the factors {listed(sorted(raw['factors']))},"
            f" not {listed(given)}; choose another name, or replace it with --replace"
        )
    known = of_study | {column: name for name, column in given.items()}
    first = {name: label(levels[0]) for name, levels in raw["factors"].items()}
    baseline = [text.partition("=") for text in told.baseline]
    for option, new, old in (
        ("--metric", asked.names[asked.metrics[0]] if asked.metrics else "", raw["metric"]),
        ("--goal", asked.goal, raw["goal"]),
        ("--at", asked.at, table.get("at", "last")),
        ("--question", told.question, raw["question"]),
        (
            "--within",
            ", ".join(sorted(known.get(name, name) for name in told.within)),
            ", ".join(sorted(raw.get("within", []))),
        ),
        *(
            (f"--baseline {name}", level, first[known.get(name, name)])
            for name, _, level in baseline
            if known.get(name, name) in first
        ),
    ):
        if new and new != old:
            raise AblateError(
                f"{option} {new}: study {told.name!r} was imported with {old or 'none'}; choose"
                " another name, or replace it with --replace"
            )
    if not (asked.factors or asked.seed):
        resources = {name: columns[name] for name in (PARAMS, TOKENS, FLOPS) if name in columns}
        asked = replace(
            asked,
            step=asked.step or table.get("step", ""),
            pattern=asked.pattern or table.get("pattern", ""),
            where=asked.where or tuple(table.get("where", ())),
            resources=resources | dict(asked.resources),
        )
    by_name = given or {name: column for column, name in of_study.items()}
    return (
        replace(
            asked,
            metrics=asked.metrics or (columns.get(raw["metric"], raw["metric"]),),
            factors=tuple(by_name[name] for name in raw["factors"]),
            seed=asked.seed or table["seed"],
            at=table.get("at", "last"),
            goal=raw["goal"],
        ),
        replace(told, question=raw["question"], within=tuple(raw.get("within", ()))),
    )


def _tables(before: store.StoredStudy, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a study's file, and [imported]."""
    raw = tomllib.loads(before.toml)
    if "imported" not in raw:
        raise AblateError(
            f"study {name!r} is in the database, and was not imported; choose another name with"
            " --study"
        )
    return raw, raw["imported"]


def prepare(
    paths: Sequence[Path],
    found: Gathered,
    asked: Asked,
    told: Told,
    before: store.StoredStudy | None,
) -> Prepared:
    """Make a study of the runs of files and folders.

    Runs that the study has already stay as they are; the runs of the files are added.

    Args:
        paths: Files and folders.
        found: The runs in them.
        asked: Which columns are factors, seed, step and metrics.
        told: Name, question and baselines of the study.
        before: The study of this name in the database.

    Raises:
        AblateError: The runs cannot be a study, or the study has a run with different numbers.
    """
    grown = None if told.replace else before
    raw = _tables(grown, told.name)[0] if grown else {}
    factors = _levels(found, raw.get("factors", {}), told)
    new = {_key(run): run for run in found.runs}
    kept = {
        (tuple(label(old.run.fields[name]) for name in factors), old.run.seed): old
        for old in (grown.runs if grown else ())
    }
    named = {name: {label(one): one for one in levels} for name, levels in factors.items()}
    made = {key: _made(named, run, kept.get(key)) for key, run in new.items()}
    if changed := {key: lost for key, (_, lost) in made.items() if lost}:
        raise AblateError(_changed(told.name, factors, changed, new, asked))
    toml = _toml(paths, asked, told, found, factors, {**kept, **new}, raw)
    planned = plan(parse(toml, Path(f"{told.name}.toml")))
    runs = {key: old.run for key, old in kept.items()}
    runs |= {key: run for key, (run, _) in made.items()}
    whole = replace(planned, runs=tuple(_planned(planned, factors, runs)))
    notes = [*found.notes, *_pairs(whole, factors, by_default=not (told.baseline or grown))]
    numbers = [_numbers(run.key, new[key]) for key, (run, _) in made.items()]
    return Prepared(whole, numbers, before, notes)


def write(db: Database, prepared: Prepared) -> int:
    """Store a study and the numbers of its runs; return how many runs are new.

    Raises:
        AblateError: The study in the database has changed since `prepare`.
    """
    before = prepared.before
    return store.write(db, prepared.plan, prepared.numbers, before, replace=before is not None)


def _key(run: ImportedRun) -> Key:
    return tuple(map(label, run.cell)), run.seed


def _made(
    named: Mapping[str, Mapping[str, Level]], run: ImportedRun, old: store.Stored | None
) -> tuple[Run, list[Difference]]:
    """Return a run as it is to be stored, and the stored numbers that it contradicts or lacks.

    Args:
        named: Factor → label → level.
        run: The run as it was read.
        old: The run as it is stored; None for a new one.
    """
    fields: dict[str, Any] = dict(run.resources)
    for (name, levels), own in zip(named.items(), run.cell, strict=True):
        # a number that stands among texts in a later file is the number that it was
        fields[name] = levels[label(own)]
    fields |= {CONTENT: run.content, SOURCE: run.place}
    made = Run("imported", kind("imported").check(fields), run.seed)
    if old is None:
        return made, []
    numbers = _numbers(made.key, run)
    # the run that is there may have further metrics, which this file or import leaves out
    fewer = run.resources.items() <= old.run.fields.items()
    if old.run.key == made.key or (fewer and not any(store.differences(numbers, old))):
        return old.run, []
    return made, list(store.differences(old, numbers))


def _numbers(key: str, run: ImportedRun) -> Numbers:
    return Numbers(key, run.status, run.finals, run.points, run.diverged_at, run.error)


def _levels(
    found: Gathered, before: Mapping[str, Sequence[Level]], told: Told
) -> dict[str, list[Level]]:
    """Return factor → levels, the baseline first: those that are there already, then new ones."""
    factors: dict[str, list[Level]] = {name: [] for name in found.factors}
    for name, levels in factors.items():
        known = [*before.get(name, ()), *found.factors[name]]
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
    changed: Mapping[Key, Sequence[Difference]],
    new: Mapping[Key, ImportedRun],
    asked: Asked,
) -> str:
    """Return the error for runs whose numbers differ from the stored ones."""
    said, metric = [], asked.names[asked.metrics[0]]
    for key in list(changed)[:SHOWN]:
        cell = listed(f"{name}={level}" for name, level in zip(factors, key[0], strict=True))
        one = next((one for one in changed[key] if one.name == metric), changed[key][0])
        at = "" if one.step is None else f" at step {one.step:,}"
        said.append(
            f"{cell}, seed {key[1]}: {one.name}{at} {_shown(one.old)}, now {_shown(one.new)}"
            f" ({new[key].place})"
        )
    more = len(changed) - SHOWN
    return (
        f"study {study!r} has different numbers for {plural(len(changed), 'run')}:"
        f" {'; '.join(said)}{f'; {more:,} more' if more > 0 else ''}. Choose another name, or"
        " replace the study with --replace"
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "no value"
    return value if isinstance(value, str) else f"{value:.6g}"


def _toml(
    paths: Sequence[Path],
    asked: Asked,
    told: Told,
    found: Gathered,
    factors: Mapping[str, list[Level]],
    runs: Mapping[Key, Any],
    raw: Mapping[str, Any],
) -> str:
    """Return the text of the study's file; `raw` has the tables of the study before it."""
    cells = {key[0] for key in runs}
    seeds = sorted({seed for _, seed in runs})
    _few_enough(factors, len(cells), len(seeds))
    labels = [list(map(label, levels)) for levels in factors.values()]
    empty = [cell for cell in product(*labels) if cell not in cells]
    _has_baselines(told, found, factors, cells)
    names = listed(found.columns.values())
    before = raw.get("imported", {})
    files = [*before.get("files", ()), *map(os.fspath, paths)]
    metric = asked.metrics[0]
    columns = {
        **{k: v for k, v in before.get("columns", {}).items() if k in (PARAMS, TOKENS, FLOPS)},
        **{k: v for k, v in found.columns.items() if k != v},
        **({asked.names[metric]: metric} if asked.names[metric] != metric else {}),
        **asked.resources,
    }
    table: dict[str, Any] = {
        "name": told.name,
        "question": told.question or f"How does {asked.metrics[0]} depend on {names}?",
        "metric": asked.names[asked.metrics[0]],
        "goal": found.goal,
        "within": [_factor(found, name, "--within") for name in told.within],
        "seeds": seeds,
        "imported": _without_empty(
            {
                "files": list(dict.fromkeys(files)),
                "seed": asked.seed,
                "step": asked.step or before.get("step", ""),
                "at": asked.at,
                "columns": columns,
                "pattern": asked.pattern or before.get("pattern", ""),
                "where": list(asked.where) or before.get("where", []),
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
    if {PARAMS, TOKENS} <= columns.keys():
        table["fit"] = {"n": PARAMS, "d": TOKENS}
    return study_file.write(_without_empty(table))


def _few_enough(factors: Mapping[str, list[Level]], cells: int, seeds: int) -> None:
    """Refuse factors that hardly meet, as those of a random search: most cells would be empty."""
    sizes = [len(levels) for levels in factors.values()]
    count = math.prod(sizes)
    if count > MAX_CELLS or count * seeds > MAX_RUNS:
        most = f"{MAX_CELLS:,}" if count > MAX_CELLS else f"{MAX_RUNS:,} with seeds"
        named = " × ".join(f"{size:,} of {name}" for name, size in zip(factors, sizes, strict=True))
        raise AblateError(
            f"{count:,} combinations of levels ({named}), of which {cells:,} have runs; at most"
            f" {most} can be compared. Name fewer factors, keep some levels with --where, or name a"
            " column with few levels, such as small and large, in place of one with many values"
        )


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


def _pairs(whole: Plan, factors: Mapping[str, list[Level]], *, by_default: bool) -> Iterator[str]:
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
    named = ", the first in the file; --baseline chooses another" if by_default else ""
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
    more = ", …" if len(seeds) > 3 else ""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, shown))}{more}"
