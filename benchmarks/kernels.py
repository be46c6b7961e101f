"""Where the time of a step goes on a GPU: microseconds by kind of kernel."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

STEPS = 10
# What the names of kernels have in them: those of cuBLAS, cuDNN, PyTorch and Triton. The first that
# fits.
KINDS = {
    "split-K sums": ("splitkreduce",),
    "attention": ("flash", "sdpa", "fmha", "cudnn", "attention"),
    "matrix products": ("nvjet", "gemm", "cutlass", "cublas"),
    "Triton": ("triton",),
    "copies": ("memcpy", "memset", "copy", "fill"),
}
PRODUCTS = {"split-K sums", "attention", "matrix products"}
LAST = "after the last product"  # clipping, the optimiser, and gradients that need no product


def kind(name: str) -> str:
    return next(
        (found for found, words in KINDS.items() if any(word in name.lower() for word in words)),
        "other",
    )


def profile(step: Callable[[], object]) -> str:
    """What a step that was made before takes, the most first: "matrix products 4220 µs (99),
    attention 1429 µs (32), …".
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return by_kind(json.loads(trace.read_text())["traceEvents"])


def by_kind(events: list[dict]) -> str:
    """The kernels of `STEPS` equal steps, from the events of a trace."""
    kernels = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda e: e["ts"],
    )
    a_step = len(kernels) // STEPS
    took, made = Counter[str](), Counter[str]()
    for begun in range(0, len(kernels), max(1, a_step)):
        kinds = [kind(e["name"]) for e in kernels[begun : begun + a_step]]
        last = max((i for i, found in enumerate(kinds) if found in PRODUCTS), default=len(kinds))
        for i, (found, event) in enumerate(zip(kinds, kernels[begun:], strict=False)):
            found = LAST if i > last else found
            took[found] += event["dur"] / STEPS
            made[found] += 1
    return ", ".join(
        f"{found} {us:.0f} µs ({made[found] / STEPS:.0f})" for found, us in took.most_common()
    )
