"""Devices, and the number of threads that a CPU worker gets."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.kinds.transformer import run_of
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


@pytest.mark.parametrize(
    ("text", "processors"),
    [("150000 100000\n", 2), ("100000 100000\n", 1), ("max 100000\n", sys.maxsize)],
)
def test_a_container_quota_bounds_the_threads(tmp_path, text, processors):
    (tmp_path / "cpu.max").write_text(text)
    assert devices._quota(tmp_path / "cpu.max") == processors


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4000"}, [4000]),
        ("0::/\n", {"memory.max": "7000"}, [7000]),
        # a container that sees the path of its group on the host, but has its own group mounted
        ("0::/host/of/it\n", {"memory.max": "5000"}, [5000]),
        (
            "4:cpu,memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "3000", "memory/memory.limit_in_bytes": "6000"},
            [3000, 6000],
        ),
        ("4:memory:/gone\n", {}, []),
        (None, {}, []),
    ],
)
def test_the_memory_limits_of_a_container_count(tmp_path, groups, limits, expected):
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    if groups:
        own.write_text(groups)
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    assert sorted(set(devices._memory_limits(own, root))) == expected


def test_a_limit_of_memory_bounds_the_workers(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    monkeypatch.setattr(devices, "_memory_limits", lambda: [4 << 30])
    (cpu,) = devices.find("cpu")
    assert cpu.memory == 4 << 30
    assert len(devices.shares([cpu], 32, 1, 100 << 20)) == 2


def asked(monkeypatch, **found):
    monkeypatch.setattr(devices, "_nvidia", list)
    monkeypatch.setattr(
        devices, "_ask_torch", lambda: {"cuda": [], "mps": [], "torch": "2.13", **found}
    )
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: True)


def test_one_worker_a_gpu(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    asked(monkeypatch, cuda=[["cuda:0", 80], ["cuda:1", 80]])
    assert (
        devices.find("auto")
        == devices.find("cuda")
        == [devices.Device("cuda:0", 80, 4), devices.Device("cuda:1", 80, 4)]
    )


def test_auto_falls_back_to_the_cpu_and_cuda_does_not(monkeypatch):
    asked(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [device.name for device in devices.find("auto")] == ["cpu"]
    with pytest.raises(AblateError, match=r"'cuda': .* CUDA_VISIBLE_DEVICES = ''"):
        devices.find("cuda")
    with pytest.raises(AblateError, match="did you mean 'cuda'"):
        devices.find("cude")


def test_torch_is_asked_in_a_process_of_its_own():
    before = "torch" in sys.modules
    assert devices._ask_torch()["torch"]
    assert ("torch" in sys.modules) == before


def test_torch_that_does_not_start_is_one_line(monkeypatch):
    monkeypatch.setattr(devices, "_nvidia", list)
    monkeypatch.setattr(devices, "_ASK", "raise OSError('libcudart.so: not an ELF file')")
    devices._ask_torch.cache_clear()
    with pytest.raises(AblateError, match=r"libcudart.so: not an ELF file$"):
        devices.find("cuda")


class Driver:
    """NVIDIA's, with GPUs of some sizes."""

    def __init__(self, *sizes):
        self.sizes, self.cuInit = sizes, lambda flags: 0

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.sizes)

    def cuDeviceGet(self, gpu, number):
        gpu._obj.value = 100 + number

    def cuDeviceTotalMem_v2(self, size, gpu):
        size._obj.value = self.sizes[gpu.value - 100]


def with_driver(monkeypatch, tmp_path, driver, *, built="lib/libtorch_cuda.so"):
    """A torch that is built for CUDA, and this driver, or the error that loading it raises."""

    def load(name):
        if isinstance(driver, OSError):
            raise driver
        return driver

    (tmp_path / built).parent.mkdir(exist_ok=True)
    (tmp_path / built).touch()
    monkeypatch.setattr(
        devices.importlib.util,
        "find_spec",
        lambda name: SimpleNamespace(submodule_search_locations=[tmp_path]),
    )
    monkeypatch.setattr(devices.ctypes, "CDLL", load)
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: True)


def test_the_driver_is_asked_for_gpus_and_torch_is_not_imported_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    with_driver(monkeypatch, tmp_path, Driver(80 << 30, 48 << 30))
    monkeypatch.setattr(devices, "_ask_torch", lambda: pytest.fail("torch was asked"))
    assert devices.find("auto") == [
        devices.Device("cuda:0", 80 << 30, 4),
        devices.Device("cuda:1", 48 << 30, 4),
    ]


@pytest.mark.parametrize("why", ["no driver", "driver fails", "no GPU", "torch is for CPUs"])
def test_torch_is_asked_where_the_driver_does_not_say(monkeypatch, tmp_path, why):
    driver = Driver(*[] if why == "no GPU" else [80 << 30])
    if why == "driver fails":
        driver.cuInit = lambda flags: 999
    built = "lib/libtorch_cpu.so" if why == "torch is for CPUs" else "lib/libtorch_cuda.so"
    with_driver(
        monkeypatch,
        tmp_path,
        OSError("libcuda.so.1") if why == "no driver" else driver,
        built=built,
    )
    monkeypatch.setattr(
        devices, "_ask_torch", lambda: {"cuda": [["cuda:0", 7]], "mps": [], "torch": "2.13"}
    )
    assert [(device.name, device.memory) for device in devices.find("cuda")] == [("cuda:0", 7)]


@pytest.mark.cuda
def test_driver_and_torch_agree():
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    assert [list(gpu) for gpu in devices._nvidia()] == devices._ask_torch()["cuda"]


@pytest.mark.parametrize(
    ("cores", "runs", "expected"),
    # 0.8 of 64 GiB hold 12 workers of 4 GiB
    [(8, 25, [1] * 8), (8, 3, [2] * 3), (8, 1, [8]), (1, 25, [1]), (64, 25, [5] * 12)],
)
def test_on_a_cpu_small_runs_train_side_by_side(cores, runs, expected):
    shares = devices.shares(
        [devices.Device("cpu", 64 << 30, cores)], runs, n_shapes=9, run_bytes=(3 << 30) + 1
    )
    assert [share.threads for share in shares] == expected
    assert sum(share.threads for share in shares) <= cores


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
    shares = devices.shares(gpus, n_runs=25, n_shapes=shapes, run_bytes=run_bytes)
    assert [share.name for share in shares] == ["cuda:0", "cuda:1"] * workers
    assert {(share.memory, share.threads) for share in shares} == {
        ((80 << 30) // workers, cores // workers)
    }


def test_gpus_are_chosen_by_number(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    asked(monkeypatch, cuda=[[f"cuda:{k}", 80] for k in range(4)])
    assert [device.name for device in devices.find("auto", [2, 0, 2])] == ["cuda:2", "cuda:0"]
    with pytest.raises(AblateError, match=r"no GPU 4.* 0, 1, 2, 3"):
        devices.find("cuda", [1, 4])
    with pytest.raises(AblateError, match="no GPU 0"):
        devices.find("cpu", [0])


@pytest.mark.parametrize("share", [0.35, 0.46, 0.6])
def test_a_share_of_a_gpu_holds_the_whole_batch_of_the_run_that_it_was_made_for(share):
    config = RunConfig(
        n_layer=12, d_model=768, n_head=12, n_ctx=1024, n_vocab=50304, batch_tokens=32 * 1024
    )
    run_bytes = sizes.memory_bytes(config, 1)
    gpu = devices.Device("cuda:0", int(run_bytes / share), 16)
    assert packs.size(run_of(config), devices.shares([gpu], 9, 9, run_bytes)[0], 0) == packs.Size(1)
