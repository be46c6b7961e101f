"""Sources of text: files (plain, .gz, .xz), Hugging Face data sets, nanoGPT's token files."""

from __future__ import annotations

import gzip
import lzma
import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ablate.errors import AblateError
from ablate.text import cache
from ablate.text.documents import Document, documents

SHIPPED = Path(__file__).parent / "shipped"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class TextFiles:
    """Files of text, in order, each holding one document or several between form feeds."""

    files: tuple[Path, ...]

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all files."""
        for path in self.files:
            with _mapped(path) as buffer:
                if buffer[:4096].count(b"\0"):
                    raise AblateError(
                        f"{path} holds NUL bytes, so it is not text; exclude it with a glob such as"
                        " '*.txt'"
                    )
                yield from documents(buffer)


@dataclass(frozen=True)
class DataSet:
    """A local Hugging Face data set: a folder of `save_to_disk`, Parquet, JSON, CSV or text.

    A row's column `text`, or its only column of text, is a document. Of several splits, `train` is
    read.
    """

    folder: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files below the folder."""
        return tuple(sorted(path for path in self.folder.rglob("*") if path.is_file()))

    def documents(self) -> Iterator[Document]:
        """Yield the documents, one a row."""
        try:
            import datasets
        except ImportError:
            raise AblateError(
                f"corpus 'hf:{self.folder}' needs the package datasets: pip install datasets"
            ) from None
        saved = (self.folder / "state.json").exists() or (
            self.folder / "dataset_dict.json"
        ).exists()
        datasets.disable_progress_bars()
        try:
            if saved:
                rows = datasets.load_from_disk(str(self.folder))
            else:
                rows = datasets.load_dataset(
                    str(self.folder), cache_dir=str(cache.folder() / "datasets")
                )
        except Exception as error:  # the library raises whatever its file readers raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise AblateError(
                f"corpus 'hf:{self.folder}' cannot be read as a data set: {first}"
            ) from error
        if isinstance(rows, dict):
            if "train" not in rows:
                raise AblateError(
                    f"corpus 'hf:{self.folder}' has no split 'train'; it has {', '.join(rows)}"
                )
            rows = rows["train"]
        column = self._column(rows.features)
        for batch in rows.select_columns([column]).iter(batch_size=1000):
            for text in batch[column]:
                yield from documents((text or "").encode())

    def _column(self, features: dict[str, object]) -> str:
        texts = [
            name
            for name, kind in features.items()
            if getattr(kind, "dtype", "") in ("string", "large_string")
        ]
        if "text" in texts or len(texts) == 1:
            return "text" if "text" in texts else texts[0]
        raise AblateError(
            f"corpus 'hf:{self.folder}' has no column 'text' and not exactly one text column;"
            f" columns: {', '.join(features)}"
        )


@dataclass(frozen=True)
class TokenFiles:
    """A folder with `train.bin` and `val.bin`: 16-bit tokens, as nanoGPT writes them."""

    folder: Path

    @property
    def files(self) -> tuple[Path, Path]:
        """Return the training file and the held-out file."""
        return self.folder / "train.bin", self.folder / "val.bin"

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return training and held-out tokens, mapped from disk."""
        train, held_out = (_tokens(path) for path in self.files)
        return train, held_out


Source = TextFiles | DataSet | TokenFiles


def is_glob(spec: str) -> bool:
    """Return whether a corpus is named by a pattern."""
    return bool(set(spec) & set("*?["))


def absolute(spec: str, root: Path) -> Path:
    """Return the absolute path or pattern that a study names relative to `root`.

    Raises:
        AblateError: it is not a path.
    """
    try:
        if "\0" in spec:
            raise ValueError("it holds a NUL character")
        return (
            root.absolute() / Path(spec).expanduser()
            if is_glob(spec)
            else (root.absolute() / Path(spec).expanduser()).resolve()
        )
    # a name too long, a circle of links, the home of an unknown user
    except (OSError, RuntimeError, ValueError) as error:
        raise AblateError(f"{spec[:80]!r} is not a valid path: {str(error)[:200]}") from None


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn the system's refusal to find or read what a study names into an `AblateError`."""
    try:
        yield
    except OSError as error:
        raise AblateError(
            f"{what:.200} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None


def at(location: str) -> Source:
    """Return the source at a location: package:NAME, hf:FOLDER, a file, a folder or a glob."""
    kind, _, rest = location.partition(":")
    if kind == "package":
        return TextFiles((SHIPPED / f"{rest}.txt.xz",))
    path = Path(rest if kind == "hf" else location)
    if (
        kind == "hf"
        or (path / "dataset_dict.json").exists()
        or (path / "dataset_info.json").exists()
    ):
        if not path.is_dir():
            raise AblateError(f"corpus {location!r}: there is no folder {path}")
        return DataSet(path)
    if any((path / name).exists() for name in ("train.bin", "val.bin")):
        return TokenFiles(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if not _is_hidden(file, path)]
    elif path.exists():
        files = [path]
    else:
        files = _matching(location)
    # no device, pipe, socket or dangling link
    regular = tuple(sorted(file for file in files if file.is_file()))
    if not regular:
        missing = (
            "the folder is empty"
            if path.is_dir()
            else "it is not a regular file"
            if path.exists()
            else "there is no such file"
        )
        raise AblateError(f"corpus {location!r:.200}: {missing}")
    return TextFiles(regular)


def _matching(pattern: str) -> list[Path]:
    """Return the files that match; `**` follows no links to folders, which may be circular."""
    parts = Path(pattern).parts
    first = next((index for index, part in enumerate(parts) if is_glob(part)), len(parts))
    folder, rest = Path(*parts[:first]), (*parts[first:], *(["*"] if parts[-1] == "**" else []))
    if not rest:
        return []
    try:
        return [file for file in folder.glob("/".join(rest)) if not _is_hidden(file, folder)]
    except ValueError as error:
        raise AblateError(f"corpus {pattern!r:.200}: {str(error).lower()}") from None


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


@contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Map the bytes of a file; a compressed one is first unpacked into an unnamed cache file."""
    if not path.stat().st_size:
        yield b""
        return
    with path.open("rb") as file:
        if path.suffix not in (".gz", ".xz"):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                yield buffer
            return
        with cache.usable():
            cache.folder().mkdir(parents=True, exist_ok=True)
            into = tempfile.TemporaryFile(dir=cache.folder())  # noqa: SIM115 (what its user raises is not the cache's)
        with into as unpacked:
            if not _unpack(path, file, unpacked):
                yield b""
                return
            with mmap.mmap(unpacked.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                yield buffer


def _unpack(path: Path, file: BinaryIO, into: BinaryIO) -> int:
    """Unpack a file and return the number of bytes."""
    size = 0
    try:
        with gzip.open(file) if path.suffix == ".gz" else lzma.open(file) as packed:
            while chunk := packed.read(_CHUNK):
                with cache.usable():
                    size += into.write(chunk)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise AblateError(f"{path} cannot be unpacked: {str(error).lower()}") from None
    into.flush()
    return size


def _tokens(path: Path) -> np.ndarray:
    if not path.exists():
        raise AblateError(
            f"corpus {str(path.parent)!r}: {path.name} is missing, but the other file is there"
        )
    size = path.stat().st_size
    if not size or size % 2:
        raise AblateError(f"{path} has {size} bytes: expected one or more 16-bit tokens")
    return np.memmap(path, dtype="<u2", mode="r")
