"""How fast a training step is: tokens/s, model FLOP/s, share of the matrix-product ceiling, set-up time, memory.

    python benchmarks/step.py                            # the four sizes, solo and packed
    python benchmarks/step.py --sizes 0.85M --packs 1,8,32 --modes eager,block,whole
    python benchmarks/step.py --levels                   # each topology and position at 10.8M
    python benchmarks/step.py --nanogpt ~/nanoGPT        # with the ratio to nanoGPT's model.py and fused AdamW, compiled

The models are nanoGPT's: learned positions, tied embeddings, no biases, pre-norm, bfloat16 matrix products. The ceiling
is a bfloat16 product of two 8192 × 8192 matrices, measured before and after everything else; on a CPU all is float32.
FLOPs are those of `ablate.sizes`: matrix products alone, causal attention in full, three forward passes' worth a step.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate import sizes
from ablate.config import RunConfig
from ablate.factors import CATALOGUE
from ablate.text import Tokens
from ablate.train import warm
from ablate.train.warm import Warm, warm_step

COMMON: dict[str, Any] = {
    "position": "learned", "tie_embeddings": "tied", "bias": "none", "warmup": 0.0,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "0.85M": {"n_layer": 4, "d_model": 128, "n_head": 4, "n_ctx": 256, "batch": 32, "n_vocab": 256},
    "10.8M": {"n_layer": 6, "d_model": 384, "n_head": 6, "n_ctx": 256, "batch": 64, "n_vocab": 256},
    "29.6M": {"n_layer": 8, "d_model": 512, "n_head": 8, "n_ctx": 512, "batch": 32, "n_vocab": 8192},
    "124M": {"n_layer": 12, "d_model": 768, "n_head": 12, "n_ctx": 1024, "batch": 32, "n_vocab": 50304},
}
PACKS = {"0.85M": (1, 8, 32), "10.8M": (1, 4, 16), "29.6M": (1, 4), "124M": (1,)}
STEPS = 1000  # the windows of so many steps are laid out
COLUMNS = ("model", "pack", "mode", "Mtok/s", "TFLOP/s", "of ceiling", "set-up s", "peak GiB", "× nanoGPT")


def config(size: str, device: str, **changes: Any) -> RunConfig:
    precision = "bfloat16" if device.startswith("cuda") else "float32"
    fields = {**COMMON, **SIZES[size], "steps": STEPS, "precision": precision, **changes}
    return RunConfig(batch_tokens=fields.pop("batch") * fields["n_ctx"], **fields)


def random_text(n_vocab: int, n: int = 2_000_000) -> Tokens:
    stream = np.random.default_rng(0).integers(0, n_vocab, n).astype(np.uint16)
    bounds, one = np.array([0, n]), np.zeros(1, np.int64)
    return Tokens(stream, stream, n_vocab, None, bounds, one, bounds, one)


def speed(step: Callable[[], object], device: str, seconds: float) -> float:
    """Calls a second, over about `seconds`."""
    n, elapsed = 1, 0.0
    while elapsed < seconds:
        n = max(n + 1, int(n * min(10.0, 1.1 * seconds / elapsed))) if elapsed else n
        synchronise(device)
        begun = time.perf_counter()
        for _ in range(n):
            step()
        synchronise(device)
        elapsed = time.perf_counter() - begun
    return n / elapsed


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def ceiling(device: str, seconds: float) -> float:
    """FLOP/s of a matrix product."""
    n, dtype = (8192, torch.bfloat16) if device.startswith("cuda") else (1024, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, b, out=out)
    return 2 * n**3 * speed(lambda: torch.mm(a, b, out=out), device, seconds)


class Ours:
    """The tool's own step, run as the engine runs it: blocks of steps, metrics read after each."""

    def __init__(self, configs: list[RunConfig], device: str, mode: str):
        warm._WARM.clear()
        self.tokens = random_text(configs[0].n_vocab)
        begun = time.perf_counter()
        self.warm: Warm = warm_step(configs, self.tokens, device)
        self.warm.prepare(STEPS, mode)
        self.configs, self.step = configs, self.warm.step
        self.mode = self.warm.mode
        synchronise(device)
        self.setup = time.perf_counter() - begun
        self.n = min(self.step.ring, max(1, int(0.5 / (self.warm.pace or 0.5))))

    def block(self) -> None:
        if self.step.done + self.n > STEPS:
            self.step.rewind()
        self.step.run(self.n, lambda: False)
        self.step.read(self.n)

    def tokens_per_second(self, device: str, seconds: float) -> float:
        a_block = len(self.configs) * self.n * self.configs[0].batch_tokens
        return a_block * speed(self.block, device, seconds)


class NanoGPT:
    """A checkout's model.py with its fused AdamW, compiled, and the loop of its train.py."""

    def __init__(self, path: Path, size: str, device: str):
        shape = SIZES[size]
        self.device, self.batch, self.context = device, shape["batch"], shape["n_ctx"]
        self.data = random_text(shape["n_vocab"]).train
        begun = time.perf_counter()
        module = load(path / "model.py")
        names = {"n_layer": "n_layer", "d_model": "n_embd", "n_head": "n_head", "n_ctx": "block_size", "n_vocab": "vocab_size"}
        fields = {theirs: shape[ours] for ours, theirs in names.items()}
        model = module.GPT(module.GPTConfig(**fields, dropout=0.0, bias=False)).to(device)
        self.optimiser = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), device.split(":")[0])
        self.model: Any = torch.compile(model)
        self.inputs, self.targets = self.windows()
        for _ in range(10):
            self.step()
        synchronise(device)
        self.setup = time.perf_counter() - begun

    def windows(self) -> Iterator[torch.Tensor]:
        starts = torch.randint(len(self.data) - self.context, (self.batch,)).tolist()
        for shift in (0, 1):
            rows = [torch.from_numpy(self.data[i + shift : i + shift + self.context].astype(np.int64)) for i in starts]
            batch = torch.stack(rows)
            yield batch.pin_memory().to(self.device, non_blocking=True) if self.device.startswith("cuda") else batch

    def step(self) -> None:
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            _, loss = self.model(self.inputs, self.targets)
        self.inputs, self.targets = self.windows()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def tokens_per_second(self, seconds: float) -> float:
        return self.batch * self.context * speed(self.step, self.device, seconds)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where the compiler looks for it
    spec.loader.exec_module(module)
    return module


def fresh(device: str) -> None:
    """Let go of what the last measurement held."""
    warm._WARM.clear()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: str) -> str:
    return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f}" if device.startswith("cuda") else "–"


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def measure(name: str, configs: list[RunConfig], mode: str, top: float, options: argparse.Namespace, theirs: float = 0.0) -> None:
    """One row of the table; a failure is a row too."""
    fresh(options.device)
    try:
        ours = Ours(configs, options.device, mode)
        rate = ours.tokens_per_second(options.device, options.seconds)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        line(name, len(configs), mode, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}", *[""] * 5)
        return
    flops = 3 * sizes.count(configs[0]).flops_per_token * rate
    ratio = f"{rate / theirs:.2f}" if theirs else ""
    row = (f"{rate / 1e6:.3f}", f"{flops / 1e12:.1f}", f"{flops / top:.1%}", f"{ours.setup:.1f}", peak(options.device), ratio)
    line(name, len(configs), ours.mode, *row)


def nanogpt(size: str, top: float, options: argparse.Namespace) -> float:
    """nanoGPT's tokens a second, and its row."""
    fresh(options.device)
    theirs = NanoGPT(options.nanogpt, size, options.device)
    rate = theirs.tokens_per_second(options.seconds)
    flops = 3 * sizes.count(config(size, options.device)).flops_per_token * rate
    row = (f"{rate / 1e6:.3f}", f"{flops / 1e12:.1f}", f"{flops / top:.1%}", f"{theirs.setup:.1f}", peak(options.device), "1")
    line(f"{size} nanoGPT", 1, "compile", *row)
    return rate


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of " + ", ".join(SIZES))
    parser.add_argument("--packs", default="", help="members trained together, e.g. 1,8; by default each size's own")
    parser.add_argument("--modes", default="whole", help="what is compiled: eager, block, whole, auto; several joined by commas")
    parser.add_argument("--levels", action="store_true", help="each topology and position at 10.8M, in place of the sizes")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each is timed")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, for the ratio to it")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    cuda = options.device.startswith("cuda")
    card = torch.cuda.get_device_name(options.device) if cuda else platform.processor() or platform.machine()
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    print(f"{card}; {versions}; {time.strftime('%Y-%m-%d')}")
    top = ceiling(options.device, options.seconds / 3)
    print(f"ceiling: {top / 1e12:.1f} TFLOP/s\n")
    line(*COLUMNS)
    line(*["---"] * len(COLUMNS))
    modes = options.modes.split(",")
    if options.levels:
        for factor in ("topology", "position"):
            for level in CATALOGUE[factor].names:
                for mode in modes:
                    measure(f"10.8M {factor} = {level}", [config("10.8M", options.device, **{factor: level})], mode, top, options)
    else:
        for size in options.sizes.split(","):
            theirs = nanogpt(size, top, options) if options.nanogpt else 0.0
            for pack in map(int, options.packs.split(",")) if options.packs else PACKS[size]:
                for mode in modes:
                    measure(size, [config(size, options.device, seed=seed) for seed in range(pack)], mode, top, options, theirs)
    print(f"\nceiling afterwards: {ceiling(options.device, options.seconds / 3) / 1e12:.1f} TFLOP/s")


if __name__ == "__main__":
    main()
