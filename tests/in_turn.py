"""Commands as a user gives them, but in one process, which imports torch and pandas once."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

from ablate.cli import main


def said(command: Sequence[str]) -> str:
    """Run a command of `ablate`, which must succeed, and return what it prints."""
    sys.argv, out = ["ablate", *command], io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            assert not end.code, (command, end.code, out.getvalue())
    return out.getvalue()
