"""The README tells the truth: its examples run as shown, and every command stands in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ablate.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def examples() -> list[tuple[str, list[str]]]:
    """The commands behind "$" in the README, each with the lines shown under it, in order."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", README, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def plain(line: str) -> str:
    """A line without what differs from machine to machine: digits, rules and alignment."""
    return re.sub(r"[\d.─]+", "N", " ".join(line.split()))


@pytest.mark.timeout(900)  # it trains the quickstart, beside whatever else is tested at the time
def test_the_examples_run_as_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ABLATE_DB": "results/ablate.db"}
    ran = 0
    for command, shown in examples():
        program, *arguments = shlex.split(command)
        assert program == "ablate"
        done = subprocess.run(
            [sys.executable, "-m", "ablate", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed = {plain(line) for line in done.stdout.splitlines()}
        missing = [line for line in shown if plain(line) not in printed]
        assert not missing, (
            f"{command} did not print\n" + "\n".join(missing) + f"\nbut\n{done.stdout}"
        )
        ran += 1
    assert ran >= 4
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code
    done = subprocess.run(
        [sys.executable, "-c", f"{code[1]}\nassert len(runs) == 25"],
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0


def test_the_study_shown_is_the_file() -> None:
    shown = re.search(r"```toml\n(.*?)```", README, re.S)
    assert shown and shown[1] == (ROOT / "studies" / "quickstart.toml").read_text()


def commands(group: Any, path: str = "ablate") -> list[tuple[str, Any]]:
    """Every command, by its whole name."""
    found = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found += commands(command, f"{path} {name}")
        else:
            found.append((f"{path} {name}", command))
    return found


@pytest.mark.parametrize(("command", "object"), commands(typer.main.get_command(app)))
def test_every_command_has_help_and_is_in_the_readme(command: str, object: Any) -> None:
    assert len(object.help) > 20
    assert all(getattr(parameter, "help", None) for parameter in object.params)
    for text in (object.help, *(parameter.help for parameter in object.params)):
        assert not re.search(r"\[/?[a-z@#]", text), text  # markup of rich, which is not printed
    *group, name = command.split()
    first = f"`{command}" if len(group) == 1 else f"`{' '.join(group)} "
    rows = [line for line in README.splitlines() if line.startswith("| `") and first in line]
    assert rows and (
        len(group) == 1 or any(f"`{name}`" in row or f" {name}`" in row for row in rows)
    ), command


def test_the_file_tree_names_every_folder_and_only_what_is_there() -> None:
    tree = "\n".join(line for line in README.splitlines() if line.startswith("    "))
    named = set(re.findall(r" (\w+)/(?= )", tree))
    there = {
        path.name
        for path in (*ROOT.iterdir(), *(ROOT / "ablate").iterdir())
        if path.is_dir() and any(path.iterdir())
    }
    ours = {name for name in there if re.fullmatch("[a-z]+", name)} - {"build"}
    assert named == ours
