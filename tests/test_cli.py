"""The command line: output, errors of one line with exit code 2, and modules not loaded."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sqlite3
import tomllib
from pathlib import Path

import pytest
from cli_helpers import QUICKSTART, ROOT, Run, measure, python, refused

from ablate import cache, paths
from ablate.cli import complete
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.evaluation import Evaluation, Probe
from ablate.kinds.transformer import run_of
from ablate.plan import Cell, Plan, plan
from ablate.plan.forecast import Forecast
from ablate.study import load
from ablate.study.values import FOLLOWS
from ablate.text import corpora

HEAVY = ("torch", "pandas", "sqlalchemy", "seaborn", "matplotlib", "statsmodels", "optuna")


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nowhere"], ["'nowhere'", "ablate new"]),
        (["run", "bad.toml"], ["bad.toml, line 6", "'seriel'", "'serial'"]),
        (["run", QUICKSTART, "--device", "cuda"], ["cuda"]),
        (["run", QUICKSTART, "--device", "quda"], ["'quda'", "cuda"]),
        (["run", QUICKSTART, "--db", "bad.toml/a.db"], ["bad.toml/a.db cannot be created"]),
        (["run", QUICKSTART, "--size", "teeny"], ["'teeny'", "'tiny'"]),
        (["plan", QUICKSTART, "--flops", "fast"], ["--flops = 'fast'"]),
        (["status"], ["results/ablate.db", "`ablate run`"]),
        (["query", "SELECT 1"], ["results/ablate.db"]),
        (["query"], ["SELECT", "--tables"]),
        (["report", "quickstart"], ["results/ablate.db"]),
        (["show", "1", "--db", "none.db"], ["none.db"]),
        (["analyse", "quickstart", "--db", "none.db"], ["none.db"]),
        (["power", "quickstart", "--db", "none.db"], ["none.db", "`ablate run`"]),
        (["power", "quickstart", "--effect", "-1"], ["--effect -1", "above 0"]),
        (["power", "quickstart", "--power", "1"], ["--power 1"]),
        (["db", "upgrade", "--db", "none.db"], ["none.db", "`ablate run`"]),
        (["db", "check", "--repair", "--db", "none.db"], ["none.db"]),
        (["db", "merge", "other.db", "--db", "none.db"], ["other.db"]),
        (["factors", "topolgy"], ["'topolgy'", "'topology'"]),
        (["factors", "normalization"], ["did you mean 'norm'?"]),
        (["new", "x", "--factor", "topology"], ["--factor topology", "NAME=VALUE"]),
        (["new", "x", "--factor", "topology=1,9"], ["ablate: --factor topology: ", "'9'"]),
        (
            ["new", "x", "--factor", "topology=1,2", "--base", "n_head=3"],
            ["ablate: --base n_head: cell ", "n_head = 3 does not divide"],
        ),
        (
            ["new", "x", "--factor", "nrm=pre,post"],
            ["ablate: --factor nrm: unknown key 'nrm'; did you mean 'norm'?"],
        ),
        (
            ["new", "x", "--factor", "topology=1,2", "--base", "dropout=x"],
            ["ablate: --base dropout = 'x'"],
        ),
        (
            ["new", "x", "--factor", "topology=1,2", "--metric", "lss"],
            ["ablate: --metric: unknown metric 'lss'"],
        ),
        (
            ["new", "x", "--factor", "norm=pre,post", "--base", "norm=pre"],
            ["norm is given both by --factor and by --base"],
        ),
        (
            ["new", "x", "--factor", "topology=1,2", "--out", "bad.toml/x.toml"],
            ["bad.toml/x.toml cannot be written"],
        ),
        (
            ["new", "a/b", "--factor", "topology=1,2"],
            ["name = 'a/b': letters, digits, blanks and . + - _"],
        ),
        (
            ["new", "x", "--factor", "topology=1,2", "--within", "n_layer"],
            ["--within n_layer", "'n_layer'", "Choices: topology"],
        ),
        # what Typer refuses
        (["plan"], ["STUDY is missing", "ablate plan --help"]),
        (["compare", "1"], ["RUN is missing"]),
        (["plan", "a", "bb", "cc"], ["bb cc", "ablate plan --help"]),
        (["plan", "x", "--devise", "cpu"], ["'--devise'", "'--device'", "--flops"]),
        (["plan", "x", "--size"], ["--size takes a value: tiny"]),
        (["query", "--format"], ["--format takes a value: table|csv"]),
        (["run", "x", "--fail-fast=3"], ["--fail-fast takes no value"]),
        (
            ["export", "x", "-", "--role", "ro le"],
            ["--role = ro le", "'compare', 'tune', 'pretrain'"],
        ),
        (["db", "thin", "--keep", "1"], ["--keep = 1", "2"]),
        (["db", "thin", "--keep=two"], ["--keep = two", "integer"]),
        (["db", "thin", "--keep", f"{10**30}"], [f"--keep = {10**30}", "1000000000"]),
        (["power", "x", "--effect", "1", "--effect", "b"], ["--effect = 1, b", "number"]),
        (["plann"], ["'plann'", "'plan'", "studies"]),
        (["db", "frget"], ["db: ", "'frget'", "'forget'", "merge"]),
        (["--verbose"], ["'--verbose'", "--version"]),
        (["--"], ["ablate --help"]),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_writes_nothing(
    ablate: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    if arguments[-1] == "cuda":
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    study = (
        'name = "bad"\nquestion = "?"\nseeds = 1\n[base]\ntokens = "1M"\ntopology ='
        ' "seriel"\n[factors]\nlr = [1e-3, 1e-2]\n'
    )
    (tmp_path / "bad.toml").write_text(study)
    assert refused(ablate, arguments, words) == ""


# -- what is loaded --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("new", "9" * 300, "--factor", "norm=pre,post"),
        ("plan", f"{'9' * 300}.toml"),
        ("run", f"studies/{'9' * 300}.toml"),
        ("report", f"{'9' * 300}.toml"),
        ("query", "SELECT 1", "--db", "9" * 300),
        ("sample", "9" * 300, "text"),
        ("fit", "--csv", f"{'9' * 300}.csv"),
        ("data", f"{'9' * 300}.txt"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_too_long_for_a_file_is_one_line(
    ablate: Run, measured: str, arguments: tuple[str, ...]
) -> None:
    Path("studies").mkdir()
    code, out, err = ablate(*arguments)
    assert code == 2 and not out and len(err.splitlines()) == 1 and "Traceback" not in err, err
    assert not list(Path("studies").iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["plan", QUICKSTART], ["factors"], ["factors", "topology"]],
)
def test_nothing_heavy_is_loaded(arguments: list[str], tmp_path: Path) -> None:
    assert loaded(arguments, tmp_path) == "[]"


def test_status_loads_the_database_and_nothing_else_heavy(measured: str, tmp_path: Path) -> None:
    assert loaded(["status", "quickstart"], tmp_path, ABLATE_DB=measured) == "['sqlalchemy']"


def loaded(arguments: list[str], folder: Path, **environment: str) -> str:
    """The heavy libraries that a command of more than one line has loaded."""
    code = (
        f"import sys; sys.argv = ['ablate', *{arguments!r}]\nfrom ablate.cli import main\ntry:"
        " main()\nexcept SystemExit: pass\n"
    )
    code += f"print([name for name in {HEAVY!r} if name in sys.modules])"
    done = python(code, folder, **environment)
    lines = done.stdout.splitlines()
    assert len(lines) > 3, done.stderr
    return lines[-1]


@pytest.mark.parametrize(
    "more",
    [
        "seeds = 2",
        "seeds = { pilot = 2, resolution = 0.01, max = 9 }",
        'seeds = 2\n[tune]\nlr = [1e-4, 1e-2]\npoints = 3\nper = "study"',
    ],
    ids=["seeds given", "seeds by a pilot", "tuned"],
)
def test_what_decides_and_analyses_is_not_loaded_before_a_worker_is_started(
    more: str, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(
        f'name = "a"\nquestion = "?"\n{more}\n[base]\ntokens = "1M"\n[factors]\ntopology = [1, 5]\n'
    )
    code = (
        "import os, sys; sys.argv = ['ablate', 'run', 'a.toml', '--device', 'cpu']\nfrom ablate.cli"
        " import main\nfrom ablate.launch import local\ndef worker(*_): print({'torch',"
        " 'pandas', 'scipy', 'optuna'} & {*sys.modules}, flush=True);"
        " os._exit(0)\nlocal.WorkerProcess = worker\nmain()"
    )
    done = python(code, tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_no_arguments_print_help(ablate: Run) -> None:
    _, out, err = ablate()
    assert "Find out whether a part of a model matters" in out + err
    assert ablate("--version")[1].startswith("ablate ")


# -- before a run ----------------------------------------------------------------------------------


def test_plan_shows_cells_costs_detectability_and_confounds(ablate: Run, tmp_path: Path) -> None:
    code, out, _ = ablate("plan", QUICKSTART, "--flops", "1e10")
    assert code == 0
    for words in (
        "topology=no-attention-skip",
        # 2 × (12·64² + 13·64) + 128 in the blocks and the final norm, 2 × 256·64 outside
        "132,864",
        "100,096",
        "Baseline: topology=serial",
        "4 contrasts in 1 family on loss (lower is better)",
        "5 cells × 5 seeds = 25 runs",
        # power of the paired t-test: G*Power gives 1.68 for 5 pairs
        "detect an effect of 1.7 standard deviations",
        "after correction for 4 contrasts",
        "at 10¹⁰ FLOP/s",
        "all cells share lr = 0.003",
        f"Next: ablate run {QUICKSTART}",
    ):
        assert words in out, words
    assert files(tmp_path) == set()


def test_plan_shows_what_is_done(ablate: Run, measured: str) -> None:
    out = ablate("plan", QUICKSTART)[1]
    assert "Done: 25 of 25 runs\n" in out
    assert out.endswith("Next: ablate report quickstart\n")
    with sqlite3.connect(measured) as connection:
        connection.execute("UPDATE run SET status = 'stopped' WHERE id = 1")
    out = ablate("plan", QUICKSTART)[1]
    assert "Done: 24 of 25 runs\n" in out and out.endswith(f"Next: ablate run {QUICKSTART}\n")


def test_plan_counts_runs_that_another_evaluation_repeats(
    ablate: Run, measured: str, tmp_path: Path
) -> None:
    file = tmp_path / "quickstart.toml"
    text = Path(QUICKSTART).read_text(encoding="utf-8")
    assert 'tokens = "8K"' in text
    file.write_text(text.replace('tokens = "8K"', 'tokens = "9K"'), encoding="utf-8")
    out = ablate("plan", str(file))[1]
    assert "Done:" not in out and out.endswith(f"Next: ablate run {file}\n")


def test_plan_speaks_in_the_metrics_unit_once_the_database_holds_noise(
    ablate: Run, measured: str
) -> None:
    # differences of cell k are seed·k/100: standard deviation k/100 · √2.5; the median over k = 1 …
    # 4 is 2.5/100 · √2.5
    _, out, _ = ablate("plan", QUICKSTART)
    assert (
        "detect an effect of 1.7 standard deviations of the paired difference (0.066 nats per"
        " token) at 80% power" in out
    )
    assert "this study's own 20 pairs in the database" in out
    # what is no noise: a run that ran away
    with contextlib.closing(sqlite3.connect(measured)) as connection, connection:
        run = "(SELECT run FROM runs WHERE cell = 'topology=parallel' AND seed = 0)"
        connection.execute(f"UPDATE final SET value = 9e999 WHERE name = 'loss' AND run_id = {run}")
    code, out, _ = ablate("plan", QUICKSTART)
    assert code == 0 and "nats per token) at 80% power" in out


TUNED = """
name = "tuned"
question = "?"
seeds = { pilot = 3, resolution = 0.01, max = 9 }
[base]
tokens = "1M"
[factors]
topology = [1, 2]
[tune]
lr = [1e-4, 1e-2]
points = 3
seeds = 1
per = "cell"
"""


def test_plan_shows_what_is_to_be_found_out_and_what_comes_next(
    ablate: Run, tmp_path: Path
) -> None:
    from ablate import store, tune

    (tmp_path / "tuned.toml").write_text(TUNED)
    _, out, _ = ablate("plan", "tuned.toml")
    for words in (
        "for 2 groups of cells",
        "3 rates from 0.0001 to 0.01",
        "a pilot of 3",
        "Next stage: 6 runs to tune",
        "In all: 2 cells × 3 seeds = 6 runs and 10 tuning runs",
    ):
        assert words in out, words
    assert files(tmp_path) == {tmp_path / "tuned.toml"}
    given = load("tuned.toml")
    with store.open("a.db", create=True) as db:
        for _ in range(2):  # the ladder, then the rates around its middle
            made = next(tune.stages(plan(given), db)).plan
            measure(db, made.runs, lambda run: math.log(run.config.lr / 3.16e-3) ** 2)
    _, out, _ = ablate("plan", "tuned.toml", "--db", "a.db")
    assert "Next stage: nothing to train, then runs at the chosen rates" in out, (
        "what is found is not stored by looking"
    )
    with store.open("a.db", create=True) as db:
        next(tune.stages(plan(given), db))
    _, out, _ = ablate("plan", "tuned.toml", "--db", "a.db")
    assert "topology=serial: 0.00316" in out and "topology=no-attention-skip: 0.00316" in out
    assert "Next stage: 6 runs to compare\n" in out


def test_power_says_how_many_seeds_an_effect_needs(ablate: Run, measured: str) -> None:
    import math
    import statistics

    from statsmodels.stats.power import TTestPower

    # the differences of cell k are seed·k/100
    sds = [0.01 * k * statistics.stdev(range(5)) for k in range(1, 5)]
    code, out, _ = ablate(
        "power", "quickstart", "--effect", "0.02", "--effect", "0.1", "--power", "0.9"
    )
    assert code == 0 and "90% power" in out
    lines = [line.split() for line in out.splitlines() if line.strip().startswith("topology:")]
    for sd, line in zip(sds, lines, strict=True):
        needed = [
            math.ceil(TTestPower().solve_power(effect / sd, power=0.9, alpha=0.05 / 4))
            for effect in (0.02, 0.1)
        ]
        assert line[2:] == ["5", f"{sd:.2g}", *map(str, needed)]


def test_power_borrows_the_noise_of_other_studies(
    ablate: Run, measured: str, tmp_path: Path
) -> None:
    # as the quickstart
    like = TUNED.replace('"1M"', '"0.2M"\nn_layer = 2\nd_model = 64\nn_head = 2\nn_ctx = 64')
    (tmp_path / "tuned.toml").write_text(like)
    _, out, _ = ablate("power", "tuned.toml")
    assert (
        "tuned: seeds needed to detect an effect on loss" in out
        and "from the 20 pairs of study quickstart in the database" in out
    )
    assert "After correction" not in out
    (tmp_path / "tuned.toml").write_text(like.replace("[1, 2]", "[1, 2, 3, 4]"))
    assert "After correction for the contrasts of a family." in ablate("power", "tuned.toml")[1]
    (tmp_path / "tuned.toml").write_text(like.replace("question", 'metric = "accuracy"\nquestion'))
    code, out, err = ablate("power", "tuned.toml")
    assert code == 2 and "the database cannot estimate the noise in accuracy" in err


@pytest.mark.parametrize(
    ("base", "borrows"),
    [
        ("", True),
        ("tokens = 799_000", True),
        ("tokens = 900_000", False),
        ("tokens = 40_000", False),
        ("d_model = 256", False),
        ('corpus = "sotu"', False),
        ('tokenizer = "bpe:300"', False),
        ('objective = "masked"', False),
    ],
)
def test_noise_is_borrowed_only_from_runs_like_the_planned(
    ablate: Run, measured: str, tmp_path: Path, base: str, borrows: bool
) -> None:
    raw = tomllib.loads(Path(QUICKSTART).read_text())
    fields = raw["base"] | tomllib.loads(base)
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    head = 'name = "other"\nquestion = "?"\nseeds = 5\n[factors]\ntopology = [1, 5]\n[base]\n'
    (tmp_path / "other.toml").write_text(head + "\n".join(lines))
    _, out, _ = ablate("plan", "other.toml")
    assert ("noise: the 20 pairs of study quickstart" in out) is borrows
    assert ("nats per token) at" in out) is borrows
    assert (ablate("power", "other.toml")[0] == 0) is borrows


def test_noise_is_not_borrowed_from_cells_that_did_not_learn(ablate: Run, measured: str) -> None:
    def unigram(value: float) -> str:
        with contextlib.closing(sqlite3.connect(measured)) as connection, connection:
            connection.execute(
                "INSERT OR REPLACE INTO final (run_id, name, at, value)"
                " SELECT id, 'unigram_loss', 0, ? FROM run",
                (value,),
            )
        return ablate("plan", QUICKSTART)[1]

    assert "noise: this study's own 20 pairs" in unigram(1000.0)
    assert "(noise" not in unigram(0.0)


def test_a_narrow_terminal_breaks_no_word_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from ablate.cli import render

    headings = ["cell", "parameters", "steps", "memory"]
    row = ["topology=no-mlp-skip, position=rotary", "858,880", "1,953", "251 MiB"]
    shown = {}
    for width in (80, 60, 40, 12):
        made = Console(width=width)
        monkeypatch.setattr(render, "console", lambda made=made: made)
        with made.capture() as capture:
            made.print(render.table(headings, [row], right=headings[1:], spare=["steps", "memory"]))
        shown[width] = capture.get()
    for width, there in ((80, headings), (60, headings), (40, headings[:2])):
        assert [heading for heading in headings if heading in shown[width]] == there
        for heading, cell in zip(headings, row, strict=True):
            assert all(part in shown[width] for part in cell.split(", ")) or heading not in there, (
                shown[width]
            )
    # no room at all: broken, but nothing of a number is lost
    assert "".join(shown[12].split()).count("8") == 4


def test_factors_list_the_catalogue(ablate: Run) -> None:
    _, out, _ = ablate("factors")
    for name in CATALOGUE:
        assert (f"\n {name} " in out) is (name not in FOLLOWS)
    assert "`preset`" in out
    _, out, _ = ablate("factors", "topology")
    for words in ("h = P1(A(x)); y = P2(h + M(h))", "arXiv:2103.03404", "Default: serial"):
        assert words in out
    assert "objective = masked" in ablate("factors", "mask_ratio")[1]


def test_new_writes_a_commented_study_that_plans(ablate: Run, tmp_path: Path) -> None:
    arguments = (
        "--factor topology=1,2,parallel --factor n_layer=4,12 --within n_layer --seeds 8 --base"
        " d_model=64 --base tokens=1M"
    )
    code, out, _ = ablate("new", "depth", *arguments.split(), "--question", 'Does "depth" matter?')
    assert code == 0 and "6 cells × 8 seeds" in out
    text = (tmp_path / "studies" / "depth.toml").read_text()
    study = load("depth")
    assert (study.question, study.within, len(study.seeds), study.base["d_model"]) == (
        'Does "depth" matter?',
        ("n_layer",),
        8,
        64,
    )
    assert list(study.factors["topology"]) == ["serial", "no-attention-skip", "parallel"]
    assert all("#" in line for line in text.splitlines() if line and not line.startswith("["))
    code, _, err = ablate("new", "depth", "--factor", "topology=1,2")
    assert code == 2 and "--force" in err
    assert (tmp_path / "studies" / "depth.toml").read_text() == text


@pytest.mark.parametrize(
    ("given", "missing"), [("corpus=texts/a.txt", "texts"), ("tokenizer=tok.json", "tok.json")]
)
def test_new_says_where_it_looked_for_a_path(ablate: Run, given: str, missing: str) -> None:
    code, _, err = ablate("new", "own", "--factor", "norm=pre,post", "--base", given)
    assert code == 2 and str(Path.cwd() / missing) in err and "studies" not in err


def test_new_keeps_brackets_together_where_levels_are_split(ablate: Run) -> None:
    mix, masked = "mask_mix=[1,0,0], [0.8,0.1,0.1]", "objective=masked"
    code, out, _ = ablate(
        "new", "mix", "--factor", mix, "--base", masked, "--metric", "probe_loss@0.15"
    )
    assert code == 0 and "2 cells" in out
    assert list(load("mix").factors["mask_mix"]) == ["[1, 0, 0]", "[0.8, 0.1, 0.1]"]


def test_the_first_steps_of_help_work_in_an_empty_folder(ablate: Run) -> None:
    first, then = re.search(
        r"First steps: ablate (.*?), then ablate (\w+),", " ".join(ablate("--help")[1].split())
    ).groups()
    arguments = first.split()
    assert ablate(*arguments)[0] == ablate(then, arguments[1])[0] == 0


def test_new_starts_from_another_study(ablate: Run, tmp_path: Path) -> None:
    origin = str(ROOT / "studies" / "heads.toml")
    changes = ["--base", "d_model=128", "--factor", "n_layer=2,3", "--out", "n.toml"]
    assert ablate("new", "narrow", "--from", origin, *changes)[0] == 0
    raw, before = (
        tomllib.loads((tmp_path / "n.toml").read_text()),
        tomllib.loads(Path(origin).read_text()),
    )
    before["base"].pop("n_layer", None)
    expected = {"name": "narrow", "base": before["base"] | {"d_model": 128}}
    assert raw == before | expected | {"factors": before["factors"] | {"n_layer": [2, 3]}}


def test_new_writes_tuning_a_pilot_and_exclusions(ablate: Run, tmp_path: Path) -> None:
    arguments = (
        "--factor topology=1,5 --factor norm=pre,post --seeds pilot=5,resolution=0.01,max=30"
        ' --tune lr=[1e-4,1e-2] --tune per=["topology"] --exclude topology=5,norm=post'
    )
    assert ablate("new", "both", *arguments.split())[0] == 0
    raw = tomllib.loads((tmp_path / "studies" / "both.toml").read_text())
    assert raw["seeds"] == {"pilot": 5, "resolution": 0.01, "max": 30}
    assert raw["tune"] == {"points": 7, "per": ["topology"], "lr": [1e-4, 1e-2]}
    assert raw["exclude"] == [{"topology": 5, "norm": "post"}] and "lr" not in raw["base"]
    again = ["--from", "both", "--factor", "topology=1,5,2", "--exclude", "topology=2,norm=post"]
    code, _, err = ablate("new", "crossed", *again, "--seeds", "init=2,data=3")
    assert code == 0, err
    raw = tomllib.loads((tmp_path / "studies" / "crossed.toml").read_text())
    assert len(raw["exclude"]) == 2 and raw["seeds"] == {"init": 2, "data": 3}
    for wrong, words in (
        (["--tune", "points=5"], ["[tune]", "lr is missing"]),
        (["--seeds", "five"], ["--seeds", "'five'"]),
        (["--seeds", "pilot=5"], ["--seeds", "resolution"]),
        (["--exclude", "topology=6"], ["exclude", "'6'"]),
        (["--exclude", "topology"], ["--exclude topology", "NAME=VALUE"]),
    ):
        refused(ablate, ["new", "x", "--factor", "topology=1,5", *wrong], words)


def test_new_quotes_a_name_with_blanks_and_keeps_meanings_to_their_tables(
    ablate: Run, tmp_path: Path
) -> None:
    code, out, _ = ablate("new", "two words", "--from", QUICKSTART)
    assert code == 0 and out.endswith("Next: ablate plan 'studies/two words.toml'\n")
    lines = (tmp_path / "studies" / "two words.toml").read_text().splitlines()
    assert [
        line.split("#")[0].strip() for line in lines if "tokens that a run trains on" in line
    ] == ['tokens = "0.2M"']
    assert "Next: ablate run 'two words'" in ablate("plan", "two words")[1]


def test_completion_knows_factors_levels_and_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete.levels("nothing=") == []
    assert "n_head" in complete.factors("n_")
    monkeypatch.chdir(ROOT)
    assert "quickstart" in complete.studies("qui")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.toml").touch()
    assert "quick.toml" in complete.studies("quick") and not any(
        name.startswith("/") for name in complete.studies("")
    )


def test_plan_times_every_shape_on_a_device(ablate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from ablate.launch import forecast

    monkeypatch.setattr(forecast, "SECONDS", 0.05)
    code, out, _ = ablate("plan", QUICKSTART, "--size", "tiny", "--device", "cpu")
    assert code == 0
    assert "tokens/s" in out and "on cpu, as timed now" in out
    assert "--flops" in ablate("plan", QUICKSTART, "--device", "cpu", "--flops", "1e9")[2]


@pytest.mark.parametrize(
    ("fields", "evaluation", "passes"),
    [
        # with an eighth more for the copy probe
        ({}, Evaluation(points=3, tokens=600), 3 * 9 / 8),
        ({}, Evaluation(points=3, tokens=600, lengths=(1, 2)), 3 * 9 / 8 + 1 + 2),
        # which has no longer ones
        ({"position": "learned"}, Evaluation(points=3, tokens=600, lengths=(1, 2)), 3 * 9 / 8 + 1),
        # and token by token
        (
            {"objective": "masked"},
            Evaluation(points=3, tokens=600, probe=Probe(ratio=(0.15, 0.4))),
            3 + 2 + 1,
        ),
    ],
)
def test_the_time_of_a_run_has_its_evaluations(
    fields: dict[str, object], evaluation: Evaluation, passes: int
) -> None:
    """A token read costs a third of one trained on; at most the held-out tokens are read."""
    config = RunConfig(batch_tokens=512, n_ctx=256, steps=10, n_vocab=257, **fields)
    for held_out, read in ((1000, 600), (400, 400)):
        cell = Cell(run_of(config), 1.0, held_out, label="a", levels={}, stratum="")
        assert Forecast({"a": 100.0}).seconds(cell, evaluation) == pytest.approx(
            (5120 + passes * read / 3) / 100
        )


def test_plan_names_a_cell_that_falls_off_a_cliff(
    ablate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablate.launch import forecast

    def measured(plan: Plan, slots: object, done: object) -> Forecast:
        speeds = {"parallel": 0.3e6, "double-skip": 0.8e6}
        by_cell = {cell.label: speeds.get(cell.levels["topology"], 1e6) for cell in plan.cells}
        return Forecast(by_cell, 1, 33.0, "cpu")

    monkeypatch.setattr(forecast, "measure", measured)
    _, out, _ = ablate("plan", QUICKSTART, "--device", "cpu")
    assert "as timed now, after about 33 s of start" in out
    slow = [line for line in out.splitlines() if line.startswith("Slow")]
    assert slow == ["Slow: topology=parallel trains at 0.30 times the speed of topology=serial"]


# -- after a run -----------------------------------------------------------------------------------


def test_status_counts_runs_by_status(ablate: Run, measured: str) -> None:
    _, out, _ = ablate("status")
    line = next(line for line in out.splitlines() if "quickstart" in line)
    assert line.split()[:3] == ["quickstart", "25", "25"]
    _, out, _ = ablate("status", "quickstart")
    assert sum(line.split()[1:] == ["5", "5"] for line in out.splitlines()) == 5
    code, _, err = ablate("status", "quickstat")
    assert code == 2 and "'quickstart'" in err


@pytest.mark.parametrize("command", ["status", "report", "export", "analyse", "cancel"])
def test_a_study_of_another_database_is_not_said_to_be_unknown(
    ablate: Run, measured: str, command: str
) -> None:
    """The database is that of the folder in which a command starts: another folder, another one."""
    code, _, err = ablate(command, "heads")
    assert code == 2 and "ablate run heads" in err and measured in err and "--db" in err


def test_show_finds_a_run_by_number_or_key(ablate: Run, measured: str) -> None:
    key = plan(load(QUICKSTART)).runs[6].run.key
    code, out, _ = ablate("show", key[:10])
    assert code == 0
    for words in (f"Key {key}", "topology=no-attention-skip (compare)", "132,864", "1.01"):
        assert words in out
    assert "dropout" not in out  # at its default
    number = out.split()[1].rstrip(":")
    assert ablate("show", number)[1] == out
    for wrong in ("", "zzz", "999", "f" * 64, "%"):
        code, _, err = ablate("show", "--", wrong)
        assert code == 2 and "ablate query" in err


def test_a_short_number_is_never_the_start_of_a_key(ablate: Run, measured: str) -> None:
    with contextlib.closing(sqlite3.connect(measured)) as connection, connection:
        (n,) = connection.execute("SELECT count(*) FROM run").fetchone()
        connection.execute("UPDATE run SET key = '1234567890' || substr(key, 11) WHERE id = 3")
        for digit in range(10):  # one key begins with each digit
            start = f"UPDATE run SET key = '{digit}f' || substr(key, 3) WHERE id = ?"
            connection.execute(start, (4 + digit,))
    for number in (0, *range(1, 13), n + 1, 123, 1234567):
        code, out, err = ablate("show", str(number))
        exists = 1 <= number <= n
        assert (code, out.startswith(f"Run {number}:")) == ((0, True) if exists else (2, False))
        assert exists or f"no run '{number}'" in err
    assert ablate("compare", "1", "0")[0] == 2
    assert ablate("show", "12345678")[1].startswith("Run 3:")
    assert ablate("show", "0f")[1].startswith("Run 4:")


def test_compare_says_which_finals_do_not_compare(ablate: Run, tmp_path: Path) -> None:
    from ablate import store
    from ablate.plan import plan
    from ablate.store.register import register
    from ablate.study import load

    file = tmp_path / "masked.toml"
    file.write_text(
        'name = "masked"\nquestion = "?"\nseeds = 1\nmetric = "probe_loss"\n[base]\n'
        'corpus = "austen"\ntokens = 10_000\nobjective = "masked"\n[factors]\n'
        "mask_ratio = [0.15, 0.4]\nlr = [1e-3, 2e-3]\n"
    )
    made = plan(load(str(file)))
    with store.open(str(tmp_path / "x.db"), create=True) as db:
        register(db, made)
        measure(db, made.runs, lambda run: 1.0)
    said = [
        ablate("compare", "1", str(run), "--db", str(tmp_path / "x.db"))[1]
        for run in (2, 3)  # of another lr, of another mask_ratio
    ]
    assert "Not comparable" not in said[0]
    assert "Not comparable, as the runs differ in mask_ratio: loss" in said[1]


def test_a_tilde_is_the_home_folder_wherever_a_path_is_given(
    ablate: Run, measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "texts").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("some words\n" * 100)
    monkeypatch.setenv("HOME", str(home))
    shutil.copy(measured, home / "a.db")
    for arguments in (["--db=~/a.db"], ["--db", "~/a.db"], ["--db", "sqlite:///~/a.db"]):
        assert ablate("db", "path", *arguments)[1].strip() == str(home / "a.db")
    monkeypatch.setenv("ABLATE_DB", "~/a.db")
    assert ablate("status", "quickstart")[0] == 0
    for arguments in (
        ["export", "quickstart", "~/runs.csv"],
        ["report", "quickstart", "--out=~/reports"],
        ["new", "wiring", "--factor", "norm=pre,post", "--out=~/wiring.toml"],
        ["plan", "~/wiring.toml"],
    ):
        assert ablate(*arguments)[0] == 0, arguments
    made = {path.name for path in home.iterdir()}
    assert made >= {"runs.csv", "reports", "wiring.toml"}
    (home / "parts.py").write_text("print('here')")
    (home / "uses.toml").write_text('use = ["~/parts.py"]\n' + (home / "wiring.toml").read_text())
    code, _, said = ablate("plan", "~/uses.toml")
    assert code == 2 and "~/parts.py registers no level or metric" in said
    monkeypatch.setenv("ABLATE_CACHE", "~/cache")
    assert cache.folder() == home / "cache"
    for named in ("~/texts", "~/texts/a.txt", "~/texts/*.txt"):
        assert corpora.find(named, tmp_path).location.startswith(str(home))
    assert paths.expanded("~nobody-has-this-home/x") == Path("~nobody-has-this-home/x")
    assert not [path for path in Path.cwd().rglob("*") if path.name.startswith("~")]
    assert ablate("query", "SELECT '~/a' AS said")[1].splitlines()[-1].strip() == "~/a"


def test_a_pipe_is_no_study_file_and_no_code(ablate: Run, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    os.mkfifo(tmp_path / "studies" / "pipe.toml")
    os.mkfifo(tmp_path / "code.py")
    code, listed, _ = ablate("studies")
    assert code == 0 and "pipe" not in listed
    for named in ("pipe", "studies/pipe.toml"):
        code, _, said = ablate("plan", named)
        assert code == 2 and "studies/pipe.toml: a study file is a regular file" in said
    assert ablate("new", "wiring", "--factor", "norm=pre,post", "--out=a.toml")[0] == 0
    (tmp_path / "b.toml").write_text('use = ["code.py"]\n' + (tmp_path / "a.toml").read_text())
    code, _, said = ablate("plan", "b.toml")
    assert code == 2 and "code.py is not a regular file" in said


def test_query_lists_tables_and_refuses_all_but_one_select(ablate: Run, measured: str) -> None:
    assert "diverged_at" in ablate("query", "--tables")[1]
    for bad in ("DELETE FROM run", "SELECT nothing FROM runs", "SELECT 1; SELECT 2"):
        assert ablate("query", bad)[0] == 2


def test_db_path_and_environment(
    ablate: Run, measured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ablate("db", "path")[1] == f"{measured}\n"
    monkeypatch.delenv("ABLATE_DB")
    assert ablate("db", "path")[1] == "results/ablate.db\n"
    assert ablate("db", "path", "--db", "other.db")[1] == "other.db\n"


def test_analyse_works_out_and_stores_effects(ablate: Run, measured: str) -> None:
    # differences of `parallel`: seed × 4/100 over seeds 0 … 4: mean 0.08, sd √0.004, so that the
    # half width is 2.776 · √(0.004/5) = 0.0785, whose two digits are three decimals
    code, out, _ = ablate("analyse", "quickstart")
    line = next(line for line in out.splitlines() if "parallel" in line)
    assert code == 0 and line.split()[:6] == [
        "topology",
        "topology",
        "parallel",
        "5",
        "0",
        "+0.080",
    ]
    stored = ablate(
        "query",
        "SELECT level, round(mean, 6) AS mean FROM effects WHERE level = 'parallel'",
        "--format",
        "csv",
    )
    assert stored[1] == "level,mean\nparallel,0.08\n"


def test_db_check_and_merge(ablate: Run, measured: str) -> None:
    assert ablate("db", "check")[0] == 0
    code, out, _ = ablate("db", "merge", measured, "--db", "mine.db")
    assert code == 0 and "studies: 1; new runs: 25; updated runs: 0" in out
    assert "new runs: 0" in ablate("db", "merge", measured, "--db", "mine.db")[1]
    sql = "SELECT cell, seed, loss FROM runs ORDER BY cell, seed"
    assert ablate("query", sql, "--db", "mine.db") == ablate("query", sql)
    assert (
        ablate("query", "SELECT count(*) FROM effect", "--format", "csv", "--db", "mine.db")[1]
        == "count(*)\n4\n"
    )


@pytest.mark.parametrize("repair", [(), ("--repair",)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_db_check_of_a_cut_off_file_says_what_to_do(
    ablate: Run, measured: str, tmp_path: Path, share: float, repair: tuple[str, ...]
) -> None:
    whole = Path(measured).read_bytes()
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole[: int(len(whole) * share)])
    (tmp_path / "cut.journals").mkdir()
    code, out, err = ablate("db", "check", *repair, "--db", "cut.db")
    assert (code, err) == (1, "")
    assert out.startswith("database cut.db is damaged: ")
    assert "restore a backup" in out and "sqlite3 cut.db .recover | sqlite3 cut.recovered.db" in out
    assert "cut.journals" in out
    Path("cut.db.before-0002-from-0001").write_bytes(whole)
    assert "cut.db.before-0002-from-0001" in ablate("db", "check", "--db", "cut.db")[1]
    code, _, err = ablate("status", "--db", "cut.db")
    assert code == 2 and "`ablate db check` says what to do" in err


def test_report_answers_and_says_where_the_page_is(
    ablate: Run, measured: str, tmp_path: Path
) -> None:
    code, out, _ = ablate("report", "quickstart", "--out", "pages")
    assert code == 0
    assert "Which wiring of attention and MLP learns fastest on a laptop?" in out
    assert "parallel" in out
    assert out.splitlines()[-1] == f"Report: {Path('pages/quickstart/report.html')}"
    assert (tmp_path / "pages" / "quickstart" / "report.html").stat().st_size > 10_000
    code, _, err = ablate("report", "--out", measured)
    assert code == 2 and err == f"ablate: {measured} cannot be written: Not a directory\n"
    code, _, err = ablate("report", "quickstat")
    assert code == 2 and "quickstart" in err
