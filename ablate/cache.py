"""The cache on disk: folders named by content hash, each built once, complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.errors import UnlocatedError
from ablate.paths import expanded, locked


def folder() -> Path:
    """Return `$ABLATE_CACHE`, else `~/.cache/ablate`."""
    named = os.environ.get("ABLATE_CACHE") or "~/.cache/ablate"
    return expanded(named).absolute()


def built(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `kind/key` of the cache, and fill it if it does not exist.

    Of several processes that ask at once one builds and the others wait. The folder gets its name
    by a rename when it is complete; what a killed process left is removed.

    Args:
        kind: the folder above.
        key: a content hash.
        build: fills the folder that it is given.

    Raises:
        UnlocatedError: the cache cannot be written.
    """
    done = folder() / kind / key
    if done.exists():
        return done
    partial = done.with_name(f"{key}.partial")
    with usable(), locked(done.with_name(f"{key}.lock")):
        if not done.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(done)
    return done


def holds(kind: str, key: str) -> bool:
    """Return whether `built` finds the folder `kind/key` complete."""
    return (folder() / kind / key).exists()


@contextmanager
def usable() -> Iterator[None]:
    """Turn the system's refusal to read or write the cache into `UnlocatedError`."""
    try:
        yield
    except OSError as error:
        ours = error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(
            folder()
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or ours:
            reason = os.strerror(error.errno or 0).lower()
            raise UnlocatedError(
                f"cannot use the cache {folder()}: {reason}; set ABLATE_CACHE to another folder"
            ) from None
        raise
