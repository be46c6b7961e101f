"""The study file: every key is checked; an error names the line, the value and the choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations as pairs_of
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ablate import metrics, outside, used
from ablate.code import Code
from ablate.components import CATALOGUE
from ablate.errors import AblateError, UnknownError, own_name, unknown, written
from ablate.evaluation import CHANCE, FILLED_IN, LABELLED, WIDEST_BEAM, Evaluation
from ablate.study import command as commands
from ablate.study import imported, ray, slurm, tables
from ablate.study.command import CommandNames, check_placeholders, metric_of
from ablate.study.design import DESIGNS, MAX_CELLS, MAX_RUNS, PARTWISE, count
from ablate.study.imported import ImportedNames
from ablate.study.levels import Factors, fields_of, parse_factors, sets
from ablate.study.model import (
    Command,
    Crossed,
    Fields,
    Study,
    Tune,
    TwoStage,
    reads_images,
    tuned_field,
)
from ablate.study.names import OF_TABLE, Names, TransformerNames
from ablate.study.presets import applied
from ablate.study.source import Source, located
from ablate.study.tables import validated
from ablate.study.values import BUDGETS, number, positive, settable
from ablate.units import listed

NAME = r"\w[\w .+-]*"  # of a study
NAMED = "letters, digits, blanks and . + - _"


class StudyFile(BaseModel):
    """The keys of a study file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=f"^{NAME}$", description=f"{NAMED}; names results")
    question: str = Field(min_length=1, description="the question that the report answers")
    metric: str = Field("loss", description="the number that decides it")
    goal: Literal["lower", "higher"] | None = Field(
        None, description="which direction of the metric is better; not of ablate's own metrics"
    )
    use: list[str] = Field(
        [], description="files and packages with levels and metrics of your own; docs/own-parts.md"
    )
    design: str = Field("grid", description="which combinations of levels are trained")
    within: list[str] = Field(
        [], description="factors whose levels form strata, each with a baseline of its own"
    )
    interactions: list[list[str]] = Field(
        [], description="groups of factors that are also varied together (not in a grid)"
    )
    seeds: int | list[int] | dict[str, Any] = Field(
        description="how many runs a cell has, or their seeds, or { pilot, resolution, max },"
        " or { init, data }"
    )
    base: dict[str, Any] = Field({}, description="what every run starts from")
    factors: dict[str, Any] = Field(
        min_length=1, description="what varies; a factor's first level is its baseline"
    )
    exclude: list[dict[str, Any]] = Field(
        [], description="combinations of levels that are left out"
    )
    command: dict[str, Any] | None = Field(None, description="the script that makes a run")
    imported: dict[str, Any] | None = Field(
        None, description="files and columns of imported runs; `ablate import` writes this table"
    )
    finetune: dict[str, Any] | None = Field(
        None, description="the task that its pre-trained models are fine-tuned on"
    )
    start: dict[str, Any] | None = Field(
        None, description="the trained model whose weights its runs start from; docs/weights.md"
    )
    match: dict[str, Any] = Field(
        {}, description="what the cells of a stratum have in common with its baseline"
    )
    run: dict[str, Any] = Field(
        {}, description="which weights are kept, and on how many GPUs a run trains"
    )
    slurm: dict[str, Any] = Field(
        {}, description="what `ablate run --on slurm` asks of Slurm; docs/cluster.md"
    )
    ray: dict[str, Any] = Field(
        {}, description="what `ablate run --on ray` asks of a Ray cluster; docs/cluster.md"
    )
    tune: dict[str, Any] | None = Field(None, description="how learning rates are found")
    fit: dict[str, Any] | None = Field(None, description="the scaling curves that the report fits")
    report: dict[str, Any] | None = Field(None, description="additional tests in the report")
    eval: dict[str, Any] = Field({}, description="what is measured on held-out text")
    data: dict[str, Any] = Field({}, description="how the files of a corpus are read")


FIELDS = StudyFile.model_fields
TOP = "at the top of the file, before the first table"
# a key or table → what sweeps of W&B, Optuna and Hydra call it
SWEPT = {
    "[factors]": ("parameters", "search_space", "sweep", "sweeper", "grid"),
    "goal": ("direction", "directions", "mode"),
    "design": ("method", "sampler"),
    "[command]": ("program", "script"),
    "seeds": ("n_seeds", "num_seeds", "num_samples", "repeats"),
}
TABLES: dict[str, type[BaseModel]] = {
    "match": tables.MatchTable,
    "run": tables.RunTable,
    "tune": tables.TuneTable,
    "fit": tables.FitTable,
    "report": tables.ReportTable,
    "eval": Evaluation,
}


def parse(text: str, path: Path) -> Study:
    """Return the study in the text of a file.

    Raises:
        AblateError: with the line in `path`, for the first thing that is not valid. Code that the
            file uses is then withdrawn again.
    """
    source = Source(path, text)
    file = _read(source)
    with outside.restored_on_failure(), _naming_parts(file, path.parent):
        return _study(source, file)


@contextmanager
def _naming_parts(file: StudyFile, folder: Path) -> Iterator[None]:
    """Say of an unknown word, instead of its choices, which file beside the study registers it, or
    how a part that takes it declares it.
    """
    try:
        yield
    except UnknownError as error:
        takes_parts = file.command is None and file.imported is None
        beside = outside.registering(error.word, folder) if takes_parts else ""
        if beside and beside not in file.use:
            use = ", ".join(f'"{name}"' for name in (*file.use, beside))
            error.instead(f"{beside} has it: add use = [{use}]")
        elif takes_parts and (declared := outside.declaring(error.word)):
            error.instead(declared)
        elif error.begin.startswith("unknown key"):
            _placed(error)
        raise


def _placed(error: UnknownError) -> UnknownError:
    """Say of a key that is unknown where it stands, instead of its choices, where it belongs."""
    homes = [f"[{name}]" for name, model in TABLES.items() if error.word in model.model_fields]
    if error.word in settable():
        homes = ["[base]", "[factors]", *homes]
    home = f"in {listed(homes, 'or')}" if homes else TOP if error.word in FIELDS else ""
    return error.instead(f"it belongs {home}") if home else error


def _study(source: Source, file: StudyFile) -> Study:
    command, at = _command(source, file)
    own = command is not None or file.imported is not None
    names: Names = TransformerNames([one for one in OF_TABLE if getattr(file, one) is not None])
    if own:
        names = CommandNames() if command else ImportedNames()
    use = () if own else _use(source, file)  # before levels are looked up
    base = dict(file.base)
    max_epochs = None if own else _max_epochs(source, base)
    fields = fields_of(source, names, base, "base")
    factors = parse_factors(source, names, file.factors)
    if not own:
        found = tuned_field({"tune": file.tune}) if file.tune else ""
        fields, factors = applied(source, fields, factors, found)
    images = not own and reads_images(fields, factors)
    for table in ("finetune", "start") if images else ():
        if getattr(file, table) is not None:
            raise AblateError(
                f"{source.where(table)}: [{table}] is for models of text, and the study reads"
                " images; remove it"
            )
    if file.finetune is not None:
        fields |= _of_table(source, names, "finetune", file.finetune, fields, factors)
    if file.start is not None:
        fields |= _starting(source, names, file.start, fields, factors)
    _apart(source, fields, factors)
    if not own:
        _one_budget(source, fields, factors)
    _check_design(source, file, factors)
    seeds, rule = tables.seeds(source, file.seeds)
    two_stage = rule if isinstance(rule, TwoStage) else None
    tuned = tables.tune(source, file.tune, fields, factors, names)
    if command:
        extra = [tuned.field] if tuned else []
        crossed = isinstance(rule, Crossed)
        check_placeholders(source, command, fields, factors, extra, crossed=crossed)
    _affordable(source, file, factors, two_stage.most if two_stage else len(seeds), tuned)
    known = fields if command else imported.RESOURCES
    evaluation = _evaluation(source, file.eval, images)
    if own:
        metric, goal = metric_of(source, file.metric, at), _own_goal(source, file)
    else:
        evaluation = evaluation.model_copy(update={"own": outside.measured() or None})
        metric, goal, evaluation = _metric(source, ("metric",), file.metric, evaluation, images)
        if file.goal is not None and metrics.GOALS[file.goal] != goal:
            raise AblateError(
                f"{source.where('goal')}: goal = {file.goal!r}: of metric {metric!r} the other"
                " direction is better; remove goal"
            )
    if tuned:
        tuned, evaluation = _decided_by(source, file, tuned, (metric, goal), evaluation, images)
    keep, devices_per_run = tables.run(source, file.run)
    return Study(
        name=file.name,
        question=_question(source, file.question),
        metric=metric,
        goal=goal,
        design=file.design,
        within=tuple(file.within),
        interactions=tuple(tuple(group) for group in file.interactions),
        seeds=seeds,
        base=fields,
        factors=factors,
        exclude=_exclusions(source, names, file.exclude, factors),
        max_epochs=max_epochs,
        match=tables.match(source, file.match, factors, file.within),
        tune=tuned,
        two_stage=two_stage,
        crossed=rule if isinstance(rule, Crossed) else None,
        fit=tables.fit(source, file.fit, factors, known if own else None),
        reporting=tables.report(source, file.report, factors, file.within),
        evaluation=evaluation,
        use=use,
        reading=tables.data(source, file.data),
        command=command,
        # fine-tuned runs start from the weights of pre-trained ones
        keep="final" if file.finetune is not None else keep,
        devices_per_run=devices_per_run,
        slurm=slurm.parse(source, file.slurm),
        ray=ray.parse(source, file.ray),
        finetunes=file.finetune is not None,
        starts=file.start is not None,
        imported=file.imported is not None,
        path=source.path,
        toml=source.text,
    )


def _command(source: Source, file: StudyFile) -> tuple[Command | None, str]:
    """Return [command], and `at` of [command] or [imported]; refuse tables without effect there."""
    if file.command is None and file.imported is None:
        if file.start is not None and file.match and file.match.get("by") != "steps":
            raise AblateError(
                f"{source.where('match')}: [match] solves a width, which given weights"
                f" ({source.where('start')}) decide; remove it, or match flops by steps"
            )
        if file.finetune is not None and file.run.get("devices_per_run", 1) != 1:
            raise AblateError(
                f"{source.where('run', 'devices_per_run')}: run.devices_per_run ="
                f" {written(file.run['devices_per_run']):.80}: several devices train transformers"
                f" only, and none with [finetune] ({source.where('finetune')}); remove it"
            )
        if file.finetune is not None and file.run:
            raise AblateError(
                f"{source.where('run')}: [run] has no effect beside [finetune]: the weights of"
                " pre-trained runs are kept, and those of fine-tuned ones are not; remove it"
            )
        return None, ""
    table = "command" if file.command is not None else "imported"
    of_imported = (("tune", "[tune]"), ("base", "[base]"), ("command", "[command]"))
    for key, shown in (
        *(("eval", "[eval]"), ("data", "[data]"), ("match", "[match]"), ("use", "use")),
        *(("run", "[run]"), ("finetune", "[finetune]"), ("start", "[start]")),
        *(of_imported if file.imported is not None else ()),
    ):
        if getattr(file, key):
            raise AblateError(
                f"{source.where(key)}: {shown} has no effect beside [{table}]"
                f" ({source.where(table)}), whose runs are not ablate's own; remove it"
            )
    if file.command is None:
        return None, imported.parse(source, file.imported or {})
    commands.check_metric(source, file.metric)
    return commands.parse(source, file.command)


# table → the fields that it or a factor has to set
_NEEDED = {"finetune": ("task", "method"), "start": ("start_from",)}


def _of_table(
    source: Source,
    names: Names,
    table: str,
    raw: Mapping[str, Any],
    base: Fields,
    factors: Factors,
    called: Mapping[str, str] = MappingProxyType({}),
) -> Fields:
    """Return what a table of `OF_TABLE` sets for every run.

    Args:
        source: The study file.
        names: The keys of the study's kind.
        table: Its name.
        raw: What it holds.
        base: [base].
        factors: [factors].
        called: Field → what the table calls it, where that is another name.

    Raises:
        AblateError: It sets a field of another table, one that is set elsewhere, or lacks one.
    """
    own = {
        called.get(name, name): name
        for name in settable()
        if name in CATALOGUE and CATALOGUE[name].group == OF_TABLE[table]
    }
    for key in raw:
        if key not in own:
            raise unknown(f"key of [{table}]", key, own, source.where(table, key))
        if own[key] in base:
            raise AblateError(
                f"{source.where(table, key)}: {own[key]} is set both here and in [base]"
                f" ({source.where('base', own[key])}); keep one of them"
            )
    varied = {name: set().union(*map(sets, levels.values())) for name, levels in factors.items()}
    for factor, keys in varied.items():
        for key in raw:
            if own[key] in keys:
                raise AblateError(
                    f"{source.where(table, key)}: {own[key]} is set both here and by factor"
                    f" {factor} ({source.where('factors', factor)}); keep one of them"
                )
    fields = {}
    for key, value in raw.items():
        with located(source, table, key):
            fields[own[key]] = names.value(own[key], value)
    for name in _NEEDED[table]:
        if not any(name in keys for keys in (fields, base, *varied.values())):
            row = CATALOGUE[name]
            choices = f". Choices: {', '.join(row.offered)}." if row.choice else ""
            raise AblateError(
                f"{source.where(table)}: {table}.{called.get(name, name)} is missing:"
                f" {row.meaning.rstrip('.')}{choices}"
            )
    return fields


def _starting(
    source: Source, names: Names, raw: Mapping[str, Any], base: Fields, factors: Factors
) -> Fields:
    """Return what [start] sets for every run: given weights, unless a factor says otherwise."""
    fields = _of_table(source, names, "start", raw, base, factors, {"start_from": "from"})
    varied = set().union(*(sets(level) for levels in factors.values() for level in levels.values()))
    return fields if "start" in {*fields, *base, *varied} else fields | {"start": "given"}


def _own_goal(source: Source, file: StudyFile) -> str:
    """Return the goal of a metric that the study names itself."""
    if file.goal is None:
        raise AblateError(
            f'{source.where("metric")}: goal is missing: goal = "lower" or "higher" says which'
            f" direction of {file.metric!r} is better"
        )
    return metrics.GOALS[file.goal]


def _read(source: Source) -> StudyFile:
    raw = source.tables()
    for key in raw:
        if key not in FIELDS:
            error = unknown("key", key, FIELDS, source.where(key))
            meant = own_name(key, SWEPT)
            raise error.instead(f"give {meant} instead") if meant else _placed(error)
    for table, keys in raw.items():
        for key in keys if isinstance(keys, dict) else ():
            if key in FIELDS and FIELDS[key].is_required() and key not in raw:
                raise AblateError(
                    f"{source.where(table, key)}: {key} stands in [{table}], and belongs {TOP}"
                )
    return validated(source, StudyFile, raw)


def _use(source: Source, file: StudyFile) -> tuple[Code, ...]:
    """Load the levels from outside: those of `use`, and whole models, as "my_model.py:Model"."""
    for name in file.use:
        if file.use.count(name) > 1:
            raise AblateError(f"{source.where('use', name)}: use names {name!r} twice")
    models = {
        value: path
        for value, path in _architectures(file)
        if isinstance(value, str) and used.MODEL.fullmatch(value)
    }
    with located(source, *(("use",) if file.use else next(iter(models.values()), ()))):
        return outside.find(file.use, source.path.parent, list(models))


def _architectures(file: StudyFile) -> Iterator[tuple[object, tuple[str, ...]]]:
    """Yield every value that a file gives `architecture`, and where."""
    tables: dict[tuple[str, ...], Any] = {("base",): file.base}
    for name, levels in file.factors.items():
        if name == "architecture" and isinstance(levels, list):
            yield from ((level, ("factors", name)) for level in levels)
        elif isinstance(levels, dict):
            tables |= {("factors", name, key): table for key, table in levels.items()}
    for path, table in tables.items():
        if isinstance(table, dict) and "architecture" in table:
            yield table["architecture"], (*path, "architecture")


def _question(source: Source, text: str) -> str:
    """The question on one line."""
    line = " ".join(text.split())
    if not line or not line.isprintable():
        raise AblateError(
            f"{source.where('question')}: question = {text!r:.80}: expected a line of printable"
            " text"
        )
    return line


def _max_epochs(source: Source, base: dict[str, Any]) -> float | None:
    if "max_epochs" not in base:
        return None
    with located(source, "base", "max_epochs"):
        return positive("max_epochs", base.pop("max_epochs"))


def _apart(source: Source, base: Fields, factors: Factors) -> None:
    """Refuse a field that is set twice: in [base] and by a factor, or by two factors."""
    by_factor = {name: set().union(*map(sets, levels.values())) for name, levels in factors.items()}
    for name, fields in by_factor.items():
        for field in sorted(fields & base.keys()):
            by = "" if field == name else f", by {name}"
            raise AblateError(
                f"{source.where('base', field)}: {field} is set both in [base] and in [factors]{by}"
                f" ({source.where('factors', name)}); keep one of them"
            )
    for one, other in pairs_of(by_factor, 2):
        if both := sorted(by_factor[one] & by_factor[other]):
            location = source.where("factors", other)
            raise AblateError(
                f"{location}: {both[0]} is set by two factors, {one} and {other}; keep one of them"
            )


def _one_budget(source: Source, base: Fields, factors: Factors) -> None:
    in_base = [name for name in BUDGETS if name in base]
    varied = [
        name
        for levels in factors.values()
        for fields in levels.values()
        for name in fields
        if name in BUDGETS
    ]
    if not in_base and not varied:
        raise AblateError(
            f"{source.where('base')}: no budget; give one of {', '.join(BUDGETS)}, in [base] or as"
            " a factor"
        )
    if len({*in_base, *varied}) > 1 and in_base:
        raise AblateError(
            f"{source.where('base', in_base[-1])}: two budgets,"
            f" {' and '.join(dict.fromkeys((*in_base, *varied)))}; keep one of them"
        )


def _check_design(source: Source, file: StudyFile, factors: Factors) -> None:
    if file.design not in DESIGNS:
        raise unknown("design", file.design, DESIGNS, source.where("design"))
    for key, names in (
        ("within", file.within),
        *(("interactions", group) for group in file.interactions),
    ):
        for name in names:
            if name not in factors:
                raise unknown(f"factor in {key}", name, factors, source.where(key))
        if len(set(names)) < len(names):
            raise AblateError(f"{source.where(key)}: {key} = {names}: a factor is listed twice")
    if not set(factors) - set(file.within):
        raise AblateError(
            f"{source.where('within')}: every factor is in within, so nothing is left to compare"
        )
    for group in file.interactions:
        if file.design == "grid":
            raise AblateError(
                f"{source.where('interactions')}: a grid varies all factors together; remove"
                " interactions"
            )
        if len(group) < 2 or set(group) & set(file.within):
            location = source.where("interactions")
            raise AblateError(
                f"{location}: {group}: an interaction is two or more factors that are not in within"
            )
    if file.design in PARTWISE:
        for name, levels in factors.items():
            if name not in file.within and len(levels) != 2:
                location = source.where("factors", name)
                raise AblateError(
                    f"{location}: {name} has {len(levels)} levels; under {file.design} there are"
                    " two, with and without"
                )


def _affordable(
    source: Source, file: StudyFile, factors: Factors, seeds: int, tuned: Tune | None
) -> None:
    """Refuse a study by its number of cells and runs, before any of them is built."""
    names = {name: list(levels) for name, levels in factors.items()}
    cells = count(file.design, names, file.within, file.interactions)
    runs, text = cells * seeds, f"{cells:,} cells × {seeds:,} seeds are {cells * seeds:,} runs"
    if tuned:
        groups = min(cells, prod(len(names[factor]) for factor in tuned.per))
        runs += groups * tuned.points * tuned.seeds
        text += f", and {groups:,} groups × {tuned.points} rates × {tuned.seeds:,} seeds to tune"
    if cells > MAX_CELLS or runs > MAX_RUNS:
        limit = f"{MAX_CELLS:,} cells" if cells > MAX_CELLS else f"{MAX_RUNS:,} runs"
        advice = 'use fewer levels or seeds, or design = "one-factor"'
        raise AblateError(f"{source.where('factors')}: {text}; more than {limit}: {advice}")


def _evaluation(source: Source, raw: Mapping[str, Any], images: bool) -> Evaluation:
    raw = dict(raw)
    for key in ("tokens", "final_tokens", "points"):
        if key in raw:
            with located(source, "eval", key):
                raw[key] = number(f"eval.{key}", raw[key])
    keys = [key for key in Evaluation.model_fields if key not in FILLED_IN]
    for key in raw:
        if key not in keys:
            raise unknown("key of [eval]", key, keys, source.where("eval", key))
    evaluation = validated(source, Evaluation, raw, "eval")
    downstream = [name for name, row in metrics.METRICS.items() if row.downstream]
    for name in evaluation.downstream:
        if name not in downstream:
            raise unknown(
                "downstream probe", name, downstream, source.where("eval", "downstream", name)
            )
    if evaluation.probe_csv is not None and images:
        raise AblateError(
            f"{source.where('eval', 'probe_csv')}: probe_csv has texts, and the study reads images,"
            f" which have labels of their own; remove it, and name {LABELLED} in downstream"
        )
    if evaluation.probe_csv is not None:
        evaluation = _probing(evaluation, LABELLED)
    elif LABELLED in evaluation.downstream and not images:
        raise AblateError(f"{source.where('eval', 'downstream', LABELLED)}: {_UNLABELLED}")
    for key, values, low, high in (
        ("lengths", evaluation.lengths, 0, 64),
        ("probe.ratio", evaluation.probe.ratio, 0, 1),
        ("beams", evaluation.beams, 0, WIDEST_BEAM),
    ):
        if (
            not values
            or len(set(values)) < len(values)
            or not all(low < value <= high for value in values)
        ):
            raise AblateError(
                f"{source.where('eval', *key.split('.'))}: eval.{key} = {list(values)!s:.80}:"
                f" different numbers above {low} and up to {high} are wanted"
            )
    return evaluation


_UNLABELLED = (
    f"{LABELLED} needs [eval] probe_csv, a CSV file with the columns text and label, or images"
)


def _probing(evaluation: Evaluation, name: str) -> Evaluation:
    """Return an evaluation that has a downstream probe."""
    names = dict.fromkeys((*evaluation.downstream, name))
    return evaluation.model_copy(update={"downstream": tuple(names)})


def _decided_by(
    source: Source,
    file: StudyFile,
    tune: Tune,
    by_default: tuple[str, str],
    evaluation: Evaluation,
    images: bool,
) -> tuple[Tune, Evaluation]:
    """Return [tune] with the metric that decides, and the evaluation that measures it."""
    name = (file.tune or {}).get("metric")
    if name is None:
        return replace(tune, metric=by_default[0], goal=by_default[1]), evaluation
    if file.command:
        raise AblateError(
            f"{source.where('tune', 'metric')}: tune.metric = {name!r:.80}: runs of a script are"
            " tuned by the study's metric; remove it"
        )
    metric, goal, evaluation = _metric(source, ("tune", "metric"), name, evaluation, images)
    if metric != by_default[0] and tune.seeds < 2:
        raise AblateError(
            f"{source.where('tune', 'seeds')}: tune.seeds = {tune.seeds}: where another metric than"
            " the study's decides, 2 or more are needed, which show its noise"
        )
    return replace(tune, metric=metric, goal=goal), evaluation


def _metric(
    source: Source, path: tuple[str, ...], text: str, evaluation: Evaluation, images: bool
) -> tuple[str, str, Evaluation]:
    """The full name of a metric that a key names, its goal, and the evaluation that measures it."""
    with located(source, *path):
        row, at = metrics.parse(text)
        if row.name in (LABELLED, CHANCE) and evaluation.probe_csv is None and not images:
            raise AblateError(_UNLABELLED)
        if row.downstream:
            evaluation = _probing(evaluation, row.name)
        if not row.at:
            return text, row.goal, evaluation
        key, points = {
            "length factor": ("lengths", evaluation.lengths),
            "probe ratio": ("probe.ratio", evaluation.probe.ratio),
            "width of the beam": ("beams", evaluation.beams),
        }[row.at]
        if at is None and len(points) == 1:
            at = points[0]
        if at not in points:
            names = ", ".join(f"{row.name}@{point:g}" for point in points)
            raise AblateError(
                f"metric {text!r}: [eval] {key} measures {names}; choose one, or extend {key}"
            )
        return f"{row.name}@{at:g}", row.goal, evaluation


def _exclusions(
    source: Source, names: Names, rules: Sequence[Mapping[str, Any]], factors: Factors
) -> tuple[dict[str, str], ...]:
    exclusions = []
    for number_, rule in enumerate(rules):
        if not rule:
            raise AblateError(
                f"{source.where('exclude', number_)}: an empty [[exclude]] would leave out"
                " everything"
            )
        levels = {}
        for name, value in rule.items():
            with located(source, "exclude", number_, name):
                if name not in factors:
                    raise unknown("factor in [[exclude]]", name, factors)
                text = names.level(name, value)
                if text not in factors[name]:  # a path, of which the label has the end
                    of_path = [at for at, own in factors[name].items() if own.get(name) == text]
                    if len(of_path) != 1:
                        raise unknown(f"level of {name} in [[exclude]]", text, factors[name])
                    text = of_path[0]
            levels[name] = text
        exclusions.append(levels)
    return tuple(exclusions)
