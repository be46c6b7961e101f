"""What a page lets its reader explore: every run with its curve, as compact as JSON can be.

`exploration` is read by templates/explore.js alone, in a report and on the board. A column is a
list with a value for each row; a column of few values is {"of": the values, "at": the place of each
row's value among them}; a column of whole numbers with few distances is {"add": the column of their
distances, the first from 0}.
"""

from __future__ import annotations

import functools
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ablate import formats, results
from ablate.figures import style
from ablate.report.appendix import UNFINISHED, libraries
from ablate.report.data import ReportData
from ablate.report.labels import PHRASES
from ablate.report.plots import POINTS
from ablate.store import status
from ablate.store.location import DEFAULT
from ablate.units import plural

NUMBERS = 120_000  # values of all curves: 0.8 MB of JSON
FEWEST, MOST = 12, 200  # points of a curve
DIGITS = 4  # significant ones, of a value of a curve or a cost
EXACT = 20_000  # runs whose metric has all its digits
MORE = 3  # decimals that the metric of more runs has beyond those that are shown
LARGE = 1e30  # a smaller integer has all digits, for the page to round it as tables do
LINES = 20  # of an error or a log: its last ones
WIDTH = 300  # characters of a line of these
LOGS = 100  # attempts whose logs are read: the newest that did not complete


def exploration(data: ReportData) -> dict[str, Any]:
    """Return what the section "Explore" shows, ready for JSON: no NaN, no infinity.

    Returns:
        metric: name, phrase, label (with its unit), goal ("min", "max") and places (decimals) of
            the metric, and series: the name of its curve, which need not be there.
        database: name of its file, without folders; "" for the default one's.
        factors: names. arms: name, colour ("" for that of the text) and dash of each, in the order
            of the figures. strata: names.
        cells: columns label, arm, stratum, baseline (of its stratum, or itself; places in the
            lists above and in this one), untrained, and a column of levels for each factor.
        runs: columns run (its number), cell (its place), seed, role, status, metric, tokens, flops,
            seconds and steps of the whole training, params, attempts, diverged_at and config.
        common: fields that all runs share. varied: names of the others. configs: values of these
            in each configuration.
        attempts: columns run, n, status, started, seconds, device, host, commit, versions, note,
            error, log, ordered by run and n.
        series: name, label, and the curves: steps (lists that curves share), and columns run, at
            (which list of steps) and values (a list a run, null for what is no number).
        thinned: sentences on what was left out.
    """
    ends = results.ends(data.study.name, data.series, data.db)
    known = ends[ends["points"] > 1]
    curves, notes = _series(data, known)
    table = without_curves(data, _tokens_per_step(data, known))
    if len(data.runs) > EXACT:
        decimals = data.places + MORE
        metric = table["runs"]["metric"]
        table["runs"]["metric"] = [value and round(value, decimals) for value in metric]
        notes.append(f"The {data.labels.phrase} of each run has {decimals} decimals here.")
    return {**table, "series": curves, "thinned": notes}


def without_curves(data: ReportData, per_step: Mapping[int, float]) -> dict[str, Any]:
    """Return the exploration without `series` and `thinned`, which alone need the study's curves.

    Args:
        data: The study.
        per_step: Run → tokens of one step, where that is known.
    """
    common, configs, chosen = _configs(data)
    return {
        "study": data.study.name,
        "database": "" if data.db.path.name == DEFAULT.name else shlex.quote(data.db.path.name),
        "metric": {
            "name": data.study.metric,
            "series": data.study.reported,
            "phrase": data.labels.phrase,
            "label": data.labels.axis,
            "goal": data.labels.goal,
            "places": data.places,
        },
        "factors": data.factors,
        "arms": [_arm(index, name) for index, name in enumerate(data.arms["arm"].cat.categories)],
        "strata": data.strata,
        "cells": _cells(data),
        "runs": _runs(data, chosen, per_step),
        "common": common,
        "configs": configs,
        "varied": list(dict.fromkeys(name for one in configs for name in one)),
        "attempts": _attempts(data),
    }


def as_json(data: ReportData) -> str:
    """Return the exploration as compact JSON."""
    return json.dumps(exploration(data), separators=(",", ":"), allow_nan=False)


def _arm(index: int, name: str) -> dict[str, Any]:
    shade = style.color(index)
    dash = style.dash(index)
    return {
        "name": str(name),
        "color": "" if shade == style.INK else shade,
        "dash": list(dash[1]) if isinstance(dash, tuple) else [],
    }


def _cells(data: ReportData) -> dict[str, Any]:
    """Return the cells of the study; one without a baseline in its stratum is its own."""
    arms = data.arms.reset_index(drop=True)
    base = arms[arms["is_baseline"]].drop_duplicates("stratum")
    baseline = dict(zip(base["stratum"], base.index, strict=True))
    levels = [data.levels.get(cell, {}) for cell in arms["cell"]]
    return {
        "label": list(arms["cell"]),
        "arm": [int(code) for code in arms["arm"].cat.codes],
        "stratum": [data.strata.index(stratum) for stratum in arms["stratum"]],
        "baseline": [
            int(baseline.get(stratum, index)) for index, stratum in enumerate(arms["stratum"])
        ],
        "untrained": [cell in data.untrained for cell in arms["cell"]],
        "levels": {
            factor: _coded([level.get(factor) for level in levels]) for factor in data.factors
        },
    }


def _runs(
    data: ReportData, chosen: dict[int, int], per_step: Mapping[int, float]
) -> dict[str, Any]:
    runs = data.runs
    waits = runs["run"].isin(status.queued(data.db, data.study.name))
    place = {cell: index for index, cell in enumerate(data.arms["cell"])}
    numbers = ("tokens", "flops", "seconds", "n_params", "diverged_at")
    columns = {name: _numbers(runs[name]) for name in numbers}
    metric = [value if math.isfinite(value) else None for value in _floats(runs["metric"])]
    steps = [
        None if math.isnan(tokens) or not per_step.get(run) else round(tokens / per_step[run])
        for run, tokens in zip(runs["run"], _floats(runs["tokens"]), strict=True)
    ]
    return {
        "run": _rising(runs["run"]),
        "cell": [place[cell] for cell in runs["cell"]],
        "seed": _coded([int(seed) for seed in runs["seed"]]),
        "role": _coded(list(runs["role"])),
        "status": _coded(list(runs["status"].mask(waits, "queued"))),
        "attempts": _coded([int(count) for count in runs["attempts"]]),
        "metric": metric,
        "seconds": columns["seconds"],
        "steps": _coded(steps),
        "tokens": _coded(columns["tokens"]),
        "flops": _coded(columns["flops"]),
        "params": _coded(columns["n_params"]),
        "diverged_at": _coded(columns["diverged_at"]),
        "config": [chosen.get(int(run)) for run in runs["run"]],
    }


def _configs(data: ReportData) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, int]]:
    """Return the fields that all runs share, each set of other fields, and run → its set."""
    fields = results.fields(data.study.name, data.db)
    different = {id(of): of for of in fields.values()}
    texts = {key: {k: json.dumps(v) for k, v in of.items()} for key, of in different.items()}
    names = list(dict.fromkeys(name for of in texts.values() for name in of))
    shared = [name for name in names if len({of.get(name) for of in texts.values()}) == 1]
    first = next(iter(fields.values()), {})
    rest = [name for name in names if name not in set(shared)]
    places: dict[tuple[str | None, ...], int] = {}
    sets: list[dict[str, Any]] = []
    place = {}
    for number, of in texts.items():
        key = tuple(of.get(name) for name in rest)
        if key not in places:
            places[key] = len(sets)
            sets.append({name: different[number][name] for name in rest if name in of})
        place[number] = places[key]
    chosen = {int(run): place[id(of)] for run, of in fields.items()}
    return _safe({name: first[name] for name in shared}), _safe(sets), chosen


def _attempts(data: ReportData) -> dict[str, Any]:
    frame = data.attempts.drop_duplicates("id")
    device = frame["device_name"].where(frame["device_name"].notna(), frame["device"])
    commit = [
        None if _missing(one) else f"{one[:12]}{' with uncommitted changes' if dirty == 1 else ''}"
        for one, dirty in zip(frame["commit"], frame["dirty"], strict=True)
    ]
    return {
        "run": _rising(frame["run"]),
        "n": _coded([int(n) for n in frame["n"]]),
        "status": _coded(list(frame["status"])),
        "started": _coded([_text(one and str(one)[:16]) for one in frame["started"]]),
        "seconds": _numbers(frame["device_seconds"]),
        "device": _coded(list(map(_text, device))),
        "host": _coded(list(map(_text, frame["host"]))),
        "commit": _coded(commit),
        "versions": _coded([libraries(one) or None for one in frame["versions"]]),
        "note": _coded(list(map(_tail, frame["note"]))),
        "error": _coded(list(map(_tail, frame["error"]))),
        "log": _coded(_logs(data, frame)),
    }


def _logs(data: ReportData, attempts: pd.DataFrame) -> list[str | None]:
    """Return the last lines of what a script printed in each attempt that did not complete."""
    unfinished = attempts["status"].isin(UNFINISHED)
    latest = set(attempts.loc[unfinished, "id"].tail(LOGS))
    return [
        _tail(data.db.printed(journal, LINES * WIDTH)) if number in latest else None
        for number, journal in zip(attempts["id"], attempts["journal"], strict=True)
    ]


def _tokens_per_step(data: ReportData, known: pd.DataFrame) -> dict[int, float]:
    """Return run → tokens of one step, of the compared runs with curves."""
    members = results.members(data.study.name, data.db)
    begun = members[members["run"].isin(known["run"])]
    return dict(zip(begun["run"], begun["step_tokens"].astype(float).fillna(0.0), strict=True))


# -- curves ----------------------------------------------------------------------------------------


def _series(data: ReportData, known: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Return each series of the study with its curves, and what was thinned.

    Args:
        data: The study.
        known: Series and run of the curves of two points or more.
    """
    compared = known["run"].isin(data.compared["run"])
    names = known["series"][compared].unique()
    also = ~compared & known["series"].isin(names)
    runs, others = (np.unique(known["run"][which]) for which in (compared, also))
    notes, kept, count = [], runs, int(compared.sum())
    points = points_of(count)
    if count * points > NUMBERS:
        kept = _of_each_cell(data, runs, len(runs) * NUMBERS // (count * points))
        notes.append(f"Curves of {len(kept):,} of {plural(len(runs), 'run')} are here.")
    frame = _read(data, names, kept, POINTS)
    sizes = frame.groupby(["series", "run"], observed=True).size()
    if len(sizes) and (longest := int(sizes.max())) > points:
        longer = f"Of each curve {points} points are here, of up to {longest:,} in the figures."
        notes.insert(0, longer)
    if int(sizes.clip(upper=points).sum()) + int(also.sum()) * FEWEST <= NUMBERS:
        frame = pd.concat([frame, _read(data, names, others, FEWEST)])
    elif len(others):
        notes.append("Curves of runs that are not compared are left out.")
    labels = labels_of(data)
    return [
        {"name": name, "label": labels[str(name)], **_curves(part, points)}
        for name, part in frame.groupby("series", observed=True)
    ], notes


def _of_each_cell(data: ReportData, runs: np.ndarray, most: int) -> np.ndarray:
    """Return so many of these compared runs: the first seeds of every cell, to be paired."""
    of = data.compared.loc[data.compared["run"].isin(runs), ["run", "cell", "seed"]]
    of = of.drop_duplicates("run").sort_values("seed", kind="stable")
    turn = of.groupby("cell").cumcount()
    chosen: np.ndarray = np.sort(of["run"].to_numpy()[np.argsort(turn, kind="stable")[:most]])
    return chosen


def _read(data: ReportData, series: Iterable[str], runs: np.ndarray, points: int) -> pd.DataFrame:
    """Return points of curves of these runs that have two or more."""
    of = data.db, data.study.name, list(series)
    found = results.read_points(*of, None, points, map(int, runs))
    return found[found.groupby(["series", "run"], observed=True)["step"].transform("size") > 1]


def points_of(count: int) -> int:
    """Return how many points each of so many curves keeps at most."""
    return int(min(MOST, max(FEWEST, NUMBERS // max(1, count))))


def curve(
    steps: np.ndarray, values: np.ndarray, points: int
) -> tuple[tuple[int, ...], list[float | int | None]]:
    """Return the steps and values of a curve, at most `points` of them, evenly spread."""
    if len(steps) > points:
        keep = _spread(len(steps), points)
        steps, values = steps[keep], values[keep]
    return tuple(map(int, steps)), list(map(_number, values.tolist()))


@functools.cache
def _spread(count: int, points: int) -> np.ndarray:
    """Return the places of `points` of `count` points, evenly spread."""
    return np.unique(np.linspace(0, count - 1, points).round().astype(int))


def labels_of(data: ReportData) -> dict[str, str]:
    """Return series → what the page calls it, for the curves that the study may have."""
    reported = data.study.reported
    if data.study.own:
        return {reported: reported}
    usual = {"loss": PHRASES["loss"], "train_loss": "training loss"}
    return usual | {reported: data.labels.phrase}


def _curves(frame: pd.DataFrame, points: int) -> dict[str, Any]:
    grids: dict[tuple[int, ...], int] = {}
    runs, at, values = [], [], []
    frame = frame.sort_values(["run", "step"], kind="stable")
    numbers = frame["run"].to_numpy()
    first = np.flatnonzero(np.diff(numbers, prepend=-1))  # of each run
    of_runs = (np.split(frame[column].to_numpy(float), first[1:]) for column in ("step", "value"))
    for run, its_steps, its_values in zip(numbers[first], *of_runs, strict=True):
        steps, found = curve(its_steps, its_values, points)
        runs.append(int(run))
        at.append(grids.setdefault(steps, len(grids)))
        values.append(found)
    shared = list(map(list, grids))
    return {"steps": shared, "run": _rising(runs), "at": _coded(at), "values": values}


# -- values ----------------------------------------------------------------------------------------


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value != value


def _text(value: Any) -> str | None:
    return None if _missing(value) or value == "" else str(value)


def _numbers(values: Iterable[Any]) -> list[float | int | None]:
    """Return numbers with few digits, None for what is not finite."""
    return [_number(value) for value in _floats(values)]


def _floats(values: Iterable[Any]) -> list[float]:
    """Return numbers, NaN for what is missing."""
    found: list[float] = pd.Series(values).to_numpy(float, na_value=math.nan).tolist()
    return found


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < LARGE:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def _coded(values: Sequence[Any]) -> Any:
    """Return a column, by its few values if it has few."""
    of = list(dict.fromkeys(values))
    if len(of) * 2 > len(values):
        return list(values)
    places = {value: index for index, value in enumerate(of)}
    return {"of": of, "at": [places[value] for value in values]}


def _rising(values: Sequence[int] | pd.Series) -> Any:
    """Return a column of whole numbers, by the distances between them if these are few."""
    distances = _coded(np.diff(values, prepend=0).tolist())
    return list(map(int, values)) if isinstance(distances, list) else {"add": distances}


def _safe(value: Any) -> Any:
    """Return a value of JSON without numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _safe(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_safe(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tail(value: Any) -> str | None:
    """Return the last lines of a text, without folders of its user."""
    if _missing(value) or not str(value).strip():
        return None
    lines = str(value).rstrip().splitlines()[-LINES:]
    return "\n".join(formats.without_folders(line)[:WIDTH] for line in lines)
