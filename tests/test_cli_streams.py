"""The command as a process: closed or failing streams, and Ctrl-C at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import QUICKSTART, ROOT
from launch_helpers import HERE, rows, small_plan
from report_study import Outcome, study

FULL = Path("/dev/full")


def heeds_ctrl_c() -> None:
    """Also where these tests themselves were started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def python(*arguments: str, path: Path = HERE, **options: Any) -> subprocess.CompletedProcess[str]:
    """Python with the package, and before it the modules in `path`; its standard error, and its
    output unless that is given.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": f"{path}:{ROOT}:{HERE}",
        "ABLATE_WORKER": "stub_worker",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "preexec_fn": heeds_ctrl_c, "timeout": 60, **options}
    return subprocess.run([sys.executable, *arguments], text=True, env=environment, **options)


def ablate(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "ablate", *arguments, **options)


@contextlib.contextmanager
def left_pipe() -> Iterator[int]:
    """The end for writing of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.fixture(params=["full", "left", "closed"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Options of a process whose standard output cannot be written."""
    with FULL.open("w") as full, left_pipe() as left:
        yield {
            "full": {"stdout": full},
            "left": {"stdout": left},
            "closed": {"preexec_fn": lambda: os.close(1)},
        }[request.param]


# -- output ----------------------------------------------------------------------------------------


def test_a_study_is_trained_though_its_output_cannot_be_written(
    tmp_path: Path, unwritable: dict[str, Any]
) -> None:
    small_plan(tmp_path, [1e-3, 2e-3])
    done = ablate("run", "stub.toml", "--device", "cpu", "--db", "a.db", cwd=tmp_path, **unwritable)
    assert done.returncode == 0
    assert rows(tmp_path / "a.db", "SELECT status, count(*) FROM run GROUP BY status") == [
        ("complete", 2)
    ]
    assert len(done.stderr.splitlines()) == ("stdout" in unwritable), done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["factors", "--version", "query --list --format md"])
def test_output_to_a_full_disk_is_one_line_and_to_a_closed_pipe_none(
    arguments: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with FULL.open("w") as full:
        done = ablate(*arguments.split(), stdout=full)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "standard output" in done.stderr and "No space left on device" in done.stderr
    with left_pipe() as pipe:
        done = ablate(*arguments.split(), stdout=pipe)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    with FULL.open("w") as full:
        assert ablate("plan", "nowhere", stdout=full, stderr=full).returncode == 2


def test_closed_streams_are_replaced_before_anything_else_is_opened() -> None:
    """Else what a library or a child process prints would be written into the database."""
    code = (
        "import os, subprocess, sys\nfrom ablate.__main__ import open_streams\nopen_streams()\n"
        "opened = os.open(os.devnull, os.O_RDONLY)\n"
        "child = subprocess.run(['sh', '-c', 'echo lost && echo lost >&2']).returncode\n"
        "os._exit(opened + child)"
    )
    assert python("-c", code, preexec_fn=lambda: os.closerange(0, 3)).returncode == 3
    done = ablate("plan", QUICKSTART, preexec_fn=lambda: os.closerange(0, 3))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_that_is_not_utf8_keeps_its_numbers(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    code = (
        "import sys\nfrom ablate.cli import main, output\noutput.encodable()\n"
        "print('−3×10⁻⁷ ± 0.5 ┃语│é')\n"
        "for words in (['factors', 'norm'], ['query', '--list']):\n    sys.argv[1:] = words\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code"
    )
    done = python("-c", code, encoding=encoding)
    assert done.returncode == 0, done.stderr
    written = done.stdout.translate(str.maketrans("×±é", "xse"))
    assert written.startswith("-3x10^-7 ") and r"\u8bed" in written
    assert "peri" in written and "best-lr" in written


def test_a_notebooks_backend_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shell command of a notebook inherits its MPLBACKEND, without the packages of its kernel."""
    monkeypatch.setenv("MPLBACKEND", "module://no_such_kernel.backend_inline")
    factors = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}
    points = {100: 2.0, 1000: 1.5}
    study(tmp_path, factors, lambda levels, seed: Outcome(points=points), seeds=1).close()
    drawn = "compare", "1", "2", "--plot", "c.png", "--db", "ablate.db"
    done = ablate(*drawn, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "matplotlibrc").write_bytes(b"# f\xfcr mich\n")  # matplotlib fails at its import
    done = ablate(*drawn, cwd=tmp_path)
    assert done.returncode == 2 and "matplotlibrc" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# -- Ctrl-C ----------------------------------------------------------------------------------------

CTRL_C = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def test_ctrl_c_during_the_first_imports_is_silent(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(CTRL_C)
    done = ablate("--version", path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "meanwhile",
    [
        "raise KeyboardInterrupt",
        "import atexit, os; atexit.register(lambda: os.kill(os.getpid(), 2))",
        (
            "from concurrent.futures import ThreadPoolExecutor as Pool; Pool(1).submit(time.sleep,"
            " 600); sys.exit(130)"
        ),
    ],
    ids=["in the command", "at the exit", "while a thread works"],
)
def test_ctrl_c_later_is_silent_and_waits_for_nothing(meanwhile: str) -> None:
    code = (
        "import sys, time\nfrom ablate import cli\nfrom ablate.__main__ import main\n"
        f"def command():\n    {meanwhile}\ncli.main = command\nmain()"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_in_the_background_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        CTRL_C + "import atexit\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    done = ablate(
        "--version", path=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("ablate ")
