"""The command plan: what a study would train, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import complete
from ablate.cli.database import existing_noise
from ablate.cli.flags import option
from ablate.cli.render import Db, console, next_command, table
from ablate.errors import AblateError
from ablate.launch.devices import KINDS
from ablate.units import count, duration, known, memory, plural, power, two_digits

if TYPE_CHECKING:
    from rich.table import Table

    from ablate.launch.devices import Device
    from ablate.plan import Cell, Plan
    from ablate.plan.forecast import Forecast
    from ablate.plan.price import Price
    from ablate.study import Tune

StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study file, its name in studies/, or an example of `ablate studies`.",
        autocompletion=complete.studies,
    ),
]
Size = Annotated[
    str | None,
    option(
        "tiny: the study shrunk to minutes on a CPU.", metavar="tiny", autocompletion=complete.sizes
    ),
]


def open_study(study: str, size: str | None, db: str | None) -> Plan:
    """Return the plan of the study in a file, without decisions.

    Args:
        study: The file, its name in studies/, or that of an example.
        size: "tiny" to shrink the study.
        db: The database.

    Raises:
        AblateError: The size is unknown, or the study has no meaning or was imported.
    """
    from ablate.errors import unknown
    from ablate.plan import plan
    from ablate.plan.tiny import tiny
    from ablate.study import load

    if size not in (None, "tiny"):
        raise unknown("size", size, ["tiny"])
    if _is_imported(study, db) or (opened := load(study)).imported:
        raise AblateError(
            f"study {study} has imported runs, and nothing to train; `ablate import` adds runs,"
            " `ablate report` shows the results"
        )
    return plan(tiny(opened) if size else opened)


def _is_imported(study: str, db: str | None) -> bool:
    """Return whether there is no file of a study, but an imported study of its name."""
    from ablate.cli.database import existing
    from ablate.study import find

    try:
        find(study)
    except AblateError:
        if (database := existing(db)) is None:
            return False
        from ablate import results
        from ablate.store.names import studies

        with database:
            known = study in studies(database)
            return known and results.study(study, database).kind == "imported"
    return False


DevicesPerRun = Annotated[
    str,
    option(
        "On how many GPUs each run trains; by default as the study says, else one.",
        metavar="N|auto",
    ),
]


def with_devices_per_run(plan: Plan, given: str) -> Plan:
    """Return a plan whose runs train on as many devices as a command line says.

    Args:
        plan: The plan.
        given: The number, or "auto"; "" for what the study says.

    Raises:
        AblateError: It is no number of devices.
    """
    from ablate.study.tables import devices_per_run

    if not given:
        return plan
    number = int(given) if given.isdecimal() else given
    wanted = devices_per_run("--devices-per-run", number)
    return replace(plan, study=replace(plan.study, devices_per_run=wanted))


def plan(
    context: typer.Context,
    study: StudyName,
    size: Size = None,
    device: Annotated[
        str | None,
        option(
            "Time every model on a device.",
            metavar="|".join(KINDS),
            autocompletion=complete.devices,
        ),
    ] = None,
    flops: Annotated[
        str | None, option("Estimate times from this speed instead, in FLOP/s: 5e12.", metavar="N")
    ] = None,
    devices_per_run: DevicesPerRun = "",
    db: Db = None,
) -> None:
    """Show what a study would train, what it would cost, and the smallest detectable effect."""
    from ablate.plan.forecast import at_speed
    from ablate.plan.price import price

    if device and flops:
        raise AblateError("give one of --device, which times the models, and --flops")
    opened = with_devices_per_run(open_study(study, size, db), devices_per_run)
    if opened.study.command and (device or flops):
        raise AblateError(
            "--device and --flops time transformers; the time of a script is known once some of"
            " its runs have ended"
        )
    speed = _speed(flops) if flops else None
    elsewhere = _elsewhere(opened)
    planned, done, unkept = _with_decisions(opened, db)
    forecast, slots = None, list["Device"]()
    if device:
        slots = _slots(planned, device)
        forecast = _of_ended(_measure(planned, slots), planned, slots[0].name, db)
    elif speed:
        forecast = at_speed(planned, speed)
    how = _how(forecast, speed)
    out = console()
    out.print(f"{planned.study.name}: {planned.study.question}\n", style="bold", markup=False)
    learnt = _learnt(planned, db)
    out.print(_cells(planned, forecast, learnt))
    cost = price(planned)
    for line in (
        *planned.about,
        *_texts(planned),
        *_comparisons(planned),
        *_labels(planned),
        *_stages(planned, done),
        *_costs(planned, cost, forecast, how),
        *_weights(planned, cost, unkept),
        *_time(planned, done, learnt),
        *together(planned, slots),
        *fit(planned, slots),
        *_slow(planned, forecast),
        *_resolution(planned, cost, db),
        *_curves(planned),
        *_confounds(planned),
        *elsewhere,
        *planned.notes,
        *_edited(planned, study, db),
    ):
        out.print(line, markup=False)
    finished = not planned.later and done >= {one.run.key for one in planned.runs}
    following = ("report", planned.study.name) if finished else ("run", study)
    command = next_command(context, *following)
    if lost := _dropped(planned, db):
        command = f"give the study another name, or {next_command(context, 'run', study)} --replace"
        out.print(
            f"`ablate run` will refuse this file, because the study {planned.study.name} has"
            f" results that it would drop: {lost}",
            markup=False,
        )
    out.print(f"\nNext: {command}", markup=False)


def _elsewhere(plan: Plan) -> list[str]:
    """Return a warning if a script needs a device of a kind that this host lacks: another host may
    run the script.

    Raises:
        AblateError: The host has GPUs, and fewer than a run needs.
    """
    from ablate.launch import packs

    if not plan.study.command:
        return []
    try:
        found = packs.find_devices(plan, "auto")
    except AblateError as error:
        return [f"Warning: `ablate run` refuses this study on this host: {error}"]
    packs.worker_slots(plan, found)
    return []


def _edited(plan: Plan, file: str, db: str | None) -> Iterator[str]:
    """How the study file and its code differ from the study of its name in the database."""
    from ablate.cli.database import existing
    from ablate.cli.stored import keeping, leaving, notes

    if (database := existing(db)) is not None:
        with database:
            yield from notes(plan.study.name, database, file)
            yield from keeping(plan, database)
            if plan.study.command:  # the notes name edited files of `use`
                yield from leaving(plan, database)


def _dropped(plan: Plan, db: str | None) -> str:
    """What results of the study of its name in the database the study file would drop, if any."""
    from ablate.cli.database import existing

    if (database := existing(db)) is None:
        return ""
    from ablate.store.register import would_drop

    with database:
        return would_drop(database, plan)


def _with_decisions(plan: Plan, db: str | None) -> tuple[Plan, frozenset[str], frozenset[str]]:
    """The plan with the decisions in the database; the keys of its runs that are done, and of
    those that are complete but have no weights, though the study keeps them.
    """
    from ablate.cli.database import existing

    if (database := existing(db)) is None:
        return plan, frozenset(), frozenset()
    from ablate import tune
    from ablate.store import register, runs

    with database:
        decided = tune.learn(register.as_measured(database, plan), database).plan
        planned = [one.run for one in decided.runs]
        done = runs.done(database, planned, decided.study.evaluation)
        unkept = done & runs.unkept(database, decided)
        return decided, done - unkept, unkept


def _how(forecast: Forecast | None, speed: float | None) -> str:
    """Say what a forecast is based on."""
    if forecast is None or speed:
        return f"at {power(speed)} FLOP/s" if speed else ""
    of = "workers on" if forecast.device == "cpu" else "devices such as"
    many = f"{forecast.side_by_side} {of} " if forecast.side_by_side > 1 else ""
    start = f", after about {duration(forecast.start)} of start-up" if forecast.start else ""
    gains = "compiling and further devices save" if "," in forecast.device else "compiling saves"
    estimate = f", with an estimate of what {gains}" if forecast.estimated else ""
    ended = f"; fine-tuned runs of {len(forecast.ended)} cells as those that have ended"
    return f"on {many}{forecast.device}, as timed now{estimate}{start}" + ended * bool(
        forecast.ended
    )


def _speed(text: str) -> float:
    from ablate.study.values import number

    speed = float(number("--flops", text))
    if speed <= 0:
        raise AblateError(f"--flops = {text}: give a speed above 0")
    return speed


def _slots(plan: Plan, kind: str) -> list[Device]:
    """Return what the workers of a plan would have."""
    from ablate.launch import devices, packs

    return packs.worker_slots(plan, devices.find(kind))


def _measure(plan: Plan, slots: Sequence[Device]) -> Forecast:
    """Train every shape for a moment; nothing else in this command imports torch."""
    from ablate.cli.consoles import Console
    from ablate.launch import forecast

    doing = f"timing {len(plan.cells)} models on {slots[0].name}"
    with Console(stderr=True).status(doing) as status:
        return forecast.measure(plan, slots, lambda done: status.update(f"{doing}: {done} done"))


def _of_ended(forecast: Forecast, plan: Plan, device: str, db: str | None) -> Forecast:
    """The forecast with the times of fine-tuned runs that have ended on such a device."""
    from statistics import fmean

    from ablate.cli.database import existing
    from ablate.launch.trainer import device_name
    from ablate.store.status import task_seconds

    if not plan.study.finetunes or (database := existing(db)) is None:
        return forecast
    with database:
        known = task_seconds(database, device_name(device))
    found: dict[str, list[float]] = {}
    for one in (*plan.runs, *plan.later):
        if one.run.key in known:
            found.setdefault(one.cell, []).append(known[one.run.key])
    return replace(forecast, ended={cell: fmean(seconds) for cell, seconds in found.items()})


def _learnt(plan: Plan, db: str | None) -> dict[str, float]:
    """Cell → seconds of a run, from complete runs of a script; {} for other kinds."""
    from ablate.cli.database import existing

    if not plan.study.command or (database := existing(db)) is None:
        return {}
    from ablate.store.status import seconds_by_cell

    with database:
        return seconds_by_cell(database, plan.study.name)


def _time(plan: Plan, done: frozenset[str], learnt: dict[str, float]) -> Iterator[str]:
    """How long the runs take that are still to come; a cell without a run takes the mean time."""
    from statistics import fmean

    from ablate.launch import packs

    if not plan.study.command:
        return
    if not learnt:
        yield "How long a run takes is known once one has ended"
        return
    runs = {one.run.key: one.cell for one in (*plan.runs, *plan.later)}
    left = [cell for key, cell in runs.items() if key not in done]
    seconds = sum(learnt.get(cell, fmean(learnt.values())) for cell in left)
    try:
        n = len(packs.worker_slots(plan, packs.find_devices(plan, "auto")))
    except AblateError:  # the GPUs are on another host
        n = 1
    each = f", {n} at a time on this host" if n > 1 else ""
    yield (
        f"Left: {len(left)} runs, about {duration(seconds / n)}{each}, by the runs that have ended"
        if left
        else "Left: no run"
    )


def _cells(
    plan: Plan, forecast: Forecast | None, learnt: Mapping[str, float] | None = None
) -> Table:
    """A row a cell; what is unknown of every cell has no column.

    Args:
        plan: The plan.
        forecast: The speed of its cells, if it is known.
        learnt: Cell → seconds of a run, from runs that have ended.
    """
    rows = [*_pretrained(plan), *((cell.label, cell) for cell in plan.cells)]
    cells = [cell for _, cell in rows]
    costs = [cell.cost for cell in cells]
    written: dict[str, list[str | None]] = {
        "parameters": [_number(cost.params, "{:,}".format) for cost in costs],
        "body": [_number(cost.params_body, "{:,}".format) for cost in costs],
        "tokens": [_number(cost.tokens, count) for cost in costs],
        "steps": [_number(cost.steps, "{:,}".format) for cost in costs],
        "epochs": ["" if cell.run.kind == "finetune" else _epochs(cell) for cell in cells],
        "FLOPs": [_number(cost.flops, power) for cost in costs],
        "memory": [_number(cost.bytes, memory) for cost in costs],
    }
    columns = {"cell": [name for name, _ in rows]} | {
        heading: ["unknown" if one is None else one for one in column]
        for heading, column in written.items()
        if set(column) != {None}
    }
    if forecast:
        columns["tokens/s"] = [count(forecast.speed(cell)) for cell in cells]
        columns["time a run"] = [
            duration(forecast.seconds(cell, plan.study.evaluation)) for cell in cells
        ]
    if learnt:
        columns["time a run"] = [
            duration(learnt[cell.label]) if cell.label in learnt else "" for cell in plan.cells
        ]
    return table(
        list(columns),
        zip(*columns.values(), strict=True),
        right=list(columns)[1:],
        spare=("epochs", "body", "steps", "memory", "tokens/s", "FLOPs"),
    )


def _pretrained(plan: Plan) -> list[tuple[str, Cell]]:
    """The pre-trained runs that cells start from, each once, with what a reader calls them."""
    from ablate.plan.model import before

    found: dict[str, Cell] = {}
    for cell in plan.cells:
        if first := before(cell):
            found.setdefault(first.run.key, first)
    several = len(found) > 1
    return [
        (f"pre-training of {cell.label}" if several else "pre-training", cell)
        for cell in found.values()
    ]


def _epochs(cell: Cell) -> str | None:
    """Passes over the text; marked where its tokens are not counted yet."""
    written = _number(cell.epochs, two_digits)
    return f"≈ {written}" if written and cell.estimated else written


def _number(value: float | None, write: Callable[[float], str]) -> str | None:
    return None if value is None else write(value)


def _comparisons(plan: Plan) -> Iterator[str]:
    """Strata, baselines, families, and the matched quantity."""
    from ablate.plan.cells import BASELINE
    from ablate.plan.match import mismatch

    baselines = list(dict.fromkeys(contrast.baseline for contrast in plan.contrasts))
    families = {contrast.family for contrast in plan.contrasts}
    where = (
        f"{len(baselines)} strata by {', '.join(plan.study.within)}; baselines"
        if plan.study.within
        else "Baseline"
    )
    cell = next(cell for cell in plan.cells if cell.label == baselines[0])
    own = (
        f"{name}={level}" for name, level in cell.levels.items() if name not in plan.study.within
    )
    # the label of a cell of a grid has its levels
    named = f" ({', '.join(own)})" if cell.label.endswith(BASELINE) else ""
    yield f"{where}: {'; '.join(baselines)}{named}"
    grouped = f"{len(families)} {'family' if len(families) == 1 else 'families'}"
    better = "lower" if plan.study.goal == "min" else "higher"
    compared = plural(len(plan.contrasts), "contrast")
    yield f"{compared} in {grouped} on {plan.study.metric} ({better} is better), paired by seed"
    if match := plan.study.match:
        configs = {cell.label: cell.config for cell in plan.cells}
        worst = max(
            abs(mismatch(configs[c.cell], configs[c.baseline], match.quantity))
            for c in plan.contrasts
        )
        what = {"flops": "FLOPs", "body": "body parameters", "total": "parameters"}[match.quantity]
        yield f"Matched: {what} by {match.by}, within {worst:.2%} of the baseline"
    if plan.excluded:
        yield f"Left out: {'; '.join(plan.excluded)}"
    yield from too_long(plan)


def too_long(plan: Plan) -> Iterator[str]:
    """Yield a line on the cells that max_epochs leaves out, by strata if there are any."""
    if plan.too_long:
        left_out = list(dict.fromkeys(cell.stratum or cell.label for cell in plan.too_long))
        yield (
            f"Left out: {len(plan.too_long)} of {len(plan.too_long) + len(plan.cells)} cells, which"
            f" would read their text more than max_epochs = {plan.study.max_epochs:g} times:"
            f" {'; '.join(left_out)}"
        )


def _texts(plan: Plan) -> Iterator[str]:
    """Yield lines on the parts of each corpus, its tokens, and what speaks against them."""
    from ablate import text
    from ablate.text import describe, frequencies

    asked = "tokens" in plan.study.evaluation.model_fields_set  # then a note says it
    scored = 0 if asked else plan.study.evaluation.tokens
    for location in dict.fromkeys(one.corpus.location for one in plan.texts):
        first, *_ = of_corpus = [one for one in plan.texts if one.corpus.location == location]
        found = describe.describe(first.corpus)
        yield from describe.lines(first.corpus, found)
        for one in of_corpus:
            if text.counted(one.corpus, one.tokenizer):
                yield frequencies.line(one.tokenizer, text.of(one.corpus, one.tokenizer))
            else:
                yield f"Tokens: {one.tokenizer.name}; `ablate data` trains it and counts them"
        for warning in describe.warnings(first.corpus, found, first.held_out_tokens, scored):
            yield f"Warning: {warning}"


def _labels(plan: Plan) -> Iterator[str]:
    """How many texts of each label the study's own linear probe has."""
    from ablate.plan.probes import texts
    from ablate.text.labels import as_read, few_held_out
    from ablate.units import listed

    if found := texts(plan):
        each = (
            f"{name} {fitted:,} + {tested:,}"
            for name, tested, fitted in zip(found.names, *found.counts.tolist(), strict=True)
        )
        yield (
            f"label_accuracy: {len(found.texts):,} texts of {plan.study.evaluation.probe_csv},"
            f" fitted + tested: {listed(each)}; chance {found.chance:.1%}" + as_read(found.mended)
        )
        if n := found.n_contradictory:
            yield (
                f"Warning: texts with more than one label in {plan.study.evaluation.probe_csv}:"
                f" {n:,}; no probe can predict all their labels"
            )
        if few := few_held_out(int(found.counts[0].sum())):
            yield f"Warning: {plan.study.evaluation.probe_csv}: {few}"


def _stages(plan: Plan, done: frozenset[str]) -> Iterator[str]:
    """Yield lines on the decisions of the study, those already made, and the next runs."""
    tune, two_stage = plan.study.tune, plan.study.two_stage
    if tune:
        tuned = [label for group in plan.groups for label in group.cells]
        if len(plan.groups) > 1:
            number = f"{len(plan.groups)} groups of cells"
        elif len(tuned) < len(plan.cells):  # the others have no such field
            number = tuned[0] if len(tuned) == 1 else f"{len(tuned)} cells together"
        else:
            number = "all cells together"
        ran = ""
        if len(plan.groups) == 1 < len(tuned):
            ran = f", by runs of {plan.groups[0].representative}"
        elif len(plan.groups) < len(tuned):
            ran = ", each by runs of its first cell, whose"
            ran += f" {'rate' if tune.field == 'lr' else 'value'} the others use"
        each = f" with {tune.seeds} seeds each" if tune.seeds > 1 else ""
        rates = "rates" if tune.field == "lr" else "values"
        named = "Learning rates" if tune.field == "lr" else f"Values of {tune.field}"
        by = f" by {tune.metric}" if tune.metric != plan.study.metric else ""
        yield (
            f"{named} will be tuned{by} for {number}{ran}, on seeds that are not compared:"
            f" first {tune.points} {rates} from {tune.low:g} to {tune.high:g}{each}{_grows(tune)},"
            " then two around the best, and two more beside a cliff"
        )
        fields = {cell.label: cell.run.fields for cell in plan.cells}
        for group in plan.groups:
            if group not in plan.undecided:
                yield f"  {group.label}: {fields[group.representative][tune.field]:g}"
    if two_stage:
        yield (
            f"Seeds: a pilot of {len(plan.study.seeds)}; then each stratum gets as many as its 95%"
            f" intervals need to be within ±{two_stage.resolution:g}, at most {two_stage.most}"
        )
    if tune or two_stage:
        missing = {
            role: len({one.run.key for one in plan.runs if one.role == role} - done)
            for role in ("pretrain", "tune", "compare")
        }
        what = [f"{number} runs to {role}" for role, number in missing.items() if number]
        chosen = "rates" if tune is None or tune.field == "lr" else "values"
        then = f", then runs at the chosen {chosen}" if plan.undecided else ""
        yield f"Next stage: {' and '.join(what) or 'nothing to train'}{then}"
    elif done:
        yield f"Done: {len(done)} of {len({one.run.key for one in plan.runs})} runs"


def _grows(tune: Tune) -> str:
    """Say how far a search may leave the range."""
    steps = [f"{tune.down} below it", f"{tune.up} above it"]
    ends = [text for text, count in zip(steps, (tune.down, tune.up), strict=True) if count]
    if not ends:
        return ""
    return (
        f", further steps while the best is at an end of the range (at most {' and '.join(ends)})"
    )


def _costs(plan: Plan, price: Price, forecast: Forecast | None, how: str) -> Iterator[str]:
    planned = (*plan.runs, *plan.later)
    compared = sum(run.role == "compare" for run in planned)
    pretrained = sum(run.role == "pretrain" for run in planned)
    shared = len(planned) - pretrained - (price.runs - price.pretraining)
    each = (
        f"{len(plan.cells)} cells × {plural(price.pairs, 'seed')} = "
        if compared == len(plan.cells) * price.pairs
        else ""
    )
    tuning = f" and {price.tuning} tuning runs" if price.tuning else ""
    if price.pretraining:
        tuning += f", from {price.pretraining} pre-trained runs"
    same = f" ({price.runs} to train: {shared} are duplicates)" if shared else ""
    if price.unknown == price.runs:
        yield f"In all: {each}{compared} runs{tuning}{same}"
        return
    size = f"{known(price.tokens, count)} tokens, {known(price.flops, power)} FLOPs"
    left_out = f" (without {price.unknown} runs of unknown cost)" if price.unknown else ""
    time = ". To estimate the time, add --device auto"
    if forecast:
        about = "about " if forecast.estimated else ""
        time = f", {about}{duration(forecast.total(plan))} {how}"
    # On a GPU a line of its own says in which parts a batch is trained.
    on_gpu = forecast is not None and forecast.device.startswith("cuda")
    most = "" if on_gpu else f", at most {known(price.memory, memory)} per run"
    yield f"In all: {each}{compared} runs{tuning}{same}, {size}{most}{left_out}{time}"


def _weights(plan: Plan, cost: Price, unkept: frozenset[str]) -> Iterator[str]:
    """Yield the size of the kept weights, and how many runs are trained again to get weights."""
    n, size = cost.weights
    if n:
        best = plan.study.keep == "best"
        which = (
            "those of the lowest held-out loss, which is too optimistic"
            if best
            else "those at the end"
        )
        yield f"Weights of {n:,} runs are kept, {which}: {memory(size)} in all"
    if unkept:
        from ablate.store.runs import without_weights

        yield without_weights(unkept)


def together(plan: Plan, slots: Sequence[Device]) -> Iterator[str]:
    """Yield on how many devices each run trains, if on several.

    Args:
        plan: The plan.
        slots: What its workers have; empty if that is not known.
    """
    wanted = plan.study.devices_per_run
    if slots and (n := slots[0].count) > 1:
        several = f", and {len(slots)} runs at a time" if len(slots) > 1 else ""
        yield f"Each run trains on {n} devices, which share the sequences of its batches{several}"
    elif not slots and wanted == "auto":
        yield "How many GPUs a run trains on depends on the host (devices_per_run = auto)"
    elif not slots and wanted != 1:
        yield f"Each run trains on {wanted} devices, which share the sequences of its batches"


def fit(plan: Plan, slots: Sequence[Device]) -> Iterator[str]:
    """Yield how the cells fit into the memory of a GPU, or that they may not.

    Args:
        plan: The plan.
        slots: What its workers would have.
    """
    from ablate import sizes
    from ablate.launch import devices, packs
    from ablate.launch.devices import MEMORY_SHARE
    from ablate.units import listed

    if not slots or not slots[0].name.startswith("cuda"):
        return
    device = slots[0]
    alike: dict[tuple[str, str], list[str]] = {}
    for cell in plan.cells:
        size, config = packs.size(cell.run, device, oom_level=0), cell.config
        needed, whole = sizes.memory_bytes(config, *size), sizes.memory_bytes(config)
        how = f"{min(size.runs, len(plan.study.seeds))} runs at a time" if size.runs > 1 else ""
        rows = -(-sizes.batch(config) // device.count)
        if size.micro_batch and (size.micro_batch < rows or size.recompute):
            how = (
                f"in micro-batches of {size.micro_batch} of {rows} sequences"
                f"{', with blocks computed again in the backward pass' if size.recompute else ''}"
                f" (a whole batch needs {known(whole, memory)})"
            )
        elif size.runs > 1:
            needed = sizes.memory_bytes(config, min(size.runs, len(plan.study.seeds)))
        room = ", which may not fit" if (needed or 0) > MEMORY_SHARE * device.memory else ""
        needs = f"{known(needed, memory)}{room}"
        alike.setdefault((how or "one run at a time", needs), []).append(cell.label)
    for (how, needs), cells in alike.items():
        who = listed(cells, most=3) if len(alike) > 1 else "each cell"
        yield (
            f"Memory on {device.name} ({memory(device.memory)} for a worker): {who} trains {how},"
            f" in about {needs}"
        )
    largest = max(packs.needed(cell.run, device) or 0 for cell in plan.cells)
    shapes = {cell.run.pack_key for cell in plan.cells}
    alone = sum(slot.name == device.name for slot in slots) == 1
    if alone and len(shapes) > 1 and devices.room(device, largest) < 2:
        yield (
            f"Each model is set up only after the one before it has ended: two of {memory(largest)}"
            f" do not fit into {device.name}"
        )


def _slow(plan: Plan, forecast: Forecast | None) -> Iterator[str]:
    for cell, baseline, share in forecast.slow(plan) if forecast else ():
        yield f"Slow: {cell} trains at {share:.2f} times the speed of {baseline}"


def _resolution(plan: Plan, price: Price, db: str | None) -> Iterator[str]:
    """The smallest effect that the seeds can detect."""
    from ablate import metrics, stats

    pairs, crossed = price.pairs, plan.study.crossed
    if not any(cell.seeded for cell in plan.cells):
        yield (
            "No smallest effect: differences are exact on this held-out text, because nothing is"
            " trained or drawn. The report's intervals are for new text, and more seeds do not"
            " narrow them; more [eval] final_tokens do"
        )
        return
    if crossed:
        pairs = min(crossed.init, crossed.data)
    if price.pairs < 2:
        yield (
            "With one seed no effect is detectable, because the noise is unknown; give seeds = 5"
            " or more"
        )
        return
    single, corrected = (
        stats.resolvable(pairs),
        stats.resolvable(pairs, alpha=0.05 / max(1, price.largest_family)),
    )
    noise = existing_noise(plan, db)
    unit = "" if plan.study.command else metrics.unit(plan.study.metric)

    def amount(effect: float, counted: str = "") -> str:
        size = f"{two_digits(effect * noise.sd)} {unit}".strip() if noise else ""
        return f"{two_digits(effect)}{counted}" + (f" ({size})" if size else "")

    yield (
        (
            f"{crossed.init} × {crossed.data} crossed seeds, where one of the two is all of the"
            " noise, detect an effect of"
            if crossed
            else f"{pairs} seeds detect an effect of"
        )
        + f" {amount(single, ' standard deviations of the paired difference')} at 80% power"
        + (
            f", {amount(corrected)} after correction for {price.largest_family} contrasts"
            if price.largest_family > 1
            else ""
        )
        + (f" (noise: {noise.source})" if noise else "")
    )


def _curves(plan: Plan) -> list[str]:
    """Whether the grid is enough for the scaling curves of [fit]."""
    if plan.study.fit is None:
        return []
    from ablate.scaling.planned import predict

    return predict(plan)


def _confounds(plan: Plan) -> Iterator[str]:
    if plan.confounds:
        yield "Confounds:"
    for confound in plan.confounds:
        yield f"  {confound.cell}: {confound.text}" if confound.cell else f"  {confound.text}"
