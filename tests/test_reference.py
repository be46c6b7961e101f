"""The reference results: the database that is shipped is whole, and the page beside it says what it holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablate import analysis, store
from ablate.store import query as queries

RESULTS = Path(__file__).parents[1] / "results"
CELLS = {"topology": 32, "heads": 11, "position": 12, "scale": 34}
LARGEST = 15_000_000  # bytes
NUMBER = r"[+−]?\d+\.\d+"
COUNTED = "SELECT study.name, count(*) FROM study JOIN cell ON study_id = study.id GROUP BY 1"
STORED = "SELECT family, level, mean FROM effects WHERE study = '{}'"


@pytest.fixture(scope="module")
def db() -> store.Database:
    return store.open(str(RESULTS / "reference.db"))


def test_the_database_is_one_small_file_that_needs_no_log(db: store.Database) -> None:
    assert db.path.stat().st_size < LARGEST
    assert db.path.read_bytes()[18:20] == b"\x01\x01"  # readable where nothing can be written
    assert {name: cells for name, cells in queries.run(db, COUNTED)[1]} == CELLS  # noqa: C416


@pytest.mark.parametrize("study", ["topology", "heads", "position"])
def test_the_page_states_the_effects_that_the_runs_give(db: store.Database, study: str) -> None:
    stored = {(family, level): mean for family, level, mean in queries.run(db, STORED.format(study))[1]}
    section = (RESULTS / "README.md").read_text(encoding="utf-8").split(f"\n## {study.title()}\n")[1].split("\n## ")[0]
    stated = re.findall(rf"({NUMBER}) \(({NUMBER}), ({NUMBER})\)", section)
    for row in analysis.effects(study, db).itertuples():
        assert stored[row.family, row.level] == pytest.approx(row.mean)
        assert any(_same(words, (row.mean, row.lo, row.hi)) for words in stated), (row.level, row.mean, row.lo, row.hi)


def _same(words: tuple[str, ...], values: tuple[float, ...]) -> bool:
    """Whether numbers are `values`, as exactly as they are written."""
    pairs = [(word.replace("−", "-"), value) for word, value in zip(words, values, strict=True)]
    return all(float(word) == float(f"{value:.{len(word.split('.')[1])}f}") for word, value in pairs)
