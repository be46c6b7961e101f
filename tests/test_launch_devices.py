"""Devices, and the number of threads that a CPU worker gets."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from command import QUICKSTART, Run
from launching import wait_for

from ablate import sizes
from ablate.cli import planning, running
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.launch import devices, packs


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


def answered(monkeypatch, **found):
    answer = {"cuda": [], "mps": [], "torch": "2.13", **found}
    monkeypatch.setattr(devices, "_asking", lambda: contextlib.nullcontext(lambda: answer))
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: True)


def test_one_worker_a_gpu(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    answered(monkeypatch, cuda=[["cuda:0", 80], ["cuda:1", 80]])
    assert devices.find("auto") == devices.find("cuda") == [devices.Device("cuda:0", 80, 4), devices.Device("cuda:1", 80, 4)]


def test_auto_falls_back_to_the_cpu_and_cuda_does_not(monkeypatch):
    answered(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [device.name for device in devices.find("auto")] == ["cpu"]
    with pytest.raises(AblateError, match=r"device = 'cuda': torch 2.13 finds no such device, with CUDA_VISIBLE_DEVICES = ''"):
        devices.find("cuda")
    with pytest.raises(AblateError, match="did you mean 'cuda'"):
        devices.find("cude")


def test_torch_is_asked_in_a_process_of_its_own():
    before = "torch" in sys.modules
    with devices._asking() as answer:
        assert answer()["torch"]
    assert ("torch" in sys.modules) == before


def test_torch_is_asked_at_once_and_only_once(tmp_path, monkeypatch):
    """The search is under way before its result is wanted."""
    begun = tmp_path / "begun"
    begun.mkdir()
    ask = f"import os, json; open({str(begun)!r} + f'/{{os.getpid()}}', 'w'); print(json.dumps({{'cuda': [['cuda:0', 80]]}}))"
    monkeypatch.setattr(devices, "_ASK", ask)
    with devices.searching("cuda") as found:
        wait_for(lambda: list(begun.iterdir()))
        assert [device.name for device in found([])] == [device.name for device in found([0])] == ["cuda:0"]
    assert len(list(begun.iterdir())) == 1


@pytest.mark.parametrize(("kind", "possible"), [("cpu", True), ("auto", False), ("cude", True)])
def test_nobody_is_asked_where_the_answer_is_known(monkeypatch, kind, possible):
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: possible)
    monkeypatch.setattr(devices, "_asking", lambda: pytest.fail("torch was asked"))
    with devices.searching(kind):
        pass


def test_torch_that_does_not_start_is_one_line(monkeypatch):
    monkeypatch.setattr(devices, "_ASK", "raise OSError('libcuda.so: not an ELF file')")
    with pytest.raises(AblateError, match=r"^torch does not start: OSError: libcuda.so: not an ELF file$"):
        devices.find("cuda")


@pytest.mark.parametrize("arguments", [["run", "nowhere"], ["run", QUICKSTART, "--size", "teeny"], ["plan", "nowhere"]])
def test_what_is_wrong_with_a_study_is_said_without_waiting_for_torch(ablate: Run, tmp_path, monkeypatch, arguments):
    """Nor is the process left that would answer."""
    asked = tmp_path / "asked"
    ask = f"import os, time; open({str(asked)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(20); os.remove({str(asked)!r})"
    monkeypatch.setattr(devices, "_ASK", ask)
    opened = planning.open_study

    def open_study(*given):
        wait_for(lambda: asked.exists() and asked.read_text().endswith("\n"))
        return opened(*given)

    for command in (planning, running):
        monkeypatch.setattr(command, "open_study", open_study)
    code, _, err = ablate(*arguments, "--device", "cuda")
    assert code == 2 and repr(arguments[-1]) in err
    assert asked.exists(), "torch's answer was waited for"
    assert not Path(f"/proc/{asked.read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("cores", "runs", "expected"),
    [(8, 25, [1] * 8), (8, 3, [2] * 3), (8, 1, [8]), (1, 25, [1]), (64, 25, [5] * 12)],  # 0.8 of 64 GiB hold 12 workers of 4 GiB
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
        (32, 8, 35 << 30, 1),  # a second model has no room beside the first
    ],
)
def test_a_gpu_has_workers_that_compile_while_one_trains(shapes, cores, run_bytes, workers):
    gpus = [devices.Device(f"cuda:{k}", 80 << 30, cores) for k in range(2)]
    seats = devices.seats(gpus, n_runs=25, n_shapes=shapes, run_bytes=run_bytes)
    assert [seat.name for seat in seats] == ["cuda:0", "cuda:1"] * workers
    assert {(seat.memory, seat.threads) for seat in seats} == {((80 << 30) // workers, cores // workers)}


def test_gpus_are_chosen_by_number(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    answered(monkeypatch, cuda=[[f"cuda:{k}", 80] for k in range(4)])
    assert [device.name for device in devices.find("auto", [2, 0, 2])] == ["cuda:2", "cuda:0"]
    with pytest.raises(AblateError, match="devices = 1,4: there is no GPU 4; choose among 0, 1, 2, 3"):
        devices.find("cuda", [1, 4])
    with pytest.raises(AblateError, match="devices = 0: there is no GPU 0; this study would run on cpu"):
        devices.find("cpu", [0])


@pytest.mark.parametrize("share", [0.35, 0.46, 0.6])
def test_a_share_of_a_gpu_holds_the_whole_batch_of_the_run_that_it_was_made_for(share):
    config = RunConfig(n_layer=12, d_model=768, n_head=12, n_ctx=1024, n_vocab=50304, batch_tokens=32 * 1024)
    run_bytes = sizes.memory_bytes(config, 1)
    gpu = devices.Device("cuda:0", int(run_bytes / share), 16)
    assert packs.size(config, devices.seats([gpu], 9, 9, run_bytes)[0], 0) == packs.Size(1)
