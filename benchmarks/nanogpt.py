"""nanoGPT for comparison: a checkout's model.py and fused AdamW, compiled, in the loop of its
train.py.

    python benchmarks/nanogpt.py JOB    # JOB is JSON, see `main`; a process of its own, which
    imports nothing of ablate

Its code is imported from the checkout. Batches come from memory, nothing is logged, and losses are
not read back on the way.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clock import peak_bytes, speed, synchronise

WARM_UP = 10  # steps before a speed is taken


class NanoGPT:
    """A model of `shape` (n_layer, d_model, n_head, n_ctx, n_vocab, batch) that learns from a
    stream of tokens.
    """

    def __init__(self, checkout: Path, shape: dict[str, int], data: np.ndarray, device: str):
        self.device, self.batch, self.context, self.data = (
            device,
            shape["batch"],
            shape["n_ctx"],
            data,
        )
        module = load(checkout / "model.py")
        names = {
            "n_layer": "n_layer",
            "d_model": "n_embd",
            "n_head": "n_head",
            "n_ctx": "block_size",
            "n_vocab": "vocab_size",
        }
        fields = {theirs: shape[ours] for ours, theirs in names.items()}
        self.plain = module.GPT(module.GPTConfig(**fields, dropout=0.0, bias=False)).to(device)
        self.optimiser = self.plain.configure_optimizers(
            0.1, 1e-3, (0.9, 0.95), device.split(":")[0]
        )
        self.model: Any = torch.compile(self.plain)
        self.inputs, self.targets = self.windows()

    def windows(self) -> Iterator[torch.Tensor]:
        starts = torch.randint(len(self.data) - self.context, (self.batch,)).tolist()
        for shift in (0, 1):
            rows = [
                torch.from_numpy(self.data[i + shift : i + shift + self.context].astype(np.int64))
                for i in starts
            ]
            batch = torch.stack(rows)
            yield (
                batch.pin_memory().to(self.device, non_blocking=True)
                if self.device.startswith("cuda")
                else batch
            )

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.split(":")[0], torch.bfloat16, enabled=self.device.startswith("cuda")
        )

    def step(self) -> None:
        with self.autocast():
            _, loss = self.model(self.inputs, self.targets)
        self.inputs, self.targets = self.windows()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        synchronise(self.device)

    @torch.no_grad()
    def loss(self, text: np.ndarray, tokens: int) -> float:
        """Mean loss over the first `tokens` of a text, by the model as it is before compilation,
        which would compile anew.
        """
        n = min(tokens, len(text) - 1) // self.context
        rows = torch.from_numpy(text[: n * self.context + 1].astype(np.int64)).to(self.device)
        inputs, targets = rows[:-1].view(n, -1), rows[1:].view(n, -1)
        losses = []
        for batch in zip(inputs.split(self.batch), targets.split(self.batch), strict=True):
            with self.autocast():
                losses.append(self.plain(*batch)[1] * len(batch[0]))
        return (torch.stack(losses).sum() / n).item()

    def tokens_per_second(self, seconds: float) -> float:
        return self.batch * self.context * speed(self.step, self.device, seconds)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(
        spec
    )  # where the compiler looks for it
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Train and print `{"loss"}`, or, without `steps`, say `{"set_up"}`, wait for a line, and print
    `{"rate", "peak_bytes"}`.

    A job is `{"checkout", "shape", "device", "data", "held_out", "steps", "tokens"}` or
    `{"checkout", "shape", "device", "data", "seconds"}`; data and held_out are .npy files.
    """
    job = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # the model prints what it is

    def answer(**values: float) -> None:
        print(json.dumps(values), file=answers, flush=True)

    begun = time.perf_counter()
    model = NanoGPT(Path(job["checkout"]), job["shape"], np.load(job["data"]), job["device"])
    if "steps" in job:
        model.train(job["steps"])
        answer(loss=model.loss(np.load(job["held_out"]), job["tokens"]))
        return
    model.train(WARM_UP)
    answer(set_up=time.perf_counter() - begun)
    sys.stdin.readline()
    answer(rate=model.tokens_per_second(job["seconds"]), peak_bytes=peak_bytes(job["device"]))


if __name__ == "__main__":
    main()
