"""Commands around a run: run, status, cancel."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.cli.output import Dispensable
from ablate.cli.planning import (
    DevicesPerRun,
    Size,
    StudyName,
    open_study,
    together,
    too_long,
    with_devices_per_run,
)
from ablate.cli.render import Db, console, next_command, table
from ablate.errors import AblateError, unknown
from ablate.launch.devices import KINDS
from ablate.units import count, duration, number, plural

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from ablate.launch.executor import Executor
    from ablate.launch.local import LocalExecutor
    from ablate.launch.ray import RayExecutor
    from ablate.launch.slurm import SlurmExecutor
    from ablate.plan import Plan
    from ablate.store import Database
    from ablate.store.status import Working

WATCH_SECONDS = 2.0
QUEUED = 5  # runs in a queue that `status` lists; more are a count
PLACES = ("local", "slurm", "ray")


def run(
    context: typer.Context,
    study: StudyName,
    size: Size = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="|".join(KINDS), help="Where to train.", autocompletion=complete.devices
        ),
    ] = "auto",
    gpu_numbers: Annotated[
        str, option("Which GPUs, by number; all by default.", "--devices", metavar="0,2,…")
    ] = "",
    on: Annotated[
        str,
        option(
            "Where runs train: on this host, in Slurm jobs, or on a Ray cluster.",
            metavar="|".join(PLACES),
        ),
    ] = "local",
    slurm: Annotated[
        list[str] | None,
        option(
            "An option of sbatch, or a key of the table slurm of a study; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    address: Annotated[
        str, option("The Ray cluster; by default what the study says.", metavar="auto|HOST:PORT")
    ] = "",
    devices_per_run: DevicesPerRun = "",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Take the place of a study of the same name that has other results."
        ),
    ] = False,
    board: Annotated[
        bool,
        typer.Option(
            "--board", help="Show the study on a page while it trains; see `ablate board`."
        ),
    ] = False,
    db: Db = None,
) -> None:
    """Train the unfinished runs of a study and compute its effects. Ctrl-C stops it; run it
    again to resume.
    """
    from ablate import store
    from ablate.cli.stored import keeping, leaving
    from ablate.plan.commands import edited
    from ablate.store.database import folder
    from ablate.store.register import would_drop
    from ablate.store.status import ACCEPTED, UNFINISHED, first_failed
    from ablate.study_run import run_study

    if on not in PLACES:
        raise unknown("place for --on", on, PLACES)
    if slurm and on != "slurm":
        raise AblateError(f"--slurm {slurm[0]} has no effect without --on slurm")
    if address and on != "ray":
        raise AblateError(f"--address {address} has no effect without --on ray")
    plan = with_devices_per_run(open_study(study, size, db), devices_per_run)
    # Refuses a device that does not exist before a database is made.
    numbers = gpus(gpu_numbers)
    if numbers and on != "local":
        raise AblateError("--devices selects GPUs of this host; it has no effect with --on " + on)
    executor: Executor
    if on == "slurm":
        executor = _slurm(plan, device, study, slurm or (), db)
    elif on == "ray":
        executor = _ray(plan, device, address, db)
    else:
        executor = _local(plan, device, numbers)
    out = console(cast(IO[str], Dispensable(sys.stdout)))
    with store.open(db, create=True) as database:
        slots = [slot.device for slot in executor.capacity()]
        stored = (*leaving(plan, database), *keeping(plan, database))
        for note in (*database.notes, *stored, *too_long(plan), *together(plan, slots)):
            out.print(note, markup=False)
        if not slots:
            out.print("No node of the Ray cluster has room yet; runs begin when one has")
        if on == "local" and folder(database.path, "slurm").exists():
            from ablate.launch.slurm import left

            if waits := left(database, plan.study.name):
                out.print(f"{plan.study.name}: {waits}", markup=False, soft_wrap=True)
        if replace and (lost := would_drop(database, plan)):
            out.print(f"{plan.study.name}: no longer part of it: {lost}", markup=False)
        with _board(database, plan.study.name, out) if board else contextlib.nullcontext():
            outcome = run_study(
                plan, database, executor, fail_fast=fail_fast, replace=replace, console=out
            )
            from ablate.analysis import analyse

            analyse(database, plan.study.name)
        failed = first_failed(database, plan.study.name)
    unfinished = outcome.exit_code >= 128 or outcome.counts.keys() & {*UNFINISHED}
    following = ("run", study) if unfinished else ("report", plan.study.name)
    if failed and outcome.exit_code < 128:
        if outcome.counts.keys() & {*ACCEPTED}:
            why = next_command(context, "show", str(failed))
            out.print(f"Run {failed} failed: {why} shows the error", markup=False)
        else:  # nothing to report: why it failed comes first
            following = ("show", str(failed))
    if outcome.exit_code == 1 and edited(plan):  # what failed is planned anew
        following = ("run", study)
    out.print(f"Next: {next_command(context, *following)}", markup=False)
    raise typer.Exit(outcome.exit_code)


@contextlib.contextmanager
def _board(database: Database, study: str, out: Console) -> Iterator[None]:
    """Serve a board until the end of the block, and print its address."""
    from ablate.board.beside import beside

    with beside(database.path.absolute(), study) as address:
        out.print(f"Board: {address}", markup=False, soft_wrap=True)
        yield


def _local(plan: Plan, device: str, numbers: Sequence[int]) -> LocalExecutor:
    """Return the executor of this host."""
    from ablate.launch import packs
    from ablate.launch.local import LocalExecutor

    slots = packs.worker_slots(plan, packs.find_devices(plan, device, numbers))
    executor = LocalExecutor(slots)
    threading.Thread(target=_preload, args=(executor, plan), daemon=True).start()
    return executor


def _slurm(
    plan: Plan, device: str, study: str, words: Sequence[str], db: str | None
) -> SlurmExecutor:
    """Return the executor of a Slurm cluster."""
    from ablate.launch.slurm import SlurmExecutor, request
    from ablate.store.location import locate
    from ablate.study.slurm import changed

    settings = changed(plan.study.slurm, words)
    return SlurmExecutor(locate(db), request(plan, settings, device, study))


def _ray(plan: Plan, device: str, address: str, db: str | None) -> RayExecutor:
    """Return the executor of a Ray cluster."""
    from ablate.launch import ray
    from ablate.store.location import locate

    settings = plan.study.ray
    ray.connect(address or settings.address)
    return ray.RayExecutor(locate(db), ray.request(plan, settings, device, ray.nodes()))


def cancel(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study: its name or its file.")],
    db: Db = None,
) -> None:
    """End the Slurm jobs of a study. The next `ablate run` continues from its checkpoints."""
    from ablate import store
    from ablate.cli.stored import name_of
    from ablate.launch import slurm
    from ablate.store.names import require_study

    with store.open(db, create=True) as database:
        name = name_of(study, database)
        require_study(database, name)
        slurm.cancel(database, name)
    console().print(f"{name}: its Slurm jobs have ended; `ablate run` continues it", markup=False)


def _preload(executor: LocalExecutor, plan: Plan) -> None:
    """Import the modules that decide and analyse, while the first worker starts.

    It takes a second, many from a cold disk, and is needed only when runs have ended. An import
    that fails here fails again, visibly, where it is used.
    """
    executor.started.wait()
    import ablate.analysis  # noqa: F401

    if plan.study.tune:
        import optuna  # noqa: F401


def gpus(numbers: str) -> list[int]:
    """Return the numbers of a list such as "0,2"."""
    try:
        return [int(number) for number in numbers.split(",") if numbers]
    except ValueError:
        raise AblateError(f"devices = {numbers!r}: give numbers of GPUs, such as 0,2") from None


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="One study, cell by cell: its name or its file.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")
    ] = False,
    db: Db = None,
) -> None:
    """Show how far studies are: runs by status, and what is running now."""
    from ablate import store

    with store.open(db) as database:
        if not watch:
            console().print(_status(database, study))
            return
        from rich.live import Live

        with (
            Live(_status(database, study), console=console(), auto_refresh=False) as live,
            contextlib.suppress(KeyboardInterrupt),
        ):
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_status(database, study), refresh=True)


def _status(database: Database, study: str | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from ablate.cli.stored import name_of, notes
    from ablate.launch import slurm
    from ablate.store.names import require_study
    from ablate.store.status import alike, counts_by_cell, studies

    file = study or ""
    study = study and name_of(study, database)
    found = studies(database, study)
    if study is not None:
        require_study(database, study)
    lines = {one.name: one.survey.counts for one in found}
    left = [duration(one.seconds_left) if one.seconds_left else "" for one in found]
    parts: list[RenderableType] = [_counts("study", lines, left)]
    if study is not None:
        parts.append(_counts("cell", counts_by_cell(database, study)))
    working = [(run, one.places) for one in found for run in one.working]
    in_queue = [each for each in working if each[0].waits]
    if working:
        begun = [each for each in working if not each[0].waits]
        parts.append(_working([*begun, *in_queue[:QUEUED]]))
    if further := in_queue[QUEUED:]:
        parts.append(Text(f"{plural(len(further), 'further run')} in a queue"))
    parts += [Text(f"{one.name}: {sentence}") for one in found for sentence in one.waiting]
    parts += [
        Text(f"{one.name}: {sentence}")
        for one in found
        if (sentence := slurm.left(database, one.name))
    ]
    parts += [Text(note) for one in found for note in notes(one.name, database, file)]
    parts += [
        Text(f"Warning: {one.name}: {sentence}")
        for one in found
        for sentence in alike(database, one.name)
    ]
    return Group(*parts)


def _counts(heading: str, lines: dict[str, dict[str, int]], left: Sequence[str] = ()) -> Table:
    """One line per study or cell: the number of its runs with each status, and the remaining
    time.
    """
    from ablate.store.records import SHOWN_STATUS

    shown = [state for state in SHOWN_STATUS if any(state in counts for counts in lines.values())]
    more = ["left"] if any(left) else []
    rows = [
        [
            name,
            str(sum(counts.values())),
            *(str(counts.get(state, "")) for state in shown),
            *left[n : n + len(more)],
        ]
        for n, (name, counts) in enumerate(lines.items())
    ]
    return table([heading, "runs", *shown, *more], rows, right=["runs", *shown, "left"])


def _working(runs: Sequence[tuple[Working, int]]) -> Table:
    """One line per running run, given with the decimals of its loss."""
    headings = ["running", "cell", "seed", "device", "step", "loss", "tokens/s", "left"]
    silent = any(run.silence is not None for run, _ in runs)
    rows = [
        [
            str(run.run),
            f"{run.cell}, {run.tried}" if run.tried else run.cell,
            str(run.seed),
            run.where,
            f"{run.step:,}" + (f"/{run.steps:,}" if run.steps else ""),
            "" if run.loss is None else number(run.loss, places),
            "" if run.tokens_per_second is None else count(run.tokens_per_second),
            "" if run.seconds_left is None else duration(run.seconds_left),
            *(["" if run.silence is None else duration(run.silence)] if silent else []),
        ]
        for run, places in runs
    ]
    headings += ["silent for"] if silent else []
    return table(headings, rows, right=["running", "seed", "step", "loss", "tokens/s", "left"])
