"""Sets of images: what is read, what is held out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Run
from image_cases import save
from PIL import Image

from ablate import images
from ablate.errors import AblateError
from ablate.images import sets


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))


def rows(path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and class of each image to train on, then of each held-out one."""
    found = images.find(str(path), Path())
    data = sets.of(found)
    span = found.height * found.width * found.channels + 2
    parts = [part.reshape(-1, span) for part in (data.train, data.held_out)]
    assert [len(part) for part in parts] == [found.n_train, found.n_held_out]
    assert data.train_bounds.tolist() == [i * span for i in range(found.n_train + 1)]
    both = np.concatenate(parts)
    return both[:, :-2], both[:, -2] + 256 * both[:, -1].astype(int)


def test_the_digits_are_those_of_the_source() -> None:
    found = images.find("digits", Path())
    assert (found.n_train + found.n_held_out, found.height, found.width) == (1797, 8, 8)
    pixels, classes = rows("digits")
    # the numbers of each digit in the test part of the UCI data set, as its description has them
    assert np.bincount(classes).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    first = [0, 0, 5, 13, 9, 1, 0, 0]  # of 16 grey levels: the first row of the first image
    (match,) = np.flatnonzero(
        (pixels[:, :16] == np.round(np.array([*first, 0, 0, 13, 15, 10, 15, 5, 0]) * 255 / 16)).all(
            1
        )
    )
    assert classes[match] == 0


def test_equal_images_are_on_one_side_and_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (50, 3, 5)).astype(np.uint8)
    twice, labels = np.concatenate([pixels, pixels[::-1]]), np.arange(50) % 2
    np.savez(tmp_path / "a.npz", images=twice, labels=np.concatenate([labels, labels[::-1]]))
    found = images.find("a.npz", tmp_path)
    data = sets.of(found)
    train, held_out = (
        {row.tobytes() for row in part.reshape(-1, 17)} for part in (data.train, data.held_out)
    )
    assert not train & held_out and len(train) == 40 and len(held_out) == 10
    assert np.bincount(data.classes(data.held_out)).tolist() == [10, 10]
    assert (found.height, found.width, found.channels) == (3, 5, 1)


def test_numbers_that_are_no_bytes_are_mapped_from_their_range(tmp_path: Path) -> None:
    values = np.linspace(-1, 3, 4 * 4 * 6).reshape(6, 4, 4)
    np.savez(tmp_path / "a.npz", x=values, y=["b", "a"] * 3)
    pixels, classes = rows(tmp_path / "a.npz")
    assert images.find("a.npz", tmp_path).names == ("a", "b")
    order = np.argsort(pixels[:, 0])
    expected = np.round((values.reshape(6, 16) + 1) / 4 * 255)
    assert (pixels[order] == expected).all() and classes[order].tolist() == [1, 0] * 3


def test_more_than_256_classes_have_two_bytes(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", n=900, shape=(3, 3), n_class=300)
    assert np.bincount(rows(tmp_path / "a.npz")[1]).tolist() == [3] * 300


def folder(path: Path, **classes: list[np.ndarray]) -> Path:
    for name, pictures in classes.items():
        (path / name).mkdir(parents=True)
        for i, pixels in enumerate(pictures):
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return path


def test_a_folder_has_a_class_for_each_folder_in_it(ablate: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    grey = [random.integers(0, 256, (2, 3)).astype(np.uint8) for _ in range(3)]
    colour = [random.integers(0, 256, (2, 3, 3)).astype(np.uint8) for _ in range(2)]
    path = folder(tmp_path / "set.v1", cats=grey, dogs=colour)
    (path / "dogs" / "notes.txt").write_text("no image")
    found = images.find("set.v1", tmp_path)
    assert found.name == "set.v1"
    assert (found.names, found.channels, found.height, found.width) == (("cats", "dogs"), 3, 2, 3)
    pixels, classes = rows(path)
    expected = {np.repeat(one[..., None], 3, -1).tobytes(): 0 for one in grey}
    expected |= {one.tobytes(): 1 for one in colour}
    assert {row.tobytes(): k for row, k in zip(pixels, classes, strict=True)} == expected
    only_grey = images.find(
        str(folder(tmp_path / "grey", a=grey, b=[1 - one for one in grey])), Path()
    )
    assert only_grey.channels == 1
    assert "5 coloured images of 2 × 3 pixels in 2 classes" in ablate("data", str(path))[1]


def test_a_set_that_has_changed_is_not_trained_on(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz")
    found = images.find("a.npz", tmp_path)

    class Config:
        corpus_hash = found.hash

    assert images.load(Config(), {found.hash: found.location}).n_class == 2  # type: ignore[arg-type]
    save(path, n=60)
    with pytest.raises(AblateError, match="changed since the study was planned"):
        images.load(Config(), {found.hash: found.location})  # type: ignore[arg-type]


def arrays(**named: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path / "a.npz", **named)


def pictures(**classes: list[tuple[int, int]]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        shown = {name: [np.zeros(size, np.uint8) for size in of] for name, of in classes.items()}
        folder(path / "a.npz", **shown)

    return make


def broken(path: Path) -> None:
    pictures(cats=[(2, 2)], dogs=[(2, 2)])(path)
    (path / "a.npz" / "dogs" / "1.png").write_bytes(b"no image")


GREY = np.arange(4 * 4 * 4, dtype=np.uint8).reshape(4, 4, 4)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such set of images.*digits"),
        (lambda path: (path / "a.npz").mkdir(), "a folder without images"),
        (lambda path: (path / "a.npz").write_text("text"), "not an .npz file"),
        (pictures(cats=[(2, 2), (3, 3)]), "unlike sizes.*2 × 2.*3 × 3"),
        (pictures(cats=[(2, 2), (2, 2)]), "one class, 'cats'"),
        (pictures(cats=[(2, 2), (2, 2)], dogs=[(2, 2)]), "class 'dogs' has 1 image"),
        (pictures(cats=[(2, 2)] * 2, dogs=[(2, 2)] * 2), "only copies of one image"),
        (broken, "1.png: not an image that can be read"),
        (arrays(x=GREY), "no array 'y' or 'labels'; it has 'x'"),
        (arrays(y=[0, 1]), "no array 'x' or 'images'"),
        (arrays(x=GREY, y=[1, 1, 1, 1]), "one class, '1'"),
        (arrays(x=GREY, y=[0, 1]), "each image needs one label"),
        (arrays(x=GREY[0], y=[0, 1, 0, 1]), r"shape \[4, 4\]"),
        (arrays(x=np.full((4, 2, 2), np.nan), y=[0, 1] * 2), "finite"),
        (arrays(x=np.array([["a"]] * 4)[..., None], y=[0, 1] * 2), "no numbers"),
    ],
)
def test_what_is_no_set_of_images_is_one_line(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(AblateError, match=said) as error:
        images.find("a.npz", tmp_path)
    assert "\n" not in str(error.value)


def test_images_directly_in_a_folder_are_counted(tmp_path: Path) -> None:
    Image.fromarray(GREY[0]).save(tmp_path / "1.png")
    with pytest.raises(AblateError, match="its 1 images are in no such folder"):
        images.find(str(tmp_path), Path())
