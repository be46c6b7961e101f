"""What a report says of a whole grid is statsmodels' answer, on runs each of which counts once."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from report_study import Outcome, study
from statsmodels.stats.multitest import multipletests

from ablate.analysis.records import Contrast, GridLevel, GridTerm
from ablate.report import answer, grids
from ablate.report.data import ReportData, gather
from ablate.report.document import Table, exported
from ablate.store.noise import noise_of, over_seeds, settings_in

PARTS = {
    "topology": {name: {"topology": name} for name in ("serial", "parallel", "concat")},
    "norm": {name: {"norm": name} for name in ("pre", "post")},
}
SHIFT = {"serial": 0.0, "parallel": 0.03, "concat": 0.01, "pre": 0.0, "post": 0.02}


def loss(topology: str, norm: str, seed: int) -> float:
    noise = np.random.default_rng([seed, len(topology), len(norm)]).normal(0, 0.01)
    return 2 + SHIFT[topology] + SHIFT[norm] + float(noise)


def outcome(levels: dict[str, str], seed: int) -> Outcome:
    return Outcome(loss(levels["topology"], levels["norm"], seed))


def report_data(folder: Path, outcome=outcome, factors=PARTS, **options: object) -> ReportData:  # type: ignore[no-untyped-def]
    folder.mkdir(exist_ok=True)
    return gather(study(folder, factors, outcome, **options), "topology")


def frame(table: Table) -> pd.DataFrame:
    return pd.DataFrame(
        [[exported(cell) for cell in row] for row in table.rows], columns=list(table.columns)
    )


def test_main_effects_are_statsmodels(tmp_path: Path) -> None:
    combinations = itertools.product(PARTS["topology"], PARTS["norm"], range(5))
    runs = pd.DataFrame(combinations, columns=["topology", "norm", "seed"])
    runs["loss"] = [loss(*row) for row in runs.itertuples(index=False)]
    model = smf.ols(
        "loss ~ C(seed, Sum) + C(topology, Treatment('serial')) * C(norm, Sum)", runs
    ).fit()
    found = frame(grids.main_effects(report_data(tmp_path))).set_index("level")
    assert list(found.index) == ["parallel", "concat", "post"]
    names = {
        level: f"C(topology, Treatment('serial'))[T.{level}]" for level in ("parallel", "concat")
    }
    for level, name in names.items():
        assert found.loc[level, "against"] == "serial"
        assert found.loc[level, "effect"] == pytest.approx(model.params[name])
        assert found.loc[level, "95% interval"] == pytest.approx(model.conf_int().loc[name, 0])
        assert found.loc[level, "p"] == pytest.approx(model.pvalues[name])
    corrected = multipletests([model.pvalues[name] for name in names.values()], method="holm")[1]
    assert list(found["Holm p"][:2]) == pytest.approx(list(corrected))
    means = runs.groupby("norm")["loss"].mean()
    assert found.loc["post", "effect"] == pytest.approx(means["post"] - means["pre"])


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1.0), (1e6, 1e-7), (1.0, 0.0)])
def test_rounding_error_is_no_noise(tmp_path: Path, scale: float, shift: float) -> None:
    def exact(levels: dict[str, str], seed: int) -> Outcome:
        rounded = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)[seed % 2]  # which differ by 1e-16
        of = SHIFT[levels["topology"]] + SHIFT[levels["norm"]]
        both = 0.01 * (levels == {"topology": "parallel", "norm": "post"})
        return Outcome(scale * rounded * (1 + shift * (of + both)))

    data = report_data(tmp_path, exact)
    contrasts, terms = data.findings.of(Contrast), data.findings.of(GridTerm)
    assert contrasts and all(math.isnan(one.lo) == (shift > 0) for one in contrasts)
    assert terms and all(math.isnan(one.p) for one in terms)
    assert all(math.isnan(one.p) for one in data.findings.of(GridLevel))
    assert next(one.explained for one in terms if one.term == "residual") == 0 or not shift
    assert data.places == 4
    with data.db.read() as connection:
        differences = connection.exec_driver_sql("SELECT difference FROM pairs").scalars().all()
    assert len(set(differences)) > 3 or not shift  # the database has them as they are
    (setting, *_) = (one for _, one in settings_in(data.db))
    assert noise_of("topology", "loss", [setting], data.db) is None
    assert not over_seeds(data.db, study="topology", names=["loss"])
    assert "significant (" not in answer(data)


def test_a_run_under_two_names_is_one_observation(tmp_path: Path) -> None:
    once = report_data(tmp_path / "once")
    twice = report_data(
        tmp_path / "twice",
        factors={**PARTS, "heads": {"once": {"n_head": 4}, "again": {"n_head": 4, "n_kv_head": 4}}},
    )
    assert len(twice.good) == 2 * len(once.good) == 60
    pd.testing.assert_frame_equal(frame(grids.factors(once)), frame(grids.factors(twice)))


def test_a_grid_with_an_empty_cell_assumes_additive_effects(tmp_path: Path) -> None:
    def hole(levels: dict[str, str], seed: int) -> Outcome:
        broken = levels == {"topology": "concat", "norm": "post"}
        return Outcome(status="diverged", step=3) if broken else outcome(levels, seed)

    table = grids.factors(report_data(tmp_path, hole))
    assert list(frame(table)["term"]) == ["seed", "topology", "norm", "residual"]
    assert table.caption.endswith(
        "so effects of factors are assumed additive. 5 runs that diverged or failed are left out."
    )


def test_a_grid_that_cannot_be_fitted_gives_the_reason(tmp_path: Path) -> None:
    data = report_data(tmp_path, seeds=1)
    assert not grids.factors(data).rows and not grids.main_effects(data).rows
    (text,) = grids.notes(data)
    assert (
        text
        == "The variance that factors explain is not shown: 6 runs for 6 effects leave nothing to"
        " estimate noise from."
    )
    assert (
        grids.notes(
            report_data(
                tmp_path / "one", factors={"topology": PARTS["topology"], "norm": {"pre": {}}}
            )
        )
        == []
    )


def test_the_printed_answer_of_a_grid_has_its_main_effects(tmp_path: Path) -> None:
    data = report_data(tmp_path)
    for one in data.findings.of(GridLevel):
        said = f"{one.factor}={one.level} differs from {one.factor}={one.baseline_level} by"
        assert said in answer(data)
    within = report_data(tmp_path / "strata", within=["norm"])
    assert "Averaged over" not in answer(within), "the effects of each stratum are there"
