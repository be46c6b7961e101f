"""Errors that the user can correct, and the search for the word that the user meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

MANY = 30  # choices that an error does not list, if a command does
FEW = 5  # of them, the nearest, which it lists


class AblateError(Exception):
    """An error that the user can correct. The command line prints one line and exits with 2."""


class UnlocatedError(AblateError):
    """An error that no line of a study file caused, found while one was read."""


class UnknownError(AblateError):
    """An error for a word that is not among its choices, see `unknown`.

    Attributes:
        word: What was given.
        begin: What the error says up to the word.
    """

    word = begin = ""

    def instead(self, text: str) -> UnknownError:
        """Return the error with a text in place of the choices."""
        where = str(self).partition(self.begin)[0]
        self.args = (f"{where}{self.begin}; {text}",)
        return self


def missing(library: str, extra: str = "") -> AblateError:
    """Return the error for a library that is not installed.

    Args:
        library: Its name.
        extra: The extra of ablate that installs it; "" for one of the same name.
    """
    return AblateError(f"this needs {library}: pip install 'ablate-studies[{extra or library}]'")


def own_name(word: str, foreign: Mapping[str, Collection[str]]) -> str:
    """Return the name here of what other programs call `word`, or "".

    Args:
        word: What was given.
        foreign: A name here → its names elsewhere.
    """
    return next((own for own, names in foreign.items() if word in names), "")


def nearest(word: object, choices: Iterable[object]) -> str | None:
    """Return the choice that `word` begins with or looks most like, or None."""
    by_text = {str(choice).lower(): str(choice) for choice in choices}
    wanted = str(word).lower()
    if begins := [text for text in by_text if len(text) > 2 and wanted.startswith(text)]:
        return by_text[max(begins, key=len)]
    matches = difflib.get_close_matches(wanted, by_text, n=1, cutoff=0.6)
    return by_text[matches[0]] if matches else None


def written(value: object) -> str:
    """Return a value as a study file writes it, such as true for True."""
    try:
        return str(value).lower() if isinstance(value, bool) else repr(value)
    except (RecursionError, ValueError):  # nested without end, or a number of 5,000 digits
        return "a value too large to print"


def assigned(values: Mapping[str, object]) -> list[str]:
    """Return fields as a study file writes them: "norm_p = 2.0"."""
    return [f"{name} = {written(value)}" for name, value in values.items()]


def unknown(
    kind: str, word: object, choices: Iterable[object], where: str = "", every: str = ""
) -> UnknownError:
    """Return the error for a word that is not among its choices.

    Args:
        kind: what the word should be, such as "topology".
        word: what was given.
        choices: what it may be.
        where: the file and line, or "".
        every: the command that lists all choices, of which many are not; "" for none.

    >>> print(unknown("topology", "seriel", ["serial", "parallel"], "t.toml, line 3"))
    t.toml, line 3: unknown topology 'seriel'; did you mean 'serial'? Choices: serial, parallel.
    """
    names = [str(choice) for choice in choices]
    meant = nearest(word, names)
    begin = f"unknown {kind} {written(word if isinstance(word, bool) else str(word)):.100}"
    listed = f"Choices: {', '.join(names)}."
    if every and len(names) > MANY:
        close = difflib.get_close_matches(str(word), names, n=FEW, cutoff=0)
        listed = (
            f"Of {len(names)} choices, the nearest are {', '.join(close)}; `{every}` lists all."
        )
    error = UnknownError(
        (f"{where}: " if where else "")
        + begin
        + (f"; did you mean {meant!r}?" if meant else "." if names else ": there is none yet.")
        + (f" {listed}" if names else "")
    )
    error.word, error.begin = str(word), begin
    return error
