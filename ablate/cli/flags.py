"""Options and commands with short help: `--force`, not `--force <bool>`; STUDY, not `<str>`. And
what is wrong with a command line, in one line.
"""

from __future__ import annotations

import re
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from ablate.errors import AblateError, unknown
from ablate.paths import expanded

# Typer has no public name for it.
UsageError = cast(type[Any], typer.BadParameter.__base__)
_GIVEN = "ablate.arguments"  # key of a context's `meta`


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


class _Given:
    """A command that keeps its words in its context, for `wrong`, and expands ~ in them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_GIVEN] = args
        try:
            return super().parse_args(ctx, [_expanded(word) for word in args])  # type: ignore[misc]
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))  # type: ignore[misc]


class Command(_Given, TyperCommand):
    """A command with short help of its parameters, in whose words ~ is expanded."""


class Group(_Given, TyperGroup):
    """A group with short help of its parameters."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `TyperGroup.resolve_command`; `args` begin with the command."""
        ctx.meta[_GIVEN] = args
        return super().resolve_command(ctx, args)


def wrong(error: Any) -> AblateError:
    """Return the error of a command line that Typer refuses, as one line.

    Args:
        error: A `UsageError`.
    """
    ctx, param = error.ctx, getattr(error, "param", None)
    command = " ".join(["ablate", *ctx.command_path.split()[len(_root(ctx)) :]])
    of, words = command.removeprefix("ablate").strip(), ctx.meta.get(_GIVEN, [])
    options = {
        name: each
        for each in ctx.command.get_params(ctx)
        for name in (*each.opts, *each.secondary_opts)
        if name.startswith("-")
    }
    if (name := getattr(error, "option_name", None)) is not None:
        if name not in options:
            return unknown("option", name, options, of)
        need = "no value" if options[name].is_flag else f"a value: {_values(options[name])}"
        return AblateError(f"{name} takes {need}")
    if param is None:
        if words and words[0] in error.message and hasattr(ctx.command, "commands"):
            return unknown("command", words[0], ctx.command.commands, of)
        return AblateError(f"{_reason(error.message)}; see {command} --help")
    shown = param.opts[0] if param.opts[0].startswith("-") else _values(param)
    if hasattr(error, "param_type"):
        return AblateError(f"{shown} is missing; see {command} --help")
    given = ctx.command.make_parser(ctx).parse_args(list(words))[0].get(param.name)
    given = ", ".join(map(str, given)) if isinstance(given, list) else given
    return AblateError(f"{shown} = {given!s:.100}: {_reason(error.message)}")


def _root(ctx: Any) -> list[str]:
    """The words that call the program, such as "python -m ablate"."""
    return list(ctx.find_root().command_path.split())


def _values(param: Any) -> str:
    """What a parameter takes, as its help shows it."""
    return str(param.metavar or param.name).strip("{}[]<>")


def _reason(text: str) -> str:
    """Return a message of Typer in the form of ours."""
    text = re.sub(r"^(Value error, )?'.*' is not one of", "choose one of", text.rstrip("."))
    return f"{text[:1].lower()}{text[1:300]}"
