"""Fixtures of several test files."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.main
from cli_helpers import Run, measured_quickstart

from ablate.cli import main

if TYPE_CHECKING:
    from browser import Browser
    from ray_cluster import Cluster as Nodes
    from slurm_cluster import Cluster

    from ablate.store import Database
    from ablate.store.owners import Owner


n_frozen = 0  # modules that the garbage collector passes over
gc.disable()  # until tests run: hardly anything of imports and collected tests is garbage
gc.set_threshold(50_000)  # as in the command and in workers

# A process builds the tree of commands once, not at each call: that takes 28 ms.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True, scope="session")
def created_once() -> Iterator[None]:
    """New databases are copies of the first that the migrations create: they take 50 ms."""
    from ablate.kinds import kind
    from ablate.store import migrate, views

    upgrade = migrate.upgrade
    created: dict[tuple[object, ...], bytes] = {}

    def copied(path: Path) -> None:
        made_by = (migrate.HEAD, migrate.SCRIPTS, views.create, *kind("transformer").fields)
        new = not path.stat().st_size
        if new and made_by in created:
            try:
                path.write_bytes(created[made_by])
                return
            except OSError:  # a full disk: what the migrations say of it is tested
                path.write_bytes(b"")
        upgrade(path)
        if new:
            created[made_by] = path.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "upgrade", copied)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give every test the same draws of torch's global generator, in any order of tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def only_ablates_own() -> Iterator[None]:
    """No level or metric of a test file's own code is registered in another test file."""
    yield
    if outside := sys.modules.get("ablate.outside"):
        outside.use(())


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """Let the garbage collector pass over what earlier test files imported and keep."""
    gc.collect()
    gc.freeze()
    yield


@pytest.fixture(autouse=True)
def imports_frozen() -> None:
    """The same for what earlier tests of the file imported: as much as 60 ms of each collection."""
    global n_frozen
    if len(sys.modules) > n_frozen + 20:
        gc.collect()
        gc.freeze()
        n_frozen = len(sys.modules)


@pytest.fixture
def ablate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_DB", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        assert isinstance(code, int | None)
        return code or 0, *capfd.readouterr()

    return run


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    from launch_helpers import use_stub

    use_stub(monkeypatch)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ablate run` trains in this process, which has imported torch, and not in a worker's."""
    from in_process import local

    from ablate.cli import running

    monkeypatch.setattr(running, "_local", local)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the pages of a test file."""
    import browser

    if browser.PROGRAM is None:
        pytest.skip("no chromium here")
    with browser.Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[Cluster]:
    """The daemons of a Slurm cluster."""
    import slurm_cluster

    if why := slurm_cluster.missing():
        pytest.skip(why)
    cluster = slurm_cluster.Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(slurm_daemons: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Slurm cluster without jobs, which is asked often."""
    from ablate.launch import slurm

    monkeypatch.setenv("SLURM_CONF", str(slurm_daemons.config))
    monkeypatch.setattr(slurm, "LOOK", 0.05)
    monkeypatch.setattr(slurm, "REFRESH", 0.1)
    yield slurm_daemons
    slurm_daemons.empty()


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Nodes]:
    """A Ray cluster of one node with one CPU, beside its head."""
    import ray_cluster

    if why := ray_cluster.missing():
        pytest.skip(why)
    nodes = ray_cluster.Cluster()
    nodes.add()
    yield nodes
    nodes.stop()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A database without studies."""
    from store_plans import fresh

    with fresh(tmp_path / "ablate.db") as db:
        yield db


@pytest.fixture
def owner(db: Database) -> Iterator[Owner]:
    """A launcher on this host."""
    from ablate.store.owners import Owner

    with Owner.here(db) as owner:
        yield owner


@pytest.fixture
def measured(ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default database, with the quickstart; a final is its seed plus its cell's hundredths."""
    path = tmp_path / "measured.db"
    measured_quickstart(path, lambda cell, seed: seed * (1 + cell * 0.01))
    monkeypatch.setenv("ABLATE_DB", str(path))
    return str(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with tests that may take longer than the others, so that none is left at the end.

    Then come the tests on a cluster, which mostly wait: side by side, so that one process of
    pytest-xdist has them all, and starts each cluster once.
    """
    usual = float(config.getini("timeout"))

    def place(item: pytest.Item) -> int:
        assert isinstance(item, pytest.Function)
        marker = item.get_closest_marker("timeout")
        if marker is not None and marker.args[0] > usual:
            return 0
        asked = {*item.fixturenames}
        if hasattr(item, "callspec"):
            asked.add(str(item.callspec.params.get("make")))  # an executor
        if asked & {"ray", "ray_nodes"}:
            return 1
        return 2 if asked & {"slurm", "slurm_daemons"} else 3

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported: training collects once a shape."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from now on, also in the process of pytest-xdist that collects no tests."""
    gc.enable()


def pytest_unconfigure() -> None:
    """End without a search for garbage in all that was imported: a second of each process."""
    gc.freeze()
