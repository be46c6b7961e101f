"""Which job comes next, and what the end of an attempt means: no process, no database."""

from __future__ import annotations

import pytest

from ablate.config import RunConfig
from ablate.kinds.transformer import run_of
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.launch.executor import Slot
from ablate.launch.scheduler import RETRIES, STOPS, Pack, Scheduler, may_retry
from ablate.store.records import Candidate

CPU = Device("cpu", 8 << 30, 1)
GPUS = [Device(f"cuda:{k}", 80 << 30, 8) for k in range(2)]
BASE = RunConfig(n_layer=1, d_model=8, n_head=1, n_ctx=8, batch_tokens=64, steps=6)


def run(number: int, **fields: object) -> Candidate:
    """A run that nobody has tried; what is no field of the candidate is one of its model."""
    own = {name: fields.pop(name) for name in list(fields) if name in Candidate.__annotations__}
    config = BASE.model_copy(update={"seed": number, **fields})
    defaults = {
        "flops": 1.0,
        "cell": "a",
        "role": "compare",
        "failures": 0,
        "losses": 0,
        "checkpoint": False,
        "parent": "",
    }
    return Candidate(number, run_of(config), **(defaults | own))


def slots(*devices: Device, busy: set[int] = frozenset()) -> list[Slot]:
    return [Slot(number, device, number not in busy) for number, device in enumerate(devices)]


def numbers(pack: Pack | None) -> list[int]:
    return [] if pack is None else [member.run_id for member in pack.runs]


def first(scheduler: Scheduler, waiting: list[Candidate], files: dict, slots: list[Slot]):
    """The next job of what waits."""
    return scheduler.queue(waiting, files).next(slots)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of up to four."""
    monkeypatch.setattr(packs, "capacity", lambda config, device: 4)


# -- which job comes next --------------------------------------------------------------------------


def test_runs_come_in_the_order_of_the_plan_one_by_one_on_a_cpu() -> None:
    waiting = [run(3), run(1), run(2)]
    assert numbers(first(Scheduler(), waiting, {}, slots(CPU))) == [3]
    assert first(Scheduler(), [], {}, slots(CPU)) is None


def test_a_busy_slot_gets_no_job() -> None:
    scheduler = Scheduler()
    assert first(scheduler, [run(1)], {}, slots(CPU, CPU, busy={0})).slot.number == 1
    assert first(scheduler, [run(1)], {}, slots(CPU, CPU, busy={0, 1})) is None
    assert not scheduler.done([run(1)], running=2)


def test_the_longest_runs_come_first_where_that_is_asked_for() -> None:
    waiting = [run(1, flops=1.0), run(2, flops=3.0, n_layer=2), run(3, flops=2.0, n_layer=3)]
    order = []
    while pack := first(Scheduler(longest_first=True), waiting, {}, slots(CPU)):
        order += numbers(pack)
        waiting = [each for each in waiting if each.run_id not in order]
    assert order == [2, 3, 1]


def test_unknown_flops_come_last_of_the_longest() -> None:
    waiting = [run(1, flops=None), run(2, flops=3.0, n_layer=2)]
    assert numbers(first(Scheduler(longest_first=True), waiting, {}, slots(CPU))) == [2]


def test_a_pack_is_of_one_shape(four: None) -> None:
    waiting = [run(1), run(2, n_layer=2), run(3, lr=1e-2), run(4, n_layer=2), run(5)]
    assert numbers(first(Scheduler(), waiting, {}, slots(GPUS[0]))) == [1, 3, 5]


def test_idle_devices_share_the_runs_of_a_shape(four: None) -> None:
    waiting = [run(k) for k in range(1, 5)]
    assert len(first(Scheduler(), waiting, {}, slots(*GPUS)).runs) == 2
    assert len(first(Scheduler(), waiting, {}, slots(*GPUS, busy={1})).runs) == 4
    # another worker of a busy device is no idle device
    assert len(first(Scheduler(), waiting, {}, slots(*GPUS, GPUS[1], busy={1})).runs) == 4


def test_runs_that_left_a_checkpoint_together_go_on_together(four: None) -> None:
    waiting = [run(k) for k in range(1, 9)]
    files = {waiting[k].run.key: "one.pt" for k in (1, 3)}
    files |= {waiting[k].run.key: "all.pt" for k in (0, 2, 4, 5, 6)}
    pack = first(Scheduler(), waiting, files, slots(GPUS[0]))
    assert (numbers(pack), pack.checkpoint) == ([1, 3, 5, 6, 7], "all.pt"), "more than fit anew"
    rest = [each for each in waiting if each.run_id not in numbers(pack)]
    second = first(Scheduler(), rest, files, slots(GPUS[0]))
    assert (numbers(second), second.checkpoint) == ([2, 4], "one.pt")
    third = first(Scheduler(), waiting[7:], files, slots(GPUS[0]))
    assert (numbers(third), third.checkpoint) == ([8], None)


def test_a_child_waits_for_its_parent() -> None:
    scheduler = Scheduler()
    child = run(1, parent="running")
    assert numbers(first(scheduler, [child, run(2)], {}, slots(CPU))) == [2]
    assert first(scheduler, [child], {}, slots(CPU)) is None
    assert not scheduler.done([child], running=1), "its parent may be what is running"
    assert scheduler.done([child], running=0), "its parent has failed"
    assert numbers(first(scheduler, [run(1, parent="complete")], {}, slots(CPU))) == [1]


# -- what an outcome means -------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["complete", "diverged", "failed"])
def test_a_result_and_a_failure_are_final(status: str) -> None:
    scheduler = Scheduler()
    assert scheduler.ended(first(scheduler, [run(1)], {}, slots(CPU)), run(1), status)
    assert not scheduler.stopped


@pytest.mark.parametrize("status", ["dead", "oom"])
def test_a_run_that_loses_its_worker_or_its_memory_has_further_attempts(status: str) -> None:
    scheduler = Scheduler()
    last = [
        scheduler.ended(first(scheduler, [each], {}, slots(CPU)), each, status)
        for each in (run(1, losses=k) for k in range(RETRIES))
    ]
    assert last == [False] * (RETRIES - 1) + [True]
    assert [may_retry(run(1, losses=k)) for k in range(RETRIES + 1)] == [True] * RETRIES + [False]
    assert not may_retry(run(1, failures=1))


def test_a_run_that_was_stopped_is_neither_done_nor_failed() -> None:
    scheduler = Scheduler(fail_fast=True)
    assert not scheduler.ended(first(scheduler, [run(1)], {}, slots(CPU)), run(1), "stopped")
    assert not scheduler.stopped


def test_runs_without_further_attempts_are_not_chosen_and_those_tried_before_come_last() -> None:
    scheduler = Scheduler()
    waiting = [run(1, failures=1), run(2, losses=RETRIES), run(3, losses=1), run(4)]
    assert numbers(first(scheduler, waiting, {}, slots(CPU))) == [4]
    assert numbers(first(scheduler, waiting[:3], {}, slots(CPU))) == [3]
    assert scheduler.done(waiting[:2], running=0)


def test_fail_fast_stops_at_a_failure_and_not_at_an_attempt_that_is_retried() -> None:
    scheduler = Scheduler(fail_fast=True)
    pack = first(scheduler, [run(1)], {}, slots(CPU))
    scheduler.ended(pack, run(1), "dead")
    scheduler.ended(pack, run(1), "complete")
    assert not scheduler.stopped
    scheduler.ended(pack, run(1, losses=RETRIES - 1), "dead")
    assert scheduler.stopped


def test_a_shape_that_ran_out_of_memory_comes_smaller_and_anew(four: None) -> None:
    scheduler = Scheduler()
    waiting = [run(k) for k in range(1, 5)]
    files = {each.run.key: "all.pt" for each in waiting}
    seen = []
    for losses in range(RETRIES):
        tried = [run(k, losses=losses) for k in range(1, 5)]
        pack = first(scheduler, tried, files, slots(GPUS[0]))
        seen.append((len(pack.runs), pack.size.micro_batch, pack.size.recompute, pack.checkpoint))
        for each in pack.runs:
            scheduler.ended(pack, each, "oom")
    # a pack of another size does not fit the checkpoint of the first
    assert seen == [(4, 0, False, "all.pt"), (1, 0, False, None), (1, 1, True, None)]
    other = first(scheduler, [run(9, n_layer=2), run(10, n_layer=2)], {}, slots(GPUS[0]))
    assert len(other.runs) == 2, "another shape is as large as before"


def test_a_pack_that_ends_late_does_not_make_the_next_ones_larger(four: None) -> None:
    scheduler = Scheduler()
    early = first(scheduler, [run(k) for k in range(1, 5)], {}, slots(GPUS[0]))
    for losses in range(2):  # meanwhile others of the shape run out of memory, twice
        tried = [run(k, losses=losses) for k in range(5, 9)]
        pack = first(scheduler, tried, {}, slots(GPUS[0]))
        scheduler.ended(pack, tried[0], "oom")
    smallest = first(scheduler, [run(5, losses=2)], {}, slots(GPUS[0])).size
    scheduler.ended(early, early.runs[0], "oom")
    assert first(scheduler, [run(5, losses=2)], {}, slots(GPUS[0])).size == smallest


# -- runs that are stopped again and again ---------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "given_up"),
    [  # the step that each attempt reached, and that of its checkpoint
        ([(8, 0), (8, 0), (7, 0)], True),
        ([(0, 0), (0, 0), (0, 0)], True),
        ([(8, 8), (8, 0), (8, 8), (8, 0)], True),
        ([(8, 8), (9, 9), (10, 10), (11, 11)], False),
        ([(8, 0), (8, 0), (9, 0), (9, 0), (9, 0)], False),
    ],
    ids=["no checkpoint", "no step", "the same checkpoint", "ever further", "sometimes further"],
)
def test_a_run_is_given_up_that_is_stopped_without_progress(
    attempts: list[tuple[int, int]], given_up: bool
) -> None:
    scheduler = Scheduler()
    stops = [
        scheduler.stop(run(1), step, frozenset({saved} - {0})).times for step, saved in attempts
    ]
    assert (max(stops) >= STOPS) is given_up
    assert scheduler.stop(run(2), 8, frozenset()).times == 1, "each run for itself"
