"""What is read of the output and the files of a script that runs; references are worked by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from in_process import scripts
from launch_helpers import launch, rows

from ablate.launch import pool
from ablate.plan import plan
from ablate.study import load

STUDY = """
name = "own"
question = "Which?"
metric = "val_loss"
goal = "lower"
seeds = [0]
[command]
run = "{python} train.py {{depth}} {{seed}}"
code = ["train.py"]
gpus = 0
{command}
[factors]
depth = [1, 2]
"""
BEGIN = """
import json, os, sys, time
from pathlib import Path
out = Path(os.environ["ABLATE_OUT"])
def say(**values):
    print(json.dumps(values), flush=True)
"""


class Read(NamedTuple):
    """What the database has of the run of depth 1."""

    status: str
    metric: float | None
    curve: list[tuple[int, float]]
    error: str
    note: str


Reads = Callable[..., Read]


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(pool, "INGEST", 0.05)
    monkeypatch.setattr(pool, "POLL", 0.1)

    def run(script: str, command: str = "") -> Read:
        """Run a study of a script whose functions `say` and `out` are those of `BEGIN`."""
        (tmp_path / "train.py").write_text(BEGIN + script)
        (tmp_path / "own.toml").write_text(STUDY.format(python=sys.executable, command=command))
        path = tmp_path / "a.db"
        launch(plan(load(str(tmp_path / "own.toml"))), path, executor=scripts)
        ((run, status, metric),) = rows(
            path, "SELECT run, status, metric FROM runs WHERE cell = 'depth=1'"
        )
        curve = rows(
            path,
            f"SELECT step, value FROM all_curves WHERE run = {run} AND series = 'val_loss'"
            " ORDER BY step",
        )
        ((error, note),) = rows(
            path, f"SELECT error, note FROM attempt WHERE run_id = {run} ORDER BY id DESC LIMIT 1"
        )
        return Read(status, metric, curve, error or "", note or "")

    return run


def test_an_unfinished_line_of_standard_error_hides_no_number(reads: Reads) -> None:
    """A progress bar has no line feed, and a buffer may be written in the middle of a line."""
    found = reads(
        "for step in range(1, 5):\n"
        "    sys.stderr.write(f'\\r{step * 25:3d}%|##  | {step}/4 [00:01<00:03, 1.0it/s]')\n"
        "    sys.stderr.flush()\n"
        "    print(f'{{\"step\": {step}, \"val_', end='', flush=True)\n"
        "    sys.stderr.write('x')\n"
        "    sys.stderr.flush()\n"
        "    print(f'loss\": {5 - step}}}', flush=True)\n"
    )
    assert found.curve == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]
    assert (found.status, found.metric) == ("complete", 1.0)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_patterns_and_json_are_read_on_both_streams(reads: Reads, stream: str) -> None:
    found = reads(
        f"print('step 1: val 3.5', file=sys.{stream})\n"
        f'print(\'{{"step": 2, "val_loss": 2.5}}\', file=sys.{stream})\n',
        "pattern = 'step (?P<step>\\d+): val (?P<val_loss>\\S+)'",
    )
    assert found.curve == [(1, 3.5), (2, 2.5)]


def test_the_lines_that_explain_a_failure_come_from_both_streams(reads: Reads) -> None:
    found = reads(
        "print('reading the data', flush=True)\ntime.sleep(0.3)\nraise SystemExit('no such data')"
    )
    assert found.status == "failed" and found.error.endswith("exit code 1: no such data")
    assert found.error.index("reading the data") < found.error.index("no such data")


@pytest.mark.parametrize("end", ["", "\\n"])
def test_the_last_row_of_a_file_needs_no_line_feed(reads: Reads, end: str) -> None:
    found = reads(
        f"(out / 'm.csv').write_text('step,val_loss\\n1,3.5\\n2,2.25{end}')", 'metrics = "m.csv"'
    )
    assert found.curve == [(1, 3.5), (2, 2.25)] and found.metric == 2.25


def test_a_row_that_is_being_written_is_not_read(reads: Reads) -> None:
    found = reads(
        "file = (out / 'm.csv').open('w')\n"
        "file.write('step,val_loss\\n1,3.5\\n2')\nfile.flush()\ntime.sleep(1.5)\n"
        "file.write('0,2.25\\n')\nfile.close()\n",
        'metrics = "m.csv"',
    )
    assert found.curve == [(1, 3.5), (20, 2.25)] and found.metric == 2.25


def test_the_last_of_steps_that_are_not_whole_decides(reads: Reads) -> None:
    found = reads("for k in range(1, 9): say(epoch=k / 4, val_loss=9 - k)")
    assert found.curve == [(k, 9.0 - k) for k in range(1, 9)] and found.metric == 1


PHASES = """
for step in range(1, 9):
    say(step=10 * step, val_loss=4 + step / 8)
for step in range(1, 9):
    say(step=step, val_loss=7 - step / 2)
"""


@pytest.mark.parametrize("into", ["print", "log"])
def test_the_last_value_decides_where_steps_begin_again(reads: Reads, into: str) -> None:
    script = PHASES
    if into == "log":
        script = "def say(**values):\n    with open(os.environ['ABLATE_METRICS'], 'a') as file:\n"
        script += f"        print(json.dumps(values), file=file)\n{PHASES}"
    found = reads(script)
    assert found.metric == 3.0 and "went back, first from 80 to 1" in found.note
    first = [(10 * step, 4 + step / 8) for step in range(1, 9)]
    assert found.curve == [*((step, 7 - step / 2) for step in range(1, 9)), *first]


def test_the_last_value_decides_where_training_goes_back(reads: Reads) -> None:
    script = "for step, loss in ((1, 4), (2, 1.5), (3, 2), (2, 3)): say(step=step, val_loss=loss)"
    found = reads(script)
    assert (found.metric, found.curve) == (3.0, [(1, 4.0), (2, 3.0), (3, 2.0)])
    assert "from 3 to 2" in found.note


def test_the_best_is_that_of_all_values(reads: Reads) -> None:
    script = "for step, loss in ((1, 4), (2, 1.5), (3, 2), (2, 3)): say(step=step, val_loss=loss)"
    assert reads(script, 'at = "best"').metric == 1.5


@pytest.mark.parametrize(("at", "metric"), [("last", 3.0), ("best", 1.5)])
def test_what_a_stopped_attempt_reported_last_decides(reads: Reads, at: str, metric: float) -> None:
    script = (
        "saved = Path(os.environ['ABLATE_CHECKPOINTS']) / 'saved'\n"
        "if saved.exists(): sys.exit()\n"
        "for step, loss in ((1, 4), (2, 1.5), (3, 2), (2, 3)): say(step=step, val_loss=loss)\n"
        "saved.touch()\nsys.exit(3)\n"
    )
    command = f'at = "{at}"'
    assert reads(script, command).status == "failed"
    found = reads(script, command)
    assert (found.status, found.metric) == ("complete", metric)


@pytest.mark.parametrize("pause", [0, 1.5])
@pytest.mark.parametrize("at", ['"last"', '"best"', "1"])
@pytest.mark.parametrize("into", ["print", "file"])
def test_a_run_that_diverged_has_no_value_however_fast_it_went_on(
    reads: Reads, pause: float, at: str, into: str
) -> None:
    say = "" if into == "print" else "file = (out / 'm.jsonl').open('a')\n"
    if into == "file":
        say += "def say(**values):\n    print(json.dumps(values), file=file, flush=True)\n"
    found = reads(
        f"{say}say(step=1, val_loss=3.0)\nsay(step=2, val_loss=float('nan'))\n"
        f"time.sleep({pause})\nsay(step=3, val_loss=2.0)\nsay(step=2, val_loss=2.5)\n",
        f'at = {at}\nmetrics = "m.jsonl"',
    )
    assert (found.status, found.metric) == ("diverged", None)
    assert found.curve == [(1, 3.0), (2, None)]  # NaN


@pytest.mark.parametrize(
    ("command", "said", "unsaid"),
    [
        ("", ["ablate.log", "pattern or metrics"], []),
        ("pattern = 'loss: (?P<val_loss>\\S+)'", ["no line", "pattern"], ["ablate.log"]),
        ("pattern = 'loss (?P<val_loss>\\S+)'", ["pattern", "no number"], ["no line"]),
        ('metrics = ["a.csv", "b/*.csv"]', ["no file b/*.csv", "no number in a.csv"], ["pattern"]),
    ],
)
def test_a_script_of_which_nothing_was_read_is_told_why(
    reads: Reads, command: str, said: list[str], unsaid: list[str]
) -> None:
    found = reads("print('loss (none)')\n(out / 'a.csv').write_text('a,b\\nx,y\\n')", command)
    assert found.status == "failed" and "no number at all" in found.error
    assert all(one in found.error for one in said), found.error
    assert not any(one in found.error for one in unsaid), found.error
