"""Steps captured in CUDA graphs, compiled if that saves time, and cached for runs of one shape."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ablate import sizes
from ablate.config import LOADED_FIELDS, RunConfig
from ablate.data.objectives import Example
from ablate.errors import unknown
from ablate.images import Images
from ablate.model.trial import said
from ablate.text import Tokens
from ablate.train import ranks
from ablate.train.step import Functions, Step


@dataclass(frozen=True)
class Mode:
    """What of a step is compiled, and what that costs and gains.

    A compiler gains nothing in matrix products. `rest` is fitted to the six shapes in the table of
    compile modes in `benchmarks/RESULTS.md` (H200, torch 2.11, one run and packs of 3 to 8, of 0.6M
    to 124M parameters): `seconds` is 0.85 to 1.22 times what was measured there, and 1.09 times at
    302M parameters, which the fit has not seen.

    Attributes:
        base: Seconds until the first step, without `per_block`.
        rest: Time of all but matrix products, as a share of what it is in an eager step.
        per_block: Seconds more for each block of the model. Blocks compiled by themselves share
            their code, a model compiled as a whole repeats it: 24 to 30 s at 4 to 6 blocks, 130 s
            at 24.
    """

    base: float
    rest: float
    per_block: float = 0.0

    def setup(self, blocks: int) -> float:
        """Return the seconds until the first step of a model with so many blocks."""
        return self.base + self.per_block * blocks

    def seconds(self, eager: float, products: float) -> float:
        """Return the time of steps.

        Args:
            eager: Seconds that they take if nothing is compiled.
            products: Seconds that their matrix products alone take.
        """
        products = min(products, eager)
        return products + self.rest * (eager - products)

    def eager(self, seconds: float, products: float) -> float:
        """Return the time that steps would take if nothing were compiled: `seconds` inverted."""
        products = min(products, seconds)
        return products + (seconds - products) / self.rest


MODES = {
    "eager": Mode(base=1.0, rest=1.0),  # nothing is compiled
    "block": Mode(base=8.0, rest=0.42),  # each block, and what comes before and after them
    "whole": Mode(base=8.0, rest=0.41, per_block=5.0),  # model and loss in one piece
}
# FLOP/s of large products of bfloat16 on an H200 (`benchmarks/RESULTS.md`)
PRODUCTS = 6.7e14
# seconds more for the first compilation of a process: the compiler itself and its helpers
FIRST = 15.0
# share of a set-up during which other workers of a shared device train
HIDDEN = 2 / 3

# seconds of matrix products beyond which a step is compiled without timing an eager one
LONG = 45.0
R = TypeVar("R")
COMPILER: dict[str, Any] = {"dynamic": False, "fullgraph": True}
# steps in the cache, while their memory is not needed; few where nothing is compiled
KEPT = {"cuda": 8, "cpu": 1, "mps": 1}


class CompiledStep:
    """A step that is reused by many jobs, compiled and captured when that saves time.

    Attributes:
        step: The step; its `functions` are compiled, its `replay` is captured.
        mode: What is compiled.
        pace: Seconds a step as last measured, or 0.
        peak_bytes: Memory that capturing took, which a replay does not show.
        seconds: Seconds that eager steps took, or would have taken, in all jobs so far.
        products: Seconds that their matrix products take alone, at `PRODUCTS`.
        note: What could not be done with a part of the user's own; "" if everything could.
    """

    compiler_begun: ClassVar[bool] = False  # whether this process has compiled anything

    def __init__(self, step: Step):
        self.step = step
        self.mode = "eager"
        self.pace = 0.0
        self.peak_bytes = 0
        self.seconds = self.products = 0.0
        self.note = ""
        self._eager_pace = 0.0

    def prepare(self, steps: int, wanted: str, *, shared: bool = False) -> None:
        """Compile and capture the step for a job, before the job's first step.

        A step on a CPU, or on a device without graphs, is run as it is.

        Args:
            steps: Steps of the job.
            wanted: A mode, or "auto" for the one with which the job ends first.
            shared: Whether other workers train meanwhile.

        Raises:
            AblateError: `wanted` is no mode.
        """
        if wanted not in ("auto", *MODES):
            raise unknown("compile mode", wanted, ("auto", *MODES))
        if self.step.device.type != "cuda" or self.note:
            return
        recompute = self.step.model.recompute
        if wanted == "auto":
            products, compiled = self._products * steps, compiles(self.step.config)
            if not self._eager_pace:
                self._capture("block" if products > LONG and compiled else "eager")
            self.seconds += self._eager_pace * steps
            self.products += products
            first = not CompiledStep.compiler_begun
            if compiled:
                blocks = n_blocks(self.step.config)
                times = self.seconds, blocks, self.products
                wanted = worthwhile(*times, mode=self.mode, shared=shared, first=first)
            else:
                wanted = self.mode
            wanted = ranks.agree(wanted)  # a captured step waits for the other ranks
        wanted = possible(wanted, recompute)
        if wanted != self.mode or self.step.replay == self.step.step:
            self._capture(wanted)

    def _capture(self, mode: str) -> None:
        """Compile and capture; a part of the user's own may allow neither, and is noted."""
        CompiledStep.compiler_begun |= mode != "eager"
        wanted = (mode, "eager") if mode != "eager" else (mode,)
        for self.mode in wanted:
            self.step.functions = functions(self.step, self.mode)
            try:
                self.with_room(partial(capture, self.step))
                break
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if not self.step.config.code:
                    raise
                what = "run eagerly" if self.mode == "eager" else f"not compiled ({self.mode})"
                self.note = f"{what}: {said(self.step.config, error)}"
        self.peak_bytes = torch.cuda.max_memory_allocated()
        self.pace = timed(self.step)
        if not self._eager_pace:
            self._eager_pace = MODES[self.mode].eager(self.pace, self._products)

    def with_room(self, call: Callable[[], R]) -> R:
        """Return what a call returns; without memory for it, drop the other cached steps first.

        Of several ranks none tries again: the others wait for it in the call that it left.

        Args:
            call: Captures or evaluates this step; it can be made twice.
        """
        try:
            return call()
        except torch.OutOfMemoryError:
            if ranks.count() > 1 or not _drop_others(self):
                raise
        return call()  # here the error, which holds tensors, is gone

    @property
    def _products(self) -> float:
        """Seconds that the matrix products of a step take alone, 0 where that is unknown."""
        config = self.step.config
        flops = self.step.model.pack * (sizes.train_flops(config) or 0) / config.steps
        return flops / PRODUCTS / ranks.count()


def n_blocks(config: RunConfig) -> int:
    """Return the blocks of a model, without those that fill in an autoencoder's patches."""
    return config.n_layer + config.n_layer_encoder


def worthwhile(
    seconds: float,
    blocks: int,
    products: float = 0.0,
    *,
    mode: str = "eager",
    shared: bool = False,
    first: bool = False,
) -> str:
    """Return the mode that is worth its set-up.

    Time spent in earlier jobs counts too, as in the choice between renting and buying: a shape that
    keeps coming is worth compiling, though no single job of it is.

    Args:
        seconds: Time of all eager steps, those of earlier jobs included.
        blocks: Blocks of the model.
        products: Time of the matrix products in them.
        mode: The mode that is set up already.
        shared: Whether other workers train meanwhile.
        first: Whether this process has compiled nothing yet.
    """
    waited = 1 - HIDDEN if shared else 1
    names = list(MODES)

    def cost(other: str) -> float:
        return MODES[other].seconds(seconds, products) + (
            waited * (MODES[other].setup(blocks) + FIRST * first) if other != mode else 0
        )

    return min(names[names.index(mode) :], key=cost)


def possible(mode: str, recompute: bool) -> str:
    """Return the mode to use for a wanted one.

    Blocks that are recomputed are compiled one by one: compiled as a whole they still took 92% of
    the memory.
    """
    return "block" if recompute and mode == "whole" else mode


def can_compile() -> bool:
    """Return whether there is the C compiler that Triton needs; container images often lack one."""
    return bool(os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang"))))


def compiles(config: RunConfig) -> bool:
    """Return whether the host has a compiler, and torch compiles all parts of the model."""
    return can_compile() and all(one.compiles for one in config.parts)


def functions(step: Step, mode: str) -> Functions:
    """Return what a step is to call, compiled as `mode` says.

    Evaluations call the model itself, which is not compiled: they are too few to wait for it.
    Combined kernels gain a single model 1 to 6%, the more the shorter its many kernels are. They
    cost packs 1 to 4%.
    """
    if mode == "eager":
        return step.eager
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 1 << 16  # there are many shapes
    options: dict[str, Any] = {"combo_kernels": step.model.pack == 1}
    compiled = partial(torch.compile, **COMPILER, options=options)
    example, finish = compiled(step.example), compiled(step.finish)
    if mode == "whole" or not step.model.blocks:
        return Functions(example, compiled(step.losses), finish)
    pieces = step.model.pieces(compiled)
    score = compiled(step.score)

    def losses(part: Example, scored: Tensor) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = score(step.features(part, pieces), part, scored)
        return result

    return Functions(example, losses, finish)


def capture(step: Step) -> None:
    """Record a step in a CUDA graph, which `step.replay` runs from then on.

    Weights are unchanged afterwards, and `step.replay` is `step.step` if it cannot be recorded.
    """
    step.replay = step.step
    weights = step.optimiser.weights.clone()
    try:
        current, side = torch.cuda.current_stream(step.device), torch.cuda.Stream(step.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets libraries choose and allocate what they need
                step.step()
        current.wait_stream(side)
        gc.collect()  # to free another graph while this one is recorded would spoil it
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step.step()
        step.replay = graph.replay
    finally:
        step.optimiser.weights.copy_(weights)
        step.rewind()


def timed(step: Step, n: int = 5) -> float:
    """Return the seconds that a step takes. Weights are unchanged afterwards."""
    weights = step.optimiser.weights.clone()
    torch.cuda.synchronize(step.device)
    begun = time.perf_counter()
    for _ in range(n):
        step.replay()
    torch.cuda.synchronize(step.device)
    seconds = (time.perf_counter() - begun) / n
    step.optimiser.weights.copy_(weights)
    step.rewind()
    return seconds


step_cache: OrderedDict[str, CompiledStep] = OrderedDict()


def cached_step(
    configs: Sequence[RunConfig],
    tokens: Tokens | Images,
    device: str,
    micro_batch: int = 0,
    recompute: bool = False,
) -> CompiledStep:
    """Return a step at the start of runs: a cached one of their shape, or a new one.

    One in whose own parts the runs before have left something is made anew.

    Args:
        configs: Runs of one shape, the members of the pack.
        tokens: Their text or images.
        device: Torch's name of the device.
        micro_batch: Sequences of each run in memory at once, 0 for the whole batch.
        recompute: Whether blocks are recomputed in the backward pass.
    """
    micro_batch = micro_batch or ranks.most_rows(configs[0].batch_size)
    loaded = set(configs[0].free_of_shape(LOADED_FIELDS))
    shape = configs[0].model_dump(mode="json", exclude=loaded)
    key = json.dumps([shape, len(configs), device, micro_batch, recompute])
    if ranks.all_agree(key in step_cache and step_cache[key].step.as_made()):
        step_cache.move_to_end(key)
        step_cache[key].step.load(configs, tokens)
    else:
        step_cache.pop(key, None)
        _make_room(
            sizes.memory_bytes(configs[0], len(configs), micro_batch, recompute) or 0,
            torch.device(device),
        )
        step_cache[key] = CompiledStep(Step(configs, tokens, device, micro_batch, recompute))
    return step_cache[key]


def _make_room(needed: int, device: torch.device) -> None:
    """Drop the least recently used steps until a new one of `needed` bytes fits."""
    while step_cache and (
        len(step_cache) >= KEPT[device.type] or (device.type == "cuda" and _free(device) < needed)
    ):
        step_cache.popitem(last=False)
        gc.collect()  # a compiled step and its methods hold each other


def _drop_others(kept: CompiledStep) -> bool:
    """Drop all steps but one, whose memory the estimate put too low; return whether there were."""
    others = [key for key, one in step_cache.items() if one is not kept]
    for key in others:
        del step_cache[key]
    gc.collect()  # a compiled step and its methods hold each other
    return bool(others)


def _free(device: torch.device) -> int:
    """Return the bytes that this process may still use of its share of the device."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return min(
        free,
        int(torch.cuda.get_per_process_memory_fraction(device.index) * total)
        - torch.cuda.memory_reserved(device),
    )
