"""A file with a table → its cells as text; cells → numbers as people write them; chosen rows."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import operator
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from ablate.errors import AblateError, missing, unknown
from ablate.formats import delimiter_of

PACKED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
MARKDOWN_RULE = re.compile(r"[|:+\s-]*-[|:+\s-]*")

ABSENT = re.compile(
    r"|[-–—.?]|n\.?/?a\.?|nan|none|null|missing|tbd|oom|failed|crashed|diverged"
    r"|#[a-z/]+[0!?]*"  # a failed formula of a spreadsheet: #DIV/0!, #N/A, #REF!
)
UNITS = {
    **dict.fromkeys(("k", "thousand"), 1e3),
    **dict.fromkeys(("m", "mn", "mio", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "g", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 1e12),
    "p": 1e15,
    "e": 1e18,
    "z": 1e21,
    **dict.fromkeys(("pf-day", "pf-days", "pfs-day", "pfs-days"), 8.64e19),
    "%": 0.01,
}
UNIT = f"({'|'.join(sorted(UNITS, key=len, reverse=True))})"
COUNTED = r"(?:\s*(?:flops?|tokens?|toks?|params?|parameters?))?"
NUMBER = re.compile(
    r"[~≈]?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
    rf"(?:\s*[x×*·]\s*10\s*(?:\^|\*\*)\s*([+-]?\d+))?\s*{UNIT}?{COUNTED}"
)
POWER = re.compile(r"(2|10)\s*(?:\^|\*\*)\s*(\d+)")
UNIT_OF_COLUMN = re.compile(
    rf"[(\[]\s*(?:in\s+)?(?:{UNIT}{COUNTED}|[x×]?\s*(?:1e|10\^)(\d+))\s*[)\]]$"
    r"|[\s_,/](millions?|billions?|trillions?)$|_([mbt])$"
    r"|\b([mgtpez])flops?\b|\b(pfs?-days?)\b"
)
# 2.31 ± 0.02, 2.31(2), 2.31 (0.02), 2.31 [2.29, 2.33]
SPREAD = re.compile(r"\s*(?:±|\+/-|\+-).*|\s*\(\d*[.,]?\d+\)$|\s*\[.*\]$")
SPACES = re.compile(r"(?<=\d)[\s'’_](?=\d{3}(?!\d))")
EMPHASIS = "*_`$†‡§ "  # around a number in Markdown, LaTeX or a paper
LATEX = {"\\times": "×", "\\cdot": "×", "\\pm": "±", "\\": "", "{": "", "}": "", "−": "-"}
SUPERSCRIPT = re.compile("(?<=10)[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
WHERE = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)")
COMPARE = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


Parse = Callable[[str], pd.Series]  # a column's name → its numbers, None for text


def sheet(path: Path, wanted: Callable[[Sequence[str]], bool]) -> pd.DataFrame:
    """Read the cells of a table in a file.

    The format is told from the content: Parquet, Excel's .xlsx, JSON (a list or a line for each
    row; fields of nested objects are "config.lr"), or text whose columns are separated by commas,
    semicolons, tabs, bars or blanks. A file may be packed by gzip, bzip2 or xz. In text and Excel,
    titles above the names are left out, and the names may be in two rows, of which the upper one
    may be merged. Lines of text that begin with # are comments, except for the names that
    `numpy.savetxt` writes above its numbers; of a Markdown page only the table is read.

    Args:
        path: the file; text is UTF-8, or UTF-16 or Windows-1252 as Excel saves it.
        wanted: names of columns → whether this sheet of several is the one; the first such counts.

    Returns:
        Text, stripped. The index, named "line" or "row", is the place in the file.
        `attrs["decimal_comma"]` is true where columns are separated by semicolons and no number has
        a decimal point. `attrs["sheet"]` says which of several sheets it is, or is "".

    Raises:
        AblateError: the file cannot be read, none of several sheets is wanted, a row has more or
            fewer cells than there are names, or two columns have one name.
    """
    try:
        data = path.read_bytes()
        for magic, unpack in PACKED.items():
            if data.startswith(magic):
                data = unpack(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", "") or error
        raise AblateError(f"{path}: cannot be read ({reason})") from None
    if data.startswith((b"PAR1", b"PK")):
        table = _parquet(path, data) if data.startswith(b"PAR1") else _excel(path, data, wanted)
        delimiter = ""
    else:
        text = _text(path, data)
        if re.match(r"\s*[\[{]", text):
            table, delimiter = _json(path, text), ""
        else:
            table, delimiter = _delimited(path, text)
    if table.empty:
        raise AblateError(f"{path}: a table needs a line of column names and a line for each run")
    names = _names(table)
    table.attrs.setdefault("sheet", "")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise AblateError(f"{path}: two columns are called {twice[0]!r}")
    table.columns = [name or f"column {at}" for at, name in enumerate(names, 1)]
    # Groups of three digits may be thousands; any other length follows a decimal point.
    pointed = delimiter == ";" and any(
        re.fullmatch(r"[+-]?\d*\.(\d{1,2}|\d{4,})", _plain(cell))
        for name in table
        for cell in table[name]
    )
    table.attrs["decimal_comma"] = delimiter == ";" and not pointed
    return table


def _names(table: pd.DataFrame) -> list[str]:
    return [" ".join(str(name).split()) for name in table]


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells as text on one line, "" where there is none."""
    texts = frame.astype(object).where(frame.notna(), "")
    return texts.map(lambda value: " ".join(str(value).split())).astype(object)


def _placed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))


def _parquet(path: Path, data: bytes) -> pd.DataFrame:
    try:
        # pandas' own types do not tell NaN from null
        table = pd.read_parquet(io.BytesIO(data), dtype_backend="pyarrow")
    except ImportError:
        raise AblateError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise AblateError(f"{path}: cannot be read ({error})") from None
    return _placed(_cells(table if table.index.names == [None] else table.reset_index()))


def _excel(path: Path, data: bytes, wanted: Callable[[Sequence[str]], bool]) -> pd.DataFrame:
    """Return the only sheet that has a table, or the first that is wanted."""
    try:
        sheets = pd.read_excel(
            io.BytesIO(data),
            sheet_name=None,
            header=None,
            dtype=object,
            keep_default_na=False,  # "nan" is a text, and no empty cell
            na_values=[""],
        )
    except ImportError:
        raise AblateError(f"{path}: {missing('openpyxl', 'excel')}, or save it as .csv") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise AblateError(f"{path}: cannot be read ({error})") from None
    filled = {
        str(name): _placed(_cells(cells))
        for name, cells in sheets.items()
        if cells.notna().any(axis=1).sum() > 1
    }
    if len(filled) < 2:
        return _named(path, next(iter(filled.values()), pd.DataFrame()))
    found: dict[str, list[str]] = {}
    for name, cells in filled.items():
        try:
            table = _named(path, cells)
        except AblateError:  # notes need not be a table
            continue
        if wanted(found.setdefault(name, _names(table))):
            table.attrs["sheet"] = f"The sheet {name!r} is read, of {len(filled)} sheets."
            return table
    held = "; ".join(
        f"{name!r} has {', '.join(map(repr, found[name][:12]))}" if found.get(name) else f"{name!r}"
        for name in filled
    )
    raise AblateError(f"{path}: no sheet has all of the columns asked for: {held}")


def _json(path: Path, text: str) -> pd.DataFrame:
    """Return a table of a list of rows, columns by name, or a row for each line.

    NaN stays a text: pandas does not tell it from null.
    """
    places: list[int] = []
    try:
        found = json.loads(text, parse_constant=str)
    except ValueError:
        found = []
        for at, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    found.append(json.loads(line, parse_constant=str))
                except ValueError as error:
                    raise AblateError(f"{path}, line {at}: not JSON ({error})") from None
                places.append(at)
    try:
        if isinstance(found, dict) and {"columns", "data"} <= found.keys():
            table = pd.DataFrame(found["data"], columns=found["columns"])
        elif isinstance(found, dict) and all(isinstance(v, dict | list) for v in found.values()):
            table = pd.DataFrame(found)
        else:
            table = pd.json_normalize(found)
    except (ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise AblateError(f"{path}: not a table in JSON ({error})") from None
    cells = _placed(_cells(table))
    return cells.set_axis(pd.Index(places, name="line")) if places else cells


def _text(path: Path, data: bytes) -> str:
    utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if utf_16 or b"\0" not in data:
        for encoding in ("utf-16",) if utf_16 else ("utf-8-sig", "cp1252"):
            try:
                return data.decode(encoding)
            except UnicodeDecodeError:
                continue
    raise AblateError(
        f"{path}: neither text with columns separated by commas or tabs, nor JSON, Parquet or .xlsx"
    )


def _delimited(path: Path, text: str) -> tuple[pd.DataFrame, str]:
    """Return the table in a text, and what separates its columns; "" for blanks."""
    numbered = list(enumerate(text.splitlines(), 1))
    excel = re.fullmatch(r"sep=(.)", numbered[0][1].strip()) if numbered else None
    lines = _without_comments(_of_markdown(path, numbered[bool(excel) :]))
    delimiter = excel[1] if excel else delimiter_of([line for _, line in lines[:50]])
    if not delimiter:
        lines = [(number, "\t".join(line.split())) for number, line in lines]
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter or "\t")
    rows, at = {}, 0
    for row in reader:
        rows[lines[at][0]] = [" ".join(cell.split()) for cell in row]
        at = reader.line_num  # a quoted cell may have several lines
    width = max(map(len, rows.values()), default=0)
    padded = {place: [*row, *[None] * (width - len(row))] for place, row in rows.items()}
    table = pd.DataFrame.from_dict(padded, orient="index", dtype=object)
    return _named(path, table.rename_axis("line")), delimiter


def _of_markdown(path: Path, lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines of a table without rules and blank lines; of a page, those of its table."""
    rules = {number for number, line in lines if line.strip() and MARKDOWN_RULE.fullmatch(line)}
    barred = {number: line.strip() for number, line in lines if line.strip().startswith("|")}
    begun = [at for at in rules if at in barred and at - 1 in barred and at - 2 not in barred]
    if len(begun) > 1:
        raise AblateError(f"{path}: {len(begun)} tables in one page; keep one of them")
    if begun or len(barred) == sum(bool(line.strip()) for _, line in lines):
        lines = [(at, line.removeprefix("|").removesuffix("|")) for at, line in barred.items()]
    return [(at, line) for at, line in lines if line.strip() and at not in rules]


def _without_comments(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Drop comments; but keep the last one as names above a table of bare numbers."""
    first = next((at for at, (_, line) in enumerate(lines) if not line.startswith("#")), 0)
    table = [(number, line) for number, line in lines if not line.startswith("#")]
    if first and not re.search(r"[a-df-z]", lines[first][1].lower()):
        number, names = lines[first - 1]
        return [(number, names.lstrip("# ")), *table]
    return table


def _named(path: Path, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows below the names, and the names, which may be in two rows, as columns.

    Args:
        path: the file, for errors.
        cells: [R, W] texts; None where a row of a text has no cell.
    """
    filled = cells.notna() & (cells != "")
    cells, filled = cells[filled.any(axis=1)], filled[filled.any(axis=1)]
    titles = (filled.sum(axis=1) > 1).to_numpy().argmax() if len(cells) else 0
    cells, filled = cells.iloc[titles:], filled.iloc[titles:]
    if len(cells) < 2:
        return pd.DataFrame()
    names, above = cells.iloc[0].fillna("").tolist(), 1
    if _heads(cells):
        lower, above = cells.iloc[1].fillna("").tolist(), 2
        for at in range(1, len(names)):
            names[at] = names[at] or (names[at - 1] if lower[at] else "")
        only = [under or name for name, under in zip(names, lower, strict=True)]
        if len(set(only)) < len(only) or _are_units(lower):
            only = [f"{name} {under}".strip() for name, under in zip(names, lower, strict=True)]
        names = only
    cells = cells.iloc[above:]
    cells = cells[(cells != names).any(axis=1)]  # files that were joined repeat the names
    width = max((at for at, name in enumerate(names, 1) if name), default=0)
    while width > 2 and len(cells) and cells.iloc[-1].notna().sum() == 1:
        cells = cells.iloc[:-1]  # a remark below the table
    first = cells[0].tolist()
    counted = first in ([str(at + k) for at in range(len(first))] for k in (0, 1))
    if counted and len(first) > 1 and width < cells.shape[1] and cells[width].notna().all():
        names, width = ["", *names], width + 1  # rows begin with their number, as pandas prints
    counts = cells.notna().sum(axis=1)
    wrong = (counts < width) | filled.loc[cells.index].iloc[:, width:].any(axis=1)
    if wrong.any():
        place, count = cells.index[wrong][0], counts[wrong].iloc[0]
        raise AblateError(f"{path}, {cells.index.name} {place}: {count} values for {width} columns")
    return cells.iloc[:, :width].set_axis(names[:width], axis=1)


def _heads(cells: pd.DataFrame) -> bool:
    """Return whether names are in two rows: the first has gaps, or the second has units only."""
    if len(cells) < 3:
        return False
    upper, lower, below = (cells.iloc[at].fillna("").tolist() for at in range(3))
    gaps = any(text and not name for name, text in zip(upper, lower, strict=True))
    return (gaps or _are_units(lower)) and not _any_number(lower) and _any_number(below)


def _are_units(texts: Sequence[str]) -> bool:
    return all(re.fullmatch(r"[(\[].*[)\]]", text) for text in texts if text)


def _any_number(texts: Sequence[str]) -> bool:
    found = numbers([text for text in texts if text], decimal_comma=False, units=True)
    return any(number is not None for number in found)


def unit_of(name: str) -> float:
    """Return the unit in a column's name, as of "Params (M)", "tokens_b" or "C [1e18]"; or 1."""
    match = UNIT_OF_COLUMN.search(name.lower())
    if not match:
        return 1.0
    return next(
        10.0 ** int(found) if found.isdigit() else UNITS[found] for found in match.groups() if found
    )


def numbers(cells: Sequence[str], *, decimal_comma: bool, units: bool) -> list[float | None]:
    """Return the numbers in the cells of a column.

    Args:
        cells: texts such as 1300000, 1.3e6, 1.3 × 10^6, 1,300,000, 1.3M, 71.2% or 2.31 ± 0.02.
        decimal_comma: whether a comma is the decimal mark where the cells leave that open.
        units: whether a suffix multiplies, as in 1.3M; % always does.

    Returns:
        A number for each cell: NaN where the cell says that there is none, None where it is text.
    """
    known = {cell: _plain(cell) for cell in cells}
    shown = [number for cell in known.values() for number in re.findall(r"\d[\d.,]*", cell)]

    def any_is(pattern: str) -> bool:
        return any(re.fullmatch(pattern, number) for number in shown)

    if any_is(r"\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}"):
        thousands, decimal = ".", ","
    elif any_is(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}"):
        thousands, decimal = ",", "."
    elif decimal_comma or any_is(r"\d*,(\d{1,2}|\d{4,})|0,\d+|\d{4,},\d+"):
        thousands, decimal = "_", ","
    else:
        thousands, decimal = ",", "."
    found = {cell: _number(plain, thousands, decimal, units) for cell, plain in known.items()}
    return [found[cell] for cell in cells]


def select(
    where_from: str, table: pd.DataFrame, parse: Parse, where: Sequence[str]
) -> pd.DataFrame:
    """Return the rows that meet every condition: text or numbers equal, numbers smaller.

    Args:
        where_from: what the table is from, for errors.
        table: texts.
        parse: a column's name → its numbers, None for text.
        where: conditions such as "corpus=c4" or "flops<1e21".

    Raises:
        AblateError: a condition is none, names no column, or is met by no row.
    """
    for at, condition in enumerate(where):
        match = WHERE.fullmatch(condition)
        if not match:
            raise AblateError(
                f"--where {condition!r}: expected COLUMN=VALUE, or !=, <, >, <=, >= instead of ="
            )
        name, sign, value = match.groups()
        if name not in table:
            raise unknown("column", name, list(table), where_from)
        bound = None if "," in value else numbers([value], decimal_comma=False, units=True)[0]
        cells = parse(name).loc[table.index].astype(float)
        if sign in COMPARE:
            if bound is None or bound != bound:
                raise AblateError(f"--where {condition!r}: {value!r} is not a number")
            met = COMPARE[sign](cells, bound)
        else:
            met = ((table[name] == value) | (cells == bound)) == (sign == "=")
        if not met.any():
            values = table[name].unique()
            shown = ", ".join(map(repr, values[:12])) + (", …" if len(values) > 12 else "")
            with_ = f" with {', '.join(where[:at])}" if at else ""
            raise AblateError(
                f"{where_from}: no row{with_} has {name} {sign} {value!r}; its values"
                f"{' in those rows' if at else ''} are {shown}"
            )
        table = table[met]
    return table


def _plain(cell: str) -> str:
    """Return a cell without emphasis, spread and blanks between digits, in lower case."""
    text = re.sub(r"</?\w+>", "", cell.lower()).strip(EMPHASIS)
    for mark, plain in LATEX.items():
        text = text.replace(mark, plain)
    text = SUPERSCRIPT.sub(lambda match: f"^{match[0].translate(RAISED)}", text)
    return SPREAD.sub("", SPACES.sub("", text)).strip()


def _number(cell: str, thousands: str, decimal: str, units: bool) -> float | None:
    if ABSENT.fullmatch(cell):
        return math.nan
    if cell.lstrip("+-") in ("inf", "infinity", "∞"):
        return math.inf
    if power := POWER.fullmatch(cell):
        return float(power[1]) ** int(power[2])
    match = NUMBER.fullmatch(cell.replace(thousands, "").replace(decimal, ".").replace("_", ""))
    if not match or not (units or match[3] in (None, "%")):
        return None
    return float(match[1]) * 10.0 ** int(match[2] or 0) * UNITS.get(match[3], 1.0)
