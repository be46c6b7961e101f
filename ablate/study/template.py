"""A command line with placeholders: its words, what they need, and the words of one run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ablate.errors import AblateError

_PART = re.compile(r"\{\{|\}\}|\{(\*?)([A-Za-z_]\w*)\}|[{}]")

_OPERATORS = ("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>")
_VARIABLE = re.compile(r"(-[\w-]+=)?\$[A-Za-z_]\w*(/.*)?")  # $HOME, --data=$DATA/x
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_TEXT_FOLLOWS = re.compile(r"-[A-Za-z]*c")  # sh -c '…', bash -lc '…'


def words(run: str) -> tuple[str, ...]:
    """Return the words of a command line, split as a POSIX shell does; no shell runs them.

    Raises:
        AblateError: A quotation mark is not closed, there is no word, or a brace has no meaning.
    """
    try:
        found = tuple(shlex.split(run))
    except ValueError as error:
        raise AblateError(f"run = {run!r}: {error.args[0].lower()}") from None
    if not found:
        raise AblateError("run is empty: give a command, such as python train.py --lr {lr}")
    for word in found:
        for match in _PART.finditer(word):
            if match[0] in "{}":
                raise AblateError(
                    f"run: {word!r}: a placeholder is {{name}}, of letters, digits and"
                    " underscores; write {{ and }} for braces"
                )
            if match[1] and match[0] != word:
                raise AblateError(
                    f"run: {word!r}: {match[0]} inserts words, so it must stand by itself"
                )
    return found


def check_no_shell(template: Sequence[str]) -> None:
    """Refuse shell syntax, except in the text that a shell gets by -c.

    Raises:
        AblateError: The message names the word, and says what to write.
    """
    if _ASSIGNMENT.match(template[0]):
        raise AblateError(
            f"run: {template[0]!r} is no program; to set an environment variable, begin with env:"
            f" env {template[0]} …"
        )
    for before, word in zip(("", *template), template, strict=False):
        if not _TEXT_FOLLOWS.fullmatch(before) and (
            word in _OPERATORS or _VARIABLE.fullmatch(word)
        ):
            raise AblateError(
                f"run: {word!r} is shell syntax, and no shell runs the command; remove it, or write"
                " the command as sh -c '…' (the log of a run keeps its output)"
            )


def placeholders(template: Sequence[str]) -> list[str]:
    """Return the names in the placeholders of a command line, each once."""
    names = (match[2] for word in template for match in _PART.finditer(word) if match[2])
    return list(dict.fromkeys(names))


def filled(template: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for the values of one run.

    `{name}` becomes the text of a value, within a word or as one; `{*name}` the words of a text,
    none for an empty one.
    """
    return [one for word in template for one in _filled(word, values)]


def _filled(word: str, values: Mapping[str, Any]) -> Iterator[str]:
    whole = _PART.fullmatch(word)
    if whole and whole[1]:
        yield from shlex.split(text(values[whole[2]]))
        return
    yield _PART.sub(lambda match: text(values[match[2]]) if match[2] else match[0][0], word)


def text(value: object) -> str:
    """Return a value as it is inserted: true and false as in TOML, text as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)
