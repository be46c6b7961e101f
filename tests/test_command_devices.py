"""Which GPUs a script sees, with an executor that offers several; no GPU is needed."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_helpers import Run, refused
from launch_helpers import launch
from test_command_run import planned

from ablate.errors import AblateError
from ablate.launch import devices, packs, pool
from ablate.launch.devices import Device
from ablate.plan import Plan, plan
from ablate.study import load


class Seen(NamedTuple):
    """What one script saw, and when it ran."""

    devices: tuple[str, ...]
    begun: float
    ended: float

    def beside(self, other: Seen) -> bool:
        """Whether both ran at one time."""
        return self.begun < other.ended and other.begun < self.ended


def of(folder: Path, gpus: str, seeds: int) -> Plan:
    planned(folder, seeds=seeds)
    file = folder / "own.toml"
    file.write_text(file.read_text().replace("gpus = 0", f"gpus = {gpus}"))
    return plan(load(str(file)))


def cards(n: int) -> list[Device]:
    return [Device(f"cuda:{k}", 8 << 30, 2) for k in range(n)]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a study on so many GPUs; what its scripts saw."""
    monkeypatch.setattr(pool, "INGEST", 0.05)
    monkeypatch.setattr(pool, "POLL", 0.1)
    monkeypatch.setenv("SCRIPT_DELAY", "0.15")
    monkeypatch.setenv("SCRIPT_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("MODE", raising=False)
    monkeypatch.delenv("ABLATE_WORKER", raising=False)

    def run(gpus: str, n: int, seeds: int = 3, visible: str | None = None) -> list[Seen]:
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        outcome, _ = launch(of(tmp_path, gpus, seeds), tmp_path / "a.db", cards(n))
        assert outcome.counts == {"complete": 2 * seeds}
        lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        ends = {(line[0], line[1]): float(line[3]) for line in lines if line[2] == "end"}
        return [
            Seen(tuple(line[4].split(",")), float(line[3]), ends[line[0], line[1]])
            for line in lines
            if line[2] != "end"
        ]

    return run


MIG = [f"MIG-5f0b1c1e-0000-0000-0000-00000000000{k}" for k in range(5)]


@pytest.mark.parametrize("visible", [None, "3, 1, 0, 2, 5", ",".join(MIG)])
def test_two_gpus_are_two_that_no_other_script_has_meanwhile(seen, visible: str | None) -> None:
    found = seen("2", 5, visible=visible)
    names = visible.replace(" ", "").split(",") if visible else [*"01234"]
    assert len(found) == 6
    assert {one.devices for one in found} == {tuple(names[:2]), tuple(names[2:4])}
    beside = [(one, other) for one, other in combinations(found, 2) if one.beside(other)]
    assert beside and all(not {*one.devices} & {*other.devices} for one, other in beside)


def test_one_gpu_is_the_default_and_each_script_has_its_own(seen) -> None:
    found = seen("1", 3, visible="8,9,10")
    assert {one.devices for one in found} == {("8",), ("9",), ("10",)}
    beside = [(one, other) for one, other in combinations(found, 2) if one.beside(other)]
    assert beside and all(one.devices != other.devices for one, other in beside)


def test_four_scripts_share_a_gpu_and_no_fifth(seen) -> None:
    found = seen("0.25", 1, visible="7")
    assert {one.devices for one in found} == {("7",)}
    at_once = [sum(one.beside(other) for other in found) for one in found]
    # one that follows another may overlap with all four of before and after
    begun = sorted(found, key=lambda one: one.begun)
    for one in begun:
        running = [other for other in found if other.begun <= one.begun < other.ended]
        assert len(running) <= 4
    assert max(at_once) >= 4


@pytest.mark.parametrize(
    ("gpus", "n", "expected"),
    [
        (2, 5, ["cuda:0,1", "cuda:2,3"]),
        (4, 4, ["cuda:0,1,2,3"]),
        (0.5, 2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (0.3, 1, ["cuda:0"] * 3),
        (None, 2, ["cuda:0", "cuda:1"]),
    ],
)
def test_slots(gpus: float | None, n: int, expected: list[str]) -> None:
    slots = devices.for_scripts(cards(n), gpus, 1)
    assert [one.name for one in slots] == expected
    assert sum(one.memory for one in slots) <= sum(one.memory for one in cards(n))


def test_more_gpus_than_there_are_is_one_line_before_anything_is_made(
    ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(tmp_path, "4", 1)
    words = ["gpus = 4", "this host has 2", "at most 2"]
    monkeypatch.setattr(devices, "_of_driver", lambda: [("cuda:0", 1 << 34), ("cuda:1", 1 << 34)])
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: True)
    for command in ("plan", "run"):
        refused(ablate, [command, "own.toml"], words)
    refused(ablate, ["run", "own.toml", "--devices", "1"], ["gpus = 4", "this host has 1"])
    # it may be planned where there is none, and not run
    monkeypatch.setattr(devices, "_accelerator_possible", lambda: False)
    code, out, _ = ablate("plan", "own.toml")
    assert code == 0 and "gpus = 4: this host has no GPU" in " ".join(out.split())
    refused(ablate, ["run", "own.toml"], ["gpus = 4", "this host has no GPU"])
    with pytest.raises(AblateError, match="no GPU"):
        packs.find_devices(of(tmp_path, "4", 1), "auto")
