"""A study's numbers as the content of one file: CSV, TSV, JSON, JSON lines or Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from ablate import analysis, formats, results
from ablate.store import Database, rows


def frame(database: Database, study: str, what: str, role: str) -> pd.DataFrame:
    """Return one of `ablate.export.WHAT` of a study, without folders in the names of files.

    Args:
        database: The database.
        study: Name of the study.
        what: A name of `WHAT`.
        role: As in `ablate.load`, for runs, curves and finals.

    Raises:
        AblateError: There is no such study.
    """
    frames: dict[str, Callable[..., pd.DataFrame]] = {
        "runs": partial(results.load, role=role),
        "curves": partial(results.curves, role=role),
        "finals": partial(results.finals, role=role),
        "pairs": results.pairs,
        "effects": analysis.effects,
    }
    found = results.without_folders(frames[what](study, db=database))
    if what != "runs":
        return found
    # the view `runs` has the fields of other studies too, and of transformers in any database
    own = set().union(*results.fields(study, database).values())
    return found.drop(columns=[name for name in rows.field_names(database) - own if name in found])


def content(frame: pd.DataFrame, kind: str) -> str | bytes:
    """Return the rows of a frame with full precision, as text or as the bytes of a Parquet file.

    Args:
        frame: The rows.
        kind: One of `ablate.export.FORMATS`.
    """
    if kind == "parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow", index=False)
        return buffer.getvalue()
    lines = list(zip(*(_values(frame[column]) for column in frame), strict=True))
    return formats.render(list(map(str, frame)), lines, kind)


def _values(column: pd.Series) -> list[Any]:
    """Return Python's own values, None if missing; NaN stays NaN in a column of floats."""
    numbers = pd.api.types.is_float_dtype(column.dtype)
    return [value if numbers or not pd.isna(value) else None for value in column.tolist()]
