"""Studies of a training script from the file to the answer; references are worked by hand."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import ROOT, Run, git, python, refused
from in_process import InProcessExecutor, scripts
from launch_helpers import Launcher, launch, processes, rows, wait_for, workers
from report_study import svg_only  # noqa: F401

from ablate import analysis, report, store
from ablate.analysis import records
from ablate.errors import AblateError
from ablate.kinds import Job
from ablate.launch import pool
from ablate.launch.devices import Device
from ablate.launch.executor import Ended
from ablate.launch.plain import PlainTrainer
from ablate.plan import Plan, plan
from ablate.store import query, questions
from ablate.study import load
from ablate.study_run import Outcome

SCRIPT = Path(__file__).parent / "command_script.py"
STUDY = """
name = "own"
question = "Does depth lower the loss?"
metric = "val_loss"
goal = "lower"
seeds = {seeds}
[command]
run = "{python} {script} --depth {{depth}} --seed {{seed}} --out {{out}}"
code = ["{script}"]
gpus = 0
{command}
[factors]
depth = [1, 2]
{more}
"""


def planned(folder: Path, seeds: object = 3, command: str = "", more: str = "") -> Plan:
    path = folder / "own.toml"
    values = {"seeds": seeds, "command": command, "more": more}
    path.write_text(STUDY.format(python=sys.executable, script=SCRIPT, **values))
    return plan(load(str(path)))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "INGEST", 0.05)
    monkeypatch.setattr(pool, "POLL", 0.1)
    for name in ("MODE", "SCRIPT_DELAY", "SCRIPT_LOG", "ABLATE_WORKER"):
        monkeypatch.delenv(name, raising=False)


def train(work: Plan, path: Path) -> Outcome:
    """Run a study whose workers are threads, where it does not matter that they are processes."""
    return launch(work, path, executor=scripts)[0]


def loss(depth: int, seed: int, step: int = 4) -> float:
    return 3 - depth / 10 + seed**2 / 100 + (depth - 1) * seed / 1000 + 1 / step


@pytest.mark.usefixtures("svg_only")
def test_the_effect_is_that_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    outcome = train(planned(tmp_path, more="[report]\nthreshold = 3.1"), path)
    assert outcome.exit_code == 0 and outcome.counts == {"complete": 6}
    curve = rows(
        path,
        "SELECT step, value FROM all_curves WHERE cell = 'depth=2' AND seed = 1 AND series ="
        " 'val_loss' ORDER BY step",
    )
    assert curve == [(step, pytest.approx(loss(2, 1, step))) for step in range(1, 5)]
    (one,) = analysis.findings("own", str(path)).of(records.Contrast)
    # differences of the seeds 0, 1, 2: −0.1, −0.099, −0.098
    assert one.mean == pytest.approx(-0.099) and one.sd == pytest.approx(0.001)
    assert one.verdict == "better" and one.n == 3
    found = analysis.findings("own", str(path)).of(records.Threshold)
    assert [each.mean for each in found] == pytest.approx(
        [np.mean([loss(depth, seed) for seed in range(3)]) for depth in (1, 2)]
    )
    with store.open(str(path)) as db:
        data = report.gather(db, "own")
        text, page = report.answer(data), report.write(data, tmp_path / "page")
    assert "token" not in text and "held-out" not in text and "learning rate" not in text
    assert page.exists() and "command" in (tmp_path / "page" / "report.md").read_text()


@pytest.mark.parametrize("at", ['"last"', '"best"', "2"])
def test_curves_of_scripts_are_compared_by_steps(ablate: Run, tmp_path: Path, at: str) -> None:
    train(planned(tmp_path, seeds=1, command=f"at = {at}"), tmp_path / "a.db")
    code, out, error = ablate("compare", "1", "2", "--db", "a.db", "--plot", "c.svg")
    assert code == 0, error
    found = [line.split() for line in out.splitlines()]
    begin = found.index(["val_loss", "at", "step", "run", "1", "run", "2", "difference"])
    values = [[float(one.replace("−", "-")) for one in row] for row in found[begin + 2 : begin + 6]]
    for step, row in enumerate(values, 1):
        assert row == pytest.approx([step, loss(1, 0, step), loss(2, 0, step), -0.1], abs=6e-3)
    assert ["other", "run", "1"] in [row[:3] for row in found]  # a series beside the metric
    assert "val_loss" in Path("c.svg").read_text()


@pytest.mark.parametrize(("goal", "best"), [("lower", "depth=2"), ("higher", "depth=1")])
def test_named_queries_answer_for_scripts_what_is_known(
    tmp_path: Path, goal: str, best: str
) -> None:
    """Of them it is known how they end and how long they take, but neither tokens nor sizes."""
    planned(tmp_path, seeds=2)
    file = tmp_path / "own.toml"
    file.write_text(file.read_text().replace('"lower"', f'"{goal}"'))
    train(plan(load(str(file))), tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as connection:  # all take the same time
        connection.execute("UPDATE final SET value = 1.5 WHERE name = 'train_seconds'")
    with store.open(str(tmp_path / "a.db")) as db:
        asked = {
            name: query.run(db, questions.find(name).sql, {"study": "own", "series": ""})[1]
            for name in ("learning-curve", "pareto", "loss-by-size", "topology-by-depth")
        }
    expected = {
        (depth, step): np.mean([loss(depth, seed, step) for seed in range(2)])
        for depth in (1, 2)
        for step in range(1, 5)
    }
    assert [tuple(row) for row in asked["learning-curve"]] == [
        (f"depth={depth}", step, None, 2, pytest.approx(value))
        for (depth, step), value in expected.items()
    ]
    metric = pytest.approx(expected[int(best[-1]), 4])
    assert [tuple(row) for row in asked["pareto"]] == [(best, 1.5, metric)]
    assert not asked["loss-by-size"] and not asked["topology-by-depth"]


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("exit", "failed", ["exit code 3", "last words"]),
        ("memory", "oom", ["out of memory"]),
        ("137", "oom", ["exit code 137"]),
        ("silent", "failed", ["val_loss", "no number at all"]),
        ("nan", "diverged", []),
        ("hang", "timeout", ["limit", "hanging"]),
    ],
)
def test_how_a_script_ends_is_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, status: str, words: list[str]
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("MODE", mode)
    limit = 'limit = "2s"' if mode == "hang" else ""
    outcome, _ = launch(planned(tmp_path, seeds=[0], command=limit), path)
    assert outcome.counts == {"complete": 1, status: 1}
    assert outcome.exit_code == (0 if status == "diverged" else 1)
    found = rows(
        path,
        "SELECT error, journal FROM attempt JOIN run ON run.id = run_id WHERE run.status = ?",
        status,
    )
    error, journal = found[-1]
    assert all(word in (error or "") for word in words), error
    assert len(found) == (3 if status == "oom" else 1)  # memory may have been taken by others
    with store.open(str(path)) as db:
        log = db.log(journal)
        assert log is not None and "--depth 2" in log.read_text()
    if status == "diverged":
        assert rows(path, "SELECT diverged_at FROM run WHERE status = 'diverged'") == [(2,)]
    if mode == "hang":
        assert not [1 for line in _commands() if str(SCRIPT) in line and str(tmp_path) in line]


def _commands() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def test_numbers_with_names_that_ablate_sets_are_kept_apart(ablate: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        'import sys\nprint(*(\'{"step": %d, "val_loss": %d, "train_seconds": 1e6, \'\n'
        '\'"best val_loss": -7, "unigram_loss": 1, "loss": 5}\' % (step, 9 - step)\n'
        "for step in (1, 2)), sep='\\n')\n"
    )
    study = tmp_path / "own.toml"
    planned(tmp_path)
    study.write_text(study.read_text().replace(str(SCRIPT), "train.py"))
    path = tmp_path / "a.db"
    assert train(plan(load(str(study))), path).counts == {"complete": 6}
    finals = dict(rows(path, "SELECT name, value FROM final WHERE run_id = 1"))
    assert 0 < finals["train_seconds"] < 1e3 and finals["best val_loss"] == 7
    assert finals["train_seconds of the script"] == 1e6
    assert finals["best val_loss of the script"] == -7
    series = {name for (name,) in rows(path, "SELECT name FROM series")}
    assert not series & {"train_seconds", "best val_loss"} and "loss" in series
    assert "train_seconds of the script" in ablate("show", "1", "--log", "--db", "a.db")[1]
    found = analysis.findings("own", str(path))
    assert not found.of(records.Untrained)  # by what a script calls unigram_loss
    assert analysis.effects("own", str(path))["mean"].tolist() == [0.0]


def test_a_stopped_script_checkpoints_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "a.db", tmp_path / "log"
    monkeypatch.setenv("SCRIPT_DELAY", "0.5")
    monkeypatch.setenv("SCRIPT_LOG", str(log))
    study = planned(tmp_path, seeds=[0])
    launcher = Launcher(study, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric WHERE step >= 2"))
    launcher.kill(signal.SIGTERM)
    assert launcher.wait() == 143
    assert ("stopped",) in rows(path, "SELECT status FROM run")
    before = rows(path, "SELECT run_id, series_id, step, value FROM metric")
    assert launch(study, path)[0].counts == {"complete": 2}
    begun = [int(line.split()[2]) for line in log.read_text().splitlines() if "end" not in line]
    assert max(begun) > 1  # it went on from its checkpoint
    after = rows(path, "SELECT run_id, series_id, step, value FROM metric")
    assert set(before) <= set(after) and len(after) == 2 * 2 * 4
    seconds = rows(
        path,
        "SELECT value, sum(device_seconds) FROM final JOIN attempt USING (run_id)"
        " WHERE name = 'train_seconds' GROUP BY run_id HAVING max(resumed_step) > 0",
    )
    assert seconds and all(value == pytest.approx(total) for value, total in seconds)
    finals = rows(path, "SELECT value FROM final WHERE name = 'val_loss' ORDER BY value")
    assert finals == [(pytest.approx(loss(2, 0)),), (pytest.approx(loss(1, 0)),)]


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "lambda *_: sys.exit(0)"])
def test_a_script_that_is_told_to_end_together_with_its_worker_is_given_back(
    tmp_path: Path, handler: str
) -> None:
    """As a cluster or systemd does; it costs no try, and is no result either."""
    script = tmp_path / "train.py"
    script.write_text(
        f"import os, signal, sys, time\nsignal.signal(signal.SIGTERM, {handler})\n"
        'print(\'{"step": 1, "val_loss": 1.0}\')\n'
        "begun = os.environ['ABLATE_OUT'] + '/../begun'\n"
        "if not os.path.exists(begun):\n    open(begun, 'w').close()\n    time.sleep(60)\n"
        'print(\'{"step": 2, "val_loss": 0.5}\')\n'
    )
    study = tmp_path / "own.toml"
    study.write_text(
        'name = "own"\nquestion = "?"\nmetric = "val_loss"\ngoal = "lower"\nseeds = 1\n'
        f'[command]\nrun = "{sys.executable} train.py {{depth}} {{seed}}"\ngpus = 0\n'
        "[factors]\ndepth = [1, 2]\n"
    )
    path = tmp_path / "a.db"
    launcher = Launcher(plan(load(str(study))), path)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
    (begun,) = tmp_path.glob("**/begun")
    running = {pid: (parent, command) for pid, parent, command in processes()}
    for pid, (parent, command) in running.items():
        if parent in workers(launcher.pid) and "train.py" in command:
            with contextlib.suppress(ProcessLookupError):  # the other script may have ended
                os.kill(pid, signal.SIGTERM)
                os.kill(parent, signal.SIGTERM)
    assert launcher.wait() == 0 and begun.exists()
    values = rows(path, "SELECT value FROM final WHERE name = 'val_loss'")
    assert values == [(0.5,), (0.5,)]
    ends = rows(path, "SELECT status FROM attempt ORDER BY id")
    assert ("stopped",) in ends and ("failed",) not in ends


def test_a_script_ends_with_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("SCRIPT_DELAY", "30")
    launcher = Launcher(planned(tmp_path, seeds=[0]), path)
    mine = f"--out {tmp_path}"
    wait_for(lambda: [line for line in _commands() if str(SCRIPT) in line and mine in line])
    launcher.kill(signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: not [line for line in _commands() if str(SCRIPT) in line and mine in line], 30)


class Evicting(InProcessExecutor):
    """Takes the machine away from a job as soon as it has reported a number up to 6."""

    def poll(self, timeout: float) -> list[Ended]:
        for handle, paths in self.journals.items():
            told = "".join(path.read_text() for path in paths if path.exists())
            if re.search(r'"score":\s*\[[1-6][.\]]', told):
                self.cancel(handle)
        return super().poll(timeout)

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        handle = super().submit(slot, job, journals)
        self.journals = getattr(self, "journals", {}) | {handle: journals}
        return handle


@pytest.mark.parametrize(
    ("saved", "begins", "step", "number"),
    [  # where it saves, what it does at each start, the step it reports, its stops, 6 of them if it
        # completes
        ("os.devnull", "", "1", 3),
        # the first attempt leaves a file that is new
        ("os.devnull", "open(folder + '/config.yaml', 'w').write('lr: 0.1')", "1", 4),
        ("folder + '/state'", "", "1", 6),
        ("sys.argv[1] + '.state'", "", "done", 6),
    ],
    ids=["nothing", "its configuration", "checkpoint", "elsewhere"],
)
def test_a_script_that_is_stopped_again_and_again_fails_unless_it_gets_further(
    tmp_path: Path, saved: str, begins: str, step: str, number: int
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "own.toml"
    script.write_text(
        "import os, sys, time\nfolder = os.environ['ABLATE_CHECKPOINTS']\n"
        f"file = {saved}\n{begins}\n"
        "done = 1 + int((os.path.exists(file) and open(file).read()) or 0)\n"
        "open(file, 'w').write('%9d' % done)\n"
        f'print(\'{{"step": %d, "score": %d}}\' % ({step}, done))\n'
        "done > 6 or time.sleep(20)\n"
    )
    file.write_text(
        'name = "own"\nquestion = "?"\nmetric = "score"\ngoal = "lower"\nseeds = 1\n'
        f'[command]\nrun = "{sys.executable} {script} {{x}}"\n[factors]\nx = [1, 2]\n'
    )

    def evicting() -> Evicting:
        return Evicting([Device("cpu", 1 << 30, 1)] * 2, PlainTrainer)

    outcome, said = launch(plan(load(str(file))), tmp_path / "a.db", executor=evicting)
    assert outcome.counts == {"complete" if number == 6 else "failed": 2}, said
    stopped = "SELECT run_id, count(*) FROM attempt WHERE status = 'stopped' GROUP BY 1"
    assert rows(tmp_path / "a.db", stopped) == [(1, number), (2, number)]
    if number < 6:
        errors = rows(tmp_path / "a.db", "SELECT error FROM attempt WHERE status = 'failed'")
        assert len(errors) == 2 and all("$ABLATE_CHECKPOINTS" in one for (one,) in errors)
        assert said.count("After 3 such attempts") == 1


def test_two_scripts_share_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, log = tmp_path / "a.db", tmp_path / "log"
    monkeypatch.setenv("SCRIPT_DELAY", "0.4")
    monkeypatch.setenv("SCRIPT_LOG", str(log))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    study = planned(tmp_path, seeds=[0], command="")
    text = (tmp_path / "own.toml").read_text().replace("gpus = 0", "gpus = 0.5")
    (tmp_path / "own.toml").write_text(text)
    study = plan(load(str(tmp_path / "own.toml")))
    outcome, _ = launch(study, path, [Device("cuda:1", 1 << 30, 2)])
    assert outcome.counts == {"complete": 2}
    lines = [line.split() for line in log.read_text().splitlines()]
    begun = [float(line[3]) for line in lines if line[2] != "end"]
    ended = [float(line[3]) for line in lines if line[2] == "end"]
    assert max(begun) < min(ended)  # side by side
    assert {line[4] for line in lines if line[2] != "end"} == {"7"}


def test_a_script_that_ignores_its_seed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("MODE", "seedless")
    train(planned(tmp_path, seeds=2), path)
    found = analysis.findings("own", str(path)).of(records.SameSeeds)
    assert [(one.cell, one.seeds, one.of) for one in found] == [
        ("depth=1", (0, 1), 2),
        ("depth=2", (0, 1), 2),
    ]


@pytest.mark.parametrize(
    ("reads", "steps", "ignored"),
    [("bool", "1, 2", True), ("'true'.__eq__", "1, 2", False), ("bool", "2,", False)],
    ids=["ignored", "read", "two points in all"],
)
@pytest.mark.parametrize("levels", ["[false, true]", "['a', 'true']"])
def test_a_script_that_ignores_a_factor_is_named(
    tmp_path: Path, reads: str, steps: str, ignored: bool, levels: str
) -> None:
    script, file, path = tmp_path / "train.py", tmp_path / "own.toml", tmp_path / "a.db"
    script.write_text(
        f"import sys\nread = {reads}\n"
        f"for step in ({steps}):\n"
        "    score = int(sys.argv[2]) / step + read(sys.argv[1])\n"
        'print(\'{"step": %d, "score": %s}\' % (step, score))\n'.replace("print", "    print")
    )
    file.write_text(
        'name = "own"\nquestion = "?"\nmetric = "score"\ngoal = "lower"\nseeds = 2\n'
        f'[command]\nrun = "{sys.executable} {script} {{x}} {{seed}}"\n[factors]\nx = {levels}\n'
    )
    _, said = launch(plan(load(str(file))), path, executor=scripts)
    found = analysis.findings("own", str(path)).of(records.SameArms)
    hinted = "false" in levels
    assert [one.seeds for one in found] == [(0, 1)] * ignored
    with store.open(str(path)) as db:
        answer = report.answer(report.gather(db, "own"))
    for text in (said, answer):
        assert ("ignores or misreads x" in text.replace("\n", " ")) is ignored
        assert ("type=bool" in text) is (ignored and hinted)


def test_a_number_of_some_runs_only_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("MODE", "partly")
    train(planned(tmp_path, seeds=[1]), path)
    found = analysis.findings("own", str(path)).of(records.PartlyReported)
    assert [(one.name, one.runs, one.of) for one in found] == [("only_here", 1, 2)]


def test_runs_that_end_at_different_steps_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("MODE", "early")
    for at, expected in (("", [(("depth=1", "depth=2"), (4, 2), (4, 4))]), ("at = 2", [])):
        train(planned(tmp_path, seeds=2, command=at), path)
        found = analysis.findings("own", str(path)).of(records.OtherSteps)
        assert [(one.cells, one.first, one.last) for one in found] == expected
        with store.open(str(path)) as db:
            data = report.gather(db, "own")
            assert ("depth=2 at step 2 to 4" in report.answer(data)) == bool(expected)
            badges = [one.text for one in report.overview.badges(data)]
        assert any("different steps" in text for text in badges) == bool(expected)


@pytest.mark.parametrize(
    ("at", "metric", "expected"),
    [
        ("", "val_loss", loss(1, 0, 4)),
        ('at = "best"', "best val_loss", loss(1, 0, 4)),
        ("at = 2", "val_loss@2", loss(1, 0, 2)),
    ],
)
def test_the_value_that_decides(tmp_path: Path, at: str, metric: str, expected: float) -> None:
    path = tmp_path / "a.db"
    train(planned(tmp_path, seeds=[0], command=at), path)
    assert rows(path, "SELECT metric FROM study") == [(metric,)]
    (value,) = rows(path, "SELECT metric FROM runs WHERE cell = 'depth=1'")
    assert value == (pytest.approx(expected),)
    attempts = rows(path, "SELECT count(*) FROM attempt")
    train(planned(tmp_path, seeds=[0], command="at = 3"), path)  # found in the stored curve
    (value,) = rows(path, "SELECT metric FROM runs WHERE cell = 'depth=1'")
    assert value == (pytest.approx(loss(1, 0, 3)),)
    assert rows(path, "SELECT count(*) FROM attempt") == attempts
    kept = rows(path, "SELECT DISTINCT versions FROM attempt")
    assert [sorted(json.loads(one)) for (one,) in kept] == [["ablate", "python"]]  # no torch


@pytest.mark.usefixtures("svg_only")
def test_another_number_than_the_rate_is_tuned(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    tuned = '[tune]\nwidth = [0.001, 1.0]\npoints = 4\nseeds = 1\nper = "study"\n'
    text = STUDY.format(
        python=sys.executable, script=SCRIPT, seeds="[0]", command="", more=tuned
    ).replace("--out", "--lr {width} --out")
    path.write_text(text)
    outcome = train(plan(load(str(path))), tmp_path / "a.db")
    assert outcome.exit_code == 0
    ((name, value),) = rows(tmp_path / "a.db", "SELECT name, value FROM decision")
    assert name == "width" and float(value) == pytest.approx(0.01, rel=0.05)
    used = rows(
        tmp_path / "a.db",
        "SELECT DISTINCT json_extract(fields, '$.width') FROM run"
        " JOIN member ON run_id = run.id WHERE role = 'compare'",
    )
    assert used == [(float(value),)]
    with store.open(str(tmp_path / "a.db")) as db:
        data = report.gather(db, "own")
        text = report.answer(data)
        report.write(data, tmp_path / "page")
    assert "Tuned: width" in text and "learning rate" not in text


def test_a_level_whose_tuning_failed_is_named_and_the_others_are_ranked(tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "own.toml"
    script.write_text(f"import sys\nif sys.argv[2] == '2': sys.exit(3)\n{SCRIPT.read_text()}")
    tuned = '[tune]\nlr = [0.001, 0.1]\npoints = 3\nseeds = 1\nper = "cell"\n'
    text = STUDY.format(python=sys.executable, script=script, seeds=3, command="", more=tuned)
    path.write_text(text.replace("[1, 2]", "[1, 2, 3]").replace("--out", "--lr {lr} --out"))
    train(plan(load(str(path))), tmp_path / "a.db")
    with store.open(str(tmp_path / "a.db")) as db:
        data = report.gather(db, "own")
        said = report.fairness.state(data)
    assert said.startswith("6 of 6 runs are complete. ")
    assert said.endswith(" No run to compare: depth=2.")
    (best,) = data.findings.of(records.Best)
    assert (best.failed, best.seeds, {*best.arms, *best.excluded}) == (("2",), 3, {"1", "3"})


def test_a_script_without_the_step_or_name_that_decides_fails_with_what_it_reported(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    outcome = train(planned(tmp_path, seeds=[0], command="at = 9"), path)
    assert outcome.counts == {"failed": 2}
    ((error,),) = rows(path, "SELECT DISTINCT error FROM attempt")
    assert "no 'val_loss' at step 9, but 4 from step 1 to 4" in error and "at" in error
    planned(tmp_path, seeds=[1])
    text = (tmp_path / "own.toml").read_text().replace('"val_loss"', '"valloss"')
    (tmp_path / "own.toml").write_text(text)
    train(plan(load(str(tmp_path / "own.toml"))), tmp_path / "b.db")
    ((error,),) = rows(tmp_path / "b.db", "SELECT DISTINCT error FROM attempt")
    assert "metric 'valloss'; it reported other and val_loss: name one of them" in error


@pytest.mark.parametrize(
    ("command", "metric", "named"),
    [
        ("at = 9", "val_loss", ["own.toml, line 11", "at step 9, but 4 from step 1 to 4"]),
        ("", "valloss", ["own.toml, line 4", "'valloss'", "other and val_loss"]),
        ('at = "best"', "valloss", ["own.toml, line 4", "'valloss'", "other and val_loss"]),
    ],
)
def test_shared_runs_without_the_value_that_decides_are_refused(
    tmp_path: Path, command: str, metric: str, named: list[str]
) -> None:
    """They would be complete runs without a value, and their pairs lost."""
    path = tmp_path / "a.db"
    train(planned(tmp_path, seeds=[0]), path)
    planned(tmp_path, seeds=[0], command=command)
    file = tmp_path / "own.toml"
    text = file.read_text().replace('"own"', '"again"').replace('"val_loss"', f'"{metric}"')
    file.write_text(text)
    with pytest.raises(AblateError) as refused:
        train(plan(load(str(file))), path)
    assert all(word in str(refused.value) for word in ["2 complete runs", *named])
    assert rows(path, "SELECT name FROM study") == [("own",)]


def test_the_best_of_another_metric_is_found_in_stored_curves(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    train(planned(tmp_path, seeds=[0]), path)
    planned(tmp_path, seeds=[0], command='at = "best"')
    file = tmp_path / "own.toml"
    file.write_text(file.read_text().replace('"own"', '"again"').replace('"val_loss"', '"other"'))
    train(plan(load(str(file))), path)
    best = "SELECT min(value) FROM all_curves WHERE study = 'again' AND series = 'other'"
    found = rows(path, "SELECT min(metric) FROM runs WHERE study = 'again'")
    assert found == rows(path, best) and found != [(None,)]
    assert rows(path, "SELECT count(*) FROM attempt") == [(2,)]


def test_nothing_imports_torch_and_only_a_report_scipys_distributions(tmp_path: Path) -> None:
    planned(tmp_path, seeds=[0, 1])
    commands = [["plan", "own.toml"], ["run", "own.toml"], ["status", "own"], ["report", "own"]]
    code = (
        f"import sys\nfrom in_turn import said\nfor command in {commands}:\n    said(command)\n"
        "    assert 'torch' not in sys.modules, command\n"
        "    assert command[0] == 'report' or 'scipy.stats' not in sys.modules, command"
    )
    ended = python(code, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert ended.returncode == 0, ended.stderr
    ended = python(
        "import ablate, sys\nablate.log(1, a=2)\nassert not {'torch', 'pandas'} & {*sys.modules}"
    )
    assert ended.returncode == 0, ended.stderr


REVISIONS = """
name = "branches"
question = "Is the branch better?"
metric = "loss"
goal = "lower"
seeds = 2
[command]
run = "sh train.sh {seed}"
gpus = 0
[factors]
revision = ["main", "better"]
"""


def test_revisions_run_in_work_trees_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "code"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    script = repository / "train.sh"
    script.write_text('echo "{\\"loss\\": 1.$1}"\n')
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    git(repository, "checkout", "-qb", "better")
    script.write_text('echo "{\\"loss\\": 0.$1}"\n')
    git(repository, "commit", "-qam", "second")
    git(repository, "checkout", "-q", "main")
    script.write_text("exit 1\n")  # the folder itself is not used
    (repository / "own.toml").write_text(REVISIONS)
    path = Path("a.db")
    outcome, _ = launch(plan(load(str(repository / "own.toml"))), path)
    assert outcome.counts == {"complete": 4}
    assert rows(path, "SELECT cell, seed, metric FROM runs ORDER BY cell, seed") == [
        ("revision=better", 0, 0.0),
        ("revision=better", 1, 0.1),
        ("revision=main", 0, 1.0),
        ("revision=main", 1, 1.1),
    ]
    assert git(repository, "worktree", "list").count("\n") == 0
    commits = {row[0] for row in rows(path, 'SELECT "commit" FROM attempt')}
    assert commits == {git(repository, "rev-parse", name) for name in ("main", "better")}


def test_code_that_changes_while_a_study_runs_fails_its_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('echo "{\\"loss\\": 1}"\n')
    (tmp_path / "own.toml").write_text(
        REVISIONS.replace('revision = ["main", "better"]', "a = [1, 2]").replace(
            "{seed}", "{seed} {a}"
        )
    )
    made = plan(load(str(tmp_path / "own.toml")))
    script.write_text('echo "{\\"loss\\": 2}"\n')
    outcome, out = launch(made, tmp_path / "a.db")
    assert outcome.counts == {"failed": 4} and "changed after the study was planned" in out


def test_a_log_that_is_missing_is_said_to_be_missing(ablate: Run, tmp_path: Path) -> None:
    train(planned(tmp_path, seeds=[0]), tmp_path / "a.db")
    code, out, _ = ablate("show", "1", "--log", "--db", "a.db")
    assert code == 0 and "--depth 1" in out
    moved = tmp_path / "moved" / "b.db"
    moved.parent.mkdir()
    (tmp_path / "a.db").rename(moved)
    ((journal,),) = rows(moved, "SELECT journal FROM attempt WHERE run_id = 1")
    with store.open(str(moved)) as db:
        refused(
            ablate, ["show", "1", "--log", "--db", str(moved)], [f"there is no {db.log(journal)}"]
        )
    with sqlite3.connect(moved) as connection:
        connection.execute("DELETE FROM attempt")
    refused(ablate, ["show", "1", "--log", "--db", str(moved)], ["not tried"])


def test_after_a_study_that_failed_the_reason_is_next(ablate: Run, tmp_path: Path) -> None:
    study, script = tmp_path / "own.toml", tmp_path / "train.py"
    planned(tmp_path, seeds=1)
    study.write_text(study.read_text().replace(str(SCRIPT), "train.py").replace("code", "#"))
    script.write_text("raise SystemExit('no such data')\n")
    code, out, _ = ablate("run", "own.toml")
    command = out.rpartition("Next: ablate ")[2].split()
    assert code == 1 and command[0] == "show"
    assert "no such data" in ablate(*command)[1]
    script.write_text(
        SCRIPT.read_text() + "if options.depth == 2:\n    raise SystemExit('too deep')\n"
    )
    code, out, _ = ablate("run", "own.toml")
    assert code == 1 and out.endswith("Next: ablate report own\n")
    (failed,) = re.findall("ablate (show [0-9]+)", out)
    assert "too deep" in ablate(*failed.split())[1]
    script.write_text(SCRIPT.read_text())
    code, out, error = ablate("run", "own.toml")
    assert code == 0 and out.endswith("Next: ablate report own\n"), error


def test_after_code_that_changed_while_a_study_ran_run_is_next(ablate: Run, tmp_path: Path) -> None:
    study, script = tmp_path / "own.toml", tmp_path / "train.py"
    planned(tmp_path)
    study.write_text(study.read_text().replace(str(SCRIPT), "train.py"))
    own = SCRIPT.read_text()
    edit = f"Path({str(script)!r}).open('a').write('#')\n"
    script.write_text(f"{own}if options.depth == 2 and options.seed == 1:\n    {edit}")
    code, out, _ = ablate("run", "own.toml")
    assert code == 1 and "changed after the study was planned" in " ".join(out.split())
    assert out.endswith("Next: ablate run own.toml\n")
    script.write_text(own)
    code, out, error = ablate("run", "own.toml")
    assert code == 0 and out.endswith("Next: ablate report own\n"), error


def test_a_plan_and_a_run_say_how_many_results_an_edit_of_the_code_costs(
    ablate: Run, tmp_path: Path
) -> None:
    planned(tmp_path)
    study, script = tmp_path / "own.toml", tmp_path / "train.py"
    study.write_text(study.read_text().replace(str(SCRIPT), "train.py"))
    script.write_text(SCRIPT.read_text())

    def says(command: str) -> bool:
        code, out, error = ablate(command, "own.toml")
        assert code == 0, error
        return "6 runs of the study own with a result are of other code" in " ".join(out.split())

    assert not says("run") and not says("plan")
    script.write_text(f"{SCRIPT.read_text()}# a comment\n")
    assert says("plan") and says("run")
    assert not says("plan") and not says("run")
    script.write_text(SCRIPT.read_text())  # its runs come back, and the others leave
    assert says("plan") and says("run")
    assert rows(tmp_path / "results" / "ablate.db", "SELECT count(*) FROM run") == [(12,)]


def test_prices_come_from_runs_that_have_ended(
    ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, seeds=[0])
    monkeypatch.setenv("SCRIPT_DELAY", "0.1")
    assert ablate("run", "own.toml")[0] == 0
    code, out, error = ablate("plan", "own.toml")
    assert code == 0, error
    assert "time a run" in out


def test_a_shell_script_reports_by_a_pattern_and_by_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the folder of the study, and the path of the database is relative to another."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "train.sh").write_text(
        'for i in 1 2 3; do echo "step $i: val loss $(( $1 + i )).5, lr 1e-3"; done\n'
        'mkdir -p "$2/logs"; printf "step,acc\\n1,0.5\\n3,0.75\\n" > "$2/logs/metrics.csv"\n'
        'echo "{\\"step\\": 3, \\"extra\\": 7}" >> "$ABLATE_METRICS"\n'
        'touch "$3/a" "$ABLATE_CHECKPOINTS/b" "$ABLATE_OUT/c"\n'
    )
    (folder / "own.toml").write_text(
        """
name = "shell"
question = "Which?"
metric = "val_loss"
goal = "lower"
seeds = 2
[command]
run = "sh train.sh {seed} {out} {checkpoints} {*flag}"
gpus = 0
metrics = "**/metrics.csv"
pattern = 'step (?P<step>\\d+): val loss (?P<val_loss>\\S+),'
[factors]
flag = { off = "", on = "--a 'b c'" }
"""
    )
    path = Path("results/a.db")
    assert train(plan(load(str(folder / "own.toml"))), path).counts == {"complete": 4}
    assert {file.name for file in folder.iterdir()} == {"own.toml", "train.sh"}
    assert len([*tmp_path.glob("results/*/*/c")]) == 4
    finals = dict(
        rows(
            path,
            "SELECT name, value FROM final JOIN all_runs r ON r.run = run_id WHERE r.cell ="
            " 'flag=on' AND r.seed = 1",
        )
    )
    assert (finals["val_loss"], finals["acc"], finals["extra"]) == (4.5, 0.75, 7.0)
    journal = rows(
        path,
        "SELECT journal FROM attempt JOIN run ON run.id = run_id WHERE"
        " json_extract(fields, '$.flag') <> ''",
    )[0][0]
    with store.open(str(path)) as db:
        log = db.log(journal)
        assert log and log.read_text().splitlines()[0].endswith("--a 'b c'")


@pytest.mark.usefixtures("svg_only")
def test_scaling_curves_over_the_fields_that_the_study_names(tmp_path: Path) -> None:
    """The script's loss is 1.5 + 40·N^−0.4, times a seed's noise of a thousandth."""
    script = tmp_path / "law.py"
    script.write_text(
        "import json, random, sys\n"
        "n, seed = float(sys.argv[1]), int(sys.argv[2])\n"
        "noise = 1 + random.Random(f'{n} {seed}').gauss(0, 0.001)\n"
        "print(json.dumps({'val_loss': (1.5 + 40 * n ** -0.4) * noise}))\n"
    )
    path = tmp_path / "law.toml"
    path.write_text(
        f"""
name = "law"
question = "How does the loss fall with size?"
metric = "val_loss"
goal = "lower"
seeds = 2
[command]
run = "{sys.executable} law.py {{n_layer}} {{seed}} {{examples}}"
code = ["law.py"]
gpus = 0
[factors]
n_layer = [1000, 4000, 16000, 64000, 256000, 1024000]
[base]
examples = 50000
[fit]
n = "n_layer"
d = "examples"
"""
    )
    made = plan(load(str(path)))
    assert train(made, tmp_path / "a.db").counts == {"complete": 12}
    (fit,) = analysis.findings("law", str(tmp_path / "a.db")).of(records.ScalingFit)
    assert fit.form == "L(N)" and fit.runs == 12
    assert fit.constants["alpha"][0] == pytest.approx(0.4, abs=0.03)
    with store.open(str(tmp_path / "a.db")) as db:
        report.write(report.gather(db, "law"), tmp_path / "page")
