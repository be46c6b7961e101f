"""The time of a whole study, from command to report, beside a fresh compiled nanoGPT process a run.

    # 5 topologies × 3 seeds × 1,000 steps at 0.85M, 15 processes
    python benchmarks/study.py --nanogpt ~/nanoGPT
    # the other 11 count as long as the mean of all but the first
    python benchmarks/study.py --nanogpt ~/nanoGPT --processes 4
    # whether it works
    python benchmarks/study.py --size tiny --device cpu

The study is `ablate run` and `ablate report`. A process of nanoGPT imports, starts CUDA, makes and
compiles its model, trains on the same text with batches from memory, and is evaluated once, on as
many tokens. Both begin with empty caches, also of the compiler; nanoGPT's processes share theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import nanogpt
import numpy as np
import torch
from step import COMMON, SIZES, described, line

from ablate import text
from ablate.evaluation import Evaluation
from ablate.plan import plan
from ablate.study import load

TOPOLOGIES = (1, 2, 3, 4, 5)
SEEDS = 3
RUNS = len(TOPOLOGIES) * SEEDS


def study_file(shape: dict[str, int], steps: int, precision: str) -> str:
    """Return the text of a study file."""
    fields: dict[str, Any] = {
        name: value for name, value in shape.items() if name not in ("batch", "n_vocab")
    } | COMMON
    batch_tokens = shape["batch"] * shape["n_ctx"]
    fields |= {
        "corpus": "austen",
        "tokenizer": "byte",
        "batch_tokens": batch_tokens,
        "tokens": steps * batch_tokens,
    }
    base = "\n".join(
        f"{name} = {json.dumps(value)}"
        for name, value in (fields | {"precision": precision}).items()
    )
    return f"""
name = "whole"
question = "Which wiring of attention and MLP learns fastest?"
metric = "loss"
design = "one-factor"
seeds = {SEEDS}
[base]
{base}
[factors]
topology = {list(TOPOLOGIES)}
[eval]
points = 1
"""


def timed(command: list[str], **environment: str) -> tuple[float, str]:
    """Return the seconds that a command takes, and its output; exit with its output if it fails."""
    begun = time.perf_counter()
    finished = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if finished.returncode:
        raise SystemExit(
            f"{' '.join(command)[:200]} ended with"
            f" {finished.returncode}:\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}"
        )
    return time.perf_counter() - begun, finished.stdout


def ours(study: Path, device: str, folder: Path) -> dict[str, float]:
    """Return the seconds of each command."""
    ablate = [sys.executable, "-m", "ablate"]
    environment = {
        "ABLATE_CACHE": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),
    }
    environment |= {"ABLATE_DB": str(folder / "ablate.db")}
    run, said = timed(
        [*ablate, "run", str(study), "--device", device.partition(":")[0]], **environment
    )
    assert f"{RUNS} complete" in said, said
    report, said = timed([*ablate, "report", "whole", "--out", str(folder)], **environment)
    assert (folder / "whole" / "report.html").exists(), said
    return {"ablate run": run, "ablate report": report}


def theirs(study: Path, options: argparse.Namespace, folder: Path) -> list[float]:
    """Return the seconds of each process; they run one after another."""
    planned = plan(load(str(study)))
    first = planned.runs[0].config
    tokens = text.load(first, planned.sources)
    np.save(folder / "data.npy", tokens.train)
    np.save(folder / "held_out.npy", tokens.held_out)
    job = {
        "checkout": str(options.nanogpt.absolute()),
        "shape": SIZES[options.size] | {"n_vocab": first.n_vocab},
    }
    job |= {
        "data": str(folder / "data.npy"),
        "held_out": str(folder / "held_out.npy"),
        "device": options.device,
    }
    job |= {"steps": first.steps, "tokens": Evaluation().tokens}
    seconds = []
    for k in range(options.processes):
        command = [sys.executable, nanogpt.__file__, json.dumps(job)]
        took, said = timed(command, TORCHINDUCTOR_CACHE_DIR=str(folder / "theirs"))
        print(
            f"nanoGPT process {k + 1}: {took:.1f} s, held-out loss {json.loads(said)['loss']:.3f}",
            flush=True,
        )
        seconds.append(took)
    return seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="0.85M", choices=SIZES)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument(
        "--processes", type=int, default=RUNS, help=f"of nanoGPT that are run, of {RUNS}"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    print(described(options.device), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = folder / "whole.toml"
        precision = "bfloat16" if options.device.startswith("cuda") else "float32"
        study.write_text(study_file(SIZES[options.size], options.steps, precision))
        parts = ours(study, options.device, folder)
        print(", ".join(f"{what}: {seconds:.1f} s" for what, seconds in parts.items()), flush=True)
        each = theirs(study, options, folder) if options.nanogpt else []
    took = sum(parts.values())
    print()
    line("what", "runs", "wall s", "s a run", "times as long")
    line(*["---"] * 5)
    line("`ablate run` and `ablate report`", RUNS, f"{took:.1f}", f"{took / RUNS:.1f}", "1")
    if each:
        whole = sum(each) + (RUNS - len(each)) * mean(each[1:] or each)
        counted = "" if len(each) == RUNS else f", {len(each)} run and {RUNS - len(each)} estimated"
        line(
            f"nanoGPT, a process a run{counted}",
            RUNS,
            f"{whole:.1f}",
            f"{whole / RUNS:.1f}",
            f"{whole / took:.2f}",
        )


if __name__ == "__main__":
    main()
