"""The version of a user's code: the content of files, those of a git work tree or of a revision."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.errors import AblateError
from ablate.paths import locked

DATABASES = (".db", ".db-wal", ".db-shm", ".db-journal")  # results, which change with every run
# ends of the names of untracked files that a user may have forgotten; results have others
SOURCES = (
    *(".py", ".pyx", ".ipynb", ".sh", ".R", ".jl", ".js", ".ts", ".rs", ".go", ".c", ".cc", ".cpp"),
    *(".cu", ".cuh", ".h", ".hpp", ".toml", ".yaml", ".yml", ".cfg", ".ini"),
)
LINKED = 10_000  # most files of a folder outside of the work tree that a link leads to
_STUDY = re.compile(rb"^question\s*=.*^\[factors[.\]]", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snapshot:
    """One version of code.

    Attributes:
        version: SHA-256 of the names and the content of its files; equal content, equal version.
        commit: The git commit; "" where there is none.
        changed: Files that differ from the commit.
        untracked: Source files beside them that git neither tracks nor ignores: no part of the
            version.
        diff: What differs from the commit, as `git diff` writes it.
        files: The names of its files.
    """

    version: str
    commit: str = ""
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    diff: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Tree:
    """A git work tree, or a commit of it; paths are relative to where the command runs.

    Attributes:
        root: Its folder.
        tracked: Path → git's hash of its content.
        links: Which of them are symbolic links.
        changed: Paths that differ on the disk.
    """

    root: Path
    tracked: dict[str, str]
    links: set[str]
    changed: set[str]


def toplevel(folder: Path) -> Path | None:
    """Return the git work tree that a folder is in; None if it is in none with a commit."""
    if git(folder, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return None
    found = git(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(found).rstrip("\n")) if found else None


def commit_of(folder: Path, revision: str) -> str:
    """Return the commit of a revision.

    Raises:
        AblateError: The folder is in no work tree, or has no such revision.
    """
    if toplevel(folder) is None:
        raise AblateError(f"revision {revision!r}: {folder} is in no git work tree with a commit")
    found = git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if revision.startswith("-") or not found:
        raise AblateError(
            f"revision {revision!r}: there is no such branch, tag or commit in {folder}; `git"
            " branch --all` lists branches"
        )
    return found.decode().strip()


def take(folder: Path, code: Sequence[str], commit: str = "") -> Snapshot:
    """Return the version of the code that runs depend on.

    Study files and databases in it do not count: both change while a study runs.

    Args:
        folder: Where the command runs.
        code: Folders of a git work tree, files and globs, relative to `folder`.
        commit: A commit of the work tree to take the files from; "" for those on the disk.

    Raises:
        AblateError: A folder is in no git work tree, or no file has such a name.
    """
    root = toplevel(folder)
    trees = {root: _tree(folder, root, commit)} if root else {}
    found: dict[str, str] = {}  # path relative to `folder` → git's hash of its content
    folders = []
    for entry in code:
        inside = _inside(folder, trees, entry)
        on_disk = folder / entry
        its = root
        if not commit and on_disk.is_dir() and not inside:
            its = toplevel(on_disk)  # that of another repository, perhaps of a submodule
            if its and its not in trees:
                trees[its] = _tree(folder, its, "")
                inside = _inside(folder, trees, entry)
        if not commit and on_disk.is_dir() and not inside:
            why = "has no file that git tracks" if its else "is in no git work tree with a commit"
            raise AblateError(
                f"code = {entry!r}: {on_disk.resolve()} {why}; list files or globs instead, such as"
                " train.py or src/**/*.py"
            )
        if not inside:
            tracked = {path: blob for one in trees.values() for path, blob in one.tracked.items()}
            names = _matching(folder, entry, tracked if commit else None)
            inside = {name: tracked.get(name) or _blob((folder / name).resolve()) for name in names}
        if not inside:
            where = f"commit {commit[:12]}" if commit else str(folder.resolve())
            raise AblateError(f"code = {entry!r}: there is no such file in {where}")
        if on_disk.is_dir():
            folders.append(entry)
        found |= inside
    if not commit:
        for tree in trees.values():
            found |= _on_disk(folder, tree, tree.changed & found.keys())
            found |= _linked(folder, tree, (tree.links | tree.changed) & found.keys())
    kept = {
        path: blob
        for path, blob in found.items()
        if blob and not path.endswith(DATABASES) and not _is_study(folder, path, blob, commit)
    }
    digest = hashlib.sha256(
        "".join(f"{path}\0{blob}\n" for path, blob in sorted(kept.items())).encode(
            errors="surrogateescape"
        )
    ).hexdigest()
    files = tuple(sorted(kept))
    if commit:
        return Snapshot(digest, commit, files=files)
    counted = {*kept, *(path for path in found if not found[path])}
    mine = [(tree.root, sorted(tree.changed & counted)) for tree in trees.values()]
    return Snapshot(
        digest,
        (git(folder, "rev-parse", "HEAD") or b"").decode().strip() if root else "",
        tuple(path for _, paths in mine for path in paths),
        _untracked(folder, folders),
        "".join(_diff(folder, its, paths) for its, paths in mine),
        files,
    )


def modules(base: Path, files: Sequence[Path]) -> list[Path]:
    """Return Python files, and the modules in a folder that they import, by what is written there.

    Imports by a computed name, and modules that are elsewhere, are not found.

    Args:
        base: Where Python looks for modules first: the folder of the script.
        files: The first files.
    """
    found: dict[Path, None] = {}
    waiting = list(files)
    while waiting:
        if (path := waiting.pop()) not in found:
            found[path] = None
            waiting += [one for name in imports(base, path) for one in module(base, name)]
    return list(found)


def module(base: Path, name: str) -> list[Path]:
    """Return the files in a folder that are read when a module is imported; none if it has none.

    Args:
        base: The folder.
        name: Such as "a.b", for a/__init__.py and a/b.py.
    """
    found, place = [], base
    for part in name.split("."):
        both = place / part / "__init__.py", place / f"{part}.py"  # the first is imported
        found += [one for one in both if one.is_file()][:1]
        place /= part
    return found


def imports(base: Path, path: Path) -> Iterator[str]:
    """Yield the names of modules that a file may import, with those of what it takes from modules.

    None of what cannot be read, is no regular file (reading a pipe blocks) or is no Python.

    Args:
        base: The folder from which the names of relative imports begin.
        path: The file.
    """
    if not path.is_file():
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = [node.module] if node.module else []
            if node.level and path.is_relative_to(base):
                parts = path.relative_to(base).parts
                above = [*parts[: len(parts) - node.level], *above]
            yield from (".".join([*above, one.name]) for one in node.names)


def git(folder: Path, *arguments: str, given: bytes = b"") -> bytes | None:
    """Return what a git command prints for some input; None if it fails. It takes no locks."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            check=True,
            input=given,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _tree(folder: Path, root: Path, commit: str) -> _Tree:
    """A work tree as it is on the disk, or a commit of it."""
    listed = git(root, "ls-tree", "-r", "-z", commit or "HEAD") or b""
    found, links = {}, set()
    for line in filter(None, listed.split(b"\0")):
        about, _, name = line.partition(b"\t")
        path = _seen_from(folder, root, name)
        mode, _, blob = about.decode().split()
        found[path] = blob
        if mode == "120000":
            links.add(path)
    if commit:
        return _Tree(root, found, links, set())
    options = "--name-only", "--no-renames", "--ignore-submodules=untracked", "-z"
    differing = git(root, "diff", *options, "HEAD") or b""
    changed = {_seen_from(folder, root, path) for path in filter(None, differing.split(b"\0"))}
    found |= dict.fromkeys(changed - found.keys(), "added")  # to git, since the commit
    return _Tree(root, found, links, changed)


def _inside(folder: Path, trees: Mapping[Path, _Tree], entry: str) -> dict[str, str]:
    """The tracked files that an entry of `code` names, or that are in the folder that it names."""
    here = folder.resolve()
    name = os.path.relpath(here / entry, here)
    if name == ".":  # the whole work tree, of which the folder may be a part
        return next((one.tracked for one in trees.values() if here.is_relative_to(one.root)), {})
    return {
        path: blob
        for tree in trees.values()
        for path, blob in tree.tracked.items()
        if path == name or path.startswith(f"{name}/")
    }


def _on_disk(folder: Path, tree: _Tree, paths: Iterable[str]) -> dict[str, str]:
    """Git's hashes of what is on the disk, as a commit would have them; "" for what is gone."""
    found, files = {}, []
    for path in paths:
        place = folder / path
        if place.is_symlink():
            found[path] = _blob(place)
        elif place.is_file():
            files.append(path)
        elif (place / ".git").exists():  # a submodule: its commit, and what differs from that
            inner = take(place, (".",))
            found[path] = inner.commit + (f"+{inner.version}" if inner.changed else "")
        else:
            found[path] = ""
    # by the filters of git, which change ends of lines, or keep large files elsewhere
    listed = [os.path.relpath(folder.resolve() / path, tree.root) for path in files]
    given = "".join(f"{path}\n" for path in listed).encode(errors="surrogateescape")
    hashed = git(tree.root, "hash-object", "--stdin-paths", given=given) if files else b""
    blobs = (hashed or b"").decode().split()
    if len(blobs) != len(files):  # a filter fails, or the name of a file has a line feed
        blobs = [_blob(folder / path) for path in files]
    return found | dict(zip(files, blobs, strict=True))


def _linked(folder: Path, tree: _Tree, paths: Iterable[str]) -> dict[str, str]:
    """Hashes of the source files outside of the work tree that its links lead to."""
    found = {}
    for path in paths:
        place, target = folder / path, (folder / path).resolve()
        if place.is_symlink() and not target.is_relative_to(tree.root):
            for file in _sources(target):
                found[f"{path} -> {os.path.relpath(file, target)}"] = _blob(file)
    return found


def _sources(target: Path) -> list[Path]:
    """The source files that a link leads to; none if they are among too many."""
    found = [target] if target.is_file() and target.name.endswith(SOURCES) else []
    seen = 0
    for folder, folders, names in os.walk(target):
        folders[:] = [name for name in folders if not name.startswith(".")]
        seen += len(names)
        if seen > LINKED:
            return []
        found += [Path(folder, name) for name in names if name.endswith(SOURCES)]
    return [one for one in found if one.is_file()]


def _seen_from(folder: Path, root: Path, path: bytes) -> str:
    return os.path.relpath(root / os.fsdecode(path), folder.resolve())


def _matching(folder: Path, entry: str, tracked: Iterable[str] | None) -> list[str]:
    """The files that an entry names, on the disk or among those of a commit."""
    if tracked is not None:
        pattern = entry.replace("**/", "*")  # in which * stands for folders too
        return sorted(path for path in tracked if fnmatch.fnmatchcase(path, pattern))
    if (path := Path(entry)).is_absolute():
        if path.is_file():
            return [entry]
        found = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        return sorted(str(p) for p in found if p.is_file())
    return sorted(str(p.relative_to(folder)) for p in folder.glob(entry) if p.is_file())


def _blob(path: Path) -> str:
    """Git's hash of a file's content.

    Raises:
        AblateError: It cannot be read.
    """
    try:
        data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    except OSError as error:
        raise AblateError(f"code: {path} cannot be read: {error.strerror}") from None
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _is_study(folder: Path, path: str, blob: str, commit: str) -> bool:
    """Whether a file is a study file, of a commit where there is one."""
    if not commit:
        return is_study(folder / path)
    return path.endswith(".toml") and bool(
        _STUDY.search(git(folder, "cat-file", "blob", blob) or b"")
    )


def is_study(path: Path) -> bool:
    """Return whether a file on the disk is a study file."""
    try:
        return path.suffix == ".toml" and bool(_STUDY.search(path.read_bytes()))
    except OSError:
        return False


def _untracked(folder: Path, folders: Sequence[str]) -> tuple[str, ...]:
    found = set()
    for entry in folders:
        listed = git(folder / entry, "ls-files", "--others", "--exclude-standard", "-z") or b""
        for name in map(os.fsdecode, filter(None, listed.split(b"\0"))):
            found.add(os.path.normpath(os.path.join(entry, name)))
    return tuple(
        sorted(
            path
            for path in found
            if path.endswith(SOURCES) and ".outputs/" not in path
            if not _is_study(folder, path, "", "")
        )
    )


def _diff(folder: Path, root: Path, changed: Sequence[str]) -> str:
    if not changed:
        return ""
    paths = [os.path.relpath(folder.resolve() / path, root) for path in changed]
    found = git(root, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", *paths)
    return (found or b"").decode(errors="replace")


@contextlib.contextmanager
def worktree(root: Path, path: Path, commit: str, lock: Path) -> Iterator[None]:
    """Check a commit out into a work tree of its own, which is removed at the end.

    Args:
        root: The work tree of the repository.
        path: Where; what an earlier call left there is removed.
        commit: The commit.
        lock: File that is locked while the repository's list of work trees changes.

    Raises:
        AblateError: Git does not make it.
    """
    with locked(lock):
        _remove(root, path)
        made = git(root, "worktree", "add", "--detach", "--force", str(path), commit)
    if made is None:
        raise AblateError(f"git does not check out {commit[:12]} of {root} into {path}")
    try:
        yield
    finally:
        with locked(lock):
            _remove(root, path)


def _remove(root: Path, path: Path) -> None:
    git(root, "worktree", "remove", "--force", str(path))
    shutil.rmtree(path, ignore_errors=True)
    git(root, "worktree", "prune")
