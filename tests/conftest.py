"""Fixtures of the tests of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_helpers import QUICKSTART, Run, measure

from ablate.cli import main
from ablate.plan import plan
from ablate.study import load


@pytest.fixture
def ablate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_DB", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        assert isinstance(code, int | None)
        return code or 0, *capfd.readouterr()

    return run


@pytest.fixture
def measured(tmp_path: Path) -> str:
    """A database with the quickstart; a final is its seed plus a tenth of its cell's index."""
    from ablate import store
    from ablate.store.register import register

    file = str(tmp_path / "measured.db")
    made = plan(load(QUICKSTART))
    places = {cell.label: place for place, cell in enumerate(made.cells)}
    with store.open(file, create=True) as db:
        register(db, made)
        measure(
            db, made.runs, lambda run: run.config.seed + places[run.cell] * run.config.seed * 0.01
        )
    return file
