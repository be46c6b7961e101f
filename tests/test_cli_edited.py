"""A study file that differs from its runs is named, with what changed and what left the study."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import store, study
from ablate.cli import app
from ablate.plan import plan
from ablate.store.register import register
from ablate.study.revision import changes

FILE = """
name = "wiring"
question = "Which?"
seeds = 2
[base]
corpus = "austen"
tokens = 10_000
[factors]
topology = ["serial", "parallel", "concat"]
"""


def test_a_change_names_key_and_values() -> None:
    old = "seeds = 2\n[base]\nlr = 0.1 # note\nd_model = 64\n"
    new = "seeds = 3\n[base]\nlr = 0.1\nn_layer = 2\n"
    assert changes(old, new) == [
        "seeds: 2, now 3",
        "base.n_layer: added, 2",
        "base.d_model: removed, was 64",
    ]
    assert changes(old, old + "\n# a comment\n") == []


@pytest.mark.parametrize("command", ["plan", "status", "report"])
def test_commands_name_an_edited_file_and_the_runs_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("wiring.toml")
    with store.open("x.db", create=True) as db:
        for text in (FILE, FILE.replace(', "concat"', "")):
            file.write_text(text)
            register(db, plan(study.load(str(file))))
    file.write_text(file.read_text().replace("seeds = 2", "seeds = 4"))
    done = CliRunner().invoke(app, [command, str(file), "--db", "x.db"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "seeds: 2, now 4" in said
    assert "2 runs of earlier revisions left the study wiring: topology=concat" in said
