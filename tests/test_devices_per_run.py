"""On how many devices a run trains: what a study and a command line say, "auto", Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ablate import sizes
from ablate.cli.planning import together, with_devices_per_run
from ablate.errors import AblateError
from ablate.launch import agent, devices, packs
from ablate.launch.devices import MEMORY_SHARE, Device
from ablate.launch.slurm import request
from ablate.plan import Plan, plan
from ablate.study import Slurm
from ablate.study.parse import parse

STUDY = """
name = "big"
question = "q"
seeds = {seeds}
[base]
n_layer = 12
d_model = 768
n_head = 12
n_ctx = 1024
batch_tokens = 131072
tokens = "{tokens}"
max_epochs = 1e9
precision = "bfloat16"
[factors]
lr = [1e-3, 2e-3]
[run]
devices_per_run = {number}
"""
SCRIPT = """
name = "own"
question = "q"
metric = "score"
goal = "lower"
seeds = 1
[command]
run = "true {x} {seed}"
[factors]
x = [1, 2]
"""


def planned(number: int | str, runs: int = 2, tokens: str = "3B") -> Plan:
    """A study of 85M parameters: a run of 3B tokens takes 2e18 FLOPs."""
    written = f'"{number}"' if isinstance(number, str) else number
    text = STUDY.format(seeds=-(-runs // 2), tokens=tokens, number=written)
    whole = plan(parse(text, Path("big.toml")))
    return replace(whole, runs=whole.runs[:runs])


def gpus(n: int) -> list[Device]:
    return [Device(f"cuda:{k}", (40 + k) << 30, 4) for k in range(n)]


@pytest.mark.parametrize(
    ("runs", "found", "expected"),
    [  # times in units of a run on one GPU, each of several of which keeps 0.93 of its speed
        (1, 1, 1),
        (1, 4, 4),  # 1, 0.54, 0.27
        (4, 4, 1),  # 1, 1.08, 1.08
        (2, 4, 2),  # 1, 0.54, 0.54
        (5, 4, 4),  # 2, 1.61, 1.34
        (1, 6, 4),
        (3, 8, 8),  # 1, 0.54, 0.54, 0.40
    ],
)
def test_auto_takes_the_number_with_which_a_study_ends_first(
    runs: int, found: int, expected: int
) -> None:
    assert packs.devices_per_run(planned("auto", runs), gpus(found)) == expected


def test_auto_leaves_short_runs_and_processors_alone() -> None:
    assert packs.devices_per_run(planned("auto", 1, "1B"), gpus(8)) == 1
    assert packs.devices_per_run(planned("auto", 1), [Device("cpu", 1 << 40, 8)]) == 1


def test_groups_are_workers_and_what_is_left_over_is_not_used() -> None:
    slots = packs.worker_slots(planned(2), gpus(5))
    assert slots == [Device("cuda:0,1", 40 << 30, 8), Device("cuda:2,3", 42 << 30, 8)]
    assert [devices.members(slot.name) for slot in slots] == [
        ["cuda:0", "cuda:1"],
        ["cuda:2", "cuda:3"],
    ]


def test_each_device_has_its_part_of_a_batch_in_memory() -> None:
    """A run of 128 sequences of which a GPU holds 20 trains in micro-batches of 16 on two GPUs."""
    run = planned(2).runs[0].run
    memory = int(sizes.memory_bytes(run.config, 1, 20) / MEMORY_SHARE)
    assert packs.size(run, Device("cuda:0,1", memory, 8), 0) == packs.Size(1, 16)
    assert packs.size(run, Device("cuda:0", memory, 8), 0) == packs.Size(1, 8)
    roomy = int(sizes.memory_bytes(run.config, 1, 70) / MEMORY_SHARE)
    assert packs.size(run, Device("cuda:0,1", roomy, 8), 0) == packs.Size(1, 64)


@pytest.mark.parametrize(
    ("changed", "found", "words"),
    [
        (planned(4), gpus(2), "there are 2 GPUs"),
        (planned(2), [Device("mps", 1 << 40, 8)], "devices_per_run = 2"),
        (plan(parse(SCRIPT, Path("own.toml"))), gpus(2), "gpus in [command]"),
    ],
)
def test_what_cannot_be_is_refused(changed: Plan, found: list[Device], words: str) -> None:
    asked = with_devices_per_run(changed, "" if changed.study.devices_per_run != 1 else "2")
    with pytest.raises(AblateError) as error:
        packs.worker_slots(asked, found)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_batch_of_fewer_sequences_than_devices_is_refused() -> None:
    text = STUDY.format(seeds=1, tokens="1B", number=4).replace("131072", "3072")
    with pytest.raises(AblateError, match="has 3 sequences"):
        packs.worker_slots(plan(parse(text, Path("big.toml"))), gpus(4))


@pytest.mark.parametrize("number", ["0", "9", "-1", "2.5", "true", '"two"', '"2"'])
def test_a_wrong_number_is_one_line(number: str) -> None:
    text = STUDY.format(seeds=1, tokens="1B", number=number)
    with pytest.raises(AblateError) as error:
        parse(text, Path("big.toml"))
    shown = number.replace('"', "'")
    assert f"big.toml, line 17: run.devices_per_run = {shown}: " in str(error.value)


def test_it_is_no_part_of_a_key_and_a_command_line_replaces_it() -> None:
    keys = {tuple(one.run.key for one in planned(number).runs) for number in (1, 2, "auto")}
    assert len(keys) == 1
    assert with_devices_per_run(planned(2), "").study.devices_per_run == 2
    assert with_devices_per_run(planned(2), "auto").study.devices_per_run == "auto"
    with pytest.raises(AblateError, match="--devices-per-run = 9: 1 to 8"):
        with_devices_per_run(planned(2), "9")


def test_a_plan_says_on_how_many() -> None:
    assert not list(together(planned(1), gpus(2)))
    (line,) = together(planned(2), packs.worker_slots(planned(2), gpus(4)))
    assert "2 devices" in line and "2 runs at a time" in line


def test_slurm_is_asked_for_the_devices_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(planned(2), Slurm(3, 40 << 30, {}), "auto", "big.toml")
    assert "--gres=gpu:2" in asked.options and "--devices-per-run=2" in asked.agent
    assert [slot.name for slot in asked.slots] == ["cuda:0,1", "cuda:2,3", "cuda:4,5"]
    five = request(planned(2), Slurm(2, 40 << 30, {"gres": "gpu:5"}), "auto", "big.toml")
    assert [slot.name for slot in five.slots] == ["cuda:0,1", "cuda:2,3", "cuda:5,6", "cuda:7,8"]
    with pytest.raises(AblateError, match="there are 2 GPUs"):
        request(planned(4), Slurm(8, 40 << 30, {"gres": "gpu:2"}), "auto", "big.toml")
    cpus = request(planned(2), Slurm(2, 8 << 30, {"cpus-per-task": 4}), "cpu", "big.toml")
    assert [slot.count for slot in cpus.slots] == [2, 2]
    assert "--devices-per-run=2" in cpus.agent

    monkeypatch.setattr(devices, "find", lambda kind, torch: gpus(5))
    assert [one.name for one in agent.slots_here("cuda", 1, None, 2)] == ["cuda:0,1", "cuda:2,3"]
    with pytest.raises(AblateError, match="takes 8 GPUs"):
        agent.slots_here("cuda", 1, None, 8)
