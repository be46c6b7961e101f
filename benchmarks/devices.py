"""Speed, memory and losses of one run on 1, 2, … devices.

    # GPT-2 small on one GPU and on two
    python benchmarks/devices.py
    # GPT-2 medium on eight
    python benchmarks/devices.py --preset gpt2-medium --devices 8 --steps 500
    # whether it works
    python benchmarks/devices.py --preset tiny --device cpu --n-ctx 32 --batch-tokens 256

Each row is a run as `ablate run --devices-per-run N` trains it, in a worker with N processes, on
the same text: random tokens with the frequencies of Zipf's law. Speed is the median over the second
half of the steps; memory is that of the device of rank 0. The last columns compare the training
losses of all steps, and the final held-out loss, with those of the first row.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate import journal
from ablate.kinds import Job
from ablate.launch import devices, packs
from ablate.launch.devices import Device
from ablate.launch.local import LocalExecutor
from ablate.plan import Plan, plan
from ablate.study import load

STUDY = """
name = "devices"
question = "How fast is one run on several devices?"
seeds = 1
[base]
{model}
corpus = "tokens.bin"
tokenizer = "tokens"
n_ctx = {n_ctx}
batch_tokens = {batch_tokens}
tokens = {tokens}
precision = "{precision}"
[factors]
lr = [6e-4, 3e-4]
[eval]
points = 1
tokens = 65536
final_tokens = 65536
"""
TINY = "n_layer = 2\nd_model = 32\nn_head = 2"
N_VOCAB = {"tiny": 256}  # else that of GPT-2, a multiple of 64 as nanoGPT has it
TEXT = 50_000_000  # most tokens of the text
HEADINGS = (
    *("devices", "compiled", "set-up s", "tokens/s", "ratio", "peak GB", "loss"),
    *("largest difference of the training loss", "difference of the held-out loss"),
)


@dataclass(frozen=True)
class Result:
    """What a run measured.

    Attributes:
        mode: What of its step was compiled.
        start: Seconds until its first metrics.
        speed: Tokens a second.
        peak: Bytes.
        losses: Step → training loss.
        final: Held-out loss.
    """

    mode: str
    start: float
    speed: float
    peak: int
    losses: dict[int, float]
    final: float


def planned(folder: Path, arguments: argparse.Namespace, on_gpu: bool) -> Plan:
    """Write a text and a study, and return its plan."""
    n_vocab = N_VOCAB.get(arguments.preset, 50304)
    random = np.random.default_rng(0)
    n = min(TEXT, 2 * arguments.steps * arguments.batch_tokens + 20 * 65536)
    shares = 1 / np.arange(1, n_vocab + 1)
    tokens = np.searchsorted(np.cumsum(shares / shares.sum()), random.random(n))
    tokens = np.minimum(tokens, n_vocab - 1).astype("<u2")
    tokens[: 2 * n_vocab : 2] = np.arange(n_vocab)  # each occurs, so that the vocabulary is known
    tokens.tofile(folder / "tokens.bin")
    model = TINY if arguments.preset == "tiny" else f'preset = "{arguments.preset}"'
    (folder / "study.toml").write_text(
        STUDY.format(
            model=model,
            n_ctx=arguments.n_ctx,
            batch_tokens=arguments.batch_tokens,
            tokens=arguments.steps * arguments.batch_tokens,
            precision="bfloat16" if on_gpu else "float32",
        )
    )
    return plan(load(str(folder / "study.toml")))


def measured(of: Plan, device: Device, folder: Path, mode: str) -> Result:
    """Train the first run of a plan on a device, or on several."""
    run = of.runs[0].run
    size = packs.size(run, device, oom_level=0)
    job = Job(
        (run,),
        of.study.evaluation,
        sources=of.sources,
        micro_batch=size.micro_batch,
        recompute=size.recompute,
        compile=mode,
    )
    executor, path = LocalExecutor([device]), folder / f"{device.count}.jsonl"
    try:
        executor.submit(0, job, [path])
        while not (ended := executor.poll(1.0)):
            pass
    finally:
        executor.close(5.0)
    events, _ = journal.read(path)
    end = events[-1]
    if end["event"] != "end" or end["status"] != "complete":
        raise RuntimeError(end.get("error") or ended[0].reason or end.get("status"))
    start = next(event for event in events if event["event"] == "start")
    points = [
        (step, event["series"], k)
        for event in events
        if event["event"] == "metrics" and "train_loss" in event["series"]
        for k, step in enumerate(event["steps"])
    ]
    speeds = [series["tokens_per_second"][k] for _, series, k in points]
    finals = next(event["values"] for event in events if event["event"] == "final")
    return Result(
        start["compile_mode"],
        start["time"],
        statistics.median(speeds[len(speeds) // 2 :]),
        end["peak_bytes"],
        {step: series["train_loss"][k] for step, series, k in points},
        next(value for name, _, value in finals if name == "loss"),
    )


def row(n: int, found: Result, first: Result, begun: float) -> tuple[str, ...]:
    """Return the cells of a table for a run on n devices."""
    losses = list(found.losses.values())
    apart = max(abs(loss - first.losses[step]) for step, loss in found.losses.items())
    return (
        str(n),
        found.mode,
        f"{found.start - begun:.0f}",
        f"{found.speed:,.0f}",
        f"{found.speed / first.speed:.3f}",
        f"{found.peak / 1e9:.1f}",
        f"{losses[0]:.3f} → {losses[-1]:.3f}",
        f"{apart:.1e}",
        f"{found.final - first.final:+.1e}",
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="gpt2", help='a preset, or "tiny"')
    parser.add_argument("--devices", default="1,2", help="numbers of devices")
    parser.add_argument("--device", default="auto", choices=devices.KINDS)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--n-ctx", type=int, default=1024)
    parser.add_argument("--batch-tokens", type=int, default=1 << 19)
    parser.add_argument("--compile", default="whole", help="what is compiled on a GPU")
    arguments = parser.parse_args()
    found = devices.find(arguments.device)
    print("| " + " | ".join(HEADINGS) + " |\n|" + " --- |" * len(HEADINGS), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        of = planned(folder, arguments, found[0].name.startswith("cuda"))
        first = None
        for n in map(int, arguments.devices.split(",")):
            slots = devices.groups(found, n) if n > 1 else found
            if not slots:
                raise SystemExit(f"--devices {n}: here are {len(found)}")
            begun = time.time()
            result = measured(of, slots[0], folder, arguments.compile)
            first = first or result
            print("| " + " | ".join(row(n, result, first, begun)) + " |", flush=True)


if __name__ == "__main__":
    main()
