"""Checkpoints are there whole or not at all, and the one before is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from train_helpers import after, config, run

from ablate.launch.worker import no_room
from ablate.train import checkpoint


def state(n: int) -> checkpoint.State:
    return {"done": n, "keys": ["a", "b"], "step": {"weights": torch.full((2, 1000), float(n))}}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "job.pt"
    assert checkpoint.load(path) is None
    checkpoint.save(path, state(7))
    loaded = checkpoint.load(path)
    assert (
        loaded
        and loaded["done"] == 7
        and torch.equal(loaded["step"]["weights"], state(7)["step"]["weights"])
    )


@pytest.mark.parametrize("left", [0, 10, 1000, -1])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, left: int) -> None:
    path = tmp_path / "job.pt"
    checkpoint.save(path, state(1))
    checkpoint.save(path, state(2))
    path.write_bytes(path.read_bytes()[:left])
    loaded = checkpoint.load(path)
    assert loaded and loaded["done"] == 1


@pytest.mark.parametrize("size", [1, 512])
def test_a_checkpoint_with_lost_blocks_gives_way_to_the_one_before(
    tmp_path: Path, size: int
) -> None:
    """Wherever zeros stand instead of what was written, no other number is ever loaded."""
    path = tmp_path / "job.pt"
    checkpoint.save(path, state(1))
    checkpoint.save(path, state(2))
    whole, loaded = path.read_bytes(), set()
    for place in range(0, len(whole), 97):
        path.write_bytes(
            whole[:place] + bytes(len(whole[place : place + size])) + whole[place + size :]
        )
        found = checkpoint.load(path)
        assert found and torch.equal(
            found["step"]["weights"], state(found["done"])["step"]["weights"]
        )
        loaded.add(found["done"])
    assert 1 in loaded and loaded <= {1, 2}


def test_dying_while_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.pt"
    checkpoint.save(path, state(1))
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, state(2))
    loaded = checkpoint.load(path)
    assert loaded and loaded["done"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["job.pt"], (
        "what was half written gives its room back"
    )


def test_a_full_disk_is_distinguished_from_a_mistake(tmp_path: Path) -> None:
    """torch turns what the system says into an error of its own."""
    path = tmp_path / "job.pt"
    checkpoint.save(path, state(1))
    (tmp_path / "job.pt.tmp").symlink_to("/dev/full")
    with pytest.raises((OSError, RuntimeError)) as full:
        checkpoint.save(path, {"weights": torch.zeros(100_000)})
    assert no_room(full.value) == "No space left on device"
    assert [file.name for file in tmp_path.iterdir()] == ["job.pt"]
    assert no_room(RuntimeError("unexpected pos 768 vs 662")) == ""


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss cannot be tested here, but the order of syncs and renames can."""
    path, done = tmp_path / "job.pt", []
    checkpoint.save(path, state(1))
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (done.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd)),
    )
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (done.append((self.name, to.name)), replace(self, to))
    )
    checkpoint.save(path, state(2))
    assert done == [
        "job.pt.tmp",
        ("job.pt", "job.pt.previous"),
        ("job.pt.tmp", "job.pt"),
        tmp_path.name,
    ]


def test_dying_between_the_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.pt"
    checkpoint.save(path, state(1))
    replace = Path.replace

    def once(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, state(2))
    monkeypatch.undo()
    loaded = checkpoint.load(path)
    assert loaded and loaded["done"] == 1


def test_the_seconds_of_a_run_are_those_of_all_its_attempts(tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    run(config(), checkpoint=path, stop=after(12))
    saved = checkpoint.load(path)
    assert saved and saved["seconds"] > 0
    checkpoint.save(path, {**saved, "seconds": 1000.0})
    (events,) = run(config(), checkpoint=path, resume=True)
    assert 1000 < events.finals()["train_seconds", 0] < 1100


def test_a_checkpoint_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    torch.save({"done": 1, "step": Path("/")}, path)  # any class but tensors and plain values
    assert checkpoint.load(path) is None


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.pt"
    for n in range(3):
        checkpoint.save(path, state(n))
    checkpoint.remove(path)
    assert list(tmp_path.iterdir()) == []
