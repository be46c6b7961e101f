"""The README tells the truth: its examples run as shown, and every command stands in it.

So does docs/tutorial.md, whose study shares all of its runs with that of the README.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from ablate.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


def examples(text: str) -> list[tuple[list[str], list[str]]]:
    """The commands behind "$" on a page, each with the lines shown under it, in order."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                program, *arguments = shlex.split(line[2:])
                assert program == "ablate"
                found.append((arguments, []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def check_lines(command: list[str], shown: list[str], printed: str) -> None:
    """Every line that a page shows under a command is one that it prints."""
    lines = {plain(line) for line in printed.splitlines()}
    missing = [line for line in shown if plain(line) not in lines]
    assert not missing, f"{command} did not print\n" + "\n".join(missing) + f"\nbut\n{printed}"


def plain(line: str) -> str:
    """A line without what differs from machine to machine: digits, rules and alignment."""
    return re.sub(r"[\d.─]+", "N", " ".join(line.split()))


@pytest.mark.timeout(900)  # it trains the quickstart, beside whatever else is tested at the time
def test_the_examples_run_as_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ABLATE_DB": "results/ablate.db"}
    ran = 0
    for command, shown in examples(README):
        done = subprocess.run(
            [sys.executable, "-m", "ablate", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        check_lines(command, shown, done.stdout)
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
    check_tutorial(tmp_path, environment)


IN_TURN = """
import contextlib, io, json, sys
from in_turn import said

commands, code = json.load(sys.stdin)
told = list(map(said, commands))
with contextlib.redirect_stdout(io.StringIO()):
    exec(code, names := {})
assert len(names["runs"]) == 15
print(json.dumps(told))
"""


def check_tutorial(folder: Path, environment: dict[str, str]) -> None:
    """The tutorial's commands after those of the README: nothing is left to be trained."""
    commands = examples(TUTORIAL)
    code = re.search(r"```python\n(.*?)```", TUTORIAL, re.S)
    assert code and len(commands) >= 8
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN],
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        input=json.dumps([[command for command, _ in commands], code[1]]),
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for (command, shown), printed in zip(commands, json.loads(done.stdout), strict=True):
        check_lines(command, shown, printed)
    assert (folder / "wiring-effects.pdf").read_bytes().startswith(b"%PDF")
    written = (folder / "studies" / "wiring.toml").read_text()
    file = re.search(r"```toml\n(.*?)```", TUTORIAL, re.S)
    assert file and tomllib.loads(file[1]).items() <= tomllib.loads(written).items()


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
