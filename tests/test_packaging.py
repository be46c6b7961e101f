"""What a pip install has beside the package's modules, and what is found in any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import ROOT, Run

from ablate.study import examples


def installed(*arguments: str, package: Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ablate", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_installed_package_has_the_examples_and_the_reference(tmp_path: Path) -> None:
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77")
    package, folder = tmp_path / "package", tmp_path / "folder"
    folder.mkdir()
    build = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(package)]
    subprocess.run(
        [sys.executable, "setup.py", "-q", *build], cwd=ROOT, check=True, capture_output=True
    )
    shipped = package / "ablate" / "examples"
    assert {file.name: file.read_bytes() for file in shipped.glob("*.toml")} == {
        file.name: file.read_bytes() for file in (ROOT / "studies").glob("*.toml")
    }
    database = shipped / "results" / "reference.db"
    assert database.read_bytes() == (ROOT / "results" / "reference.db").read_bytes()
    assert str(database) in installed("studies", package=package, cwd=folder)
    planned = installed("plan", "quickstart", package=package, cwd=folder)
    assert "Next: ablate run quickstart" in planned
    assert "topology" in installed("status", "--db", str(database), package=package, cwd=folder)
    assert not list(folder.iterdir())


def test_an_example_is_found_in_any_folder_and_ones_own_file_comes_first(
    ablate: Run, tmp_path: Path
) -> None:
    code, out, _ = ablate("studies")
    assert code == 0 and all(file.stem in out for file in examples.studies())
    assert "5 cells × 5 seeds = 25 runs" in ablate("plan", "quickstart")[1]
    assert ablate("new", "mine", "--from", "quickstart", "--seeds", "3")[0] == 0
    (tmp_path / "studies" / "mine.toml").rename(tmp_path / "studies" / "quickstart.toml")
    assert "5 cells × 3 seeds = 15 runs" in ablate("plan", "quickstart")[1]
    out = ablate("studies")[1]
    assert "studies/quickstart.toml" in out and out.count("quickstart") == 2


def test_a_study_is_not_compared_with_an_example_of_its_name(
    ablate: Run, measured: str, tmp_path: Path
) -> None:
    """The example has the name of a study whose own file is elsewhere."""
    example = next(file for file in examples.studies() if file.stem == "quickstart")
    own = tmp_path / "own.toml"
    own.write_text(example.read_text().replace("seeds = 5", "seeds = 4"))
    assert "edited" in ablate("status", str(own))[1]
    assert "edited" not in ablate("status", "quickstart")[1]
