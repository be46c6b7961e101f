"""Writes the generated parts of the pages beside it: `python docs/generate.py`, or `make docs`.

A page marks such a part by `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of `PARTS`.
What stands in them is read from the catalogue and the models, so that a new level or key has its
row; `tests/test_docs.py` says when a page is old.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pictures
import reference
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ablate import sizes
from ablate.components import CATALOGUE, Factor
from ablate.components.presets import PRESETS
from ablate.config import field_info, resolve
from ablate.evaluation import FILLED_IN, Evaluation, Probe
from ablate.metrics import METRICS
from ablate.study.command import CommandTable
from ablate.study.design import DESIGNS
from ablate.study.parse import StudyFile
from ablate.study.ray import RayTable
from ablate.study.slurm import SlurmTable
from ablate.study.tables import (
    CrossedTable,
    FitTable,
    MatchTable,
    ReportTable,
    RunTable,
    SeedsTable,
    TuneTable,
)
from ablate.study.values import BUDGETS, FOLLOWS
from ablate.text.options import Reading
from ablate.text.readers import FORMATS

PAGES = Path(__file__).parent
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
DERIVED = {  # fields whose default follows from others
    "attention": 'Default `"causal"`, for masked models `"full"`.',
    **dict.fromkeys(("d_mlp", "n_kv_head", "d_head", "n_layer_encoder"), ""),
}


def cell(text: object) -> str:
    """Text inside a Markdown table."""
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *[[cell(value) for value in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def toml(value: object) -> str:
    """A default as a study file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, BaseModel):
        pairs = (f"{name} = {toml(getattr(value, name))}" for name in type(value).model_fields)
        return f"{{ {', '.join(pairs)} }}"
    return (
        f"{value:g}"
        if isinstance(value, float)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "–" if field.default in (None, "", [], {}, ()) else f"`{toml(field.default)}`"


def keys(model: type[BaseModel]) -> str:
    """The keys of a table of a study file."""
    return table(
        ("key", "default", "meaning"),
        [
            (f"`{name}`", default(field), field.description)
            for name, field in model.model_fields.items()
            if name not in FILLED_IN
        ],
    )


def named(rows: Mapping[str, str], first: str) -> str:
    return table((first, "meaning"), [(f"`{name}`", text) for name, text in rows.items()])


def metrics() -> str:
    rows = [
        (
            f"`{name}`" + (f", `{name}@{'0.15' if 'ratio' in row.at else '2'}`" if row.at else ""),
            row.unit,
            "lower" if row.goal == "min" else "higher",
            row.meaning,
        )
        for name, row in METRICS.items()
    ]
    return table(("metric", "unit", "better", "meaning"), rows)


def factors() -> str:
    """Every factor under the heading of its group."""
    groups = dict.fromkeys(row.group for row in CATALOGUE.values())
    parts = []
    for group in groups:
        parts.append(f"## {group}")
        parts += [_factor(row) for row in CATALOGUE.values() if row.group == group]
    return "\n\n".join(parts)


def _factor(row: Factor) -> str:
    parts = [f"### {row.name}", " ".join(filter(None, _about(row)))]
    if row.levels:
        parts.append(table(("level", "meaning", "source"), [_level(level) for level in row.levels]))
    return "\n\n".join(parts)


def _about(row: Factor) -> Iterator[str]:
    """What the factor is, its default and limits, and beside what it has a meaning."""
    field = field_info(row.name)
    yield row.meaning
    if row.source:
        yield f"Source: {row.source}."
    if row.name in FOLLOWS:
        yield f"Not for a study file: it {FOLLOWS[row.name]}."
    else:
        yield DERIVED.get(row.name, f"Default `{toml(field.default)}`.")
        bounds = [
            f"{sign} {getattr(bound, name):g}"
            for bound in field.metadata
            for name, sign in BOUNDS.items()
            if hasattr(bound, name)
        ]
        if bounds and row.name not in DERIVED:
            yield f"Limits: {' and '.join(bounds)}."
    if row.needs:
        needs = ", or ".join(
            f"a built-in `{other}`"
            if set(levels) == set(CATALOGUE[other].names)
            else f"`{other}` = " + " or ".join(f"`{level}`" for level in levels)
            for other, levels in row.needs.items()
        )
        yield f"Only with {needs}; otherwise it is reset to its default."


def _level(level: Any) -> tuple[str, str, str]:
    spellings = [
        str(alias) for alias in level.aliases if isinstance(alias, int) or not str(alias).isdigit()
    ]
    return (
        f"`{level.name}`" + (f" ({', '.join(spellings)})" if spellings else ""),
        level.meaning,
        level.source,
    )


def presets() -> str:
    """The presets, with the parameters of ablate's model and the published number."""
    rows = []
    for name, row in PRESETS.items():
        params = sizes.count(resolve(row.whole)).params
        counts = (f"{row.n_vocab:,}", f"{params:,}", f"{row.published:g}M")
        rows.append((f"`{name}`", *counts, row.source, row.differs))
    columns = ("preset", "vocabulary", "parameters", "published", "source", "differences")
    return table(columns, rows)


def formats() -> str:
    """The formats of texts, and what a document is in each."""
    rows = [
        (one.title, ", ".join(f"`{s}`" for s in one.suffixes) or "all others", one.document)
        for one in FORMATS.values()
    ]
    return table(("format", "names end in", "a document is"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "factors": factors,
    "presets": presets,
    "metrics": metrics,
    "designs": lambda: named(DESIGNS, "design"),
    "budgets": lambda: named(BUDGETS, "budget"),
    "study": lambda: keys(StudyFile),
    "seeds": lambda: keys(SeedsTable),
    "crossed": lambda: keys(CrossedTable),
    "command": lambda: keys(CommandTable),
    "match": lambda: keys(MatchTable),
    "run": lambda: keys(RunTable),
    "slurm": lambda: keys(SlurmTable),
    "ray": lambda: keys(RayTable),
    "tune": lambda: keys(TuneTable),
    "fit": lambda: keys(FitTable),
    "report": lambda: keys(ReportTable),
    "eval": lambda: keys(Evaluation),
    "probe": lambda: keys(Probe),
    "data": lambda: keys(Reading),
    "formats": formats,
    "commands": reference.commands,
    "python": reference.python,
    "statistics": reference.statistics,
    **{
        f"picture_{name}": lambda name=name, picture=picture: picture().markdown(name)
        for name, picture in pictures.PICTURES.items()
    },
}
_PART = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(
        lambda match: f"<!-- generated: {match[1]} -->\n\n{PARTS[match[1]]()}\n\n<!-- end -->", text
    )


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, picture in pictures.PICTURES.items():
        pictures.save(name, picture())
