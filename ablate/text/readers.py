"""Formats of text: one row each, with what a document is in it and how it is read."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import AblateError
from ablate.text import files
from ablate.text.documents import SEPARATOR, Document, documents
from ablate.text.files import Mended
from ablate.text.options import BYTES, Reading

Rows = Iterator[str]

_TEXT_NAMES = ("text", "content")  # keys and columns that hold the text, if a study names none
_AT_ONCE = 1000  # rows of a table that are read at once
_KEYS_OF = 1000  # rows of JSON in which the key of the text is looked for
# rows, and characters, from which it is found whether rows are lines
_LOOKED_AT, _CHARACTERS = 10_000, 1 << 21
_BLANK = 0.01  # share of blank rows from which they are a sign that rows are lines
# a heading of the first level in WikiText: " = Title = "
_HEADING = re.compile(r"\s?= [^=].*[^=\s] =\s*")


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        name: As `[data] format` has it.
        title: For readers.
        suffixes: Ends of names, without that of a packer.
        document: What a document is.
        rows: Reads the texts of a file's rows; None for plain text and tokens.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    document: str
    rows: Callable[[Path, Reading, Mended], Rows] | None = None


def _jsonl(path: Path, reading: Reading, mended: Mended) -> Rows:
    with files.text(path, _parsable(reading), mended) as buffer:
        rows = json_rows(path, buffer)
        yield from _filled(_texts(path, rows, reading.field, mended), reading, mended)


def json_rows(path: Path, buffer: files.Buffer) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a JSON array or of lines of JSON, with their numbers."""
    if buffer[:4096].lstrip()[:1] == b"[":
        try:
            array = json.loads(buffer[:])
        except ValueError as error:
            raise AblateError(f"{path} is not a JSON array: {error}") from None
        yield from enumerate(array, 1)
        return
    for number, line in enumerate(files.lines(buffer), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise AblateError(
                    f"{path}, line {number}: not a line of JSON: {str(error)[:100]}; for text"
                    " as it stands give [data] format = 'text'"
                ) from None
            yield number, row


def _csv(path: Path, reading: Reading, mended: Mended, tabs: bool = False) -> Rows:
    with files.text(path, _parsable(reading), mended) as buffer:
        rows = csv_rows(path, lambda: (line.decode() for line in files.lines(buffer)), tabs)
        _, names = next(rows, (0, []))
        if not names:
            return
        field = reading.field or _only_text(path, names, names)
        if names.count(field) != 1:
            fault = "there is no" if field not in names else "several columns are named"
            raise AblateError(
                f"{path}, line 1: {fault} {field!r}; its columns: {', '.join(names):.200}"
            )
        mended.fields[field] = None
        column = names.index(field)
        for _, row in rows:
            yield row[column]


def _tsv(path: Path, reading: Reading, mended: Mended) -> Rows:
    return _csv(path, reading, mended, tabs=True)


def _parquet(path: Path, reading: Reading, mended: Mended) -> Rows:
    from pyarrow import parquet

    with files.opened(path) as file, _by_library(path, "Parquet"):
        table = parquet.ParquetFile(file)
        column = _text_column(path, table.schema_arrow, reading.field)
        mended.fields[column] = None
        batches = table.iter_batches(columns=[column], batch_size=_AT_ONCE)
        yield from _of_arrays(path, (batch.column(0) for batch in batches), reading, mended)


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file, with their numbers."""
    from pyarrow import parquet

    with files.opened(path) as file, _by_library(path, "Parquet"):
        batches = parquet.ParquetFile(file).iter_batches(batch_size=_AT_ONCE)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


def _arrow(path: Path, reading: Reading, mended: Mended) -> Rows:
    from pyarrow import ipc

    with files.opened(path) as file, _by_library(path, "Arrow"):
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            table = ipc.open_file(file)
            batches = (table.get_batch(number) for number in range(table.num_record_batches))
        else:
            table = batches = ipc.open_stream(file)
        column = _text_column(path, table.schema, reading.field)
        mended.fields[column] = None
        parts = (
            batch.column(column).slice(start, _AT_ONCE)
            for batch in batches
            for start in range(0, batch.num_rows, _AT_ONCE)
        )
        yield from _of_arrays(path, parts, reading, mended)


FORMATS = {
    one.name: one
    for one in (
        Format(
            "text",
            "text",
            (),
            "the text between two form feeds (U+000C), or the whole file if it has none",
        ),
        Format(
            "jsonl",
            "JSON lines",
            (".jsonl", ".ndjson", ".json"),
            "a line, or an entry of an array",
            _jsonl,
        ),
        Format("csv", "CSV", (".csv",), "a row; the first line names the columns", _csv),
        Format("tsv", "TSV", (".tsv",), "a row; the first line names the columns", _tsv),
        Format("parquet", "Parquet", (".parquet", ".pq"), "a row", _parquet),
        Format("arrow", "Arrow, Hugging Face's `save_to_disk`", (".arrow",), "a row", _arrow),
        Format(
            "tokens",
            "token files of nanoGPT, llm.c and Megatron; numpy arrays",
            (".bin", ".npy"),
            "the whole part; with an index of Megatron, each document of the index",
        ),
    )
}
TABLES = {name for name, one in FORMATS.items() if one.rows}
_BY_SUFFIX = {suffix: one for one in FORMATS.values() for suffix in one.suffixes}


def csv_rows(
    path: Path, lines: Callable[[], Iterator[str]], tabs: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file but empty ones, the names first, with the number of their line.

    Args:
        path: The file, for errors.
        lines: Returns its lines, with their ends, from the first on.
        tabs: Whether it is a TSV file; else the first line says what separates its fields.

    Raises:
        AblateError: It is not CSV, or a row has more or fewer fields than the first.
    """
    csv.field_size_limit(1 << 30)
    delimiter = "\t" if tabs else _delimiter(next(filter(str.strip, lines()), ""))
    quoted = not tabs or _is_quoted(lines)
    table = csv.reader(
        lines(),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    names: list[str] = []
    try:
        for row in filter(None, table):
            names = names or row
            if len(row) != len(names):
                raise AblateError(
                    f"{path}, line {table.line_num}: {len(row)} fields, but the first line names"
                    f" {len(names)} columns"
                )
            yield table.line_num, row
    except csv.Error as error:
        raise AblateError(f"{path}, line {table.line_num}: {error}") from None


def _delimiter(header: str) -> str:
    """Return what separates the names in the first line: a comma, unless it has none."""

    def names(delimiter: str) -> int:
        return len(next(csv.reader(header.splitlines()[:1], delimiter=delimiter), []))

    return "," if names(",") > 1 else max(",;\t|", key=names)


def _is_quoted(lines: Callable[[], Iterator[str]]) -> bool:
    """Return whether quotation marks in a TSV file enclose fields; else they are text.

    They are text if each line is a row as it stands, and quoting would join lines or fail.
    """
    numbers: set[int] = set()
    n_lines, marks = 0, False
    for line in lines():
        if line.rstrip("\r\n"):
            n_lines += 1
            numbers.add(line.count("\t"))
            marks = marks or '"' in line
            if len(numbers) > 1:
                return True
    if not marks:
        return True
    try:
        rows = [len(row) for row in csv.reader(lines(), delimiter="\t", strict=True) if row]
    except csv.Error:
        return False
    one_column = numbers == {0}  # each line is a row of it in any case
    return set(rows) == {n + 1 for n in numbers} and (one_column or len(rows) == n_lines)


def of(path: Path, reading: Reading) -> Format:
    """Return the format of a file, by the end of its name unless the study says it."""
    if reading.format != "auto":
        return FORMATS[reading.format]
    return _BY_SUFFIX.get(files.suffix(path), FORMATS["text"])


def read(
    paths: Iterable[Path], format: Format, reading: Reading, mended: Mended, like: bool | None
) -> Iterator[Document]:
    """Yield the documents of files of one format.

    Args:
        paths: The files.
        format: Their format.
        reading: How.
        mended: Counts what was changed.
        like: Whether rows are lines; None to find it.
    """
    if format.rows is None:
        for path in paths:
            with files.text(path, reading, mended) as buffer:
                yield from documents(buffer, str(path))
        return
    rows = _named_rows(paths, format, reading, mended)
    if like is None:
        like, rows = _are_lines(rows, reading)
    if not like:
        for origin, text in rows:
            mended.n_without_text += not text.strip()
            content = _clean(text, reading, mended, origin)
            yield from documents(content, origin)
        return
    with files.spooled(_joined(rows, reading, mended)) as buffer:
        yield from documents(buffer)


def lines_in(paths: Iterable[Path], format: Format, reading: Reading) -> bool:
    """Return whether the rows of files are lines of running text, by the first of them."""
    if format.rows is None:
        return False
    return _are_lines(_named_rows(paths, format, reading, Mended()), reading)[0]


def single_lines(paths: Iterable[Path], format: Format, reading: Reading) -> bool:
    """Return whether no row of the first ones has more than one line."""
    rows = _beginning(_named_rows(paths, format, reading, Mended()))
    return not any("\n" in text.strip() for _, text in rows)


def _parsable(reading: Reading) -> Reading:
    """Return a reading for files that are parsed, which cannot be read as bytes."""
    if reading.encoding == BYTES:
        return reading.model_copy(update={"encoding": "utf-8"})
    return reading


def _named_rows(
    paths: Iterable[Path], format: Format, reading: Reading, mended: Mended
) -> Iterator[tuple[str, str]]:
    assert format.rows
    for path in paths:
        if not reading.pairs:
            for text in format.rows(path, reading, mended):
                yield str(path), text
            continue
        columns = (
            format.rows(path, reading.model_copy(update={"field": name}), mended)
            for name in reading.pairs
        )
        for number, row in enumerate(zip(*columns, strict=True), 1):
            pair = [" ".join(text.split()) for text in row]
            for name, text in zip(reading.pairs, pair, strict=True):
                if not text:
                    raise AblateError(
                        f"{path}: row {number} of the table has no text in {name!r}; a pair needs"
                        " a source and a target: remove the row"
                    )
            yield str(path), "\t".join(pair)


def _are_lines(
    rows: Iterator[tuple[str, str]], reading: Reading
) -> tuple[bool, Iterator[tuple[str, str]]]:
    """Return whether rows are lines of running text, and the rows.

    They are if none has a line end inside, and two signs of three are there: most end with one,
    some are blank, one is a heading of WikiText. One alone is no evidence: tables of documents have
    empty rows, and lines of a file become rows with their ends.
    """
    if reading.rows != "auto" or reading.pairs:
        return reading.rows == "lines" and not reading.pairs, rows
    first = list(_beginning(rows))
    texts = [text for _, text in first]
    filled = [text for text in texts if text.strip()]
    blank = len(texts) - len(filled)
    signs = (
        2 * sum(text.endswith("\n") for text in filled) > max(1, len(filled)),
        blank > max(2, _BLANK * len(texts)),
        any(map(_is_heading, filled)),
    )
    lines = sum(signs) > 1 and not any("\n" in text.rstrip("\n") for text in filled)
    return lines, itertools.chain(first, rows)


def _is_heading(text: str) -> bool:
    """Return whether a row is a heading of the first level in WikiText."""
    line = text.rstrip("\n")
    return bool(_HEADING.fullmatch(line)) and not line.lstrip().startswith("= =")


def _beginning(rows: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the first rows: enough to find what they are, and few enough to keep."""
    characters = 0
    for origin, text in itertools.islice(rows, _LOOKED_AT):
        yield origin, text
        characters += len(text)
        if characters > _CHARACTERS:
            break


def _joined(rows: Iterator[tuple[str, str]], reading: Reading, mended: Mended) -> Iterator[bytes]:
    """Yield the text whose lines the rows are; a heading of WikiText begins a document."""
    for origin, text in rows:
        line = _clean(text, reading, mended, origin)
        if _is_heading(text):
            yield SEPARATOR
        yield line if line.endswith(b"\n") else line + b"\n"


def _clean(text: str, reading: Reading, mended: Mended, origin: str) -> bytes:
    """Return the bytes of a row's text, mended as a file's are."""
    if text[:1] == "\ufeff":
        text = text[1:]
        mended.add("byte order mark", origin)
    if reading.line_ends == "lf" and "\r\n" in text:
        text = text.replace("\r\n", "\n")
        mended.add("line ends of Windows", origin)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, as JSON may have
        mended.add("half characters", origin)
        return text.encode(errors="replace")


def _texts(
    path: Path, rows: Iterator[tuple[int, Any]], field: str, mended: Mended
) -> Iterator[str | None]:
    """Yield the texts of rows of JSON, None for those without; finds the key if none is named.

    Args:
        path: The file, for errors.
        rows: Objects or strings, with their numbers.
        field: The key; "" to find it.
        mended: Gets the key.
    """
    first: list[tuple[int, Any]] = []
    if not field:
        first, field = _with_key(path, rows)
    lacking: tuple[int, Any] | None = None
    found = False
    for number, row in itertools.chain(first, rows):
        if not field:
            if not isinstance(row, str | None):
                raise AblateError(f"{path}, line {number}: no string, as the first row is")
            yield row
            continue
        if row is None:
            yield None
            continue
        if not isinstance(row, Mapping):
            raise AblateError(f"{path}, line {number}: a row is an object with keys")
        if field not in row:
            lacking = lacking or (number, row)
            yield None
            continue
        text = row[field]
        if text is not None and not isinstance(text, str):
            raise AblateError(f"{path}, line {number}: {field!r} holds no text but {text!r:.60}")
        if not found:
            found, mended.fields[field] = True, None
        yield text
    if lacking and not found:
        number, row = lacking
        raise AblateError(
            f"{path}, line {number}: there is no {field!r}; its keys:"
            f" {', '.join(map(str, row)):.200}"
        )


def _with_key(path: Path, rows: Iterator[tuple[int, Any]]) -> tuple[list[tuple[int, Any]], str]:
    """Return the rows from which the key of the text is found, and the key; "" for strings.

    It is 'text' or 'content' of the first row that has one, or else the only key of text of the
    first row that has any.
    """
    first, characters = list[tuple[int, Any]](), 0
    for number, row in itertools.islice(rows, _KEYS_OF):
        first.append((number, row))
        if row is None:
            continue
        if not isinstance(row, Mapping):
            if isinstance(row, str) and all(one is None for _, one in first[:-1]):
                return first, ""
            raise AblateError(f"{path}, line {number}: a row is an object with keys")
        for name in _TEXT_NAMES:
            if name in row and isinstance(row[name], str | None):
                return first, name
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if characters > _CHARACTERS:
            break
    objects = [(number, row) for number, row in first if row is not None]
    if not objects:
        return first, ""
    texts = [[key for key, value in row.items() if isinstance(value, str)] for _, row in objects]
    at = next((index for index, keys in enumerate(texts) if keys), 0)
    number, row = objects[at]
    for name in _TEXT_NAMES:
        if not texts[at] and name in row:
            raise AblateError(
                f"{path}, line {number}: {name!r} holds no text but {row[name]!r:.60}"
            )
    return first, _only_text(path, texts[at], list(row))


def _only_text(path: Path, texts: list[str], names: list[str]) -> str:
    found = next((name for name in _TEXT_NAMES if name in texts), "")
    if not found and len(texts) == 1:
        found = texts[0]
    if not found:
        raise AblateError(
            f"{path} has no column 'text' and not exactly one text column; columns:"
            f" {', '.join(map(str, names)):.200}; name one by [data] field"
        )
    return found


def _text_column(path: Path, schema: Any, field: str) -> str:
    def is_text(kind: Any) -> bool:
        if str(kind).startswith("dictionary<"):
            kind = kind.value_type
        return str(kind) in ("string", "large_string", "string_view")

    texts = [one.name for one in schema if is_text(one.type)]
    names = schema.names
    wanted = field or next((name for name in _TEXT_NAMES if name in names), "")
    if names.count(wanted) > 1:
        raise AblateError(f"{path}: several columns are named {wanted!r}")
    if wanted in names and wanted not in texts and (field or not texts):
        raise AblateError(
            f"{path}: column {wanted!r} holds no text but {schema.field(wanted).type!s:.60};"
            f" columns of text: {', '.join(texts) or 'none'}"
        )
    if not field:
        return _only_text(path, texts, names)
    if field not in names:
        raise AblateError(
            f"{path}: column {field!r} is not there; columns of text: {', '.join(texts) or 'none'}"
        )
    return field


def _of_arrays(path: Path, arrays: Iterable[Any], reading: Reading, mended: Mended) -> Rows:
    """Yield the texts of arrays of pyarrow; those without text as `_filled` does."""
    before = 0
    for array in arrays:
        try:
            texts = array.to_pylist()
        except UnicodeDecodeError:  # the library writes and reads bytes that are no UTF-8
            texts = [
                None if (whole := one.as_buffer()) is None else whole.to_pybytes()
                for one in array.cast("large_string")
            ]
            for row, text in enumerate(texts, before + 1):
                if text is not None:
                    texts[row - before - 1], n = files.as_utf8(text)
                    if n:
                        mended.add(files.REPLACED, path, n, f" from row {row:,}")
        before += len(texts)
        yield from _filled(texts, reading, mended)


def _filled(texts: Iterable[str | None], reading: Reading, mended: Mended) -> Rows:
    """Yield texts, and "" for none in tables of pairs; else rows without text are counted."""
    for text in texts:
        if text is not None or reading.pairs:
            yield text or ""
        else:
            mended.n_without_text += 1


@contextmanager
def _by_library(path: Path, title: str) -> Iterator[None]:
    """Turn an error of pyarrow into an `AblateError`."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise AblateError(
            f"{path} cannot be read as {title}: {str(error).splitlines()[0]:.160}"
        ) from None
