"""A board beside a run: in a process of its own, so that neither waits for the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.errors import AblateError


@contextmanager
def beside(database: Path, study: str) -> Iterator[str]:
    """Serve a board until the end of the block, and yield its address.

    It ends with this process, however that ends; Ctrl-C does not reach it. A page that is open
    learns that the run has ended.

    Args:
        database: The database.
        study: The study that it shows, which need not be in the database yet.

    Raises:
        AblateError: It does not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "ablate.board", str(database), study],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    with process.stdin, process.stdout:  # it ends when its input does
        address = process.stdout.readline().strip()
        if not address:
            raise AblateError(f"the board does not start: it ended with {process.wait()}")
        yield address
