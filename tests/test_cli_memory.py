"""`ablate plan --device` says how runs fit into the memory of a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablate import sizes
from ablate.cli import planning
from ablate.launch import packs
from ablate.launch.devices import MEMORY_SHARE, Device
from ablate.plan import Plan, plan
from ablate.study.parse import parse

H200 = Device("cuda:0", 139 << 30, 4)


def planned(factors: str = "topology = [1, 5]", **base: object) -> Plan:
    """A study of 302M parameters at a context of 1024."""
    fields: dict[str, object] = {
        "n_layer": 24,
        "d_model": 1024,
        "n_head": 16,
        "n_ctx": 1024,
        "batch_tokens": 131072,
        "tokens": "6B",
        "max_epochs": 1e9,
        **base,
    }
    fields.pop(factors.partition(" ")[0], None)
    lines = "\n".join(f"{key} = {value!r}".replace("'", '"') for key, value in fields.items())
    text = (
        f'name = "big"\nquestion = "q"\nseeds = 3\n[base]\ncorpus = "austen"\ntokenizer = "byte"\n'
        f'precision = "bfloat16"\n{lines}\n[factors]\n{factors}\n'
    )
    return plan(parse(text, Path("big.toml")))


def gib(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) GiB", text)]


def test_a_batch_larger_than_the_gpu_is_said_to_be_trained_in_parts() -> None:
    study = planned()
    config = study.cells[0].config
    assert sizes.memory_bytes(config) > H200.memory  # 152 GiB on a card of 139
    (line,) = planning.fit(study, [H200])
    assert "each cell trains in micro-batches of 32 of 128 sequences" in line
    card, whole, needed = gib(line)
    assert card == 139
    assert whole == pytest.approx(sizes.memory_bytes(config) / 2**30, rel=0.01)
    assert needed == pytest.approx(sizes.memory_bytes(config, 1, 32) / 2**30, rel=0.01)
    assert needed < MEMORY_SHARE * card and "may not fit" not in line


def test_the_next_model_is_set_up_beside_the_present_one_where_both_fit() -> None:
    """Each in the micro-batches in which it would train on the whole GPU."""
    study = planned()
    slots = packs.worker_slots(study, [H200])
    assert [slot.name for slot in slots] == ["cuda:0"] * 2
    run = study.cells[0].run
    assert packs.size(run, slots[0], 0) == packs.size(run, H200, 0)
    assert len(list(planning.fit(study, slots))) == 1
    larger = planned(d_model=2048, batch_tokens=65536)
    slots = packs.worker_slots(larger, [H200])
    assert len(slots) == 1
    _, said = planning.fit(larger, slots)
    assert "only after the one before it has ended" in said
    (needed,) = gib(said)
    assert MEMORY_SHARE * 139 / 2 < needed < MEMORY_SHARE * 139
    assert len(packs.worker_slots(planned("lr = [1e-4, 1e-3]"), [H200])) == 1, "one shape"


def test_what_fits_in_one_batch_is_said_with_the_runs_of_a_pack() -> None:
    (line,) = planning.fit(planned(batch_tokens=8192), [H200])
    assert "one run at a time" in line and "micro" not in line
    small = planned(n_layer=2, d_model=64, n_head=2, n_ctx=64, batch_tokens=1024, tokens="1M")
    (line,) = planning.fit(small, [H200])
    assert packs.capacity(small.cells[0].config, H200) > 3
    assert "3 runs at a time" in line  # the study has three seeds


def test_cells_that_fit_differently_have_a_line_each_and_too_large_ones_are_named() -> None:
    first, second = planning.fit(planned("n_layer = [2, 24]"), [H200])
    assert "n_layer=2 trains one run" in first and "n_layer=24 trains in micro" in second
    line, _ = planning.fit(planned(), [Device("cuda:0", 5 << 30, 4)])
    assert "micro-batches of 8 of 128" in line and "computed again" in line
    assert line.endswith("which may not fit")
    assert not list(planning.fit(planned(), [Device("cpu", 5 << 30, 4)]))
