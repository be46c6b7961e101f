"""The version of a user's code: the content of files, those of a git work tree or of a revision."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
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
    """

    version: str
    commit: str = ""
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    diff: str = ""


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
    tracked, changed = _tracked(folder, root, commit) if root else ({}, set())
    found: dict[str, str] = {}  # path relative to `folder` → git's hash of its content
    folders = []
    for entry in code:
        inside = {
            path: blob
            for path, blob in tracked.items()
            if entry in (".", "./") or path == entry or path.startswith(f"{entry.rstrip('/')}/")
        }
        on_disk = folder / entry
        if not commit and on_disk.is_dir() and not inside:
            why = "has no file that git tracks" if root else "is in no git work tree with a commit"
            raise AblateError(
                f"code = {entry!r}: {on_disk.resolve()} {why}; list files or globs instead, such as"
                " train.py or src/**/*.py"
            )
        if not inside:
            names = _matching(folder, entry, tracked if commit else None)
            inside = {name: tracked.get(name) or "" for name in names}
            inside = {name: blob or _blob(folder / name) for name, blob in inside.items()}
        if not inside:
            where = f"commit {commit[:12]}" if commit else str(folder.resolve())
            raise AblateError(f"code = {entry!r}: there is no such file in {where}")
        if on_disk.is_dir():
            folders.append(entry)
        found |= inside
    if not commit:
        for path in changed & found.keys():
            found[path] = _blob(folder / path) if (folder / path).exists() else ""
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
    if root is None:
        return Snapshot(digest)
    if commit:
        return Snapshot(digest, commit)
    mine = tuple(sorted(changed & {*kept, *(path for path in found if not found[path])}))
    return Snapshot(
        digest,
        (git(folder, "rev-parse", "HEAD") or b"").decode().strip(),
        mine,
        _untracked(folder, folders),
        _diff(folder, mine),
    )


def git(folder: Path, *arguments: str) -> bytes | None:
    """Return what a git command prints; None if it fails. It takes no locks."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _tracked(folder: Path, root: Path, commit: str) -> tuple[dict[str, str], set[str]]:
    """Path relative to `folder` → hash in a commit, and the paths that differ on the disk."""
    listed = git(root, "ls-tree", "-r", "-z", commit or "HEAD") or b""
    found = {}
    for line in filter(None, listed.split(b"\0")):
        kind, _, path = line.partition(b"\t")
        found[_seen_from(folder, root, path)] = kind.split()[2].decode()
    if commit:
        return found, set()
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", "HEAD") or b""
    changed = {_seen_from(folder, root, path) for path in filter(None, differing.split(b"\0"))}
    found |= dict.fromkeys(changed - found.keys(), "added")  # to git, since the commit
    return found, changed


def _seen_from(folder: Path, root: Path, path: bytes) -> str:
    return os.path.relpath(root / os.fsdecode(path), folder.resolve())


def _matching(folder: Path, entry: str, tracked: Iterable[str] | None) -> list[str]:
    """The files that an entry names, on the disk or among those of a commit."""
    if tracked is not None:
        pattern = entry.replace("**/", "*")  # in which * stands for folders too
        return sorted(path for path in tracked if fnmatch.fnmatchcase(path, pattern))
    if Path(entry).is_absolute():
        return [entry] if Path(entry).is_file() else []
    return sorted(str(p.relative_to(folder)) for p in folder.glob(entry) if p.is_file())


def _blob(path: Path) -> str:
    """Git's hash of a file's content."""
    data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _is_study(folder: Path, path: str, blob: str, commit: str) -> bool:
    """Whether a file is a study file."""
    if not path.endswith(".toml"):
        return False
    if commit:
        return bool(_STUDY.search(git(folder, "cat-file", "blob", blob) or b""))
    try:
        return bool(_STUDY.search((folder / path).read_bytes()))
    except OSError:
        return False


def _untracked(folder: Path, folders: Sequence[str]) -> tuple[str, ...]:
    if not folders:
        return ()
    found = git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", *folders) or b""
    return tuple(
        sorted(
            path
            for path in map(os.fsdecode, filter(None, found.split(b"\0")))
            if path.endswith(SOURCES) and ".outputs/" not in path
            if not _is_study(folder, path, "", "")
        )
    )


def _diff(folder: Path, changed: Sequence[str]) -> str:
    if not changed:
        return ""
    found = git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", *changed)
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
