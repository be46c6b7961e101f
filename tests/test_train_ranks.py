"""One run by several processes: the numbers of one process, whoever wrote the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_process import case, together
from train_helpers import Events

# with clipping: the norm of the gradient is 0.5 to 2
CASES: dict[str, dict[str, Any]] = {
    "causal": {"fields": {"steps": 20, "grad_clip": 0.3}},
    "masked, in micro-batches": {
        "fields": {
            "steps": 20,
            "objective": "masked",
            "mask_kind": "span",
            "mask_ratio": 0.3,
            "dropout": 0.2,
            "grad_clip": 0.3,
            "z_loss": 1e-3,
            "precision": "float64",
        },
        "micro_batch": 1,
    },
    "a batch of 3": {"fields": {"steps": 20, "batch_tokens": 48, "precision": "float64"}},
    "recomputed": {"fields": {"steps": 5, "dropout": 0.1}, "recompute": True},
}
TOLERANCE = {"float64": 1e-9, "float32": 2e-5}
GPUS = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
        ],
    ),
]


def devices(kind: str) -> list[str]:
    return ["cpu", "cpu"] if kind == "cpu" else ["cuda:0", "cuda:1"]


def check_equal(found: Events, wanted: Events, rel: float) -> None:
    assert found.end["status"] == wanted.end["status"] == "complete"
    for name, points in wanted.curve().items():
        assert found.curve()[name] == pytest.approx(points, rel=rel), name
    rel = max(rel, 1e-6)  # some are averaged in float32 over the parts that are read at once
    assert found.measured() == pytest.approx(wanted.measured(), rel=rel, abs=rel, nan_ok=True)


@pytest.fixture(scope="module", params=GPUS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Events]]:
    """The cases by two processes, and two halves of runs: the second after one process's first."""
    folder, kind = tmp_path_factory.mktemp("ranks"), request.param
    half = {"fields": CASES["causal"]["fields"], "checkpoint": str(folder / "one.pt")}
    first = case(**half, device=devices(kind)[0], stop=9)
    assert first.end["status"] == "stopped" and 0 < first.end["step"] < 20
    begun = half | {"checkpoint": str(folder / "two.pt"), "stop": 3}
    cases = [*CASES.values(), half | {"resume": True}, begun]
    *whole, resumed, stopped = together(cases, folder, devices(kind))
    assert stopped.end["status"] == "stopped" and 0 < stopped.end["step"] < 20
    last = case(**begun | {"stop": 1 << 30, "resume": True}, device=devices(kind)[0])
    joined = {"1 → 2": Events(), "2 → 1": Events()}
    joined["1 → 2"].events = first.events + resumed.events
    joined["2 → 1"].events = stopped.events + last.events
    return kind, dict(zip(CASES, whole, strict=True)) | joined


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_losses_of_one(
    pair: tuple[str, dict[str, Events]], name: str
) -> None:
    """The same text, masks and dropout; sums are added up in another order."""
    kind, found = pair
    one = case(**CASES[name], device=devices(kind)[0])
    if "grad_clip" in CASES[name]["fields"]:
        assert min(one.series("grad_norm").values()) > CASES[name]["fields"]["grad_clip"]
    check_equal(found[name], one, TOLERANCE[CASES[name]["fields"].get("precision", "float32")])


@pytest.mark.parametrize("which", ["1 → 2", "2 → 1"])
def test_a_checkpoint_is_resumed_on_another_number_of_devices(
    pair: tuple[str, dict[str, Events]], which: str
) -> None:
    kind, found = pair
    assert found[which].of("start")[-1]["step"] > 0
    check_equal(found[which], case(**CASES["causal"], device=devices(kind)[0]), 2e-5)


def test_a_run_by_two_processes_costs_both(pair: tuple[str, dict[str, Events]]) -> None:
    _, found = pair
    seconds = found["causal"].finals()["train_seconds", 0]
    assert found["causal"].end["device_seconds"] > 2 * seconds
