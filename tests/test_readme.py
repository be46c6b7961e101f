"""The README tells the truth: its examples run as shown, and every command stands in it.

So does docs/tutorial.md, whose study shares all of its runs with that of the README.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_helpers import Run

from ablate.cli import app

ROOT = Path(__file__).parent.parent
TRAINED = ROOT / "tests" / "data" / "quickstart.db"
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


@pytest.mark.timeout(900)  # it trains runs, beside whatever else is tested at the time
def test_the_examples_run_as_shown(ablate: Run, tmp_path: Path) -> None:
    """One of the 25 runs is trained. The others are in a database of the finished study, thinned by
    `ablate db thin`, in which one run was set back to "planned" and its results were deleted. Where
    what is trained has changed since, its runs are others, and all 25 are trained here: make it
    anew.
    """
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    commands = examples(README)
    assert len(commands) >= 4
    for command, shown in commands:
        if command[0] == "run":  # what comes before says what it says without results
            (tmp_path / "results").mkdir()
            shutil.copy(TRAINED, tmp_path / "results" / "ablate.db")
        check_lines(command, shown, told(ablate, command))
    assert len(made_by_code(README)["runs"]) == 25
    check_tutorial(ablate, tmp_path)


def told(ablate: Run, command: list[str]) -> str:
    """What a command, which must succeed, prints."""
    code, out, error = ablate(*command)
    assert code == 0, f"{command}\n{error}"
    return out


def made_by_code(text: str) -> dict[str, Any]:
    """The names that a page's example in Python defines."""
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names


def check_tutorial(ablate: Run, folder: Path) -> None:
    """The tutorial's commands after those of the README: nothing is left to be trained."""
    commands = examples(TUTORIAL)
    assert len(commands) >= 8
    for command, shown in commands:
        check_lines(command, shown, told(ablate, command))
    assert len(made_by_code(TUTORIAL)["runs"]) == 15
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
