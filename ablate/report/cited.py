"""The works that a study uses: of its models, texts and metrics, and of what the page cites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ablate import references
from ablate.components import CATALOGUE, Factor
from ablate.components.presets import PRESET, PRESETS
from ablate.config import field_info, meaningful
from ablate.metrics import METRICS
from ablate.report.data import ReportData
from ablate.report.document import Section
from ablate.text.labels import LABELS
from ablate.text.tasks import TASKS

# corpus that ablate ships, or a task with texts of its own → key in references.bib
TEXTS = {
    "austen": "silge_janeaustenr",
    "sotu": "peters_presidency",
    "cmudict": "cmudict",
    "cmudict-long": "cmudict",
    "digits": "alpaydin1998digits",
    "syllables": "cmudict",
}
BPE = "sennrich2016neural"
TORCH = "paszke2019pytorch"
# field → the value, or the field of the same value, with which it changes nothing
NEUTRAL = {"n_kv_head": "n_head", "rope_share": 1.0}


def works(data: ReportData, sections: Sequence[Section]) -> list[references.Work]:
    """Return the works that a study uses, in the order of references.bib.

    Args:
        data: The study.
        sections: Whose sentences and captions may cite works, by authors and year.
    """
    texts = {*_prose(sections), *(() if data.study.own else _sources(data))}
    keys = set(() if data.study.own else (TORCH, *_texts(data))).union(
        *map(references.named, texts)
    )
    return [one for key, one in references.works().items() if key in keys]


def _prose(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield from section.paragraphs
        yield from (one.caption for one in section.figures)
        yield from (one.caption for one in section.tables)


def _sources(data: ReportData) -> Iterator[str]:
    """Yield the sources of the presets, levels and hyper-parameters of runs, and of metrics."""
    for name in _given(data.settings, PRESET):
        if name in PRESETS:
            yield PRESETS[name].source
    # of levels from outside, as the study keeps them: their code is not loaded here
    own = {
        (factor, name): source
        for one in data.code
        for factor, name, _, source in one.code.about.get("levels", ())
    }
    used = {one for name, row in CATALOGUE.items() for one in (name, *row.needs, NEUTRAL.get(name))}
    used.discard("seed")  # it has no source, and differs from run to run
    runs = data.runs[[name for name in data.runs if name in used]].drop_duplicates()
    # a set takes one None for the same as another, but not one NaN
    runs = runs.astype(object).where(runs.notna(), None)
    for name, row in CATALOGUE.items():
        default = field_info(name).default
        for fields in _combinations(runs, name, row):
            value = fields.setdefault(name, default)  # which runs of earlier versions lack
            if not meaningful(name, fields):
                continue
            if value in row.names:
                yield row[value].source
            yield own.get((name, value), "")
            neutral: Any = NEUTRAL.get(name)
            if value and value != fields.get(neutral, neutral):
                yield row.source
    for name in set(data.finals["name"]) & set(METRICS):
        yield METRICS[name].source


def _given(tables: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the texts that a study file gives a field, in [base], as a factor or in its levels."""
    for key, value in tables.items():
        if key == name:
            several = value if isinstance(value, list) else (value,)
            yield from (one for one in several if isinstance(one, str))
        if isinstance(value, dict):
            yield from _given(value, name)


def _combinations(runs: pd.DataFrame, name: str, row: Factor) -> Iterator[dict[str, Any]]:
    """Yield the values that runs have of a field, each with those that give it a meaning."""
    columns = [one for one in (name, *row.needs, NEUTRAL.get(name)) if one in runs]
    for values in set(zip(*(runs[one] for one in columns), strict=True)) or {()}:
        yield {
            str(one): value for one, value in zip(columns, values, strict=True) if value is not None
        }


def _texts(data: ReportData) -> Iterator[str]:
    """Yield the keys of the texts, images and tokenizers of runs, and of what probes read."""
    corpora = set(data.runs["corpus"])
    if given := set(_given(data.settings, "corpus")):
        corpora &= given  # a user's digits.npz is called "digits", too
    tasks = set(data.runs.get("task", ()))
    corpora |= {TASKS[name].corpus for name in tasks & set(TASKS)}
    corpora |= {LABELS[name].corpus for name in set(data.finals["name"]) & set(LABELS)}
    yield from (TEXTS[name] for name in (corpora | tasks) & set(TEXTS))
    if any(str(name).startswith("bpe:") for name in data.runs["tokenizer"]):
        yield BPE
