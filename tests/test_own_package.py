"""An installed package with entry points of the group `ablate.levels`, from plan to report."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Run
from in_process import local
from report_study import svg_only  # noqa: F401

from ablate import outside, report
from ablate.cli import running

MODULE = """
import torch
from torch import nn
from ablate import level

@level("norm_kind", "max-norm", meaning="gain · x / max |x|", source="my notebook")
class MaxNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
    def forward(self, x):
        return self.gain * x / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
"""
ACTIVATIONS = """
import torch
from ablate import level

@level("activation", "squared", meaning="relu(x)²")
def squared(x):
    return torch.relu(x) ** 2
"""
ENTRIES = "[ablate.levels]\nnorms = my_levels.norms\nactivations = my_levels.activations\n"
STUDY = """
name = "mine"
question = "Does the norm of my package matter?"
use = ["my-levels"]
seeds = 2
design = "one-factor"
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 128
tokens = "2K"
[factors]
norm_kind = ["layernorm", "max-norm"]
activation = ["gelu", "squared"]
[eval]
points = 1
tokens = "1K"
"""


def wheel(folder: Path, version: str, entries: str = ENTRIES) -> Path:
    """A wheel of the package, as a build backend makes it."""
    path, about = folder / f"my_levels-{version}-py3-none-any.whl", f"my_levels-{version}.dist-info"
    files = {
        "my_levels/__init__.py": "",
        "my_levels/norms.py": MODULE,
        "my_levels/activations.py": ACTIVATIONS,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: my-levels\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": entries,
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def install(folder: Path, version: str, entries: str = ENTRIES) -> None:
    """Install it with pip into an empty folder; the next command is as in a new process."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--upgrade",
    ]
    made = wheel(folder, version, entries)
    subprocess.run([sys.executable, *pip, "--target", folder / "site", made], check=True)
    forget()


def forget() -> None:
    outside.use(())
    outside._loaded.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_levels"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to install into, on the path of this process and of workers."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    yield tmp_path
    forget()


@pytest.mark.usefixtures("svg_only")
@pytest.mark.timeout(120)
def test_levels_of_a_package_are_studied_and_its_version_is_part_of_the_key(
    ablate: Run, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "1.0")
    (site / "mine.toml").write_text(STUDY)
    assert ablate("plan", "mine.toml")[0] == 0
    code, out, error = ablate("run", "mine.toml")
    assert code == 0 and "mine: 6 complete" in out, error
    with sqlite3.connect("results/ablate.db") as connection:
        ((name, version, text),) = connection.execute("SELECT name, version, text FROM code")
        first = dict(connection.execute("SELECT cell || seed, key FROM runs"))
        codes = dict(connection.execute("SELECT cell, code FROM runs"))
    assert (name, version, text) == ("my-levels", "1.0", None)
    assert {cell: json.loads(code) for cell, code in codes.items()} == {
        "baseline": [],
        "norm_kind=max-norm": ["my-levels@1.0"],
        "activation=squared": ["my-levels@1.0"],
    }

    install(site, "1.1")
    for command in ("status", "report", "plan"):
        with monkeypatch.context() as patched:
            patched.setattr(report, "write", lambda data, folder, kinds: folder)  # draws no figures
            out = " ".join(ablate(command, "mine.toml")[1].split())
        assert "my-levels is another version now (1.1)" in out, (command, out)
        assert "4 runs of activation=squared and norm_kind=max-norm (1.0)" in out or (
            "4 runs of norm_kind=max-norm and activation=squared (1.0)" in out
        ), out
    monkeypatch.setattr(running, "_local", local)  # a worker has trained by the package above
    assert "mine: 6 complete" in ablate("run", "mine.toml")[1]
    with sqlite3.connect("results/ablate.db") as connection:
        second = dict(connection.execute("SELECT cell || seed, key FROM runs"))
    same = {cell for cell in first if first[cell] == second[cell]}
    assert same == {"baseline0", "baseline1"}  # which no level of the package is in
    out = " ".join(ablate("status", "mine.toml")[1].split())
    assert "another version" not in out and "4 runs by an earlier my-levels (1.0)" in out

    # a package that is gone: readers go on
    sys.path.remove(str(site / "site"))
    forget()
    code, out, _ = ablate("report", "mine")
    assert code == 0 and "max-norm" in out
    page = (site / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "my-levels (version 1.1)" in page and "relu(x)²" in page
    code, _, error = ablate("plan", "mine.toml")
    assert code == 2 and "line 4: no package 'my-levels' is installed" in error


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("[console_scripts]\nx = my_levels:x\n", ["'my-levels' has no entry points"]),
        ("[ablate.levels]\nx = my_levels.absent\n", ["my-levels: ModuleNotFoundError"]),
        ("[ablate.levels]\nx = my_levels\n", ["my-levels registers no level"]),
    ],
)
def test_a_package_that_does_not_serve_is_one_line(
    entries: str, said: list[str], ablate: Run, site: Path
) -> None:
    with zipfile.ZipFile(wheel(site, "1.0", entries)) as packed:
        packed.extractall(site / "site")
    (site / "mine.toml").write_text(STUDY)
    code, _, error = ablate("plan", "mine.toml")
    assert code == 2 and error.count("\n") == 1 and "mine.toml, line 4" in error
    assert all(word in error for word in said), error
