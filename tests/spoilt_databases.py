"""A database with studies, copies of it with one column spoilt, and the commands that read it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from report_study import Outcome, study

from ablate import analysis
from ablate.plan import Decision
from ablate.store import decisions

TOML = """
name = "{name}"
question = "Which?"
seeds = 3
within = ["n_layer"]
[base]
tokens = 10_000
[factors]
topology = ["serial", "parallel", "concat"]
n_layer = [1, 2]
"""
FACTORS = {
    "topology": {name: {"topology": name} for name in ("serial", "parallel", "concat")},
    "n_layer": {"1": {"n_layer": 1}, "2": {"n_layer": 2}},
}
VALUES: tuple[object, ...] = (
    *(None, "", "x", " ", "nan", "null", "[]", "{}", "{", "[1, {}]", '{"a": 1}', "0", "-1", "%s"),
    *("1e400", "../x", "/etc/passwd", "a" * 10_000, "\x1b]0;pwned\x07", "é\u202e"),
    *("loss", "complete", "running", "tune", "max", "serial", "topology=serial, n_layer=1"),
    *(0, 1, -1, 2, 3.7, -0.0, 1e308, -1e308, float("inf"), 2**63 - 1, -(2**63), 2**31),
    *(b"", b"\xff\x00", b"{}"),
)
COMMANDS = (
    *(("status",), ("status", "one"), ("report", "one", "--format", "json"), ("report", "one")),
    *(("show", "1"), ("show", "7"), ("compare", "1", "2"), ("analyse", "one"), ("power", "one")),
    *(("query", "means", "one"), ("query", "found", "one"), ("query", "SELECT * FROM runs")),
    *(("export", "one", "out.csv", "--what", what) for what in ("runs", "finals", "effects")),
    *(("export", "one", "out.json", "--what", what) for what in ("curves", "pairs")),
    *(("db", "check"), ("db", "check", "--repair"), ("db", "forget", "one"), ("db", "thin")),
    *(("db", "forget", "one", "--yes"), ("fit", "one"), ("plan", "one.toml")),
    *(("query", "--tables"), ("db", "merge", "other.db"), ("compare", "1", "2", "--plot", "c.png")),
)


def chunks(few: int, last: int, size: int, found: Sequence[int] = ()) -> list[Any]:
    """Parameters of a test with numbered cases: the first few and those that once failed, which
    every run of the tests has, and the rest in slow chunks that several processes can share.
    """
    slow = [pytest.mark.slow, pytest.mark.timeout(3600)]
    return [
        pytest.param([*range(few), *found], id="few"),
        *(
            pytest.param(range(k, min(k + size, last)), marks=slow, id=f"from {k}")
            for k in range(few, last, size)
        ),
    ]


def allowed(folder: Path) -> float:
    """Return the seconds of CPU that a command may have taken: two, and one for each figure."""
    return 2.0 + len(list(folder.rglob("*.svg")))


def build(folder: Path) -> Path:
    """Write one.toml, other.db with a study of another name, and a database; return the last."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        loss = 1.0 + len(levels["topology"]) / 10 + seed / 7 + float(levels["n_layer"])
        if seed == 1 and levels["topology"] == "concat":
            return Outcome(status="failed", error="Traceback\nValueError: x")
        at = {"points": {250: loss + 1, 500: loss + 0.1, 1000: loss}}
        return Outcome(loss, finals=[("bits_per_byte", 0, loss), ("stream_rms", 1, 2.0)], **at)

    for file, name in (("other.db", "two"), ("x.db", "one")):
        text = TOML.format(name=name)
        (folder / f"{name}.toml").write_text(text)
        with study(
            *(folder, FACTORS, outcome),
            seeds=3,
            within=["n_layer"],
            name=name,
            toml=text,
            rates=[1e-3, 1e-2],
        ) as db:
            cell = "topology=serial, n_layer=1"
            evidence = {
                "group": cell,
                "cells": [cell],
                "metric": "loss",
                "goal": "min",
                "seeds": [1000],
                "at_edge": False,
                "fitted": 2.1,
                "values": [[2.1, 2.3]],
                "ladder": [1e-3, 1e-2],
                "rates": [1e-3, 1e-2],
            }
            decisions.write(db, 1, [Decision(cell, "lr", 1e-3, evidence)], [])
            analysis.analyse(db, name)
        (folder / "ablate.db").rename(folder / file)
        for kind in ("journals", "checkpoints"):
            if (folder / f"ablate.{kind}").exists():
                (folder / f"ablate.{kind}").rename(folder / f"{Path(file).stem}.{kind}")
    return folder / "x.db"


def spoil(path: Path, chance: random.Random) -> str:
    """Set a column of a database, in one row or all, to a value; return what was done."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'"
        )
        connection.execute("PRAGMA writable_schema = RESET")
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
            if connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        ]
        while True:
            table = chance.choice(tables)
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            column, keys = chance.choice(columns)[1], [row[1] for row in columns if row[5]]
            value, new = chance.choice(VALUES), "?"
            if chance.random() < 0.05:
                value, new = b"\xff\xfe", "CAST(? AS TEXT)"  # no UTF-8
            where, chosen = "", ()
            if chance.random() < 0.6:
                rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
                where, chosen = " AND ".join(f"{key} IS ?" for key in keys), chance.choice(rows)
            try:
                connection.execute(
                    f'UPDATE {table} SET "{column}" = {new} WHERE {where or 1}', (value, *chosen)
                )
            except sqlite3.Error:  # unique, or the number of a row
                continue
            return f"{table}.{column} = {value!r:.40}{' in one row' if where else ''}"
