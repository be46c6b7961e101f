"""Numbers that a training script reports: lines of its output, and the files that it writes."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ablate.formats import LARGEST, delimiter_of

# names of the step in a record, in any case; the first that is there counts
STEPS = ("step", "global_step", "_step", "iter", "iteration", "epoch")
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_TRIES = 50  # braces of a line at which an object may begin
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Reading(NamedTuple):
    """Numbers that belong to one step."""

    step: int
    values: dict[str, float]


class Records:
    """Gives the records of a stream or file the steps that they belong to.

    A record without a step belongs to the last step before it. As long as no record has named a
    step, records are counted: 1, 2, 3, … If a step is not a whole number, such as 0.25 epochs, it
    and all that have its name after it are counted too, from the last step on; what they say stays
    a number of the record.

    Attributes:
        back: The first step of a series that is below the one before it, as that and this one; None
            if there is none.
    """

    def __init__(self) -> None:
        self.back: tuple[int, int] | None = None
        self._step: int | None = None  # the last one
        self._axis = ""  # the name of the step that the last record had
        self._fraction: float | None = None  # that step, where it is counted
        self._counted: set[str] = set()  # names of steps that are counted
        self._placed: dict[str, int] = {}  # series → its last step
        self._named: dict[str, int] = {}  # series → its last step that a record named
        self._forms: set[frozenset[str]] = set()  # names of the records that had text before them

    def place(self, record: Mapping[str, Any], text: str = "") -> Reading | None:
        """Return the numbers of a record and their step; None for a record without numbers.

        Args:
            record: The record.
            text: What stands before it in its line. The first such record of some names may be a
                line on settings, and its step is not that of what follows.
        """
        numbers = {
            name.lower() if name.lower() in STEPS else name: number
            for name, one in record.items()
            if (number := _number(one)) is not None
        }
        axis = next((name for name in STEPS if abs(numbers.get(name, math.inf)) < LARGEST), "")
        form = frozenset(numbers)
        apart = bool(text) and form not in self._forms
        self._forms |= {form} if text else set()
        if axis in self._counted or (axis and not numbers[axis].is_integer()):
            self._counted.add(axis)
            step = self._next(axis, numbers)
            self._step, self._axis, self._fraction = step, axis, numbers[axis]
        elif axis:
            step = int(numbers.pop(axis))
            if not apart:
                self._step, self._axis, self._fraction = step, axis, None
            return self.at(step, numbers) if numbers else None
        else:
            step = 1 + self._top(numbers) if self._step is None else self._step
        return self._read(step, numbers) if numbers else None

    def at(self, step: int, numbers: dict[str, float]) -> Reading:
        """Return numbers of a step that stands apart from them."""
        last = max((self._named.get(name, step) for name in numbers), default=step)
        if step < last and self.back is None:
            self.back = last, step
        self._named |= dict.fromkeys(numbers, step)
        return self._read(step, numbers)

    def _read(self, step: int, numbers: dict[str, float]) -> Reading:
        self._placed |= dict.fromkeys(numbers, step)
        return Reading(step, numbers)

    def _next(self, axis: str, numbers: Mapping[str, float]) -> int:
        """Return the step of a record whose step is counted.

        That is the last one if it has none of the numbers yet, and the record names it again or by
        a name of less weight, as an evaluation that names epochs alone.
        """
        if self._step is not None:
            again = (self._axis, self._fraction) == (axis, numbers[axis])
            lighter = STEPS.index(axis) > STEPS.index(self._axis)
            if (again or lighter) and self._top(numbers.keys() - {axis}) < self._step:
                return self._step
        return min(1 + max(self._top(self._placed), self._step or 0), LARGEST)

    def _top(self, names: Iterable[str]) -> int:
        """Return the last step that any of the series has; 0 if they have none."""
        return max((self._placed.get(name, 0) for name in names), default=0)


def _number(value: object) -> float | None:
    """A number, or text of one, such as a cell of a CSV file; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


class Lines:
    """Reads lines of output: JSON objects that end them, and text that has one of the patterns.

    What stands before an object, as in `INFO:root: {"loss": 1}`, is text; codes of colours are
    left out.

    Attributes:
        matched: Whether a line had one of the patterns.
    """

    def __init__(self, patterns: Sequence[str] = (), records: Records | None = None):
        self.matched = False
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._records = records or Records()

    @property
    def back(self) -> tuple[int, int] | None:
        """See `Records.back`."""
        return self._records.back

    def read(self, line: str) -> Reading | None:
        """Return what a line reports, None for one that reports nothing."""
        line = _COLOURS.sub("", line)
        text, record = _object(line)
        if record is not None and not text:
            return self._records.place(record)
        said: dict[str, Any] = {}
        for pattern in self._patterns:
            if found := pattern.search(line):
                self.matched = True
                for name in found.groupdict():
                    if (one := _whole(found, name)) is not None:
                        said.setdefault(name, one)
        whole = (record or {}) | said
        return self._records.place(whole, "" if said else text) if whole else None


def _object(line: str) -> tuple[str, dict[str, Any] | None]:
    """Return the JSON object that ends a line, without texts, and what stands before it."""
    line = line.strip()
    if line.endswith("}"):
        for at in [found.start() for found in re.finditer("{", line)][:_TRIES]:
            try:
                record = json.loads(line[at:], parse_int=float)  # 10**400 is infinite
            except (ValueError, RecursionError):
                continue
            return line[:at].strip(), _without_text(record)
    return line, None


def _whole(found: re.Match[str], name: str) -> str | None:
    """What a group captured. Where it ends within a number, such as 2.49e-05, all of the number.

    A pattern that needs the rest, such as `(?P<epoch>\\d+)\\.\\d+`, divides a number on purpose.
    """
    line, (start, end) = found.string, found.span(name)
    number = _NUMBER.match(line, start) if end > start else None
    if number and number.end() > end and found.re.search(line[:end] + line[number.end() :]):
        return number[0]
    captured = (found[name] or "").rstrip(",;")  # \S+ takes a comma behind the number
    if _THOUSANDS.fullmatch(captured):
        # \S+ may find a decimal comma in 1,234
        wanted = name in STEPS or re.search(rf"\(\?P<{name}>[^)]*,", found.re.pattern)
        if wanted or "." in captured or captured.count(",") > 1:
            return captured.replace(",", "")
    return captured or None


def _without_text(record: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object without its texts: a version "2" is no measurement."""
    return {name: value for name, value in record.items() if not isinstance(value, str)}


class Files:
    """Reads what files of a folder report, again and again while they grow.

    Args:
        folder: The folder.
        globs: Files in it, such as "metrics.csv" or "**/events.out.tfevents.*".

    Attributes:
        back: `Records.back` of the first file that has any.
    """

    def __init__(self, folder: Path, globs: Sequence[str]):
        self.back: tuple[int, int] | None = None
        self._folder, self._globs = folder, globs
        self._seen: dict[Path, tuple[int, int]] = {}  # time and size when it was read last

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield what files that have changed report, all of it.

        Args:
            ended: Whether they are whole: a last line without a line feed counts too.
        """
        for _, readings in self.changed(ended=ended):
            yield from readings

    def changed(self, *, ended: bool = False) -> Iterator[tuple[Path, list[Reading]]]:
        """Yield files that have changed, and all that they report; see `read`."""
        for path in self._files():
            state = path.stat()
            now = (state.st_mtime_ns, state.st_size)
            if self._seen.get(path) != now or (ended and _unfinished(path)):
                self._seen[path] = now
                records = Records()
                yield path, list(read(path, ended=ended, records=records))
                self.back = self.back or records.back

    def _files(self) -> list[Path]:
        found = {path for glob in self._globs for path in self._folder.glob(glob) if path.is_file()}
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def _unfinished(path: Path) -> bool:
    """Return whether a file does not end with a line feed."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() not in (b"", b"\n")


def read(path: Path, *, ended: bool = False, records: Records | None = None) -> Iterator[Reading]:
    """Yield what a file reports, by its name: TensorBoard's events, CSV, JSON, else lines of JSON.

    Args:
        path: The file.
        ended: Whether it is whole. A file that is being written may end in the middle of a line,
            which is left out.
        records: What gives its records their steps, for a caller who wants to know more of them.
    """
    records = records or Records()
    if "tfevents" in path.name:
        yield from _events(path.read_bytes(), records)
        return
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows = (text if ended else text[: text.rfind("\n") + 1]).splitlines()
    lines = Lines(records=records)
    if path.suffix in (".csv", ".tsv"):
        placed = (records.place(row) for row in _table(rows, path.suffix == ".tsv"))
    elif path.suffix == ".json":
        placed = (records.place(_without_text(one)) for one in _history(text))
    else:
        placed = (lines.read(line) for line in rows)
    yield from (one for one in placed if one is not None)


def _table(lines: Sequence[str], tabs: bool) -> Iterator[dict[str, str]]:
    """Yield the rows of a table, whose columns are separated as `ablate import` reads them.

    Where these are separated by semicolons, a comma is the decimal mark.
    """
    delimiter = "\t" if tabs else delimiter_of([one for one in lines[:50] if one.strip()]) or ","
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != "\t")
    names: list[str] = []
    for row in reader:
        if delimiter == ";":
            row = [re.sub(r"^([+-]?\d*),(\d+)$", r"\1.\2", cell.strip()) for cell in row]
        if names:
            yield dict(zip(names, row, strict=False))
        else:
            names = [name.strip() for name in row]


def hyper_parameters(path: Path) -> dict[str, str]:
    """Return what a file of TensorBoard's events says of hyper-parameters, as text.

    They stand in the first message of the plug-in "hparams" (tensorboard/plugins/hparams).
    """
    found: dict[str, str] = {}
    for event in _records(path.read_bytes()):
        for summary in _parts(event, 5):
            for value in _parts(summary, 1):
                for plugin in (p for m in _parts(value, 9) for p in _parts(m, 1)):
                    for start in (s for c in _parts(plugin, 2) for s in _parts(c, 3)):
                        found |= dict(_named_value(entry) for entry in _parts(start, 1))
    return found


def _named_value(entry: bytes) -> tuple[str, str]:
    """The key of an entry of a map, and the google.protobuf.Value there, as text."""
    parts = dict(_message(entry))
    key, held = parts.get(1, b""), parts.get(2, b"")
    ((kind, value),) = list(_message(held if isinstance(held, bytes) else b""))[:1] or ((1, 0),)
    name = key.decode(errors="replace") if isinstance(key, bytes) else ""
    if kind == 4:
        return name, "true" if value else "false"
    if isinstance(value, bytes):
        return name, value.decode(errors="replace")
    return name, "" if kind != 2 else f"{value:.17g}"


def _parts(message: bytes, field: int) -> Iterator[bytes]:
    """Yield the messages and texts in one field of a message."""
    return (value for at, value in _message(message) if at == field and isinstance(value, bytes))


def _history(text: str) -> list[dict[str, Any]]:
    """The records of a JSON file: a list, `log_history` of Hugging Face's state, or one object."""
    try:
        content = json.loads(text, parse_int=float)
    except ValueError:
        return []  # half written
    if isinstance(content, dict):
        content = content.get("log_history", [content])
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


# -- TensorBoard: records of length, checksum, data (a protocol buffer), checksum ------------------

_LENGTH = struct.Struct("<Q")


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a file of TensorBoard's events."""
    at = 0
    while at + 12 <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        yield data[at + 12 : end]
        at = end + 4


def _events(data: bytes, records: Records) -> Iterator[Reading]:
    """Yield the scalars of a file of TensorBoard's events (tensorflow/core/util/event.proto)."""
    for record in _records(data):
        step = 0
        values: dict[str, float] = {}
        for field, value in _message(record):
            if field == 2 and isinstance(value, int):  # int64: negative ones come last
                step = (value + (1 << 63)) % (1 << 64) - (1 << 63)
            elif field == 5 and isinstance(value, bytes):
                values |= dict(_scalars(value))
        if values:
            yield records.at(step, values)


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _message(summary):
        if field != 1 or not isinstance(value, bytes):
            continue
        parts = dict(_message(value))
        tag, number = parts.get(1), parts.get(2)  # simple_value
        if not isinstance(number, float) and isinstance(parts.get(8), bytes):
            number = _of_tensor(parts[8])  # type: ignore[arg-type]  # bytes, see above
        if isinstance(tag, bytes) and isinstance(number, float):
            yield tag.decode(errors="replace"), number


def _of_tensor(tensor: bytes) -> float | None:
    """The number of a tensor of one float or double; None for any other tensor."""
    parts = dict(_message(tensor))
    kind = parts.get(1)
    for field in (4, 5, 6):  # tensor_content, float_val, double_val
        value = parts.get(field)
        if isinstance(value, float):
            return value
        if isinstance(value, bytes) and (kind, len(value)) in ((1, 4), (2, 8)):
            return float(struct.unpack("<f" if kind == 1 else "<d", value)[0])
    return None


def _message(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the fields of a protocol buffer and their values, as its wire format has them."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value
        elif wire == 1:
            yield field, float(struct.unpack_from("<d", data, at)[0])
            at += 8
        elif wire == 5:
            yield field, float(struct.unpack_from("<f", data, at)[0])
            at += 4
        elif wire == 2:
            size, at = _varint(data, at)
            yield field, data[at : at + size]
            at += size
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, at


class Curves:
    """The numbers of a run by series and step, as far as they are read.

    Attributes:
        points: Series → step → value.
        last: The last step that any series has; 0 before the first.
    """

    def __init__(self) -> None:
        self.points: dict[str, dict[int, float]] = {}
        self.last = 0
        self._new: dict[str, dict[int, float]] = {}
        self._lost: dict[str, set[int]] = {}  # series → steps with a value that is not finite
        # series → source → its largest step, when it was last heard of, and its last value
        self._ends: dict[str, dict[object, tuple[int, int, float]]] = {}
        self._heard = 0
        self._ranges: dict[str, tuple[float, float]] = {}  # series → lowest, highest finite value

    def add(self, reading: Reading, source: object = None) -> None:
        """Add numbers; a step that a series has already gets the new one.

        Args:
            reading: The numbers.
            source: The stream or file that they come from.
        """
        for name, value in reading.values.items():
            ends, self._heard = self._ends.setdefault(name, {}), self._heard + 1
            largest = max(reading.step, ends.get(source, (reading.step,))[0])
            ends[source] = largest, self._heard, value
            if math.isfinite(value):
                low, high = self._ranges.get(name, (value, value))
                self._ranges[name] = min(low, value), max(high, value)
            of = self.points.setdefault(name, {})
            old = of.get(reading.step)
            if old is None or not (old == value or (math.isnan(old) and math.isnan(value))):
                of[reading.step] = value
                self._new.setdefault(name, {})[reading.step] = value
                lost = self._lost.setdefault(name, set())
                (lost.discard if math.isfinite(value) else lost.add)(reading.step)
        self.last = max(self.last, reading.step)

    def end(self, name: str) -> float:
        """Return the last value of a series: of the newest source that has its largest step."""
        return max(self._ends[name].values())[2]

    def extent(self, name: str) -> tuple[float, float] | None:
        """Return the lowest and the highest finite value of a series, if it has any."""
        return self._ranges.get(name)

    def first_lost(self, name: str) -> int | None:
        """Return the first step at which a series is not finite, if there is one."""
        return min(self._lost.get(name, ()), default=None)

    def take(self) -> Iterator[tuple[list[int], dict[str, list[float]]]]:
        """Yield what was added since the last call: steps, and series with a value at each."""
        groups: dict[tuple[int, ...], dict[str, list[float]]] = {}
        for name, of in self._new.items():
            steps = tuple(sorted(of))
            groups.setdefault(steps, {})[name] = [of[step] for step in steps]
        self._new = {}
        for steps, series in groups.items():
            yield list(steps), series
