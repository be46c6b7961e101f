"""Frames from a database made by hand: what went in comes out, typed and in order."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from report_study import NAN, Outcome, study

import ablate
from ablate import results
from ablate.errors import AblateError
from ablate.store import Database, rows

TOPOLOGY = {"topology": {name: {"topology": name} for name in ("serial", "parallel", "concat")}}
DEPTHS = {**TOPOLOGY, "n_layer": {"4": {"n_layer": 4}, "12": {"n_layer": 12}}}


@pytest.fixture
def db(tmp_path: Path) -> Database:
    def outcome(levels: dict[str, str], seed: int) -> Outcome | None:
        if levels["topology"] == "concat" and seed == 1:
            return Outcome(status="diverged", step=7, points={5: 4.0, 6: math.inf, 7: NAN})
        if levels["topology"] == "concat" and seed == 2:
            return None
        return Outcome(
            points={5: 3.0 + seed, 10: 2.0 + seed},
            finals=[("stream_rms", 0, 1.0), ("stream_rms", 1, -math.inf)],
        )

    return study(tmp_path, DEPTHS, outcome, seeds=3, within=["n_layer"])


def test_load_has_one_row_a_member_with_factors_baseline_first(db: Database) -> None:
    frame = ablate.load("topology", db)
    assert len(frame) == 18
    assert list(frame["topology"].cat.categories) == ["serial", "parallel", "concat"]
    assert frame["topology"].cat.ordered
    assert (
        frame["topology"]
        .astype(str)
        .equals(frame["cell"].str.extract(r"topology=([^,]+)")[0].astype("str"))
    )
    assert set(frame["n_layer"]) == {4, 12}
    assert frame["n_layer"].dtype == "int64"  # numbers stay numbers
    assert frame["arm"].astype(str).equals(frame["topology"].astype(str))
    whole = frame[frame["status"] == "complete"]
    assert (whole["metric"] == 2.0 + whole["seed"]).all()


def test_what_is_not_there_is_nan_and_the_status_tells_why(db: Database) -> None:
    frame = (
        ablate.load("topology", db).query("topology == 'concat' and n_layer == 4").set_index("seed")
    )
    assert frame["status"].to_dict() == {0: "complete", 1: "diverged", 2: "planned"}
    assert frame["metric"].isna().to_dict() == {0: False, 1: True, 2: True}
    assert frame.loc[1, "diverged_at"] == 7
    # a step is a whole number, also beside runs that have none
    assert frame["diverged_at"].dtype == "Int64"
    assert frame["diverged_at"].isna().to_dict() == {0: True, 1: False, 2: True}


def test_curves_keep_nan_and_infinities_at_their_steps(db: Database) -> None:
    frame = ablate.curves("topology", "loss", db)
    one = frame[(frame["cell"] == "topology=concat, n_layer=4") & (frame["seed"] == 1)]
    assert list(one["step"]) == [5, 6, 7]
    values = list(one["value"])
    assert values[:2] == [4.0, math.inf]
    assert math.isnan(values[2])
    assert list(one["tokens"]) == [5 * 8192, 6 * 8192, 7 * 8192]
    # one that these runs did not record
    assert ablate.curves("topology", ["loss", "train_loss"], db).equals(frame)
    assert len(ablate.curves("topology", db=db)) == len(frame)


def test_finals_by_name(db: Database) -> None:
    frame = results.finals("topology", "stream_rms", db)
    assert set(frame["at"]) == {0.0, 1.0}
    assert (frame.loc[frame["at"] == 1.0, "value"] == -math.inf).all()
    everything = results.finals("topology", db=db)
    assert set(everything["name"]) == {"loss", "train_seconds", "stream_rms"}
    # the two diverged runs: measured, and NaN
    assert everything.loc[everything["name"] == "loss", "value"].isna().sum() == 2


@pytest.mark.parametrize("points", [None, 5])
def test_an_unknown_name_is_refused_with_the_nearest(db: Database, points: int | None) -> None:
    for wrong in ("lss", ["loss", "lss"]):
        with pytest.raises(AblateError, match="unknown series 'lss'; did you mean 'loss'"):
            ablate.curves("topology", wrong, db, points=points)
    with pytest.raises(
        AblateError, match=r"unknown final 'stream_rsm'; did you mean 'stream_rms'.*train_seconds"
    ):
        ablate.finals("topology", "stream_rsm", db)
    assert ablate.finals("topology", "accuracy", db).empty  # known, but not measured here


def test_every_frame_names_stratum_and_arm(db: Database) -> None:
    for frame in (
        ablate.load("topology", db),
        ablate.curves("topology", db=db),
        ablate.finals("topology", db=db),
    ):
        assert (
            list(frame["arm"].cat.categories) == ["serial", "parallel", "concat"]
            and frame["arm"].cat.ordered
        )
        assert frame["arm"].notna().all()
        assert (
            frame["cell"] == "topology=" + frame["arm"].astype(str) + ", " + frame["stratum"]
        ).all()


def test_frames_go_into_figures_as_they_are(db: Database) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    from ablate import figures

    runs = ablate.load("topology", db)
    drawn = [
        figures.curves(ablate.curves("topology", "loss", db)),
        figures.effects(ablate.effects("topology", db), ablate.pairs("topology", db)),
        figures.blocks(
            ablate.finals("topology", "stream_rms", db)
            .query("value > 0")
            .rename(columns={"at": "block"})
        ),
        figures.pareto(runs, x="device_seconds"),
        figures.heat(runs, x="n_layer", y="topology"),
        figures.ordered(runs, x="n_layer"),
        figures.scaling(
            runs.rename(
                columns={"n_params_body": "n", "tokens": "d", "flops": "c", "arm": "curve"}
            ).assign(held_out=False)
        ),
    ]
    assert all(isinstance(ax, Axes) and ax.has_data() for ax in drawn)
    plt.close("all")


def test_pairs_are_the_runs_of_one_seed(db: Database) -> None:
    frame = results.pairs("topology", db)
    assert len(frame) == 2 * 2 * 3
    assert (frame["baseline"].str.startswith("topology=serial")).all()
    known = frame[(frame["status"] == "complete")]
    assert (known["difference"] == known["value"] - known["baseline_value"]).all()


def test_arms_say_what_differs(tmp_path: Path, db: Database) -> None:
    arms = results.arms("topology", db)
    assert dict(zip(arms["cell"], arms["is_baseline"], strict=True))["topology=serial, n_layer=12"]
    factors = {
        "topology": TOPOLOGY["topology"],
        "norm": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    }
    (tmp_path / "two").mkdir()
    two = results.arms("topology", study(tmp_path / "two", factors, lambda levels, seed: None))
    # a grid's cells have one name, as in the plan
    assert list(two["arm"].astype(str)) == list(two["cell"])
    assert two["arm"].cat.categories[0] == "topology=serial, norm=pre"
    (tmp_path / "deep").mkdir()
    factors["n_layer"] = {str(n): {"n_layer": n} for n in (1, 2)}
    deep = study(
        tmp_path / "deep", factors, lambda levels, seed: None, within=["norm"], design="one-factor"
    )
    found = results.arms("topology", deep)
    assert "n_layer=2" in set(found["arm"]) and found["arm"].cat.categories[0] == "baseline"
    assert not found["arm"].astype(str).str.contains("norm=").any()


def test_orders_have_the_baseline_first(db: Database) -> None:
    assert results.orders("topology", db) == {
        "topology": ["serial", "parallel", "concat"],
        "n_layer": ["4", "12"],
    }
    assert results.levels("topology", db)["topology=concat, n_layer=12"] == {
        "topology": "concat",
        "n_layer": "12",
    }


def test_an_unfinished_study_has_typed_frames(tmp_path: Path) -> None:
    db = study(tmp_path, TOPOLOGY, lambda levels, seed: None)
    frame = ablate.load("topology", db)
    assert set(frame["status"]) == {"planned"}
    assert frame["metric"].dtype == float
    assert frame["metric"].isna().all()
    assert ablate.curves("topology", "loss", db).empty
    assert results.pairs("topology", db)["difference"].isna().all()


def test_nothing_can_be_written_through_a_reader(db: Database) -> None:
    with pytest.raises(Exception, match=r"readonly|read-only"):
        rows._select(db, "DELETE FROM run")


def test_a_study_that_is_read_in_parts_has_the_same_frames(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [
        lambda: ablate.load("topology", db, role=None),
        lambda: ablate.curves("topology", db=db, role=None),
        lambda: ablate.finals("topology", db=db),
        lambda: results.pairs("topology", db),
        lambda: results.attempts("topology", db),
    ]
    whole = [one() for one in read]
    monkeypatch.setattr(rows, "VALUES", 1)  # a row at once: of some a column has NULL alone
    for one, frame in zip(read, whole, strict=True):
        pd.testing.assert_frame_equal(one(), frame, check_exact=True)


def test_an_unknown_study_names_the_nearest(db: Database) -> None:
    with pytest.raises(AblateError, match="did you mean 'topology'"):
        ablate.load("topolgy", db)


def test_a_path_is_a_database_too(db: Database) -> None:
    assert ablate.load("topology", db.path).equals(ablate.load("topology", db))


def test_import_stays_light() -> None:
    code = (
        "import ablate, sys; print([m for m in ('pandas', 'torch', 'sqlalchemy', 'scipy') if m in"
        " sys.modules], ablate.load)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("[] <function load")
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        ablate.lood  # noqa: B018


def test_numeric_columns_survive_pandas(db: Database, tmp_path: Path) -> None:
    frame = ablate.curves("topology", "loss", db)
    frame.to_csv(tmp_path / "curves.csv", index=False)
    again = pd.read_csv(tmp_path / "curves.csv")
    pd.testing.assert_series_equal(again["value"], frame["value"])


def test_a_thinned_curve_keeps_its_ends_and_the_same_steps_in_every_run(tmp_path: Path) -> None:
    points = {step: 5.0 - step / 100 for step in range(3, 203)}
    whole = study(
        tmp_path,
        TOPOLOGY,
        lambda levels, seed: Outcome(points={**points, 7: math.inf, 8: NAN}),
        seeds=2,
    )
    full = ablate.curves("topology", "loss", whole)
    assert ablate.curves("topology", "loss", whole, points=1000).equals(full)
    thin = ablate.curves("topology", ["loss"], whole, points=20)
    steps = [list(run["step"]) for _, run in thin.groupby("run")]
    assert len(steps) == 6 and all(each == steps[0] for each in steps)
    assert 20 <= len(steps[0]) <= 24 and (steps[0][0], steps[0][-1]) == (3, 202)
    assert thin.equals(full[full["step"].isin(steps[0])].reset_index(drop=True))


def test_texts_lose_folders_and_other_columns_nothing() -> None:
    depth = pd.Categorical(["12", "2", "2"], categories=["12", "2"], ordered=True)
    command = ['["/data/me/bin/python", "~/train.py"]', None, "/v1"]
    cell = ["x=/data/one/a", "x=/data/two/a", "x=/data/two/a"]
    frame = pd.DataFrame(
        {"depth": depth, "loss": [1.0, math.nan, 2.0], "command": command, "cell": cell}
    )
    found = results.without_folders(frame)
    assert found["command"].dropna().tolist() == ['["…/python", "~/train.py"]', "/v1"]
    pd.testing.assert_frame_equal(found.drop(columns="command"), frame.drop(columns="command"))
