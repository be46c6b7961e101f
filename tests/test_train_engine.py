"""The engine: events, finals, bit-identical curves, resumption, divergence."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import train_helpers
from train_helpers import EVALUATION, Events, after, config, run, text

from ablate import text as texts
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.batches import length_windows
from ablate.data.objectives import Example
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, Progress
from ablate.kinds.transformer import run_of
from ablate.text import corpora, tokenizers
from ablate.train import checkpoint, compiled, engine
from ablate.train.evaluate import Evaluator
from ablate.train.meter import Meter
from ablate.train.step import Step


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- events ----------------------------------------------------------------------------------------


def test_a_run_learns_and_emits_its_curve() -> None:
    (events,) = run(config(steps=60))
    assert [event["event"] for event in events.events][:1] == ["start"]
    assert [event["event"] for event in events.events][-2:] == ["final", "end"]
    losses = list(events.series("train_loss").values())
    assert losses[0] > 3.4  # log 32 = 3.47
    assert losses[-1] < 0.5 * losses[0]
    held_out = events.series("loss")
    assert list(held_out) == [20, 40, 60]
    assert held_out[60] < held_out[20] < losses[0]
    assert events.end["status"] == "complete" and events.end["step"] == 60
    assert events.end["device_seconds"] > 0 and events.end["peak_bytes"] > 1e6
    assert all(speed > 0 for speed in events.series("tokens_per_second").values())


def test_finals_of_a_causal_run() -> None:
    (events,) = run(
        config(position="alibi"), evaluation=Evaluation(points=2, tokens=256, lengths=(1, 2, 4))
    )
    finals = events.finals()
    assert finals["loss", 0] == events.series("loss")[30]
    # every token spells two bytes
    assert finals["bits_per_byte", 0] == pytest.approx(finals["loss", 0] / math.log(2) / 2)
    assert 0 < finals["accuracy", 0] < 1
    assert finals["copy_loss", 0] == events.series("copy_loss")[30]
    assert finals["copy_loss_first", 0] == events.series("copy_loss_first")[30]
    assert finals["loss", 0] < finals["unigram_loss", 0] < math.log(32) + 0.01
    # 3600 tokens hold 224 windows of 16, whatever the offset
    assert finals["epochs", 0] == pytest.approx(30 * 4 / 224)
    assert finals["train_seconds", 0] > 0
    assert [at for name, at in finals if name == "loss_at_length"] == [1, 2, 4]
    assert [at for name, at in finals if name == "loss_at_position"] == [0, 1, 2, 4, 8]
    for name in ("stream_rms", "token_similarity"):
        assert [at for other, at in finals if other == name] == [0, 1, 2]
    weights = [1, 1, 2, 4, 8]
    by_position = [finals["loss_at_position", at] for at in (0, 1, 2, 4, 8)]
    assert finals["loss", 0] == pytest.approx(
        sum(w * v for w, v in zip(weights, by_position, strict=True)) / 16, rel=1e-6
    )
    assert all(isinstance(value, float | int) and math.isfinite(value) for value in finals.values())


@pytest.mark.parametrize(
    ("changes", "evaluation"),
    [
        ({}, Evaluation(points=3, tokens=256)),
        ({"position": "none"}, Evaluation(points=2, tokens=256, final_tokens=384, lengths=(1, 2))),
        ({"objective": "masked"}, Evaluation(points=2, tokens=256, probe={"ratio": (0.2, 0.5)})),
        ({"objective": "masked"}, Evaluation(points=1, tokens=128, final_tokens=1 << 20)),
    ],
)
def test_the_forecast_knows_how_many_tokens_the_evaluations_read(
    changes: dict[str, str], evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    score = Evaluator._sums

    def counted(self: Evaluator, part: Example, *more: Any) -> object:
        read.append(part.inputs.numel())
        return score(self, part, *more)

    monkeypatch.setattr(Evaluator, "_sums", counted)
    wanted = config(**changes)
    run(wanted, evaluation=evaluation)
    # of 400 held-out tokens, 24 windows of 16 fit
    assert sum(read) == evaluation.read(wanted, 384)


def test_every_length_scores_the_same_tokens() -> None:
    wanted, evaluation = [config(position="none")], Evaluation(tokens=256, lengths=(1, 2))
    step = Step(wanted, train_helpers.text(), "cpu")
    finals = {
        (name, at): values
        for name, at, values in Evaluator(step, wanted, evaluation, train_helpers.text()).finals()
    }
    windows = length_windows(train_helpers.text().held_out, 16, (1, 2), 256)
    for factor in (1, 2):
        # the last quarter of n_ctx
        logits = step.model(windows[None, :, -1 - 16 * factor : -1])[:, :, -4:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), windows[:, -4:].flatten())
        assert finals["loss_at_length", factor] == pytest.approx([loss.item()], rel=1e-6)


def test_lengths_beyond_a_learned_position_are_left_out() -> None:
    (events,) = run(
        config(position="learned"), evaluation=Evaluation(points=1, tokens=256, lengths=(1, 2))
    )
    assert [at for name, at in events.finals() if name == "loss_at_length"] == [1]


def test_finals_of_masked_runs_are_on_the_same_scored_tokens() -> None:
    grid = Evaluation(points=1, tokens=256, probe={"ratio": (0.15, 0.5)})
    low, high = run(
        config(objective="masked", mask_ratio=0.15),
        config(objective="masked", mask_ratio=0.6),
        evaluation=grid,
    )
    for finals in (low.finals(), high.finals()):
        assert {at for name, at in finals if name == "probe_loss"} == {0.15, 0.5}
        assert {at for name, at in finals if name == "probe_accuracy"} == {0.15, 0.5}
        assert finals["pseudo_perplexity", 0] > 1
    # An untrained pair would differ by the ratio alone at its own test, and not at all on a probe:
    rows = {"lr": 1e-12, "steps": 1, "objective": "masked", "seed": 3}
    one, other = run(
        config(**rows, mask_ratio=0.15), config(**rows, mask_ratio=0.6), evaluation=grid
    )
    assert one.finals()["probe_loss", 0.5] == pytest.approx(
        other.finals()["probe_loss", 0.5], rel=1e-6
    )
    assert one.finals()["loss", 0] != pytest.approx(other.finals()["loss", 0], rel=1e-6)


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (200, 1), (201, 2), (450, 3), (100_000, 500)])
def test_at_most_200_points_the_last_at_the_end(steps: int, every: int) -> None:
    points = Meter(steps, 1).add(0, np.ones((steps, 3, 1)))
    assert [point.step for point in points] == sorted({*range(every, steps + 1, every), steps})
    assert len(points) <= 200


def test_a_point_is_the_mean_of_the_steps_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    (every,) = run(config())
    monkeypatch.setattr("ablate.train.meter.POINTS", 10)
    (few,) = run(config())
    single = list(every.series("train_loss").values())
    means = [sum(single[i : i + 3]) / 3 for i in range(0, 30, 3)]
    assert list(few.series("train_loss").values()) == pytest.approx(means, rel=1e-12)
    assert few.series("lr")[30] == every.series("lr")[30]


def test_the_learning_rate_follows_the_schedule() -> None:
    (events,) = run(config(schedule="linear", warmup=0.1, lr=0.02))
    expected = [0.02 * min((step + 1) / 3, 1) * (1 - max(step - 3, 0) / 27) for step in range(30)]
    assert list(events.series("lr").values()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("level", CATALOGUE["precision"].names)
def test_precisions_agree(level: str) -> None:
    (reference,), (events,) = run(config(precision="float64")), run(config(precision=level))
    tolerance = {"float64": 0, "float32": 1e-4, "bfloat16": 0.1}[level]
    assert events.finals()["loss", 0] == pytest.approx(reference.finals()["loss", 0], abs=tolerance)


def test_held_out_text_is_read_without_dropout() -> None:
    """Weights start alike whatever the dropout, and an untrained model tells."""
    losses = []
    for dropout in (0.0, 0.5):
        wanted = [config(dropout=dropout)]
        losses.append(
            Evaluator(
                Step(wanted, train_helpers.text(), "cpu"),
                wanted,
                train_helpers.EVALUATION,
                train_helpers.text(),
            )
            .held_out()
            .loss
        )
    assert losses[0] == losses[1]


def test_a_downstream_probe_tells_novels_apart_better_than_chance() -> None:
    austen = corpora.find("austen", Path())
    byte = tokenizers.describe("byte", austen, Path())
    known = {
        "corpus": "austen",
        "corpus_hash": austen.hash,
        "n_vocab": 256,
        "tokenizer_hash": byte.hash,
    }
    wanted = config(**known, n_ctx=32, steps=2)
    tokens = texts.load(wanted, {austen.hash: austen.location, byte.hash: byte.location})
    evaluation = Evaluation(points=1, tokens=64, downstream=("novel_accuracy",))
    one, other = run(
        wanted, wanted.model_copy(update={"seed": 1}), tokens=tokens, evaluation=evaluation
    )
    for events in (one, other):
        assert 1 / 6 < events.finals()["novel_accuracy", 0] < 1


def test_what_cannot_be_measured_is_refused_before_training() -> None:
    events = Events()
    with pytest.raises(AblateError, match="'era_accuraccy'"):
        run(
            config(),
            evaluation=Evaluation(points=1, tokens=64, downstream=("era_accuraccy",)),
            into=[events],
        )
    assert events.events == []


# -- the same seed, the same bits ------------------------------------------------------------------


def fresh_process(of: RunConfig) -> dict:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(train_helpers.__file__))]
    done = subprocess.run(
        command, input=of.model_dump_json(), capture_output=True, text=True, env=env, check=True
    )
    return json.loads(done.stdout)


def test_a_cached_step_equals_a_fresh_process_bit_for_bit() -> None:
    wanted = config(seed=5, dropout=0.1, lr=3e-3)
    run(config(d_model=8, steps=3))  # another shape
    # the same shape, left in a bad way: its step is kept
    run(config(seed=1, dropout=0.1, lr=0.5, steps=10, weight_decay=0.0))
    (cached,) = run(wanted)
    fresh = fresh_process(wanted)
    assert fresh["curve"] == json.loads(json.dumps(cached.curve()))
    assert fresh["finals"] == [[*key, value] for key, value in cached.measured().items()]


def test_how_a_run_keeps_within_memory_is_no_part_of_it() -> None:
    wanted = config(dropout=0.1, precision="float64")
    (whole,), (small,) = run(wanted), run(wanted, micro_batch=3, recompute=True)  # of 4 sequences
    assert list(small.series("train_loss").values()) == pytest.approx(
        list(whole.series("train_loss").values()), rel=1e-11
    )
    assert small.measured() == pytest.approx(whole.measured(), rel=1e-11)


def test_another_seed_gives_another_curve() -> None:
    (one,), (other,) = run(config(seed=1)), run(config(seed=2))
    assert one.series("train_loss")[1] != other.series("train_loss")[1]


@pytest.mark.parametrize("stops", [(1,), (10,), (11,), (5, 20), (29,)])
def test_stop_and_resume_change_no_bit(
    stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point averages three steps, so stops fall between points, on them, on evaluations."""
    monkeypatch.setattr("ablate.train.meter.POINTS", 10)
    wanted = config(d_model=8, dropout=0.1)
    (whole,) = run(wanted)
    events, path, done = [Events()], tmp_path / "job.pt", 0
    for stop in stops:
        run(wanted, into=events, checkpoint=path, stop=after(stop + 1 - done), resume=done > 0)
        assert events[0].end["status"] == "stopped" and events[0].end["step"] == stop
        assert events[0].of("checkpoint")[-1]["step"] == stop and path.exists()
        # the cached step meanwhile serves another run
        run(config(steps=5, d_model=8, dropout=0.1, seed=9))
        done = stop
    run(wanted, into=events, checkpoint=path, resume=True)
    assert events[0].of("start")[-1]["step"] == stops[-1]
    assert events[0].curve() == whole.curve()
    assert events[0].measured() == whole.measured()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_event_and_a_resume_change_no_bit(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(engine, "BLOCK_SECONDS", 0.02)
    monkeypatch.setattr("ablate.train.meter.POINTS", 10)
    wanted = config(d_model=8)
    (whole,) = run(wanted)
    events = Events()
    random = torch.Generator().manual_seed(seed)

    class Killed(Exception):
        pass

    for _ in range(4):
        fuse = int(torch.randint(2, 20, (), generator=random))

        def emit(event: str, **values: object) -> None:
            nonlocal fuse
            fuse -= 1
            if fuse == 0:
                raise Killed
            events(event, **values)

        try:
            run(wanted, into=[cast("Events", emit)], checkpoint=tmp_path / "c", resume=True)
            break
        except Killed:
            pass
    else:
        run(wanted, into=[events], checkpoint=tmp_path / "c", resume=True)
    assert events.curve() == whole.curve()
    assert events.measured() == whole.measured()


def test_a_checkpoint_newer_than_what_is_stored_is_not_continued(tmp_path: Path) -> None:
    """The job writes a file of its own, and leaves neither."""
    (whole,) = run(config())
    old, own = tmp_path / "old.pt", tmp_path / "own.pt"
    for covered, step in ((29, 20), (19, 10), (9, 0)):
        run(config(), checkpoint=old, stop=after(11))
        old.rename(checkpoint.previous(old))
        run(config(), checkpoint=old, stop=after(21))
        events = Events()
        job = Job((run_of(config()),), EVALUATION, checkpoint=own, resume=old, covered=covered)
        engine.train(job, Context("cpu", [events], after(5)), text())
        assert events.of("start")[0]["step"] == step
        assert events.end["status"] == "stopped" and events.end["step"] == step + 4
        assert [file.name for file in tmp_path.iterdir()] == ["own.pt"]
        run(config(), into=[events], checkpoint=own, resume=True)
        assert events.series("loss")[30] == whole.series("loss")[30]
        assert not list(tmp_path.iterdir())


def test_some_members_of_a_pack_can_be_resumed(tmp_path: Path) -> None:
    pack = [config(seed=seed, precision="float64") for seed in range(3)]
    whole = run(*pack)
    run(*pack, checkpoint=tmp_path / "c", stop=after(12))
    two, zero = run(pack[2], pack[0], checkpoint=tmp_path / "c", resume=True)
    assert two.of("start")[0]["step"] == 11
    assert two.finals()["loss", 0] == pytest.approx(whole[2].finals()["loss", 0], rel=1e-9)
    assert zero.finals()["loss", 0] == pytest.approx(whole[0].finals()["loss", 0], rel=1e-9)


def test_a_checkpoint_of_other_runs_is_not_taken_up(tmp_path: Path) -> None:
    run(config(seed=1), checkpoint=tmp_path / "c", stop=after(12))
    (events,) = run(config(seed=2), checkpoint=tmp_path / "c", resume=True)
    assert events.of("start")[0]["step"] == 0
    assert events.curve() == run(config(seed=2))[0].curve()


def test_a_checkpoint_of_a_child_of_another_parent_is_not_taken_up(tmp_path: Path) -> None:
    run(config(), parent="aa" * 32, checkpoint=tmp_path / "c", stop=after(12))
    for parent, step in (("bb" * 32, 0), ("", 0), ("aa" * 32, 11)):
        (tmp_path / "own").write_bytes((tmp_path / "c").read_bytes())
        (events,) = run(config(), parent=parent, checkpoint=tmp_path / "own", resume=True)
        assert events.of("start")[0]["step"] == step


def test_progress_is_told_by_steps_and_by_parts_of_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, parts, saving = Progress(), [], []
    sums, save = Evaluator._sums, checkpoint.save

    def counted(self: Evaluator, part: Example, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        parts.append((progress.done, progress.long))
        return sums(self, part, *more)

    def saved(*of: Any) -> None:
        saving.append(progress.long)
        save(*of)

    monkeypatch.setattr(Evaluator, "_sums", counted)
    monkeypatch.setattr(checkpoint, "save", saved)
    monkeypatch.setattr(engine, "CHECKPOINT_SECONDS", 0.0)
    emitted: list[tuple[str, int, bool]] = []

    def emit(event: str, **values: Any) -> None:
        emitted.append((event, progress.done, progress.long))

    context = Context("cpu", [emit], progress=progress)
    evaluation = Evaluation(points=3, tokens=256)
    job = Job((run_of(config()),), evaluation, checkpoint=tmp_path / "c.pt")
    engine.train(job, context, text())
    assert emitted[0] == ("start", 0, True), "the first step may take long"
    assert not any(long for _, _, long in emitted[1:])
    points = [done for event, done, _ in emitted if event == "metrics"]
    assert points[-1] - points[0] >= 29, "steps"
    assert len(parts) > 9 and len({done for done, _ in parts}) == len(parts), "each moves it on"
    assert not any(long for _, long in parts)
    assert saving and all(saving)


def test_checkpoints_come_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (events,) = run(config(), checkpoint=tmp_path / "c")
    assert events.of("checkpoint") == []
    monkeypatch.setattr(engine, "CHECKPOINT_SECONDS", 0.0)
    (events,) = run(config(), checkpoint=tmp_path / "c", evaluation=Evaluation(points=6, tokens=64))
    assert len(events.of("checkpoint")) >= 5
    assert checkpoint.load(tmp_path / "c") is None  # removed when the run is complete


# -- divergence ------------------------------------------------------------------------------------


def test_a_diverged_member_ends_with_its_step_and_nan_finals_and_harms_no_other() -> None:
    evaluation = Evaluation(points=3, tokens=256, lengths=(1, 2))
    good, bad = run(config(seed=1), config(seed=2, lr=1e30), evaluation=evaluation)
    beside_good, _ = run(config(seed=1), config(seed=2), evaluation=evaluation)
    assert good.curve() == beside_good.curve() and good.measured() == beside_good.measured()
    step = bad.end["step"]
    assert bad.end["status"] == "diverged" and step == 2  # the first update was too large
    losses = bad.series("train_loss")
    assert list(losses) == [1, 2] and math.isfinite(losses[1]) and not math.isfinite(losses[2])
    assert bad.series("loss") == {}
    assert all(math.isnan(value) for value in bad.finals().values())
    assert {
        ("loss", 0),
        ("accuracy", 0),
        ("bits_per_byte", 0),
        ("loss_at_length", 1),
        ("loss_at_length", 2),
    } <= set(bad.finals())
    assert len(bad.of("end")) == 1


@pytest.mark.parametrize("lr", [1e30, 1e4], ids=["not finite", "finite"])
def test_a_blow_up_in_the_last_update_is_a_divergence(lr: float) -> None:
    """Its training losses are those of an ordinary run: only a later step would see the update."""
    ruin = {"steps": 1, "warmup": 0.0, "lr": lr, "schedule": "constant"}
    good, bad = run(config(seed=1, steps=1), config(seed=1, **ruin))
    assert good.series("train_loss") == bad.series("train_loss")
    assert good.end["status"] == "complete" and math.isfinite(good.finals()["loss", 0])
    assert bad.end["status"] == "diverged" and bad.end["step"] == 1
    assert all(math.isnan(value) for value in bad.finals().values())
    assert len(bad.of("end")) == 1 and bad.of("windows") == []
    assert bad.series("loss") == {}


def test_a_run_whose_final_loss_is_not_finite_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the loss of its last batch is ordinary."""
    score = Evaluator._sums

    def not_finite(self: Evaluator, part: Example, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        position, window = score(self, part, *more)
        position[0, 1] = math.inf  # nats of the second member
        return position, window

    monkeypatch.setattr(Evaluator, "_sums", not_finite)
    good, bad = run(config(seed=1), config(seed=2))
    assert good.end["status"] == "complete" and math.isfinite(good.finals()["loss", 0])
    assert bad.end["status"] == "diverged" and bad.end["step"] == 30
    assert all(math.isnan(value) for value in bad.finals().values())
    assert bad.of("windows") == [] and len(bad.of("final")) == len(bad.of("end")) == 1


def test_a_run_that_overfits_has_not_diverged() -> None:
    """Held-out loss far above log V, on text that has nothing of the training text."""
    tokens = train_helpers.text()
    tokens = dataclasses.replace(tokens, held_out=(31 - tokens.held_out).astype(np.uint8))
    (events,) = run(config(steps=300), tokens=tokens)
    assert events.end["status"] == "complete"
    assert events.finals()["loss", 0] > math.log(32)


def test_a_pack_whose_members_have_all_diverged_ends(tmp_path: Path) -> None:
    events = run(
        config(seed=1, lr=1e30, steps=2000),
        config(seed=2, lr=1e30, steps=2000),
        checkpoint=tmp_path / "c",
    )
    assert [member.end["status"] for member in events] == ["diverged", "diverged"]
    assert events[0].end["device_seconds"] < 5


def test_divergence_in_a_cached_step_does_not_reach_the_next_run() -> None:
    (before,) = run(config(seed=4))
    run(config(seed=4, lr=1e30))
    (again,) = run(config(seed=4))
    assert again.curve() == before.curve()


def test_divergence_before_a_stop_stays_after_the_resume(tmp_path: Path) -> None:
    pack = [config(seed=1), config(seed=2, lr=1e30)]
    events = run(*pack, checkpoint=tmp_path / "c", stop=after(12))
    assert [member.end["status"] for member in events] == ["stopped", "diverged"]
    run(*pack, checkpoint=tmp_path / "c", resume=True, into=events)
    assert [member.end["status"] for member in events] == ["complete", "diverged"]
    assert events[1].end["step"] == 2
    assert events[0].curve() == run(*pack)[0].curve()


@pytest.mark.parametrize("name", ["held_out", "finals"])
def test_an_evaluation_without_memory_is_repeated_without_the_steps_of_other_shapes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = run(config())
    monkeypatch.setattr("ablate.train.compiled.step_cache", OrderedDict())
    monkeypatch.setitem(compiled.KEPT, "cpu", 8)
    run(config(d_mlp=5))
    evaluate = getattr(Evaluator, name)

    def short(evaluator: Evaluator) -> Any:
        if len(compiled.step_cache) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 344 MiB.")
        return evaluate(evaluator)

    monkeypatch.setattr(Evaluator, name, short)
    (events,) = run(config())
    assert events.curve() == expected.curve() and events.measured() == expected.measured()

    def none(evaluator: Evaluator) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 344 MiB.")

    monkeypatch.setattr(Evaluator, name, none)
    with pytest.raises(torch.OutOfMemoryError):
        run(config())


class Clock:
    """Goes on by a hundredth of a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def test_seconds_are_shared_by_a_pack_and_neither_set_up_nor_waiting_is_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("ablate.train.engine.time.perf_counter", clock)
    # no step knows its pace from another test
    monkeypatch.setattr("ablate.train.compiled.step_cache", OrderedDict())

    def wait(*_: object, **__: object) -> None:
        clock.now += 1000

    monkeypatch.setattr("ablate.train.compiled.CompiledStep.prepare", wait)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        wait()
        yield

    (alone,) = run(config())
    four = run(*(config(seed=seed) for seed in range(4)), device_lock=turn())
    for events in four:
        assert events.finals()["train_seconds", 0] == pytest.approx(
            alone.finals()["train_seconds", 0] / 4
        )
        assert 0 < events.end["device_seconds"] < alone.end["device_seconds"] < 10
