"""Each named query gives hand-worked numbers, and the page lists them all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from cli_helpers import Run
from report_study import NAN, Levels, Outcome, few_replicates, study  # noqa: F401

from ablate.analysis import analyse
from ablate.plan import Decision
from ablate.store import Database, decisions, query
from ablate.store.questions import PARAMETERS, QUESTIONS, find, headings
from ablate.store.schema import metadata
from ablate.store.views import VIEWS

PLACES = {"serial": 0.0, "parallel": -0.1, "concat": 0.3}
SEEDS = (0, 1, 2)
FACTORS = {
    "topology": {name: {"topology": name} for name in PLACES},
    "n_layer": {"2": {"n_layer": 2}, "4": {"n_layer": 4}},
}


def loss(topology: str, depth: str, seed: int) -> float:
    return 3.0 + PLACES[topology] - 0.1 * int(depth) + 0.01 * seed


def outcome(levels: Levels, seed: int) -> Outcome | None:
    topology, depth = levels["topology"], levels["n_layer"]
    if "lr" in levels:  # the rates are tried on one seed; the highest of them diverges
        rate = float(levels["lr"])
        return Outcome(status="diverged") if rate > 5e-3 else Outcome(loss=3.0 + rate, seconds=7.0)
    if (topology, depth, seed) == ("concat", "4", 1):
        return Outcome(status="diverged", step=7, points={5: 4.0, 10: NAN}, seconds=3.0)
    if (topology, depth, seed) == ("concat", "4", 2):
        return Outcome(status="failed", error="one\ntwo", seconds=2.0)
    value = loss(topology, depth, seed)
    lengths = [("loss_at_length", 1, value), ("loss_at_length", 4, value + 0.3)]
    seconds = {"serial": 10.0, "parallel": 5.0, "concat": 20.0}[topology] * int(depth)
    return Outcome(points={5: value + 1, 10: value}, finals=lengths, seconds=seconds)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Two studies: `wiring`, tuned, and `shallow`, all of whose runs are runs of `wiring`."""
    folder = tmp_path_factory.mktemp("questions")
    with study(
        folder, FACTORS, outcome, seeds=3, within=["n_layer"], name="wiring", rates=(1e-3, 1e-2)
    ) as db:
        evidence = {
            "cells": ["topology=serial, n_layer=2"],
            "metric": "loss",
            "goal": "min",
            "seeds": [9],
            "ladder": [1e-3, 1e-2],
            "group": "topology=serial",
            "rates": [1e-3, 1e-2],
            "values": [3.001, None],
            "at_edge": True,
        }
        decisions.write(db, 1, [Decision("topology=serial, n_layer=2", "lr", 1e-3, evidence)])
        analyse(db, "wiring")
        study(
            folder, FACTORS | {"n_layer": {"2": {"n_layer": 2}}}, outcome, seeds=2, name="shallow"
        ).close()
        yield db


@pytest.fixture
def shared(db: Database) -> Iterator[None]:
    """A run that is compared in a second cell, too, and that tuned something in its own."""
    connection = sqlite3.connect(db.path, isolation_level=None)
    cell, run = connection.execute(
        "SELECT cell_id, run_id FROM member WHERE role = 'compare' AND cell_id < 6"
    ).fetchone()
    connection.execute(
        "INSERT INTO member VALUES (?, ?, 'compare', 99), (?, ?, 'tune', 99)",
        (cell + 1, run, cell, run),
    )
    yield
    connection.execute("DELETE FROM member WHERE ordinal = 99")
    connection.close()


def ask(db: Database, name: str, *words: str) -> list[dict[str, Any]]:
    question = find(name)
    columns, rows = query.run(db, question.sql, question.bind(words))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_means(db: Database) -> None:
    rows = ask(db, "means", "wiring")
    assert [row["cell"] for row in rows] == [
        f"topology={name}, n_layer={depth}"
        for depth in (2, 4)
        for name in ("parallel", "serial", "concat")
    ]
    assert rows[0] == {
        "stratum": "n_layer=2",
        "cell": "topology=parallel, n_layer=2",
        "runs": 3,
        "lowest": loss("parallel", "2", 0),
        "metric": pytest.approx(fmean(loss("parallel", "2", seed) for seed in SEEDS)),
        "highest": loss("parallel", "2", 2),
    }
    assert rows[-1]["runs"] == 1  # of concat at 4 layers one diverged and one failed


def test_topology_by_depth(db: Database) -> None:
    rows = {
        (row["topology"], row["n_layer"]): row["loss"]
        for row in ask(db, "topology-by-depth", "wiring")
    }
    assert rows.keys() == {(name, depth) for name in PLACES for depth in (2, 4)}
    assert rows["serial", 4] == pytest.approx(3.0 - 0.4 + 0.01)


def test_effects_and_pairs_lost(db: Database) -> None:
    rows = {(row["family"], row["level"]): row for row in ask(db, "effect-sizes", "wiring")}
    assert len(rows) == 4
    assert rows["topology | n_layer=2", "parallel"]["effect"] == pytest.approx(-0.1)
    assert (
        rows["topology | n_layer=4", "concat"]["pairs"],
        rows["topology | n_layer=4", "concat"]["lost"],
    ) == (1, 2)
    lost = ask(db, "pairs-lost", "wiring")
    assert [(row["level"], row["seed"], row["status"], row["baseline_status"]) for row in lost] == [
        ("concat", 1, "diverged", "complete"),
        ("concat", 2, "failed", "complete"),
    ]


def test_learning_curve_by_tokens(db: Database) -> None:
    rows = [
        row
        for row in ask(db, "learning-curve", "wiring")
        if row["cell"] == "topology=concat, n_layer=4"
    ]
    batch = 8192
    # one is NaN at its end
    assert [(row["tokens"], row["runs"]) for row in rows] == [(5 * batch, 2), (10 * batch, 1)]
    assert rows[0]["value"] == pytest.approx((loss("concat", "4", 0) + 1 + 4.0) / 2)
    assert ask(db, "learning-curve", "wiring", "train_loss") == []
    assert ask(db, "learning-curve", "series=loss", "wiring") == ask(db, "learning-curve", "wiring")


def test_learning_rates(db: Database) -> None:
    curve = [
        row for row in ask(db, "lr-curve", "wiring") if row["cell"] == "topology=serial, n_layer=2"
    ]
    assert [(row["tuned"], row["runs"], row["diverged"], row["metric"]) for row in curve] == [
        (1e-3, 1, 0, pytest.approx(3.001)),
        (1e-2, 1, 1, None),
    ]
    assert ask(db, "best-lr", "wiring") == [
        {"group": "topology=serial", "lr": 1e-3, "metric": "loss", "tried": 2, "at_edge": 1}
    ]
    assert ask(db, "best-lr", "shallow") == []


def test_chosen_values_have_the_name_of_what_was_tuned(
    tmp_path: Path, ablate: Run, db: Database
) -> None:
    columns = ["group", "lr", "metric", "tried", "at_edge"]
    assert headings(db, "best-lr", "wiring", columns) == columns
    assert headings(db, "means", "wiring", ["lr"]) == ["lr"]
    with study(tmp_path, FACTORS, outcome, seeds=2, within=["n_layer"], name="decay") as other:
        evidence = {"group": "all cells", "metric": "loss", "rates": [0.1], "at_edge": False}
        cell = "topology=serial, n_layer=2"
        decisions.write(other, 1, [Decision(cell, "weight_decay", 0.1, evidence)])
    asked = "query", "best-lr", "decay", "--db", str(tmp_path / "ablate.db"), "--format", "csv"
    code, out, _ = ablate(*asked)
    assert (code, out.splitlines()[0]) == (0, "group,weight_decay,metric,tried,at_edge")


def test_device_seconds_count_a_shared_run_once(db: Database) -> None:
    compared = {
        # seeds × seconds × layers
        "complete": 3 * (10 + 5 + 20) * 2 + 3 * (10 + 5) * 4 + 1 * 20 * 4,
        "diverged": 3.0,
        "failed": 2.0,
    }
    expected = {("compare", status): seconds for status, seconds in compared.items()}
    expected |= {("tune", "complete"): 6 * 7.0, ("tune", "diverged"): 6 * 10.0}

    def seconds(*words: str) -> dict[tuple[str, str], float]:
        return {
            (row["role"], row["status"]): row["device_seconds"]
            for row in ask(db, "gpu-seconds", *words)
        }

    assert seconds("wiring") == pytest.approx(expected)
    # `shallow` adds nothing: its runs are those of `wiring`
    assert seconds() == pytest.approx(expected)
    assert seconds("shallow") == pytest.approx({("compare", "complete"): 2 * (10 + 5 + 20) * 2})


@pytest.mark.usefixtures("shared")
def test_device_seconds_count_a_run_once_that_cells_and_roles_share(db: Database) -> None:
    from ablate.report.appendix import cost
    from ablate.report.data import gather

    rows = [tuple(row.values()) for row in ask(db, "gpu-seconds", "wiring")]
    assert rows == [
        ("compare", "complete", 16, 470.0),
        ("compare", "diverged", 1, 3.0),
        ("compare", "failed", 1, 2.0),
        ("tune", "complete", 6, 42.0),
        ("tune", "diverged", 6, 60.0),
    ]
    table = cost(gather(db, "wiring"))
    assert query.run(db, table.sql)[1] == rows
    assert [(*row[:2], *(each.value for each in row[2:])) for row in table.rows] == rows  # type: ignore[union-attr]


def test_size_length_and_pareto(db: Database) -> None:
    sizes = ask(db, "loss-by-size", "wiring")
    assert [row["n_params"] for row in sizes] == sorted(row["n_params"] for row in sizes) and len(
        sizes
    ) == 6
    longer = {row["cell"]: row for row in ask(db, "longer-context", "wiring")}
    value = [loss("serial", "2", seed) for seed in SEEDS]
    assert longer["topology=serial, n_layer=2"]["ratio"] == pytest.approx(
        fmean((each + 0.3) / each for each in value)
    )
    # seconds are 5, 10, 20 a layer: parallel is best at either depth; deeper is better and slower
    assert [row["cell"] for row in ask(db, "pareto", "wiring")] == [
        f"topology=parallel, n_layer={depth}" for depth in (2, 4)
    ]


def test_shared_and_unfinished_runs(db: Database) -> None:
    assert ask(db, "shared-runs") == [{"study": "shallow", "other": "wiring", "runs": 6}]
    (row,) = ask(db, "unfinished", "wiring")
    assert (row["cell"], row["seed"], row["status"], row["attempts"]) == (
        "topology=concat, n_layer=4",
        2,
        "failed",
        1,
    )


def test_every_question_runs_and_is_documented(db: Database) -> None:
    for question in QUESTIONS.values():
        assert question.answers.endswith(".") and set(question.parameters) <= PARAMETERS.keys()
        # as a form sends what is not filled in
        assert query.run(db, question.sql, dict.fromkeys(question.parameters, ""))[0]
        assert len(question.sql.splitlines()) <= 12
    # they share their names' space in Datasette
    assert not QUESTIONS.keys() & {*VIEWS, *metadata.tables}


def test_a_statement_with_values_reads_as_it_is_asked(db: Database) -> None:
    question = find("learning-curve")
    sql = question.with_values(study="it's :series")
    assert "study = 'it''s :series' AND series = coalesce(nullif('', '')" in sql
    assert query.run(db, sql)[1] == []


@pytest.mark.usefixtures("few_replicates")
def test_levels_stand_in_the_order_of_the_study(tmp_path: Path) -> None:
    """By name 100 comes before 12 and 2; one level is added later, between two others."""

    def made(*depths: int) -> Database:
        factors = {
            "n_layer": {str(depth): {"n_layer": depth} for depth in depths},
            "topology": {name: {"topology": name} for name in ("serial", "parallel")},
        }

        def outcome(levels: Levels, seed: int) -> Outcome:
            if "lr" not in levels and levels["topology"] == "parallel" and seed == 2:
                return Outcome(status="diverged", step=7)
            return Outcome(points={5: 4.0, 10: 3.0 + 0.01 * seed})

        within = {"within": ["n_layer"], "rates": (1e-3, 1e-2), "name": "depths"}
        return study(tmp_path, factors, outcome, seeds=3, **within)  # type: ignore[arg-type]

    made(2, 12, 24, 100).close()
    with made(2, 4, 12, 24, 100) as db:
        analyse(db, "depths")
        for depth in (100, 4):
            evidence = {"group": f"n_layer={depth}", "rates": [1e-3], "at_edge": False}
            cell = f"n_layer={depth}, topology=serial"
            decisions.write(db, 1, [Decision(cell, "lr", 1e-3, evidence)])
        depths = ["2", "4", "12", "24", "100"]
        asked = {
            "means": "stratum",
            "effect-sizes": "family",
            "pairs-lost": "family",
            "learning-curve": "cell",
            "lr-curve": "cell",
            "best-lr": "group",
        }
        for name, column in asked.items():
            found = [
                row[column].split("n_layer=")[1].split(",")[0] for row in ask(db, name, "depths")
            ]
            expected = ["4", "100"] if name == "best-lr" else depths
            assert list(dict.fromkeys(found)) == expected, name
            assert found == sorted(found, key=depths.index), name
