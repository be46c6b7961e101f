"""How a worker classifies failures of torch: memory that ran out, a device that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launch_helpers import launch, rows, small_plan, use_stub, use_worker
from train_helpers import run

from ablate import text
from ablate.launch.trainer import TorchTrainer
from ablate.study_run import Outcome


def test_a_worker_trains_with_the_threads_that_it_records() -> None:
    """A run's bits depend on them."""
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            assert (
                TorchTrainer().setup("cpu", threads, 1 << 30)["threads"]
                == threads
                == torch.get_num_threads()
            )
    finally:
        torch.set_num_threads(before)


def test_out_of_memory_errors_of_torch_are_recognised() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(1 << 60)
    for error in (
        real.value,
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
        ),
    ):
        assert TorchTrainer().status(error) == "oom"
    for other in (
        RuntimeError("The size of tensor a (2) must match the size of tensor b (3)"),
        ValueError("out of memory"),
    ):
        assert TorchTrainer().status(other) == "failed"


def test_a_device_is_usable_until_it_no_longer_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TorchTrainer().usable("cpu")

    def lost(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", lost)
    assert not TorchTrainer().usable("cuda:0")


SCARCE = """
import torch
from ablate.launch import worker
from ablate.launch.trainer import TorchTrainer
class Scarce(TorchTrainer):
    def train(self, job, context):
        if not 0 < job.micro_batch * job.runs[0].fields["n_ctx"] <= 16:
            torch.empty(1 << 60)
        super().train(job, context)
worker.main(Scarce)
"""


def test_a_run_without_memory_is_done_in_micro_batches_and_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real trainer on a device that holds two of its eight sequences at once."""
    use_stub(monkeypatch)
    use_worker(monkeypatch, "scarce", tmp_path, setup=SCARCE)
    plan = small_plan(tmp_path, [1e-2], steps=20)
    outcome, output = launch(plan, tmp_path / "a.db")
    assert outcome == Outcome({"complete": 1}, 0)
    assert rows(tmp_path / "a.db", "SELECT status FROM attempt ORDER BY n") == [
        ("oom",),
        ("complete",),
    ]
    assert "stub 0/1: lr=0.01, seed 0 oom: RuntimeError: " in output
    assert "stub: lr=0.01, seed 0 is retried with 2 of 8 sequences in memory at once" in output
    losses = (
        "SELECT step, value FROM metric JOIN series ON id = series_id WHERE name = 'train_loss'"
    )
    (whole,) = run(
        plan.runs[0].config,
        evaluation=plan.study.evaluation,
        tokens=text.load(plan.runs[0].config, plan.sources),
    )
    assert dict(rows(tmp_path / "a.db", losses)) == pytest.approx(
        whole.series("train_loss"), rel=1e-5
    )
    assert len(whole.series("train_loss")) == 20
