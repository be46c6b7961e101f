"""The reference results: the database is complete, and its page shows what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate import analysis, results, store
from ablate.store import query as queries

RESULTS = Path(__file__).parents[1] / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
CELLS = {"topology": 32, "heads": 11, "position": 12, "scale": 34}
LARGEST = 15_000_000  # bytes
EFFECT = re.compile(r"([+−][\d.]+) \(([+−]?[\d.]+), ([+−]?[\d.]+)\)")
COUNTED = "SELECT study.name, count(*) FROM study JOIN cell ON study_id = study.id GROUP BY 1"
STORED = "SELECT family, level, mean FROM effects WHERE study = '{}'"


@pytest.fixture(scope="module")
def db() -> Iterator[store.Database]:
    with store.open(str(RESULTS / "reference.db")) as opened:
        yield opened


def rows(section: str) -> dict[str, list[str]]:
    """Return cells of the section's tables by the first word of the row."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {re.split(r"[ :]", first)[0].lower(): rest for first, *rest in reversed(found)}


def test_the_database_is_one_small_file_that_needs_no_log(db: store.Database) -> None:
    assert db.path.stat().st_size < LARGEST
    assert db.path.read_bytes()[18:20] == b"\x01\x01"  # readable where nothing can be written
    assert dict(map(tuple, queries.run(db, COUNTED)[1])) == CELLS


@pytest.mark.parametrize("study", ["topology", "heads", "position"])
def test_the_page_states_the_effects_that_the_runs_give(db: store.Database, study: str) -> None:
    stored = {
        (family, level): mean for family, level, mean in queries.run(db, STORED.format(study))[1]
    }
    page, strata = rows(study.title()), list(dict.fromkeys(results.arms(study, db)["stratum"]))
    effects = analysis.effects(study, db)
    for row in effects.itertuples():
        assert stored[row.family, row.level] == pytest.approx(row.mean)
        said = EFFECT.match(page[row.level][strata.index(row.stratum)])
        assert said and _same(said.groups(), (row.mean, row.lo, row.hi)), (
            row.level,
            row.stratum,
            row.mean,
            row.lo,
            row.hi,
        )
        assert ("inconclusive" in page[row.level][strata.index(row.stratum)]) is not bool(
            row.resolved
        )


def test_the_page_states_how_much_more_parallel_loses(db: store.Database) -> None:
    runs = results.load("scale", db)
    means = (
        runs[runs["role"] == "compare"]
        .groupby(["stratum", "topology"], observed=True)["loss"]
        .mean()
        .unstack()
    )
    page = rows("Scale")
    for stratum, serial, parallel in means[["serial", "parallel"]].itertuples():
        size, budget = re.fullmatch(r"size=(.*), flops=(.*)", stratum).groups()  # type: ignore[union-attr]
        assert (
            page[size.lower()][("3e13", "1e14", "3e14").index(budget)]
            == f"{parallel / serial - 1:+.2%}"
        ), stratum


def test_the_page_leads_to_files_that_are_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (RESULTS / link).is_file(), link


def _same(written: tuple[str, ...], values: tuple[float, ...]) -> bool:
    """Whether numbers are `values`, as exactly as they are written."""
    pairs = [(word.replace("−", "-"), value) for word, value in zip(written, values, strict=True)]
    return all(
        float(word) == float(f"{value:.{len(word.split('.')[1])}f}") for word, value in pairs
    )
