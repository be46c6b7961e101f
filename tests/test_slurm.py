"""Studies in a real Slurm: whatever is killed, every run has its result once."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path

import fake_driver
import pytest
from cli_helpers import Run
from launch_helpers import (
    Launcher,
    content,
    launch,
    processes,
    rows,
    small_plan,
    use_stub,
    use_worker,
    wait_for,
)
from rich.console import Console
from slurm_cluster import Cluster

from ablate import store
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Job
from ablate.kinds.transformer import run_of
from ablate.launch import agent, pool, slurm
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.launch.slurm import Request, SlurmExecutor, request
from ablate.launch.spool import Spool
from ablate.plan import Plan, plan
from ablate.store.owners import Owner, stale_attempts
from ablate.store.register import register
from ablate.store.runs import adopt, candidates, claim
from ablate.study import Slurm, load
from ablate.study.slurm import changed

CPU = Device("cpu", 8 << 30, 1)
STEPS = 100
DEAF = """
def train(self, job, context):
    super().train(job, replace(context, stop=bool))
"""
TINY = """
name = "tiny"
question = "Does a cluster change a result?"
metric = "loss"
seeds = 1
[base]
n_layer = 1
d_model = 8
n_head = 1
n_ctx = 8
batch_tokens = 64
tokens = 640
[eval]
tokens = 512
points = 2
[factors]
lr = [1e-3, 1e-2]
[slurm]
max_jobs = 1
"""


LAUNCHERS: list[Launcher] = []  # of the present test


@pytest.fixture
def stubs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    use_stub(monkeypatch)
    monkeypatch.setenv("STUB_DELAY", "0.02")
    yield cluster
    while LAUNCHERS:  # one that goes on after a failed test would submit jobs again
        LAUNCHERS[-1].kill_process(LAUNCHERS.pop().pid)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def begin(plan: Plan, path: Path, *options: str, max_jobs: int = 1) -> Launcher:
    """A launcher that gives the runs of a plan to Slurm."""
    launcher = Launcher(plan, path, executor=lambda: executor(path, *options, max_jobs=max_jobs))
    LAUNCHERS.append(launcher)
    return launcher


def executor(path: Path, *options: str, max_jobs: int = 1) -> SlurmExecutor:
    agent = "--device=cpu", "--workers=1"
    wanted = Request("stub", "stub.toml", [CPU] * max_jobs, max_jobs, options, agent)
    return SlurmExecutor(path, wanted)


def at_work(plan: Plan, path: Path, *options: str, max_jobs: int = 1) -> Launcher:
    """The same, once a run has written points."""
    launcher = begin(plan, path, *options, max_jobs=max_jobs)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"), 60)
    return launcher


def agents(path: Path) -> dict[str, int]:
    """Slurm job → process of its agent."""
    found = {}
    for pid, _, command in processes():
        if "ablate.launch.agent" in command and str(path.parent) in command:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            named = dict(one.decode().partition("=")[::2] for one in variables if one)
            found[f"{named['SLURM_ARRAY_JOB_ID']}_{named['SLURM_ARRAY_TASK_ID']}"] = pid
    return found


def tries(path: Path) -> list[tuple]:
    return rows(path, "SELECT run_id, n, status, error FROM attempt ORDER BY run_id, n")


def check_results(path: Path, runs: int) -> None:
    """Every run is complete, and has each of its points once."""
    assert rows(path, "SELECT status, count(*) FROM run GROUP BY status") == [("complete", runs)]
    assert rows(path, "SELECT count(*) FROM metric") == [(runs * 2 * STEPS,)]
    accepted = "SELECT count(*) FROM attempt WHERE status = 'complete'"
    assert rows(path, accepted) == [(runs,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_jobs_go_on_without_their_launcher_and_the_next_one_reads_them(
    stubs: Cluster, path: Path, tmp_path: Path, number: int
) -> None:
    study = small_plan(tmp_path, [1e-3], seeds=2, steps=STEPS)
    first = at_work(study, path)
    with pytest.raises(AblateError, match="another `ablate run`"):
        executor(path)
    first.kill(number)
    assert first.wait() == (130 if number == signal.SIGINT else -number)
    assert not rows(path, "SELECT 1 FROM run WHERE status = 'complete'")
    if number == signal.SIGINT:
        said = first.output.read_text()
        assert "run stub.toml --on slurm" in said and "ablate cancel stub.toml" in said
    with store.open(str(path), create=True) as db, Owner.here(db, lease=0.0) as other:
        for _ in range(2):  # a launcher without Slurm leaves them to Slurm, however silent they are
            assert not stale_attempts(db, other, 1)
    spool = slurm.spool_of(path, "stub")
    wait_for(lambda: spool.unread() == 2, 60)  # which nobody has read
    assert begin(study, path).wait(60) == 0
    check_results(path, 2)
    assert [(n, status) for _, n, status, _ in tries(path)] == [(1, "complete")] * 2


def test_what_is_killed_costs_no_result(stubs: Cluster, path: Path, tmp_path: Path) -> None:
    """A worker, the daemon of the node, and an agent with all that Slurm started."""
    launcher = at_work(small_plan(tmp_path, [1e-3], seeds=6, steps=STEPS), path, max_jobs=2)
    (first, pid), *_ = sorted(agents(path).items())
    worker = next(one for one, parent, _ in processes() if parent == pid)
    Launcher.kill_process(worker)
    stubs.kill_slurmd()
    wait_for(lambda: "SIGKILL" in str(tries(path)), 60)
    stubs.start_slurmd()
    wait_for(lambda: first in slurm.spool_of(path, "stub").taken().values(), 60)
    assert agents(path)[first] == pid, "the Slurm job takes further jobs"
    Launcher.kill_process(pid)
    failed = f"Slurm job {first}: it failed (FAILED)"
    wait_for(lambda: failed in launcher.output.read_text(), 60)
    assert launcher.wait(90) == 0, launcher.output.read_text()
    check_results(path, 6)
    ends = {(error or "", status) for _, _, status, error in tries(path) if status != "complete"}
    of_worker = ("the worker died (killed by SIGKILL)", "dead")
    assert of_worker in ends
    # the other worker may stop, or even end its run, before Slurm kills it
    assert ends - {of_worker} <= {(failed, "dead"), ("", "stopped")}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("scancel --signal=USR1 --batch {job}", "ended (SIGUSR1)"),
        ("scontrol requeue {job}", "ended (SIGTERM)"),
        ("scontrol update nodename={node} state=down reason=test", "its node failed (NODE_FAIL)"),
    ],
    ids=["time", "requeued", "node"],
)
def test_a_job_that_slurm_ends_is_given_back_without_a_lost_try(
    stubs: Cluster,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    reason: str,
) -> None:
    """It goes on from a checkpoint, unless its worker could not write one."""
    if "node" in command:
        use_worker(monkeypatch, "deaf", tmp_path, DEAF, "from dataclasses import replace\n")
    launcher = at_work(
        small_plan(tmp_path, [1e-3], steps=STEPS), path, *["--no-requeue"] * ("node" in command)
    )
    (job,) = agents(path)
    node = stubs.ask("sinfo", "-h", "-o", "%n")
    stubs.ask(*command.format(job=job, node=node).split())
    wait_for(lambda: tries(path)[0][2] == "stopped", 30)
    if "node" in command:
        stubs.ask("scontrol", "update", f"nodename={node}", "state=resume")
    if "requeue" in command:  # Slurm would wait for two minutes
        now = "scontrol", "update", f"jobid={job}", "starttime=now"
        wait_for(lambda: not agents(path))
        wait_for(lambda: stubs.ask(*now) or agents(path))
    if "USR1" in command:  # the agent ends by itself
        ended = "squeue", "-h", "-r", "-t", "all", "-j", job.partition("_")[0], "-o", "%T"
        wait_for(lambda: stubs.ask(*ended) not in ("RUNNING", "COMPLETING"))
        assert stubs.ask(*ended) == "COMPLETED"
    assert launcher.wait(50) == 0, launcher.output.read_text()
    check_results(path, 1)
    (_, _, how, error), (_, _, last, _) = tries(path)
    assert (how, last) == ("stopped", "complete") and reason in error
    resumed = "SELECT resumed_step > 0 FROM attempt WHERE n = 2"
    assert rows(path, resumed) == [(int("node" not in command),)]


def test_cancel_ends_the_jobs_and_the_next_run_goes_on(
    stubs: Cluster, path: Path, tmp_path: Path, ablate: Run
) -> None:
    study = small_plan(tmp_path, [1e-3], seeds=3, steps=STEPS)
    launcher = at_work(study, path)
    launcher.kill(signal.SIGINT)
    launcher.wait()
    code, out, _ = ablate("status", "--db", str(path))
    assert code == 0 and "2 wait" in out and "in a queue" in out
    code, _, error = ablate("cancel", "stub", "--db", str(path))
    assert code == 0, error
    assert not stubs.running() and not agents(path)
    assert rows(path, "SELECT status, count(*) FROM run GROUP BY status") == [("stopped", 3)]
    assert "2 wait" not in ablate("status", "--db", str(path))[1]
    code, _, error = ablate("cancel", "stub", "--db", str(path))
    assert (code, error) == (2, "ablate: study stub has no jobs in Slurm\n")
    assert begin(study, path).wait(60) == 0
    check_results(path, 3)
    assert rows(path, "SELECT max(resumed_step) > 0 FROM attempt") == [(1,)]


def test_a_study_has_the_same_results_as_on_this_host(
    cluster: Cluster, ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    Path("tiny.toml").write_text(TINY)
    code, _, error = ablate("run", "tiny.toml", "--on", "slurm", "--db", "far.db")
    assert code == 0, error
    code, _, error = ablate("run", "tiny.toml", "--db", "near.db")
    assert code == 0, error
    far, near = content(tmp_path / "far.db"), content(tmp_path / "near.db")
    assert far["run"] == near["run"] and len(far["run"]) == 2
    timed = "tokens_per_second"
    assert [one for one in far["metric"] if one[1] != timed] == [
        one for one in near["metric"] if one[1] != timed
    ]


def test_a_script_runs_in_slurm(
    cluster: Cluster, ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    Path("train.py").write_text(
        "import os, sys\n"
        'print(\'{"step": 1, "score": %s}\' % sys.argv[1])\n'
        "assert 'SLURM_JOB_ID' in os.environ and os.environ['SLURM_CPUS_PER_TASK'] == '2'\n"
    )
    Path("own.toml").write_text(
        'name = "own"\nquestion = "?"\nmetric = "score"\ngoal = "lower"\nseeds = 2\n'
        '[command]\nrun = "python train.py {x} {seed}"\ncpus = 2\n[factors]\nx = [1, 2]\n'
        "[slurm]\nmax_jobs = 2\n"
    )
    code, _, error = ablate("run", "own.toml", "--on", "slurm", "--db", "a.db")
    assert code == 0, error
    assert rows(tmp_path / "a.db", "SELECT status, count(*) FROM run GROUP BY 1") == [
        ("complete", 4)
    ]


@pytest.mark.skipif(bool(fake_driver.missing()), reason=fake_driver.missing())
@pytest.mark.parametrize("gpus", ["1", "2", "0.5"])
def test_scripts_have_the_gpus_that_slurm_gave_their_job(
    gpus: str, cluster: Cluster, ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two GPUs no two jobs have the same, and scripts share one only if they ask so."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("LD_LIBRARY_PATH", fake_driver.make(tmp_path))
    Path("own.toml").write_text(fake_driver.study(tmp_path, gpus) + "[slurm]\nmax_jobs = 2\n")
    code, _, error = ablate("run", "own.toml", "--on", "slurm", "--db", "a.db")
    assert code == 0, error
    fake_driver.check(tmp_path, float(gpus))


# -- what is asked of Slurm ------------------------------------------------------------------------


def test_slurm_refuses_before_anything_is_made(cluster: Cluster, ablate: Run) -> None:
    Path("tiny.toml").write_text(TINY)
    code, _, error = ablate("run", "tiny.toml", "--on", "slurm", "--slurm", "partition=none")
    assert code == 2 and "invalid partition specified: none" in error
    assert error.count("\n") == 1 and not Path("results").exists()


def test_without_slurm_one_line_says_so(ablate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    Path("tiny.toml").write_text(TINY)
    for words in (["run", "tiny.toml", "--on", "slurm"], ["run", "tiny.toml", "--on", "slrm"]):
        code, _, error = ablate(*words)
        assert code == 2 and error.count("\n") == 1 and not Path("results").exists()


def test_jobs_that_never_begin_to_work_end_the_launcher(
    stubs: Cluster, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    study = small_plan(tmp_path, [1e-3], steps=STEPS)
    with pytest.raises(AblateError, match=r"3 Slurm jobs ended before they began.*/no/python"):
        launch(study, path, executor=lambda: executor(path))
    # and nothing is said to be queued or trained, as no Slurm job will do it
    assert rows(path, "SELECT DISTINCT status FROM run") == [("stopped",)]
    with store.open(str(path)) as db:
        assert slurm.left(db, "stub") == ""


def test_true_is_an_option_without_a_value() -> None:
    found = changed(Slurm(), ["exclusive=true", "requeue", "gres=gpu:2"])
    assert found.options == {"exclusive": True, "requeue": True, "gres": "gpu:2"}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("max_jobs = 0", "slurm.max_jobs"),
        ('memory = "much"', "slurm.memory"),
        ('output = "mine"', "slurm.output"),
        ("gres = [1]", "slurm.gres"),
        ('"-p" = "gpu"', "-p"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, table: str, key: str) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.replace("max_jobs = 1", table))
    with pytest.raises(AblateError, match=key) as error:
        load(str(file))
    line = file.read_text().split(table)[0].count("\n") + 1
    assert f"tiny.toml, line {line}: " in str(error.value)


def test_a_command_line_changes_the_table() -> None:
    table = Slurm(8, 1 << 30, {"gres": "gpu:1", "time": "1:00:00"})
    words = ["gres=gpu:2", "max_jobs=3", "memory=80GB", "exclusive", "cpus_per_task=4"]
    assert changed(table, words) == Slurm(
        3, 80 << 30, {"gres": "gpu:2", "time": "1:00:00", "exclusive": True, "cpus-per-task": "4"}
    )
    with pytest.raises(AblateError, match="max_jobs"):
        changed(table, ["max_jobs=many"])


def test_settings_are_no_part_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    before = [planned.run.key for planned in plan(load(str(file))).runs]
    file.write_text(TINY.partition("[slurm]")[0])
    assert [planned.run.key for planned in plan(load(str(file))).runs] == before


def test_gpus_of_a_study_are_asked_of_slurm(tmp_path: Path) -> None:
    def asked(gpus: str, **options: str | int) -> Request:
        file = tmp_path / "own.toml"
        file.write_text(
            'name = "own"\nquestion = "?"\nmetric = "score"\ngoal = "lower"\nseeds = 2\n'
            f'[command]\nrun = "true {{x}} {{seed}}"\n{gpus}\n[factors]\nx = [1, 2]\n'
        )
        return request(plan(load(str(file))), Slurm(2, 16 << 30, options), "auto", "own.toml")

    two = asked("gpus = 2")
    assert "--gres=gpu:2" in two.options and "--gpus=2" in two.agent and len(two.slots) == 2
    shared = asked("gpus = 0.25", gres="gpu:a100:1")
    assert "--gres=gpu:a100:1" in shared.options and len(shared.slots) == 8
    none = asked("cpus = 3")
    assert "--cpus-per-task=3" in none.options and "--device=cpu" in none.agent


def test_a_job_in_the_spool_belongs_to_one_agent_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.make()
    job = Job((run_of(RunConfig(steps=5)),), Evaluation(), checkpoint=tmp_path / "a.pt")
    for handle in (1, 2):
        spool.add(handle, job, [tmp_path / f"{handle}.jsonl"])
    assert spool.take("7_0") == (1, job, [tmp_path / "1.jsonl"])
    assert not spool.withdraw(1) and spool.withdraw(2)
    assert spool.take("7_1") is None and spool.taken() == {1: "7_0"}
    spool.start("7_0", 1)  # in a second life, after its Slurm job was requeued
    assert spool.journals() == {1: [tmp_path / "1.jsonl"]}
    assert [(each.handle, each.how) for each in spool.ended()] == [(1, "stopped")]
    assert not spool.journals() and not spool.ended()
    spool.end("7_0", Ended(1, "done"))  # by an agent that was given up
    assert not spool.ended()


def test_an_agent_in_another_folder_finds_the_files_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later launcher, in another folder, submits agents, which work there."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    spool = Spool(tmp_path / "spool")
    spool.make()
    one = Path("a.weights")
    job = Job(
        (run_of(RunConfig()),),
        Evaluation(),
        checkpoint=Path("a.pt"),
        weights=(one, None),
        parents=(None, one),
        folder=Path("a"),
        log=Path("a.log"),
    )
    monkeypatch.chdir(first)
    spool.add(1, job, [Path("a.jsonl")])
    monkeypatch.chdir(second)
    found = spool.take("7_0")
    assert found and found[2] == [first / "a.jsonl"]
    assert found[1].checkpoint == first / "a.pt" and found[1].resume is None
    assert found[1].weights == (first / one, None) and found[1].parents == (None, first / one)
    assert (found[1].folder, found[1].log) == (first / "a", first / "a.log")


def test_an_agent_gives_a_job_back_when_its_worker_no_longer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent takes it at once, and two workers would train one run."""
    spool = Spool(tmp_path / "spool")
    spool.make()
    order = []

    class Deaf:
        """A worker that does not end when it is asked to."""

        def __init__(self, slots: list[Device]) -> None:
            self.taken = False

        def capacity(self) -> list[Slot]:
            return [Slot(0, CPU, not self.taken)]

        def submit(self, slot: int, job: Job, journals: list[Path]) -> int:
            self.taken = True
            working._signal = signal.SIGTERM
            return 0

        def poll(self, timeout: float) -> list[Ended]:
            return []

        def cancel(self, handle: int, *, kill: bool = False) -> None: ...

        def close(self, timeout: float) -> None:
            order.append(("closed", spool.unread()))

    monkeypatch.setattr(agent, "LocalExecutor", Deaf)
    monkeypatch.setattr(agent, "GRACE", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    job = Job((run_of(RunConfig()),), Evaluation())
    spool.add(1, job, [tmp_path / "a.jsonl"])
    working = agent.Agent(spool, "7_0", [CPU])
    working.run()
    assert order == [("closed", 0)] and spool.unread() == 1


def test_a_run_that_left_the_study_is_not_left_running(tmp_path: Path, path: Path) -> None:
    """No other launcher could train it: what waits in a queue is never stale."""
    both, one = (small_plan(tmp_path, [1e-3], seeds=n) for n in (2, 1))
    with store.open(str(path), create=True) as db:
        study_id = register(db, both)
        with Owner.here(db, on=slurm.queue_of("stub")) as first:
            waiting = [each.run_id for each in candidates(db, study_id, first)]
            journals = [each.journal.name for each in claim(db, study_id, first, waiting)]
        register(db, one, replace=True)
        with Owner.here(db, on=slurm.queue_of("stub")) as second:
            adopted = adopt(db, "stub", second, journals)
    assert [each.run.seed for each, _ in adopted] == [0]
    found = rows(path, "SELECT seed, run.status, owner FROM run JOIN attempt ON run_id = run.id")
    assert sorted(found) == [(0, "running", str(second)), (1, "stopped", str(first))]


def test_an_adopted_job_may_have_long_steps(tmp_path: Path, path: Path) -> None:
    """Its start, and the length of its first step, are in what the earlier launcher has read."""
    study, left = small_plan(tmp_path, [1e-3], seeds=1), {}

    class Queue:
        queue = slurm.queue_of("stub")

        def capacity(self) -> list[Slot]:
            return [Slot(0, CPU, False)]

        def outstanding(self) -> dict[int, list[Path]]:
            return left

        def waiting(self) -> set[int]:
            return set()

        def poll(self, timeout: float) -> list[Ended]:
            return []

        def submit(self, slot: int, job: Job, journals: list[Path]) -> int:
            raise AssertionError

        def cancel(self, handle: int, *, kill: bool = False) -> None: ...

        def close(self, timeout: float) -> None: ...

        def leave(self) -> str:
            return ""

    with store.open(str(path), create=True) as db:
        study_id = register(db, study)
        with Owner.here(db, on=Queue.queue) as first:
            (run,) = candidates(db, study_id, first)
            left[1] = [each.journal for each in claim(db, study_id, first, [run.run_id])]
        with pool.WorkerPool(Queue(), db, "stub", "loss", Console(file=io.StringIO())) as running:
            running._adopt(running._queue)
            (job,) = running._jobs.values()
            for done in (7, 8):
                job.told({"event": "heartbeat", "n": done, "done": done, "long": False})
                job.still = 4 * pool.STALL
                assert not job.hangs(60.0)
            job.still = pool.STALL_LONG + 1
            assert job.hangs(60.0)


def test_why_a_slurm_job_ended_is_told_apart() -> None:
    """Only what no run can have caused costs no try."""
    found = {state: slurm.outcome(state) for state in ("TIMEOUT", "OUT_OF_MEMORY", "FAILED", "")}
    assert {how for how, _ in found.values()} == {"lost"}
    assert len({why for _, why in found.values()}) == 4
    for state in ("NODE_FAIL", "PREEMPTED", "CANCELLED"):
        how, why = slurm.outcome(state)
        assert how == "stopped" and state in why
