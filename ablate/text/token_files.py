"""Token files: raw integers as nanoGPT writes them, llm.c's and Megatron's headers, numpy's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import AblateError
from ablate.text import files
from ablate.text.options import Reading

# llm.c: 256 int32, of which the first is the kind and the third the number of tokens
# (https://github.com/karpathy/llm.c, dev/data/data_common.py)
_LLM_C = {20240520: "<u2", 20240801: "<u4"}
_LLM_C_HEADER = 1024
# Megatron's .idx: magic, version, type, numbers of sequences and documents; lengths and places of
# sequences, the first sequence of each document
# (https://github.com/NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py)
_MEGATRON = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES = {1: "<u1", 4: "<i4", 5: "<i8", 8: "<u2"}
_SIDECARS = ("meta.json", "metadata.json")
_SAMPLE = 1 << 20  # integers from which a width is found
_HIGH = 64  # the upper half of a 32-bit token is less: vocabularies have fewer than 4 million
LARGEST = 1 << 24  # tokens are less: a larger number is negative, or of another width
# Bytes at even and at odd places of 8-bit tokens have one distribution, which is not uniform; those
# of 16-bit tokens have two.
_DISTANCE, _FREQUENT, _ENOUGH = 0.05, 4 / 256, 4000
_ALIKE = 8  # ratio of different lower halves to different upper ones, from which tokens are 32 bits


@dataclass(frozen=True)
class Part:
    """Tokens of one file, mapped; and where its documents end, if the file says."""

    tokens: np.ndarray
    ends: np.ndarray | None = None


def read(paths: Sequence[Path], reading: Reading) -> list[Part]:
    """Return the tokens of files, all of one width where they have no header.

    Raises:
        AblateError: a file is empty, torn, or holds no tokens.
    """
    for path in paths:
        if path.suffix not in (".bin", ".npy") and files.suffix(path) in (".bin", ".npy"):
            raise AblateError(f"{path} is packed: token files are mapped from disk; unpack it")
    raw = [path for path in paths if not _has_header(path)]
    dtype = ""
    if raw:
        dtype = _named(raw, reading) or _found(max(raw, key=lambda path: path.stat().st_size))
    return [_open(path, dtype) for path in paths]


def check_widths(paths: Sequence[Path], reading: Reading) -> None:
    """Check that raw files have one width; reads a sample of each.

    Raises:
        AblateError: the numbers of two files, or what stands beside them, say two widths.
    """
    if reading.dtype != "auto":
        return
    raw = [path for path in paths if not _has_header(path)]
    # the width of a short file cannot be found
    long = [path for path in raw if path.stat().st_size >= _ENOUGH]
    for widths in (
        {dtype: path for path in raw if (dtype := _named([path], reading))},
        {_found(path): path for path in long},
    ):
        if len(widths) > 1:
            found = " and ".join(
                f"{path} {8 * np.dtype(dtype).itemsize}" for dtype, path in widths.items()
            )
            raise AblateError(
                f"raw token files have different widths, in bits: {found}; convert them to one"
                " width, or give [data] dtype if they have one"
            )


def _has_header(path: Path) -> bool:
    return path.suffix == ".npy" or path.with_suffix(".idx").is_file() or _llm_c(path) in _LLM_C


def _llm_c(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(4), "little")


def _named(paths: Sequence[Path], reading: Reading) -> str:
    """Return the type that the study or a file beside the tokens names."""
    if reading.dtype != "auto":
        return np.dtype(reading.dtype).newbyteorder("<").str
    for path in paths:
        for beside in (path.with_suffix(".json"), *(path.parent / name for name in _SIDECARS)):
            if not beside.is_file():
                continue
            try:
                name = json.loads(beside.read_text(encoding="utf-8")).get("dtype")
                dtype = np.dtype(name) if name else None
            except (ValueError, TypeError, AttributeError):
                continue
            if dtype is not None:
                if dtype.kind not in "ui":
                    raise AblateError(f"{beside}: dtype = {name!r:.80}: tokens are integers")
                return dtype.newbyteorder("<").str
    return ""


def _found(path: Path) -> str:
    """Return the type of raw tokens: 16 bits, unless the numbers say another.

    The upper halves of 32-bit tokens are 0, or a few numbers in vocabularies above 65,536; in a
    file of 16-bit tokens both halves of a pair have the same distribution.
    """
    size = path.stat().st_size
    if _is_bytes(path, size):
        return "<u1"
    if size % 4 or not size:
        return "<u2"
    halves = np.memmap(path, "<u2", "r")
    pairs = halves.reshape(-1, 2)
    pairs = pairs[:: len(pairs) // _SAMPLE | 1]  # odd: both halves of 64-bit tokens
    low, high = (np.unique(pairs[:, column]) for column in (0, 1))
    if not high.any():
        if size % 8 == 0 and not pairs[1::2].any() and low.any():
            return "<i8"
        return "<u4" if low.any() else "<u2"
    return "<u4" if high.max() < _HIGH and _ALIKE * len(high) <= len(low) else "<u2"


def _is_bytes(path: Path, size: int) -> bool:
    """Return whether raw tokens have 8 bits."""
    if size < _ENOUGH:
        return False
    pairs = np.memmap(path, "u1", "r")[: size // 2 * 2].reshape(-1, 2)
    pairs = pairs[:: max(1, len(pairs) // _SAMPLE)]
    shares = [np.bincount(pairs[:, column], minlength=256) / len(pairs) for column in (0, 1)]
    distance = np.abs(shares[0] - shares[1]).sum() / 2
    return bool(distance < _DISTANCE and shares[0].max() > _FREQUENT)


def _open(path: Path, dtype: str) -> Part:
    size = path.stat().st_size
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise AblateError(f"{path} is not an array of numpy: {error!s:.120}") from None
        return Part(_checked(path, array.reshape(-1) if array.ndim == 2 else array))
    if path.with_suffix(".idx").is_file():
        return _megatron(path)
    if (kind := _llm_c(path) if size >= _LLM_C_HEADER else 0) in _LLM_C:
        stated = int(np.fromfile(path, "<i4", 3)[2])
        wide = np.dtype(_LLM_C[kind])
        if size != _LLM_C_HEADER + stated * wide.itemsize or not stated:
            raise AblateError(
                f"{path} has {size} bytes, but its header, which is llm.c's, states {stated} tokens"
                f" of {wide.itemsize * 8} bits"
            )
        return Part(_checked(path, np.memmap(path, wide, "r", _LLM_C_HEADER)))
    width = np.dtype(dtype).itemsize
    if not size or size % width:
        raise AblateError(
            f"{path} has {size} bytes: expected one or more {width * 8}-bit tokens; [data] dtype"
            " names another type"
        )
    return Part(_checked(path, np.memmap(path, dtype, "r")))


def _megatron(path: Path) -> Part:
    """Return the tokens of a Megatron data set, whose index says type and documents."""
    index = path.with_suffix(".idx")
    content = index.read_bytes()
    head = len(_MEGATRON) + 8 + 1 + 8 + 8
    code = content[len(_MEGATRON) + 8] if len(content) >= head else 0
    if not content.startswith(_MEGATRON) or code not in _MEGATRON_TYPES:
        raise AblateError(
            f"{index} is not an index of Megatron with tokens of 8, 16, 32 or 64 bits"
        )
    sequences, documents = (int(n) for n in np.frombuffer(content, "<u8", 2, head - 16))
    if len(content) < head + 12 * sequences + 8 * documents:
        raise AblateError(f"{index} is shorter than its header states")
    lengths = np.frombuffer(content, "<i4", sequences, head)
    firsts = np.frombuffer(content, "<i8", documents, head + 12 * sequences)
    dtype = np.dtype(_MEGATRON_TYPES[code])
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if path.stat().st_size != ends[-1] * dtype.itemsize or not ends[-1]:
        raise AblateError(
            f"{path} has {path.stat().st_size} bytes, but its index states {ends[-1]} tokens of"
            f" {dtype.itemsize * 8} bits"
        )
    of_documents = np.unique(ends[firsts[(firsts > 0) & (firsts <= sequences)]])
    if not len(of_documents) or of_documents[-1] != ends[-1]:
        of_documents = np.append(of_documents, ends[-1])
    return Part(_checked(path, np.memmap(path, dtype, "r")), of_documents)


def _checked(path: Path, tokens: np.ndarray) -> np.ndarray:
    """Return tokens as unsigned integers.

    Raises:
        AblateError: they are no row of integers.
    """
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui" or not tokens.size:
        raise AblateError(
            f"{path} holds no row of whole numbers, but {tokens.dtype} of shape"
            f" {list(tokens.shape)}"
        )
    little = (
        tokens if tokens.dtype.byteorder in "<|=" else tokens.astype(tokens.dtype.newbyteorder("<"))
    )
    return little.view(f"<u{little.itemsize}")
