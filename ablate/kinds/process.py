"""A training script as a process: its environment, its numbers, its log, and how it ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate import snapshot
from ablate.kinds import CHECKPOINTS, Context, Emit, Job, Run
from ablate.kinds.words import words_of
from ablate.logged import FILE
from ablate.readings import Curves, Files, Lines, Reading
from ablate.study.command import REVISION, SECONDS, best, of_script
from ablate.units import listed

STOP = 6.0  # seconds in which a script must end after SIGTERM; its worker has 8
TOLD = 1.0  # seconds in which its worker learns of a SIGTERM that has ended the script
HANDLED = 0.2  # the same, if the script may have ended for it with an exit code of its own
LOOK = 0.2  # seconds between two looks at the process
READ = 1.0  # seconds between two readings of its files, and two reports
KEPT = 20  # last lines of output that explain a failure
LONGEST = 1 << 16  # bytes of a line
LOOKED = 64  # times so many bytes are taken of a pipe in one look
NO_MEMORY = (
    *("out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory"),
    *("memoryerror", "alloc_failed"),
)
KILLED = 128 + signal.SIGKILL  # exit code of a shell whose command the kernel killed
OWN_METRICS = "ablate.jsonl"  # what `ablate.log` writes
STATE = ".ablate.json"  # what the next attempt of a run must know


@dataclass(frozen=True)
class Settings:
    """What a study says of a command besides the fields of its runs.

    Attributes:
        folder: Where the command runs.
        code: What belongs to its identity.
        metrics: Files, or globs, in a run's folder that hold numbers.
        patterns: Regular expressions for lines that it prints.
        metric: The name of the number that decides.
        goal: "min" or "max".
        at: Step whose value is a final of its own; None for none.
        limit: Seconds that a run may take, None for any number.
    """

    folder: str
    code: tuple[str, ...]
    metrics: tuple[str, ...]
    patterns: tuple[str, ...]
    metric: str
    goal: str
    at: float | None = None
    limit: float | None = None


class Ended(Exception):
    """A run that ended without a result, and why; `status` as in the event `end`."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


def train(job: Job, context: Context) -> None:
    """Run the script of a job and report what it says; see `ablate.kinds.Kind.train`.

    The run's folder is emptied first, unless an earlier attempt left checkpoints in it.
    """
    assert job.folder and job.log and len(job.runs) == 1
    run, emit, settings = job.runs[0], context.emit[0], Settings(**job.settings)
    out = job.folder.absolute()  # the script has another working directory
    checkpoints = out / CHECKPOINTS
    resumed = checkpoints.is_dir() and any(checkpoints.iterdir())
    if not resumed:
        shutil.rmtree(out, ignore_errors=True)
    checkpoints.mkdir(parents=True, exist_ok=True)
    curves, before = Curves(), _state(out) if resumed else {}
    curves.last = int(before.get("step", 0))
    begun = time.monotonic()
    status, error, back, matched = "complete", None, None, False
    with contextlib.ExitStack() as stack:
        try:
            folder, taken = stack.enter_context(_code(run, settings, job, out))
            emit(
                "start",
                step=curves.last,
                compile_mode=None,
                commit=taken.commit or None,
                dirty=bool(taken.changed) if taken.commit else None,
            )
            words = words_of(run, str(out), str(checkpoints))
            environment = _environment(run, context.device, out, checkpoints)
            with job.log.open("ab") as log:
                log.write(f"$ {shlex.join(words)}\n".encode(errors="replace"))
                log.flush()
                script = Script(words, folder, environment, log.fileno())
                stack.callback(script.close)
                lines = Lines(settings.patterns), Lines(settings.patterns)  # of its two streams
                files = Files(out, (OWN_METRICS, *settings.metrics))
                try:
                    _follow(script, lines, files, settings, curves, emit, context, begun)
                finally:
                    # files of a run that continues have the steps of the attempt before it
                    sources = lines if resumed else (*lines, files)
                    back = next((one.back for one in sources if one.back), None)
                    matched = any(one.matched for one in lines)
        except Ended as end:
            status, error = end.status, str(end) or None
        _report(curves, emit)
    with job.log.open("a") as log:
        for name in _taken(settings):
            if of_script(name) in curves.points:
                log.write(f"ablate: {name} of this output is kept as {of_script(name)!r}\n")
    seconds = time.monotonic() - begun
    spent = seconds + float(before.get("seconds", 0.0))  # by all attempts that this one continued
    finals = _finals(settings, curves, before)
    if status == "complete" and (missing := _unreported(settings, curves, finals)):
        silent = "" if curves.points else _silent(settings, out, matched)
        status, error = "failed", missing + silent
    if status == "diverged":  # it has no value at an earlier step either
        of_metric = (settings.metric, best(settings.metric))
        finals = [one for one in finals if one[0] not in of_metric]
        finals.append((settings.metric, 0.0, math.nan))
    if status in ("complete", "diverged"):
        emit("final", values=[*finals, (SECONDS, 0.0, spent)])
        shutil.rmtree(checkpoints, ignore_errors=True)
        (out / STATE).unlink(missing_ok=True)
    else:
        _keep_state(out, settings, curves, before, spent)
    lost = curves.first_lost(settings.metric)
    last = lost if status == "diverged" and lost is not None else curves.last
    note = f"steps of its script went back, first from {back[0]} to {back[1]}" if back else None
    emit("end", status=status, step=last, error=error, device_seconds=seconds, note=note)


def _follow(
    script: Script,
    lines: tuple[Lines, Lines],
    files: Files,
    settings: Settings,
    curves: Curves,
    emit: Emit,
    context: Context,
    begun: float,
) -> None:
    """Read what a script reports until it ends.

    Raises:
        Ended: It ended without a result.
    """
    due, taken = 0.0, _taken(settings)

    def add(reading: Reading, source: object) -> None:
        # a script that diverged may say more before it is stopped, depending on its speed
        if curves.first_lost(settings.metric) is None:
            values = reading.values
            if not values.keys().isdisjoint(taken):
                values = {of_script(k) if k in taken else k: one for k, one in values.items()}
            curves.add(Reading(reading.step, values), source)

    while True:
        ended = script.ended(LOOK)
        for stream, line in script.lines():
            if reading := lines[stream].read(line):
                add(reading, stream)
        if ended or time.monotonic() >= due:
            # what a script that was killed has written may end in the middle of a number
            for path, readings in files.changed(ended=ended and not script.code):
                for reading in readings:
                    add(reading, path)
            _report(curves, emit)
            due = time.monotonic() + READ
        if curves.first_lost(settings.metric) is not None:
            script.stop()
            raise Ended("diverged", "")
        if ended:
            if _with_worker(script.code, context):
                raise Ended("stopped", "")
            break
        context.progress.advance()  # a script may be silent: its own limit ends it
        if context.stop():
            script.stop()
            raise Ended("stopped", "")
        if settings.limit is not None and time.monotonic() - begun > settings.limit:
            script.stop()
            raise Ended(
                "timeout", script.told(f"it ran longer than its limit, {settings.limit:g} s")
            )
    if script.code:
        killed = script.code in (-signal.SIGKILL, KILLED)
        words = "\n".join(script.last).lower()
        oom = killed or any(one in words for one in NO_MEMORY)
        raise Ended("oom" if oom else "failed", script.told(_reason(script.code, script.last)))


def _taken(settings: Settings) -> tuple[str, ...]:
    """Return the names of numbers that ablate sets itself: a script's own get another name."""
    return SECONDS, best(settings.metric)


def _with_worker(code: int, context: Context) -> bool:
    """Return whether a script ended because script and worker were both told to.

    A signal for all processes of a job, as from Slurm or systemd, may reach the script first.
    """
    by_signal = code in (-signal.SIGTERM, 128 + signal.SIGTERM)
    until = time.monotonic() + (TOLD if by_signal else HANDLED)
    while not context.stop() and time.monotonic() < until:
        time.sleep(0.02)
    return context.stop()


def _reason(code: int, last: deque[str]) -> str:
    """Why a script failed, in one line."""
    if code < 0:
        how = f"ended by {signal.Signals(-code).name}"
        how += ", perhaps for want of memory" if code == -signal.SIGKILL else ""
    else:
        how = f"exit code {code}"
    said = next((line.strip() for line in reversed(last) if line.strip()), "")
    return f"{how}: {said[:200]}" if said else f"{how}, without a word of output"


def _report(curves: Curves, emit: Emit) -> None:
    for steps, series in curves.take():
        emit("metrics", steps=steps, series=series)


def _finals(
    settings: Settings, curves: Curves, before: Mapping[str, Any]
) -> list[tuple[str, float, float]]:
    """Return the last value of every series, and of the metric the best and that at a step."""
    found = [(name, 0.0, curves.end(name)) for name in curves.points]
    if settings.metric not in curves.points and "last" in before:
        found.append((settings.metric, 0.0, before["last"]))
    if (chosen := _best(settings, curves, before)) is not None:
        found.append((best(settings.metric), 0.0, chosen))
    own = {int(step): value for step, value in before.get("points", {}).items()}
    own |= curves.points.get(settings.metric, {})
    if settings.at is not None and (at := int(settings.at)) in own:
        found.append((settings.metric, settings.at, own[at]))
    return found


def _best(settings: Settings, curves: Curves, before: Mapping[str, Any]) -> float | None:
    """Return the best finite value of the metric that any attempt has reported, if there is one."""
    values = [*(curves.extent(settings.metric) or ()), *before.get("best", ())]
    return (min if settings.goal == "min" else max)(values, default=None)


def _unreported(
    settings: Settings, curves: Curves, finals: Sequence[tuple[str, float, float]]
) -> str:
    """Why a run that ended has not the value that decides; "" if it has."""
    named = {(name, at) for name, at, _ in finals}
    if (settings.metric, 0.0) in named:
        if settings.at is None or (settings.metric, settings.at) in named:
            return ""
        steps = curves.points.get(settings.metric) or {0: 0.0}
        return (
            f"the script reported no {settings.metric!r} at step {settings.at:g}, but {len(steps)}"
            f" from step {min(steps)} to {max(steps)}: change [command] at"
        )
    said = f"the script ended without a value of metric {settings.metric!r}"
    if names := sorted(curves.points):
        return f"{said}; it reported {listed(names, most=10)}: name one of them as metric"
    return f"{said}; it reported no number at all: "


def _silent(settings: Settings, out: Path, matched: bool) -> str:
    """Why nothing was read of a script, and what to change."""
    why = []
    if settings.patterns and matched:
        why.append("what [command] pattern found is no number")
    elif settings.patterns:
        why.append("no line of its output matches [command] pattern, which is tried on each line")
    there = {name: any(one.is_file() for one in out.glob(name)) for name in settings.metrics}
    for names, what in (
        ([name for name in there if not there[name]], f"[command] metrics: {out} has no file"),
        ([name for name in there if there[name]], "[command] metrics: there is no number in"),
    ):
        if names:
            why.append(f"{what} {listed(names)}")
    return "; ".join(why) or (
        f'print JSON lines such as {{"step": 1, "{settings.metric}": 0.5}}, call ablate.log, or'
        " give [command] pattern or metrics"
    )


# -- what an attempt leaves to the next ------------------------------------------------------------


def _state(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / STATE).read_text())
        return found
    except (OSError, ValueError):
        return {}


def _keep_state(
    out: Path, settings: Settings, curves: Curves, before: Mapping[str, Any], seconds: float
) -> None:
    metric, points = settings.metric, curves.points.get(settings.metric, {})
    chosen = _best(settings, curves, before)
    state = {
        "step": curves.last,
        "points": before.get("points", {}) | {str(step): value for step, value in points.items()},
        "last": curves.end(metric) if points else before.get("last"),
        "best": [] if chosen is None else [chosen],
        "seconds": seconds,
    }
    (out / STATE).write_text(
        json.dumps({name: value for name, value in state.items() if value is not None})
    )


# -- where it runs ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _code(
    run: Run, settings: Settings, job: Job, out: Path
) -> Iterator[tuple[Path, snapshot.Snapshot]]:
    """Give the folder that a run's command runs in, and the version of its code.

    A run of a git revision gets a work tree of its own, which is removed afterwards.

    Raises:
        Ended: The code is not the version that the run was planned with.
    """
    folder = Path(settings.folder)
    if REVISION not in run.fields:
        taken = snapshot.take(folder, settings.code) if settings.code else snapshot.Snapshot("")
        if taken.version != run.fields["code"]:
            why = "its code was changed after the study was planned: `ablate run` plans it again"
            raise Ended("failed", f"{why}, with the code as it is now")
        yield folder, taken
        return
    root = snapshot.toplevel(folder)
    commit = job.sources.get(str(run.fields["code"]), "").rpartition("@")[2]
    if root is None or not commit:
        raise Ended("failed", f"revision {run.fields[REVISION]!r}: {folder} has no such commit")
    tree = out / "worktree"
    with snapshot.worktree(root, tree, commit, out.parent / ".worktrees"):
        yield tree / folder.relative_to(root), snapshot.Snapshot(str(run.fields["code"]), commit)


def _environment(run: Run, device: str, out: Path, checkpoints: Path) -> dict[str, str]:
    """Return the environment of a script: that of `ablate run`, and what it may read of its run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path := environment.pop("ABLATE_PYTHONPATH", ""):
        environment["PYTHONPATH"] = path
    environment |= {
        "ABLATE_SEED": str(run.seed),
        "ABLATE_OUT": str(out),
        "ABLATE_CHECKPOINTS": str(checkpoints),
        FILE: str(out / OWN_METRICS),
        "PYTHONUNBUFFERED": "1",  # a line counts when it is printed
    }
    kind, _, numbers = device.partition(":")
    if kind == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif kind == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",")
        chosen = [visible[int(n)] if visible[0] else n for n in numbers.split(",")]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    return environment


class Script:
    """The process of a script and its children. They end with this process, however it ends.

    Standard output and standard error have a pipe each: a progress bar leaves a line of standard
    error open, and a buffered line of standard output may come in two parts.

    Attributes:
        code: Its exit code; −n if signal n ended it.
        last: Its last lines of output.

    Args:
        words: Its command line.
        folder: Where it runs.
        environment: Its environment.
        log: Descriptor of the file that gets the output of both, in the order in which it comes.

    Raises:
        Ended: It cannot be started.
    """

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str], log: int):
        self.code = 0
        self.last: deque[str] = deque(maxlen=KEPT)
        self._log, self._over = log, False
        try:
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Ended("failed", f"{words[0]!r} cannot be started: {error.strerror}") from None
        assert self._process.stdout and self._process.stderr
        self._streams = [one.fileno() for one in (self._process.stdout, self._process.stderr)]
        self._open, self._unread = [*self._streams], dict.fromkeys(self._streams, b"")
        for stream in self._streams:
            os.set_blocking(stream, False)
        # A shell that waits for the end of its input, which comes when this process has ended.
        self._watcher = subprocess.Popen(
            [
                "sh",
                "-c",
                'read -r _; kill -KILL -- "-$1" 2>/dev/null',
                "sh",
                str(self._process.pid),
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def ended(self, seconds: float) -> bool:
        """Wait for output, and return whether the script has ended and all of it is read.

        Args:
            seconds: How long to wait at most.
        """
        if self._open:
            select.select(self._open, [], [], seconds)
        else:
            time.sleep(seconds)
        code = self._process.poll()
        self._read()
        if code is None:
            return False
        self.code, self._over = code, True
        return True

    def _read(self) -> None:
        """Take what the pipes hold; a child that outlives the script may keep them open.

        One that writes faster than this reads gets another look later.
        """
        for stream in tuple(self._open):
            with contextlib.suppress(BlockingIOError):
                for _ in range(LOOKED):
                    if not (data := os.read(stream, LONGEST)):
                        self._open.remove(stream)
                        break
                    os.write(self._log, data)
                    self._unread[stream] += data

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines since the last call, those of standard output first.

        Once the script has ended, the unfinished ones count too.

        Yields:
            0 for standard output, 1 for standard error, and a line of it.
        """
        for number, stream in enumerate(self._streams):
            whole = self._unread[stream].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            lines, _, rest = whole.rpartition(b"\n")
            if len(rest) > LONGEST or self._over:
                lines, rest = whole, b""
            self._unread[stream] = rest
            for line in lines.decode(errors="replace").split("\n") if lines else ():
                if line.strip():
                    self.last.append(line)
                    yield number, line

    def told(self, reason: str) -> str:
        """Return the last lines of output and a reason, which comes last."""
        return "\n".join([*self.last, reason])

    def stop(self) -> None:
        """Ask the script and its children to end, and kill what has not ended in time."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + STOP
        while time.monotonic() < end and not self.ended(LOOK):
            pass
        for _ in self.lines():
            pass

    def close(self) -> None:
        """Kill what is left of it."""
        self._signal(signal.SIGKILL)
        self._watcher.kill()
        for process in (self._process, self._watcher):
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
