"""[tune] over other numbers than the learning rate: whole numbers, bounded and own fields."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_helpers import Run
from launch_helpers import launch, rows
from report_study import svg_only  # noqa: F401
from test_command_run import SCRIPT
from test_command_run import STUDY as COMMAND

from ablate import outside, store
from ablate.errors import AblateError
from ablate.plan import Plan, plan
from ablate.study import Tune, load
from ablate.tune import learn, search


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    outside.use(())


def found(tune: Tune, cost: Callable[[float], float]) -> tuple[float, list[float]]:
    """The number that a search chooses, and those it tries, of costs without noise."""
    known: dict[float, list[float]] = {}
    for _ in range(20):
        state = search(tune, known.get)
        if state.best is not None:
            return state.best, list(state.rates)
        known |= {lr: [cost(lr)] for lr in state.rates}
    raise AssertionError(state)


@pytest.mark.parametrize("best", [1, 2, 3, 5, 8, 30])
def test_a_search_of_whole_numbers_tries_each_once_and_chooses_one(best: int) -> None:
    tune = Tune(1, 8, 4, 1, (), "batch", whole=True, down=0, up=4)
    assert tune.ladder == (1, 2, 4, 8)
    chosen, tried = found(tune, lambda n: math.log(n / best) ** 2)
    assert chosen == best if best < 30 else 25 <= chosen <= 35
    assert all(n == round(n) for n in (chosen, *tried)) and len(set(tried)) == len(tried)


def test_a_search_stays_within_the_bounds_of_a_field() -> None:
    tune = Tune(0.1, 0.8, 4, 1, (), "dropout", down=4, up=0)
    chosen, tried = found(tune, lambda value: -value)
    assert max(tried) == 0.8 and chosen == 0.8


def test_a_script_gets_whole_numbers(tmp_path: Path) -> None:
    tuned = '[tune]\nwidth = [8, 512]\npoints = 4\nseeds = 1\nper = "study"\n'
    text = COMMAND.format(
        python=sys.executable, script=SCRIPT, seeds="[0]", command="", more=tuned
    ).replace("--out", "--lr {width}e-4 --out")
    (tmp_path / "own.toml").write_text(text)
    made = plan(load(str(tmp_path / "own.toml")))
    assert [run.run.fields["width"] for run in made.runs] == [8, 32, 128, 512]
    outcome, _ = launch(made, tmp_path / "a.db")
    assert outcome.exit_code == 0
    every = rows(tmp_path / "a.db", "SELECT DISTINCT json_extract(fields, '$.width') FROM run")
    assert all(isinstance(value, int) for (value,) in every) and len(every) >= 6
    # the script's loss is lowest at 100e-4
    ((value,),) = rows(tmp_path / "a.db", "SELECT value FROM decision")
    assert 90 <= float(value) <= 110 and float(value) == int(float(value))


# -- fields of a transformer -----------------------------------------------------------------------

PART = """
import torch
from torch import nn
from ablate import Field, level

@level("norm_kind", "p-norm", meaning="x over its p-norm")
class PNorm(nn.Module):
    fields = (
        Field("p", float, 2.0, "Power of the norm."),
        Field("groups", int, 1, "Groups of the norm."),
        Field("n_gains", int, 1, "Gains."),
    )
    def __init__(self, width, p, groups, n_gains):
        super().__init__()
        self.p, self.groups = p, groups
        self.gain = nn.Parameter(torch.ones(n_gains, width) / n_gains)
    def forward(self, x):
        parts = x.unflatten(-1, (self.groups, -1))
        size = parts.abs().pow(self.p).mean(-1, keepdim=True) + 1e-5
        return self.gain.sum(0) * (parts / size ** (1 / self.p)).flatten(-2)
"""
STUDY = """
name = "mine"
question = "Does it matter?"
use = ["part.py"]
seeds = 2
design = "one-factor"
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 128
tokens = "4K"
lr = 1e-2
[factors]
norm_kind = ["layernorm", "p-norm"]
[eval]
points = 1
tokens = "1K"
[tune]
"""


def planned(folder: Path, tune: str, study: str = STUDY) -> Plan:
    (folder / "part.py").write_text(PART)
    (folder / "mine.toml").write_text(f"{study}{tune}\n")
    return plan(load(str(folder / "mine.toml")))


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(120)
def test_an_own_field_is_tuned_for_the_cells_that_have_it(ablate: Run, tmp_path: Path) -> None:
    made = planned(tmp_path, 'p = [1, 9]\npoints = 3\nseeds = 1\nper = ["norm_kind"]')
    assert [group.cells for group in made.groups] == [("norm_kind=p-norm",)]
    assert [run.run.fields["p"] for run in made.runs if run.role == "tune"] == [1.0, 3.0, 9.0]
    assert any("share lr = 0.01" in one.text for one in made.confounds)
    code, out, error = ablate("run", "mine.toml")
    assert code == 0 and "complete" in out, error
    with sqlite3.connect("results/ablate.db") as connection:
        ((cell, name, value, evidence),) = connection.execute(
            "SELECT label, name, value, evidence FROM decision JOIN cell ON cell.id = cell_id"
        )
        compared = connection.execute("SELECT DISTINCT cell, p FROM runs ORDER BY cell").fetchall()
    assert (cell, name) == ("norm_kind=p-norm", "p") and 1 <= float(value) <= 9
    rates = json.loads(evidence)["rates"]
    assert rates[0] == 1 and rates[-1] == 9  # the range of a field of one's own is not left
    assert compared == [("norm_kind=layernorm", None), (cell, float(value))]
    code, out, _ = ablate("report", "mine")
    assert code == 0 and "Tuned: p for each norm_kind" in out and "learning rate 0.01" in out
    # the page calls it by its name everywhere
    page = (tmp_path / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "## Values of p" in page and "| values tried |" in page
    # that which was not tuned: in short, and with its value
    assert page.count("learning rate") == page.count("learning rate not tuned") + 1 == 2


@pytest.mark.parametrize(
    "tuned",
    [
        "dropout = [0.1, 0.9]",
        "warmup = [0.01, 0.5]",
        "norm_epsilon = [1e-6, 1e-2]",
        "z_loss = [1e-5, 1e-2]",
        "grad_clip = [0.1, 10]",
        "weight_decay = [1e-3, 2]",
        "rope_theta = [10, 1e4]",
    ],
)
def test_the_results_of_a_field_are_looked_for_whatever_its_bounds(
    tmp_path: Path, tuned: str
) -> None:
    made = planned(
        tmp_path, f'{tuned}\npoints = 3\nper = "cell"', STUDY.replace("p-norm", "rmsnorm")
    )
    with store.open(str(tmp_path / "a.db"), create=True) as db:
        assert learn(made, db).new == ()


def test_fields_of_ablate_are_tuned_where_they_have_a_meaning(tmp_path: Path) -> None:
    two = STUDY.replace('"layernorm", "p-norm"', '"layernorm", "rmsnorm"')
    made = planned(tmp_path, 'dropout = [0.1, 0.9]\npoints = 3\nper = "cell"', two)
    tune = made.study.tune
    assert tune and len(made.groups) == 2 and tune.up == 0 and tune.down == 4
    masked = (
        two.replace("lr = 1e-2", "lr = 1e-2\n")
        .replace("[tune]", "")
        .replace('norm_kind = ["layernorm", "rmsnorm"]', 'objective = ["causal", "masked"]')
    )
    masked = masked.replace('design = "one-factor"', 'metric = "era_accuracy"').replace(
        "n_ctx = 16", 'n_ctx = 16\ncorpus = "sotu"'
    )
    made = planned(tmp_path, '[tune]\nmask_ratio = [0.1, 0.8]\npoints = 3\nper = "cell"', masked)
    assert [group.label for group in made.groups] == ["objective=masked"]


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ("groups = [1, 4]\npoints = 5", ["tune.points = 5", "1, 2, 3, 4", "fewer points"]),
        ("groups = [1.5, 4]\npoints = 3", ["groups is a whole number"]),
        ("n_gains = [1, 4]\npoints = 3", ["n_gains decides the number of parameters", "factor"]),
        ("d_model = [16, 64]\npoints = 3", ["cannot find d_model", "lr", "p", "a factor"]),
        ("tokens = [1e3, 1e4]\npoints = 3", ["cannot find tokens"]),
        ("rope_share = [0.25, 1.0]\npoints = 3", ["cannot find rope_share"]),
        ("learning_rate = [1e-3, 1e-2]\npoints = 3", ["'learning_rate'", "lr", "per"]),
        ("dropout = [0.1, 2.0]\npoints = 3", ["dropout = 2", "less than 1"]),
        ("lr = [1e-3, 1e-2]\npoints = 3", ["lr is fixed here"]),
        ("mask_ratio = [0.1, 0.5]\npoints = 3", ["no cell has a level that mask_ratio"]),
        ("p = [0, 4]\npoints = 3", ["tune.p"]),
        ("p = [1, 4]\nlr = [1e-3, 1e-2]\npoints = 3", ["finds one number", "p and lr"]),
        ("lr = [1e-3, 1e-2]\np = [1, 4]\npoints = 3", ["finds one number", "p and lr"]),
        ("p = [1, 4]\ndropout = [0.1, 0.2]\npoints = 3", ["'dropout'"]),
    ],
)
def test_what_cannot_be_tuned_is_one_line(tune: str, said: list[str], tmp_path: Path) -> None:
    with pytest.raises(AblateError) as error:
        planned(tmp_path, f'{tune}\nper = "cell"')
    assert all(word in str(error.value) for word in said), str(error.value)
    assert "mine.toml, line" in str(error.value) and "\n" not in str(error.value)


def test_a_metric_does_not_choose_what_it_measures(tmp_path: Path) -> None:
    masked = STUDY.replace("lr = 1e-2", 'lr = 1e-2\nobjective = "masked"')
    with pytest.raises(AblateError, match="mask_ratio decides what metric 'loss' measures"):
        planned(tmp_path, 'mask_ratio = [0.1, 0.5]\npoints = 3\nper = "study"', masked)


def test_whole_numbers_of_a_script_that_are_too_near_are_named(tmp_path: Path) -> None:
    text = COMMAND.format(
        python=sys.executable,
        script=SCRIPT,
        seeds=2,
        command="",
        more='[tune]\nwidth = [1, 3]\npoints = 5\nper = "study"\n',
    ).replace("--out", "--lr {width} --out")
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(AblateError, match=r"points = 5: rounded to whole numbers, .* 1, 2, 3"):
        load(str(tmp_path / "own.toml"))
