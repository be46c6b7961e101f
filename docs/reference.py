"""What `docs/generate.py` writes of commands and of the Python interface."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from ablate import stats
from ablate.cli import app

# sections of docs/python.md; after a class those of its members that are shown
PYTHON = {
    "Results as tables": (
        *("ablate.load", "ablate.curves", "ablate.finals", "ablate.pairs", "ablate.effects"),
        *("ablate.results.window_losses", "ablate.results.decisions", "ablate.results.attempts"),
        "ablate.results.studies",
    ),
    "Findings": ("ablate.findings", "ablate.analysis.Findings of frame rows"),
    "Figures": (
        *("ablate.figures.looking", "ablate.figures.Look", "ablate.figures.save"),
        *("ablate.figures.effects", "ablate.figures.seeds", "ablate.figures.curves"),
        *("ablate.figures.gaps", "ablate.figures.rates", "ablate.figures.pareto"),
        *("ablate.figures.blocks", "ablate.figures.positions", "ablate.figures.ordered"),
        "ablate.figures.heat",
        *("ablate.figures.importance", "ablate.figures.scaling", "ablate.figures.isoflop"),
        *("ablate.figures.frontier", "ablate.figures.residuals"),
    ),
    "Parts of your own": (
        *("ablate.level", "ablate.metric", "ablate.Field", "ablate.factor"),
        "ablate.components.Component check revision sizes longest_context build",
        "ablate.components.Counts shared",
    ),
    "Training scripts": ("ablate.log",),
    "Trained models": (
        *("ablate.load_model", "ablate.trained.Model forward"),
        *("ablate.trained.sample.sample", "ablate.trained.prune.prune"),
        "ablate.trained.hugging_face.save",
    ),
}


SAID = {  # of all names of a section
    "Figures": "A function draws on the axes `ax`, or on a new figure, and returns the axes.",
    "Parts of your own": "[Parts of your own](own-parts.md) and [Add a level](add-a-level.md) show"
    " how they are used.",
}


def python() -> str:
    """The public names by section."""
    sections = ((f"## {title}", SAID.get(title), _names(names)) for title, names in PYTHON.items())
    return "\n\n".join(filter(None, (part for section in sections for part in section)))


def statistics() -> str:
    """The names of `ablate.stats`: functions, then what they return."""
    functions, classes = [], []
    for name in stats.__all__:
        found = getattr(stats, name)
        if inspect.isclass(found):
            classes.append(f"ablate.stats.{name}")
        elif inspect.isfunction(found):
            functions.append(f"ablate.stats.{name}")
    return f"## Functions\n\n{_names(functions)}\n\n## What they return\n\n{_names(classes)}"


def _names(names: Any) -> str:
    """A table of names with their summaries, and the marks that `site_hooks` fills in."""
    rows = []
    for one in names:
        name = one.split()[0]
        short = ".".join(name.split(".")[-2:])  # stats.paired: a column for narrow screens
        rows.append(f"| `{short}` | {cell(summary(name))} |")
    marks = [f"<!-- reference: {one} -->" for one in names]
    return "\n".join(("| name | summary |", "| --- | --- |", *rows, "", *marks))


def summary(name: str) -> str:
    """Return the first sentence of the docstring of "ablate.figures.curves"."""
    module, _, member = name.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(module), member)) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.sub(r"(?<=[a-z\])`])\. [A-Z].*", ".", paragraph)


# -- commands --------------------------------------------------------------------------------------


def commands() -> str:
    """Every command, with its arguments and options, by the panels of `ablate --help`."""
    panels: dict[str, list[str]] = {}
    for name, command, panel in _commands(typer.main.get_command(app)):
        panels.setdefault(panel, []).append(_command(name, command))
    return "\n\n".join(f"## {panel}\n\n" + "\n\n".join(one) for panel, one in panels.items())


def _commands(group: Any, path: str = "ablate", of: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each command with its whole name and its panel."""
    for name, command in group.commands.items():
        panel = command.rich_help_panel or of
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}", panel)
        elif not command.hidden:
            yield f"{path} {name}", command, panel


def _command(name: str, command: Any) -> str:
    text, *more = command.help.split("\n\n")
    shown = [_flow(text)]
    examples = [one for one in more if one.startswith("ablate ")]
    shown += [_flow(one) for one in more if one not in examples]
    if examples:
        shown.append("```sh\n" + "\n".join(map(_flow, examples)) + "\n```")
    if command.params:
        rows = map(_parameter, command.params)
        shown.append("\n".join(("| argument or option | meaning |", "| --- | --- |", *rows)))
    return f"### {name}\n\n" + "\n\n".join(shown)


def _parameter(one: Any) -> str:
    """A row for an argument or option: its name, its value, its default."""
    if one.opts[0].startswith("-"):
        value = "" if one.is_flag else f" {one.metavar or 'VALUE'}"
        name = f"{', '.join(one.opts)}{value}"
    else:
        name = one.metavar or one.name.upper()
        name = name if one.required or name.startswith("[") else f"[{name}]"
    text = _flow(one.help)
    if one.show_default and one.default not in (None, "", [], ()) and not one.is_flag:
        text += f" Default `{one.default}`."
    return f"| `{cell(name)}` | {cell(text)} |"


def _flow(text: str) -> str:
    return " ".join(text.split())


def cell(text: str) -> str:
    """Text inside a Markdown table."""
    return text.replace("|", "\\|")
