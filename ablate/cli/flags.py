"""Options and commands with short help: `--force`, not `--force <bool>`; STUDY, not `<str>`."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ablate.paths import expanded


def option(help: str, *names: str, metavar: str | None = None, **more: Any) -> Any:
    """Return a Typer option that does not show its default, which the help names in words."""
    return typer.Option(*names, help=help, metavar=metavar, **{"show_default": False, **more})


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
        elif param.is_flag:
            param.metavar = ""
    return params


_HOME = re.compile(r"(--[\w-]+=)?(~[\w.-]*(?:/.*)?)", re.DOTALL)


def _expanded(word: str) -> str:
    """Return a word with ~ expanded where a shell may not have: in quotes, in --db=~/FILE."""
    found = _HOME.fullmatch(word)
    return (found[1] or "") + str(expanded(found[2])) if found else word


class Command(TyperCommand):
    """A command with short help of its parameters, in whose words ~ is expanded."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, [_expanded(word) for word in args])

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group with short help of its parameters."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))
