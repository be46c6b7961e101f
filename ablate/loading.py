"""Runs code from outside of ablate, so that its content alone decides what it does.

Packages are run from a copy of the files that a run's key names, whether or not they are installed.
What else such code imports has to be Python's, ablate's or a package that is installed as a copy.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from ablate import cache
from ablate.code import Code, shown
from ablate.components import catalogue
from ablate.errors import AblateError

_LIBRARY = Path(os.__file__).parent  # Python's own modules
_INSTALLED = ("site-packages", "dist-packages")  # folders of packages
_OURS = Path(__file__).parent


class Space:
    """The modules of code that is used together; those of one space at a time can be imported.

    Args:
        sources: Files and packages.
    """

    def __init__(self, sources: Sequence[Code]) -> None:
        self.labels = [code.label for code in sources]
        self._codes = {top: code for code in sources for top in tops(code) or [_module(code)]}
        self._folders = {code.label: _unpacked(code) for code in sources if code.files}
        self._copies = tuple(f"{folder}{os.sep}" for folder in self._folders.values())
        self._modules: dict[str, ModuleType] = {}
        self._hidden: dict[str, ModuleType] = {}  # others of the same names

    def enter(self) -> None:
        """Let these modules be imported, instead of those of another space."""
        global _entered
        leave()
        _install()
        self._hidden = self._taken()
        sys.modules.update(self._modules)
        _entered = self

    def leave(self) -> None:
        """Put back what these modules have hidden."""
        self._modules = self._taken()
        sys.modules.update(self._hidden)

    def modules(self) -> list[ModuleType]:
        """Return the modules that are imported."""
        return [module for name, module in list(sys.modules.items()) if self.of(name)]

    def _taken(self) -> dict[str, ModuleType]:
        """Take the modules of these names out of those that are imported."""
        names = [name for name in sys.modules if self.of(name) or _is_file(name)]
        return {name: sys.modules.pop(name) for name in names}

    def of(self, module: str) -> Code | None:
        """Return the package or file that a module of this name is of."""
        return self._codes.get(module.partition(".")[0])

    def owns(self, file: str) -> bool:
        """Return whether a file is one of the copy of a package."""
        return file.startswith(self._copies)

    def spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return where a module of a package is; None if there is none of this name."""
        code = self.of(name)
        if code is None or not code.files:
            return None
        found = PathFinder.find_spec(name, path or [str(self._folders[code.label])])
        if found and found.loader is None:  # a folder without __init__.py, found nowhere else
            found.submodule_search_locations = list(found.submodule_search_locations or ())
        if found and type(found.loader) is SourceFileLoader:
            found.loader = _Loader(found.loader.name, found.loader.path, code)
        return found

    def run_file(self, code: Code) -> ModuleType:
        """Run a file's text as a module. Tracebacks show the lines of this text."""
        assert code.text is not None
        module = ModuleType(_module(code))
        module.__file__ = code.file or code.name
        sys.modules[module.__name__] = module  # where dataclasses and `module = …` look it up
        lines = code.text.splitlines(keepends=True)
        linecache.cache[code.name] = (len(code.text), None, lines, code.name)
        with _alone(code.version, "", code.name):
            exec(compile(code.text, code.name, "exec"), module.__dict__)
        return module


_entered: Space | None = None


def leave() -> None:
    """Leave the space that was entered last."""
    global _entered
    if _entered:
        _entered.leave()
    _entered = None


def tops(code: Code) -> list[str]:
    """Return the names by which the modules of a package begin; empty for a file of its own."""
    return sorted({path.partition("/")[0].removesuffix(".py") for path in code.files})


def _module(code: Code) -> str:
    """Return the name of the module of a file of its own."""
    return f"{catalogue.OUTSIDE}{code.version[:16]}"


class Finder:
    """Finds modules of packages of the space that is entered, before Python looks elsewhere."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder` documents it."""
        return _entered.spec(name, path) if _entered else None


class _Loader(SourceFileLoader):
    """Runs a module of a package of a user's own, always from its source."""

    def __init__(self, name: str, path: str, code: Code) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        made: CodeType = self.source_to_code(self.get_data(path), path)
        return made

    def exec_module(self, module: ModuleType) -> None:
        file = shown(self.path, [self._code.label])
        with _alone(self._code.version, module.__name__, file):
            super().exec_module(module)


def _unpacked(code: Code) -> Path:
    """Return the folder of the cache that holds the files of a package."""
    files = code.files

    def build(folder: Path) -> None:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)  # a traceback names it, and an edit would change no run

    folder = cache.built("code", code.version, build)
    try:
        same = all((folder / name).read_bytes() == content for name, content in files.items())
    except OSError:
        same = False
    if not same:
        shutil.rmtree(folder, ignore_errors=True)
        folder = cache.built("code", code.version, build)
    with cache.usable():
        _remove_others(folder, {folder / name for name in files})
    return folder


def _remove_others(folder: Path, files: Collection[Path]) -> None:
    """Remove what a package wrote beside its files: the next process would read it.

    The files stay, for another process may be importing them.
    """
    kept = {*files, *(above for path in files for above in path.parents)}
    for at, folders, names in os.walk(folder):  # which passes over what another process removes
        for path in (Path(at, name) for name in (*folders, *names)):
            if path in kept:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


# -- what a module changes as it is run ------------------------------------------------------------


@contextmanager
def _alone(version: str, name: str, file: str) -> Iterator[None]:
    """Run a module so that it depends on nothing that was drawn before, and changes no other run.

    What it draws follows from the version of the code and its name.

    Raises:
        AblateError: It changes a setting of torch, which holds for all models.
    """
    import random

    import numpy as np
    import torch

    seed = int.from_bytes(hashlib.sha256(f"{version}:{name}".encode()).digest()[:8], "big")
    settings = _settings()
    states = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    changed = []
    with (
        # a part may import it in its first call, in inference mode: its tensors must be normal ones
        torch.inference_mode(False),
        torch.enable_grad(),
        nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"),
        torch.random.fork_rng(devices=devices),
    ):
        before = {setting: get() for setting, (get, _) in settings.items()}
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            for setting, (get, put) in settings.items():
                if (now := get()) != before[setting]:
                    changed.append(f"{setting} from {before[setting]} to {now}")
                    put(before[setting])
    if changed:
        raise AblateError(
            f"importing {file} changes {' and '.join(changed)}, which affects all runs, also those"
            " without its parts; remove that line"
        )


@functools.cache
def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return settings of torch that change numbers of every model, as functions: get, set."""
    import torch

    cuda = torch.backends.cuda
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch's default device": (
            torch.get_default_device,
            lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        ),
        "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
        "torch.use_deterministic_algorithms": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        **{
            f"torch.backends.cuda.enable_{name}": (
                getattr(cuda, f"{name}_enabled"),
                getattr(cuda, f"enable_{name}"),
            )
            for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
        },
    }
    for path in (
        "fp32_precision",
        "cuda.matmul.fp32_precision",
        "cuda.matmul.allow_fp16_reduced_precision_reduction",
        "cuda.matmul.allow_bf16_reduced_precision_reduction",
        "cudnn.enabled",
        "cudnn.benchmark",
        "cudnn.deterministic",
        "cudnn.conv.fp32_precision",
        "cudnn.rnn.fp32_precision",
        "mkldnn.enabled",
        "mkldnn.matmul.fp32_precision",
        "mkldnn.conv.fp32_precision",
        "mkldnn.rnn.fp32_precision",
    ):
        owner, _, name = path.rpartition(".")
        of = functools.reduce(getattr, owner.split("."), torch.backends) if owner else None
        of = of or torch.backends
        found[f"torch.backends.{path}"] = (
            functools.partial(getattr, of, name),
            functools.partial(setattr, of, name),
        )
    return found


# -- what it may import ----------------------------------------------------------------------------

_refused: list[AblateError] = []


@contextmanager
def closed() -> Iterator[None]:
    """Run code so that all that it imports is seen.

    Modules that it may not import, such as those of the program that uses ablate, are removed from
    `sys.modules` meanwhile: Python would return them without running the check. A refusal is raised
    again even if a library catches it.
    """
    foreign = {
        name: sys.modules.pop(name)
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and not _is_known(module)
    }
    _refused.clear()
    try:
        yield
        if _refused:
            raise _refused[0]
    except AblateError as error:
        if _refused and not str(error).endswith(str(_refused[0])):
            raise _refused[0] from None
        raise
    finally:
        sys.modules.update(foreign)


def _is_known(module: ModuleType) -> bool:
    about = getattr(module, "__dict__", {})
    if isinstance(file := about.get("__file__"), str):
        return _may_import(file)
    # a package without __init__.py
    return all(_may_import(f"{folder}/__init__.py") for folder in about.get("__path__") or ())


@functools.cache
def _install() -> None:
    """From now on find packages of a user's own first, and refuse what would change no key.

    A hook sees each module that is run, however and whenever code asks for it: by a statement in a
    function, by its path, or through a library.
    """
    sys.meta_path.insert(0, Finder)
    sys.addaudithook(_refuse)


def _refuse(event: str, about: tuple[Any, ...]) -> None:
    """Refuse to run a module for code from outside, unless its content is known or installed."""
    if event == "exec":
        file = about[0].co_filename
    elif event == "import":  # names the file of a compiled module alone
        file = about[1]
    else:
        return
    if not file or file.startswith("<") or _may_import(file):
        return
    caller = sys._getframe(1)
    # a library that runs a file itself, as compilers do with what they have made, does so on its
    # own behalf; one that imports a module may do so because the code gave it the name
    named = event == "exec" and caller.f_code.co_filename.startswith("<frozen importlib")
    frame: FrameType | None = caller
    while frame and not _is_outside(frame):
        by = frame.f_code.co_filename
        if not (_is_of_python(by) or (named and _may_import(by))):
            return
        frame = frame.f_back
    if not frame or not Path(file).is_file():
        return
    path, of = Path(file).absolute(), Path(frame.f_globals["__file__"]).parent
    who = shown(frame.f_code.co_filename, _entered.labels if _entered else ())
    error = AblateError(
        f"{who or frame.f_code.co_filename} imports"
        f" {path.relative_to(of) if path.is_relative_to(of) else path}, but an edit of it would not"
        " make new runs; add its package to `use`, or put the code of both into one file"
    )
    _refused.append(error)
    raise error


def modules() -> list[ModuleType]:
    """Return the modules of code that is used."""
    return _entered.modules() if _entered else []


def forget_cached() -> None:
    """Empty the caches of functions of code that is used, as of `functools.lru_cache`."""
    for module in modules():
        for value in list(vars(module).values()):
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def _is_file(module: str) -> bool:
    return module.startswith(catalogue.OUTSIDE)


def _is_outside(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return _is_file(frame.f_globals.get("__name__", "")) or bool(_entered and _entered.owns(file))


def _is_of_python(file: str) -> bool:
    return file.startswith("<frozen ") or (
        Path(file).is_relative_to(_LIBRARY) and not {*Path(file).parts} & {*_INSTALLED}
    )


def _may_import(file: str) -> bool:
    """Whether a module is of Python, of ablate, of a package of the space, or an installed copy."""
    folder = os.path.dirname(file) if file.startswith("/") else Path(file).absolute().parent
    return is_installed(str(folder)) or bool(_entered and _entered.owns(file))


@functools.cache
def is_installed(folder: str) -> bool:
    """Return whether modules in a folder are of Python, of ablate or of an installed copy."""
    return any(
        one in (_LIBRARY, _OURS)
        or one.name in _INSTALLED
        or any(one.glob("*.dist-info"))  # a folder of `pip install --target`
        for one in (Path(folder), *Path(folder).parents)
    )
