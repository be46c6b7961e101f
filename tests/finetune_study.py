"""Labelled texts and small studies that fine-tune, for the tests of fine-tuning."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from in_process import InProcessExecutor
from rich.console import Console

from ablate import store
from ablate.errors import AblateError
from ablate.launch import devices
from ablate.launch.pool import Outcome
from ablate.launch.trainer import TorchTrainer
from ablate.plan import Plan, plan
from ablate.study import load
from ablate.study_run import run_study

BASE = """
corpus = "corpus.txt"
n_layer = 2
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 128
lr = 1e-2
tokens = 2560
"""
STUDY = """
name = "{name}"
question = "What must be trained?"
metric = "{metric}"
seeds = {seeds}
[base]
{base}
[finetune]
task = "{task}"
finetune_steps = {steps}
finetune_batch = 8
{finetune}
[factors]
{factors}
[eval]
tokens = 512
final_tokens = 512
points = 2
"""
METHODS = 'method = ["scratch", "head", "adapter", "lora", "full"]'


def table(path: Path, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> Path:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns or ("text", "label"), *rows])
    return path


def texts(n: int = 60) -> list[tuple[str, str]]:
    """Texts of two labels, of different lengths: the letters of each are its own."""
    rng = random.Random(0)
    return [
        ("".join(rng.choices("abcdef " if k % 2 else "uvwxyz ", k=rng.randint(3, 20))) + "!", label)
        for k in range(n)
        for label in ["late", "early"][k % 2 :][:1]
    ]


def folder_of(path: Path, rows: Sequence[Sequence[str]] = ()) -> Path:
    """Write a corpus and a task into a folder."""
    rng = random.Random(1)
    documents = ("".join(rng.choices("abcdefuvwxyz ", k=300)) for _ in range(40))
    (path / "corpus.txt").write_text("\n\n\n".join(documents))
    table(path / "task.csv", rows or texts())
    return path


def planned(
    folder: Path,
    factors: str = METHODS,
    *,
    name: str = "tuned",
    metric: str = "task_accuracy",
    seeds: int = 1,
    base: str = BASE,
    finetune: str = "",
    task: str = "task.csv",
    steps: int = 6,
) -> Plan:
    """The plan of a study in the folder."""
    file = folder / f"{name}.toml"
    given = {"metric": metric, "seeds": seeds, "base": base, "finetune": finetune, "task": task}
    file.write_text(STUDY.format(name=name, factors=factors, steps=steps, **given))
    return plan(load(str(file)))


@contextmanager
def refused(file: Path, said: str) -> Iterator[None]:
    """Expect an error that `said`, a pattern, is in: one line, which begins with the line of a key
    that it is about, or of the table that lacks the key.
    """
    with pytest.raises(AblateError, match=said) as error:
        yield
    text = str(error.value)
    found = re.match(rf"{re.escape(str(file))}, line (\d+): (cell '.*?': )?", text)
    assert found and "\n" not in text, text
    key = file.read_text().splitlines()[int(found[1]) - 1].partition(" =")[0]
    named = key in ("[finetune]", "[start]") or re.search(rf"\b{key}\b", text[found.end() :])
    assert not found[2] or named, (key, text)


def train(made: Plan, path: Path) -> tuple[Outcome, str]:
    """Train a plan in this process; return its outcome and what was printed."""
    out = io.StringIO()
    with store.open(str(path), create=True) as db:
        executor = InProcessExecutor(devices.find("cpu")[:1], TorchTrainer)
        outcome = run_study(made, db, executor, console=Console(file=out, width=300))
    return outcome, out.getvalue()
