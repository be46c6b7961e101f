"""From the name of a set of images to its pixels and classes, in a part to train on and one that is
held out.

All images of a set have one size, and their pixels are bytes.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablate import cache
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.text import sources

NAMED = ("digits",)
SHIPPED = Path(__file__).parent / "shipped"
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
KEYS = (("x", "images"), ("y", "labels"))  # names of the arrays of an .npz file
TESTED = 5  # one image in so many of each class is held out, the others are trained on
LABEL_BYTES = 2  # of a class, behind the pixels of its image
MOST = 1 << 34  # bytes of a set, which is read into memory
_FORMAT = 1  # raised when sets are read or split differently
_AT = "named:"


@dataclass(frozen=True)
class ImageSet:
    """A set of images that a study names, after reading it.

    Attributes:
        name: "digits", the stem of a file, or the name of a folder.
        location: "named:NAME", or an absolute path.
        hash: SHA-256 of pixels, classes and split.
        height: Pixels from top to bottom.
        width: Pixels from left to right.
        channels: 1 for grey, 3 for colour; an .npz may have another number.
        names: The classes.
        n_train: Images to train on.
        n_held_out: Images that are held out.
    """

    name: str
    location: str
    hash: str
    height: int
    width: int
    channels: int
    names: tuple[str, ...]
    n_train: int
    n_held_out: int

    @property
    def size(self) -> str:
        """How large an image is, in words."""
        return f"{self.height} × {self.width}"

    @property
    def split(self) -> str:
        """How held-out images were chosen, as a phrase."""
        return f"one image in {TESTED} of each class, by the hash of its pixels"

    @property
    def about(self) -> str:
        """A sentence about the set."""
        colour = {1: "grey ", 3: "coloured "}.get(self.channels, "")
        return (
            f"Images {self.name}: {self.n_train + self.n_held_out:,} {colour}images of {self.size}"
            f" pixels in {len(self.names)} classes; trains on {self.n_train:,}, and holds out"
            f" {self.n_held_out:,}: {self.split}"
        )


@dataclass(frozen=True)
class Images:
    """The images of a run as two streams of bytes.

    An image is its pixels, row by row with the channels of a pixel together, and its class in
    `LABEL_BYTES` bytes, the lowest first. Image i of a stream is
    `stream[bounds[i] : bounds[i + 1]]`.
    """

    train: np.ndarray
    held_out: np.ndarray
    train_bounds: np.ndarray
    held_out_bounds: np.ndarray
    n_class: int

    def classes(self, stream: np.ndarray) -> np.ndarray:
        """Return the classes of the images of a stream, [N] int64."""
        width = int(self.train_bounds[1])
        low, high = stream.reshape(-1, width)[:, -LABEL_BYTES:].T.astype(np.int64)
        return low + 256 * high


def find(spec: str, root: Path) -> ImageSet:
    """Return the set of images that a study names; reads all of it the first time.

    Args:
        spec: digits, an .npz file, or a folder with a folder of image files for each class.
        root: The folder that relative paths count from.

    Raises:
        AblateError: It does not exist, cannot be read, or is no set of images of one size in two
            or more classes.
    """
    if spec in NAMED:
        return _facts(f"{_AT}{spec}")
    path = sources.absolute(spec, root)
    if not path.exists():
        raise AblateError(
            f"corpus {spec!r:.200}: there is no such set of images, and no such file or folder;"
            f" name an .npz file, a folder with a folder of images for each class, or one of"
            f" {', '.join(NAMED)}"
        )
    return _facts(str(path))


def is_folder(spec: str, root: Path) -> bool:
    """Return whether `spec` is a folder of folders with image files."""
    path = sources.absolute(spec, root)
    return path.is_dir() and any(_images_in(folder) for folder in _folders(path))


def load(config: RunConfig, locations: Mapping[str, str]) -> Images:
    """Return the images of a run.

    Args:
        config: Of the run.
        locations: Content hash of a set → its location.

    Raises:
        AblateError: The set has changed since the plan.
    """
    location = locations[config.corpus_hash]
    found = _facts(location)
    if found.hash != config.corpus_hash:
        raise AblateError(
            f"the images {location} have changed since the study was planned: run the study again"
        )
    return of(found)


def of(found: ImageSet) -> Images:
    """Return the images of a set."""
    folder = _built(found.location)
    rows, held_out = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("rows", "split"))
    parts = [rows[held_out == which] for which in (False, True)]
    train, held_out = (np.arange(len(part) + 1, dtype=np.int64) * part.shape[1] for part in parts)
    return Images(parts[0].ravel(), parts[1].ravel(), train, held_out, len(found.names))


def _facts(location: str) -> ImageSet:
    folder = _built(location)
    with cache.usable():
        stored = json.loads((folder / "facts.json").read_text())
    return ImageSet(**stored | {"location": location, "names": tuple(stored["names"])})


def _built(location: str) -> Path:
    """Return the folder of the cache with the bytes of a set."""
    with sources.readable(f"corpus {location}"):
        stamps = [[str(path), *_stamp(path)] for path in _files(location)]
        key = hashlib.sha256(json.dumps([_FORMAT, location, stamps]).encode()).hexdigest()
        return cache.built("images", key, lambda folder: _make(folder, location))


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _files(location: str) -> list[Path]:
    """Return the files of a set."""
    if location.startswith(_AT):
        return [SHIPPED / f"{location.removeprefix(_AT)}.csv.xz"]
    path = Path(location)
    if path.is_file():
        return [path]
    files = [file for folder in _folders(path) for file in _images_in(folder)]
    if files:
        return files
    flat = f"; its {n} images are in no such folder" if (n := len(_images_in(path))) else ""
    raise AblateError(
        f"corpus {location:.200}: a folder without images: give it a folder of image files"
        f" ({', '.join(SUFFIXES)}) for each class{flat}"
    )


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and one.name[0] != ".")


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and one.name[0] != "."
    )


def _make(folder: Path, location: str) -> None:
    """Write the bytes of a set, and what is known of it, into a folder of the cache.

    Raises:
        AblateError: See `find`.
    """
    pixels, classes, names = _read(location)
    where = f"corpus {location.removeprefix(_AT):.200}"
    if len(names) < 2:
        raise AblateError(
            f"{where}: all images are of one class, {names[0]!r:.40}; two classes or more are"
            " needed"
        )
    if len(names) > 256**LABEL_BYTES:
        raise AblateError(f"{where}: {len(names):,} classes, more than {256**LABEL_BYTES:,}")
    counts = np.bincount(classes, minlength=len(names))
    if counts.min() < 2:
        raise AblateError(
            f"{where}: class {names[int(counts.argmin())]!r:.40} has {counts.min()} image; each"
            " needs one to train on and one to hold out"
        )
    flat = pixels.reshape(len(pixels), -1)
    labels = np.stack([classes % 256, classes // 256], 1).astype(np.uint8)
    rows = np.concatenate([flat, labels], 1)
    held_out = _held_out(flat, classes)
    if not all(
        np.bincount(classes[held_out == part], minlength=len(names)).all() for part in (0, 1)
    ):
        raise AblateError(f"{where}: a class has only copies of one image; each needs two or more")
    digest = hashlib.sha256(json.dumps([_FORMAT, TESTED, pixels.shape]).encode())
    digest.update(rows.tobytes())
    height, width, channels = pixels.shape[1:]
    name = location.removeprefix(_AT)
    facts = {
        "name": Path(name).stem if Path(location).is_file() else Path(name).name,
        "hash": digest.hexdigest(),
        "height": height,
        "width": width,
        "channels": channels,
        "names": names,
        "n_train": int((~held_out).sum()),
        "n_held_out": int(held_out.sum()),
    }
    np.save(folder / "rows.npy", rows)
    np.save(folder / "split.npy", held_out)
    (folder / "facts.json").write_text(json.dumps(facts))


def _held_out(pixels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return which images are held out: one in `TESTED` of each class, [N] bool.

    They are those with the lowest SHA-256 of the pixels. Equal images are on one side.

    Args:
        pixels: [N, P] uint8.
        classes: [N] int.
    """
    digests = np.array([hashlib.sha256(image.tobytes()).hexdigest() for image in pixels])
    chosen: set[str] = set()
    for number in range(int(classes.max()) + 1):
        different = np.unique(digests[classes == number])
        chosen.update(different[: max(len(different) > 1, len(different) // TESTED)].tolist())
    return np.array([digest in chosen for digest in digests])


def _read(location: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return pixels [N, H, W, channels] uint8, classes [N] int64, and their names."""
    if location.startswith(_AT):
        return _digits()
    path = Path(location)
    return _of_folder(path) if path.is_dir() else _of_arrays(path)


def _digits() -> tuple[np.ndarray, np.ndarray, list[str]]:
    with lzma.open(SHIPPED / "digits.csv.xz", "rt") as file:
        table = np.loadtxt(file, np.int64, delimiter=",")
    levels = 16  # of grey
    pixels = np.round(table[:, :-1] * (255 / levels)).astype(np.uint8)
    return pixels.reshape(-1, 8, 8, 1), table[:, -1], [str(digit) for digit in range(10)]


def _of_arrays(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the images of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError, TypeError):
        raise AblateError(
            f"corpus {path!s:.200}: not an .npz file of arrays; images are an .npz file, or a"
            " folder with a folder of image files for each class"
        ) from None
    images, labels = (_array(path, found, names) for names in KEYS)
    if images.ndim not in (3, 4):
        raise AblateError(
            f"corpus {path!s:.200}: images have the shape {list(images.shape)}; expected"
            " [N, height, width] or [N, height, width, channels]"
        )
    if labels.ndim != 1 or len(labels) != len(images) or not len(images):
        raise AblateError(
            f"corpus {path!s:.200}: {len(images):,} images, and labels of the shape"
            f" {list(labels.shape)}; each image needs one label"
        )
    names, classes = np.unique(labels, return_inverse=True)
    pixels = _bytes(path, images)
    return pixels.reshape(*pixels.shape[:3], -1), classes.ravel(), [str(name) for name in names]


def _array(path: Path, found: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    for name in names:
        if name in found:
            return found[name]
    raise AblateError(
        f"corpus {path!s:.200}: no array {' or '.join(map(repr, names))}; it has"
        f" {', '.join(map(repr, found)) or 'none'}"
    )


def _bytes(path: Path, images: np.ndarray) -> np.ndarray:
    """Return images as bytes; other numbers than bytes are mapped from their range to 0 … 255."""
    if images.nbytes > MOST:
        raise AblateError(f"corpus {path!s:.200}: more than {MOST >> 30} GiB of images")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "biuf":
        raise AblateError(f"corpus {path!s:.200}: images of {images.dtype}, which are no numbers")
    values = images.astype(np.float64)
    if not np.isfinite(values).all():
        raise AblateError(f"corpus {path!s:.200}: a pixel is not a finite number")
    low, high = values.min(), values.max()
    scaled: np.ndarray = np.round((values - low) * (255 / (high - low or 1.0))).astype(np.uint8)
    return scaled


def _of_folder(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the images of a folder, grey where all of them are, else in colour."""
    named = {folder.name: files for folder in _folders(path) if (files := _images_in(folder))}
    opened = list(_opened(file for files in named.values() for file in files))
    mode = "L" if all(image.mode in ("1", "L") for _, image in opened) else "RGB"
    (first, one), *_ = opened
    for file, image in opened:
        if image.size != one.size:
            raise AblateError(
                f"corpus {path!s:.200}: images of unlike sizes: {first.relative_to(path)} has"
                f" {one.height} × {one.width} pixels, and {file.relative_to(path)}"
                f" {image.height} × {image.width}; make all of one size"
            )
    if len(opened) * one.width * one.height * len(mode) > MOST:
        raise AblateError(f"corpus {path!s:.200}: more than {MOST >> 30} GiB of images")
    pixels = np.stack([_decoded(file, image, mode) for file, image in opened])
    classes = np.repeat(np.arange(len(named)), [len(files) for files in named.values()])
    return pixels.reshape(*pixels.shape[:3], -1), classes, list(named)


def _opened(files: Iterator[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield files with what they hold, of which only size and mode are read yet."""
    from PIL import Image  # imported here: it takes time, and most studies have no images

    for file in files:
        try:
            with Image.open(file) as image:
                yield file, image
        except (OSError, Image.DecompressionBombError) as error:
            raise AblateError(f"{file!s:.200}: not an image that can be read: {error}") from None


def _decoded(file: Path, image: Any, mode: str) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as again:
            return np.asarray(again.convert(mode), np.uint8)
    except (OSError, Image.DecompressionBombError) as error:
        raise AblateError(f"{file!s:.200}: not an image that can be read: {error}") from None
