"""Shell completion: studies, factors and their levels."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ablate.formats import FORMATS
from ablate.launch.devices import KINDS


@contextlib.contextmanager
def words_of_bash() -> Iterator[None]:
    """Join the words that bash breaks at "=": Typer gets "topology=serial" as one word.

    Bash is offered what follows the "=".
    """
    if os.environ.get("_ABLATE_COMPLETE") != "complete_bash":
        yield
        return
    at, words = int(os.environ["COMP_CWORD"]), list[str]()
    for number, word in enumerate(os.environ["COMP_WORDS"].split("\n")):
        if words and (word == "=" or words[-1].endswith("=")):
            words[-1] += word
        else:
            words.append(word)
        if number == at:
            os.environ["COMP_CWORD"] = str(len(words) - 1)
    os.environ["COMP_WORDS"] = "\n".join(words)
    start = words[int(os.environ["COMP_CWORD"])].rpartition("=")
    offered = io.StringIO()
    try:
        with contextlib.redirect_stdout(offered):
            yield
    finally:
        for line in offered.getvalue().splitlines():
            print(line.removeprefix(start[0] + start[1]))


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the completion of a word by names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


sizes, devices, formats = among(["tiny"]), among(KINDS), among(FORMATS)


def studies(incomplete: str) -> list[str]:
    """Return the study files in this folder, and the names of those in studies/ and of examples."""
    from ablate.study import examples

    here = examples.here()
    names = [path.stem for path in (*here, *examples.studies())]
    files = [str(path) for path in (*Path().glob("*.toml"), *here) if path.name != "pyproject.toml"]
    return [name for name in sorted({*names, *files}) if name.startswith(incomplete)]


def stored(incomplete: str) -> list[str]:
    """Return the studies in the database; none if it cannot be read."""
    from ablate import store
    from ablate.errors import AblateError
    from ablate.store.names import studies

    try:
        with store.open() as database:
            return [
                name
                for name in studies(database)
                if name.startswith(incomplete) and name.isprintable()
            ]
    except AblateError:
        return []


def questions(incomplete: str) -> list[str]:
    """Return the names of the stored queries."""
    from ablate.store.questions import QUESTIONS

    return [name for name in QUESTIONS if name.startswith(incomplete)]


def factors(incomplete: str) -> list[str]:
    """Return the names of the factors."""
    from ablate.components import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


def levels(incomplete: str) -> list[str]:
    """Complete "topo" to "topology=", and "topology=serial,par" to "topology=serial,parallel"."""
    from ablate.components import CATALOGUE

    name, equals, typed = incomplete.partition("=")
    if not equals:
        return [f"{factor}=" for factor in factors(incomplete)]
    if name not in CATALOGUE:
        return []
    *before, last = typed.split(",")
    return [
        f"{name}={','.join([*before, level])}"
        for level in CATALOGUE[name].names
        if level.startswith(last) and level not in before
    ]
