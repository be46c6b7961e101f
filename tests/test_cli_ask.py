"""Asking from the command line: named queries, two runs beside each other, files for other
programs, pages in a browser.
"""

from __future__ import annotations

import asyncio
import csv
import errno
import gzip
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_helpers import ROOT, Run, completed, refused
from report_study import NAN, Levels, Outcome, study

from ablate import results
from ablate.cli import compare, guard
from ablate.store.questions import QUESTIONS

FACTORS = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Runs 1 and 3 serial, 2 and 4 parallel (better by 0.25; run 4 diverged), with curves."""

    def outcome(levels: Levels, seed: int) -> Outcome:
        value = 2.0 + seed - 0.25 * (levels["topology"] == "parallel")
        if (levels["topology"], seed) == ("parallel", 1):
            return Outcome(status="diverged", step=7, points={5: 4.0, 10: math.inf, 15: NAN})
        return Outcome(
            points={5: value + 2, 10: value + 1, 20: value},
            finals=[("stream_rms", 0, 1.0), ("stream_rms", 1, 2.0)],
        )

    folder = tmp_path_factory.mktemp("trained")
    study(folder, FACTORS, outcome, seeds=2, name="wiring").close()
    return str(folder / "ablate.db")


@pytest.fixture(autouse=True)
def default(ablate: Run, trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_DB", trained)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["query"], ["named query", "--list", "--tables"]),
        (["query", "--list", "means"], ["--list"]),
        (["query", "meens", "wiring"], ["'meens'", "'means'", "best-lr"]),
        (["query", "means"], ["needs study", "ablate query means STUDY"]),
        (["query", "means", "wiring", "b"], ["STUDY", "'b'"]),
        (["query", "learning-curve", "series=loss"], ["needs study"]),
        (["query", "shared-runs", "a"], ["no parameter", "'a'"]),
        (["query", "means", "wirin"], ["'wirin'", "did you mean 'wiring'"]),
        (["query", "learning-curve", "wiring", "lss"], ["series 'lss'", "did you mean 'loss'"]),
        (["query", "SELECT", "cell"], ["in quotes"]),
        (["query", "SELECT :a, 1"], [":a", "a=VALUE"]),
        (["query", "SELECT 1", "cell"], ["'cell'", "NAME=VALUE"]),
        (["query", "SELECT stream_rms FROM runs"], ["no column", "FROM runs JOIN final"]),
        (["query", "SELECT loss FROM runs WHERE cell = pre"], ["'pre'", "single quotes"]),
        (["query", "SELECT loss FROM runs WHERE cell IN (pre)"], ["'pre'", "single quotes"]),
        (["query", "SELECT loss FROM runs WHERE cel = 'pre'"], ["did you mean 'cell'"]),
        (["query", "SELECT lss FROM runs"], ["did you mean 'loss'"]),
        (["report", "--db", "/dev/null"], ["/dev/null", "name a file"]),
        (["query", "SELECT * FROM rums"], ["'rums'", "'runs'", "curves"]),
        (["query", "means", "wiring", "--format", "xml"], ["'xml'", "csv"]),
        (["compare", "1", "1"], ["same run"]),
        (["compare", "1", "99"], ["'99'"]),
        (["compare", "1", "2", "--plot", "no/folder/x.svg"], ["no/folder/x.svg cannot be written"]),
        (["export", "wiring", "out"], ["'out'", ".csv, .tsv, .json, .jsonl, .parquet"]),
        (["export", "wiring", "out.xls"], ["'.xls'", ".csv"]),
        (["export", "wiring", "out.parquet.gz"], ["'.parquet'", ".csv.gz"]),
        (["export", "wiring", "-", "--to", "xls"], ["'xls'", "jsonl"]),
        (["export", "wiring", "out.csv", "--what", "runes"], ["'runes'", "'runs'"]),
        (["export", "wirin", "out.csv"], ["'wirin'", "'wiring'"]),
        (["export", "wiring", "no/folder/out.csv"], ["no/folder/out.csv cannot be written"]),
        (["browse", "--db", "none.db"], ["none.db"]),
        (["db", "thin", "--db", "none.db"], ["none.db"]),
        (["new", "x"], ["nothing varies", "--factor", "`ablate factors`"]),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_questions_are_one_line(
    ablate: Run,
    trained: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setenv("ABLATE_DB", trained)
    assert not refused(ablate, arguments, words) or arguments[0] == "compare"


# -- named queries ---------------------------------------------------------------------------------


def test_queries_are_listed_and_asked_by_name(ablate: Run, trained: str) -> None:
    _, out, _ = ablate("query", "--list")
    for question in QUESTIONS.values():
        assert f" {question.name} " in out and " ".join(question.answers.split()[:4]) in out
    listed = json.loads(ablate("query", "--list", "--format", "json")[1])
    assert [row["name"] for row in listed] == list(QUESTIONS) and all(
        "SELECT" in row["sql"] for row in listed
    )
    assert ablate("query", "--list", "--format", "md")[1] == (
        ROOT / "docs" / "queries.md"
    ).read_text(encoding="utf-8")
    _, out, _ = ablate("query", "means", "wiring", "--format", "csv")
    assert list(csv.reader(io.StringIO(out)))[1:] == [
        ["", "topology=parallel", "1", "1.75", "1.75", "1.75"],
        ["", "topology=serial", "2", "2.5", "2.0", "3.0"],
    ]
    assert ablate("query", "means", "study=wiring", "--format", "csv")[1] == out
    code, out, err = ablate("query", "best-lr", "wiring")
    assert (code, out.split("\n")[0], err) == (0, "group  lr  metric  tried  at_edge", "no rows\n")


def test_sql_takes_values(ablate: Run, trained: str) -> None:
    sql = "SELECT run FROM runs WHERE cell = :cell AND seed = :seed AND ':no' <> ''"
    assert (
        ablate("query", sql, "cell=topology=parallel", "seed=1", "--format", "csv")[1] == "run\n4\n"
    )
    sql = (  # text is more than any number
        "SELECT typeof(:a), typeof(:b), typeof(:c), typeof(:d), 5.5 - 1 < :a"
    )
    values = ("a=1", "b=-1.5e3", "c=1e", "d=", "--format", "csv")
    assert ablate("query", sql, *values)[1].splitlines()[1] == "integer,real,text,text,0"


# -- two runs --------------------------------------------------------------------------------------


def lines(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip()]


def test_compare_shows_fields_finals_and_curves(ablate: Run, trained: str) -> None:
    code, out, _ = ablate("compare", "1", "2")
    assert code == 0
    assert out.startswith(
        "Run 1: complete. topology=serial in wiring, seed 0\nRun 2: complete. topology=parallel in"
        " wiring, seed 0\n"
    )
    found = lines(out)
    fields = [
        line
        for line in found
        if len(line) == 3 and line[0] in ("topology", "seed", "lr", "n_layer", "n_params")
    ]
    assert fields == [["topology", "serial", "parallel"]]  # and nothing that is alike
    assert ["loss", "2.00", "1.75", "−0.25"] in found, "of runs whose deviation over seeds is 0.71"
    assert ["stream_rms", "at", "1", "2", "2", "+0"] in found
    assert [line[-2:] for line in found if line[-1:] == ["2.00"] and "█" in " ".join(line)] == [
        ["4.00", "2.00"]
    ]
    assert ["81.9k", "3.00", "2.75", "−0.25"] in found
    other = ablate("compare", "2", "1")[1]
    assert ["loss", "1.75", "2.00", "+0.25"] in lines(other)


def test_compare_with_a_run_that_diverged(ablate: Run, trained: str) -> None:
    code, out, _ = ablate("compare", "3", "4")
    assert code == 0 and "Run 4: diverged." in out
    found = lines(out)
    assert ["loss", "3.00", "NaN", "–"] in found
    assert ["stream_rms", "at", "0", "1", "–", "–"] in found
    assert "××" in out
    assert ["81.9k", "4.00", "Infinity", "–"] in found


def test_compare_draws(ablate: Run, trained: str) -> None:
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        code, out, _ = ablate("compare", "1", "2", "--plot", f"both.{kind}")
        assert code == 0 and out.endswith(f"Drawn: both.{kind}\n")
        assert Path(f"both.{kind}").read_bytes().startswith(start)
    assert "run 2" in Path("both.svg").read_text()
    code, _, error = ablate("compare", "1", "2", "--plot", "both.jpg")
    assert code == 2 and "'.jpg'" in error and ".svg, .pdf, .png" in error


@pytest.mark.parametrize(
    ("curve", "low", "high", "drawn"),
    [
        ({}, 0.0, 0.0, ""),
        ({25: 5.0}, 5.0, 5.0, " ▁"),
        ({0: 0.0, 50: 0.5, 75: 1.0}, 0.0, 1.0, "▁▁▅█"),
        ({0: 0.0, 50: 1.0}, 0.0, 1.0, "▁▁█"),  # one that ended halfway
        ({0: -1e308, 25: 0.0, 50: 1e308}, -1e308, 1e308, "▁▅█"),
        ({0: 0.0, 25: 5e-324}, 0.0, 5e-324, "▁█"),
        ({0: math.nan, 50: math.inf, 100: 1.0}, 1.0, 1.0, "×××▁"),
        ({step: 1 - step / 100 for step in range(101)}, 0.0, 1.0, "▇▅▃▁"),
    ],
)
def test_sparklines(
    monkeypatch: pytest.MonkeyPatch, curve: dict[int, float], low: float, high: float, drawn: str
) -> None:
    monkeypatch.setattr(compare, "WIDTH", 4)
    assert compare.sparkline(curve, 100, low, high) == drawn


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet", "CSV"])
def test_export_says_what_it_wrote(ablate: Run, suffix: str) -> None:
    code, out, _ = ablate("export", "wiring", f"curves.{suffix}", "--what", "curves")
    assert code == 0 and out.startswith(f"curves.{suffix}: 12 rows, ")
    assert [path.name for path in Path.cwd().glob("curves.*")] == [f"curves.{suffix}"]


def test_export_to_a_pipe_is_the_file_alone(ablate: Run) -> None:
    for kind in ("csv", "tsv", "json", "jsonl"):
        assert ablate("export", "wiring", f"runs.{kind}")[0] == 0
        for place in ("-", ""):
            code, out, err = ablate("export", "wiring", place, "--to", kind)
            assert (code, err) == (0, "")
            assert out == Path(f"runs.{kind}").read_text(encoding="utf-8")
    for name in ("a.csv.gz", "b.CSV.GZ"):
        assert ablate("export", "wiring", name)[0] == 0
    packed = Path("a.csv.gz").read_bytes()
    assert gzip.decompress(packed) == Path("runs.csv").read_bytes()
    assert packed == Path("b.CSV.GZ").read_bytes()


def test_sql_is_read_from_standard_input(ablate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT count(*) AS n\n-- with a comment\nFROM runs WHERE study = :study\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(sql))
    code, out, _ = ablate("query", "-", "study=wiring", "--format", "jsonl")
    assert code == 0 and json.loads(out)["n"] > 0
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    code, _, err = ablate("query", "-")
    assert code == 2 and "standard input has no SELECT" in err


def test_parquet_goes_to_a_pipe_but_not_to_a_terminal(
    ablate: Run, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "ablate", "export", "wiring", "--to", "parquet"]
    command += ["--what", "curves", "--db", trained]
    piped = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
    frame = pd.read_parquet(io.BytesIO(piped))
    pd.testing.assert_frame_equal(frame, results.curves("wiring", db=trained), check_exact=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, _, err = ablate("export", "wiring", "-", "--to", "parquet")
    assert code == 2 and "terminal" in err


def test_an_export_that_fails_leaves_the_old_file(
    ablate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.csv").write_text("old")

    def full(path: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        code, _, err = ablate("export", "wiring", "x.csv")
    assert (code, err) == (2, "ablate: x.csv cannot be written: no space left on device\n")
    assert Path("x.csv").read_text() == "old" and [
        path.name for path in Path.cwd().glob("x.*")
    ] == ["x.csv"]


@pytest.mark.parametrize("kind", ["pdf", "png", "svg"])
def test_a_figure_on_a_full_disk_is_one_line(ablate: Run, kind: str) -> None:
    Path(f"full.{kind}.tmp").symlink_to("/dev/full")
    code, _, err = ablate("figure", "wiring", "effects", "--out", f"full.{kind}")
    assert (code, err.count("\n")) == (2, 1) and "No space left on device" in err


# -- a browser -------------------------------------------------------------------------------------

STUB = """
import json, sys
print(json.dumps([sys.argv[1:], json.load(sys.stdin)]))
"""


def test_browse_hands_the_database_and_the_queries_to_datasette(
    trained: str, tmp_path: Path
) -> None:
    (tmp_path / "stub" / "datasette").mkdir(parents=True)
    (tmp_path / "stub" / "datasette" / "__init__.py").touch()
    (tmp_path / "stub" / "datasette" / "__main__.py").write_text(STUB)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path / 'stub'}"}
    command = [sys.executable, "-m", "ablate", "browse", "--port", "8123"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    address, answer = done.stdout.splitlines()
    assert re.fullmatch(r"Open http://127\.0\.0\.1:8123/\?token=[\w-]{30,}", address)
    arguments, metadata = json.loads(answer)
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert address.partition("token=")[2] not in " ".join(arguments)  # which other users see
    assert (
        arguments[:2] == ["serve", trained] and arguments[arguments.index("--port") + 1] == "8123"
    )
    assert not {"-i", "--immutable"} & set(arguments)  # a run may be writing
    queries = metadata["databases"]["ablate"]["queries"]
    assert {name: query["sql"] for name, query in queries.items()} == {
        one.name: one.sql for one in QUESTIONS.values()
    }


def test_browse_says_what_it_needs(
    ablate: Run, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = ablate("browse")
    assert code == 2 and "pip install 'ablate-studies[browse]'" in err and err.count("\n") == 1


def ask(path: str, *headers: tuple[str, str]) -> tuple[int, dict[str, str], str]:
    """What a guarded application answers: status, headers, body."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {"type": "http", "path": path, "query_string": query.encode()}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    asyncio.run(guard.guarded(app, "secret")(scope, None, send))
    start, body = sent
    answered = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], answered, body["body"].decode()


OURS = ("host", "127.0.0.1:8001")
COOKIE = ("cookie", "x=1; ablate_8001=secret")


def test_browse_answers_the_printed_address_alone() -> None:
    status, headers, _ = ask("/ablate/runs?a=1&token=secret&b=%2F", OURS)
    assert (status, headers["location"]) == (303, "/ablate/runs?a=1&b=%2F")
    cookie = headers["set-cookie"]
    assert cookie.startswith("ablate_8001=secret;") and "SameSite=Strict" in cookie
    assert ask("/ablate/runs", OURS, COOKIE)[::2] == (200, "data")
    assert ask("/", ("Host", "LOCALHOST:8001"), COOKIE)[0] == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", [OURS]),
        ("/?token=", [OURS]),
        ("/?token=other", [OURS]),
        ("/", [OURS, ("cookie", "ablate_8001=")]),
        ("/", [OURS, ("cookie", "ablate_8002=secret")]),
        ("/", [COOKIE]),
        ("/?token=secret", [("host", "evil.example:8001"), COOKIE]),
        ("/", [("host", "127.0.0.1.evil.example:8001"), COOKIE]),
        ("/", [("host", "evil.example"), OURS, COOKIE]),
        ("/", [("host", "[::1]:8001"), COOKIE]),
        ("/", [OURS, ("cookie", '"; ablate_8001')]),
    ],
)
def test_browse_refuses_other_names_and_requests_without_its_token(
    path: str, headers: list[tuple[str, str]]
) -> None:
    status, answered, body = ask(path, *headers)
    assert status == 403 and "data" not in body and "set-cookie" not in answered


# -- completion ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "typed", "offered"),
    [
        ("bash", "ablate new x --factor topolo", ["topology="]),
        ("bash", "ablate new x --factor topology=serial,par", ["serial,parallel"]),
        ("bash", "ablate new x --factor schedule=", ["cosine", "linear", "constant", "wsd"]),
        ("bash", "ablate run quickstart --device cu", ["cuda"]),
        ("zsh", "ablate query best-lr ", ["wiring"]),
        ("fish", "ablate query be", ["best-lr"]),
        ("zsh", "ablate new x --factor topology=serial,par", ["topology=serial,parallel"]),
        ("fish", "ablate new x --factor topology=serial,par", ["topology=serial,parallel"]),
    ],
)
def test_completion(trained: str, shell: str, typed: str, offered: list[str]) -> None:
    """Bash hands words over one a line, broken at "="."""
    words = typed.replace("=", " = ").split(" ")
    found = completed(
        shell,
        ABLATE_DB=trained,
        COMP_WORDS="\n".join(words),
        COMP_CWORD=str(len(words) - 1),
        _TYPER_COMPLETE_ARGS=typed,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert (found.split('"')[1::2] if shell == "zsh" else found.split()) == offered
