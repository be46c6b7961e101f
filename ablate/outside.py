"""Levels and metrics from outside of ablate: files beside a study, and packages.

A study names them in `use`. They are loaded where a study is planned, and in the worker that trains
its runs, from the text that was planned: code that is edited while a study runs changes no run.
Readers of a database do not load them.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeAlias

from ablate import loading, used
from ablate import metrics as measures
from ablate.code import Code, identity, place, short, shown
from ablate.components import CATALOGUE, Component, catalogue, plain
from ablate.errors import AblateError, unknown
from ablate.metrics import Metric
from ablate.units import listed

Loaded: TypeAlias = tuple[loading.Space, list[Component | Metric]]

# in code that registers operations of torch
_OPERATIONS = re.compile(r"torch\.library|import library|TORCH_LIBRARY|load_(library|inline)\b")

_REGISTERS = re.compile(rb"^@(\w+\.)?(level|metric)\(", re.MULTILINE)

# what is known of sources → their modules, and the levels and metrics that are registered while
# they are used
_loaded: dict[tuple[Any, ...], Loaded] = {}
_present: Loaded | None = None  # what is used
_sources: Sequence[Code] = ()  # of it
_used: list[Component | Metric] = []  # what of it is registered
_aside: list[Component | Metric] = []  # of the program itself, which these stand for
_watching = ExitStack()  # what the program registers meanwhile
_refused: list[str] | None = None  # errors of levels, while `refusing`


@contextmanager
def refusing() -> Iterator[list[str]]:
    """Yield a list that gets the errors of levels that are refused inside, instead of raising."""
    global _refused
    found: list[str] = []
    before, _refused = _refused, found
    try:
        yield found
    finally:
        _refused = before


def find(names: Sequence[str], folder: Path, models: Sequence[str] = ()) -> tuple[Code, ...]:
    """Return the code that a study's `use` names, and load its levels and metrics.

    The catalogue and the metrics then have these from outside, and no others.

    Args:
        names: Python files and folders of packages, relative to `folder`, or names of installed
            packages.
        folder: Where the study file is.
        models: Whole models, "file.py:NAME" or "module:NAME", which become levels of
            `architecture`.

    Raises:
        AblateError: One line: a file or package is missing, does not import, registers nothing, or
            registers a level that exists already.
    """
    return use(used.read(names, folder, models))


def use(sources: Sequence[Code]) -> tuple[Code, ...]:
    """Load code, and make its levels and metrics the only ones that are not ablate's.

    Args:
        sources: Files and packages by their text.

    Returns:
        The code, with its levels and metrics in `about`.

    Raises:
        AblateError: As for `find`.
    """
    global _present, _sources
    known = tuple(
        (code.file, code.name, code.version, *_modules(code), *code.about.get("models", ()))
        for code in sources
    )
    if known not in _loaded or _loaded[known] is not _present:
        _withdraw()
        if sources:
            _loaded[known] = loaded = _loaded.get(known) or _load(sources)
            space, parts = loaded
            _tell_others(sources, [one for one in parts if _put_aside(one)])
            space.enter()
            for one in parts:
                _add(one)
                _used.append(one)
            _present, _sources = loaded, tuple(sources)
            for registry in (catalogue, measures):
                _watching.enter_context(registry.collecting(_by_program))
    found = []
    for code in sources:
        told = {"levels": [[one.factor, one.name, one.meaning, one.source] for one in levels(code)]}
        if rows := metrics(code):
            told["metrics"] = [[one.name, one.goal, one.unit, one.meaning] for one in rows]
        found.append(replace(code, about={**code.about, **told}))
    return tuple(found)


@contextmanager
def restored_on_failure() -> Iterator[None]:
    """If what is inside fails, use the code again that was used before it."""
    before = _sources
    try:
        yield
    except BaseException:
        use(before)
        raise


@contextmanager
def afresh() -> Iterator[None]:
    """Use the code inside as another process would load it: none of it has been called yet.

    What its calls have kept before, in names of files, classes, defaults, closures and caches, is
    not there inside, and what they keep inside is gone afterwards. Of code that cannot be loaded
    twice in a process, because it registers something by a name, only caches are emptied.
    """
    before = again = _present
    # a second registration of an operation breaks the first one
    if before and not any(_OPERATIONS.search(code.text or "") for code in _sources):
        with suppress(AblateError), refusing():
            again = _load(_sources)
    _exchange(again)
    try:
        yield
    finally:
        _exchange(before)


def _exchange(loaded: Loaded | None) -> None:
    """Use these modules, levels and metrics in place of those of the same code."""
    if loaded:
        space, parts = loaded
        space.enter()
        loading.forget_cached()
        for one in parts:
            measures.exchange(one) if isinstance(one, Metric) else catalogue.exchange(one)


def _withdraw() -> None:
    """Take back what is registered of code from outside, and its modules."""
    global _present, _sources
    _present, _sources = None, ()
    _watching.close()
    while _used:
        _remove(_used.pop())
    while _aside:
        _add(_aside.pop())
    loading.leave()


def _add(one: Component | Metric) -> None:
    measures.add(one) if isinstance(one, Metric) else catalogue.add(one)


def _remove(one: Component | Metric) -> None:
    measures.remove(one) if isinstance(one, Metric) else catalogue.remove(one)


def _put_aside(one: Component | Metric) -> bool:
    """Take back what the program has registered itself as it imported the module of a part.

    As with modules, the part that is used stands in its place until it is withdrawn.
    """
    other = _namesake(one)
    if other is None or other.origin or not _is_of(one, other):
        return False
    _remove(other)
    _aside.append(other)
    return True


def _by_program(one: Component | Metric) -> None:
    """Register what the program registers as it imports a module, or put it aside."""
    other = _namesake(one)
    if other is None or not other.origin or not _is_of(other, one):
        _add(one)
        return
    others = (before for before in _aside if _name(before) != _name(one))
    _aside[:] = [*others, one]
    _tell_others(_sources, [other])


def _namesake(one: Component | Metric) -> Component | Metric | None:
    """Return the level or metric that is registered with this name."""
    if isinstance(one, Metric):
        return measures.METRICS.get(one.name)
    return next((own for own in CATALOGUE[one.factor].levels if own.name == one.name), None)


def _name(one: Component | Metric) -> tuple[str, str]:
    return "" if isinstance(one, Metric) else one.factor, one.name


def _is_of(used: Component | Metric, mine: Component | Metric) -> bool:
    """Whether a part that is used and one that the program has registered are of one module."""
    (module, name), (imported, its) = map(_made, (used, mine))
    if module.startswith(catalogue.OUTSIDE):  # a file, which the program may call by another name
        file = getattr(sys.modules.get(imported), "__file__", None) or ""
        module, imported = Path(used.origin[0].rpartition("@")[0]).stem, Path(file).stem
    return (module, name) == (imported, its)


def _made(one: Component | Metric) -> tuple[str, str]:
    """Return the module and name of what is registered."""
    made: Any = one.made if isinstance(one, Metric) else type(one)
    return ("ablate", one.name) if made is None else (made.__module__, made.__qualname__)


def _tell_others(sources: Sequence[Code], parts: Sequence[Component | Metric]) -> None:
    """Warn where the program has imported another version of the code of these parts."""
    labels = {one.origin[0] for one in parts}
    importing = {_made(one)[0] for one in _aside}
    for code in sources:
        if code.label not in labels:
            continue
        of_file = Path(code.name).name, (code.text or "").encode()
        others = []
        for name, module in list(sys.modules.items()):
            file = Path(getattr(module, "__file__", None) or "")
            end = "/__init__.py" if file.name == "__init__.py" else ".py"
            kept = code.files.get(f"{name.replace('.', '/')}{end}")
            if not code.files and name in importing and file.name == of_file[0]:
                kept = of_file[1]
            with suppress(OSError):
                if kept is not None and file.read_bytes() != kept:
                    others.append(str(file))
        if others:
            warnings.warn(
                f"{code.name} {short(code.version)} is used, and this program has imported other"
                f" versions of its files: {listed(others)}",
                stacklevel=2,
            )


def _modules(code: Code) -> Sequence[str]:
    """Return the modules of a package that are imported for their levels."""
    modules: Sequence[str] = code.about.get("modules", ())
    return modules


def levels(code: Code) -> list[Component]:
    """Return the levels that come from code which is loaded."""
    return [one for one in _used if isinstance(one, Component) and one.origin[:1] == (code.label,)]


def metrics(code: Code) -> list[Metric]:
    """Return the metrics that come from code which is loaded."""
    return [one for one in _used if isinstance(one, Metric) and one.origin[:1] == (code.label,)]


def measured() -> tuple[tuple[str, str], ...]:
    """Return all metrics from outside: name, and the version of its code, as a key has it."""
    found = [one for one in _used if isinstance(one, Metric)]
    return tuple((one.name, "+".join(identity(one.origin))) for one in found)


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


def _load(sources: Sequence[Code]) -> tuple[loading.Space, list[Component | Metric]]:
    """Run code and return its modules, and the levels and metrics that it registers."""
    for code in sources:
        if code.text is None:
            raise AblateError(
                f"{code.name} {code.version}: the code of this package was not kept, only its"
                " version"
            )
    space, needs = loading.Space(sources), used.needs(sources)
    origins = {code.label: (code.label, *needs[code.label]) for code in sources}
    found: list[Component | Metric] = []
    known = {label for code in sources for label in needs[code.label]}  # need no levels
    space.enter()
    try:
        with loading.closed():
            for code in sources:
                refused = len(_refused or ())
                found += _registered(code, space, origins)
                if len(_refused or ()) > refused:
                    known.add(code.label)
    finally:
        loading.leave()
    known |= {one.origin[0] for one in found}
    for code in sources:
        if code.label not in known:
            raise AblateError(_registers_nothing(code))
    return space, found


def _registered(
    code: Code, space: loading.Space, origins: Mapping[str, Sequence[str]]
) -> list[Component | Metric]:
    """Run code, and return the levels and metrics that it registers, with their origin.

    It begins with the code whose module registers the part. A function of another package that
    registers it, and the package that its class is of, belong to it too.
    """
    found: list[Component | Metric] = []

    def take(one: Component | Metric) -> None:
        made = one.made if isinstance(one, Metric) else type(one)
        owners = [by for by, _ in reversed(_callers(space))] or [code]
        owners += filter(None, [space.of(getattr(made, "__module__", ""))])
        labels = dict.fromkeys(label for owner in owners for label in origins[owner.label])
        found.append(replace(one, origin=tuple(labels)))

    def refuse(error: AblateError) -> None:
        assert _refused is not None
        at = [
            f"{shown(frame.f_code.co_filename, space.labels)}, line {frame.f_lineno}: "
            for _, frame in _callers(space)
        ]
        _refused.append(f"{at[0] if at else ''}{error}")

    refusing = None if _refused is None else refuse
    with catalogue.collecting(take, refusing), measures.collecting(take):
        _run(code, space)
    return found


def _callers(space: loading.Space) -> list[tuple[Code, FrameType]]:
    """Return the code that calls `level` or `metric`, innermost first, up to its module."""
    found = []
    frame: FrameType | None = sys._getframe(3)  # calls the decorator, which calls `take`
    while frame and not _imports(frame):
        if code := space.of(frame.f_globals.get("__name__", "")):
            found.append((code, frame))
        frame = frame.f_back
    return found


def _imports(frame: FrameType) -> bool:
    """Whether a function is one that runs modules: Python's, or one of ablate."""
    ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "ablate"
    return ours or frame.f_code.co_filename.startswith("<frozen importlib")


def _registers_nothing(code: Code) -> str:
    if code.files:
        asked = tuple(f"{module.replace('.', '/')}/" for module in _modules(code))
        files = [path for path, text in code.files.items() if _REGISTERS.search(text)]
        files = [path for path in files if path.startswith(asked)] or files
        path = files[0] if files else f"{loading.tops(code)[0]}/parts.py"
        example = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if "/" in code.name:
            example = f"{code.name}/{path.partition('/')[2]}"
        return (
            f"{code.name} registers no level or metric when {' and '.join(_modules(code))} is"
            f' imported: import the module that does there, or name it, as in use = ["{example}"]'
        )
    said = (
        "registers no level or metric: put @level(FACTOR, NAME, meaning=…) above a class, or"
        " @metric(NAME, goal=…, meaning=…) above a function"
    )
    return f"{code.name} {said}; a whole model needs none, and is named as {code.name}:NAME"


def _run(code: Code, space: loading.Space) -> None:
    """Run a file, or the modules of a package that are asked for its levels and models."""
    models = code.about.get("models", ())
    with _failing(code, space.labels):
        if not code.files:
            module = space.run_file(code)
            for model in models:
                _register(model, module)
            return
        for name in _modules(code):
            importlib.import_module(name)
        for model in models:
            _register(model, importlib.import_module(models[model]))


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


@contextmanager
def _failing(code: Code, labels: Sequence[str]) -> Iterator[None]:
    """Turn an exception of the code into a one-line error, with the line of the file."""
    try:
        yield
    except SyntaxError as error:
        file = shown(error.filename or "", labels)
        line = f", line {error.lineno}" if error.lineno and file else ""
        raise AblateError(f"{file or code.name}{line}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        if not isinstance(error, AblateError):
            said = type(error).__name__ + (f": {said}" if said else "")
        raise AblateError(f"{place(error, labels) or code.name}: {said}") from error
