"""A folder on shared storage through which a launcher gives jobs to agents on other machines.

A job is one file, which moves from folder to folder: `jobs/HANDLE.json` waits, an agent takes it by
renaming it to `taken/HANDLE.AGENT.json`, and writes `ended/HANDLE.json` when it no longer runs.
Renaming succeeds for one agent alone, also on network file systems. `cancel/HANDLE` asks the agent
to end a job. `started/AGENT` says that an agent has begun, and on how many jobs it works at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablate.kinds import Job
from ablate.launch.executor import Ended
from ablate.launch.messages import decode, encode
from ablate.paths import atomic

FOLDERS = ("jobs", "taken", "ended", "cancel", "started")


class Spool:
    """The folder; launcher and agents use it at the same time.

    Args:
        folder: The folder, which need not exist.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._jobs, self._taken, self._ended, self._cancel, self._started = (
            folder / name for name in FOLDERS
        )

    def make(self) -> None:
        """Make the folder."""
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    # -- the launcher's side -----------------------------------------------------------------------

    def add(self, handle: int, job: Job, journals: Sequence[Path]) -> None:
        """Let a job wait for an agent."""
        with atomic(self._jobs / _name(handle)) as file:
            paths = [path.absolute() for path in journals]
            file.write_bytes(encode(handle, _anywhere(job), paths))

    def waiting(self) -> set[int]:
        """Return the jobs that no agent has taken."""
        return {_handle(path) for path in _files(self._jobs)}

    def unread(self) -> int:
        """Return how many jobs have ended and are not read."""
        return len(list(_files(self._ended)))

    def taken(self) -> dict[int, str]:
        """Return job → the agent that has taken it."""
        return {_handle(path): path.name.split(".")[1] for path in _files(self._taken)}

    def journals(self) -> dict[int, list[Path]]:
        """Return the journals of every job in the folder."""
        found = {}
        for path in (*_files(self._jobs), *_files(self._taken), *_files(self._ended)):
            with contextlib.suppress(FileNotFoundError):  # it moves on meanwhile
                written = json.loads(path.read_bytes())
                found[_handle(path)] = [Path(journal) for journal in written["journals"]]
        return found

    def withdraw(self, handle: int) -> bool:
        """Remove a job that waits; return False if an agent was quicker."""
        try:
            (self._jobs / _name(handle)).unlink()
        except FileNotFoundError:
            return False
        return True

    def cancel(self, handle: int, *, kill: bool) -> None:
        """Ask the agent of a job to end it."""
        with atomic(self._cancel / str(handle)) as file:
            file.write_text("kill" if kill else "stop")

    def ended(self) -> list[Ended]:
        """Return the jobs that agents have ended, each once, and forget them."""
        found = []
        for path in _files(self._ended):
            written = json.loads(path.read_bytes())
            del written["journals"]
            found.append(Ended(**written))
            self.forget(found[-1].handle)
        return found

    def forget(self, handle: int) -> None:
        """Remove all files of a job."""
        for path in (*self._taken.glob(f"{handle:08d}.*"), self._jobs / _name(handle)):
            path.unlink(missing_ok=True)
        (self._cancel / str(handle)).unlink(missing_ok=True)
        (self._ended / _name(handle)).unlink(missing_ok=True)

    def started(self, agent: str) -> int:
        """Return on how many jobs an agent works at a time; 0 if it has not begun."""
        try:
            return int((self._started / agent).read_text() or 1)
        except FileNotFoundError:
            return 0

    # -- the agent's side --------------------------------------------------------------------------

    def start(self, agent: str, slots: int) -> None:
        """Say that an agent has begun; what it had taken in an earlier life has ended."""
        with atomic(self._started / agent) as file:
            file.write_text(str(slots))
        for handle, by in self.taken().items():
            if by == agent:
                why = "its Slurm job was started again"
                self.end(agent, Ended(handle, "stopped", why, evicted=True))

    def take(self, agent: str) -> tuple[int, Job, list[Path]] | None:
        """Take the job that has waited longest; None if none waits."""
        for path in _files(self._jobs):
            mine = self._taken / f"{path.stem}.{agent}.json"
            if _moved(path, mine):
                return decode(mine.read_bytes())
        return None

    def asked(self, handle: int) -> str:
        """Return "stop" or "kill" if a job is to end, else ""."""
        try:
            return (self._cancel / str(handle)).read_text()
        except FileNotFoundError:
            return ""

    def end(self, agent: str, ended: Ended) -> None:
        """Say that a job no longer runs."""
        mine = self._taken / f"{ended.handle:08d}.{agent}.json"
        with contextlib.suppress(FileNotFoundError):  # the launcher gave this agent up
            journals = json.loads(mine.read_bytes())["journals"]
            with atomic(self._ended / _name(ended.handle)) as file:
                file.write_text(json.dumps(asdict(ended) | {"journals": journals}))
            mine.unlink(missing_ok=True)


def _anywhere(job: Job) -> Job:
    """Return a job with absolute paths: agents of a later launcher may work in another folder."""
    made: dict[str, Any] = {}
    for name in ("checkpoint", "resume", "folder", "log"):
        path = getattr(job, name)
        made[name] = path and path.absolute()
    for name in ("weights", "parents"):
        made[name] = tuple(path and path.absolute() for path in getattr(job, name))
    return replace(job, **made)


def _name(handle: int) -> str:
    return f"{handle:08d}.json"


def _handle(path: Path) -> int:
    return int(path.name.split(".")[0])


def _files(folder: Path) -> Iterator[Path]:
    """Yield the whole files of a folder, in the order of their handles."""
    yield from sorted(path for path in folder.glob("*.json"))


def _moved(old: Path, new: Path) -> bool:
    """Rename a file; return False if it is gone."""
    try:
        old.rename(new)
    except FileNotFoundError:
        # A network file system may repeat a request whose answer was lost.
        return new.exists()
    return True
