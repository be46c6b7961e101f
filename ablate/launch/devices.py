"""The devices that a study can run on, found without importing torch into this process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from ablate.errors import AblateError, unknown

KINDS = ("auto", "cpu", "cuda", "mps")
# memory of a worker besides its run: Python, torch and the text, or the CUDA context
WORKER_BYTES = 1 << 30
MEMORY_SHARE = 0.8  # share of a device's memory that the estimates of its runs may reach
COMPILING = 4  # workers of a GPU that prepare their next job while another one trains

_ASK = """
import json, torch
memory = lambda k: torch.cuda.get_device_properties(k).total_memory
cuda = [["cuda:%d" % k, memory(k)] for k in range(torch.cuda.device_count())]
mps = [["mps", torch.mps.recommended_max_memory()]] if torch.backends.mps.is_available() else []
print(json.dumps({"cuda": cuda, "mps": mps, "torch": torch.__version__}))
"""


@dataclass(frozen=True)
class Device:
    """A device that a worker trains on, a worker's share of one, or several devices.

    Attributes:
        name: Torch's name: "cpu", "cuda:1", "mps"; "cuda:0,1" for several.
        memory: Bytes; of each, where there are several.
        threads: CPU threads of its worker.
    """

    name: str
    memory: int
    threads: int

    @property
    def count(self) -> int:
        """How many devices it is."""
        return len(members(self.name))


def members(name: str) -> list[str]:
    """Return torch's names of the devices of a name such as "cuda:0,1".

    The parts of a CPU, such as "cpu:0,1", are all "cpu".
    """
    kind, _, numbers = name.partition(":")
    if "," not in numbers:
        return [name]
    return [kind if kind == "cpu" else f"{kind}:{number}" for number in numbers.split(",")]


def groups(found: Sequence[Device], n: int) -> list[Device]:
    """Return devices in groups of n; those that are left over are in none.

    A CPU is one group of n processes, which share its memory and threads.
    """
    if found[0].name == "cpu":
        parts = ",".join(map(str, range(n)))
        return [replace(found[0], name=f"cpu:{parts}", memory=found[0].memory // n)]
    return [
        Device(
            "cuda:" + ",".join(one.name.partition(":")[2] for one in group),
            min(one.memory for one in group),
            sum(one.threads for one in group),
        )
        for group in (found[k : k + n] for k in range(0, len(found) - n + 1, n))
    ]


def find(kind: str, numbers: Sequence[int] = (), *, torch: bool = True) -> list[Device]:
    """Return the devices of a kind.

    CUDA devices are those that CUDA_VISIBLE_DEVICES leaves, numbered from 0.

    Args:
        kind: One of `KINDS`; "auto" for the GPUs, or the CPU if there is none.
        numbers: GPUs to use; by default all.
        torch: Whether this environment's torch is to use them, which must then find them too.

    Raises:
        AblateError: The kind or a number is unknown, or there is no such device.
    """
    found = _of_kind(kind, torch)
    if not numbers:
        return found
    by_number = {
        int(device.name.partition(":")[2]): device
        for device in found
        if device.name.startswith("cuda")
    }
    for number in numbers:
        if number not in by_number:
            choices = (
                f"choose among {', '.join(map(str, by_number))}"
                if by_number
                else f"this study would run on {found[0].name}"
            )
            raise AblateError(
                f"devices = {','.join(map(str, numbers))}: there is no GPU {number}; {choices}"
            )
    return [by_number[number] for number in dict.fromkeys(numbers)]


def _of_kind(kind: str, torch: bool) -> list[Device]:
    if kind not in KINDS:
        raise unknown("device", kind, KINDS)
    cpu = Device("cpu", cpu_memory(), cpu_threads())
    if kind == "cpu" or (kind == "auto" and not _accelerator_possible()):
        return [cpu]
    nvidia = (_nvidia() if torch else _of_driver()) if kind != "mps" else []
    if not torch and not nvidia:
        if kind == "auto":
            return [cpu]
        raise AblateError(f"device = {kind!r}: there is no GPU of NVIDIA; choose --device cpu")
    present = {"cuda": nvidia} if nvidia else _ask_torch()
    for name in ("cuda", "mps"):
        if kind in (name, "auto") and present.get(name):
            threads = max(1, cpu.threads // len(present[name]))
            return [Device(device, memory, threads) for device, memory in present[name]]
    if kind == "auto":
        return [cpu]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = (
        f", with CUDA_VISIBLE_DEVICES = {visible!r}"
        if kind == "cuda" and visible is not None
        else ""
    )
    raise AblateError(
        f"device = {kind!r}: torch {present['torch']} finds no such device{hidden}; choose"
        " --device cpu"
    )


def shares(found: Sequence[Device], n_runs: int, n_shapes: int, run_bytes: int) -> list[Device]:
    """Return a device, or its share of one, for each worker of a study.

    On a CPU a second thread helps small runs little, and slows them down if another process keeps a
    core busy (a quickstart run on 2 busy cores: 8 s of CPU time with 1 thread, 45 s with 2). So as
    many runs train in parallel as cores and memory allow. On a GPU one run trains at a
    time (see `ablate.launch.device_lock`) while other workers compile the next shapes.

    Args:
        found: The devices.
        n_runs: Runs of the study.
        n_shapes: Shapes of its runs, each of which is compiled.
        run_bytes: Memory that the largest run takes at once.
    """
    useful = {"cpu": n_runs, "cuda": min(COMPILING + 1, -(-n_shapes // len(found))), "mps": 1}[
        found[0].name.partition(":")[0]
    ]
    parts: list[list[Device]] = []
    for device in found:
        n = max(1, min(device.threads, useful, room(device, run_bytes)))
        parts.append([replace(device, memory=device.memory // n, threads=device.threads // n)] * n)
    rows = zip_longest(*parts)  # the first share of each device comes first
    return [part for row in rows for part in row if part]


def for_scripts(found: Sequence[Device], gpus: float | None, cpus: int) -> list[Device]:
    """Return a device, devices, or a share of one for each script that runs at a time.

    Args:
        found: The devices.
        gpus: GPUs of a script: several, a share of one, 0; None for one where there is any.
        cpus: Cores of a script without a GPU.

    Raises:
        AblateError: There are fewer GPUs.
    """
    cards = [device for device in found if device.name.startswith("cuda")]
    wanted = (1 if cards else 0) if gpus is None else gpus
    if not wanted or not cards:
        one, cores = found[0], cpu_cores()
        n = max(1, cores // cpus)
        return [replace(one, memory=one.memory // n, threads=min(cpus, cores))] * n
    if wanted < 1:
        n = int(1 / wanted + 1e-9)
        parts = [
            [replace(one, memory=one.memory // n, threads=max(1, one.threads // n))] * n
            for one in cards
        ]
        return [part for row in zip(*parts, strict=True) for part in row]
    n = int(wanted)
    if len(cards) < n:
        raise AblateError(
            f"[command] gpus = {n}: this host has {len(cards)}; give at most {len(cards)}, or run"
            " it on another host"
        )
    return groups(cards, n)


def room(device: Device, run_bytes: int) -> int:
    """Return how many workers, each with a run of `run_bytes`, fit into a device's memory."""
    return int(MEMORY_SHARE * device.memory) // (WORKER_BYTES + run_bytes)


def cpu_memory() -> int:
    """Return the bytes of memory that this process may use: the host's, or a container's limit."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_memory_limits()])


def _memory_limits(
    own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Yield the limits of this process's control groups and of all above them, in bytes.

    Inside a container the root may be the container's own group, whatever /proc/self/cgroup says.
    """
    groups = own.read_text().splitlines() if own.exists() else []
    for line in (*groups, "0::/", "1:memory:/"):
        _, controllers, group = line.split(":", 2)
        unified = not controllers
        if not unified and "memory" not in controllers.split(","):
            continue
        top, file = (root, "memory.max") if unified else (root / "memory", "memory.limit_in_bytes")
        folder = top / group.lstrip("/")
        for above in (folder, *folder.parents):
            if not above.is_relative_to(top):
                break
            with contextlib.suppress(OSError):
                if (text := (above / file).read_text().strip()).isdecimal():
                    yield int(text)


def cpu_threads() -> int:
    """Return OMP_NUM_THREADS, or the number of physical cores that this process may use."""
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(threads):
        return int(threads)
    return cpu_cores()


def cpu_cores() -> int:
    """Return the number of physical cores that this process may use."""
    if sys.platform == "darwin":
        return int(
            subprocess.run(
                ["sysctl", "-n", "hw.physicalcpu"], capture_output=True, text=True, check=True
            ).stdout
        )
    return min(_cores(os.sched_getaffinity(0)), _quota())


def _cores(processors: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores behind logical processors: those with the same siblings share a core."""
    siblings = [root / f"cpu{k}/topology/thread_siblings_list" for k in processors]
    return len({path.read_text() if path.exists() else path for path in siblings})


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processors of a container's quota, rounded up."""
    quota, period = file.read_text().split() if file.exists() else ("max", "1")
    return sys.maxsize if quota == "max" else -(-int(quota) // int(period))


def _accelerator_possible() -> bool:
    return sys.platform == "darwin" or any(
        Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    )


def _nvidia() -> list[tuple[str, int]]:
    """(torch's name, bytes) of every GPU of NVIDIA's driver; empty without driver or CUDA torch."""
    torch = importlib.util.find_spec("torch")
    if not torch or not any(
        Path(folder, "lib/libtorch_cuda.so").exists()
        for folder in torch.submodule_search_locations or ()
    ):
        return []
    return _of_driver()


def _of_driver() -> list[tuple[str, int]]:
    """(torch's name, bytes) of every GPU of NVIDIA's driver; empty without driver.

    The driver numbers GPUs as torch does and heeds CUDA_VISIBLE_DEVICES. Importing torch would take
    seconds.
    """
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
    """Torch's devices, as another process reports them; takes seconds."""
    answer = subprocess.run([sys.executable, "-P", "-c", _ASK], capture_output=True, text=True)
    if answer.returncode:
        raise AblateError(
            f"torch does not start: {(answer.stderr.strip() or 'no output').splitlines()[-1]}"
        )
    return json.loads(answer.stdout.splitlines()[-1])
