"""A training script of one's own, for studies/own-script.toml: linear regression by SGD.

It needs nothing but Python, knows nothing of ablate, and prints a line of JSON now and then.
"""

import argparse
import json
import random

parser = argparse.ArgumentParser()
parser.add_argument("--momentum", type=float, default=0.0)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

SIZE = 10
world = random.Random("the same for every seed")
truth = [world.gauss(0, 1) for _ in range(SIZE)]
draw = random.Random(options.seed)  # the order of examples, and their noise


def example(source):
    inputs = [source.gauss(0, 1) for _ in range(SIZE)]
    target = sum(w * x for w, x in zip(truth, inputs, strict=True)) + source.gauss(0, 0.5)
    return inputs, target


def error(weights, inputs, target):
    return sum(w * x for w, x in zip(weights, inputs, strict=True)) - target


held_out = [example(world) for _ in range(200)]
weights, speed = [0.0] * SIZE, [0.0] * SIZE
for step in range(1, options.steps + 1):
    inputs, target = example(draw)
    off = error(weights, inputs, target)
    speed = [options.momentum * v + off * x for v, x in zip(speed, inputs, strict=True)]
    weights = [w - options.lr * v for w, v in zip(weights, speed, strict=True)]
    if step % 20 == 0:
        loss = sum(error(weights, *one) ** 2 for one in held_out) / len(held_out)
        print(json.dumps({"step": step, "val_loss": loss}))
