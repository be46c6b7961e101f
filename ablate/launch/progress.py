"""The progress of a study: bars on a terminal, elsewhere a line for each run that ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from rich import progress
from rich.console import Console
from rich.markup import escape

from ablate import metrics
from ablate.store.records import ACCEPTED
from ablate.store.status import Survey
from ablate.units import count, duration

ROWS = 8  # running runs that a terminal shows
# Seconds of training from which on a rate is shown: the journal of a short run is read at once.
MIN_SECONDS = 3.0
PLAIN_RUNNING_EVERY = 30.0  # seconds between plain lines about running runs


@dataclass
class Running:
    """A run that trains here, as far as its journal has been read.

    Attributes:
        label: What the user is shown.
        steps: Steps of its whole schedule, None if unknown.
        step_tokens: Tokens of a step, 0 if unknown.
        flops: Floating-point operations of the whole run, None if unknown.
        metric: The study's metric.
        shown: The series whose last value is shown.
        called: What the metric is called; "" for its usual name.
        step: Steps made.
        began_at: Step of the checkpoint that it resumed from.
        saved: Step of the last checkpoint that it wrote here; 0 for none.
        loss: Last value of the series that is shown.
        result: The metric at its end.
        speed: Tokens a second.
    """

    label: str
    steps: int | None
    step_tokens: int
    flops: float | None
    metric: str = "loss"
    shown: str = "train_loss"
    called: str = ""
    step: int = 0
    began_at: int = 0
    saved: int = 0
    loss: float | None = None
    result: float | None = None
    speed: float | None = None

    def observe(self, event: Mapping[str, Any]) -> None:
        """Update it with an event of its journal."""
        if event["event"] == "start":
            self.began_at = self.step = event["step"]
        elif event["event"] == "metrics":
            self.step = event["steps"][-1]
            self.loss = event["series"].get(self.shown, [self.loss])[-1]
            self.speed = event["series"].get("tokens_per_second", [self.speed])[-1]
        elif event["event"] == "checkpoint":
            self.saved = self.step = event["step"]
        elif event["event"] == "final":
            name_at = metrics.final(self.metric)
            values = (value for name, at, value in event["values"] if (name, at) == name_at)
            self.result = next(values, None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its last step at its present speed; None without one."""
        if not self.speed or self.steps is None:
            return None
        return (self.steps - self.step) * self.step_tokens / self.speed

    @property
    def work(self) -> float:
        """Its FLOPs; 1 where they are unknown, so that all such runs count alike."""
        return 1.0 if self.flops is None else self.flops

    def share(self, step: int) -> float:
        """Return the share of its work that `step` steps are; 0 if its steps are unknown."""
        return step / self.steps if self.steps else 0.0

    def __str__(self) -> str:
        parts = [f"step {self.step}" + (f"/{self.steps}" if self.steps else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.speed:
            parts.append(f"{count(self.speed)} tokens/s")
        if self.seconds_left is not None:
            parts.append(f"{duration(max(1.0, self.seconds_left))} left")
        return ", ".join(parts)


@dataclass
class Tally:
    """The progress of a whole study.

    Attributes:
        total: Runs.
        done: Runs that have a result, or failed.
        flops_left: FLOPs of the runs that are not done, see `Running.work`.
        running: Key of a run → the run, of those that train here.
        flops_done: Made here by runs that no longer train.
        since: When the first run began to train here.
        clock: Seconds of a clock that never goes back.
    """

    total: int = 0
    done: int = 0
    flops_left: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    flops_done: float = 0.0
    since: float | None = None
    clock: Callable[[], float] = time.monotonic
    _sums: tuple[int, int, int] = (0, 0, 0)  # over `running`, see `_add`

    def update(self, study: Survey) -> None:
        """Update the numbers of runs from the database."""
        self.total, self.done, self.flops_left = study.total, study.done, study.flops_left

    def begin(self, key: str, run: Running) -> None:
        """Add a run that begins to train here."""
        self.running[key] = run
        self._add(run)

    def observe(self, key: str, event: Mapping[str, Any]) -> None:
        """Update a run with an event of its journal."""
        if event["event"] == "heartbeat":  # which comes before the run trains, too
            return
        self.since = self.clock() if self.since is None else self.since
        run = self.running[key]
        self._add(run, -1)
        run.observe(event)
        self._add(run)

    def end(self, key: str, *, done: bool) -> Running:
        """Remove a run that no longer trains, and return it.

        Args:
            key: Key of the run.
            done: Whether it will not be tried again.
        """
        run = self.running.pop(key)
        self._add(run, -1)
        made = run.share(run.step - run.began_at) if run.steps else float(done)
        self.flops_done += run.work * made
        if done:
            self.done += 1
            self.flops_left -= run.work
        return run

    def _add(self, run: Running, times: int = 1) -> None:
        """Add what a run has made here, what it has made in all, and its speed, to the sums.

        Sums over thousands of runs are too slow for every line that is printed. As integers they
        stay exact when runs are subtracted.
        """
        made = run.share(run.step - run.began_at), run.share(run.step)
        values = *(run.work * share for share in made), run.speed or 0.0
        here, passed, speed = (
            before + times * round(value * (1 << 20))
            for before, value in zip(self._sums, values, strict=True)
        )
        self._sums = here, passed, speed

    @property
    def speed(self) -> float:
        """Tokens a second of all running runs."""
        return self._sums[2] / (1 << 20)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the study is done at the rate so far; None while that is not known."""
        here = self.flops_done + self._sums[0] / (1 << 20)
        elapsed = 0.0 if self.since is None else self.clock() - self.since
        if not here or elapsed < MIN_SECONDS:
            return None
        return max(0.0, self.flops_left - self._sums[1] / (1 << 20)) * elapsed / here

    def __str__(self) -> str:
        parts = [f"{len(self.running)} running"] if self.running else []
        if self.speed:
            parts.append(f"{count(self.speed)} tokens/s")
        if self.done < self.total and self.seconds_left is not None:
            parts.append(f"about {duration(max(1.0, self.seconds_left))} left")
        return ", ".join(parts)


class Display:
    """Shows a tally. A context manager: the bars are removed at its end.

    Args:
        console: Where it is shown.
        study: Name of the study.
        tally: What is shown.
    """

    def __init__(self, console: Console, study: str, tally: Tally):
        self._console, self._study, self._tally = console, study, tally
        self._bars: progress.Progress | None = None
        self._rows: dict[str, progress.TaskID] = {}
        self._last_ended = self._last_running = -math.inf
        if console.is_terminal:
            columns = (
                "{task.description}",
                progress.BarColumn(20),
                progress.MofNCompleteColumn(),
                "{task.fields[facts]}",
            )
            self._bars = progress.Progress(
                *columns, console=console, auto_refresh=False, transient=True
            )
            self._rows[""] = self._bars.add_task(escape(study), total=None, facts="")

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line that stays above the bars."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def ended(self, run: Running, status: str, error: str = "") -> None:
        """Print a line on a run that ended; on a terminal only if it did not succeed.

        Args:
            run: The run.
            status: How its attempt ended.
            error: Its error, of which the last line is shown.
        """
        if self._bars and status in ACCEPTED:
            return
        self._last_ended = time.monotonic()
        why = f": {error.strip().splitlines()[-1]}" if error.strip() else ""
        facts = f"; {self._tally}" if str(self._tally) and not self._bars else ""
        metric = run.called or ("held-out loss" if run.metric == "loss" else run.metric)
        result = (
            f", {metric} {run.result:.4g}"
            if status == "complete" and run.result is not None
            else ""
        )
        self.say(
            f"{self._study} {self._tally.done}/{self._tally.total}: {run.label}"
            f" {status}{result}{why}{facts}"
        )

    def refresh(self) -> None:
        """Show the present state. Call it a few times a second."""
        if not self._bars:
            now = time.monotonic()
            if now - max(self._last_running, self._last_ended) >= PLAIN_RUNNING_EVERY:
                for run in self._tally.running.values():
                    if run.step:
                        self.say(
                            f"{self._study} {self._tally.done}/{self._tally.total}: {run.label}"
                            f" {run}"
                        )
                self._last_running = now
            return
        shown = dict(islice(self._tally.running.items(), ROWS))
        for key in self._rows.keys() - shown.keys() - {""}:
            self._bars.remove_task(self._rows.pop(key))
        for key, run in shown.items():
            if key not in self._rows:
                self._rows[key] = self._bars.add_task(
                    f"  {escape(run.label)}", total=run.steps, facts=""
                )
            facts = str(run).split(", ", 1)
            self._bars.update(
                self._rows[key],
                completed=run.step,
                facts=escape(facts[1] if len(facts) > 1 else ""),
            )
        tally = self._tally
        self._bars.update(
            self._rows[""], total=tally.total, completed=tally.done, facts=escape(str(tally))
        )
        self._bars.refresh()
