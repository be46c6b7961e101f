"""A database with one spoilt column gives a result or one line, in every command: no traceback."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from report_study import few_replicates, save_svg  # noqa: F401
from spoilt_databases import COMMANDS, allowed, build, chunks, spoil
from typer.testing import CliRunner

from ablate import figures, store
from ablate.cli import app
from ablate.errors import AblateError
from ablate.store.check import check

SEED = 20_261_128
FOUND = (51, 77, 120, 244, 333, 508, 512, 538, 742, 787, 905)  # that once were a traceback


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("original"))


def test_what_is_written_is_sound(original: Path) -> None:
    with store.open(str(original)) as db:
        assert check(db) == []


@pytest.mark.usefixtures("few_replicates")
@pytest.mark.parametrize("cases", chunks(16, 1000, 41, FOUND))
def test_a_spoilt_column_is_no_traceback(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Sequence[int]
) -> None:
    monkeypatch.setattr(figures, "save", lambda figure, stem, *_: save_svg(figure, stem))
    failed, slow, slowest = [], [], (0.0, "")
    for case in cases:
        chance = random.Random(SEED + case)
        folder = tmp_path / str(case)
        shutil.copytree(original.parent, folder)
        what = spoil(folder / "x.db", chance)
        command = chance.choice(COMMANDS)
        monkeypatch.chdir(folder)
        begun = time.process_time()
        done = CliRunner().invoke(app, [*command, "--db", "x.db"])
        took, said = time.process_time() - begun, f"case {case}: {what}: {' '.join(command)}"
        slowest = max(slowest, (took, said))
        if took > allowed(folder):
            slow.append(f"{said}: {took:.1f} s")
        error = done.exception
        if isinstance(error, AblateError):
            assert len(str(error)) < 2000, said
        elif error is not None and not isinstance(error, SystemExit):
            last = traceback.extract_tb(error.__traceback__)[-1]
            failed.append(f"{said}\n    {error!r:.200} ({last.filename}:{last.lineno})")
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder)
    print(f"slowest: {slowest[0]:.1f} s of CPU, {slowest[1]}")
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(failed)
    assert not slow, "\n".join(slow)


def test_an_error_of_the_program_and_ctrl_c_stay_what_they_are(
    original: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(original, tmp_path))
    with pytest.raises(ValueError, match="of the program"), store.open(str(path)):
        raise ValueError("of the program")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE run SET seed = 'x' WHERE id = 1")
    with pytest.raises(AblateError, match=r"run\.seed is 'x' in row 1"), store.open(str(path)):
        raise ValueError("of the database")
    with pytest.raises(KeyboardInterrupt), store.open(str(path)):
        raise KeyboardInterrupt
    with store.open(str(path)) as db:
        assert any("run.seed is 'x' in row 1" in one.text for one in check(db))
