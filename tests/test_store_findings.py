"""Findings: replaced together, read in order, asked about in SQL."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cli_helpers import Run
from store_plans import fresh, plan_of, rows

from ablate.errors import AblateError
from ablate.store import findings, register
from ablate.store.findings import FindingRow


def test_findings_are_replaced_and_read_in_their_order(ablate: Run, tmp_path: Path) -> None:
    with fresh(tmp_path / "ablate.db") as db:
        study_id = register.register(db, plan_of())
        other = register.register(db, plan_of("other", ["serial", "concat"]))
        kept = [FindingRow("tuning", data={"rate": 0.1})]
        findings.write(db, other, kept)
        findings.write(db, study_id, [FindingRow("effect"), FindingRow("equivalence")])
        told = [
            FindingRow("effect", "depth=4", "topology", "parallel", "topology=parallel", {"p": 1}),
            FindingRow("caveat", data={"pairs": [1.5, -2.0], "text": "no cell"}),
        ]
        findings.write(db, study_id, told)
        assert findings.read(db, "wiring") == told
        assert findings.read(db, "other") == kept
        with pytest.raises(AblateError, match=r"'wirin'.*'wiring'"):
            findings.read(db, "wirin")
    code, out, _ = ablate("query", "found", "wiring", "--format", "csv", "--db", str(db.path))
    assert code == 0 and out.splitlines()[1].startswith("effect,depth=4,topology,parallel")


def test_numbers_that_json_lacks_do_not_stop_sql(tmp_path: Path) -> None:
    with fresh(tmp_path / "ablate.db") as db:
        study_id = register.register(db, plan_of())
        data = {"mean": math.nan, "interval": (0.5, math.inf)}
        findings.write(db, study_id, [FindingRow("effect", data=data)])
        assert findings.read(db, "wiring")[0].data == {"mean": None, "interval": [0.5, None]}
        sql = "SELECT data ->> '$.mean', data ->> '$.interval[0]' FROM findings"
        assert rows(db.path, sql) == [(None, 0.5)]
