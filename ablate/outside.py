"""Levels and metrics from outside of ablate: files beside a study, and installed packages.

A study names them in `use`. They are loaded where a study is planned, and in the worker that trains
its runs, from the text that was planned: a file that is edited while a study runs changes no run.
Readers of a database do not load them.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from ablate import metrics as measures
from ablate.code import Code, identity, of_text, place
from ablate.components import Component, catalogue, plain
from ablate.errors import AblateError, nearest, unknown
from ablate.metrics import Metric
from ablate.paths import expanded

GROUP = "ablate.levels"  # of the entry points of packages
LARGEST = 1 << 20  # bytes of a file

_LIBRARY = Path(os.__file__).parent  # Python's own modules
_INSTALLED = ("site-packages", "dist-packages")  # folders of packages

# path, name, version, whole models → levels and metrics, which are registered while they are used
_loaded: dict[tuple[str | None, ...], list[Component | Metric]] = {}
_used: list[Component | Metric] = []


def find(names: Sequence[str], folder: Path, models: Sequence[str] = ()) -> tuple[Code, ...]:
    """Return the code that a study's `use` names, and load its levels and metrics.

    The catalogue and the metrics then have these from outside, and no others.

    Args:
        names: Python files, relative to `folder`, or names of installed packages.
        folder: Where the study file is.
        models: Whole models, "file.py:Name", which become levels of `architecture`.

    Raises:
        AblateError: One line: a file or package is missing, does not import, registers nothing, or
            registers a level that exists already.
    """
    of_file: dict[str, list[str]] = {name: [] for name in names}
    for model in models:
        of_file.setdefault(model.rpartition(":")[0], []).append(model)
    found = [_read(name, folder) for name in of_file]
    return use(
        [
            replace(code, about={"models": of_file[code.name]} if of_file[code.name] else {})
            for code in found
        ]
    )


def use(sources: Sequence[Code]) -> tuple[Code, ...]:
    """Load code, and make its levels and metrics the only ones that are not ablate's.

    Args:
        sources: Files by their text, and packages.

    Returns:
        The code, with its levels and metrics in `about`.

    Raises:
        AblateError: As for `find`.
    """
    while _used:
        one = _used.pop()
        measures.remove(one) if isinstance(one, Metric) else catalogue.remove(one)
    found = []
    for code in sources:
        known = code.file, code.name, code.version, *code.about.get("models", ())
        if known not in _loaded:
            _loaded[known] = _load(code)
        for one in _loaded[known]:
            measures.add(one) if isinstance(one, Metric) else catalogue.add(one)
            _used.append(one)
        told = {"levels": [[one.factor, one.name, one.meaning, one.source] for one in levels(code)]}
        if rows := metrics(code):
            told["metrics"] = [[one.name, one.goal, one.unit, one.meaning] for one in rows]
        found.append(replace(code, about={**code.about, **told}))
    return tuple(found)


def _read(name: str, folder: Path) -> Code:
    """Return the code of a name, unloaded."""
    if not name.endswith(".py"):
        return _package(name)
    path = folder / expanded(name)
    try:
        if path.stat().st_size > LARGEST:
            raise AblateError(f"{path}: the file is too large: at most 1 MiB")
        if not path.is_file():
            raise AblateError(f"{path}: code is a regular file")
        text = path.read_text(encoding="utf-8-sig")
        return replace(of_text(name, text), file=str(path.absolute()))
    except UnicodeDecodeError:
        raise AblateError(f"{path}: a Python file must be UTF-8 text") from None
    except OSError as error:
        raise AblateError(f"{path}: cannot be read ({error.strerror})") from None


def levels(code: Code) -> list[Component]:
    """Return the levels that come from code which is loaded."""
    return [one for one in _used if isinstance(one, Component) and one.origin == code.label]


def metrics(code: Code) -> list[Metric]:
    """Return the metrics that come from code which is loaded."""
    return [one for one in _used if isinstance(one, Metric) and one.origin == code.label]


def measured() -> tuple[tuple[str, str], ...]:
    """Return all metrics from outside: name, and the version of its code, as a key has it."""
    found = [one for one in _used if isinstance(one, Metric)]
    return tuple((one.name, identity([one.origin])[0]) for one in found)


def version(name: str, folder: Path) -> str | None:
    """Return the present version of what a study's `use` names, without loading it.

    Returns:
        None where there is no such file or package.
    """
    try:
        return _read(name, folder).version
    except AblateError:
        return None


def registering(word: str, folder: Path) -> str:
    """Return the name of a Python file in a folder that has a level, metric or field of a name.

    The files are not run.

    Returns:
        "" where no file has it.
    """
    made = re.compile(rf"""\b(?:level|metric|Field)\([^()]*?["']{re.escape(word)}["']""")
    for file in sorted(folder.glob("*.py")):
        with suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
            if made.search(text):
                return file.name
    return ""


def declaring(word: str) -> str:
    """Return how the argument of a constructor becomes a field of a run.

    Returns:
        "" where no level has an argument of this name, or its default is no number or text.
    """
    for one in _used:
        if not isinstance(one, Component):
            continue
        default = plain.default_of(one, word)
        if isinstance(default, int | float | str) and not isinstance(default, bool):
            field = f'Field("{word}", {type(default).__name__}, {default!r}, "what it is")'
            return (
                f"{one.factor} = {one.name!r} has an argument {word}, which is no field of a run"
                f" yet: declare it, as in fields = ({field},)"
            )
    return ""


def _package(name: str) -> Code:
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        others = {one.dist.name for one in metadata.entry_points(group=GROUP) if one.dist}
        meant = nearest(name, others)
        raise AblateError(
            f"no package {name!r} is installed"
            + (f"; did you mean {meant!r}?" if meant else "; the name of a file ends in .py")
        ) from None
    if not found.entry_points.select(group=GROUP):
        raise AblateError(f"package {name!r} has no entry points of the group {GROUP!r}")
    return Code(name, found.version)


def _load(code: Code) -> list[Component | Metric]:
    """Run code and return the levels and metrics that it registers."""
    with catalogue.collecting() as components, measures.collecting() as rows:
        if code.text is None:
            for entry in metadata.distribution(code.name).entry_points.select(group=GROUP):
                with _failing(code.name):
                    entry.load()
        else:
            _run(code)
    if not (components or rows):
        raise AblateError(
            f"{code.name} registers no level or metric: put @level(FACTOR, NAME, meaning=…) above a"
            " class, or @metric(NAME, goal=…, meaning=…) above a function; a whole model needs"
            f" none, and is named as {code.name}:NAME"
        )
    levels = [replace(component, origin=code.label) for component in components]
    return [*levels, *(replace(row, origin=code.label) for row in rows)]


def _run(code: Code) -> None:
    """Run a file's text as a module. Tracebacks show the lines of this text."""
    assert code.text is not None
    _watch()
    module = ModuleType(f"{catalogue.OUTSIDE}{code.version[:16]}")
    module.__file__ = code.file or code.name
    sys.modules[module.__name__] = module  # where dataclasses and `module = …` look it up
    lines = code.text.splitlines(keepends=True)
    linecache.cache[code.name] = (len(code.text), None, lines, code.name)
    with _failing(code.name):
        exec(compile(code.text, code.name, "exec"), module.__dict__)
        for model in code.about.get("models", ()):
            _register(model, module)


def _register(model: str, module: ModuleType) -> None:
    """Make a class or function of a module a level of `architecture`."""
    file, _, name = model.rpartition(":")
    made = getattr(module, name, None)
    if not callable(made):
        others = [  # not what the file imports
            one
            for one, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise unknown(f"class or function of {file}", name, others)
    catalogue.level("architecture", model, meaning=f"{name} of {file}")(made)


@functools.cache
def _watch() -> None:
    """From now on refuse what files from outside import, whose edits would change no key.

    A hook sees each module that is run, however and whenever a file asks for it: by a statement in
    a function, or by its path.
    """
    sys.addaudithook(_refuse_uninstalled)


def _refuse_uninstalled(event: str, about: tuple[Any, ...]) -> None:
    """Refuse to run a module for a file from outside, unless it is of an installed package."""
    if event == "exec":
        file = about[0].co_filename
    elif event == "import":  # names the file of a compiled module alone
        file = about[1]
    else:
        return
    if not file or file.startswith("<"):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame and _of_library(frame.f_code.co_filename):  # `importlib`, on behalf of its caller
        frame = frame.f_back
    if not frame or not frame.f_globals.get("__name__", "").startswith(catalogue.OUTSIDE):
        return
    path = Path(file).absolute()
    if path.is_file() and not _installed(path):
        beside = Path(frame.f_globals["__file__"]).parent
        name = path.relative_to(beside) if path.is_relative_to(beside) else path
        raise AblateError(
            f"{frame.f_code.co_filename} imports {name}, whose edits would change no run; put the"
            " code of both into one file, or install the imported one as a package, not editable"
        )


def _of_library(file: str) -> bool:
    return file.startswith("<frozen ") or (
        Path(file).is_relative_to(_LIBRARY) and not {*Path(file).parts} & {*_INSTALLED}
    )


def _installed(path: Path) -> bool:
    """Whether a module is of Python, of ablate or of a package that was installed as a copy."""
    return any(
        folder in (_LIBRARY, Path(__file__).parent)
        or folder.name in _INSTALLED
        or any(folder.glob("*.dist-info"))  # a folder of `pip install --target`
        for folder in path.parents
    )


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Turn an exception of the code into a one-line error, with the line of the file."""
    try:
        yield
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno and error.filename == name else ""
        raise AblateError(f"{name}{line}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        if not isinstance(error, AblateError):
            said = type(error).__name__ + (f": {said}" if said else "")
        raise AblateError(f"{place(error, [name]) or name}: {said}") from error
