"""Full reports for the pages of a board: made on demand, in another process, and kept."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ablate.paths import file_name

# Below others: runs may train on the same processors.
_COMMAND = "import os; os.nice(10); from ablate.cli import main; main()"


@dataclass
class Job:
    """The making of one report.

    Attributes:
        number: From 1.
        state: Of the database when it was begun.
        done: Whether it has ended.
        error: Why there is no report; "" if there is one.
    """

    number: int
    state: object
    done: bool = False
    error: str = ""


class Reports:
    """Reports in a temporary folder. A context manager: they are removed at its end.

    Args:
        database: The file that they are about.
    """

    def __init__(self, database: Path):
        self._database = database
        self._temporary = tempfile.TemporaryDirectory(prefix="ablate-board-")
        self.folder = Path(self._temporary.name)
        self._jobs: dict[str, Job] = {}  # the last one of each study
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def job(self, study: str) -> Job:
        """Return the job that makes, or made, the report on a study as the database is now."""
        state = _state(self._database)
        with self._lock:
            last = self._jobs.get(study)
            if last and (not last.done or (last.state == state and not last.error)):
                return last
            job = Job(last.number + 1 if last else 1, state)
            self._jobs[study] = job
        threading.Thread(target=self._make, args=(study, job), daemon=True).start()
        return job

    def begun(self, study: str, number: int) -> Job:
        """Return a job that was begun before; a new one if it is unknown."""
        last = self._jobs.get(study)
        return last if last and last.number >= number else self.job(study)

    def page(self, study: str) -> str:
        """Return the address of a study's report, relative to that of the folder."""
        from ablate.report import PAGE  # seconds

        return f"{file_name(study)}/{PAGE}"

    def file(self, name: str) -> Path | None:
        """Return a file of a report by its address relative to the folder; None for any other."""
        path = (self.folder / name).resolve()
        return path if path.is_relative_to(self.folder.resolve()) and path.is_file() else None

    def close(self) -> None:
        """End what is being made, and remove the reports."""
        for process in list(self._processes):
            process.kill()
        self._temporary.cleanup()

    def _make(self, study: str, job: Job) -> None:
        out = ["--out", str(self.folder), "--db", str(self._database)]
        command = [sys.executable, "-c", _COMMAND, "report", *out, "--", study]
        try:
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process:
                self._processes.add(process)
                _, said = process.communicate()
            self._processes.discard(process)
            if process.returncode:
                last = (said.strip() or "it ended without a message").splitlines()[-1]
                job.error = last.removeprefix("ablate: ")
        except OSError as error:
            job.error = f"no process starts: {error.strerror}"
        job.done = True


def _state(database: Path) -> object:
    """What changes when the database does: the size and time of its file and of its log."""
    found: list[object] = []
    for path in (database, database.with_name(f"{database.name}-wal")):
        try:
            of = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((of.st_ino, of.st_size, of.st_mtime_ns))
    return found
