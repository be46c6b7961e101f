"""What `use` names: Python files beside a study, and packages, read as they lie on the disk.

Runs no code. A package may lie beside the study or be installed, as editable or as a copy.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ablate import loading, snapshot
from ablate.code import Code, of_files, of_text
from ablate.errors import AblateError, nearest
from ablate.paths import expanded
from ablate.units import listed, memory

GROUP = "ablate.levels"  # of the entry points of packages
LARGEST = 1 << 20  # bytes of a file
MOST = 4 << 20  # bytes of all files of a package
MODEL = re.compile(r"(.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):\w+")  # a whole model, in a file or module

# ends of the names of files of a package that its code does not read: what Python compiles,
# results, and prose
_LEFT_OUT = ("~", ".pyc", ".pyo", *snapshot.DATABASES, ".ipynb", ".md", ".rst")


@dataclass(frozen=True)
class Package:
    """A package, or several that one distribution has.

    Attributes:
        name: As a study keeps it; finds the package again.
        roots: The name that imports it → its folder or file.
        modules: What is imported for its levels.
    """

    name: str
    roots: Mapping[str, Path]
    modules: tuple[str, ...]


def read(names: Sequence[str], folder: Path, models: Sequence[str] = ()) -> list[Code]:
    """Return what names mean, each file and package once.

    Args:
        names: Python files and folders of packages, relative to `folder`, or names of installed
            packages, distributions and modules.
        folder: Where the study file is.
        models: Whole models, "file.py:NAME" or "module:NAME".

    Raises:
        AblateError: One line: there is no such file or package, or it is too large.
    """
    try:
        return _read(names, folder, models)
    except OSError as error:
        raise AblateError(f"{error.filename}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # no path, such as one with a null byte
        raise AblateError(f"{', '.join(map(repr, names))} cannot be read: {error}") from None


def _read(names: Sequence[str], folder: Path, models: Sequence[str]) -> list[Code]:
    found: list[tuple[str, Package | None, dict[str, Any]]] = []
    named = [(name, "") for name in names] + [(one.rpartition(":")[0], one) for one in models]
    for name, model in named:
        package = _package(name, folder)
        same = (
            about
            for known, other, about in found
            if (other and _same(other, package) if package else known == name)
        )
        about = next(same, None)
        if about is None:
            about = {"modules": []} if package else {}
            found.append((name, package, about))
        if package and model:
            about.setdefault("models", {})[model] = package.modules[0]
        elif package:
            about["modules"] += [one for one in package.modules if one not in about["modules"]]
        elif model:
            about.setdefault("models", []).append(model)
    return [
        _content(package, about) if package else replace(_file(name, folder), about=about)
        for name, package, about in found
    ]


def version(name: str, folder: Path) -> str | None:
    """Return the present version of what a study's `use` names, without loading it.

    Returns:
        None where there is no such file or package.
    """
    try:
        return read([name], folder)[0].version
    except AblateError:
        return None


def needs(sources: Sequence[Code]) -> dict[str, list[str]]:
    """Return label → labels of the packages among the sources that the code names in its text.

    A name in quotes counts, because libraries import by it: the key of a run then has a package
    more than it must, and never one less.
    """
    found = {}
    packages = [(code.label, loading.tops(code)) for code in sources if code.files]
    for code in sources:
        texts = list(code.files.values()) or [(code.text or "").encode()]
        found[code.label] = [
            label
            for label, names in packages
            if label != code.label
            and any(re.search(rf"\b({'|'.join(names)})\b".encode(), text) for text in texts)
        ]
    for label in found:
        reached = list(found[label])
        for one in reached:  # which grows
            reached += [other for other in found[one] if other not in (*reached, label)]
        found[label] = reached
    return found


def _same(one: Package, other: Package) -> bool:
    """Whether two names mean one package.

    Raises:
        AblateError: They are two packages, and one name imports both.
    """
    common = one.roots.keys() & other.roots.keys()
    if any(not one.roots[top].samefile(other.roots[top]) for top in common) or (
        common and not other.roots.keys() <= one.roots.keys()
    ):
        raise AblateError(f"{one.name!r} and {other.name!r} are two packages of one name")
    return bool(common)


def _package(name: str, folder: Path) -> Package | None:
    """Return the package that a name means; None for a Python file of its own."""
    if name.endswith(".py"):
        return _of_module(name, folder)
    if "/" in name or name.startswith((".", "~")):
        return _of_folder(name, folder / expanded(name))
    return _installed(name, folder)


def _of_folder(name: str, path: Path) -> Package:
    """Return the package that a folder is, or is a part of."""
    path = Path(os.path.normpath(path.absolute()))
    if not path.is_dir():
        raise AblateError(f"{path}: there is no such folder")
    if not (path / "__init__.py").is_file():
        if modules := _declared(path / "pyproject.toml"):
            return Package(_kept(name), _of_project(path, modules), modules)
        inner = sorted({*path.glob("*/__init__.py"), *path.glob("src/*/__init__.py")})
        meant = os.path.join(name, *inner[0].parent.relative_to(path).parts) if inner else ""
        raise AblateError(
            f"{path} is no Python package: it has no __init__.py; "
            + (
                f"did you mean {meant!r}?"
                if meant
                else "add an empty one, and name the file with levels, as in"
                f' use = ["{os.path.join(name, "parts.py")}"]'
            )
        )
    top = _top(path)
    module = ".".join(path.relative_to(top.parent).parts)
    if path != top:
        name = os.path.join(name, *[".."] * (len(path.parts) - len(top.parts)))
    return Package(_kept(name), {_checked(top.name): top}, (module,))


def _declared(file: Path) -> tuple[str, ...]:
    """Return the modules that the entry points in a pyproject.toml name as having levels."""
    if not file.is_file():
        return ()
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        points = project.get("entry-points", {}).get(GROUP, {})
        found = [str(one).partition(":")[0].strip() for one in points.values()]
    except (ValueError, AttributeError) as error:  # no TOML, or no tables
        raise AblateError(f"{file} cannot be read: {error}") from None
    return tuple(dict.fromkeys(found))


def _of_project(folder: Path, modules: Sequence[str]) -> dict[str, Path]:
    """Return where the packages of these modules lie in the folder of a project."""
    roots = {}
    for top in dict.fromkeys(_checked(one.partition(".")[0]) for one in modules):
        places = [base / name for base in (folder / "src", folder) for name in (top, f"{top}.py")]
        found = [one for one in places if one.is_file() or (one / "__init__.py").is_file()]
        if not found:
            raise AblateError(
                f"{folder / 'pyproject.toml'}: an entry point names {top!r}, but neither src/{top}"
                f" nor {top} is a package with an __init__.py"
            )
        roots[top] = found[0]
    return roots


def _kept(name: str) -> str:
    """Return the shortest path of a folder, which no name of an installed package equals."""
    shortest = os.path.normpath(name)
    return shortest if "/" in shortest or shortest.startswith((".", "~")) else f"./{shortest}"


def _top(path: Path) -> Path:
    """Return the outermost package that a package is a part of."""
    while (path.parent / "__init__.py").is_file():
        path = path.parent
    return path


def _of_module(name: str, folder: Path) -> Package | None:
    """Return the package of a file that imports modules of its own package."""
    path = Path(os.path.normpath((folder / expanded(name)).absolute()))
    if not (path.parent / "__init__.py").is_file():
        _check_alone(name, path)
        return None
    top = _top(path.parent)
    if top.name not in _imported(top.parent, path):
        return None  # also where it cannot be read: as a file of its own it says so
    found = _of_folder(os.path.dirname(name), path.parent)
    stem = [] if path.stem == "__init__" else [path.stem]
    return replace(found, modules=(".".join([*found.modules, *stem]),))


def _imported(base: Path, path: Path) -> set[str]:
    """Return the outermost packages that a file may import; see `snapshot.imports`."""
    return {one.partition(".")[0] for one in snapshot.imports(base, path)}


def _check_alone(name: str, path: Path) -> None:
    """Refuse a file that imports from a folder that it is in, which is no package.

    Raises:
        AblateError: A package of this name is not installed either.
    """
    named = _imported(path.parent.parent, path) - sys.stdlib_module_names
    for k, above in enumerate(path.parents):
        if above.name in named and _located(above.name) in (None, above):
            inner = path.parents[: k + 1]
            lacking = [str(one) for one in inner if not (one / "__init__.py").is_file()]
            raise AblateError(
                f"{name} imports from {above.name!r}, the folder that it is in, which is no"
                f" package: add an empty __init__.py to {listed(lacking)}"
            )


def _installed(name: str, folder: Path) -> Package:
    """Return the package or module of a name, or the distribution."""
    modules = _entry_points(name)
    if not modules and not all(map(str.isidentifier, name.split("."))):
        modules = [re.sub(r"[-.]+", "_", name)]
    modules = modules or [name]
    roots = {}
    for top in dict.fromkeys(_checked(one.partition(".")[0]) for one in modules):
        found = _located(top)
        beside = (folder / top).absolute()
        if name.partition(".")[0] == top and (beside / "__init__.py").is_file():
            if found and not found.samefile(beside):
                raise AblateError(
                    f"there are two packages {top!r}: {beside} and {found}; for the first one"
                    f' write "./{top}"'
                )
            found = found or beside
        # Python finds a folder without __init__.py, too, if it looks where the study is
        if (folder / name).is_dir() and (found is None or found.samefile(folder / name)):
            return _of_folder(f"./{name}", folder / name)
        if found is None:
            raise AblateError(_absent(name, top, folder))
        roots[top] = found
    return Package(name if modules != [name] else name.partition(".")[0], roots, tuple(modules))


def _entry_points(name: str) -> list[str]:
    """Return the modules that a distribution names as having levels."""
    with suppress(metadata.PackageNotFoundError, ValueError):
        found = metadata.distribution(name).entry_points.select(group=GROUP)
        return list(dict.fromkeys(one.module for one in found))
    return []


def _absent(name: str, top: str, folder: Path) -> str:
    with suppress(metadata.PackageNotFoundError, ValueError):
        metadata.distribution(name)
        return (
            f"package {name!r} is installed, but has no module {top!r}: name the one that registers"
            f" levels, or give it an entry point of the group {GROUP!r}"
        )
    if (folder / "src" / top / "__init__.py").is_file():
        return f"no package {name!r} is installed; did you mean 'src/{top}'?"
    others = {one.dist.name for one in metadata.entry_points(group=GROUP) if one.dist}
    meant = nearest(name, others)
    return f"no package {name!r} is installed" + (
        f"; did you mean {meant!r}?"
        if meant
        else "; the name of a file ends in .py, and that of a folder has a /"
    )


def _located(top: str) -> Path | None:
    """Return the folder or file of a package or module that can be imported, unimported."""
    for finder in sys.meta_path:
        spec = None
        if finder is not loading.Finder and hasattr(finder, "find_spec"):
            spec = finder.find_spec(top, None)
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            file = Path(spec.origin or "")
            return file if spec.has_location and file.is_file() else None
        folders = [Path(one) for one in spec.submodule_search_locations if Path(one).is_dir()]
        if len(folders) > 1:
            raise AblateError(
                f"package {top!r} lies in several folders, {listed(folders)}: give each a name of"
                " its own"
            )
        return folders[0] if folders else None
    return None


def _checked(top: str) -> str:
    """Refuse a name that other code imports too, which would get the user's package."""
    if not top.isidentifier():
        raise AblateError(f"package {top!r}: a package's name has letters, digits and underscores")
    others = _required()
    of = {*map(_normal, metadata.packages_distributions().get(top, ())), _normal(top)}
    if top in {*sys.stdlib_module_names, "ablate"} or of & others:
        raise AblateError(
            f"package {top!r} has the name of a package that ablate imports, or that one of its"
            " packages does; rename yours"
        )
    return top


@functools.cache
def _required() -> set[str]:
    """Return the distributions that ablate needs, and those that they need, torch's included."""
    found: set[str] = set()
    open_ = ["ablate-studies"]
    for one in open_:  # which grows
        rows: list[str] = []
        with suppress(metadata.PackageNotFoundError):  # ablate runs from its sources
            rows = metadata.requires(one) or []
        own = one == "ablate-studies"
        # extras of ablate are its parts; those of another package are for other programs
        names = {_normal(re.split(r"[^\w.-]", row)[0]) for row in rows if own or "extra" not in row}
        open_ += names - found
        found |= names
    return found


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _content(package: Package, about: Mapping[str, Any]) -> Code:
    """Return a package with its files.

    Raises:
        AblateError: They are too large.
    """
    paths: dict[str, Path] = {}
    for top, root in package.roots.items():
        if root.is_dir():
            paths |= {f"{top}/{inner}": path for inner, path in _files(root, "", ())}
        else:
            paths[root.name] = root
    if not paths:
        raise AblateError(
            f"package {package.name!r} has no files: {listed(map(str, package.roots.values()))}"
        )
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    if sum(sizes.values()) > MOST:
        largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
        told = [f"{name} ({memory(sizes[name])})" for name in largest]
        raise AblateError(
            f"package {package.name!r} holds {memory(sum(sizes.values()))}, and the database keeps"
            f" at most {memory(MOST)} of a package; its largest files are {listed(told)}: move data"
            " out of it, or name a smaller package"
        )
    return of_files(package.name, {name: path.read_bytes() for name, path in paths.items()}, about)


def _files(folder: Path, inner: str, above: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder, without those that change no code.

    These are hidden ones, `_LEFT_OUT`, study files, and folders of results: those in which there is
    a database, and what lies beside one.
    """
    real = folder.resolve()
    if real in above:  # a link to a folder that it is in
        return
    paths = sorted(folder.iterdir())
    stems = tuple(f"{path.stem}." for path in paths if path.suffix == ".db")
    if stems and above:
        return
    for path in paths:
        name = path.name
        if name.startswith(".") or name == "__pycache__" or name.endswith(_LEFT_OUT):
            continue
        if path.is_dir():
            if not (stems and name.startswith(stems)):
                yield from _files(path, f"{inner}{name}/", (*above, real))
        elif path.is_file() and not snapshot.is_study(path):
            yield f"{inner}{name}", path


def _file(name: str, folder: Path) -> Code:
    path = folder / expanded(name)
    try:
        if path.stat().st_size > LARGEST:
            raise AblateError(f"{path}: the file is too large: at most 1 MiB")
        if not path.is_file():
            raise AblateError(f"{path} is not a regular file")
        text = path.read_text(encoding="utf-8-sig")
        return replace(of_text(name, text), file=str(path.absolute()))
    except UnicodeDecodeError:
        raise AblateError(f"{path}: a Python file must be UTF-8 text") from None
