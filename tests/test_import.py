"""`ablate import`: what other tools and people wrote becomes a study, whole and only once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import sqlite3
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_helpers import ROOT, Run, refused
from report_study import few_replicates, svg_only  # noqa: F401
from scipy import stats as scipy_stats
from store_plans import plan_of

import ablate as package
from ablate import analysis, results, store
from ablate.analysis import records
from ablate.errors import AblateError
from ablate.metrics import likely_goal
from ablate.store import check
from ablate.store.register import register

EXAMPLE = str(ROOT / "studies" / "import-example.csv")
NAMED = ("--metric", "loss", "--factor", "optimizer", "--factor", "depth", "--seed", "seed")
ONE = ("--metric", "loss", "--factor", "optimizer", "--seed", "seed")
DB = "results/ablate.db"


def table(seeds: int = 5) -> pd.DataFrame:
    """Losses of two optimizers at two depths."""
    noise = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "optimizer": optimizer,
                "depth": depth,
                "seed": seed,
                "loss": 3 - depth / 10 - (optimizer == "adam") / 8 + noise.normal(0, 0.03),
            }
            for optimizer in ("sgd", "adam")
            for depth in (2, 4)
            for seed in range(seeds)
        ]
    )


def along(frame: pd.DataFrame, steps: int = 4) -> pd.DataFrame:
    """The same runs with a row for each step; the last has the loss of the table."""
    rows = [
        frame.assign(step=10 * at, loss=frame["loss"] + steps - at) for at in range(1, steps + 1)
    ]
    return pd.concat(rows).sort_values(["optimizer", "depth", "seed", "step"])


def done(run: Run, *arguments: str) -> str:
    """What an import says that works."""
    code, out, err = run("import", *arguments)
    assert (code, err) == (0, ""), err
    return out


def counts(study: str = "s", db: str = DB) -> dict[str, int]:
    """Status → number of runs."""
    return package.load(study, db)["status"].value_counts().to_dict()


def metrics_of(study: str = "s", *by: str) -> dict[Any, float]:
    """Levels and seed → metric of complete runs."""
    runs = package.load(study, DB)
    return {
        tuple(row[:-1]): row[-1] for row in runs[[*by, "seed", "metric"]].itertuples(index=False)
    }


def test_effects_are_those_of_scipy_s_paired_test(ablate: Run) -> None:
    frame = table()
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--within", "depth")
    effects = package.effects("s", DB).set_index("stratum")
    for depth, part in frame.groupby("depth"):
        wide = part.pivot(index="seed", columns="optimizer", values="loss")
        expected = scipy_stats.ttest_rel(wide["adam"], wide["sgd"])
        interval = expected.confidence_interval(0.95)
        found = effects.loc[f"depth={depth}"]
        assert found["n"] == 5
        assert found["mean"] == pytest.approx((wide["adam"] - wide["sgd"]).mean(), rel=1e-9)
        assert (found["lo"], found["hi"]) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert found["p"] == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.usefixtures("svg_only")
def test_the_example_gives_the_effects_of_the_study_that_it_is_from(ablate: Run) -> None:
    found = ("--metric", "loss", "--factor", "topology", "--factor", "n_layer", "--seed", "seed")
    done(ablate, EXAMPLE, "--study", "s", *found, "--within", "n_layer")
    reference = package.effects("topology", str(ROOT / "results" / "reference.db"))
    imported = package.effects("s", DB)
    assert len(imported) == 4
    for row in imported.to_dict("records"):
        depth = {"n_layer=4": "depth=4x112", "n_layer=12": "depth=12x64"}[row["stratum"]]
        same = reference[
            (reference["stratum"] == f"norm=pre, {depth}") & (reference["level"] == row["level"])
        ].iloc[0]
        assert row["n"] == same["n"] == 8
        assert row["mean"] == pytest.approx(same["mean"], abs=1e-6)  # losses have six digits
        # there the error of the tuned rates is part of the interval
        assert 0 < row["hi"] - row["lo"] < same["hi"] - same["lo"]
    code, out, _ = ablate("report", "s")
    assert code == 0 and "parallel is worse than serial" in out
    page = Path("results/s/report.md").read_text(encoding="utf-8")
    assert "What the study cost" not in page and "How it was run" not in page


WRITERS: dict[str, Callable[[pd.DataFrame, str], Any]] = {
    "runs.csv": lambda frame, path: frame.to_csv(path, index=False),
    "runs.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "runs.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "runs.jsonl": lambda frame, path: frame.to_json(
        path, orient="records", lines=True, double_precision=15
    ),
    "runs.parquet": lambda frame, path: frame.to_parquet(path),
    "runs.xlsx": lambda frame, path: frame.to_excel(path, index=False),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_that_pandas_writes(ablate: Run, name: str) -> None:
    frame = table(3)
    WRITERS[name](frame, name)
    done(ablate, name, "--study", "s", *NAMED)
    expected = frame.set_index(["optimizer", "depth", "seed"])["loss"].to_dict()
    assert metrics_of("s", "optimizer", "depth") == pytest.approx(expected)


def test_a_wide_table_has_a_column_for_each_seed(ablate: Run) -> None:
    frame = table(3)
    wide = frame.pivot(index=["optimizer", "depth"], columns="seed", values="loss")
    wide.rename(columns="seed {}".format).reset_index().to_csv("a.csv", index=False)
    wide.rename(columns="run_{}_final".format).reset_index().to_csv("b.csv", index=False)
    done(ablate, "a.csv", "--study", "a", *NAMED)
    done(ablate, "b.csv", "--study", "b", *NAMED, "--pattern", r"run_(?P<seed>\d+)_final")
    expected = frame.set_index(["optimizer", "depth", "seed"])["loss"].to_dict()
    for study in ("a", "b"):
        assert metrics_of(study, "optimizer", "depth") == pytest.approx(expected)


def test_rows_of_steps_become_curves(ablate: Run) -> None:
    frame = along(table(2))
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--step", "step")
    curves = package.curves("s", "loss", DB)
    found = curves.set_index(["cell", "seed", "step"])["value"]
    for row in frame.itertuples():
        cell = f"optimizer={row.optimizer}, depth={row.depth}"
        assert found[cell, row.seed, row.step] == row.loss
    last = frame[frame["step"] == 40].set_index(["optimizer", "depth", "seed"])["loss"].to_dict()
    assert metrics_of("s", "optimizer", "depth") == last


def test_curves_of_imported_runs_are_compared_by_steps(ablate: Run) -> None:
    along(table(2)).assign(b=1.0).to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--metric", "b", "--step", "step")
    code, out, error = ablate("compare", "1", "2", "--plot", "c.svg")
    assert code == 0 and Path("c.svg").exists(), error
    (begin,) = (at for at, line in enumerate(out.splitlines()) if line.startswith(" loss at step"))
    steps = [line.split()[0] for line in out.splitlines()[begin + 2 : begin + 6]]
    assert steps == ["10", "20", "30", "40"]


def test_the_best_value_or_that_of_a_step_may_decide(ablate: Run) -> None:
    frame = along(table(2))
    frame["loss"] = (frame["step"] - 25).abs() + frame["loss"] / 100  # lowest at 20 or 30
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "best", *NAMED, "--step", "step", "--at", "best")
    done(ablate, "runs.csv", "--study", "step", *NAMED, "--step", "step", "--at", "20")
    by_run = frame.groupby(["optimizer", "depth", "seed"])
    assert metrics_of("best", "optimizer", "depth") == by_run["loss"].min().to_dict()
    at = frame[frame["step"] == 20].set_index(["optimizer", "depth", "seed"])["loss"].to_dict()
    assert metrics_of("step", "optimizer", "depth") == at


def test_cells_that_end_at_different_steps_are_named(ablate: Run) -> None:
    frame = along(table(2))
    frame[(frame["optimizer"] == "sgd") | (frame["step"] <= 20)].to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *ONE, "--step", "step", "--where", "depth=4")
    (found,) = analysis.findings("s", DB).of(records.OtherSteps)
    assert found.cells == ("optimizer=adam", "optimizer=sgd")
    assert found.first == found.last == (20, 40)


def test_runs_without_a_seed_are_numbered_as_the_page_says(ablate: Run) -> None:
    frame = table().astype({"loss": object})
    frame.loc[0, "loss"] = "NaN"  # stays a NaN in the numbered table
    frame.drop(columns="seed").to_csv("runs.csv", index=False)
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"### Tables without a seed\n.*?```python\n(.*?)```", page, re.S)
    exec(code, {})
    done(ablate, "numbered.csv", "--study", "s", *NAMED)
    expected = frame.drop(0).set_index(["optimizer", "depth", "seed"])["loss"].to_dict()
    assert counts() == {"complete": 19, "diverged": 1}
    found = metrics_of("s", "optimizer", "depth")
    del found["sgd", 2, 0]
    assert found == pytest.approx(expected)


def test_what_is_no_ordinary_number_is_an_outcome(ablate: Run) -> None:
    """A NaN has diverged, an empty cell has failed; both are runs, and both lose their pairs."""
    frame = table().astype({"loss": object})
    frame.loc[0, "loss"], frame.loc[6, "loss"], frame.loc[12, "loss"] = "nan", "", "OOM"
    frame.loc[18, "loss"] = "inf"
    frame.to_csv("runs.csv", index=False)
    out = done(ablate, "runs.csv", "--study", "s", *NAMED)
    assert counts() == {"complete": 16, "diverged": 2, "failed": 1, "oom": 1}
    assert all(f"line {line}" in out for line in (2, 8, 14, 20))
    effects = package.effects("s", DB).set_index("cell")
    assert list(effects[["n", "lost"]].loc["optimizer=adam, depth=2"]) == [3, 2]


def test_a_curve_that_stops_where_others_go_on_has_diverged(ablate: Run) -> None:
    """Pandas writes NaN as an empty cell: the last number before it is no result."""
    frame = along(table(3))
    of_one = (frame["optimizer"] == "adam") & (frame["depth"] == 2) & (frame["seed"] == 1)
    frame.loc[of_one & (frame["step"] > 20), "loss"] = math.nan
    frame.to_csv("nan.csv", index=False)
    done(ablate, "nan.csv", "--study", "s", *NAMED, "--step", "step")
    lost = package.load("s", DB).query("status == 'diverged'")
    assert [tuple(row) for row in lost[["cell", "seed", "diverged_at"]].to_numpy()] == [
        ("optimizer=adam, depth=2", 1, 30)
    ]
    frame[~(of_one & (frame["step"] > 20))].to_csv("short.csv", index=False)
    out = done(ablate, "short.csv", "--study", "short", *NAMED, "--step", "step")
    assert "Warning: 1 run" in out and "step 20 of 40" in out


def test_an_exported_study_is_imported_with_the_same_effects(ablate: Run) -> None:
    """The commands of docs/export.md, in order."""
    shutil.copytree(ROOT / "studies", "studies")
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    section = re.search(r"^## Import what was exported\n(.*?)^## ", page, re.M | re.S)
    assert section
    (block,) = re.findall(r"```sh\n(.*?)```", section[1], re.S)
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        code, _, err = ablate(*arguments)
        assert (program, code, err) == ("ablate", 0, ""), line
    by = ["stratum", "level"]
    numbers = ["n", "lost", "mean", "sd", "lo", "hi", "p_holm"]
    first = package.effects("wirings", DB).set_index(by)[numbers].sort_index()
    assert len(first) == 4
    for study in ("from-csv", "from-mlflow", "from-tensorboard"):
        again = package.effects(study, DB).set_index(by)[numbers].sort_index()
        digits = 1e-4 if study == "from-tensorboard" else 1e-9  # TensorBoard has float32
        pd.testing.assert_frame_equal(again, first, rtol=digits)


@pytest.mark.parametrize("file", ["runs.csv", "runs.jsonl", "runs.parquet", "mlflow.db"])
def test_a_status_outlives_export_and_import(ablate: Run, file: str) -> None:
    frame = table().astype({"loss": object})
    frame.loc[0, "loss"], frame.loc[6, "loss"], frame.loc[12, "loss"] = "nan", "", "OOM"
    frame.loc[18, "loss"] = "inf"
    frame.to_csv("first.csv", index=False)
    done(ablate, "first.csv", "--study", "s", *NAMED)
    to = ("--to", "mlflow") if file == "mlflow.db" else ()
    assert ablate("export", "s", file, *to)[0] == 0
    metric = "final/loss" if file == "mlflow.db" else "loss"
    done(ablate, file, "--study", "again", "--metric", metric, *NAMED[2:])
    columns = ["optimizer", "depth", "seed", "status"]
    first, again = (
        sorted(map(tuple, package.load(study, DB)[columns].to_numpy())) for study in ("s", "again")
    )
    assert again == first
    assert counts("again") == {"complete": 16, "diverged": 2, "failed": 1, "oom": 1}


def test_a_choice_among_values_that_are_not_there_is_one_line(ablate: Run) -> None:
    table().to_csv("runs.csv", index=False)
    along(table()).to_csv("steps.csv", index=False)
    for at in ("3", "best"):
        words = [f"--at {at}", "one value for each run", "--step"]
        refused(ablate, ["import", "runs.csv", "--study", "s", *NAMED, "--at", at], words)
    asked = [*NAMED, "--step", "step", "--at", "35"]
    refused(ablate, ["import", "steps.csv", "--study", "s", *asked], ["35", "20, 30 and 40"])


def test_values_that_are_logged_less_often_are_no_nan(ablate: Run) -> None:
    frame = along(table(2))
    frame["loss"] = frame["loss"].where(frame["step"] % 20 == 10)
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--step", "step")
    assert counts() == {"complete": 8}


def test_each_run_has_a_schedule_of_its_own(ablate: Run) -> None:
    """What one run evaluates often and another seldom says nothing of the other."""
    frame = along(table(3), steps=6)
    seldom = (frame["optimizer"] == "sgd") | (frame["seed"] == 2)
    frame.loc[seldom & (frame["step"] % 20 == 0), "loss"] = math.nan  # at 10, 30 and 50 only
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--step", "step")
    assert counts() == {"complete": 12}
    of_one = (frame["optimizer"] == "sgd") & (frame["depth"] == 2) & (frame["seed"] == 0)
    frame.loc[of_one & (frame["step"] > 30), "loss"] = math.nan  # others of its cell have 50
    often = (frame["optimizer"] == "adam") & (frame["depth"] == 4) & (frame["seed"] != 2)
    frame.loc[often & (frame["step"] > 30), "loss"] = math.nan  # 10, 20, 30, and then none
    frame.to_csv("lost.csv", index=False)
    done(ablate, "lost.csv", "--study", "lost", *NAMED, "--step", "step")
    lost = package.load("lost", DB).query("status == 'diverged'")
    assert sorted(map(tuple, lost[["optimizer", "depth", "seed", "diverged_at"]].to_numpy())) == [
        ("adam", 4, 0, 40),
        ("adam", 4, 1, 40),
        ("sgd", 2, 0, 50),
    ]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.json", "runs.parquet", "runs.xlsx"])
def test_nan_has_diverged_and_null_has_failed_in_every_format(ablate: Run, name: str) -> None:
    frame = table(3)
    held = frame.to_dict("records")
    held[1]["loss"], held[4]["loss"], held[8]["loss"] = math.nan, None, math.inf
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        columns = {key: [one[key] for one in held] for key in held[0]}
        pyarrow.parquet.write_table(pyarrow.table(columns), name)
    elif name.endswith(".xlsx"):
        held[1]["loss"], held[8]["loss"] = "NaN", "inf"
        pd.DataFrame(held).to_excel(name, index=False)
    else:
        lines = "\n".join(map(json.dumps, held))
        Path(name).write_text(lines if name.endswith("l") else json.dumps(held))
    done(ablate, name, "--study", "s", *NAMED)
    assert counts() == {"complete": 9, "diverged": 2, "failed": 1}
    runs = package.load("s", DB)
    assert runs["diverged_at"].isna().all()  # no step is known
    code, out, _ = ablate("show", str(runs.query("status == 'diverged'")["run"].iloc[0]))
    assert code == 0 and "diverged" in out and "at step" not in out


def test_rows_that_are_no_run_are_listed(ablate: Run) -> None:
    frame = table().astype({"seed": object})
    frame.loc[3, "seed"] = ""
    frame.loc[5, "optimizer"] = ""
    pd.concat([frame, frame.iloc[[7]]]).to_csv("runs.csv", index=False)
    out = done(ablate, "runs.csv", "--study", "s", *NAMED)
    assert "1 row without a seed (runs.csv, line 5)" in out
    assert "1 row without a level of optimizer (runs.csv, line 7)" in out
    assert "1 row that repeats another (runs.csv, line 22)" in out
    assert "2 of 20 combinations" in out
    assert counts() == {"complete": 18}
    effects = package.effects("s", DB).set_index("cell")
    assert effects["n"].to_dict() == {
        "optimizer=sgd, depth=4": 3,  # without seed 3 of the baseline and seed 0 of its own
        "optimizer=adam, depth=2": 4,
        "optimizer=adam, depth=4": 4,
    }


@pytest.mark.parametrize("many", [False, True])
def test_notes_on_rows_have_the_number_of_what_they_count(ablate: Run, many: bool) -> None:
    frame = along(table())
    first = (frame["optimizer"] == "sgd") & (frame["depth"] == 2) & (frame["seed"] <= many)
    again = frame[frame["step"] == 10].iloc[: 3 if many else 1]
    kept = frame[~first | (frame["step"] < 40)]
    pd.concat([kept, again]).to_csv("runs.csv", index=False)
    out = done(ablate, "runs.csv", "--study", "s", *NAMED, "--step", "step")
    assert ("3 rows that repeat another" if many else "1 row that repeats another") in out
    assert ("2 runs end before" if many else "1 run ends before") in out
    assert ("of their cell" if many else "of its cell") in out


def test_the_same_file_again_adds_nothing_and_a_grown_one_what_is_new(ablate: Run) -> None:
    frame = table()
    frame[frame["seed"] < 3].to_csv("runs.csv", index=False)
    assert "12 added" in done(ablate, "runs.csv", "--study", "s", *NAMED)
    before = package.load("s", DB)
    assert "0 added" in done(ablate, "runs.csv", "--study", "s", *NAMED)
    pd.testing.assert_frame_equal(package.load("s", DB), before)
    frame.to_csv("runs.csv", index=False)
    assert "8 added" in done(ablate, "runs.csv", "--study", "s", *NAMED)
    frame.assign(seed=frame["seed"] + 5).to_csv("more.csv", index=False)
    done(ablate, "more.csv", "--study", "s", *NAMED)  # what was there stays
    after = package.load("s", DB).set_index("run")
    assert len(after) == 40
    assert after.loc[before["run"], "metric"].tolist() == before["metric"].tolist()


def test_runs_of_another_study_are_not_said_to_have_been_there(ablate: Run) -> None:
    frame = table()
    frame[frame["seed"] < 3].to_csv("first.csv", index=False)
    done(ablate, "first.csv", "--study", "s", *NAMED)
    said = done(ablate, "first.csv", "--study", "t", *NAMED)
    assert "0 added, 12 shared" in said and "were there" not in said
    frame.to_csv("all.csv", index=False)
    done(ablate, "all.csv", "--study", "s", *NAMED)
    said = done(ablate, "all.csv", "--study", "t", *NAMED)
    assert "0 added, 12 were there, 8 shared" in said
    assert counts("t") == {"complete": 20}


def test_a_level_that_is_a_word_leaves_the_numbers_beside_it(ablate: Run) -> None:
    frame = table(3).drop(columns="optimizer").drop_duplicates(["depth", "seed"])
    frame.to_csv("runs.csv", index=False)
    options = ("--study", "s", "--metric", "loss", "--factor", "depth", "--seed", "seed")
    done(ablate, "runs.csv", *options)
    more = frame[frame["depth"] == 2].assign(depth="shared")
    pd.concat([frame, more]).to_csv("runs.csv", index=False)
    assert "3 added, 6 were there" in done(ablate, "runs.csv", *options)
    assert set(results.levels("s", DB)) == {"depth=2", "depth=4", "depth=shared"}


def test_other_numbers_of_a_run_are_refused_without_replace(ablate: Run) -> None:
    frame = table()
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    before = metrics_of("s", "optimizer", "depth")
    frame.loc[3, "loss"] = 9.0
    frame.to_csv("runs.csv", index=False)
    refused(ablate, ["import", "runs.csv", "--study", "s", *NAMED], ["seed 3", "now 9", "line 5"])
    assert metrics_of("s", "optimizer", "depth") == before
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--replace")
    assert metrics_of("s", "optimizer", "depth") == before | {("sgd", 2, 3): 9.0}


def test_a_further_metric_of_the_same_runs_changes_none(ablate: Run) -> None:
    frame = table(3).assign(acc=0.5)
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--metric", "acc")
    finals = package.finals("s", db=DB)
    assert finals["name"].value_counts().to_dict() == {"loss": 12, "acc": 12}


@pytest.mark.usefixtures("svg_only")
def test_a_baseline_and_rows_may_be_chosen(ablate: Run) -> None:
    table().to_csv("runs.csv", index=False)
    chosen = ("--baseline", "optimizer=adam", "--where", "depth=4", "--goal", "higher")
    done(ablate, "runs.csv", "--study", "s", *ONE, *chosen)
    (effect,) = package.effects("s", DB).to_dict("records")
    assert (effect["baseline"], effect["level"]) == ("optimizer=adam", "sgd")
    code, out, _ = ablate("report", "s")
    assert code == 0 and "sgd is better than adam" in out


REFUSED = {  # what is wrong → the options, and words of the line
    "no seed": (["--metric", "loss", "--factor", "depth", "--seed", "rep"], ["'rep'", "seed"]),
    "no metric of that name": ([*NAMED, "--metric", "los"], ["'los'", "did you mean 'loss'"]),
    "no factor of that name": ([*ONE, "--factor", "dpth"], ["'dpth'", "did you mean 'depth'"]),
    "seed not named": (["--metric", "loss", "--factor", "depth"], ["--seed", "seed (0, 1, 2, 3"]),
    "constant": ([*NAMED, "--where", "depth=2"], ["depth is 2", "does not vary"]),
    "no factor": (["--metric", "loss", "--seed", "seed"], ["--factor", "depth (2, 4)"]),
    "a factor left out": (ONE, ["seed 0", "has two rows", "differ in depth; name", "line 2"]),
    "no level": ([*NAMED, "--baseline", "optimizer=adm"], ["did you mean 'adam'"]),
    "no such within": ([*NAMED, "--within", "dept"], ["did you mean 'depth'"]),
    "no row": ([*NAMED, "--where", "depth=3"], ["depth", "'3'", "'2', '4'"]),
    "used twice": ([*NAMED, "--metric", "seed"], ["'seed' is used twice"]),
    "not an expression": ([*NAMED, "--pattern", "("], ["--pattern"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_likely_mistake_is_one_line(ablate: Run, what: str) -> None:
    table().to_csv("runs.csv", index=False)
    options, words = REFUSED[what]
    refused(ablate, ["import", "runs.csv", "--study", "s", *options], words)


def test_a_mistake_in_the_table_is_one_line(ablate: Run) -> None:
    frame = table()
    along(frame).to_csv("steps.csv", index=False)
    frame.assign(
        seed=frame["seed"] + 10 * frame["depth"] + 5 * (frame["optimizer"] == "adam")
    ).to_csv("apart.csv", index=False)
    text = frame.astype({"loss": object})
    text.loc[4, "loss"] = "about 2"
    text.to_csv("text.csv", index=False)
    frame.drop(columns="seed").to_csv("no_seed.csv", index=False)
    frame[(frame["optimizer"] != "sgd") | (frame["depth"] != 2)].to_csv("base.csv", index=False)
    pd.concat([frame, frame.iloc[[0]].assign(loss=9.0)]).to_csv("twice.csv", index=False)
    os.mkfifo("pipe.csv")
    for name, words in (
        ("steps.csv", ["has two rows", "--step 'step'"]),
        ("twice.csv", ["here; name the column"]),
        ("apart.csv", ["shares a seed"]),
        ("text.csv", ["line 6", "'about 2'"]),
        ("no_seed.csv", ["'seed'", "add a column"]),
        ("none.csv", ["none.csv", "no such file"]),
        ("pipe.csv", ["pipe.csv", "no regular file"]),  # which nothing writes to
    ):
        refused(ablate, ["import", name, "--study", "s", *NAMED], words)
    steps = along(frame)["step"].map(lambda step: 2**63 if step == 40 else step)
    along(frame).assign(step=steps).to_csv("large.csv", index=False)
    step = ["import", "large.csv", "--study", "s", *NAMED, "--step", "step"]
    refused(ablate, step, ["step 9223372036854775808"])
    frame.assign(n="1e20").to_csv("wide.csv", index=False)
    refused(ablate, ["import", "wide.csv", "--study", "s", *NAMED, "--n", "n"], ["line 2", "1e20"])
    unnamed = ["import", "no_seed.csv", "--study", "s", *NAMED[:6]]
    refused(ablate, unnamed, ["--seed", "add a column"])
    chosen = ("--baseline", "optimizer=sgd", "--baseline", "depth=2")
    refused(ablate, ["import", "base.csv", "--study", "s", *NAMED, *chosen], ["--baseline"])


def test_names_and_levels_that_no_study_can_have_are_one_line(ablate: Run) -> None:
    frame = table()
    frame.assign(**{"hit@1": 0.5, "hit_at_1": 0.25}).to_csv("runs.csv", index=False)
    factors = NAMED[2:]
    start = ["import", "runs.csv", "--study", "s", *factors]
    words = ["hit@1", "hit_at_1", "stored"]
    refused(ablate, [*start, "--metric", "hit@1", "--metric", "hit_at_1"], words)
    refused(ablate, [*start, "--metric", "loss", "--at", "\u00b2"], ["--at"])
    frame.rename(columns={"loss": "tokens per joule"}).to_csv("runs.csv", index=False)
    refused(ablate, [*start, "--metric", "tokens per joule"], ["--goal", "tokens per joule"])
    draws = np.random.default_rng(0).random((40, 4))
    pd.DataFrame(draws, columns=["lr", "wd", "beta", "loss"]).assign(seed=0).to_csv(
        "search.csv", index=False
    )
    search = ("--factor", "lr", "--factor", "wd", "--factor", "beta", "--seed", "seed")
    words = ["64,000 combinations", "40 have runs", "--where", "--factor"][:3]
    refused(ablate, ["import", "search.csv", "--study", "s", "--metric", "loss", *search], words)


def test_wide_columns_keep_states_and_overwrite_none(ablate: Run) -> None:
    frame = pd.DataFrame(
        {
            "Name": ["a", "b", "c"],
            "State": ["finished", "crashed", "finished"],
            "optimizer": ["sgd", "adam", "lion"],
            "loss_seed0": [1.0, 2.0, 3.0],
            "loss_seed1": [1.5, 2.5, 3.5],
        }
    )
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *ONE)
    assert counts() == {"complete": 4, "failed": 2}
    frame.assign(loss=9.0).to_csv("runs.csv", index=False)
    pattern = ("--pattern", r"loss_seed(?P<seed>\d+)")
    refused(ablate, ["import", "runs.csv", "--study", "t", *ONE, *pattern], ["'loss'", "--metric"])


def test_a_column_that_says_which_runs_ended_is_not_passed_over_in_silence(ablate: Run) -> None:
    frame = pd.DataFrame({"optimizer": ["sgd", "sgd", "adam", "adam"], "seed": [0, 1, 0, 1]})
    frame.assign(loss=[2.0, 2.1, 1.0, 1.1], status=["done", "running", "done", "done"]).to_csv(
        "runs.csv", index=False
    )
    assert "'running' counts as complete" in done(ablate, "runs.csv", "--study", "s", *ONE)
    assert counts() == {"complete": 4}
    where = ("--where", "status=done")
    assert "running" not in done(ablate, "runs.csv", "--study", "t", *ONE, *where)


@pytest.mark.parametrize(
    ("goal", "names"),
    [
        ("lower", ["loss", "valLoss", "eval/nll", "error_rate", "PPL", "bits_per_byte", "RMSE"]),
        ("higher", ["top5_acc", "F1", "val-AUC", "mrr@10", "dice", "mIoU", "win_rate", "BLEU4"]),
        ("", ["value", "tokens_per_second", "accident", "accuracy_loss", "glossary", "discount"]),
    ],
)
def test_words_of_a_name_say_which_direction_is_better(goal: str, names: list[str]) -> None:
    assert {name: likely_goal(name) for name in names} == dict.fromkeys(names, goal)


def test_an_imported_study_has_nothing_to_train(ablate: Run) -> None:
    table().to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    for command in ("plan", "run"):
        code, _, err = ablate(command, "s")
        assert code == 2 and "nothing to train" in err and err.count("\n") == 1
    with store.open(DB) as database:
        from ablate.store.owners import Owner
        from ablate.store.runs import candidates

        assert candidates(database, 1, Owner("here", 1, "token")) == []


def test_what_is_unknown_is_blank_and_what_columns_say_is_used(ablate: Run) -> None:
    frame = table().rename(columns={"depth": "N"})
    frame["N"] *= 1_000_000
    frame.assign(D="2.5B").to_csv("runs.csv", index=False)
    named = ("--metric", "loss", "--factor", "optimizer", "--factor", "N", "--seed", "seed")
    done(ablate, "runs.csv", "--study", "blank", *named)
    unknown = ["n_params", "tokens", "flops", "device_seconds"]
    assert package.load("blank", DB)[unknown].isna().all(axis=None)
    refused(ablate, ["fit", "blank"], ["--n", "--d"])
    done(ablate, "runs.csv", "--study", "sized", *named, "--n", "N", "--d", "D")
    runs = package.load("sized", DB)
    assert runs["n_params"].tolist() == runs["n"].astype(int).tolist()
    assert set(runs["tokens"]) == {2_500_000_000}


@pytest.mark.usefixtures("few_replicates")
def test_curves_are_fitted_as_those_of_the_table(ablate: Run) -> None:
    noise = np.random.default_rng(1)
    rows = [
        {"act": act, "N": n, "D": d, "seed": seed, "loss": 1.7 + 400 / n**0.34 + 410 / d**0.28}
        for act in ("gelu", "swiglu")
        for n in (1e6, 1e7, 1e8, 1e9)
        for d in (1e9, 4e9, 16e9)
        for seed in (0, 1)
    ]
    frame = pd.DataFrame(rows)
    frame["loss"] += noise.normal(0, 0.003, len(frame))
    frame.to_csv("runs.csv", index=False)
    names = ("--factor", "act", "--factor", "N", "--factor", "D", "--n", "N", "--d", "D")
    done(ablate, "runs.csv", "--study", "s", "--metric", "loss", "--seed", "seed", *names)
    _, study, _ = ablate("fit", "s", "--group", "act")
    table_of = ("--csv", "runs.csv", "--n", "N", "--d", "D", "--loss", "loss", "--group", "act")
    _, csv, _ = ablate("fit", *table_of)

    def exponents(text: str) -> list[str]:
        return [line.split("[")[0] for line in text.splitlines() if " alpha = " in line]

    assert len(exponents(csv)) == 2
    assert exponents(study) == exponents(csv)


def test_databases_with_the_same_runs_merge_and_are_sound(ablate: Run) -> None:
    frame = along(table(3))
    frame.to_csv("runs.csv", index=False)
    options = ("runs.csv", "--study", "s", *NAMED, "--step", "step")
    done(ablate, *options)
    done(ablate, *options, "--db", "other.db")
    code, out, _ = ablate("db", "merge", "other.db")
    assert code == 0 and "new runs: 0; updated runs: 0" in out
    for command in (("status", "s"), ("show", "1"), ("compare", "1", "2"), ("power", "s")):
        assert ablate(*command)[0] == 0
    assert ablate("export", "s", "-", "--what", "curves")[0] == 0
    assert ablate("db", "thin")[0] == 0
    with store.open(DB) as database:
        assert check.check(database) == []
    assert ablate("db", "forget", "s", "--yes")[0] == 0
    assert ablate("query", "SELECT * FROM run", "--format", "csv")[1].count("\n") <= 1


# -- a study that is there already -------------------------------------------------------------


def rows(sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(DB)) as connection:
        return connection.execute(sql).fetchall()


def file_of(study: str = "s") -> dict[str, Any]:
    """The tables of a study's file in the database."""
    return tomllib.loads(dict(rows("SELECT name, toml FROM study"))[study])


CHOSEN = (
    *("--within", "depth", "--baseline", "optimizer=adam", "--goal", "higher", "--at", "30"),
    *("--question", "Which optimizer?"),
)


def test_a_second_import_keeps_what_the_study_is(ablate: Run) -> None:
    frame = along(table(4)).rename(columns={"loss": "hit@1", "depth": "model.depth"})
    frame["N"] = frame["model.depth"] * 1_000
    frame[frame["seed"] < 2].assign(D=2_000).to_csv("runs.csv", index=False)
    frame[frame["seed"] == 2].assign(D=2_000).to_csv("more.csv", index=False)
    frame[frame["seed"] == 3].drop(columns="N").to_csv("last.csv", index=False)
    columns = ("--metric", "hit@1", "--factor", "optimizer", "--factor", "model.depth")
    chosen = ("--within", "model.depth", *CHOSEN[2:], "--n", "N", "--d", "D")
    seed = ("--seed", "seed", "--step", "step")
    done(ablate, "runs.csv", "--study", "s", *columns, *seed, *chosen)
    before = file_of()
    out = done(ablate, "more.csv", "--study", "s")
    assert "4 added, 0" not in out and "Baseline: optimizer=adam" in out
    reordered = ("--factor", "model.depth", "--factor", "optimizer", "--metric", "hit@1")
    done(ablate, "last.csv", "--study", "s", *reordered, *seed)
    after = file_of()
    assert after.pop("seeds") == [0, 1, 2, 3] and before.pop("seeds") == [0, 1]
    assert after["imported"].pop("files") == ["runs.csv", "more.csv", "last.csv"]
    assert before["imported"].pop("files") == ["runs.csv"]
    assert after == before
    assert before["fit"] and before["within"] == ["model_depth"] and before["goal"] == "higher"
    found = package.effects("s", DB)
    assert set(found["n"]) == {4} and set(found["baseline"].str.split(",").str[0]) == {
        "optimizer=adam"
    }
    at = frame[frame["step"] == 30].set_index(["optimizer", "model.depth", "seed"])["hit@1"]
    assert metrics_of("s", "optimizer", "model_depth") == at.to_dict()


@pytest.mark.parametrize(
    "option",
    [
        ("--metric", "acc"),
        ("--goal", "lower"),
        ("--at", "last"),
        ("--question", "Which depth?"),
        ("--within", "optimizer"),
        ("--baseline", "optimizer=sgd"),
        ("--factor", "optimizer"),
    ],
)
def test_what_contradicts_the_study_is_refused_without_replace(
    ablate: Run, option: tuple[str, str]
) -> None:
    frame = along(table(2))
    frame.assign(acc=1 / frame["loss"]).to_csv("runs.csv", index=False)
    columns = ("--study", "s", "--factor", "optimizer", "--factor", "depth", "--seed", "seed")
    done(ablate, "runs.csv", *columns, "--metric", "loss", "--step", "step", *CHOSEN)
    before = file_of()
    refused(ablate, ["import", "runs.csv", "--study", "s", *option], ["'s'", "--replace"])
    assert file_of() == before
    done(ablate, "runs.csv", "--study", "s", *CHOSEN)  # what is given again is the same
    assert file_of() == before


def test_the_order_of_a_second_file_moves_no_baseline(ablate: Run) -> None:
    frame = table()
    frame = frame[(frame["optimizer"] != "sgd") | (frame["seed"] != 0)]  # adam has the first run
    frame.to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    before = package.effects("s", DB)
    new = frame[frame["optimizer"] == "adam"].assign(optimizer="lion")
    pd.concat([new, frame])[::-1].to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    assert file_of()["factors"] == {"optimizer": ["sgd", "adam", "lion"], "depth": [2, 4]}
    after = package.effects("s", DB).set_index("cell").loc[before["cell"]]
    assert after["mean"].tolist() == pytest.approx(before["mean"].tolist())


def test_a_file_with_one_level_of_a_factor_extends_a_study(ablate: Run) -> None:
    frame = table()
    frame[frame["seed"] < 3].to_csv("runs.csv", index=False)
    done(ablate, "runs.csv", "--study", "s", *NAMED)
    frame[frame["optimizer"] == "adam"].assign(optimizer="lion").to_csv("one.csv", index=False)
    assert "10 added" in done(ablate, "one.csv", "--study", "s", *NAMED)
    assert set(package.effects("s", DB)["level"]) >= {"adam", "lion"}


@pytest.mark.parametrize("replace", [[], ["--replace"]])
def test_a_study_that_was_not_imported_is_left_alone(ablate: Run, replace: list[str]) -> None:
    table().to_csv("runs.csv", index=False)
    Path("results").mkdir()
    with store.open(DB, create=True) as database:
        register(database, plan_of("s"))
    before = rows("SELECT plan_hash FROM study")
    words = ["'s'", "was not imported"]
    refused(ablate, ["import", "runs.csv", "--study", "s", *NAMED, *replace], words)
    assert rows("SELECT plan_hash FROM study") == before


def test_runs_that_others_take_the_place_of_are_deleted(ablate: Run) -> None:
    frame = along(table(2))
    options = ("runs.csv", "--study", "s", *NAMED, "--step", "step")
    frame.to_csv("runs.csv", index=False)
    done(ablate, *options)
    sizes = "SELECT (SELECT count(*) FROM run), (SELECT count(*) FROM metric),"
    sizes += " (SELECT count(*) FROM attempt)"
    before = rows(sizes)
    frame.assign(loss=frame["loss"] + 1).to_csv("runs.csv", index=False)
    done(ablate, *options, "--replace")
    assert rows(sizes) == before
    with store.open(DB) as database:
        assert check.check(database) == []


def test_a_refusal_names_the_metric_that_differs(ablate: Run) -> None:
    frame = table(3).assign(acc=0.5)
    frame.to_csv("runs.csv", index=False)
    both = ("runs.csv", "--study", "s", *NAMED, "--metric", "acc")
    done(ablate, *both)
    assert "0 added" in done(ablate, "runs.csv", "--study", "s")  # without acc: which is kept
    assert set(package.finals("s", "acc", DB)["value"]) == {0.5}
    frame.loc[1, "acc"] = 0.75
    frame.to_csv("runs.csv", index=False)
    refused(ablate, ["import", *both], ["seed 1: acc 0.5, now 0.75 (", "line 3"])


def test_a_study_that_changed_meanwhile_is_not_overwritten(ablate: Run) -> None:
    from ablate.imported.model import Asked
    from ablate.imported.runs import gather
    from ablate.imported.study import Told, prepare, write

    table().to_csv("runs.csv", index=False)
    asked = Asked(("loss",), ("optimizer", "depth"), "seed")
    found = gather([Path("runs.csv")], asked)
    prepared = prepare([Path("runs.csv")], found, asked, Told("s"), None)
    done(ablate, "runs.csv", "--study", "s", *NAMED, "--within", "depth")
    with store.open(DB, create=True) as database, pytest.raises(AblateError, match="has changed"):
        write(database, prepared)
    assert file_of()["within"] == ["depth"]


def test_the_order_of_metrics_makes_no_other_run(ablate: Run) -> None:
    along(table(2)).assign(acc=0.5, lr=0.1).to_csv("runs.csv", index=False)
    options = (*NAMED, "--step", "step")
    done(ablate, "runs.csv", "--study", "a", *options, "--metric", "acc", "--metric", "lr")
    done(ablate, "runs.csv", "--study", "b", *options, "--metric", "lr", "--metric", "acc")
    assert rows("SELECT count(*) FROM run") == [(8,)]


# -- other tools -------------------------------------------------------------------------------


CHART = """"Step","adam-s0 - loss","adam-s0 - loss__MIN","adam-s0 - loss__MAX",\
"adam-s1 - loss","adam-s1 - loss__MIN","adam-s1 - loss__MAX",\
"sgd-s0 - loss","sgd-s0 - loss__MIN","sgd-s0 - loss__MAX",\
"sgd-s1 - loss","sgd-s1 - loss__MIN","sgd-s1 - loss__MAX"
"0","3.0","3.0","3.0","3.1","3.1","3.1","3.2","3.2","3.2","3.3","3.3","3.3"
"5","2.0","2.0","2.0","","","","2.2","2.2","2.2","2.3","2.3","2.3"
"6","","","","2.1","2.1","2.1","","","","NaN","NaN","NaN"
"""
RUNS = """\
"Name","State","Notes","User","Tags","Created","Runtime","Sweep","optim.name","seed","loss"
"adam-s0","finished","-","me","","2026-01-01","10","","adam","0","2.0"
"adam-s1","finished","-","me","","2026-01-01","10","","adam","1","2.1"
"sgd-s0","crashed","-","me","","2026-01-01","10","","sgd","0","2.2"
"sgd-s1","running","-","me","","2026-01-01","10","","sgd","1","2.3"
"sgd-s2","finished","-","me","","2026-01-01","10","","sgd","2","2.4"
"adam-s2","finished","-","me","","2026-01-01","10","","adam","2","2.5"
"""


def test_what_weights_and_biases_exports(ablate: Run) -> None:
    Path("chart.csv").write_text(CHART)
    Path("runs.csv").write_text(RUNS)
    names = ("--pattern", r"(?P<optimizer>\w+)-s(?P<seed>\d+)", "--baseline", "optimizer=sgd")
    done(ablate, "chart.csv", "--study", "chart", *ONE, *names)
    assert counts("chart") == {"complete": 3, "diverged": 1}
    assert metrics_of("chart", "optimizer")["adam", 1] == 2.1  # its last step, not another run's
    columns = ("--metric", "loss", "--factor", "optim.name", "--seed", "seed")
    out = done(ablate, "runs.csv", "--study", "runs", *columns)
    assert counts("runs") == {"complete": 4, "failed": 1}
    assert "has not ended (runs.csv, line 5)" in out
    assert "optim_name" in package.load("runs", DB)
    done(ablate, "chart.csv", "runs.csv", "--study", "both", *columns)
    assert counts("both") == {"complete": 4, "failed": 1}
    assert set(package.curves("both", "loss", DB).query("cell == 'optim_name=adam'")["step"]) == {
        *(0, 5, 6)
    }


@pytest.fixture(params=["sqlite:///mlflow.db", "mlruns"])
def tracked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs in a store that MLflow's own client writes."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    # absolute: MLflow keeps one store for each address of a process
    address = request.param.replace("mlflow.db", str(Path("mlflow.db").absolute()))
    client = MlflowClient(tracking_uri=address.replace("mlruns", str(Path("mlruns").absolute())))
    experiment = client.create_experiment("first")
    for optimizer in ("sgd", "adam"):
        for seed in range(3):
            run = client.create_run(experiment, run_name=f"{optimizer} {seed}").info.run_id
            client.log_param(run, "optimizer", optimizer)
            client.set_tag(run, "seed", str(seed))
            for step in range(3):
                value = math.nan if (optimizer, seed, step) == ("adam", 0, 2) else 3.0 + seed - step
                client.log_metric(run, "val/loss", value, step=step)
            if (optimizer, seed) != ("adam", 1):
                ended = "FAILED" if (optimizer, seed) == ("sgd", 1) else "FINISHED"
                client.set_terminated(run, ended)
    deleted = client.create_run(experiment).info.run_id
    client.delete_run(deleted)
    yield request.param


def test_what_mlflow_keeps(ablate: Run, tracked: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()  # MLflow's own messages
    columns = ("--metric", "val/loss", "--factor", "optimizer", "--seed", "seed")
    out = done(ablate, tracked, "--study", "s", *columns)
    assert counts() == {"complete": 3, "diverged": 1, "failed": 1}
    assert "1 row that has not ended" in out
    assert metrics_of("s", "optimizer")["sgd", 2] == 3.0
    curve = package.curves("s", "val/loss", DB).query("cell == 'optimizer=sgd' and seed == 2")
    assert curve[["step", "value"]].to_numpy().tolist() == [[0, 5.0], [1, 4.0], [2, 3.0]]
    refused(ablate, ["import", tracked, "--study", "t", *ONE], ["did you mean 'val/loss'"])


def test_what_tensorboard_writes(ablate: Run) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for optimizer in ("sgd", "adam"):
        for seed in range(2):
            for folder in (f"plain/{optimizer}/seed{seed}", f"hparams/{optimizer}{seed}"):
                with SummaryWriter(folder) as writer:
                    for step in range(3):
                        writer.add_scalar("val/loss", 2.0 + seed - step / 4, step)
                    if folder.startswith("hparams"):
                        settings = {"optimizer": optimizer, "seed": seed, "lr": 1e-3, "ema": True}
                        writer.add_hparams(settings, {"hp/score": 1.5})
    pattern = ("--pattern", r"(?P<optimizer>\w+)/seed(?P<seed>\d+)")
    columns = ("--metric", "val/loss", "--factor", "optimizer", "--seed", "seed")
    done(ablate, "plain", "--study", "plain", *columns, *pattern)
    done(ablate, "hparams", "--study", "hparams", *columns, "--metric", "hp/score")
    expected = {(o, s): 1.5 + s for o in ("sgd", "adam") for s in range(2)}
    assert metrics_of("plain", "optimizer") == metrics_of("hparams", "optimizer") == expected
    assert set(package.finals("hparams", "hp/score", DB)["value"]) == {1.5}
    refused(ablate, ["import", "plain", "--study", "t", *columns], ["--pattern", "sgd/seed0"])


@pytest.mark.parametrize("journal", [False, True])
def test_what_optuna_stores(ablate: Run, journal: bool) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    name = "optuna.log" if journal else "optuna.db"
    storage: Any = JournalStorage(JournalFileBackend(name)) if journal else f"sqlite:///{name}"
    grid = {"width": [8, 16], "seed": [0, 1, 2]}
    study = optuna.create_study(
        storage=storage, direction="maximize", sampler=optuna.samplers.GridSampler(grid, seed=0)
    )

    def objective(trial: optuna.Trial) -> float:
        width = trial.suggest_categorical("width", [8, 16])
        seed = trial.suggest_int("seed", 0, 2)
        trial.set_user_attr("seconds", 2.5)
        trial.report((width + seed) / 4, 1)
        if (width, seed) == (16, 2):
            raise optuna.TrialPruned
        return float(width + seed)

    study.optimize(objective)
    columns = ("--metric", "value", "--metric", "seconds", "--factor", "width", "--seed", "seed")
    done(ablate, name, "--study", "s", *columns, "--baseline", "width=8")
    assert counts() == {"complete": 5, "failed": 1}
    assert metrics_of("s", "width")[8, 1] == 9.0
    assert set(package.finals("s", "seconds", DB)["value"]) == {2.5}
    assert package.curves("s", "value", DB)["value"].sum() == 2.0 + 2.25 + 2.5 + 4.0 + 4.25 + 4.5
    assert results.study("s", DB).goal == "max"


def test_a_chart_joins_only_runs_that_it_can_tell_apart(ablate: Run) -> None:
    names = [f"optimizer={o},seed={s}" for o in ("sgd", "adam") for s in (0, 1)]
    ends = ("", "__MIN", "__MAX")
    head = ["Step", *(f"{name} - loss{end}" for name in names for end in ends)]
    values = [[step, *(3.0 - step / 10 + at for at in range(4) for _ in ends)] for step in (0, 5)]
    pd.DataFrame(values, columns=head).to_csv("chart.csv", index=False)
    optims, seeds = ["sgd", "sgd", "adam", "adam"], [0, 1, 0, 1]
    runs = pd.DataFrame({"Name": names, "State": "finished", "optim": optims, "seed": seeds})
    runs.to_csv("runs.csv", index=False)
    columns = ("--metric", "loss", "--factor", "optim", "--seed", "seed")
    done(ablate, "chart.csv", "runs.csv", "--study", "s", *columns)
    assert metrics_of("s", "optim")["adam", 1] == 5.5
    runs.assign(Name=["a", *names[1:3], names[1]]).to_csv("other.csv", index=False)
    pd.read_csv("chart.csv").drop(
        columns=[one for one in head if names[0] in one or names[3] in one]
    ).to_csv("chart.csv", index=False)
    words = [names[1], "other.csv, line 3", "line 5"]
    refused(ablate, ["import", "chart.csv", "other.csv", "--study", "t", *columns], words)


def test_tensorflow_s_folders_of_trials_are_runs(ablate: Run) -> None:
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    for at, (optimizer, seed) in enumerate((o, s) for o in ("sgd", "adam") for s in range(2)):
        settings = {"optimizer": optimizer, "seed": seed}
        experiment, start, end = hparams(settings, {"accuracy": 0.0})
        for root in ("bare", "scalars"):
            with SummaryWriter(f"{root}/run-{at}") as writer:
                for part in (start, end):
                    writer._get_file_writer().add_summary(part)
                writer.add_scalar("accuracy", 0.5 + at / 8, 1)
    with SummaryWriter("bare") as writer:
        writer._get_file_writer().add_summary(experiment)
    with SummaryWriter("scalars") as writer:
        writer.add_scalar("best", 0.75, 1)
    columns = ("--metric", "accuracy", "--factor", "optimizer", "--seed", "seed")
    for root in ("bare", "scalars"):
        out = done(ablate, root, "--study", root, *columns)
        assert ("Left out" in out) == (root == "scalars")  # numbers of no run
        assert metrics_of(root, "optimizer") == {
            ("sgd", 0): 0.5,
            ("sgd", 1): 0.625,
            ("adam", 0): 0.75,
            ("adam", 1): 0.875,
        }


def studies_of_optuna(path: str, directions: dict[str, str]) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage("sqlite:///tmp.db")
    for name, direction in directions.items():
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
        for width in (8, 16):
            for seed in (0, 1):
                attributes = {"width": width, "seed": seed, "kind": name}
                study.add_trial(
                    optuna.trial.create_trial(user_attrs=attributes, value=float(width + seed))
                )
    storage.engine.dispose()
    Path("tmp.db").rename(path)


def test_a_storage_of_optuna_is_only_read_whatever_its_path(ablate: Run) -> None:
    name = "a?mode=rw#{b}%20.db"
    studies_of_optuna(name, {"one": "maximize"})
    Path(name).chmod(0o444)
    before = Path(name).read_bytes()
    columns = ("--metric", "value", "--factor", "width", "--seed", "seed")
    done(ablate, name, "--study", "s", *columns)
    assert counts() == {"complete": 4}
    assert Path(name).read_bytes() == before


def test_damage_and_opposite_directions_in_optuna_are_one_line(ablate: Run) -> None:
    studies_of_optuna("both.db", {"up": "maximize", "down": "minimize"})
    two = ("--metric", "value", "--factor", "width", "--factor", "kind", "--seed", "seed")
    one = ("--metric", "value", "--factor", "width", "--seed", "seed")
    words = ["opposite directions", "study up", "study down", "--goal"]
    refused(ablate, ["import", "both.db", "--study", "s", *two], words)
    done(ablate, "both.db", "--study", "s", *two, "--goal", "lower")
    done(ablate, "both.db", "--study", "down", *one, "--where", "study=down")
    assert (results.study("s", DB).goal, results.study("down", DB).goal) == ("min", "min")
    with contextlib.closing(sqlite3.connect("both.db")) as connection:
        connection.execute("DROP TABLE trial_values")
    Path("half.log").write_text('{"op_code": 0, "study_name": "a"}\n{"op_code": 4, \n')
    Path("other.log").write_text('{"op_code": 0}\n')
    for name in ("both.db", "half.log", "other.log"):
        refused(ablate, ["import", name, "--study", "t", *one], [name, "Optuna"])


def test_a_folder_with_runs_of_two_tools_is_read_as_that_which_can_be(ablate: Run) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for optimizer in ("sgd", "adam"):
        with SummaryWriter(f"logs/{optimizer}") as writer:
            writer.add_scalar("loss", 1.0, 1)
    Path("logs/wandb").mkdir()
    Path("logs/wandb/run-1.wandb").write_bytes(b"")
    options = ("--metric", "loss", "--factor", "folder1", "--seed", "seed")
    pattern = ("--pattern", "(?P<seed>)a|(?P<x>s)")
    _, _, err = ablate("import", "logs", "--study", "s", *options, *pattern)
    assert "wandb sync" not in err
