"""Weights that runs keep: written by training, alone and in packs, best and last, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train_helpers import Events, after, config, run, text

from ablate.model.transformer import model_of
from ablate.train import weights
from ablate.train.compiled import step_cache

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_GPU])]
# its held-out loss rises again: the rate does not decay and is far too high at the end
# the rate grows to the end, so that the loss falls and then rises, on every processor
UNSTEADY = {"schedule": "constant", "lr": 1.0, "grad_clip": 0.0, "warmup": 1.0}


def files(folder: Path, n: int) -> tuple[Path, ...]:
    return tuple(folder / f"{k}.safetensors" for k in range(n))


def held_out(path: Path) -> float:
    """Held-out loss of the model in a file, by torch's own cross-entropy."""
    kept, about = weights.read(path)
    model = model_of(about.run.config)
    model.load_state_dict({name: one[None] for name, one in kept.items()})
    tokens = torch.from_numpy(text().held_out.astype("int64"))
    windows = tokens[: 16 * 16 + 1].unfold(0, 17, 16)  # 256 tokens, as EVALUATION says
    with torch.inference_mode():
        logits = model.eval()(windows[None, :, :-1])[0]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))


@pytest.mark.parametrize("device", DEVICES)
def test_each_member_of_a_pack_keeps_its_own_weights(tmp_path: Path, device: str) -> None:
    step_cache.clear()
    configs = [config(seed=seed, lr=lr) for seed, lr in ((0, 1e-2), (1, 3e-3), (2, 1e-2))]
    paths = files(tmp_path, 3)
    events = run(*configs, weights=(paths[0], None, paths[2]), device=device)
    assert sorted(tmp_path.iterdir()) == [paths[0], paths[2]]
    assert [len(one.of("weights")) for one in events] == [1, 0, 1]
    for k in (0, 2):
        told = [one["event"] for one in events[k].events]
        assert told.index("weights") < told.index("final")
        assert events[k].of("weights")[0]["path"] == paths[k].name
        kept, about = weights.read(paths[k])
        assert about.run.config == configs[k] and about.key == about.run.key
        assert all(one.shape[0] != 3 for one in kept.values())
        solo = tmp_path / f"solo{k}.safetensors"
        run(configs[k], weights=(solo,), device=device)
        alone, _ = weights.read(solo)
        for name, tensor in alone.items():
            torch.testing.assert_close(kept[name], tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keep", ["final", "best"])
def test_the_kept_weights_have_the_loss_that_the_curve_says(tmp_path: Path, keep: str) -> None:
    (path,) = files(tmp_path, 1)
    (events,) = run(config(**UNSTEADY), weights=(path,), best=keep == "best")
    curve = events.series("loss")
    best = min(curve, key=curve.__getitem__)
    assert best < 30, "else best and last would be one"
    step = best if keep == "best" else 30
    _, about = weights.read(path)
    assert (about.keep, about.step) == (keep, step)
    assert about.loss == curve[step] == pytest.approx(held_out(path), abs=1e-5)


@pytest.mark.parametrize("best", [False, True])
def test_a_resumed_run_keeps_the_same_weights(tmp_path: Path, best: bool) -> None:
    whole, stopped = files(tmp_path, 2)
    run(config(**UNSTEADY), weights=(whole,), best=best)
    events, job = [Events()], {"checkpoint": tmp_path / "job.pt", "best": best}
    # after the best evaluation, before the last
    run(config(**UNSTEADY), into=events, stop=after(24), weights=(stopped,), **job)
    assert events[0].end["status"] == "stopped" and not stopped.exists()
    run(config(**UNSTEADY), into=events, resume=True, weights=(stopped,), **job)
    assert events[0].of("start")[-1]["step"] == 23
    (one, of_one), (other, of_other) = weights.read(stopped), weights.read(whole)
    assert of_one == of_other and one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_without_the_best_weights_is_not_continued(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    checkpoint = tmp_path / "job.pt"
    run(config(), stop=after(24), checkpoint=checkpoint)
    (events,) = run(config(), resume=True, checkpoint=checkpoint, weights=(path,), best=True)
    assert events.of("start")[0]["step"] == 0 and path.exists()


def test_a_diverged_run_keeps_no_weights(tmp_path: Path) -> None:
    paths = files(tmp_path, 2)
    events = run(config(lr=1e30, seed=1), config(), weights=paths)
    assert [one.end["status"] for one in events] == ["diverged", "complete"]
    assert list(tmp_path.iterdir()) == [paths[1]]


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    path.with_name(f"{path.name}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        run(config(), weights=(path,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"x" * 99])
def test_a_file_that_is_no_weights_is_one_line(tmp_path: Path, content: bytes) -> None:
    from ablate.errors import AblateError

    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(AblateError, match=r"a\.safetensors cannot be read"):
        weights.read(path)
