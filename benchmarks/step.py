"""Speed of a training step: tokens/s, FLOP/s, share of the matrix-product ceiling, set-up, memory.

    # the four sizes, solo and packed
    python benchmarks/step.py
    python benchmarks/step.py --sizes 0.85M --packs 1,8,32 --modes eager,block,whole
    # each topology and position at 10.8M
    python benchmarks/step.py --levels
    # below each row the time of its kernels
    python benchmarks/step.py --profile
    # with the ratio to nanoGPT's model.py and fused AdamW, compiled
    python benchmarks/step.py --nanogpt ~/nanoGPT
    # and to as many processes of it at once
    python benchmarks/step.py --nanogpt ~/nanoGPT --processes 8
    # whether it works
    python benchmarks/step.py --sizes tiny --device cpu

The models are nanoGPT's: learned positions, tied embeddings, no biases, pre-norm, bfloat16 matrix
products. The ceiling is a bfloat16 product of two 8192 × 8192 matrices, measured before and after
everything else; on a CPU all is float32. FLOPs are those of `ablate.sizes`: matrix products alone,
causal attention in full, three forward passes' worth a step. Each row is printed as it is made; one
that fails, or takes longer than `--limit`, says so in its place.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernels
import nanogpt
import numpy as np
import torch
from clock import peak_bytes, speed, synchronise
from nanogpt import WARM_UP, NanoGPT

from ablate import sizes
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.text import Tokens
from ablate.train.compiled import CompiledStep, cached_step, step_cache

COMMON: dict[str, Any] = {
    "position": "learned",
    "tie_embeddings": "tied",
    "bias": "none",
    "warmup": 0.0,
}
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"n_layer": 2, "d_model": 32, "n_head": 2, "n_ctx": 32, "batch": 8, "n_vocab": 256},
    "0.85M": {"n_layer": 4, "d_model": 128, "n_head": 4, "n_ctx": 256, "batch": 32, "n_vocab": 256},
    "10.8M": {"n_layer": 6, "d_model": 384, "n_head": 6, "n_ctx": 256, "batch": 64, "n_vocab": 256},
    "29.6M": {
        "n_layer": 8,
        "d_model": 512,
        "n_head": 8,
        "n_ctx": 512,
        "batch": 32,
        "n_vocab": 8192,
    },
    "124M": {
        "n_layer": 12,
        "d_model": 768,
        "n_head": 12,
        "n_ctx": 1024,
        "batch": 32,
        "n_vocab": 50304,
    },
}
PACKS = {"tiny": (1, 2), "0.85M": (1, 8, 32), "10.8M": (1, 4, 16), "29.6M": (1, 4), "124M": (1,)}
STEPS = 1000  # the windows of so many steps are laid out
COLUMNS = ("model", "runs", "mode", "Mtok/s", "TFLOP/s", "of ceiling", "set-up s", "peak GiB")


def config(size: str, device: str, **changes: Any) -> RunConfig:
    precision = "bfloat16" if device.startswith("cuda") else "float32"
    fields = {**COMMON, **SIZES[size], "steps": STEPS, "precision": precision, **changes}
    return RunConfig(batch_tokens=fields.pop("batch") * fields["n_ctx"], **fields)


def random_text(n_vocab: int, n: int = 2_000_000) -> Tokens:
    stream = np.random.default_rng(0).integers(0, n_vocab, n).astype(np.uint16)
    bounds, one = np.array([0, n]), np.zeros(1, np.int64)
    return Tokens(stream, stream, n_vocab, None, bounds, one, bounds, one)


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
        step_cache.clear()
        self.tokens = random_text(configs[0].n_vocab)
        begun = time.perf_counter()
        self.compiled: CompiledStep = cached_step(configs, self.tokens, device)
        self.compiled.prepare(STEPS, mode)
        self.configs, self.step = configs, self.compiled.step
        self.mode = self.compiled.mode
        synchronise(device)
        self.setup = time.perf_counter() - begun
        self.n = min(self.step.ring, max(1, int(0.5 / (self.compiled.pace or 0.5))))

    def block(self) -> None:
        if self.step.done + self.n > STEPS:
            self.step.rewind()
        self.step.run(self.n, lambda: False)
        self.step.read(self.n)

    def tokens_per_second(self, device: str, seconds: float) -> float:
        a_block = len(self.configs) * self.n * self.configs[0].batch_tokens
        return a_block * speed(self.block, device, seconds)


def fresh(device: str) -> None:
    """Let go of what the last measurement held."""
    step_cache.clear()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """`TimeoutError` where what is done inside takes longer."""

    def end(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


@dataclass(frozen=True)
class Speed:
    """What was measured of one row: tokens a second of all its runs, seconds until the first step,
    bytes, kernels.
    """

    mode: str
    rate: float
    set_up: float
    peak: int
    kernels: str = ""


class Bench:
    """The table, its device and its ceiling."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.device = options, options.device
        self.top = ceiling(self.device, options.seconds / 3)
        self.ratios = ["× nanoGPT"] * bool(options.nanogpt) + [f"× {options.processes} at once"] * (
            options.processes > 1
        )

    def head(self) -> None:
        for cells in ((*COLUMNS, *self.ratios), ["---"] * (len(COLUMNS) + len(self.ratios))):
            line(*cells)

    def row(
        self,
        name: str,
        runs: int,
        mode: str,
        of: RunConfig,
        measure: Callable[[], Speed],
        to: Sequence[float],
    ) -> float:
        """Measure, and print a row with the ratios to the rates `to`; a failure is a row too. The
        rate, or 0.
        """
        fresh(self.device)
        try:
            with limited(self.options.limit):
                made = measure()
        except Exception as error:
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
            line(name, runs, mode, why, *[""] * (len(COLUMNS) - 4 + len(self.ratios)))
            return 0.0
        flops = 3 * sizes.count(of).flops_per_token * made.rate
        memory = f"{made.peak / 2**30:.1f}" if made.peak else "–"
        ratios = [f"{made.rate / other:.2f}" if other else "" for other in to]
        cells = (
            f"{made.rate / 1e6:.3f}",
            f"{flops / 1e12:.1f}",
            f"{flops / self.top:.1%}",
            f"{made.set_up:.1f}",
            memory,
        )
        line(name, runs, made.mode, *cells, *ratios, *[""] * (len(self.ratios) - len(ratios)))
        if made.kernels:
            tokens = runs * of.batch_tokens
            line(name, runs, made.mode, f"{tokens / made.rate * 1e6:.0f} µs a step: {made.kernels}")
        return made.rate

    def kernels(self, step: Callable[[], object]) -> str:
        return kernels.profile(step) if self.options.profile else ""

    def ours(self, name: str, configs: list[RunConfig], to: Sequence[float]) -> None:
        for mode in self.options.modes.split(","):

            def measure(mode: str = mode) -> Speed:
                ours = Ours(configs, self.device, mode)
                rate = ours.tokens_per_second(self.device, self.options.seconds)
                return Speed(
                    ours.mode,
                    rate,
                    ours.setup,
                    peak_bytes(self.device),
                    self.kernels(ours.step.replay),
                )

            self.row(name, len(configs), mode, configs[0], measure, to)

    def theirs(self, size: str) -> list[float]:
        """nanoGPT's tokens a second, by one process and by several at once, as far as they are
        asked for.
        """
        if not self.options.nanogpt:
            return []
        of = config(size, self.device)
        rates = [self.row(f"{size} nanoGPT", 1, "compile", of, lambda: self._alone(size), [])]
        if (n := self.options.processes) > 1:
            rates.append(
                self.row(
                    f"{size} nanoGPT at once",
                    n,
                    "compile",
                    of,
                    lambda: self._at_once(size, n),
                    rates,
                )
            )
        return rates

    def _alone(self, size: str) -> Speed:
        begun = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):  # the model prints what it is
            model = NanoGPT(
                self.options.nanogpt,
                SIZES[size],
                random_text(SIZES[size]["n_vocab"]).train,
                self.device,
            )
        model.train(WARM_UP)
        set_up = time.perf_counter() - begun
        rate = model.tokens_per_second(self.options.seconds)
        return Speed("compile", rate, set_up, peak_bytes(self.device), self.kernels(model.step))

    def _at_once(self, size: str, n: int) -> Speed:
        """Processes that begin to be timed together, once all are ready."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            data = Path(folder) / "data.npy"
            np.save(data, random_text(SIZES[size]["n_vocab"]).train)
            job = {
                "checkout": str(self.options.nanogpt),
                "shape": SIZES[size],
                "device": self.device,
                "data": str(data),
            }
            command = [
                sys.executable,
                nanogpt.__file__,
                json.dumps({**job, "seconds": self.options.seconds}),
            ]
            begun = time.perf_counter()
            pipes: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.DEVNULL,
            }
            processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(n)]
            for process in processes:
                stack.callback(process.wait)
                stack.callback(process.kill)
            for process in processes:
                answered(process)
            set_up = time.perf_counter() - begun
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            answers = [answered(process) for process in processes]
        return Speed(
            "compile",
            sum(answer["rate"] for answer in answers),
            set_up,
            sum(int(answer["peak_bytes"]) for answer in answers),
        )


def answered(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout
    if not (text := process.stdout.readline()):
        raise RuntimeError(f"a process of nanoGPT ended with exit code {process.wait()}")
    return json.loads(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--sizes",
        default="",
        help=f"of {', '.join(SIZES)}; by default all but tiny, with --levels 10.8M",
    )
    parser.add_argument(
        "--packs", default="", help="members trained together, e.g. 1,8; by default each size's own"
    )
    parser.add_argument(
        "--modes",
        default="whole",
        help="what is compiled: eager, block, whole, auto; several joined by commas",
    )
    parser.add_argument(
        "--levels", action="store_true", help="each topology and position, in place of the packs"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="what the kernels of each row take, by kind; on a GPU",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each is timed")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds that a row may take, set-up included"
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, for the ratio to it")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="of nanoGPT at once, for the ratio to them all together",
    )
    return parser.parse_args()


def described(device: str) -> str:
    """Card, versions and date."""
    cuda = device.startswith("cuda")
    card = (
        torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    )
    versions = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    )
    return f"{card}; {versions}; {time.strftime('%Y-%m-%d')}"


def main() -> None:
    options = arguments()
    print(described(options.device))
    bench = Bench(options)
    print(f"ceiling: {bench.top / 1e12:.1f} TFLOP/s\n")
    bench.head()
    usual = ["10.8M"] if options.levels else [name for name in SIZES if name != "tiny"]
    for size in options.sizes.split(",") if options.sizes else usual:
        theirs = bench.theirs(size)
        if options.levels:
            for factor in ("topology", "position"):
                for level in CATALOGUE[factor].names:
                    bench.ours(
                        f"{size} {factor} = {level}",
                        [config(size, options.device, **{factor: level})],
                        theirs,
                    )
        else:
            for pack in map(int, options.packs.split(",")) if options.packs else PACKS[size]:
                bench.ours(
                    size, [config(size, options.device, seed=seed) for seed in range(pack)], theirs
                )
    print(
        f"\nceiling afterwards: {ceiling(options.device, options.seconds / 3) / 1e12:.1f} TFLOP/s"
    )


if __name__ == "__main__":
    main()
