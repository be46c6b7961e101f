"""Commands as a real user who is not root: `as_user` has them carried out by a process of his, in
which this file is run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# users that own nothing else here; the second is `nobody` on most systems
OWNER, STRANGER = (65533, 65534)
PACKAGES = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("-packages"))])

Answer = tuple[int, str, str]  # exit code, standard output, standard error


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may read, unlike pytest's, with an `out` that all may write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        Path(name, "out").mkdir()
        Path(name, "out").chmod(0o777)
        yield Path(name)


def as_user(user: int | None, folder: Path, *commands: str) -> list[Answer]:
    """Return what `ablate` answers to these lines in `folder`, run by `user` (None: this one)."""
    server = _server(user)
    assert server.stdin and server.stdout
    print(
        json.dumps([str(folder), [shlex.split(command) for command in commands]]),
        file=server.stdin,
        flush=True,
    )
    return [tuple(answer) for answer in json.loads(server.stdout.readline())]


def give(path: Path, user: int | None) -> None:
    """Make `user` the owner of a file or of a folder with all that is in it."""
    if user is not None:
        for each in (path, *path.rglob("*")):
            os.chown(each, user, user)


def need_other_users() -> None:
    """Skip the test where nobody else can be had."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if _python(STRANGER) is None:
        pytest.skip(f"another user cannot run {sys.executable}")


def _identity(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@functools.cache
def _python(user: int | None) -> str | None:
    """A Python of this version that `user` can run with these packages: this one may stand in
    somebody's home.
    """
    for python in (
        sys.executable,
        shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin"),
    ):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            if python:
                command = [python, "-c", "import pydantic_core, ablate.cli"]
                subprocess.run(
                    command,
                    env={"PYTHONPATH": PACKAGES},
                    cwd="/",
                    check=True,
                    capture_output=True,
                    **_identity(user),
                )
                return python
    return None


@functools.cache
def _server(user: int | None) -> subprocess.Popen[str]:
    """A process of the user, with a home of its own, until this one ends."""
    python, home = _python(user), tempfile.TemporaryDirectory()
    assert python
    give(Path(home.name), user)
    server = subprocess.Popen(
        [python, __file__],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "HOME": home.name,
            "PYTHONPATH": PACKAGES,
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **_identity(user),
    )
    atexit.register(home.cleanup)
    atexit.register(server.communicate)
    return server


def _carry_out(words: list[str]) -> Answer:
    from ablate.cli import main

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["ablate", *words]
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
    return int(code or 0), out.getvalue(), err.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        folder, commands = json.loads(line)
        os.chdir(folder)
        print(json.dumps([_carry_out(words) for words in commands]), flush=True)
        os.chdir("/")
