"""The devices a study can run on, found without importing torch in this process."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ablate.errors import AblateError, unknown

KINDS = ("auto", "cpu", "cuda", "mps")
WORKER_BYTES = (
    1 << 30
)  # of a worker before its run: Python, torch, the text; or what CUDA needs for itself
MEMORY_SHARE = 0.8  # of a device's memory that runs may be estimated to take
COMPILING = 4  # workers of a GPU that make their next job ready, beside the one that trains

_ASK = """
import json, torch
memory = lambda k: torch.cuda.get_device_properties(k).total_memory
cuda = [["cuda:%d" % k, memory(k)] for k in range(torch.cuda.device_count())]
mps = [["mps", torch.mps.recommended_max_memory()]] if torch.backends.mps.is_available() else []
print(json.dumps({"cuda": cuda, "mps": mps, "torch": torch.__version__}))
"""


@dataclass(frozen=True)
class Device:
    """Where a worker trains: a device, or its share of one."""

    name: str  # as torch calls it: "cpu", "cuda:1", "mps"
    memory: int  # bytes in all
    threads: int  # CPU threads of its worker


def find(kind: str, numbers: Sequence[int] = ()) -> list[Device]:
    """The devices of a kind (`auto`: the GPUs, or the CPU where there is none); of the GPUs those
    with `numbers`, or all.

    CUDA devices are those that CUDA_VISIBLE_DEVICES leaves, numbered from 0. `AblateError` for an
    unknown kind or number, or where there is none.
    """
    found = _of_kind(kind)
    if not numbers:
        return found
    by_number = {
        int(device.name.partition(":")[2]): device
        for device in found
        if device.name.startswith("cuda")
    }
    for number in numbers:
        if number not in by_number:
            have = (
                f"choose among {', '.join(map(str, by_number))}"
                if by_number
                else f"this study would run on {found[0].name}"
            )
            raise AblateError(
                f"devices = {','.join(map(str, numbers))}: there is no GPU {number}; {have}"
            )
    return [by_number[number] for number in dict.fromkeys(numbers)]


def _of_kind(kind: str) -> list[Device]:
    if kind not in KINDS:
        raise unknown("device", kind, KINDS)
    cpu = Device("cpu", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), cpu_threads())
    if kind == "cpu" or (kind == "auto" and not _accelerator_possible()):
        return [cpu]
    nvidia = _nvidia() if kind != "mps" else []
    asked = {"cuda": nvidia} if nvidia else _ask_torch()
    for name in ("cuda", "mps"):
        if kind in (name, "auto") and asked.get(name):
            threads = max(1, cpu.threads // len(asked[name]))
            return [Device(device, memory, threads) for device, memory in asked[name]]
    if kind == "auto":
        return [cpu]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = (
        f", with CUDA_VISIBLE_DEVICES = {visible!r}"
        if kind == "cuda" and visible is not None
        else ""
    )
    raise AblateError(
        f"device = {kind!r}: torch {asked['torch']} finds no such device{hidden}; choose"
        " --device cpu"
    )


def seats(found: list[Device], n_runs: int, n_shapes: int, run_bytes: int) -> list[Device]:
    """A device, or a part of one, for each worker of a study of `n_runs`, the largest of which
    takes `run_bytes`.

    On a CPU small runs gain little by a second thread, and where something else keeps a core busy
    they lose by it (a quickstart run on 2 busy cores: 8 s of CPU time with 1 thread, 45 s with 2):
    so as many run side by side as there are cores and memory. On a GPU one run trains at a time
    (see `ablate.launch.turns`) while the next shapes are compiled.
    """
    useful = {"cpu": n_runs, "cuda": min(COMPILING + 1, -(-n_shapes // len(found))), "mps": 1}[
        found[0].name.partition(":")[0]
    ]
    parts: list[list[Device]] = []
    for device in found:
        fitting = int(MEMORY_SHARE * device.memory) // (WORKER_BYTES + run_bytes)
        n = max(1, min(device.threads, useful, fitting))
        parts.append([replace(device, memory=device.memory // n, threads=device.threads // n)] * n)
    return [
        part for row in zip_longest(*parts) for part in row if part
    ]  # the first of each device come first


def cpu_threads() -> int:
    """OMP_NUM_THREADS, or the physical cores this process may use."""
    if (given := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(given):
        return int(given)
    if sys.platform == "darwin":
        return int(
            subprocess.run(
                ["sysctl", "-n", "hw.physicalcpu"], capture_output=True, text=True, check=True
            ).stdout
        )
    return min(_cores(os.sched_getaffinity(0)), _quota())


def _cores(processors: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores behind the logical processors: those with the same siblings share one."""
    siblings = [root / f"cpu{k}/topology/thread_siblings_list" for k in processors]
    return len({path.read_text() if path.exists() else path for path in siblings})


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processors that a container's quota pays for, rounded up."""
    quota, period = file.read_text().split() if file.exists() else ("max", "1")
    return sys.maxsize if quota == "max" else -(-int(quota) // int(period))


def _accelerator_possible() -> bool:
    return sys.platform == "darwin" or any(
        Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    )


def _nvidia() -> list[tuple[str, int]]:
    """Torch's name and the bytes of every GPU that NVIDIA's driver shows this process; none where
    it, or this torch, has none.

    The driver numbers them as torch does, and heeds CUDA_VISIBLE_DEVICES. Torch itself would take
    seconds to be imported.
    """
    torch = importlib.util.find_spec("torch")
    if not torch or not any(
        Path(place, "lib/libtorch_cuda.so").exists()
        for place in torch.submodule_search_locations or ()
    ):
        return []
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    n, gpu, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(n)):
        return []  # torch says why
    found = []
    for k in range(n.value):
        if driver.cuDeviceGet(ctypes.byref(gpu), k) or driver.cuDeviceTotalMem_v2(
            ctypes.byref(size), gpu
        ):
            return []
        found.append((f"cuda:{k}", size.value))
    return found


@functools.cache
def _ask_torch() -> dict:
    """What a process of its own says of torch's devices; takes seconds."""
    answer = subprocess.run([sys.executable, "-P", "-c", _ASK], capture_output=True, text=True)
    if answer.returncode:
        raise AblateError(
            f"torch does not start: {(answer.stderr.strip() or 'no output').splitlines()[-1]}"
        )
    return json.loads(answer.stdout.splitlines()[-1])
