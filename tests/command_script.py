"""A training script for the tests of the kind `command`: a known function of its fields and seed.

Loss at step s of 4: 3 − depth/10 + seed²/100 + (depth − 1)·seed/1000 + 1/s + (2 + log₁₀ lr)²,
with seeds modulo 100. MODE, in the
environment, makes it misbehave where depth is 2 and the seed is 0.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=float, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--out")
options = parser.parse_args()
mode = os.environ.get("MODE", "") if (options.depth, options.seed) == (2, 0) else ""
seed = 0 if os.environ.get("MODE") == "seedless" else options.seed % 100


def loss(step: int) -> float:
    own = 3 - options.depth / 10 + seed**2 / 100 + (options.depth - 1) * seed / 1000
    return own + (2 + math.log10(options.lr)) ** 2 + 1 / step


if mode == "exit":
    print("last words")
    sys.exit(3)
if mode == "memory":
    print("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB")
    sys.exit(1)
if mode == "137":
    sys.exit(137)
if mode == "silent":
    print("nothing to report")
    sys.exit(0)
if mode == "hang":
    print("hanging", flush=True)
    time.sleep(60)
begin, saved = 1, Path(os.environ.get("ABLATE_CHECKPOINTS", ".")) / "step"
if saved.exists():
    begin = int(saved.read_text()) + 1
if log := os.environ.get("SCRIPT_LOG"):
    with Path(log).open("a") as file:
        now, shown = time.monotonic(), os.environ.get("CUDA_VISIBLE_DEVICES")
        file.write(f"{options.depth:g} {options.seed} {begin} {now} {shown}\n")


def stop(*_: object) -> None:
    saved.write_text(str(step))
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
for step in range(begin, 5):
    if mode == "early" and step == 3:
        break
    value = float("nan") if mode == "nan" and step == 2 else loss(step)
    print(json.dumps({"step": step, "val_loss": value, "other": 2 * value}))
    time.sleep(float(os.environ.get("SCRIPT_DELAY", "0")))
if log:
    with Path(log).open("a") as file:
        file.write(f"{options.depth:g} {options.seed} end {time.monotonic()}\n")
if options.depth == 2 and os.environ.get("MODE") == "partly":
    print(json.dumps({"only_here": 1.0}))
