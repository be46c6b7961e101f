"""Studies on a Ray cluster: whatever is killed, every run has its result once."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_driver
import pytest
from cli_helpers import Run
from launch_helpers import content, rows, small_plan, use_stub, wait_for
from ray_cluster import Cluster, missing

from ablate.errors import AblateError
from ablate.plan import Plan, plan
from ablate.study import Ray, load

if why := missing():  # Ray itself is imported where it is used
    pytest.skip(why, allow_module_level=True)
HERE = Path(__file__).parent
STEPS = 100
SCRIPT = """
name = "own"
question = "?"
metric = "score"
goal = "lower"
seeds = 1
[command]
run = "python train.py {{x}} {{seed}}"
{table}
[factors]
x = [1, 2]
"""


def begin(folder: Path, nodes: Cluster, study: str) -> subprocess.Popen:
    """`ablate run` of a study, as a process in a folder."""
    with (folder / "out").open("w") as out:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "ablate", "run", study, "--db", "far.db"),
                *("--on", "ray", "--address", nodes.address),
            ],
            cwd=folder,
            stdout=out,
            stderr=out,
        )


def check(folder: Path, study: Plan) -> None:
    """Every run is complete, and has each of its points once, with its value."""
    import stub_worker

    path = folder / "far.db"
    accepted = "SELECT run_id, count(*) FROM attempt WHERE status = 'complete' GROUP BY 1"
    assert [number for _, number in rows(path, accepted)] == [1] * len(study.runs)
    expected = [
        (each.run.key, name, step, stub_worker.value(each.config, name, step))
        for each in study.runs
        for name in ("lr", "train_loss")
        for step in range(1, STEPS + 1)
    ]
    assert content(path)["metric"] == sorted(expected)
    assert rows(path, "SELECT DISTINCT status FROM run") == [("complete",)]


def test_the_runs_of_a_lost_node_and_of_a_stopped_launcher_are_trained(
    ray_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stub(monkeypatch)
    monkeypatch.setenv("STUB_DELAY", "0.03")
    study, path = small_plan(tmp_path, [1e-3, 1e-2], seeds=2, steps=STEPS), tmp_path / "far.db"
    node = ray_nodes.add()
    first = begin(tmp_path, ray_nodes, "stub.toml")
    try:
        wait_for(lambda: len(rows(path, "SELECT DISTINCT run_id FROM metric")) == 2, 240)
        ray_nodes.kill(node)
        lost = "SELECT status FROM attempt WHERE error LIKE 'its node % was lost'"
        wait_for(lambda: rows(path, lost), 120)
        assert rows(path, lost) == [("stopped",)], "a lost node is no lost try"
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 130, (tmp_path / "out").read_text()
        monkeypatch.setenv("STUB_DELAY", "0")
        assert begin(tmp_path, ray_nodes, "stub.toml").wait(240) == 0
    finally:
        first.kill()
    check(tmp_path, study)
    assert rows(path, "SELECT max(resumed_step) > 0 FROM attempt") == [(1,)]


def test_a_script_runs_where_and_as_the_launcher_was_started(
    ray_nodes: Cluster, ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    Path("modules/mine.py").write_text("score = 0.5\n")
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}:{tmp_path}/modules")
    monkeypatch.setenv("OF_THE_LAUNCHER", "2")
    Path("train.py").write_text(
        "import json, mine, os, sys\n"
        "score = mine.score * float(sys.argv[1]) + float(os.environ['OF_THE_LAUNCHER'])\n"
        "print(json.dumps({'step': 1, 'score': score}))\n"
    )
    Path("own.toml").write_text(SCRIPT.format(table=""))
    assert begin(tmp_path, ray_nodes, "own.toml").wait(240) == 0, Path("out").read_text()
    finals = "SELECT value FROM final WHERE name = 'score' ORDER BY value"
    assert rows(tmp_path / "far.db", finals) == [(2.5,), (3.0,)]


def test_a_gpu_that_a_worker_does_not_find_is_named(ray_nodes: Cluster, tmp_path: Path) -> None:
    """Ray gives away as many GPUs as its nodes claim to have."""
    node = ray_nodes.add(num_gpus=1, num_cpus=3)
    (tmp_path / "train.py").touch()
    (tmp_path / "own.toml").write_text(SCRIPT.format(table="gpus = 0.25"))
    try:
        assert begin(tmp_path, ray_nodes, "own.toml").wait(240) == 2
    finally:
        ray_nodes.kill(node)
    said = (tmp_path / "out").read_text().splitlines()  # with lines of Ray's own
    (error,) = (line for line in said if line.startswith("ablate: "))
    assert "no GPU of NVIDIA" in error and not any("Traceback" in line for line in said)
    # a node that takes longer than `ray.FIRST` to start an actor says so when the database is there
    path = tmp_path / "far.db"
    assert not path.exists() or rows(path, "SELECT 1 FROM attempt") == []


@pytest.mark.skipif(bool(fake_driver.missing()), reason=fake_driver.missing())
def test_scripts_share_the_gpus_that_ray_gave_them(
    ray_nodes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    monkeypatch.setenv("LD_LIBRARY_PATH", fake_driver.make(tmp_path))
    node = ray_nodes.add(num_gpus=2, num_cpus=5)
    (tmp_path / "own.toml").write_text(fake_driver.study(tmp_path, "0.5"))
    try:
        assert begin(tmp_path, ray_nodes, "own.toml").wait(240) == 0, Path("out").read_text()
    finally:
        ray_nodes.kill(node)
    fake_driver.check(tmp_path, 0.5)


# -- what is asked of Ray --------------------------------------------------------------------------


def test_without_ray_one_line_names_the_extra_and_a_local_run_needs_nothing(
    ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stub(monkeypatch)
    small_plan(tmp_path, [1e-3, 1e-2])
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ablate.launch.ray", raising=False)
    code, _, error = ablate("run", "stub.toml", "--on", "ray")
    assert code == 2 and error.count("\n") == 1 and "ablate-studies[ray]" in error
    assert not Path("results").exists()
    assert ablate("run", "stub.toml")[0] == 0


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_a_wrong_address_is_one_line(
    ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from ablate.launch import ray

    monkeypatch.setattr(ray, "CONNECT", 3.0)
    small_plan(tmp_path, [1e-3, 1e-2])
    code, _, error = ablate("run", "stub.toml", "--on", "ray", "--address", address)
    assert code == 2 and error.count("\n") == 1 and address in error
    assert not Path("results").exists()


def node(**resources: float) -> dict:
    return {"NodeID": "a", "Alive": True, "Resources": resources}


def test_gpus_of_a_study_are_asked_of_ray(tmp_path: Path) -> None:
    from ablate.launch.devices import Device
    from ablate.launch.ray import request

    small = small_plan(tmp_path, [1e-3, 1e-2], seeds=20)
    (tmp_path / "train.py").touch()
    two = [node(CPU=32, GPU=4), node(CPU=8, GPU=2), node(CPU=64)]

    def of_script(table: str) -> Plan:
        file = tmp_path / "own.toml"
        file.write_text(SCRIPT.format(table=table))
        return plan(load(str(file)))

    def several(n: int) -> Plan:
        return replace(small, study=replace(small.study, devices_per_run=n))

    card = [Device("cuda:0", 80 << 30, 4)]
    whole = request(small, Ray(), "auto", two)
    assert (whole.num_gpus, whole.num_cpus, whole.room(two)) == (1.0, 4, 6)
    half = request(small, Ray(num_gpus=0.5, num_cpus=1), "auto", two)
    assert (half.num_gpus, half.num_cpus, half.room(two)) == (0.5, 1, 12)
    assert sum(each.memory for each in half.slots(card)) <= 40 << 30
    ranks = request(several(2), Ray(), "auto", two)
    assert (ranks.num_gpus, ranks.room(two)) == (2.0, 3)
    pair = [Device(f"cuda:{k}", 80 << 30, 4) for k in range(2)]
    assert [each.name for each in ranks.slots(pair)] == ["cuda:0,1"]
    with pytest.raises(AblateError, match=r"ray\.num_gpus = 1"):
        request(several(2), Ray(num_gpus=1), "auto", two)
    cpus = request(small, Ray(num_cpus=8), "cpu", two)
    assert (cpus.num_gpus, cpus.num_cpus, cpus.room(two)) == (0.0, 8, 4 + 1 + 8)
    shared = request(of_script("gpus = 0.25"), Ray(), "auto", two)
    assert (shared.num_gpus, shared.room(two)) == (0.25, 24)
    assert shared.slots(card) == [Device("cuda:0", 20 << 30, 4)]
    assert shared.most == 2, "no more workers than runs"
    none = request(of_script("gpus = 0\ncpus = 3"), Ray(), "auto", two)
    assert (none.kind, none.num_cpus, none.room(two)) == ("cpu", 3, 10 + 2 + 21)
    with pytest.raises(AblateError, match="no node of the Ray cluster has 8 GPUs"):
        request(of_script("gpus = 8"), Ray(), "auto", two)
    assert request(of_script("gpus = 8"), Ray(max_workers=2), "auto", two).num_gpus == 8


@pytest.mark.parametrize(
    ("table", "key"),
    [("num_gpus = 1.5", "num_gpus"), ("max_workers = 0", "max_workers"), ("gpus = 1", "gpus")],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, table: str, key: str) -> None:
    small_plan(tmp_path, [1e-3, 1e-2])
    file = tmp_path / "stub.toml"
    before = [planned.run.key for planned in plan(load(str(file))).runs]
    good = file.read_text() + "[ray]\nnum_gpus = 0.5\n"
    file.write_text(good)
    assert [planned.run.key for planned in plan(load(str(file))).runs] == before
    file.write_text(good.replace("num_gpus = 0.5", table))
    with pytest.raises(AblateError, match=rf"line {good.count(chr(10))}: .*ray\.{key}"):
        load(str(file))
