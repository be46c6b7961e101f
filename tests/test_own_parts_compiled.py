"""Parts of a user's own in compiled and captured steps, and steps that neither is possible for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from test_own_parts import CASES, HEAD, MODELS, PARTS
from test_train_compiled import cuda
from train_helpers import config, run, text

from ablate import outside
from ablate.code import of_text
from ablate.train import compiled
from ablate.train.step import Step

AWKWARD = f"""{HEAD}
@level("activation", "asks", meaning="relu(x)², after asking for a number")
class Asks(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** (2 if x.sum().item() < 1e9 else 1)

@torch.compiler.disable
def squared(x):
    return torch.relu(x) ** 2

@level("activation", "uncompiled", meaning="relu(x)², which no compiler may see")
def uncompiled(x):
    return squared(x)
"""


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiled, "step_cache", type(compiled.step_cache)())
    code = of_text("parts.py", PARTS, {"models": MODELS})
    outside.use([code, of_text("awkward.py", AWKWARD)])
    yield
    outside.use(())


# -- without a GPU ---------------------------------------------------------------------------------


def prepared(
    monkeypatch: pytest.MonkeyPatch, impossible: tuple[str, ...], code: tuple[str, ...] = ("a@b",)
) -> tuple[compiled.CompiledStep, list[str]]:
    """A step of which some modes cannot be captured, and the modes that were tried."""
    of = config(activation="squared").model_copy(update={"code": code})
    step = SimpleNamespace(
        device=torch.device("cuda"),
        config=of,
        model=SimpleNamespace(recompute=False, pack=1),
        functions=None,
        step="step",
        replay="step",
    )
    tried: list[str] = []

    def capture(step: Any) -> None:
        tried.append(step.functions)
        if step.functions in impossible:
            raise RuntimeError("the stream is capturing. It is not allowed.")
        step.replay = "graph"

    monkeypatch.setattr(compiled, "functions", lambda step, mode: mode)
    monkeypatch.setattr(compiled, "capture", capture)
    monkeypatch.setattr(compiled, "timed", lambda step: 0.01)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    made = compiled.CompiledStep(cast(Step, step))
    made.prepare(100, "whole")
    made.prepare(100, "whole")  # what was found once is not tried again
    return made, tried


def test_a_part_that_cannot_be_compiled_is_captured_eagerly_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, tried = prepared(monkeypatch, ("whole",))
    assert tried == ["whole", "eager"] and made.mode == "eager" and made.step.replay == "graph"
    assert made.note.startswith("not compiled (whole): ") and "capturing" in made.note


def test_a_part_that_cannot_be_captured_runs_eagerly_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, tried = prepared(monkeypatch, ("whole", "eager"))
    assert tried == ["whole", "eager"] and made.mode == "eager" and made.step.replay == "step"
    assert made.note.startswith("run eagerly: ")


def test_a_model_of_ablates_own_that_cannot_be_compiled_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, tried = prepared(monkeypatch, ())
    assert tried == ["whole"] and made.mode == "whole" and not made.note
    with pytest.raises(RuntimeError):
        prepared(monkeypatch, ("whole",), code=())


def test_a_note_is_an_event_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: compiled.CompiledStep, *_: Any, **__: Any) -> None:
        self.note = "run eagerly: because"

    monkeypatch.setattr(compiled.CompiledStep, "prepare", prepare)
    (events,) = run(config(steps=3, activation="squared"))
    assert events.of("start")[0]["note"] == "run eagerly: because"


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_plain_part_is_one_graph(case: dict[str, Any]) -> None:
    """Two members, compiled without a break, compute what they compute eagerly."""
    torch._dynamo.reset()
    step = Step([config(seed=seed, **case) for seed in (1, 2)], text(), "cpu")
    step.windows.random_(32, generator=torch.Generator().manual_seed(0))
    example = step.example()
    scored = example.weights.sum((1, 2))
    whole = torch.compile(step.losses, fullgraph=True, backend="eager")
    for one, other in zip(whole(example, scored), step.losses(example, scored), strict=True):
        torch.testing.assert_close(one, other)


# -- on a GPU --------------------------------------------------------------------------------------


@cuda
@pytest.mark.parametrize("mode", ["eager", "block", "whole"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_captured_pack_of_plain_parts_equals_eager_single_runs(
    case: dict[str, Any], mode: str
) -> None:
    configs = [config(seed=seed, lr=1e-3, steps=20, **case) for seed in (3, 4)]
    together = compiled.CompiledStep(Step(configs, text(), "cuda"))
    together.prepare(20, mode)
    assert together.mode == mode and not together.note, together.note
    assert together.step.replay != together.step.step
    together.step.run(20, lambda: False)
    for k, one in enumerate(configs):
        solo = Step([one], text(), "cuda")
        solo.run(20, lambda: False)
        # kernels differ, and training makes differences grow
        difference = abs(together.step.read(20)[0][:, 0, k] - solo.read(20)[0][:, 0, 0])
        assert difference.max() < 1e-3, difference


@cuda
@pytest.mark.parametrize(
    ("name", "mode", "said", "captured"),
    [
        ("uncompiled", "whole", "not compiled (whole)", True),
        ("uncompiled", "eager", "", True),
        ("asks", "whole", "run eagerly", False),
        ("asks", "eager", "run eagerly", False),
    ],
)
def test_a_part_that_breaks_compilation_or_capture_trains_all_the_same(
    name: str, mode: str, said: str, captured: bool
) -> None:
    plain, awkward = (
        Step([config(activation=one, steps=20)], text(), "cuda") for one in ("squared", name)
    )
    before = awkward.optimiser.weights.clone()
    made = compiled.CompiledStep(awkward)
    made.prepare(20, mode)
    assert made.mode == "eager" and made.note.startswith(said) and bool(made.note) == bool(said)
    assert (awkward.replay != awkward.step) == captured
    assert torch.equal(awkward.optimiser.weights, before) and awkward.done == 0
    for step in (plain, awkward):
        step.run(20, lambda: False)
    assert abs(plain.read(20)[0][:, 0] - awkward.read(20)[0][:, 0]).max() < 1e-4


@cuda
def test_a_run_of_a_part_that_breaks_capture_completes_with_a_note_and_others_follow() -> None:
    (events,) = run(config(activation="asks", steps=20), device="cuda")
    assert events.end["status"] == "complete" and "asks" in events.of("start")[0]["note"]
    (after,) = run(config(activation="squared", steps=20), device="cuda")
    assert after.end["status"] == "complete" and after.of("start")[0]["note"] is None
