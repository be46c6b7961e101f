"""Studies on images, from the file to the report, and what is refused in one line."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from textwrap import dedent

import pytest
from cli_helpers import Run
from finetune_study import train
from image_cases import save

from ablate import store
from ablate.errors import AblateError
from ablate.plan import plan
from ablate.plan.tiny import tiny
from ablate.report import answers, method
from ablate.report.data import gather
from ablate.study import load

HEAD = 'name = "a"\nquestion = "?"\nseeds = 2\n'
BASE = """
[base]
objective = "mae"
corpus = "a.npz"
d_model = 16
n_head = 2
n_layer = 1
n_layer_decoder = 1
batch_tokens = 32
tokens = 320
"""


def study(folder: Path, text: str, n: int = 60) -> Path:
    save(folder / "a.npz", n=n, n_class=3)
    path = folder / "a.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_study_on_images_runs_and_is_reported(ablate: Run, tmp_path: Path) -> None:
    text = f"""{HEAD}metric = "label_accuracy"{BASE}
        [factors]
        mask_ratio = [0.75, 0.5]
        [run]
        keep = "final"
        [eval]
        points = 2
        probe = {{ ratio = [0.25, 0.75] }}
    """
    file, db = str(study(tmp_path, text)), str(tmp_path / "a.db")
    code, out, error = ablate("plan", file, "--db", db)
    assert code == 0, error
    assert "60 grey images of 4 × 4 pixels in 3 classes; trains on 48" in out
    assert "training FLOPs against" in out  # of the larger share that the encoder reads
    outcome, said = train(plan(load(file)), Path(db))
    assert outcome.exit_code == 0, said
    with sqlite3.connect(db) as connection:
        found = connection.execute(
            "SELECT run.kind, status, name, at, value FROM run JOIN final ON run_id = run.id"
        ).fetchall()
    assert {(kind, status) for kind, status, *_ in found} == {("image", "complete")}
    measured = {(name, at) for _, _, name, at, _ in found}
    probes = {("reconstruction_loss", 0.25), ("reconstruction_loss", 0.75)}
    assert probes | {("label_accuracy", 0), ("label_chance", 0), ("loss", 0)} <= measured
    assert ("bits_per_byte", 0) not in measured
    assert {round(value, 6) for *_, name, _, value in found if name == "label_chance"} == {0.333333}
    for command in (("sample", "1", "hello"), ("prune", "1", "--heads")):
        code, _, error = ablate(*command, "--db", db)
        assert code == 2 and error.count("\n") == 1 and "reads images" in error
    with store.open(db) as opened:
        data = gather(opened, "a")
        said = " ".join(method.paragraphs(data))
        cells = " ".join(answers.cells(data))
    assert "patches of the images a (2 pixels a side, 4 an image, 32 a step)" in said
    assert "byte" not in said and "one image in 5 of each class" in said
    # too few steps for more; no class is predicted
    assert "mean patches" in cells and "class frequencies" not in cells


def test_a_new_study_on_images_has_nothing_of_text(ablate: Run) -> None:
    factor = ("--factor", "mask_ratio=0.5,0.75")
    code, _, error = ablate("new", "b", *factor, "--base", "objective=mae", "--seeds", "2")
    assert code == 0, error
    made = plan(load("studies/b.toml"))
    assert {cell.config.corpus for cell in made.cells} == {"digits"}
    assert made.study.metric == "label_accuracy"
    code, out, _ = ablate("data", "studies/b.toml")
    assert code == 0 and out == ablate("data", "digits")[1] and "1,797 grey images" in out


def test_a_pack_of_a_study_has_runs_of_one_ratio(tmp_path: Path) -> None:
    factor = "[factors]\nmask_ratio = [0.75, 0.5]\n"
    made = plan(load(str(study(tmp_path, f'{HEAD}metric = "label_accuracy"{BASE}{factor}'))))
    keys = {(one.config.mask_ratio, one.run.pack_key) for one in made.runs}
    assert len(made.runs) == 4 and len(keys) == 2 == len({key for _, key in keys})


def test_an_image_study_is_made_tiny(tmp_path: Path) -> None:
    base = BASE.replace("d_model = 16", "d_model = 256\nd_decoder = 128").replace("320", '"4M"')
    factor = "[factors]\npatch = [1, 2]\n"
    text = f'{HEAD}metric = "accuracy"{base}{factor}'.replace('"mae"', '"classify"')
    text = text.replace("d_decoder = 128\n", "").replace("n_layer_decoder = 1\n", "")
    text = text.replace("batch_tokens = 32", "batch_tokens = 8192")
    small = [cell.config for cell in plan(tiny(load(str(study(tmp_path, text))))).cells]
    assert {one.n_ctx for one in small} == {16, 4}
    assert all(one.d_model <= 64 and one.batch_tokens <= 1024 for one in small)


LABEL = 'metric = "label_accuracy"'
FACTORS = "[factors]\nnorm = ['pre', 'post']\n"


@pytest.mark.parametrize(
    ("metric", "base", "rest", "said"),
    [
        (LABEL, "n_ctx = 16", FACTORS, "n_ctx of images follows from patch"),
        (LABEL, "patch = 3", FACTORS, "patch = 3 does not divide the images of 4 × 4 pixels"),
        (LABEL, "patch = 0", FACTORS, "patch = 0 does not divide"),
        (LABEL, "patch = 1", FACTORS, "patch = 1 of grey images"),
        (LABEL, "patch = 4", FACTORS, "patch = 4: .* single patch"),
        (LABEL, "mask_ratio = 1", FACTORS, "mask_ratio = 1: .*0.95"),
        (LABEL, "image_height = 4", FACTORS, "line 14: image_height follows from corpus"),
        (LABEL, 'tokenizer = "byte"', FACTORS, "tokenizer has no effect"),
        (LABEL, "z_loss = 0.1", FACTORS, "z_loss has no effect"),
        (LABEL, "", "[factors]\nobjective = ['mae', 'causal']\n", "set both in|reads text"),
        (LABEL, "", f"{FACTORS}[finetune]\ntask = 'a'\n", "finetune.*reads images"),
        (LABEL, "", f"{FACTORS}[eval]\nprobe_csv = 'a.csv'\n", "line .*probe_csv has texts"),
        (LABEL, "", f"{FACTORS}[eval]\ndownstream = ['era_accuracy']\n", "era_accuracy reads text"),
        ('metric = "loss"', "", FACTORS, "'loss' does not compare cells"),
        ('metric = "accuracy"', "", FACTORS, "'accuracy' does not compare"),
        (
            'metric = "reconstruction_loss@0.15"',
            "",
            "[factors]\npatch = [1, 2]\n",
            "patch = 1 of grey|where patch varies",
        ),
    ],
)
def test_what_a_study_on_images_cannot_say_is_one_line(
    metric: str, base: str, rest: str, said: str, tmp_path: Path
) -> None:
    file = study(tmp_path, f"{HEAD}{metric}{BASE}{base}\n{rest}")
    with pytest.raises(AblateError, match=said) as error:
        plan(load(str(file)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("objective", ["mae", "classify"])
def test_what_the_architecture_of_images_asks_for_is_a_factor(
    objective: str, tmp_path: Path
) -> None:
    """The objective implies the architecture, which alone has a class token."""
    base = BASE.replace("mae", objective)
    if objective == "classify":
        base = base.replace("n_layer_decoder = 1\n", "")
    metric = "accuracy" if objective == "classify" else "label_accuracy"
    factors = '[factors]\nclass_token = ["none", "learned"]\n'
    made = plan(load(str(study(tmp_path, f'{HEAD}metric = "{metric}"{base}{factors}'))))
    assert [cell.config.class_token for cell in made.cells] == ["none", "learned"]


def test_metrics_of_a_user_are_for_text(tmp_path: Path) -> None:
    own = """
        from ablate import metric

        @metric("flat", goal="lower", meaning="nothing")
        def flat(losses):
            return losses
    """
    (tmp_path / "own.py").write_text(dedent(own), encoding="utf-8")
    file = study(tmp_path, f'{HEAD}{LABEL}\nuse = ["own.py"]\n{BASE}{FACTORS}')
    with pytest.raises(AblateError, match="metric flat: metrics of your own are measured on text"):
        plan(load(str(file)))


def test_a_set_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    file = study(tmp_path, f"{HEAD}{LABEL}{BASE.replace('a.npz', 'austen')}{FACTORS}")
    with pytest.raises(AblateError, match=r"a\.toml, line 7: corpus 'austen': there is no such"):
        plan(load(str(file)))


@pytest.mark.parametrize("corpus", ["digits", "a.npz"])
def test_a_set_of_images_is_no_text(corpus: str, tmp_path: Path) -> None:
    base = BASE.replace('objective = "mae"\n', "").replace("n_layer_decoder = 1\n", "")
    base = base.replace("a.npz", corpus)
    factors = '[factors]\nnorm = ["pre", "post"]\n'
    file = study(tmp_path, f'{HEAD}metric = "loss"{base}{factors}')
    with pytest.raises(AblateError, match=r"is a set of images.*objective = classify or mae"):
        plan(load(str(file)))


def test_text_and_images_are_two_studies(tmp_path: Path) -> None:
    base = BASE.replace('objective = "mae"\n', "").replace("n_layer_decoder = 1\n", "")
    rest = "[factors]\nobjective = ['classify', 'causal']\n"
    with pytest.raises(AblateError, match="objective = 'causal' reads text, and other cells"):
        plan(load(str(study(tmp_path, f'{HEAD}metric = "accuracy"{base}{rest}'))))


@pytest.mark.parametrize(("shape", "warned"), [((3, 8, 8), True), ((8, 8, 3), False)])
def test_a_plan_warns_of_an_array_whose_channels_stand_first(
    tmp_path: Path, shape: tuple[int, ...], warned: bool
) -> None:
    text = f'{HEAD}metric = "label_accuracy"{BASE}patch = 1\n[factors]\nmask_ratio = [0.75, 0.5]'
    file = study(tmp_path, text.replace("batch_tokens = 32\ntokens = 320", "tokens = 8000"))
    save(tmp_path / "a.npz", n=40, shape=shape)
    size = 24 if warned else 64
    file.write_text(file.read_text().replace("[factors]", f"batch_tokens = {size * 4}\n[factors]"))
    lines = [line for line in plan(load(str(file))).about if line.startswith("Warning")]
    assert ["[N, channels, height, width]" in line for line in lines] == [True] * warned
