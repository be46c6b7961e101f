"""What becomes of a command whose output cannot be written: a full disk, a reader that has gone, a
terminal that was closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

from ablate.errors import AblateError


class Output:
    """A file that knows its own failure, to be told from other errors."""

    def __init__(self, file: IO[str]):
        self.file = file
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        try:
            self.file.write(text)
        except OSError as error:
            self.fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.file.flush()
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        self.failure = error
        raise error


class Dispensable(Output):
    """A file that falls silent, with a line on standard error, once it cannot be written: what it
    shows stops no work.
    """

    def fail(self, error: OSError) -> None:
        silence(self.file)
        complain(
            f"standard output cannot be written ({error.strerror}): the study goes on, and is shown"
            " no more"
        )


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Around a command: `AblateError` where its output cannot be written; where nobody reads it, it
    ends silently with 1.
    """
    output, errors = Output(sys.stdout), Dispensable(sys.stderr)
    try:
        with (
            contextlib.redirect_stdout(cast(IO[str], output)),
            contextlib.redirect_stderr(cast(IO[str], errors)),
        ):
            try:
                yield
            finally:
                output.flush()
    except OSError as error:
        if error is not output.failure:
            raise
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise AblateError(f"standard output cannot be written: {error.strerror}") from error
    finally:
        if output.failure:
            silence(output.file)


def complain(text: str) -> None:
    """A line on standard error, where that can be written."""
    try:
        print(f"ablate: {text}", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(file: IO[str]) -> None:
    """Let a file lead nowhere, with what it has not written yet; else Python would try, and fail,
    again as it ends.
    """
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 (it is no path of ours)
        os.dup2(nowhere.fileno(), file.fileno())
