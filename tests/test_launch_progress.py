"""What the user sees: right estimates, bars on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ablate.launch import progress
from ablate.launch.progress import Display, Running, Tally
from ablate.store.status import Survey


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def metrics(step: int, loss: float = 2.5, speed: float = 1000.0) -> dict:
    return {
        "event": "metrics",
        "steps": [step - 1, step],
        "series": {"train_loss": [9.0, loss], "tokens_per_second": [1.0, speed]},
    }


def test_a_run_shows_its_step_loss_speed_and_time_left():
    run = Running("serial, seed 0", steps=100, step_tokens=500, flops=1e9)
    assert str(run) == "step 0/100"
    run.observe(metrics(40))
    # 60 steps × 500 tokens at 1000 a second
    assert str(run) == "step 40/100, loss 2.5, 1k tokens/s, 30 s left"
    # held-out only: the speed stays
    run.observe({"event": "metrics", "steps": [50], "series": {"loss": [2.4]}})
    assert str(run) == "step 50/100, loss 2.5, 1k tokens/s, 25 s left"


def test_the_study_estimates_from_flops_done_here():
    """Half of a large run in 10 s: its other half and a tenth of a run take 12 s more."""
    clock = Clock()
    tally = Tally(clock=clock)
    tally.update(Survey({"planned": 2, "complete": 3}, flops_left=1.1e9))
    assert tally.seconds_left is None
    tally.begin("a", Running("a", 100, 500, 1e9))
    clock.now += 99  # while the worker starts
    tally.observe("a", {"event": "start", "step": 0})
    clock.now += 10
    tally.observe("a", metrics(50))
    assert tally.seconds_left == pytest.approx(12)
    assert str(tally) == "1 running, 1k tokens/s, about 12 s left"
    clock.now += 10
    tally.observe("a", metrics(100))
    tally.end("a", done=True)
    assert (tally.done, tally.total) == (4, 5)
    assert tally.seconds_left == pytest.approx(2)


def test_what_a_checkpoint_saved_is_no_work_of_this_session():
    clock = Clock()
    tally = Tally(clock=clock)
    tally.update(Survey({"running": 1}, flops_left=1e9))
    tally.begin("a", Running("a", 100, 500, 1e9))
    tally.observe("a", {"event": "start", "step": 50})
    clock.now += 10
    tally.observe("a", metrics(60))
    assert tally.seconds_left == pytest.approx(40)


def test_a_run_that_will_be_tried_again_is_not_done():
    tally = Tally()
    tally.update(Survey({"running": 1}, flops_left=1e9))
    tally.begin("a", Running("a", 100, 500, 1e9))
    tally.end("a", done=False)
    assert tally.done == 0 and tally.flops_left == 1e9


def shown(terminal: bool, monkeypatch, act) -> str:
    out = io.StringIO()
    clock = Clock()
    tally = Tally(total=40, flops_left=4e10, clock=clock)
    monkeypatch.setattr(progress.time, "monotonic", clock)
    with Display(
        Console(file=out, force_terminal=terminal, width=120), "topology", tally
    ) as display:
        act(display, tally, clock)
    return out.getvalue()


def test_every_run_that_ends_has_its_plain_line(monkeypatch):
    def act(display, tally, clock):
        for k in range(40):
            clock.now += 0.1
            tally.begin("a", Running(f"cell [x], seed {k}", 100, 500, 1e9))
            tally.observe("a", metrics(100))
            tally.observe(
                "a", {"event": "final", "values": [["accuracy", 0, 0.3], ["loss", 0, 2.75]]}
            )
            display.ended(tally.end("a", done=True), "complete")
            display.refresh()

    lines = shown(False, monkeypatch, act).splitlines()
    first, *_, last = lines
    # read whole, it tells no rate
    assert first == "topology 1/40: cell [x], seed 0 complete, held-out loss 2.75"
    assert last == "topology 40/40: cell [x], seed 39 complete, held-out loss 2.75"
    assert "topology 34/40: cell [x], seed 33 complete, held-out loss 2.75; about 1 s left" in lines
    assert len(lines) == 40


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("loss", "held-out loss 2.5"),
        ("accuracy", "accuracy 0.25"),
        ("probe_loss@0.4", "probe_loss@0.4 1.75"),
    ],
)
def test_a_finished_run_is_shown_with_the_metric_of_its_study(monkeypatch, metric, said):
    def act(display, tally, clock):
        finals = [
            ["loss", 0, 2.5],
            ["accuracy", 0, 0.25],
            ["probe_loss", 0.15, 1.5],
            ["probe_loss", 0.4, 1.75],
        ]
        tally.begin("a", Running("serial, seed 0", 100, 500, 1e9, metric))
        tally.observe("a", {"event": "final", "values": finals})
        display.ended(tally.end("a", done=True), "complete")

    assert shown(False, monkeypatch, act).splitlines() == [
        f"topology 1/40: serial, seed 0 complete, {said}"
    ]


def test_plain_lines_about_a_long_run_come_every_half_minute(monkeypatch):
    def act(display, tally, clock):
        tally.begin("a", Running("serial, seed 0", 1000, 500, 1e9))
        for step in range(2, 120):
            clock.now += 1
            tally.observe("a", metrics(step))
            display.refresh()

    lines = shown(False, monkeypatch, act).splitlines()
    assert (
        lines[0] == "topology 0/40: serial, seed 0 step 2/1000, loss 2.5, 1k tokens/s, 8.3 min left"
    )
    assert len(lines) == 4


def test_a_terminal_shows_how_many_of_all_runs_are_done(monkeypatch):
    """Of as many as there are by then: a study that is tuned grows."""

    def act(display, tally, clock):
        display.refresh()
        tally.begin("a", Running("a", 100, 500, 1e9))
        display.ended(tally.end("a", done=True), "complete")
        tally.total = 52
        display.refresh()

    counts = re.findall(r"\d+/[\d?]+", shown(True, monkeypatch, act))
    assert [*dict.fromkeys(counts)] == ["0/?", "0/40", "1/52"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_failure_is_always_shown_with_its_reason(monkeypatch, terminal):
    def act(display, tally, clock):
        for k in range(3):
            tally.begin("a", Running(f"serial, seed {k}", 100, 500, 1e9))
            display.ended(
                tally.end("a", done=True),
                "failed",
                "Traceback …\n  File …\nValueError: no [b]luck[/b]\n",
            )

    assert shown(terminal, monkeypatch, act).count("failed: ValueError: no [b]luck[/b]") == 3
