"""Valid study files with random changes of words, values and tables."""

from __future__ import annotations

import copy
import datetime
import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ablate.components import CATALOGUE
from ablate.components.presets import PRESET, PRESETS
from ablate.evaluation import Evaluation
from ablate.metrics import METRICS
from ablate.study.design import DESIGNS
from ablate.study.parse import StudyFile
from ablate.study.tables import (
    CrossedTable,
    FitTable,
    MatchTable,
    ReportTable,
    SeedsTable,
    TuneTable,
)
from ablate.study.values import BUDGETS

SMALL = """\
name = "small"
question = "Which?"
seeds = { pilot = 3, resolution = 0.01, max = 9 }
within = ["n_layer"]
metric = "bits_per_byte"
[base]
d_model = 64
n_head = 2
tokens = "1M"
max_epochs = 3
[factors]
topology = [1, "parallel", "concat"]
n_layer = [2, 4]  # depth
heads = { h4 = { n_kv_head = 2 }, mqa = { n_kv_head = 1 } }
[tune]
lr = [1e-4, 1e-2]
points = 5
per = ["topology"]
[match]
params = "body"
[eval]
lengths = [1, 2]
tokens = "64K"
[report]
delta = 0.01
[[exclude]]
topology = "parallel"
n_layer = 4
"""

HUGE = (
    *(2**31, 2**63, 10**18, 10**30, 10**31, 10**400, -1, 0, 1, 2, 3, 7, 1000, 65536),
    *(1e308, 5e-324, -0.0, 1e-9, 1.0000001, 0.1, math.nan, math.inf, -math.inf),
)
_ODD = r"""x é ' \" \ %s{}{0} [bold] 1e400 1e-400 nan 20M 1_000 -5K ٣ ² bpe: bpe:9 bpe:512
    bpe:99999999999 bpe:٣٠٠ tokens byte probe_loss@0.15 probe_loss@nan loss@1 loss_at_length@1e400 @
    .. . ~nobody/x * ** [ ***/[x hf: hf:. named:austen small.toml/x /dev/null /dev/zero fifo
    loop loops dangling socket binary.gz text words.txt tokenizer.json deep.json cell study
    leave-one-out"""
_LONG = ("a" * 5000, "9" * 5000, "x" * 300, "a/" * 3000)
TEXTS = (*_ODD.split(), *_LONG, "", " ", "\0", "\u202e", "\u2028", "😀" * 9)
OTHERS = (
    *(True, False, [], {}, [[]], [{}], [1, "1", 1.0, True], [[[[[[]]]]]]),
    datetime.date(1979, 5, 27),
    datetime.datetime(1979, 5, 27, 7, 32, tzinfo=datetime.UTC),
    {"n_head": 8},
    {"params": ["0.1M", "1M"], "aspect": 32, "d_head": 32},
    {"params": [10**12, 1], "aspect": 1e-9, "d_head": 1},
    {"pilot": 2, "resolution": 1e-300, "max": 10**5},
    {"ratio": [0.15, 0.4], "mix": [1, 0, 0], "kind": "token"},
    list(range(3000)),
    [f"level {n}" for n in range(400)],
)
LEVELS = sorted({level.name for row in CATALOGUE.values() for level in row.levels})
WORDS = [*LEVELS, *PRESETS, *CATALOGUE, *BUDGETS, *DESIGNS, *METRICS, *TEXTS]
_TABLES = (
    *(StudyFile, CrossedTable, Evaluation, FitTable, MatchTable, ReportTable, SeedsTable),
    TuneTable,
)
KEYS = sorted(
    {*CATALOGUE, *BUDGETS, PRESET, "size", "heads", "max_epochs", "", "a b", "é", "\x00"}.union(
        *(table.model_fields for table in _TABLES)
    )
)
ODD = [*HUGE, *WORDS, *OTHERS]
HOW = ("level", "level", "number", "like", "any", "new", "rename", "drop")
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\w.+-]+|[^\w]')


def originals(folder: Path) -> list[str]:
    """The valid files that are changed."""
    return [SMALL, *(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml")))]


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> bytes:
    """One of `texts` with one to four changes, and now and then a byte that is no text."""
    text = draw(st.sampled_from(texts))
    if draw(st.integers(0, 3)):
        raw = tomllib.loads(text)
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
            _change(draw, raw)
        text = dumped(raw)
    else:
        words = TOKEN.findall(text)
        word = draw(st.sampled_from([*words, *WORDS, "", "[", '"', "\n"]))
        words[draw(st.integers(0, len(words) - 1))] = word
        text = "".join(words)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if not draw(st.integers(0, 20)):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def _change(draw: st.DrawFn, raw: dict[str, Any]) -> None:
    """Replace, scale, rename, remove or add a value or a table of the parsed file."""
    places = list(_places(raw))
    holder, key = draw(st.sampled_from(places or [(raw, "x")]))
    old = holder.get(key) if isinstance(holder, dict) else holder[key]
    how = draw(st.sampled_from(["level", "level", *HOW]))
    if how == "level" and isinstance(table := raw.get("base"), dict):
        name = draw(st.sampled_from(sorted([*CATALOGUE, PRESET])))
        levels = [level.name for level in CATALOGUE[name].levels] if name in CATALOGUE else PRESETS
        values = list(levels) or [1, 2, 8, 64, 0.1, 1e-3]
        table[name] = draw(st.sampled_from(values))
    elif how == "number" and type(old) in (int, float):
        others = [old / 3, old * 1e6] if abs(old) < 1e300 else []  # beyond that Python has no float
        holder[key] = draw(st.sampled_from([old * 2, old + 1, -old, 1, 3, *others]))
    elif how == "like":
        same = [value for value in ODD if isinstance(old, type(value))]
        holder[key] = copy.deepcopy(draw(st.sampled_from(same or ODD)))
    elif how == "any" or not isinstance(holder, dict):
        holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    elif how == "new":
        holder[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(st.sampled_from(ODD)))
    elif how == "rename":
        holder[draw(st.sampled_from(KEYS))] = holder.pop(key, 1)
    else:
        holder.pop(key, None)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (table or array, key) below `node`."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def dumped(raw: dict[str, Any]) -> str:
    """A parsed file as text again, all tables inline."""
    return "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in raw.items())


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {_inline(field)}" for key, field in value.items())
            + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return (
        value.isoformat()
        if isinstance(value, datetime.date | datetime.time)
        else repr(value).replace("e+", "e")
    )
