"""Nothing that a database holds acts on the terminal, or reaches a page, as control characters."""

from __future__ import annotations

import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import ROOT, Run
from report_study import Outcome, study, svg_only  # noqa: F401

from ablate import formats

HOSTILE = "\x1b]0;pwned\x07\x9b31m\u202e"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
# columns that are spoilt together; each of the first four makes some commands fail
GROUPS = [
    ("run.status",),
    ("run.key",),
    ("run.kind",),
    ("study.metric",),
    ("study.question", "cell.label"),
    ("attempt.status", "attempt.host", "attempt.device"),
    ("attempt.started", "attempt.error", "attempt.versions", "attempt.journal"),
]
COMMANDS = [
    ["show", "1"],
    ["compare", "1", "2"],
    ["status"],
    ["status", "topology"],
    ["report", "topology"],
    ["report", "--format", "json"],
    ["query", "means", "topology"],
    ["query", "SELECT * FROM run, attempt, study, member LIMIT 20"],
    ["query", "--format", "md", "SELECT * FROM run, attempt, study, member LIMIT 20"],
    ["query", "--tables"],
    ["export", "topology", "runs.json"],
    ["db", "check"],
    ["db", "forget", "topology"],
]


def wirings(folder: Path) -> Path:
    """A database with a study of two arms, two seeds each, of which one failed."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        if levels["topology"] == "serial" and seed == 1:
            return Outcome(status="failed", error="first\nlast line")
        return Outcome(1.5 + 0.1 * seed, points={100: 2.0, 1000: 1.5 + 0.1 * seed})

    factors = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}
    with study(folder, factors, outcome, seeds=3) as db:
        return db.path


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_spoilt_columns_reach_neither_terminal_nor_page(
    group: tuple[str, ...],
    ablate: Run,
    tmp_path: Path,
    svg_only: None,  # noqa: F811
) -> None:
    path = wirings(tmp_path)
    with sqlite3.connect(path) as connection:
        for column in group:
            table, name = column.split(".")
            connection.execute(
                f"UPDATE OR IGNORE {table} SET {name} = coalesce({name}, '') || ?",
                (f"{HOSTILE}<{column}>",),
            )
    connection.close()
    reached = set()
    for command in COMMANDS:
        try:
            _, out, err = ablate(*command, "--db", str(path))
        except Exception:  # of a database with senseless values: tested elsewhere
            continue
        assert not ACTS.search(out + err), (command, ACTS.findall(out + err))
        reached |= {column for column in group if f"<{column}>" in "".join((out + err).split())}
    assert reached == {*group}, "some command prints each"
    for file in (tmp_path / "results").rglob("*"):
        if file.is_file() and file.suffix not in (".png", ".pdf"):
            assert not ACTS.search(file.read_text(encoding="utf-8").replace("\u202e", "")), file


def test_a_table_for_another_program_is_exact_and_on_a_terminal_harmless(tmp_path: Path) -> None:
    path = wirings(tmp_path)
    sql = "SELECT char(27) || ']0;x' || char(7) AS name"
    command = [sys.executable, "-m", "ablate", "query", sql, "--format", "csv", "--db", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert b"\x1b]0;x\x07" in piped
    ours, theirs = pty.openpty()
    subprocess.run(command, env=environment, stdout=theirs, check=True)
    os.close(theirs)
    seen = os.read(ours, 1000)
    os.close(ours)
    assert rb"\u001b]0;x\u0007" in seen and b"\x1b" not in seen and b"\x07" not in seen


def test_lines_and_scripts_of_all_languages_are_printed_as_they_are() -> None:
    text = "−3×10⁻⁷\u00a0nats\n\ttab 语 العربية é\u0301 👩‍👩‍👧\n"
    assert formats.harmless(text) == text
    assert formats.harmless("a\rb\x7f\u2066") == r"a\rb\u007f\u2066"
