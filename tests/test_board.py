"""The board: who may read it, what it shows while runs train, and what it leaves alone."""

from __future__ import annotations

import ast
import contextlib
import html
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import report_study
from board_pages import Pages, begin, finish
from cli_helpers import ROOT, Run, refused
from launch_helpers import small_plan, wait_for
from report_study import Outcome, column
from store_plans import claim_next, plan_of, trained

from ablate import report, store
from ablate.board import growth, reports, watch
from ablate.journal import Journal
from ablate.plan import Plan
from ablate.report import explore
from ablate.store import Database, forget, ingest, owners, register

SMALL = plan_of(levels=("serial", "parallel"), seeds=(0, 1), steps=100)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request reads the database."""
    monkeypatch.setattr(watch, "EVERY", 0.0)
    monkeypatch.setattr(watch, "PAUSE", 0.0)
    monkeypatch.setattr(growth, "PAUSE", 0.0)


@pytest.fixture
def pages(db: Database) -> Iterator[Pages]:
    """A board on a database without studies."""
    pages = Pages(db.path)
    yield pages
    pages.close()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two studies that are done, which nobody has open."""
    path = tmp_path_factory.mktemp("done") / "ablate.db"
    with store.open(str(path), create=True) as db:
        trained(db, SMALL)
        trained(db, plan_of("other", ("serial", "no-skip"), seeds=(7,)))
    return path


def text_of(page: str) -> str:
    return " ".join(re.sub("<[^>]+>", " ", page).split())


# -- who may read it -------------------------------------------------------------------------------


def test_the_printed_address_opens_the_page_and_its_token_is_gone_from_the_address(
    done: Path,
) -> None:
    with contextlib.closing(Pages(done)) as pages:
        address = pages.server.address
        assert re.fullmatch(rf"http://127\.0\.0\.1:{pages.port}/\?token=[\w-]{{30,}}", address)
        host = ("Host", f"localhost:{pages.port}")
        status, headers, _ = pages.ask(f"/?study=wiring&{address.partition('?')[2]}", host)
        assert (status, headers["location"]) == (303, "/?study=wiring")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        status, headers, body = pages.ask("/", host, ("Cookie", cookie.partition(";")[0]))
        assert status == 200 and "wiring" in body
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        # through ssh -L, at another port of the reader's machine
        status, headers, _ = pages.ask(f"/?token={pages.server.token}", ("Host", "localhost:9"))
        assert status == 303
        forwarded = headers["set-cookie"].partition(";")[0]
        assert pages.ask("/", ("Host", "localhost:9"), ("Cookie", forwarded))[0] == 200


@pytest.mark.parametrize(
    ("path", "host", "cookie"),
    [
        ("/", "127.0.0.1:{port}", ""),
        ("/live?study=wiring", "127.0.0.1:{port}", "ablate_{port}=other"),
        ("/growth?study=wiring&since=0", "127.0.0.1:{port}", "ablate_1={token}"),
        ("/report/?study=wiring", "evil.example:{port}", "ablate_{port}={token}"),
        ("/vega.js", "", "ablate_{port}={token}"),
        ("/?token=other", "localhost:{port}", ""),
        ("/?token={token}", "evil.example", ""),
    ],
)
def test_others_are_refused(done: Path, path: str, host: str, cookie: str) -> None:
    with contextlib.closing(Pages(done)) as pages:
        known = {"port": pages.port, "token": pages.server.token}
        given = [("Host", host.format(**known))] if host else [("Accept", "*/*")]
        given += [("Cookie", cookie.format(**known))] if cookie else []
        status, headers, body = pages.ask(path.format(**known), *given)
        assert status == 403 and "wiring" not in body and "set-cookie" not in headers
        assert pages.server.token not in body


@pytest.mark.parametrize(
    "path", ["/report/files/../../../etc/passwd", "/report/files/%2e%2e/%2e%2e/a.db", "/x"]
)
def test_only_its_own_files_are_served(done: Path, path: str) -> None:
    with contextlib.closing(Pages(done)) as pages:
        assert pages.ask(path)[0] == 404


def test_it_writes_nothing(done: Path) -> None:
    before = {file: file.read_bytes() for file in done.parent.rglob("*") if file.is_file()}
    with contextlib.closing(Pages(done)) as pages:
        for path in ("/", "/?study=wiring", "/live?study=other", "/growth?study=wiring&since=0"):
            assert pages.ask(path)[0] == 200
        assert pages.ask("/", method="POST")[0] == 501
        assert pages.ask("/", method="HEAD")[::2] == (200, "")
    after = {file: file.read_bytes() for file in done.parent.rglob("*") if file.is_file()}
    assert after == before


# -- what it shows ---------------------------------------------------------------------------------


def known_to(page: dict[str, Any], answer: dict[str, Any] | None) -> None:
    """Merge an answer into what a page knows, as its script does."""
    if answer is None:
        return
    if answer["whole"]:
        page.clear()
    page["revision"] = answer["revision"]
    page["table"] = answer["table"] or page["table"]
    for one in answer["series"]:
        curves = page.setdefault("curves", {}).setdefault(one["name"], {})
        for run, steps, values in one["curves"]:
            curves[run] = (steps, values)
            if not steps:
                del curves[run]


def of_report(db: Database) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the report of the same database embeds: its table and its curves."""
    data = report.gather(db, "wiring")
    table = json.loads(json.dumps(explore.exploration(data)))
    table.pop("thinned")
    curves = {}
    for one in table.pop("series"):
        places = column(one["at"])
        each = zip(column(one["run"]), places, one["values"], strict=True)
        curves[one["name"]] = {run: (one["steps"][place], values) for run, place, values in each}
    return table, curves


def test_curves_of_few_runs_are_of_every_cell(
    db: Database, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(seeds=range(8))
    register.register(db, plan)
    trained(db, plan)
    monkeypatch.setattr(explore, "NUMBERS", 8 * 2 * explore.FEWEST)  # those of half the curves
    page: dict[str, Any] = {}
    known_to(page, pages.growth(0))
    kept = page["curves"]["loss"]
    runs = page["table"]["runs"]
    cells = [
        cell for run, cell in zip(column(runs["run"]), runs["cell"], strict=True) if run in kept
    ]
    assert len(cells) < 12
    assert set(cells) == {0, 1}


def test_it_grows_as_journals_are_ingested(db: Database, pages: Pages) -> None:
    assert "no study" in pages.ask("/")[2]
    study_id = register.register(db, SMALL)
    page: dict[str, Any] = {}
    known_to(page, pages.growth(0))
    numbers = column(page["table"]["runs"]["run"])
    assert numbers == [1, 2, 3, 4] and not page.get("curves", {}).get("loss")
    assert pages.growth(page["revision"]) is None
    with owners.Owner.here(db) as owner:
        first, second, third, _ = claim_next(db, study_id, owner, 4)
        for claim in (first, second):
            begin(claim, [10, 20])
            ingest.ingest(db, claim.attempt_id)
        known_to(page, pages.growth(page["revision"]))
        assert page["curves"]["loss"] == {1: ([10, 20], [0.9, 0.45]), 2: ([10, 20], [0.9, 0.45])}
        training = text_of(pages.live()["parts"]["training"])
        assert "20 /100" in training.replace("20/100", "20 /100") and "cuda:3" in training
        with Journal(first.journal) as journal:
            journal.append("metrics", steps=[50], series={"loss": [0.18]})
        finish(second, "failed", "Traceback:\n  line 1\nValueError: no loss")
        for claim in (first, second):
            ingest.ingest(db, claim.attempt_id)
        answer = pages.growth(page["revision"])
        assert answer and not answer["whole"]
        (changed,) = (one["curves"] for one in answer["series"] if one["name"] == "loss")
        assert [run for run, *_ in changed] == [1, 2]
        known_to(page, answer)
        finish(first, "complete")
        ingest.ingest(db, first.attempt_id)
        begin(third, [30])  # a curve of one point is none
        ingest.ingest(db, third.attempt_id)
        answer = pages.growth(page["revision"])
        assert answer and answer["table"]
        assert {run for one in answer["series"] for run, *_ in one["curves"]} <= {1}
        known_to(page, answer)
        shown = pages.live()
        table, curves = of_report(db)
        assert page["table"] == table
        assert {name: one for name, one in page["curves"].items() if one} == curves
    assert shown["title"].startswith("50%") and "2 of 4 runs" in text_of(shown["parts"]["progress"])
    assert "ValueError: no loss" in shown["parts"]["troubles"]
    assert "line 1" in shown["parts"]["troubles"] and "seed 0" in shown["parts"]["troubles"]
    assert "3 GiB" in shown["parts"]["devices"] and "18 s" in shown["parts"]["devices"]


def test_a_run_that_begins_again_loses_its_curve(db: Database, pages: Pages) -> None:
    study_id = register.register(db, SMALL)
    with owners.Owner.here(db) as owner:
        (claim,) = claim_next(db, study_id, owner, 1)
        begin(claim, [10, 20])
        ingest.ingest(db, claim.attempt_id)
        page: dict[str, Any] = {}
        known_to(page, pages.growth(0))
        assert page["curves"]["loss"].keys() == {1}
        begin(claim, [5])
        ingest.ingest(db, claim.attempt_id)
        known_to(page, pages.growth(page["revision"]))
        assert page["curves"]["loss"] == {}


def test_an_unchanged_page_is_not_sent_again(done: Path) -> None:
    with contextlib.closing(Pages(done)) as pages:
        _, headers, _ = pages.ask("/live?study=wiring")
        ours = (("Host", f"localhost:{pages.port}"), ("Cookie", pages.cookie))
        tag = ("If-None-Match", headers["etag"])
        assert pages.ask("/live?study=wiring", *ours, tag)[::2] == (304, "")
        assert pages.ask("/live?study=other", *ours, tag)[0] == 200


def test_several_studies(done: Path) -> None:
    with contextlib.closing(Pages(done)) as pages:
        listed = pages.ask("/")[2]
        assert "?study=wiring" in listed and "?study=other" in listed
        assert "?study=other" in pages.live("wiring")["parts"]["studies"]
    with contextlib.closing(Pages(done, "other")) as pages:
        body = pages.ask("/")[2]
        assert 'data-study="other"' in body and "study=wiring" not in body


def test_failures_are_grouped_by_their_last_line(db: Database, pages: Pages) -> None:
    study_id = register.register(db, plan_of(levels=("serial",), seeds=range(16)))
    with owners.Owner.here(db) as owner:
        for claim in claim_next(db, study_id, owner, 16):
            begin(claim, [10])
            odd = claim.run.seed % 4 == 1
            finish(claim, "failed", "killed" if odd else f"seed {claim.run.seed}\n<b>full</b>")
            claim.journal.with_suffix(".log").write_text(f"step\nlog of {claim.run.seed}\n")
            ingest.ingest(db, claim.attempt_id)
    found = pages.live()["parts"]["troubles"]
    groups = re.findall(r"<summary><b>(\d+)×</b> <code>(.*)</code>", found)
    assert groups == [("12", "&lt;b&gt;full&lt;/b&gt;"), ("4", "killed")]
    assert "1, 5, 9 and 13" in found
    # the newest of each: its error, or what was printed where the error says nothing
    assert "seed 15" in found and "seed 14" not in found
    assert "log of 13" in found and "log of 9" not in found and "log of 15" not in found


def test_tuning_runs_are_named_by_what_they_try(tmp_path: Path) -> None:
    toml = 'name = "topology"\n[tune]\nlr = [1e-3, 1e-1]\n'
    db = report_study.study(
        tmp_path,
        {"topology": {"serial": {}, "parallel": {"topology": "parallel"}}},
        lambda levels, seed: Outcome(status="failed") if levels.get("lr") == "0.01" else None,
        rates=[1e-3, 1e-2],
        toml=toml,
    )
    with db, contextlib.closing(Pages(db.path)) as pages:
        parts = pages.live("topology")["parts"]
        assert "topology=serial, seed 1000, lr 0.001" in text_of(parts["queue"])
        assert "topology=parallel, lr 0.01, seed 1000" in text_of(parts["troubles"])
        with owners.Owner.here(db) as owner:
            (claim,) = claim_next(db, 1, owner, 1)
            begin(claim, [10])
            ingest.ingest(db, claim.attempt_id)
            assert "lr 0.001" in text_of(pages.live("topology")["parts"]["training"])
            progress = text_of(pages.live("topology")["parts"]["progress"])
            due = "chosen yet for topology=serial and topology=parallel, so runs that need"
            assert f"No learning rate is {due}" in progress and "planned so far" not in progress


@pytest.mark.parametrize(
    ("settings", "role", "more"),
    [
        ("[tune]\nlr = [1e-3, 1e-1]\n", "tune", True),
        ("[tune]\nlr = [1e-3, 1e-1]\n", "compare", False),
        ("seeds = { pilot = 3, resolution = 0.1, max = 9 }\n", "compare", True),
        ("seeds = 3\n", "compare", False),
    ],
)
def test_it_says_whether_more_runs_will_be_planned(
    db: Database, pages: Pages, settings: str, role: Literal["tune", "compare"], more: bool
) -> None:
    study = replace(SMALL.study, toml=f'name = "wiring"\n{settings}')
    runs = tuple(replace(planned, role=role) for planned in SMALL.runs)
    register.register(db, replace(SMALL, study=study, runs=runs))
    progress = text_of(pages.live()["parts"]["progress"])
    assert ("4 runs that are planned so far" in progress) == more


def test_it_says_what_is_wrong_and_recovers(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WAIT", 0.05)
    path = tmp_path / "a.db"
    path.write_bytes(done.read_bytes())
    with contextlib.closing(Pages(path)) as pages:
        before = pages.live()
        assert before["error"] == ""
        path.rename(tmp_path / "away.db")
        gone = pages.live()
        assert "does not exist" in gone["error"] and "\n" not in gone["error"]
        assert gone["parts"] == before["parts"]
        assert pages.growth(0) is None
        assert pages.ask("/?study=wiring")[0] == 200
        (tmp_path / "away.db").rename(path)
        assert pages.live() == before
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert "locked" in pages.live()["error"]
            other.execute("ROLLBACK")
        assert pages.live() == before
        with store.open(str(path), create=True) as db:
            forget.forget(db, "wiring")
        assert "wiring" in pages.live()["error"] and pages.live("other")["error"] == ""
        assert pages.growth(0) is None


def test_a_study_that_was_forgotten_and_made_again_is_sent_as_a_whole(
    db: Database, pages: Pages
) -> None:
    trained(db, SMALL)
    page: dict[str, Any] = {}
    known_to(page, pages.growth(0))
    assert page["curves"]["loss"].keys() == {1, 2, 3, 4}
    forget.forget(db, "wiring")
    register.register(db, plan_of(levels=("serial", "no-skip"), seeds=(5,)))
    answer = pages.growth(page["revision"])
    assert answer and answer["whole"]
    known_to(page, answer)
    assert len(column(page["table"]["runs"]["run"])) == 2 and not page["curves"].get("loss")


# a report in no time: its words, and a file that it links to
REPORT = """
import pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--out") + 1], words[-1])
(folder / "tables").mkdir(parents=True, exist_ok=True)
(folder / "tables" / "runs.csv").write_text("run\\n")
with (folder / "report.html").open("a") as page:
    page.write(" ".join(words))
"""


def test_a_full_report_is_made_on_demand(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_COMMAND", REPORT)
    with contextlib.closing(Pages(done)) as pages:
        status, headers, _ = pages.ask("/report/?study=wiring")
        assert status == 303
        waits = headers["location"]
        wait_for(lambda: pages.ask(waits)[0] == 303, 60)
        page = pages.ask(waits)[1]["location"]
        _, _, body = pages.ask(page)
        assert body.startswith("report ") and f"--db {done} " in body
        assert pages.ask("/report/?study=wiring")[1]["location"] == page
        assert pages.ask(page)[2] == body  # which was kept
        assert pages.ask(f"{page.rpartition('/')[0]}/tables/runs.csv")[::2] == (200, "run\n")
        folder = pages.server.reports.folder
    assert not folder.exists()


def test_a_report_that_cannot_be_made_is_said_why(
    ablate: Run, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "import sys; sys.exit('ablate: x; ' + repr(sys.argv[1:]))"
    monkeypatch.setattr(reports, "_COMMAND", said)
    with contextlib.closing(Pages(done)) as pages:
        waits = pages.ask("/report/?study=wirings")[1]["location"]
        wait_for(lambda: "cannot be made" in pages.ask(waits)[2], 60)
        found = re.search("<p>x; (.*)</p>", pages.ask(waits)[2])
    assert found
    words = ast.literal_eval(html.unescape(found[1]))
    refused(ablate, words, ["'wirings'", "'wiring'"])  # as the command itself does


# -- commands --------------------------------------------------------------------------------------


def test_board_refuses_what_it_cannot_show(ablate: Run, done: Path) -> None:
    refused(ablate, ["board", "--db", "none.db"], ["none.db", "does not exist"])
    refused(ablate, ["board", "wirings", "--db", str(done)], ["'wirings'", "'wiring'"])
    with contextlib.closing(Pages(done)) as pages:
        port = str(pages.port)
        refused(ablate, ["board", "--port", port, "--db", str(done)], [port, "in use"])


def test_board_serves_until_ctrl_c(done: Path) -> None:
    command = [sys.executable, "-m", "ablate", "board", "other", "--db", str(done)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout and process.stderr
        line = process.stdout.readline()
        assert status_of(line.removeprefix("Open ").strip()) == 303
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def status_of(address: str) -> int:
    """What the printed address answers."""
    where, _, path = address.removeprefix("http://").partition("/")
    with contextlib.closing(http.client.HTTPConnection(where, timeout=30)) as connection:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status


def test_run_with_a_board(stub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there from before the first run until the end of the command, and not longer."""
    monkeypatch.setenv("STUB_DELAY", "0.05")
    plan: Plan = small_plan(tmp_path, [1e-3, 2e-3], 2, 20)
    path = tmp_path / "a.db"
    command = [sys.executable, "-m", "ablate", "run", str(tmp_path / "stub.toml"), "--board"]
    with subprocess.Popen(
        [*command, "--db", str(path), "--device", "cpu"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        address = process.stdout.readline().removeprefix("Board: ").strip()
        assert status_of(address) == 303
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert f"stub: {len(plan.runs)} complete" in rest
    wait_for(lambda: not answers(address), 30)


def answers(address: str) -> bool:
    try:
        return status_of(address) > 0
    except OSError:
        return False
