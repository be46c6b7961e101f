"""Tables of the record: what it cost, how it was run, what failed, all runs."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import pandas as pd

from ablate import formats
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.tables import measured, plain
from ablate.results import without_folders
from ablate.store import questions
from ablate.store.questions import quoted
from ablate.store.records import ACCEPTED, FAILED
from ablate.study import tuned, tuned_field
from ablate.units import duration, listed, plural

UNFINISHED = (*FAILED, "diverged", "stopped")


def cost(data: ReportData) -> Table:
    """Return a table of device time by role and outcome, for steps and evaluation."""
    frame = data.attempts.assign(device_seconds=data.attempts["device_seconds"].astype(float))
    frame = frame.drop_duplicates("id")
    rows = []
    for (role, status), part in frame.groupby(["role", "status"]):
        seconds = float(part["device_seconds"].sum())
        rows.append((str(role), str(status), Value(f"{len(part):,}", len(part)), _seconds(seconds)))
    total = float(frame["device_seconds"].sum())
    return Table(
        "cost",
        f"Device time by role and final status of the attempt: {duration(total)} in total, over"
        f" {plural(len(frame), 'attempt')}.",
        ("role", "outcome", "attempts", "device time"),
        tuple(rows),
        questions.find("gpu-seconds").with_values(study=data.study.name) + ";",
    )


def setting(data: ReportData) -> Table:
    """Return a table of devices, versions and commits of the accepted attempts."""
    frame = data.attempts[data.attempts["status"].isin(ACCEPTED)].drop_duplicates("id")
    frame = frame.assign(
        device=frame["device_name"].where(frame["device_name"].notna(), frame["device"])
    )
    keys = ["device", "threads", "pack_size", "compile_mode", "versions", "commit", "dirty"]
    rows = []
    for values, part in frame.astype(dict.fromkeys(keys, object)).groupby(
        keys, dropna=False, sort=False
    ):
        known: list[Any] = [None if value is None or value != value else value for value in values]
        device, threads, pack, compiled, versions, commit, dirty = known
        rows.append(
            (
                Value(f"{part['run'].nunique():,}", part["run"].nunique()),
                _text(device),
                _text(threads),
                _text(pack),
                _text(compiled),
                libraries(versions) or "–",
                _text(commit)[:12] + (" with uncommitted changes" if dirty else ""),
            )
        )
    return Table(
        "setting",
        "How the accepted runs were run.",
        ("runs", "device", "threads", "runs packed together", "compiled", "versions", "commit"),
        tuple(rows),
        "SELECT count(DISTINCT run) AS runs, coalesce(device_name, device) AS device,"
        ' threads, pack_size, compile_mode,\n       versions, "commit", dirty\nFROM all_runs JOIN'
        f" attempt ON attempt.run_id = all_runs.run\nWHERE study = {quoted(data.study.name)} AND"
        " attempt.status IN ('complete', 'diverged')\nGROUP BY 2, 3, 4, 5, 6, 7, 8;",
    )


def _seconds(value: float) -> Value:
    return Value("–" if math.isnan(value) else duration(value), value)


def _text(value: Any) -> str:
    return (
        "–"
        if value is None or (isinstance(value, float) and math.isnan(value)) or value == ""
        else f"{value:g}"  # whole numbers, and NaN where none is known, are floats in a frame
        if isinstance(value, float)
        else str(value)
    )


def libraries(value: Any) -> str:
    """Return the names and versions in the JSON of an attempt; "" for none."""
    try:
        return ", ".join(f"{name} {number}" for name, number in json.loads(value).items() if number)
    except (TypeError, ValueError, AttributeError):
        return "" if pd.isna(value) else str(value)


def troubles(data: ReportData) -> Table:
    """Return a table of runs and attempts that failed, diverged, stopped or lacked memory."""
    last = data.attempts.sort_values("n").drop_duplicates("run", keep="last").set_index("run")
    rows = []
    columns = ["run", "cell", "seed", "role", "status", "diverged_at", "attempts"]
    unfinished = data.runs.loc[data.runs["status"].isin(UNFINISHED), columns]
    for run in unfinished.drop_duplicates("run").to_dict("records"):
        error = last["error"].get(run["run"]) if len(last) else None
        step = run["diverged_at"]
        rows.append(
            (
                Value(f"{run['run']}", run["run"]),
                run["cell"],
                Value(f"{run['seed']}", run["seed"]),
                run["role"],
                {"oom": "out of memory", "timeout": "out of time"}.get(
                    run["status"], run["status"]
                ),
                Value("–" if pd.isna(step) else f"{int(step):,}", plain(step)),
                Value(f"{run['attempts']}", run["attempts"]),
                _last_line(error),
            )
        )
    return Table(
        "troubles",
        "Runs that did not complete. A diverged run is a result: every count includes it, and its"
        " pairs count as lost.",
        ("run", "cell", "seed", "role", "status", "diverged at step", "attempts", "error"),
        tuple(rows),
        "SELECT run, cell, seed, role, status, diverged_at, attempts\nFROM all_runs\nWHERE study ="
        f" {quoted(data.study.name)} AND status IN"
        f" ({listed(map(quoted, UNFINISHED)).replace(' and', ',')});",
    )


def _last_line(error: Any) -> str:
    lines = (
        [line for line in str(error).splitlines() if line.strip()] if isinstance(error, str) else []
    )
    return formats.without_folders(lines[-1])[:200] if lines else "–"


def runs(data: ReportData) -> Table:
    """Return a table of all runs, one row each."""
    field = tuned_field(data.settings)
    if data.study.own and data.runs.get(field, pd.Series(dtype=float)).isna().all():
        field = ""  # no column
    # rows share what many of them have: all of their own they would take a kilobyte each
    number, rate = functools.cache(_number), functools.cache(_rate)
    columns = [
        map(_number, data.runs["run"].tolist()),
        _shared(data.runs["cell"]),
        map(number, data.runs["seed"].tolist()),
        _shared(data.runs["role"]),
        _shared(data.runs["status"]),
        (measured(float(value), data.places) for value in data.runs["metric"].tolist()),
        *([map(rate, data.runs[field].tolist())] if field in data.runs else []),
        (_seconds(float(value)) for value in data.runs["seconds"].tolist()),
        map(number, data.runs["attempts"].tolist()),
    ]
    rows = tuple(zip(*columns, strict=True))
    return Table(
        "runs",
        f"All {plural(len(rows), 'run')}.",
        (
            "run",
            "cell",
            "seed",
            "role",
            "status",
            data.labels.axis,
            *((tuned(field),) if field in data.runs else ()),
            "training time",
            "attempts",
        ),
        rows,
        f"SELECT run, cell, seed, role, status, metric, {field + ', ' if field else ''}attempts\n"
        "FROM all_runs\nWHERE study ="
        f" {quoted(data.study.name)};",
        folded=True,
        data=without_folders(data.runs),
    )


def _shared(texts: pd.Series) -> list[str]:
    """Return texts of which equal ones are one object."""
    places, names = pd.factorize(texts)
    known = list(names)
    return [known[place] for place in places]


def _number(value: int) -> Value:
    return Value(f"{value}", value)


def _rate(value: Any) -> Value:
    known = isinstance(value, int | float) and not math.isnan(value)
    return Value(f"{value:.3g}", value) if known else Value("–", None)


def excluded(data: ReportData) -> list[str]:
    """Return a sentence on the combinations that the study file excludes, if any."""
    rules = data.settings.get("exclude") or []
    named = [
        ", ".join(
            f"{factor} = {formats.without_folders(str(level))}" for factor, level in rule.items()
        )
        for rule in rules
        if isinstance(rule, dict)
    ]
    return [f"Left out by the study file: {'; '.join(named)}."] if named else []
