"""The small tables of a study file: seeds, [match], [tune], [fit], [report]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ablate.errors import AblateError, unknown, written
from ablate.study.design import MAX_RUNS
from ablate.study.levels import Factors, sets
from ablate.study.model import (
    MOST_CROSSED,
    MOST_DEVICES,
    WIDEST,
    Crossed,
    DevicesPerRun,
    Fields,
    Fit,
    Keep,
    Match,
    Reporting,
    Tune,
    TwoStage,
    tuned_field,
)
from ablate.study.names import Names
from ablate.study.source import Source, located
from ablate.study.values import BUDGETS, number, point, positive
from ablate.text.options import Reading

Model = TypeVar("Model", bound=BaseModel)

SLOWEST, FASTEST = 1e-9, 100.0  # learning rates between which a ladder may lie
LEAST, MOST = 1e-12, 1e12  # other numbers between which it may lie
NEAREST = 1.1  # ratio of two neighbouring rates of a ladder, at least
MOST_POINTS = 100
PER = {"cell": "each cell", "study": "all cells together"}
# what pydantic names the members of a union in a place
UNIONS = ("int", "str", "list[int]", "list[str]", "dict[str,any]")
Held = Literal["largest size", "largest tokens", "largest budget"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SeedsTable(_Table):
    """The keys of seeds = { … } with a pilot."""

    pilot: int = Field(
        ge=2, description="seeds of every cell before the noise is known; five or more is best"
    )
    resolution: Any = Field(
        description="half-width of the 95% intervals to aim at, in the metric's unit"
    )
    max: int = Field(description="the most seeds that a cell may get")


class CrossedTable(_Table):
    """The keys of seeds = { … } that cross initialisation and data order."""

    init: int = Field(ge=2, le=MOST_CROSSED, description="seeds of the initial weights")
    data: int = Field(ge=2, le=MOST_CROSSED, description="seeds of batch order, masks and dropout")


class MatchTable(_Table):
    """The keys of [match]."""

    params: Literal["body", "total"] | None = Field(
        None, description="match parameters: body (without embeddings and head) or total"
    )
    flops: bool = Field(False, description="match training FLOPs")
    by: Literal["d_mlp", "steps"] = Field(
        "d_mlp", description="what is solved: the width of the MLP, or the number of steps"
    )


class TuneTable(_Table):
    """The keys of [tune]."""

    lr: list[Any] = Field(
        min_length=2,
        max_length=2,
        description="the lowest and the highest learning rate; another number may replace `lr`",
    )
    points: int = Field(
        ge=3,
        le=MOST_POINTS,
        description="values to try, from the lowest to the highest, on a log scale",
    )
    seeds: int = Field(
        3, ge=1, le=1000, description="runs at each value, on seeds that are not compared"
    )
    per: str | list[str] = Field(
        description=(
            'which cells share a value, tuned on the first of them: factors, such as ["topology"],'
            ' "cell" or "study"'
        )
    )
    metric: str | None = Field(
        None,
        description=(
            "what decides, such as `loss`, each cell's own held-out loss; by default the study's"
            " `metric`"
        ),
    )


class RunTable(_Table):
    """The keys of [run]."""

    keep: Keep = Field(
        "none",
        description=(
            'which weights of each compared run are kept: "final", those at its end; "best", those'
            ' of the evaluation with the lowest held-out loss; or "none"'
        ),
    )
    devices_per_run: Any = Field(
        1,
        description=(
            f'on how many GPUs each run trains, 1 to {MOST_DEVICES}; "auto" for the number with'
            " which the study ends first"
        ),
    )


class FitTable(_Table):
    """The keys of [fit]."""

    group: str = Field(
        "",
        description=(
            "the factor with one curve per level; by default all factors except size and budgets"
        ),
    )
    hold_out: Held | None = Field(
        None, description="the runs that check a curve fitted without them"
    )
    n: str = Field("", description="the field of a script that holds its parameters N")
    d: str = Field("", description="the field of a script that holds its tokens or examples D")
    predict: list[str] = Field(
        [], description='where to predict the loss: `["N=1.2e7,D=5e8", "C=1e16"]`'
    )


class ReportTable(_Table):
    """The keys of [report]."""

    delta: Any = Field(
        None, description="the largest difference that does not matter, in the metric's unit"
    )
    threshold: Any = Field(
        None, description="a value of the metric that each cell's mean is tested against"
    )
    correction: Literal["family", "study"] = Field(
        "family",
        description=(
            "what Holm's correction covers: each family of contrasts by itself, or all contrasts"
            " of the study"
        ),
    )
    successive: list[str] = Field(
        [], description="factors whose levels are each also compared with the level before"
    )


def validated(
    source: Source, model: type[Model], raw: Mapping[str, Any], *table_path: object
) -> Model:
    """Return `model` filled from a table.

    Raises:
        AblateError: pydantic's first complaint, as one line.
    """
    try:
        with located(source, *table_path):
            return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = [part for part in first["loc"] if isinstance(part, str) and part not in UNIONS]
        key = ".".join(map(str, (*table_path, *path)))
        message = first["msg"][0].lower() + first["msg"][1:]
        field = model.model_fields.get(path[-1]) if path else None
        if first["type"] == "string_pattern_mismatch" and field and field.description:
            message = (
                f"{field.description.partition(';')[0]} are allowed, a letter, digit or _ first"
            )
        if first["type"] == "too_short":
            least = first["ctx"]["min_length"]
            message = f"at least {least} {'entry is' if least == 1 else 'entries are'} wanted"
        if first["type"] == "too_long":
            most, given = first["ctx"]["max_length"], first["ctx"]["actual_length"]
            message = (
                f"at most {most} {'entry' if most == 1 else 'entries'} may be given, not {given}"
            )
        if first["type"] == "value_error":
            message = message.removeprefix("value error, ")
        if first["type"] == "missing":
            lacking = [_meant(model, one) for one in error.errors() if one["type"] == "missing"]
            raise AblateError(
                f"{source.where(*table_path)}: "
                + "; ".join(
                    f"{'.'.join(map(str, (*table_path, *keys)))} is missing{meaning}"
                    for keys, meaning in lacking
                )
            ) from None
        raise AblateError(
            f"{source.where(*table_path, *path)}: {key} = {written(first['input']):.80}: {message}"
        ) from None


def _meant(model: type[Model], error: Any) -> tuple[list[str], str]:
    """The keys that pydantic misses in a table, and what they mean."""
    keys = [part for part in error["loc"] if isinstance(part, str) and part not in UNIONS]
    field = model.model_fields.get(keys[-1]) if keys else None
    return keys, f": {field.description}" if field and field.description else ", or an entry of it"


def table_of(
    source: Source, model: type[Model], raw: Mapping[str, Any], table_name: str, kind: str
) -> Model:
    """Return `model` filled from a table of a study file.

    Args:
        source: The study file.
        model: What the table holds.
        raw: The table.
        table_name: Its key.
        kind: What an error calls it.

    Raises:
        AblateError: With the line of a key that is unknown or has a wrong value.
    """
    for key in raw:
        if key not in model.model_fields:
            raise unknown(f"key of {kind}", key, model.model_fields, source.where(table_name, key))
    return validated(source, model, raw, table_name)


def seeds(
    source: Source, raw: int | list[int] | dict[str, Any]
) -> tuple[tuple[int, ...], TwoStage | Crossed | None]:
    """Return the seeds of every cell, and the rule of a table: a pilot, or two crossed seeds."""
    location = source.where("seeds")
    if isinstance(raw, dict):
        pilot, split = (list(table.model_fields) for table in (SeedsTable, CrossedTable))
        for key in raw:
            if key not in (*pilot, *split):
                raise unknown("key of seeds", key, [*pilot, *split], source.where("seeds", key))
        if raw.keys() & set(split):
            if both := [key for key in raw if key in pilot]:
                raise AblateError(
                    f"{source.where('seeds', both[0])}: seeds.{both[0]} = {raw[both[0]]!s:.80}: a"
                    " pilot decides one number of seeds, which cannot be split; give either"
                    f" {{ {', '.join(pilot)} }} or {{ {', '.join(split)} }}"
                )
            crossed = Crossed(**table_of(source, CrossedTable, raw, "seeds", "seeds").model_dump())
            return crossed.seeds, crossed
        table = table_of(source, SeedsTable, raw, "seeds", "seeds")
        resolution = _positive(source, "resolution", table.resolution, "seeds")
        if not table.pilot <= table.max <= MAX_RUNS:
            raise AblateError(
                f"{location}: seeds.max = {table.max}: between pilot = {table.pilot} and"
                f" {MAX_RUNS:,} are possible"
            )
        return tuple(range(table.pilot)), TwoStage(resolution, table.max)
    if isinstance(raw, int):
        if not 1 <= raw <= MAX_RUNS:
            raise AblateError(f"{location}: seeds = {raw}: between 1 and {MAX_RUNS:,} are possible")
        return tuple(range(raw)), None
    if not raw or len(set(raw)) < len(raw) or not all(0 <= seed < 1 << 31 for seed in raw):
        raise AblateError(
            f"{location}: seeds = {raw!s:.80}: different whole numbers from 0 to 2147483647 are"
            " wanted"
        )
    return tuple(raw), None


def match(
    source: Source, raw: Mapping[str, Any], factors: Factors, within: Sequence[str]
) -> Match | None:
    """Return [match], or None without one."""
    if not raw:
        return None
    table = table_of(source, MatchTable, raw, "match", "[match]")
    location = source.where("match")
    if (table.params is None) is not table.flops:
        raise AblateError(
            f'{location}: [match] takes one of params = "body", params = "total" and flops = true'
        )
    if table.by == "steps" and table.params:
        raise AblateError(
            f"{source.where('match', 'by')}: steps change no parameters; match flops by steps, or"
            ' params by "d_mlp"'
        )
    undone = {"d_mlp": "solves; remove it, or match by steps"} if table.by == "d_mlp" else {}
    if table.flops:
        undone |= dict.fromkeys(
            BUDGETS, "flops makes equal again; remove one of them, or put the factor in within"
        )
    for field, why in undone.items():
        for name in _varying(factors, field):
            if name not in within:
                raise AblateError(
                    f"{source.where('factors', name)}: {name} varies {field}, which [match] {why}"
                )
    return Match(table.params or "flops", table.by)


def tune(
    source: Source, raw: Mapping[str, Any] | None, base: Fields, factors: Factors, names: Names
) -> Tune | None:
    """Return [tune], or None without one.

    Args:
        source: The study file.
        raw: The table.
        base: [base].
        factors: [factors].
        names: The keys of the study's kind.
    """
    if raw is None:
        return None
    field = tuned_field({"tune": raw})
    if field == "lr":  # a second number would be an unknown key
        field = tuned_field({"tune": {key: one for key, one in raw.items() if key != "lr"}})
    with located(source, "tune", field):
        number_type, leaves = names.tuned(field)
    if field != "lr" and "lr" in raw:
        raise AblateError(
            f"{source.where('tune', 'lr')}: [tune] finds one number, and has {field} and lr; keep"
            " one, and give the other in [base]"
        )
    named = {"lr" if key == field else key: value for key, value in raw.items()}
    table = table_of(source, TuneTable, named, "tune", "[tune]")
    if field in base:
        raise AblateError(
            f"{source.where('base', field)}: {field} is fixed here, and found by [tune]"
            f" ({source.where('tune')}); keep one"
        )
    for name in _varying(factors, field):
        location = source.where("factors", name)
        varies = "varies here, and" if name == field else f"sets {field}, which"
        raise AblateError(
            f"{location}: {name} {varies} is found by [tune] ({source.where('tune')}); keep one of"
            " them"
        )
    low, high = (_positive(source, field, end, "tune") for end in table.lr)
    location = source.where("tune", field)
    written_whole = all(isinstance(end, int) for end in table.lr)
    whole = number_type is int or (number_type is None and written_whole)
    if number_type is int and not written_whole:
        raise AblateError(f"{location}: tune.{field} = {table.lr}: {field} is a whole number")
    slowest, fastest = (SLOWEST, FASTEST) if field == "lr" else (LEAST, MOST)
    if not slowest <= low < high <= fastest:
        raise AblateError(
            f"{location}: tune.{field} = {table.lr}: a lower and a higher"
            f" {'rate' if field == 'lr' else 'value'} are wanted, from {slowest:g} to {fastest:g}"
        )
    for end in (low, high):
        with located(source, "tune", field):
            names.value(field, end)
    if (high / low) ** (1 / (table.points - 1)) < NEAREST:
        location = source.where("tune", "points")
        raise AblateError(
            f"{location}: tune.points = {table.points}: rates nearer than {NEAREST - 1:.0%} cannot"
            " be distinguished"
        )
    per = _per(source, table.per, factors)
    found = Tune(low, high, table.points, table.seeds, per, field, whole, 0, 0)
    different = [f"{one:g}" for one in dict.fromkeys(found.ladder)]
    if len(different) < found.points:
        raise AblateError(
            f"{source.where('tune', 'points')}: tune.points = {found.points}: rounded to whole"
            f" numbers, they are {', '.join(different)}; give fewer points or a wider range"
        )
    return replace(
        found,
        down=_beyond(found, names, range(-1, -WIDEST - 1, -1)) if leaves else 0,
        up=_beyond(found, names, range(found.points, found.points + WIDEST)) if leaves else 0,
    )


def _beyond(tune: Tune, names: Names, rungs: range) -> int:
    """Return how many rungs beyond an end of the ladder are valid and distinct values."""
    known = set(tune.ladder)
    for steps, rung in enumerate(rungs):
        try:
            names.value(tune.field, rate := tune.rate(rung))
        except AblateError:
            return steps
        if rate in known:
            return steps
        known.add(rate)
    return len(rungs)


def fit(
    source: Source, raw: Mapping[str, Any] | None, factors: Factors, own: Fields | None = None
) -> Fit | None:
    """Return [fit], or None without one.

    Args:
        source: The study file.
        raw: The table.
        factors: [factors].
        own: Fields that may state N and D: [base] of a script, or fields of imported runs; None for
            a transformer, whose N and D are known.
    """
    if raw is None:
        return None
    table = table_of(source, FitTable, raw, "fit", "[fit]")
    _check_resources(source, table, factors, own)
    if table.group and table.group not in factors:
        raise unknown("factor in [fit] group", table.group, factors, source.where("fit", "group"))
    for text in table.predict:
        with located(source, "fit", "predict"):
            point(text)
    return Fit(table.group, table.hold_out or "", tuple(table.predict), table.n, table.d)


def _check_resources(source: Source, table: FitTable, factors: Factors, own: Fields | None) -> None:
    """Refuse N and D of a transformer, which are known, and those of a script that are missing."""
    given = {key: getattr(table, key) for key in ("n", "d") if getattr(table, key)}
    if own is None:
        if given:
            raise AblateError(
                f"{source.where('fit', *given)}: [fit] {' and '.join(given)}: ablate counts the"
                " parameters and tokens of its own models; remove it"
            )
        return
    if len(given) < 2:
        raise AblateError(
            f"{source.where('fit')}: [fit] needs n and d, the fields of the script that hold its"
            " parameters N and its tokens, or examples, D"
        )
    tables = [own, *(fields for levels in factors.values() for fields in levels.values())]
    for key, name in given.items():
        values = [fields[name] for fields in tables if name in fields]
        if not values:
            known = dict.fromkeys(field for fields in tables for field in fields)
            raise unknown(f"field in [fit] {key}", name, known, source.where("fit", key))
        wrong = [one for one in values if isinstance(one, bool | str) or not one > 0]
        if wrong:
            raise AblateError(
                f"{source.where('fit', key)}: [fit] {key} = {name!r}: {written(wrong[0]):.80} is no"
                " number above 0"
            )


def report(
    source: Source, raw: Mapping[str, Any] | None, factors: Factors, within: Sequence[str]
) -> Reporting:
    """Return [report], with its defaults where there is none."""
    if raw is None:
        return Reporting()
    table = table_of(source, ReportTable, raw, "report", "[report]")
    delta = None if table.delta is None else _positive(source, "delta", table.delta, "report")
    with located(source, "report", "threshold"):
        threshold = (
            None if table.threshold is None else float(number("report.threshold", table.threshold))
        )
    where = source.where("report", "successive")
    for name in table.successive:
        if name not in factors:
            raise unknown("factor in [report] successive", name, factors, where)
        if name in within or len(factors[name]) < 3:
            why = (
                "is in within, so its levels are not compared"
                if name in within
                else "has fewer than three levels: its contrast is that with the level before"
            )
            raise AblateError(f"{where}: [report] successive: factor {name!r} {why}")
    return Reporting(delta, table.correction, threshold, tuple(table.successive))


def run(source: Source, raw: Mapping[str, Any]) -> tuple[Keep, DevicesPerRun]:
    """Return [run]: which weights of compared runs are kept, and on how many devices one trains."""
    table = table_of(source, RunTable, raw, "run", "[run]")
    with located(source, "run", "devices_per_run"):
        return table.keep, devices_per_run("run.devices_per_run", table.devices_per_run)


def devices_per_run(key: str, raw: object) -> DevicesPerRun:
    """Return on how many devices a run trains.

    Args:
        key: Where it was given.
        raw: As it was given.

    Raises:
        AblateError: It is no such number.
    """
    if raw == "auto":
        return "auto"
    if isinstance(raw, int) and not isinstance(raw, bool) and 1 <= raw <= MOST_DEVICES:
        return raw
    raise AblateError(f'{key} = {written(raw):.80}: 1 to {MOST_DEVICES}, or "auto", is wanted')


def data(source: Source, raw: Mapping[str, Any]) -> Reading:
    """Return [data]: how the files of a corpus are read."""
    return table_of(source, Reading, raw, "data", "[data]")


def _per(source: Source, raw: str | list[str], factors: Factors) -> tuple[str, ...]:
    """The factors whose levels make a group."""
    location = source.where("tune", "per")
    if isinstance(raw, str):
        if raw not in PER:
            raise unknown(
                "value of tune.per", raw, [*PER, *(f'["{name}"]' for name in factors)], location
            )
        return tuple(factors) if raw == "cell" else ()
    for name in raw:
        if name not in factors:
            raise unknown("factor in tune.per", name, factors, location)
    if not raw or len(set(raw)) < len(raw):
        raise AblateError(
            f'{location}: tune.per = {raw}: different factors are wanted, or "cell" or "study"'
        )
    return tuple(name for name in factors if name in raw)


def _varying(factors: Factors, field: str) -> Iterator[str]:
    """The factors that set a field."""
    return (
        name
        for name, levels in factors.items()
        if field in set().union(*map(sets, levels.values()))
    )


def _positive(source: Source, key: str, raw: object, table: str) -> float:
    with located(source, table, key):
        return float(positive(f"{table}.{key}", raw))
