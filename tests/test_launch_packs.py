"""Which runs train together, how many, and what becomes of a job that ran out of memory."""

from __future__ import annotations

import pytest

from ablate import sizes
from ablate.config import RunConfig
from ablate.kinds import Run
from ablate.kinds.transformer import run_of, shape
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.launch.scheduler import RETRIES

# 0.85M parameters
SMALL = RunConfig(n_layer=4, d_model=128, n_head=4, n_ctx=256, batch_tokens=8192)
LARGE = RunConfig(
    n_layer=12, d_model=768, n_head=12, n_ctx=1024, n_vocab=50304, batch_tokens=32 * 1024
)
H100 = Device("cuda:0", 80 << 30, 8)


def test_members_differ_in_four_fields_only():
    for change in ({"seed": 7}, {"lr": 1e-2}, {"weight_decay": 0.5}):
        assert shape(SMALL) == shape(SMALL.model_copy(update=change))
    masked = RunConfig(objective="masked", n_vocab=257)
    assert shape(masked) == shape(masked.model_copy(update={"mask_ratio": 0.4}))
    for change in (
        {"steps": 7},
        {"topology": "parallel"},
        {"warmup": 0.5},
        {"dropout": 0.1},
        {"batch_tokens": 4096},
    ):
        assert shape(SMALL) != shape(SMALL.model_copy(update=change))


def test_a_pack_grows_until_the_device_is_busy_or_full():
    assert packs.capacity(SMALL, Device("cpu", 1 << 40, 8)) == 1
    many = packs.capacity(SMALL, H100)
    assert 8 <= many <= packs.LARGEST
    assert packs.capacity(LARGE, H100) == 1
    full = Device("cuda:0", int(sizes.memory_bytes(SMALL, 3) / packs.MEMORY_SHARE) + 1, 8)
    assert packs.capacity(SMALL, full) == 3
    assert packs.capacity(SMALL, Device("cuda:0", 1 << 20, 8)) == 1, (
        "what does not fit is tried, for the estimate may be wrong"
    )


@pytest.mark.parametrize(
    ("waiting", "capacity", "idle", "expected"),
    [
        (16, 32, 2, 8),
        (8, 32, 1, 8),
        (5, 32, 2, 3),
        (1, 32, 4, 1),
        (40, 32, 1, 20),
        (4, 3, 1, 2),
        (8, 3, 1, 3),
    ],
)
def test_idle_devices_get_their_part_in_packs_of_one_size(waiting, capacity, idle, expected):
    assert packs.share(waiting, capacity, idle) == expected


def test_what_ran_out_of_memory_becomes_smaller(monkeypatch):
    monkeypatch.setattr(packs, "capacity", lambda config, device: 10)
    tries = [(10, 0, False), (3, 0, False), (1, 2, True), (1, 2, True)]  # of 32 sequences
    assert [packs.size(run_of(SMALL), H100, k, last=k >= RETRIES - 1) for k in range(4)] == tries
    monkeypatch.setattr(packs, "capacity", lambda config, device: 1)
    assert [packs.size(run_of(SMALL), H100, k, last=k >= RETRIES - 1) for k in range(RETRIES)] == [
        (1, 0, False),
        (1, 8, False),
        (1, 2, True),
    ]


def test_a_fine_tuned_run_is_alone_and_its_batch_is_that_of_its_task():
    """Of 4 texts where the pre-training has 32 sequences, and the other way round."""
    for texts, pretraining in ((4, 32), (32, 4)):
        fields = {"method": "full", "n_class": 2, "finetune_batch": texts}
        config = RunConfig(**LARGE.model_dump() | {"batch_tokens": pretraining * 1024} | fields)
        task = Run("finetune", config.model_dump(mode="json", exclude={"seed"}))
        plain = LARGE.model_copy(update={"batch_tokens": texts * 1024})
        assert sizes.memory_bytes(config) == sizes.memory_bytes(plain) == task.cost.bytes
        assert packs.size(task, H100, 0) == (1, 0, False)
        assert packs.size(task, H100, 1) == (1, texts // 4, False)
        room = int(sizes.memory_bytes(plain) / packs.MEMORY_SHARE)
        assert packs.size(task, Device("cuda:0", room + 2, 8), 0) == (1, 0, False)
        assert packs.size(task, Device("cuda:0", room - 2, 8), 0).micro_batch == texts // 4


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, (1, 0, False)),
        (0.5, (1, 8, False)),
        (0.2, (1, 2, False)),
        (0.08, (1, 2, True)),
        (1e-3, (1, 2, True)),
    ],
)
def test_a_run_that_would_not_fit_begins_smaller(share, expected):
    """GPT-2 small, whose batch of 32 sequences takes 44 GiB by estimate in float32, and a
    micro-batch of 2 takes 5.
    """
    whole = sizes.memory_bytes(LARGE) / packs.MEMORY_SHARE
    assert packs.size(run_of(LARGE), Device("cuda:0", int(share * whole) + 1, 8), 0) == expected
    device = Device("cuda:0", int(share * whole) + 1, 8)
    assert packs.size(run_of(LARGE), device, RETRIES - 1, last=True) == (1, 2, True)
