"""The reference results: the database is complete, and its page shows what it holds."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ablate import store
from ablate.store import query as queries

RESULTS = Path(__file__).parents[1] / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
CELLS = {
    "topology": 32,
    "heads": 11,
    "position": 12,
    "masking": 15,
    "masking-25m": 2,
    "masking-85m": 2,
    "scale": 60,
    "topology-debian": 8,
    "topology-25m": 10,
    "topology-85m": 5,
    "parallel-by-size": 6,
    "depth-by-width": 8,
    "wirings-by-depth": 20,
    "rnn-to-transformer": 6,
    "mae": 5,
    "corruption": 10,
    "corruption-finetuned": 11,
    "finetune": 15,
}
LARGEST = 2_700_000 * len(CELLS)  # bytes
COUNTED = (
    "SELECT study.name, count(*) FROM study JOIN cell ON study_id = study.id"
    " WHERE active GROUP BY 1"
)
UNFINISHED = "SELECT count(*) FROM runs WHERE status NOT IN ('complete', 'diverged')"
STORED = "SELECT stratum, level, mean, lo, hi FROM effects WHERE study = '{}'"


@pytest.fixture(scope="module")
def db() -> Iterator[store.Database]:
    with store.open(str(RESULTS / "reference.db")) as opened:
        yield opened


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """The script that writes the page's tables; it keeps what it has computed."""
    spec = importlib.util.spec_from_file_location("reference", RESULTS / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_database_is_one_small_complete_file_that_needs_no_log(db: store.Database) -> None:
    assert db.path.stat().st_size < LARGEST
    assert db.path.read_bytes()[18:20] == b"\x01\x01"  # readable where nothing can be written
    assert dict(map(tuple, queries.run(db, COUNTED)[1])) == CELLS
    assert queries.run(db, UNFINISHED)[1][0][0] == 0


@pytest.mark.parametrize("name", re.findall(r"<!-- table: ([\w-]+) -->", PAGE))
def test_the_page_has_the_tables_of_the_database(writer: ModuleType, name: str) -> None:
    (part,) = re.findall(rf"<!-- table: {name} -->.*?<!-- end -->", PAGE, re.DOTALL)
    assert writer.filled(part) == part, "out of date: python results/reference.py"


@pytest.mark.parametrize("study", CELLS)
def test_effects_of_the_page_are_those_that_sql_gives(
    db: store.Database, writer: ModuleType, study: str
) -> None:
    stored = {
        (stratum, level): tuple(math.nan if value is None else value for value in row)
        for stratum, level, *row in queries.run(db, STORED.format(study))[1]
    }
    found = writer.findings(study).of(writer.records.Contrast)
    assert {(one.stratum, one.level) for one in found} == stored.keys()
    for one in found:
        assert (one.mean, one.lo, one.hi) == pytest.approx(
            stored[one.stratum, one.level], nan_ok=True
        )


def test_the_page_leads_to_files_that_are_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (RESULTS / link).is_file(), link
