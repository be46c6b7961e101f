"""Devices, and the number of threads that a CPU worker gets."""

from __future__ import annotations

import sys

import pytest

from ablate.errors import AblateError
from ablate.launch import devices


def test_the_cpu_is_one_device(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (cpu,) = devices.find("cpu")
    assert (cpu.name, cpu.threads) == ("cpu", 3) and cpu.memory > 1 << 28


def test_hyperthreads_share_a_core(tmp_path):
    for k, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{k}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{k}/topology/thread_siblings_list").write_text(siblings)
    assert devices._cores(range(4), tmp_path) == 2
    assert devices._cores([1, 3], tmp_path) == 1  # an affinity that leaves one core
    assert devices._cores(range(4), tmp_path / "nothing") == 4


@pytest.mark.parametrize(("text", "processors"), [("150000 100000\n", 2), ("100000 100000\n", 1), ("max 100000\n", sys.maxsize)])
def test_a_container_quota_bounds_the_threads(tmp_path, text, processors):
    (tmp_path / "cpu.max").write_text(text)
    assert devices._quota(tmp_path / "cpu.max") == processors


def asked(monkeypatch, **found):
    monkeypatch.setattr(devices, "_ask_torch", lambda: {"cuda": [], "mps": [], "torch": "2.13", **found})
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: True)


def test_one_worker_a_gpu(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    asked(monkeypatch, cuda=[["cuda:0", 80], ["cuda:1", 80]])
    assert devices.find("auto") == devices.find("cuda") == [devices.Device("cuda:0", 80, 4), devices.Device("cuda:1", 80, 4)]


def test_auto_falls_back_to_the_cpu_and_cuda_does_not(monkeypatch):
    asked(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [device.name for device in devices.find("auto")] == ["cpu"]
    with pytest.raises(AblateError, match=r"device = 'cuda': torch 2.13 finds no such device, with CUDA_VISIBLE_DEVICES = ''"):
        devices.find("cuda")
    with pytest.raises(AblateError, match="did you mean 'cuda'"):
        devices.find("cude")


def test_torch_is_asked_in_a_process_of_its_own():
    before = "torch" in sys.modules
    assert devices._ask_torch()["torch"]
    assert ("torch" in sys.modules) == before


@pytest.mark.parametrize(
    ("cores", "runs", "expected"),
    [(8, 25, [1] * 8), (8, 3, [2] * 3), (8, 1, [8]), (1, 25, [1]), (64, 25, [4] * 15)],  # 64 GiB hold 15 workers of 4 GiB
)
def test_on_a_cpu_small_runs_train_side_by_side(cores, runs, expected):
    seats = devices.seats([devices.Device("cpu", 64 << 30, cores)], runs, n_shapes=9, run_bytes=(3 << 30) + 1)
    assert [seat.threads for seat in seats] == expected
    assert sum(seat.threads for seat in seats) <= cores


@pytest.mark.parametrize(
    ("shapes", "cores", "run_bytes", "workers"),
    [
        (32, 8, 1 << 30, 5),
        (1, 8, 1 << 30, 1),  # nothing else to compile
        (3, 8, 1 << 30, 2),  # two shapes for one GPU, one for the other
        (32, 2, 1 << 30, 2),
        (32, 8, 50 << 30, 1),  # a second model has no room beside the first
    ],
)
def test_a_gpu_has_workers_that_compile_while_one_trains(shapes, cores, run_bytes, workers):
    gpus = [devices.Device(f"cuda:{k}", 80 << 30, cores) for k in range(2)]
    seats = devices.seats(gpus, n_runs=25, n_shapes=shapes, run_bytes=run_bytes)
    assert [seat.name for seat in seats] == ["cuda:0", "cuda:1"] * workers
    assert {(seat.memory, seat.threads) for seat in seats} == {((80 << 30) // workers, cores // workers)}


def test_gpus_are_chosen_by_number(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    asked(monkeypatch, cuda=[[f"cuda:{k}", 80] for k in range(4)])
    assert [device.name for device in devices.find("auto", [2, 0, 2])] == ["cuda:2", "cuda:0"]
    with pytest.raises(AblateError, match="devices = 1,4: there is no GPU 4; choose among 0, 1, 2, 3"):
        devices.find("cuda", [1, 4])
    with pytest.raises(AblateError, match="devices = 0: there is no GPU 0; this study would run on cpu"):
        devices.find("cpu", [0])
