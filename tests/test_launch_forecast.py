"""The forecast of `ablate plan --device`: what is timed, and what it promises."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from finetune_study import folder_of, planned

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.launch import forecast, packs
from ablate.launch.devices import Device
from ablate.launch.trainer import TorchTrainer
from ablate.plan import Cell, plan
from ablate.plan.forecast import Forecast, TaskTime, at_speed
from ablate.plan.model import before
from ablate.study import parse
from ablate.train import compiled

STUDY = """
name = "t"
question = "?"
seeds = 3
[base]
corpus = "sotu"
tokens = 10_000_000_000
[factors]
topology = ["serial", "parallel"]
lr = [1e-3, 2e-3]
"""
GPU = Device("cuda:0", 80 << 30, 8)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[RunConfig]]:
    """The packs that are timed, on a device that is not there."""
    found: list[list[RunConfig]] = []

    def speed(configs: list[RunConfig], *rest: object) -> float:
        found.append(configs)
        return {"serial": 2e6, "parallel": 4e6}[configs[0].topology]

    monkeypatch.setattr(TorchTrainer, "setup", lambda *of: None)
    monkeypatch.setattr(packs, "size", lambda *of, **more: packs.Size(2, 4))
    monkeypatch.setattr(forecast, "_speed", speed)
    monkeypatch.setattr(compiled, "can_compile", lambda: False)
    return found


def test_every_shape_is_timed_once_as_a_pack_of_the_size_that_trains(
    timed: list[list[RunConfig]],
) -> None:
    done: list[int] = []
    made = plan(parse(STUDY, Path("t.toml")))
    found = forecast.measure(made, [GPU] * 3, done.append)
    assert [[config.topology for config in pack] for pack in timed] == [
        ["serial", "serial"],
        ["parallel", "parallel"],
    ]
    assert set(found.tokens_per_second) == {cell.label for cell in made.cells}
    assert set(found.tokens_per_second.values()) == {2e6, 4e6}
    assert done == [1, 2, 3, 4]


def test_workers_that_share_a_gpu_train_one_at_a_time(timed: list[list[RunConfig]]) -> None:
    made = plan(parse(STUDY, Path("t.toml")))
    on_gpu = forecast.measure(made, [GPU] * 3, lambda done: None)
    assert on_gpu.start > 0 and on_gpu.side_by_side == 1 and not on_gpu.estimated
    two = forecast.measure(made, [GPU, Device("cuda:1", 80 << 30, 8)], lambda done: None)
    assert two.side_by_side == 2 and two.total(made) == on_gpu.total(made) / 2
    on_cpu = forecast.measure(made, [Device("cpu", 8 << 30, 1)] * 4, lambda done: None)
    assert not on_cpu.estimated and on_cpu.start == 0 and on_cpu.side_by_side == 4


def test_the_forecast_of_long_runs_is_that_of_compiled_steps(
    timed: list[list[RunConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faster than eager steps, but never than their matrix products; short runs stay eager."""
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    made = plan(parse(STUDY, Path("t.toml")))
    flops = {cell.label: sizes.train_flops(cell.config) / cell.config.tokens for cell in made.cells}

    def measured(study: str, ceiling: float) -> Forecast:
        monkeypatch.setattr(forecast, "product_speed", lambda *of: ceiling)
        return forecast.measure(plan(parse(study, Path("t.toml"))), [GPU], lambda done: None)

    fast, slow = measured(STUDY, 1e20), measured(STUDY, 3e6 * max(flops.values()))
    for cell in made.cells:
        eager = {"serial": 2e6, "parallel": 4e6}[cell.config.topology]
        assert fast.tokens_per_second[cell.label] > 2 * eager
        assert eager <= slow.tokens_per_second[cell.label] < fast.tokens_per_second[cell.label]
        assert slow.tokens_per_second[cell.label] <= max(eager, 3e6)
    assert fast.estimated and fast.start > 30
    short = measured(STUDY.replace("10_000_000_000", "1_000_000"), 1e20)
    assert set(short.tokens_per_second.values()) == {2e6, 4e6}
    assert not short.estimated and short.start < fast.start


def test_dropout_costs_compiled_steps_nothing(
    timed: list[list[RunConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """308M parameters on an H200: 205,000 tokens/s, where the eager step with dropout told 135,000.

    The time of its eager step counts where the run is too short to be compiled.
    """
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    monkeypatch.setattr(forecast, "product_speed", lambda *of: 1e20)
    untouched = forecast._speed

    def slower(configs: list[RunConfig], *rest: object) -> float:
        return untouched(configs, *rest) / (2 if configs[0].dropout else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(forecast, "_speed", slower)

    def speeds(dropout: str, tokens: str) -> dict[str, float]:
        study = STUDY.replace("10_000_000_000", f"{tokens}\ndropout = {dropout}")
        made = plan(parse(study, Path("t.toml")))
        return dict(forecast.measure(made, [GPU], lambda done: None).tokens_per_second)

    assert speeds("0.1", "10_000_000_000") == speeds("0", "10_000_000_000")
    short = speeds("0.1", "1_000_000")
    assert {cell: 2 * speed for cell, speed in short.items()} == speeds("0", "1_000_000")


def test_the_forecast_of_an_rnn_promises_nothing_of_a_compiler(
    monkeypatch: pytest.MonkeyPatch, timed: list[list[RunConfig]]
) -> None:
    """No recurrent layer is compiled."""
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    monkeypatch.setattr(forecast, "_speed", lambda *of: 2e6)
    monkeypatch.setattr(forecast, "product_speed", lambda *of: 1e20)
    study = STUDY.replace('corpus = "sotu"', 'corpus = "cmudict"\nobjective = "pairs"')
    study = study.replace("topology", "architecture").replace('"serial"', '"rnn-seq2seq"')
    found = forecast.measure(
        plan(parse(study.replace('"parallel"', '"encoder-decoder"'), Path("t.toml"))),
        [GPU],
        lambda done: None,
    )
    speeds = {label.split("=")[1][:3]: v for label, v in found.tokens_per_second.items()}
    assert speeds["rnn"] == 2e6 < speeds["enc"]


def test_a_pack_without_room_is_timed_smaller(
    monkeypatch: pytest.MonkeyPatch, timed: list[list[RunConfig]]
) -> None:
    """As it is trained: each out-of-memory error takes the next size of less memory."""
    sizes = [packs.Size(4), packs.Size(1), packs.Size(1, 2)]
    monkeypatch.setattr(packs, "size", lambda run, device, level: sizes[min(level, 2)])
    tried = []

    def speed(configs: list[RunConfig], sources: object, device: object, size: packs.Size) -> float:
        tried.append((len(configs), size))
        if size.runs > 1 or configs[0].topology == "parallel":
            raise torch.OutOfMemoryError
        return 2e6

    monkeypatch.setattr(forecast, "_speed", speed)
    with pytest.raises(AblateError, match=r"topology=parallel.*80 GiB"):
        forecast.measure(plan(parse(STUDY, Path("t.toml"))), [GPU], lambda done: None)
    assert tried == [
        *((3, sizes[0]), (1, sizes[1])),  # of three seeds
        *((3, sizes[0]), (1, sizes[1]), (1, sizes[2])),
    ]


def test_the_speed_of_products_is_that_of_the_device() -> None:
    begun = time.perf_counter()
    speed = forecast.product_speed("cpu", torch.float32, 64)
    assert 2 * 64**3 / (time.perf_counter() - begun) < speed < 1e14


def test_the_timed_speed_is_that_of_the_real_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "SECONDS", 0.1)
    jobs = []
    real = forecast.kind

    class Seen:
        def train(self, job, context):
            jobs.append(job)
            real("transformer").train(job, context)

    monkeypatch.setattr(forecast, "kind", lambda name: Seen())
    study = STUDY.replace('corpus = "sotu"\n', "").replace("10_000_000_000", '"1M"')
    small = study.replace("[factors]", "n_layer = 1\nd_model = 8\nn_head = 1\n[factors]")
    made = plan(parse(small, Path("t.toml")))
    found = forecast.measure(made, [Device("cpu", 8 << 30, 1)], lambda done: None)
    assert all(speed > 0 for speed in found.tokens_per_second.values())
    assert {job.compile for job in jobs} == {"eager"}
    assert {job.runs[0].config.steps for job in jobs} == {
        min(forecast.STEPS, made.cells[0].config.steps)
    }


def test_a_given_speed_is_spent_on_the_flops_of_each_cell() -> None:
    made = plan(parse(STUDY, Path("t.toml")))
    found = at_speed(made, 1e12)
    for cell in made.cells:
        seconds = cell.config.tokens / found.tokens_per_second[cell.label]
        assert seconds * 1e12 == pytest.approx(sizes.train_flops(cell.config))
    assert found.total(made) == pytest.approx(
        sum(found.seconds(cell, made.study.evaluation) for cell in made.cells) * 3
    )


ON_TASK = """
name = "t"
question = "?"
metric = "task_accuracy"
seeds = 3
[base]
corpus = "sotu"
tokens = 1_000_000
n_ctx = 64
[finetune]
task = "era"
finetune_batch = 8
finetune_steps = 100
[factors]
method = ["scratch", "head", "lora"]
labels = [64, 0]
[eval]
points = 5
tokens = 6400
"""


def test_the_forecast_of_fine_tuned_runs_has_their_own_costs(
    timed: list[list[RunConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: set-up, eager steps of a run alone, evaluations on the task and on the corpus."""
    asked = []

    def times(plan: object, cell: Cell, device: object, size: object) -> TaskTime:
        asked.append(cell.levels["method"])
        return TaskTime(setup=10, step=0.5, text=0.01, pretraining=2)

    monkeypatch.setattr(forecast.task_time, "measure", times)
    made = plan(parse(ON_TASK, Path("t.toml")))
    found = forecast.measure(made, [Device("cpu", 8 << 30, 1)], lambda done: None)
    assert asked == ["scratch", "head", "lora"], "the number of labels changes no step"
    assert len(timed) == 1, "the pre-training, once"
    seconds = {c.levels["method"]: found.seconds(c, made.study.evaluation) for c in made.cells}
    on_task = 10 + 100 * 0.5 + 5 * 800 * 0.01
    assert seconds == pytest.approx({"scratch": on_task, "head": on_task + 4, "lora": on_task + 4})
    cell = made.cells[0]
    assert found.speed(cell) == pytest.approx(8 * 64 / 0.5)
    first = before(made.cells[-1])
    assert first is not None
    parent = found.seconds(first, made.study.evaluation)
    read = made.study.evaluation.read(first.config, first.held_out)
    assert parent == pytest.approx((first.config.tokens + read / 3) / 2e6)
    ended = replace(found, ended={cell.label: 7.0})
    assert ended.seconds(cell, made.study.evaluation) == 7
    assert ended.total(made) == pytest.approx(found.total(made) - 3 * (on_task - 7))
    assert found.total(made) == pytest.approx(3 * parent + 3 * 2 * sum(seconds.values()))


def test_the_times_of_a_run_on_a_task_are_of_its_real_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(forecast.task_time, "SECONDS", 0.05)
    folder = folder_of(tmp_path)
    made = planned(folder, 'method = ["scratch", "full", "logistic"]')
    found = {}
    for cell in made.cells:
        device = Device("cpu", 8 << 30, 1)
        found[cell.label] = forecast.task_time.measure(made, cell, device, packs.Size(1))
    scratch, full, learner = found.values()
    assert min(scratch.setup, full.setup, full.step, full.text, full.pretraining) > 0
    assert scratch.pretraining == 0 == learner.step and learner.pretraining > 0


def test_a_given_speed_is_spent_on_the_products_of_a_fine_tuned_run() -> None:
    made = plan(parse(ON_TASK, Path("t.toml")))
    found = at_speed(made, 1e12)
    cell = next(one for one in made.cells if one.levels["method"] == "scratch")
    per_text = sizes.count(cell.config).flops_per_token * 64 / 1e12
    expected = 3 * per_text * 8 * 100 + per_text * 800 * 5
    assert found.seconds(cell, made.study.evaluation) == pytest.approx(expected)
