"""A study file's text, and the line of a key or value in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, UnlocatedError

_AT = re.compile(r" \(at line (\d+), column \d+\)$")
_NOISE = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')
_PART = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([\w-]+))\s*')


@dataclass(frozen=True)
class Source:
    """The path and text of a study file, with a search for the lines of its keys."""

    path: Path
    text: str

    def tables(self) -> dict[str, Any]:
        """Return the keys and tables of the file.

        Raises:
            AblateError: The text is not TOML: with the line, and what the parser says of it.
        """
        try:
            return tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
            raise self._not_toml(str(error)[:200]) from None

    def _not_toml(self, message: str) -> AblateError:
        if not (found := _AT.search(message)):
            return AblateError(f"{self.path}: not valid TOML: {message}")
        line = int(found[1])
        text = self.text.split("\n")[line - 1].strip()
        hint = "; text needs quotation marks" if "Invalid value" in message else ""
        hint = "; this key is there twice" if "overwrite a value" in message else hint
        if "Expected" in message and not re.sub(r"#.*|\".*?\"|'.*?'", "", text).isascii():
            hint = "; a key with letters other than A to Z needs quotation marks"
        what = message[: found.start()]
        return AblateError(f"{self.path}, line {line}: not valid TOML: {text:.80}: {what}{hint}")

    def where(self, *path: object) -> str:
        """Return "topology.toml, line 7" for a key path ("factors", "topology", "seriel")."""
        line = self.line(*path)
        return f"{self.path}, line {line}" if line else str(self.path)

    def has(self, *path: object) -> bool:
        """Return whether the file writes a key or table of this path."""
        return tuple(map(str, path)) in self._lines

    def line(self, *path: object) -> int:
        """Return the line of the longest known part of `path`, counted from 1; 0 if unknown."""
        parts = tuple(str(part) for part in path)
        known = next(
            (parts[:n] for n in range(len(parts), 0, -1) if parts[:n] in self._lines), None
        )
        if known is None:
            return 0
        line = self._lines[known]
        for part in parts[len(known) :]:
            line = self._search(part, line)
        return line

    def _search(self, word: str, start: int) -> int:
        """Return the first line with `word` from `start` to the next key, else `start`."""
        stop = min(
            (line for line in self._lines.values() if line > start),
            default=len(self._text_lines) + 1,
        )
        pattern = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
        return next(
            (n for n in range(start, stop) if pattern.search(self._text_lines[n - 1])), start
        )

    @cached_property
    def _text_lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        lines: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        repeats: dict[tuple[str, ...], int] = {}
        depth = 0
        for number, line in enumerate(self._text_lines, 1):
            code = _NOISE.sub(
                lambda match: "" if match[0].startswith("#") else match[0], line
            ).strip()
            if depth == 0 and code.startswith("["):
                table = _parts(code.strip("[] \t"))
                if code.startswith("[["):
                    repeats[table] = repeats.get(table, -1) + 1
                    lines.setdefault(table, number)
                    table = (*table, str(repeats[table]))
                lines.setdefault(table, number)
            elif depth == 0 and "=" in code:
                lines.setdefault(table + _parts(code), number)
            bare = _NOISE.sub("", line)
            if not (depth == 0 and code.startswith("[")):
                depth = max(
                    0, depth + sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
                )
        return lines


@contextmanager
def prefixed(file: Path, prefix: Callable[[str], str]) -> Iterator[None]:
    """Begin an `AblateError` raised inside with what `prefix` makes of its text.

    An error that names a line of the file, or that no line caused (`UnlocatedError`), passes
    unchanged.
    """
    try:
        yield
    except UnlocatedError:
        raise
    except AblateError as error:
        if str(error).startswith(str(file)):
            raise
        error.args = (f"{prefix(str(error))}: {error}",)
        raise


def located(source: Source, *path: object) -> AbstractContextManager[None]:
    """Begin an `AblateError` raised inside with the line of `path`, see `prefixed`."""
    return prefixed(source.path, lambda _: source.where(*path))


def _parts(code: str) -> tuple[str, ...]:
    """`a."b c".d = …` → ("a", "b c", "d")."""
    parts: list[str] = []
    at = 0
    while match := _PART.match(code, at):
        parts.append(next(group for group in match.groups() if group is not None))
        at = match.end()
        if at >= len(code) or code[at] != ".":
            break
        at += 1
    return tuple(parts)
