"""The speed-up of a study of 64 equal runs on 1, 2, 4 and 8 GPUs of one host.

    python benchmarks/node.py 1 2 4
    # at once with another call, on other GPUs
    CUDA_VISIBLE_DEVICES=1,2 python benchmarks/node.py 2
    # whether it works
    python benchmarks/node.py 1 2 --device cpu --size tiny --runs 4

A row a number of GPUs: the seconds from the first start of training to the last end, in the
database, those of the whole `ablate run`, and the seconds that a run takes to be set up and to be
trained. Caches, also of the compiler, are empty at first and then shared by all rows, so that only
the first row compiles. `--warm` fills them first, with two runs that are not timed.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from pathlib import Path

import torch
from study import timed

SIZES = {
    "10.8M": "n_layer = 6\nd_model = 384\nn_head = 6\nn_ctx = 256\nbatch_tokens = 16384\n"
    'precision = "bfloat16"\n',
    "tiny": "n_layer = 2\nd_model = 32\nn_head = 2\nn_ctx = 64\nbatch_tokens = 1024\n",
}


def study_file(name: str, size: str, tokens: str, runs: int) -> str:
    """Return a study of two learning rates, which cost the same, and `runs` in all."""
    return f"""
name = "{name}"
question = "What do more GPUs gain?"
metric = "loss"
seeds = {runs // 2}
[base]
{SIZES[size]}corpus = "austen"
tokenizer = "byte"
tokens = "{tokens}"
[factors]
lr = [1e-3, 2e-3]
[eval]
points = 2
"""


def trained(options: argparse.Namespace, folder: Path, gpus: int, runs: int) -> str:
    """Run the study and return a row of the table."""
    name = f"on-{gpus}-{runs}"
    study, database = folder / f"{name}.toml", folder / f"{name}.db"
    study.write_text(study_file(name, options.size, options.tokens, runs))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(k) for k in range(gpus)]
    command = [sys.executable, "-m", "ablate", "run", str(study), "--db", str(database)]
    whole, _ = timed(
        [*command, "--device", options.device],
        CUDA_VISIBLE_DEVICES=",".join(devices[:gpus]),
        ABLATE_CACHE=str(folder / "cache"),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "compiled"),
    )
    with sqlite3.connect(database) as connection:
        training, attempts, done, size = connection.execute(
            "SELECT 86400 * (max(julianday(ended)) - min(julianday(started))), count(*),"
            " sum(status = 'complete'), max(pack_size) FROM attempt"
        ).fetchone()
    assert done == runs, f"{done} of {runs} runs are complete"
    return (
        f"| {gpus} | {runs} | {training:.1f} | {whole:.1f} | {whole - training:.1f} |"
        f" {size or 1} | {attempts} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpus", type=int, nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="10.8M", choices=SIZES)
    parser.add_argument("--tokens", default="20M")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{card}, torch {torch.__version__}, {options.size}, {options.tokens} tokens a run")
    print(
        "| GPUs | runs | training, s | whole command, s | outside training, s | pack | attempts |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.warm:
            trained(options, folder, 1, 2)
        for gpus in options.gpus:
            print(trained(options, folder, gpus, options.runs), flush=True)


if __name__ == "__main__":
    main()
