"""The report's tables, each with the SQL on the views that gives its numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from ablate.figures.style import count, duration, power
from ablate.report.document import Table, Value
from ablate.report.material import Material
from ablate.report.words import decimals, listed, number, p_digits, plural, signed
from ablate.scaling.fit import Fit

UNFINISHED = ("failed", "oom", "diverged", "stopped")


def quoted(text: str) -> str:
    """`text` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _value(value: float, places: int) -> Value:
    return Value(number(value, places), value)


def _seconds(value: float) -> Value:
    return Value("–" if math.isnan(value) else duration(value), value)


def effects(material: Material) -> Table:
    """Every contrast: its effect with both intervals, the test, the pairs."""
    several = {
        "stratum": any(material.strata),
        "factor": material.effects["factor"].nunique() > 1,
        "baseline": material.effects["baseline_level"].nunique() > 1,
    }
    rows = []
    for row in material.effects.rename(columns={"baseline": "baseline_cell", "baseline_level": "baseline"}).to_dict("records"):
        places = decimals((row["hi"] - row["lo"]) / 2)
        rows.append(
            (
                *(row[name] for name, wanted in several.items() if wanted and name != "baseline"),
                row["level"],
                *((row["baseline"],) if several["baseline"] else ()),
                Value(f"{row['n']}" + (f" ({row['lost']} lost)" if row["lost"] else ""), row["n"]),
                Value(signed(row["mean"], places), row["mean"]),
                _interval(row["lo"], row["hi"], places),
                _interval(row["family_lo"], row["family_hi"], places),
                *(Value(p_digits(row[name]), row[name]) for name in ("p", "p_holm", "p_sign_flip")),
                _value(row["correlation"], 2),
                _value(row["standardised"], 2),
                _value(row["resolvable"], places),
            )
        )
    columns = (
        *(name for name, wanted in several.items() if wanted and name != "baseline"), "level",
        *(("baseline",) if several["baseline"] else ()),
        "pairs", "effect", "95% interval", "family interval", "p", "Holm p", "sign-flip p", "r", "effect / sd", "can see",
    )  # fmt: skip
    name = quoted(material.study.name)
    return Table(
        "effects",
        f"Effects on {material.words.axis}: the mean paired difference from the baseline. The family interval holds for all "
        "levels of a family together; r is the correlation of the two arms over seeds; sd is that of the paired differences; "
        "“can see” is the smallest true effect that so many pairs of this noise find four times in five, after correction.",
        columns,
        tuple(rows),
        f"SELECT family, level, count(difference) AS pairs, avg(difference) AS effect\nFROM pairs\nWHERE study = {name} "
        "AND status = 'complete' AND baseline_status = 'complete'\nGROUP BY family, cell, baseline;\n\n"
        "-- with interval and p, as last analysed\n"
        f"SELECT family, level, n, lost, mean, lo, hi, p, p_holm\nFROM effects\nWHERE study = {name};",
        data=material.effects.drop(columns="ordinal"),
    )


def _interval(low: float, high: float, places: int) -> Value:
    return Value("–" if math.isnan(low) else f"{signed(low, places)} to {signed(high, places)}", low)


def cells(material: Material) -> Table:
    """Every cell: what it is, what it costs, its metric, and its effect."""
    effect = {row["cell"]: row for row in material.effects.to_dict("records")}
    spread = material.good.groupby("cell")["metric"].std().median() if len(material.good) else math.nan
    places = decimals(float(spread) / 2)
    rows = [_cell(material, arm, effect.get(arm["cell"]), places) for arm in material.arms.to_dict("records")]
    words = material.words
    columns = (
        *(("stratum",) if any(material.strata) else ()),
        "arm", "runs", "parameters", "body", "FLOPs", "seconds", words.phrase, "sd", "effect", "95% interval",
    )  # fmt: skip
    return Table(
        "cells",
        "What was compared, and what a run of it costs. The body is what is left of the parameters without embeddings and head; "
        f"{words.axis} is the mean over completed runs, and sd its standard deviation over seeds.",
        columns,
        tuple(rows),
        "SELECT stratum, cell, count(metric) AS runs, n_params, n_params_body, flops, "
        "avg(device_seconds) AS device_seconds,\n       avg(metric) AS metric\nFROM runs\n"
        f"WHERE study = {quoted(material.study.name)} AND role = 'compare' AND status = 'complete'\n"
        "GROUP BY cell;",
    )


def _cell(material: Material, arm: Mapping[Any, Any], effect: Mapping[Any, Any] | None, places: int) -> tuple[str | Value, ...]:
    runs = material.compared[material.compared["cell"] == arm["cell"]]
    good = material.good[material.good["cell"] == arm["cell"]]
    first = runs.iloc[0] if len(runs) else pd.Series({"n_params": math.nan, "n_params_body": math.nan, "flops": math.nan})
    change, interval = Value("baseline" if arm["is_baseline"] else "–", None), Value("", None)
    if effect is not None and effect["n"]:
        digits = decimals((effect["hi"] - effect["lo"]) / 2)
        change, interval = Value(signed(effect["mean"], digits), effect["mean"]), _interval(effect["lo"], effect["hi"], digits)
    return (
        *((arm["stratum"],) if any(material.strata) else ()),
        str(arm["arm"]),
        Value(f"{len(good)} of {len(runs)}", len(good)),
        *(_size(first[name], write) for name, write in (("n_params", count), ("n_params_body", count), ("flops", power))),
        Value("–" if good["seconds"].isna().all() else f"{good['seconds'].mean():.3g}", float(good["seconds"].mean())),
        _value(float(good["metric"].mean()), places),
        _value(float(good["metric"].std()), places),
        change,
        interval,
    )


def _size(value: Any, write: Callable[[float], str]) -> Value:
    return Value("–" if pd.isna(value) else write(float(value)), _plain(value))


def _plain(value: Any) -> float | int | None:
    return None if pd.isna(value) else int(value) if float(value).is_integer() and abs(value) < 1e15 else float(value)


def changes(material: Material) -> Table:
    """How effects change from the first stratum to the others."""
    rows = []
    for row in material.changes.to_dict("records"):
        places = decimals((row["hi"] - row["lo"]) / 2)
        rows.append(
            (
                row["factor"],
                row["level"],
                row["stratum"],
                Value(f"{row['n']}", row["n"]),
                Value(signed(row["mean"], places), row["mean"]),
                _interval(row["lo"], row["hi"], places),
                Value(p_digits(row["p"]), row["p"]),
                Value(p_digits(row["p_holm"]), row["p_holm"]),
                _value(row["resolvable"], places),
            )
        )
    first = material.changes["first"].iloc[0] if rows else ""
    name = quoted(material.study.name)
    return Table(
        "changes",
        f"How much larger an effect on {material.words.axis} is than at {first}: the mean, over the seeds whole in both strata, "
        "of the one difference from the baseline minus the other. Holm's correction is over the levels of a stratum.",
        ("factor", "level", "stratum", "seeds", "change", "95% interval", "p", "Holm p", "can see"),
        tuple(rows),
        "SELECT b.factor, b.level, b.stratum, count(b.difference - a.difference) AS seeds,\n"
        "       avg(b.difference - a.difference) AS change\n"
        "FROM pairs a JOIN pairs b ON b.study = a.study AND b.factor = a.factor AND b.level = a.level AND b.seed = a.seed\n"
        f"WHERE a.study = {name} AND a.stratum = {quoted(first)} AND b.stratum <> a.stratum\n"
        "      AND a.status = 'complete' AND a.baseline_status = 'complete' AND b.status = 'complete' "
        "AND b.baseline_status = 'complete'\nGROUP BY b.factor, b.level, b.stratum;",
        data=material.changes,
    )


def decisions(material: Material) -> Table:
    """What was decided while the study ran."""
    rows = tuple((row["cell"], row["name"], _text(row["value"])) for row in material.decisions.to_dict("records"))
    caption = "What the study decided before any compared run used it."
    return Table("decisions", caption, ("cell", "field", "value"), rows, data=material.decisions)


def fits(fitted: Mapping[str, Fit]) -> Table:
    """The constants of the power laws, and how well they foretold the largest size."""
    rows: list[tuple[str | Value, ...]] = []
    for name, one in fitted.items():
        held_out = one.held_out
        rows.append(
            (
                name,
                *(
                    Value(f"{constant.value:.3g} ({constant.lo:.3g} to {constant.hi:.3g})", constant.value)
                    for constant in one.constants.values()
                ),
                Value(f"{one.runs}", one.runs),
                "–" if held_out is None else f"{held_out.miss:+.2%}, expected {held_out.lo:+.2%} to {held_out.hi:+.2%}",
            )
        )
    return Table(
        "fits",
        "Fitted curves E + A/N^α, N the parameters without embeddings and head, with 95% intervals by bootstrap over runs. The "
        "last column says how far the largest size lies from a curve fitted without it.",
        ("arm", "E", "A", "α", "runs", "miss at the largest size"),
        tuple(rows),
    )


def cost(material: Material) -> Table:
    """Device time by role and by what became of the attempt."""
    frame = material.attempts.assign(device_seconds=material.attempts["device_seconds"].astype(float))
    frame = frame.drop_duplicates("id")
    rows = []
    for (role, status), part in frame.groupby(["role", "status"], sort=False):
        seconds = float(part["device_seconds"].sum())
        rows.append((str(role), str(status), Value(f"{len(part):,}", len(part)), _seconds(seconds)))
    total = float(frame["device_seconds"].sum())
    return Table(
        "cost",
        f"Device time by role and by what became of the attempt: {duration(total)} in all, over {plural(len(frame), 'attempt')}.",
        ("role", "attempts that ended", "attempts", "device time"),
        tuple(rows),
        "SELECT role, status, count(*) AS runs, sum(device_seconds) AS device_seconds\nFROM runs\n"
        f"WHERE study = {quoted(material.study.name)}\nGROUP BY role, status;",
    )


def setting(material: Material) -> Table:
    """On what, with which versions, from which commit the accepted attempts ran."""
    frame = material.attempts[material.attempts["status"].isin(["complete", "diverged"])].drop_duplicates("id")
    keys = ["host", "device", "threads", "pack_size", "compile_mode", "versions", "commit", "dirty"]
    rows = []
    for values, part in frame.astype(dict.fromkeys(keys, object)).groupby(keys, dropna=False, sort=False):
        known: list[Any] = [None if value is None or value != value else value for value in values]
        host, device, threads, pack, compiled, versions, commit, dirty = known
        rows.append(
            (
                Value(f"{part['run'].nunique():,}", part["run"].nunique()),
                _text(device), _text(host), _text(threads), _text(pack), _text(compiled), _versions(versions),
                _text(commit)[:12] + (" with uncommitted changes" if dirty else ""),
            )
        )  # fmt: skip
    return Table(
        "setting",
        "How the accepted runs were run.",
        ("runs", "device", "host", "threads", "runs packed together", "compiled", "versions", "commit"),
        tuple(rows),
    )


def _text(value: Any) -> str:
    return "–" if value is None or (isinstance(value, float) and math.isnan(value)) or value == "" else str(value)


def _versions(value: Any) -> str:
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(value).items() if version) or "–"
    except (TypeError, ValueError, AttributeError):
        return _text(value)


def troubles(material: Material) -> Table:
    """Every run that failed, diverged, stopped or ran out of memory, and every try that did, by name."""
    last = material.attempts.sort_values("n").drop_duplicates("run", keep="last").set_index("run")
    rows = []
    for run in material.runs[material.runs["status"].isin(UNFINISHED)].drop_duplicates("run").to_dict("records"):
        error = last["error"].get(run["run"]) if len(last) else None
        step = run["diverged_at"]
        rows.append(
            (
                Value(f"{run['run']}", run["run"]),
                run["cell"],
                Value(f"{run['seed']}", run["seed"]),
                run["role"],
                "out of memory" if run["status"] == "oom" else run["status"],
                Value("–" if pd.isna(step) else f"{int(step):,}", _plain(step)),
                Value(f"{run['attempts']}", run["attempts"]),
                _last_line(error),
            )
        )
    return Table(
        "troubles",
        "Runs that did not complete. A diverged run is a result: it stays in every count, and its pairs are lost, not left out.",
        ("run", "cell", "seed", "role", "status", "diverged at step", "attempts", "error"),
        tuple(rows),
        "SELECT run, cell, seed, role, status, diverged_at, attempts\nFROM runs\n"
        f"WHERE study = {quoted(material.study.name)} AND status IN ({listed(map(quoted, UNFINISHED)).replace(' and', ',')});",
    )


def _last_line(error: Any) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] if isinstance(error, str) else []
    return lines[-1][:200] if lines else "–"


def runs(material: Material) -> Table:
    """All runs, one row each."""
    places = decimals(float(material.good["metric"].std()) / 10) if len(material.good) > 1 else 4
    rows = tuple(
        (
            Value(f"{run['run']}", run["run"]),
            run["cell"],
            Value(f"{run['seed']}", run["seed"]),
            run["role"],
            run["status"],
            _value(float(run["metric"]), places),
            Value(f"{run['lr']:.3g}", run["lr"]),
            _seconds(float(run["seconds"])),
            Value(f"{run['attempts']}", run["attempts"]),
        )
        for run in material.runs.to_dict("records")
    )
    return Table(
        "runs",
        f"All {plural(len(rows), 'run')}.",
        ("run", "cell", "seed", "role", "status", material.words.axis, "learning rate", "training time", "attempts"),
        rows,
        f"SELECT run, cell, seed, role, status, metric, lr, attempts\nFROM runs\nWHERE study = {quoted(material.study.name)};",
        folded=True,
        data=material.runs,
    )


def excluded(material: Material) -> list[str]:
    """A sentence on what the study file leaves out."""
    rules = material.settings.get("exclude") or []
    named = [", ".join(f"{factor} = {level}" for factor, level in rule.items()) for rule in rules if isinstance(rule, dict)]
    return [f"Left out by the study file: {'; '.join(named)}."] if named else []
