"""The pages under docs/ say what the code says, and what they tell a reader to do can be done."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_helpers import Run
from store_plans import plan_of

import ablate as package
from ablate import store
from ablate.components import CATALOGUE
from ablate.kinds import kind as kind_named
from ablate.plan import plan
from ablate.store import query as queries
from ablate.store.register import register
from ablate.store.schema import metadata
from ablate.study.parse import parse

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FIELDS = kind_named("transformer").fields
PAGES = sorted(DOCS.glob("*.md"))
SHAPE = ("n_layer", "d_model", "n_head", "n_ctx", "d_mlp", "n_vocab", "batch_tokens")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("generate")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_part_is_up_to_date(path: Path, generator: ModuleType) -> None:
    text = path.read_text(encoding="utf-8")
    assert generator.filled(text) == text, f"{path.name} is out of date: make docs"


def test_every_part_is_on_a_page(generator: ModuleType) -> None:
    marks = re.findall(
        r"<!-- generated: (\w+) -->", "".join(path.read_text(encoding="utf-8") for path in PAGES)
    )
    assert sorted(marks) == sorted(generator.PARTS)


def test_documented_names_need_no_import_but_that_of_ablate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = set(re.findall(r"reference: ([\w.]+)", page("python.md"))) | {"ablate.stats.compare"}
    assert "ablate.trained.prune.prune" in names
    for name in sorted(names):
        found: Any = package
        for part in name.split(".")[1:]:
            if isinstance(vars(found).get(part), ModuleType):  # another test has imported it
                monkeypatch.delattr(found, part)
            found = getattr(found, part)
        monkeypatch.undo()


def test_every_table_of_a_study_file_has_its_heading() -> None:
    """Rows of a table or key come from the generator; its text is written by hand."""
    from ablate.study.parse import StudyFile

    headings = {"factors", *re.findall(r"^## \[{0,2}(\w+)", page("study-files.md"), re.M)}
    own = {
        name
        for name in StudyFile.model_fields
        if name not in ("name", "question", "within", "interactions")
    }
    assert own == headings


def test_every_factor_and_level_is_on_its_page() -> None:
    text = page("factors.md")
    for name, row in CATALOGUE.items():
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section and row.meaning in section[1], name
        assert all(f"| `{level}`" in section[1] for level in row.names), name


def test_the_example_of_a_study_file_is_one() -> None:
    text = re.search(r"```toml\n(.*?)```", page("study-files.md"), re.S)
    assert text
    made = plan(parse(text[1], Path("topology.toml")))
    assert len(made.cells) == 9 and made.excluded == ("topology=no-mlp-skip, n_layer=12",)
    assert len(made.groups) == 9


def described(text: str) -> dict[str, dict[str, str]]:
    """Table or view → column → its type as the page gives it, "" for a view's."""
    found: dict[str, dict[str, str]] = {}
    for names_of, section in re.findall(r"^### ([\w, ]+)\n(.*?)(?=^#|\Z)", text, re.M | re.S):
        columns: dict[str, str] = {}
        found |= dict.fromkeys(names_of.split(", "), columns)
        for line in section.splitlines():
            first, kind, *rest = [part.strip() for part in line.split("|")[1:-1]] or ["", ""]
            names = list(FIELDS) if first == "*each field*" else re.findall(r"`(\w+)`", first)
            kinds = (kind.split(", ") if rest else [""]) * len(names)
            columns |= dict(zip(names, kinds, strict=False))
    return found


def test_the_page_on_the_database_has_every_column(tmp_path: Path) -> None:
    found = described(page("database.md"))
    db = store.open(str(tmp_path / "ablate.db"), create=True)
    register(db, plan_of())  # the view `runs` shows the fields in use
    there = {name: (kind, columns) for name, kind, columns in queries.tables(db)}
    assert found.keys() == there.keys()
    for name, (kind, columns) in there.items():
        assert sorted(found[name]) == sorted(columns), name
        if kind == "table":
            types = {column.name: str(column.type) for column in metadata.tables[name].columns}
            assert {column: found[name][column] for column in types} == types, name


def test_the_sql_of_the_page_runs(tmp_path: Path) -> None:
    db = store.open(str(tmp_path / "ablate.db"), create=True)
    blocks = re.findall(r"```sql\n(.*?)```", page("database.md"), re.S)
    statements = [one for block in blocks for one in block.split(";") if one.strip()]
    assert len(statements) == 3
    for statement in statements:
        queries.run(db, statement)


@pytest.mark.parametrize(
    "path", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name
)
def test_links_and_files_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).is_file(), target
    for name in re.findall(r"`(?!results/|build/)((?:[a-z_]+/)+[\w.-]*|[a-z_]+\.py)`", text):
        assert any((at / name).exists() for at in (ROOT, ROOT / "ablate")), name


IN_TURN = """
import json, sys
from ablate import figures
from ablate.cli import running
from in_process import local
from in_turn import said
from report_study import save_svg

figures.save = lambda figure, stem, *_: save_svg(figure, stem)
running._local = local

*commands, shape = map(json.loads, sys.stdin)
told = [said(command) for command in commands]
rows = json.loads(told[-1])

from ablate.config import RunConfig
from ablate.model.transformer import Transformer
sizes = []
for row in rows:
    model = Transformer(RunConfig(**{name: row[name] for name in shape}))
    names = [(name, p.numel()) for name, p in model.named_parameters()]
    body = sum(n for name, n in names if name.startswith(("blocks.", "final_norm.")))
    sizes.append((sum(n for _, n in names), body))
print(json.dumps([*told, sizes]))
"""


@pytest.mark.timeout(300)
def test_three_levels_are_added_as_documented(tmp_path: Path) -> None:
    """A gated activation, a topology that reads twice the width, and a norm that does not state its
    sizes are planned, matched, trained and reported with the sizes of their real modules.
    """
    text = page("add-a-level.md")
    # with compiled modules, which Python compiles again only where a source has changed
    shutil.copytree(ROOT / "ablate", tmp_path / "ablate")
    steps = re.findall(
        r"^In `([\w/.]+)`, at the end:\n\n(?:<!-- fmt: off -->\n\n)?```python\n(.*?)```",
        text,
        re.M | re.S,
    )
    assert len(steps) == text.count("```python") == 4
    for file, code in steps:
        with (tmp_path / file).open("a", encoding="utf-8") as source:
            source.write(f"\n\n{code}")
    study = re.search(r"```toml\n# (three\.toml)\n(.*?)```", text, re.S)
    assert study
    (tmp_path / study[1]).write_text(study[2], encoding="utf-8")
    commands = re.findall(r"^\$ ablate (.+)$", text, re.M)
    assert [command.split()[0] for command in commands] == [
        *("factors", "plan", "run", "query", "report")
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent}",
        "ABLATE_DB": "ablate.db",
        "OMP_NUM_THREADS": "1",
    }
    new = {"activation": "geglu", "topology": "wide-read", "norm_kind": "l2norm"}
    asked = [
        *map(shlex.split, commands),
        ["query", "--format", "json", "SELECT * FROM runs ORDER BY cell"],
        [*SHAPE, *new],
    ]
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        input="\n".join(map(json.dumps, asked)),
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    factors, planned, trained, _, reported, found, sizes = json.loads(done.stdout)
    assert "geglu" in factors
    assert "three: 4 complete" in trained

    # the database has the sizes of the real modules
    stored = json.loads(found)
    assert len(stored) == 4 and all(row["status"] == "complete" for row in stored)
    assert all(any(row[name] == level for row in stored) for name, level in new.items())
    assert [[row["n_params"], row["n_params_body"]] for row in stored] == sizes
    # so does the plan, and the arms are matched by them
    for row in stored:
        assert f"{row['n_params']:,}" in planned
    (base,) = (row for row in stored if row["cell"] == "baseline")
    ratios = {
        name: max(abs(row[name] / base[name] - 1) for row in stored)
        for name in ("n_params_body", "n_params", "flops")
    }
    assert ratios["n_params_body"] < 0.03
    matched = re.search(r"Matched: (.*)", reported)
    assert matched, reported
    stated = {
        name: float(share) / 100
        for share, name in re.findall(r"([\d.]+)% of (the parameters without|all)", matched[1])
    }
    assert stated["all"] == pytest.approx(ratios["n_params"], abs=6e-4)
    assert stated["the parameters without"] == pytest.approx(ratios["n_params_body"], abs=6e-4)


def test_a_reader_goes_from_a_script_to_the_report(ablate: Run, tmp_path: Path) -> None:
    """The commands of the first section of docs/own-script.md, and the study that it names, with
    two of its eight seeds.
    """
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    named = tmp_path / "studies" / "own-script.toml"
    eight = named.read_text()
    assert "\nseeds = 8\n" in eight
    named.write_text(eight.replace("\nseeds = 8\n", "\nseeds = 2\n"))
    section = re.search(r"^## In fifteen minutes\n(.*?)^## ", page("own-script.md"), re.M | re.S)
    assert section
    blocks = re.findall(r"```sh\n(.*?)```", section[1], re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("ablate")]
    assert len(lines) == 7
    for line in (*lines, "ablate run own-script"):
        code, _, error = ablate(*shlex.split(line, comments=True)[1:])
        assert code == 0, f"{line}\n{error}"
    file = re.search(r"```toml\n(.*?)```", section[1], re.S)
    written = (tmp_path / "studies" / "momentum.toml").read_text()
    assert file and all(
        line in written for line in file[1].splitlines() if line.startswith(("[", "run", "goal"))
    )
    with store.open(str(tmp_path / "results" / "ablate.db")) as db, db.read() as connection:
        status = "SELECT DISTINCT status, count(*) FROM run"
        assert connection.exec_driver_sql(status).all() == [("complete", 10 + 12)]
