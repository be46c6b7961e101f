"""docs/own-parts.md followed: a part is tried, planned, trained and reported without its file."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest
from cli_helpers import Run, python
from report_study import svg_only  # noqa: F401

import ablate as ablate_
from ablate import outside
from ablate.components import CATALOGUE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-parts.md").read_text(encoding="utf-8")


def blocks(language: str) -> dict[str, str]:
    """Name of a file → its text, of the page's blocks that name one; of a tenth of the tokens."""
    found = re.findall(rf"```{language}\n# ([\w.]+)\n(.*?)```", PAGE, re.S)
    return {
        name: re.sub(r'^tokens = "(\d)0K"$', r'tokens = "\1K"', text, flags=re.M)
        for name, text in found
    }


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("study", ["letters", "words", "fields"])
def test_the_pages_metric_and_tokenizer_can_be_studied(
    ablate: Run, tmp_path: Path, study: str
) -> None:
    for name, text in (blocks("python") | blocks("toml")).items():
        (tmp_path / name).write_text(text)
    (section,) = re.findall(
        rf"```console\n((?:(?!```).)*?ablate run {study}\.toml.*?)```", PAGE, re.S
    )
    for line in section.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        code, out, error = ablate(*arguments)
        assert program == "ablate" and code == 0, (line, error)
    runs, finals = (read(study, db="results/ablate.db") for read in (ablate_.load, ablate_.finals))
    assert list(runs["status"]) == ["complete"] * 4
    names = {
        "letters": ("top5", "letter_loss", "calibration"),
        "words": ("bits_per_byte",),
        "fields": ("bits_per_byte", "top"),
    }[study]
    for name in names:
        assert study != "letters" or f",{name}," in out  # what its last command shows
        values = finals.loc[finals["name"] == name, "value"]
        assert len(values) == 4 and values.notna().all() and (values > 0).all(), name
    if study == "fields":
        assert sorted(runs["n_words"]) == [1, 1, 4, 4] and set(runs["top_k"]) == {3}
        assert sorted(runs["n_vocab"]) == [257, 257, 260, 260] and "n_words" in out
    if study == "words":  # bits per byte are those of the loss: fewer tokens carry the same bytes
        kinds = runs.set_index("tokenizer")
        assert (kinds["loss"] / math.log(2) / kinds["bits_per_byte"])["byte"].round(4).eq(1).all()
        assert (kinds["loss"] / math.log(2) / kinds["bits_per_byte"])["four_words"].gt(1).all()


def test_what_a_part_prints_stands_below_its_verdicts(ablate: Run, tmp_path: Path) -> None:
    text = blocks("python")["my_parts.py"].replace("import torch\n", "import sys, torch\n", 1)
    said = 'print("shape")\n        print("warned", file=sys.stderr)\n        return self.gain'
    (tmp_path / "my_parts.py").write_text(text.replace("return self.gain", said))
    code, out, err = ablate("check", "my_parts.py")
    assert code == 0 and not err
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["prints", "shape"],
        ["prints", "warned"],
    ]


@pytest.mark.usefixtures("svg_only")
@pytest.mark.timeout(300)
def test_the_page_can_be_followed(ablate: Run, tmp_path: Path) -> None:
    for name, text in (blocks("python") | blocks("toml")).items():
        (tmp_path / name).write_text(text)
    part = tmp_path / "my_parts.py"

    # what the page shows of `ablate check` is what it prints
    code, out, _ = ablate("check", "my_parts.py")
    (shown,) = re.findall(r"\$ ablate check my_parts.py\n(.*?)```", PAGE, re.S)
    without_hash = lambda text: re.sub(r"\(\w{12}\)", "", text).split()  # noqa: E731
    assert code == 0 and without_hash(out) == without_hash(shown)

    code, out, _ = ablate("check", "my_metrics.py", "my_tokenizers.py")
    assert code == 0 and out.count("\n  ok") == 3 * 3 + 4, out

    assert ablate("plan", "mine.toml")[0] == 0
    code, out, _ = ablate("run", "mine.toml")
    assert code == 0 and "mine: 4 complete" in out
    again = ablate("run", "mine.toml")[1]
    assert "mine 1/4" not in again  # nothing is trained twice
    with sqlite3.connect("results/ablate.db") as connection:
        ((text, about),) = connection.execute("SELECT text, about FROM code")
    assert text == part.read_text() and json.loads(about)["levels"][0][:2] == [
        "norm_kind",
        "max-norm",
    ]

    # readers need neither the file nor its level
    kept = part.read_text()
    part.unlink()
    outside.use(())
    assert "max-norm" not in CATALOGUE["norm_kind"].names
    code, out, _ = ablate("report", "mine")
    assert code == 0 and "max-norm" in out
    page = (tmp_path / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "gain · x / max |x|" in page  # in the table of levels
    assert "my_parts.py (SHA-256" in page
    shutil.copy("results/ablate.db", "other.db")
    for command in (
        ("status", "mine.toml"),
        ("show", "3"),
        ("query", "SELECT norm_kind, loss FROM runs"),
        ("db", "merge", "other.db"),
        ("db", "check"),
        ("analyse", "mine"),
        ("export", "mine", "-"),
    ):
        code, out, error = ablate(*command)
        assert code == 0, (command, error)
    assert "max-norm" not in CATALOGUE["norm_kind"].names
    code, _, error = ablate("plan", "mine.toml")
    assert code == 2 and error.count("\n") == 1 and "my_parts.py" in error

    # an edited file: readers say which rows the older version made, and only those are made anew
    part.write_text(f"{kept}# edited\n")
    for command in (("status", "mine.toml"), ("report", "mine.toml"), ("plan", "mine.toml")):
        out = " ".join(ablate(*command)[1].split())
        assert "my_parts.py is another version now" in out, command
        assert "2 runs of norm_kind=max-norm" in out, command
    out = " ".join(ablate("run", "mine.toml")[1].split())
    assert "mine: 4 complete" in out and "2 runs of the study mine with a result" in out
    out = " ".join(ablate("status", "mine.toml")[1].split())
    assert "another version" not in out and "2 runs by an earlier my_parts.py" in out
    with sqlite3.connect("results/ablate.db") as connection:
        ((runs,),) = connection.execute("SELECT count(*) FROM run")
    assert runs == 6  # the baseline was not trained again


MODEL = """
from torch import nn
class Model(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.embed, self.head = nn.Embedding(n_vocab, d_model), nn.Linear(d_model, n_vocab)
    def forward(self, tokens):
        return self.head(self.embed(tokens))
class Peeks(Model):
    def forward(self, tokens):
        return self.head(self.embed(tokens).mean(1, keepdim=True)).expand(-1, tokens.shape[1], -1)
"""


def test_a_whole_model_is_tried_without_a_study(ablate: Run, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(MODEL)
    code, out, _ = ablate("check", "my_model.py:Model")
    assert code == 0 and "architecture = my_model.py:Model" in out and out.count("\n  ok") == 8
    code, out, _ = ablate("check", "my_model.py:Peeks")
    assert code == 1 and "FAILED causality" in out and out.count("FAILED") == 1
    code, _, error = ablate("check", "my_model.py")
    assert code == 2 and error.count("\n") == 1 and "my_model.py:NAME" in error


@pytest.mark.usefixtures("in_process")
def test_what_is_read_of_a_whole_model_needs_no_size_of_its_body(
    ablate: Run, tmp_path: Path
) -> None:
    (tmp_path / "my_model.py").write_text(MODEL)
    factor = 'norm_kind = ["layernorm", "max-norm"]'
    text = blocks("toml")["mine.toml"].replace('use = ["my_parts.py"]', "")
    text = text.replace(factor, 'architecture = ["transformer", "my_model.py:Model"]')
    (tmp_path / "mine.toml").write_text(text.replace("30K", "2K"))
    code, out, error = ablate("run", "mine.toml")
    assert code == 0 and "mine: 4 complete" in out, error
    for command in (("show", "2"), ("compare", "1", "2"), ("report", "mine"), ("export", "mine")):
        code, out, error = ablate(*command)
        assert code == 0 and "my_model.py:Model" in out + error, (command, error)


@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(300)
def test_the_example_runs_at_tiny_size(ablate: Run) -> None:
    code, out, _ = ablate("check", str(ROOT / "studies" / "own_parts.py"))
    assert code == 0 and "\n  alone" not in out
    code, out, error = ablate("run", "own-parts", "--size", "tiny")
    assert code == 0 and "own-parts-tiny: 8 complete" in out, error
    code, out, _ = ablate("query", "SELECT DISTINCT norm_p FROM runs WHERE norm_kind = 'p-norm'")
    assert code == 0 and "2.0" in out


def test_a_file_that_loads_torch_first_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(blocks("python")["my_parts.py"])
    code = "from pathlib import Path; from ablate import outside"
    found = python(f"{code}; outside.find(['my_parts.py'], Path())", cwd=tmp_path)
    assert found.stderr == ""


def test_check_tries_the_other_parts_beside_a_refused_one(ablate: Run, tmp_path: Path) -> None:
    refused = """
from torch import nn
from ablate import level

@level("objective", "mine", meaning="x")
def mine(x):
    return x
"""
    norm = """
@level("norm_kind", "same", meaning="x")
class Same(nn.Module):
    def forward(self, x):
        return x
"""
    (tmp_path / "two.py").write_text(refused + norm)
    (tmp_path / "one.py").write_text(refused)
    code, out, _ = ablate("check", "two.py")
    assert code == 1 and "FAILED two.py, line 5: objective level 'mine'" in out
    assert "ok     causality" in out
    code, out, _ = ablate("check", "one.py")
    assert code == 1 and "FAILED one.py, line 5" in out
    (tmp_path / "good.py").write_text(f"from torch import nn\nfrom ablate import level\n{norm}")
    code, out, _ = ablate("check", "one.py", "good.py")
    assert code == 1 and "FAILED one.py, line 5" in out and "ok     causality" in out
    (tmp_path / "one.py").write_text(f"{refused}raise RuntimeError('later')\n")
    code, out, error = ablate("check", "one.py", "good.py")
    assert code == 2 and "FAILED one.py, line 5" in out
    assert "one.py, line 8: RuntimeError: later" in error and error.count("\n") == 1


def test_a_refused_level_is_named_by_its_place_in_the_users_code(
    ablate: Run, tmp_path: Path
) -> None:
    """A whole model is registered by ablate, and the files of a package are run from a copy."""
    (tmp_path / "my_model.py").write_text(MODEL.replace("n_vocab, d_model):", "n_vocabb):"))
    code, out, _ = ablate("check", "my_model.py:Model")
    assert code == 1 and "FAILED architecture level 'my_model.py:Model'" in out
    (tmp_path / "lab").mkdir()
    text = 'from ablate import level\nlevel("objective", "mine", meaning="x")(abs)\n'
    (tmp_path / "lab" / "__init__.py").write_text(text)
    code, out, _ = ablate("check", "./lab")
    assert code == 1 and "FAILED lab/__init__.py, line 2: objective level 'mine'" in out
