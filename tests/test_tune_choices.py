"""The choice of tuned rates in a study's effects, changes and interactions."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_frames import pairs
from scipy import stats as st

from ablate import analysis, report, results, store
from ablate.stats import selection

RATES = [1e-3, 1.78e-3, 3.16e-3, 5.62e-3, 1e-2]
LADDER = [1e-3, 3.16e-3, 1e-2]
STEP = math.log(3.16)


def decision(cells: list[str], seed: int, seeds: int = 3, value: float = 3e-3) -> dict[str, Any]:
    noise = np.random.default_rng(seed).normal(0, 0.02, size=(seeds, 5))
    values = (1.4 + 0.01 * np.arange(-2, 3) ** 2 + noise).tolist()
    evidence = {
        "group": cells[0],
        "cells": cells,
        "metric": "loss",
        "rates": RATES,
        "ladder": LADDER,
        "values": values if seeds > 1 else values[0],  # a flat list, as in older databases
    }
    return {"cell": cells[0], "name": "lr", "value": value, "evidence": evidence}


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["cell", "name", "value", "evidence"])


def expected(one: dict[str, Any], noise: tuple[float, int] | None = None) -> selection.Choice:
    values = np.atleast_2d(one["evidence"]["values"])
    return selection.choice_error(RATES, values, one["value"], step=STEP, noise=noise)


def test_a_contrast_of_arms_tuned_apart_has_the_error_of_both_choices() -> None:
    both = pairs({"serial": 0.0, "parallel": 0.01}, strata=("",))
    own = decision(["topology=parallel"], 1), decision(["topology=serial"], 2)
    (plain,) = analysis.of_pairs(both)
    (row,) = analysis.of_pairs(both, {}, analysis.choices(frame(*own), both))
    errors = [expected(one).error for one in own]
    assert min(errors) > 0
    squares = [plain.sd**2 / 6, *(error**2 for error in errors)]
    dfs = [5, *(expected(one).df for one in own)]
    df = sum(squares) ** 2 / sum(q**2 / d for q, d in zip(squares, dfs, strict=True))
    error = math.sqrt(sum(squares))
    assert (row.mean, row.sd) == (plain.mean, plain.sd)
    assert row.p == pytest.approx(2 * st.t.sf(abs(row.mean) / error, df))
    assert (row.lo, row.hi) == pytest.approx(st.t.interval(0.95, df, row.mean, error))
    assert row.resolvable > plain.resolvable and row.input_hash != plain.input_hash
    margin = 0.03
    narrow = analysis.equivalence(both, margin)
    wide = analysis.equivalence(both, margin, {}, analysis.choices(frame(*own), both))
    assert wide.p > narrow.p and wide.lo < narrow.lo


def test_arms_of_one_decision_or_of_the_same_tuning_runs_have_no_such_error() -> None:
    both = pairs({"serial": 0.0, "parallel": 0.01}, strata=("",))
    (plain,) = analysis.of_pairs(both)
    one = frame(decision(["topology=serial", "topology=parallel"], 1))
    twice = frame(decision(["topology=serial"], 1), decision(["topology=parallel"], 1))
    for decided in (one, twice, frame()):
        assert analysis.of_pairs(both, {}, analysis.choices(decided, both)) == [plain]


def test_a_change_between_strata_that_share_rates_has_no_such_error() -> None:
    strata = ("n_layer=4", "n_layer=12")
    both = pairs({"serial": 0.0, "parallel": 0.01}, strata=strata)
    cells = {
        level: [f"topology={level}, {stratum}" for stratum in strata]
        for level in ("serial", "parallel")
    }
    shared = frame(*(decision(each, seed) for seed, each in enumerate(cells.values())))
    alone = [cell for each in cells.values() for cell in each]
    apart = frame(*(decision([cell], seed) for seed, cell in enumerate(alone)))
    plain = analysis.changes(both).iloc[0]
    same = analysis.changes(both, {}, analysis.choices(shared, both)).iloc[0]
    wide = analysis.changes(both, {}, analysis.choices(apart, both)).iloc[0]
    assert same["p"] == plain["p"] and wide["hi"] - wide["lo"] > 1.05 * (plain["hi"] - plain["lo"])
    # and each contrast has both errors, whichever cells share its rates
    for row, alone in zip(
        analysis.of_pairs(both, {}, analysis.choices(shared, both)),
        analysis.of_pairs(both),
        strict=True,
    ):
        assert row.hi - row.lo > alone.hi - alone.lo


def test_with_one_tuning_seed_the_noise_is_that_of_the_compared_runs() -> None:
    both = pairs({"serial": 0.0, "parallel": 0.01}, strata=("",))
    own = [decision(["topology=parallel"], 1, seeds=1), decision(["topology=serial"], 2, seeds=1)]
    found = analysis.choices(frame(*own), both)
    for one, column in zip(own, ("value", "baseline_value"), strict=True):
        sd = float(both[column].std())
        assert found[one["cell"]].choice == expected(one, (sd, 5))


OLD_EVIDENCE = (
    "basis",
    "group",
    "cells",
    "metric",
    "seeds",
    "ladder",
    "rates",
    "values",
    "at_edge",
)


def test_decisions_of_older_versions_are_read(tmp_path: Path) -> None:
    """Version 0.1.0 tuned on one seed and stored its losses as a list of numbers."""
    path = tmp_path / "old.db"
    shutil.copyfile(Path(__file__).parents[1] / "results" / "reference.db", path)
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        query = (
            "SELECT cell_id, evidence FROM decision JOIN study ON study.id = study_id"
            " WHERE study.name = 'position'"
        )
        for cell, text in raw.execute(query).fetchall():
            old = {name: json.loads(text)[name] for name in OLD_EVIDENCE}
            old |= {"seeds": old["seeds"][:1], "values": old["values"][0]}
            raw.execute(
                "UPDATE decision SET evidence = ? WHERE cell_id = ?", (json.dumps(old), cell)
            )
    with store.open(str(path)) as db:
        effects = analysis.effects("position", db).set_index(["stratum", "level"])
        both = results.pairs("position", db)
        found = analysis.choices(results.decisions("position", db), both)
        assert {chosen.choice.df for chosen in found.values()} == {3.5}, "8 seeds, one tuned"
        for at, of in both.groupby(["stratum", "level"]):
            alone = st.ttest_1samp(of["value"] - of["baseline_value"], 0).confidence_interval()
            assert effects.loc[at, "lo"] < alone.low and effects.loc[at, "hi"] > alone.high
        assert "position" in report.answer(report.gather(db, "position"))
