"""Valid study files with random changes of words, values and tables; the same for the same seed."""

from __future__ import annotations

import copy
import datetime
import json
import math
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablate.components import CATALOGUE
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

Node = Any

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
    .. . ~nobody/x * ** [ ***/[x hf: hf:. package:austen small.toml/x /dev/null /dev/zero fifo
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
WORDS = [*LEVELS, *CATALOGUE, *BUDGETS, *DESIGNS, *METRICS, *TEXTS]
_TABLES = (
    *(StudyFile, CrossedTable, Evaluation, FitTable, MatchTable, ReportTable, SeedsTable),
    TuneTable,
)
KEYS = sorted(
    {*CATALOGUE, *BUDGETS, "size", "heads", "max_epochs", "", "a b", "é", "\x00"}.union(
        *(table.model_fields for table in _TABLES)
    )
)
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\w.+-]+|[^\s\w]')


def originals(folder: Path) -> list[str]:
    """The valid files that are changed."""
    return [SMALL, *(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml")))]


def mutated(texts: list[str], seed: int) -> bytes:
    """One of `texts` with up to six changes, and now and then a byte that is no text."""
    chance = random.Random(seed)
    text = chance.choice(texts)
    how = chance.choices((_gentle, _values, _tokens, _lines, _structure), (8, 5, 1, 1, 1))[0]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        text = how(chance, text)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if chance.random() < 0.05:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


# -- values and tables -----------------------------------------------------------------------------


def _values(chance: random.Random, text: str) -> str:
    """A value or a table of the parsed file replaced, removed, renamed, doubled or moved."""
    try:
        raw = tomllib.loads(text)
    except ValueError:
        return _tokens(chance, text)
    places = list(_places(raw))
    holder, key = chance.choice(places)
    other, name = chance.choice(places)
    kind = chance.randrange(8)
    if kind == 0:
        holder[key] = _nasty(chance)
    elif kind < 4:
        same = [value for value in (*HUGE, *TEXTS, *OTHERS) if isinstance(holder[key], type(value))]
        holder[key] = copy.deepcopy(chance.choice(same or OTHERS))
    elif kind == 4 and isinstance(holder, dict):
        holder[chance.choice(KEYS)] = holder.pop(key)
    elif kind == 5 and isinstance(holder, dict):
        holder[chance.choice(KEYS)] = _nasty(chance)
    elif kind == 6:
        holder[key] = copy.deepcopy(other[name])
    else:
        del holder[key]
    return dumped(raw)


def _gentle(chance: random.Random, text: str) -> str:
    """Something that may well be meant: another level, another number, one more field or factor."""
    try:
        raw = tomllib.loads(text)
    except ValueError:
        return _tokens(chance, text)
    numbers = [(holder, key) for holder, key in _places(raw) if type(holder[key]) in (int, float)]
    table = raw.get(chance.choice(("base", "factors")))
    if numbers and chance.random() < 0.5:
        holder, key = chance.choice(numbers)
        value = holder[key]
        holder[key] = chance.choice((value * 2, value + 1, value / 3, -value, value * 1e6, 1, 3))
    elif isinstance(table, dict):
        name = chance.choice(
            sorted(table.keys() & CATALOGUE if chance.random() < 0.5 else CATALOGUE) or ["lr"]
        )
        table[name] = _plausible(chance, name, table is raw.get("factors"))
    return dumped(raw)


def _places(node: Node) -> list[tuple[Any, Any]]:
    """Every (table or array, key) below `node`."""
    found = []
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        found.append((node, key))
        if isinstance(node[key], dict | list):
            found += _places(node[key])
    return found


def _nasty(chance: random.Random) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(HUGE)
    if kind == 1:
        return chance.choice(TEXTS)
    if kind == 2:
        return chance.choice(WORDS)
    return copy.deepcopy(chance.choice(OTHERS))


def _plausible(chance: random.Random, key: str, several: bool) -> Any:
    """What might stand at a key of [base] or, where there are `several`, of [factors]."""
    levels = [level.name for level in CATALOGUE[key].levels] if key in CATALOGUE else []
    values = levels or [1, 2, 3, 4, 8, 16, 32, 64, 128, 1024, 0.1, 0.5, 1e-3]
    return (
        chance.choices(values, k=chance.choice((1, 2, 2, 3))) if several else chance.choice(values)
    )


def dumped(raw: dict[str, Any]) -> str:
    """A parsed file as text again, every table below the first level inline."""
    tables = {
        key: value for key, value in raw.items() if isinstance(value, dict) and key != "seeds"
    }
    lines = [
        f"{json.dumps(key)} = {_inline(value)}" for key, value in raw.items() if key not in tables
    ]
    for key, table in tables.items():
        lines += [
            f"[{json.dumps(key)}]",
            *(f"{json.dumps(name)} = {_inline(field)}" for name, field in table.items()),
        ]
    return "\n".join(lines) + "\n"


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


# -- text ------------------------------------------------------------------------------------------


def _tokens(chance: random.Random, text: str) -> str:
    """A word of the file replaced by another, or two of its words exchanged."""
    found = list(TOKEN.finditer(text))
    if not found:
        return text + "x"
    at = chance.choice(found)
    new = chance.choice(
        (
            lambda: chance.choice(found)[0],
            lambda: _inline(_nasty(chance)),
            lambda: chance.choice(WORDS),
        )
    )()
    return text[: at.start()] + new + text[at.end() :]


def _lines(chance: random.Random, text: str) -> str:
    """A line dropped, doubled, exchanged with another or cut short."""
    lines = text.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(4)
    if kind == 0:
        lines[at : at + chance.choice((1, 1, 3))] = []
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    return "\n".join(lines)


def _structure(chance: random.Random, text: str) -> str:
    """TOML with depth, dotted and quoted keys, repeated tables, long arrays, odd strings."""
    makers: tuple[Callable[[], str], ...] = (
        lambda: "[" * 500 + "]" * chance.choice((10, 500)),
        lambda: "x." * chance.choice((3, 300, 3000)) + "y = 1",
        lambda: "[base]",
        lambda: "[[factors]]",
        lambda: "[factors.topology]",
        lambda: "base.lr = 1",
        lambda: 'factors."a.b".c.lr = 1',
        lambda: "x = 1\nx = 2",
        lambda: f'question = """{chance.choice(TEXTS)}\n"""',
        lambda: "name = '''\n'''",
        lambda: f"seeds = {[*range(chance.choice((10, 20_000)))]}",
        lambda: "lr = [" + ", ".join(f"{n}e-6" for n in range(1, chance.choice((3, 5000)))) + "]",
        lambda: "\n".join(
            f"[[exclude]]\ntopology = {n % 5}" for n in range(chance.choice((2, 2000)))
        ),
        lambda: f"interactions = {[['topology', 'n_layer']] * chance.choice((1, 2000))}",
        lambda: f"{chance.choice(KEYS)} = {_inline(_nasty(chance))}",
        lambda: "\ufeff",
        lambda: "#" + "é" * 3000,
    )
    lines = text.split("\n")
    piece = chance.choice(makers)()
    if chance.random() < 0.3:
        key, equals, _ = lines[at := chance.randrange(len(lines))].partition("=")
        lines[at] = key + equals + piece if equals else piece
    else:
        lines.insert(chance.randrange(len(lines) + 1), piece)
    return "\n".join(lines)
