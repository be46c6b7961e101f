"""What a board shows of a study, read from the database; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ablate import tune
from ablate.launch import slurm
from ablate.store import Database, decisions, live, rows, status
from ablate.store.live import DeviceUse, Failed, Waiting
from ablate.store.records import FAILED
from ablate.store.status import StudyStatus

QUEUED = 6  # waiting runs that are listed
TAIL = 12  # last lines of an error, or of what a script printed
TAIL_BYTES = 8192  # of a log, in which they are looked for


@dataclass(frozen=True)
class Course:
    """How far a study is, in numbers of runs.

    Attributes:
        name: Name of the study.
        question: Its question.
        status: What `ablate status` shows of it.
        more: Whether it will plan more runs, when it has decided on a rate or on seeds.
    """

    name: str
    question: str
    status: StudyStatus
    more: bool

    @property
    def parts(self) -> dict[str, int]:
        """The runs: "complete", "diverged", "failed", "training", "queued" (in the queue of a
        cluster), "waiting"; only those there are. Starting runs train too.
        """
        counts = self.status.survey.counts
        named = {
            "complete": counts.get("complete", 0),
            "diverged": counts.get("diverged", 0),
            "failed": sum(counts.get(one, 0) for one in FAILED),
            "training": counts.get("running", 0),
            "queued": counts.get("queued", 0),
            "waiting": counts.get("planned", 0) + counts.get("stopped", 0),
        }
        return {name: number for name, number in named.items() if number}

    @property
    def total(self) -> int:
        """Number of runs that are planned so far."""
        return self.status.survey.total

    @property
    def ended(self) -> int:
        """Number of runs that have a result, or failed."""
        return self.status.survey.done

    @property
    def speed(self) -> float:
        """Tokens a second of all that train."""
        return sum(run.tokens_per_second or 0.0 for run in self.status.working if not run.dead)

    @property
    def alive(self) -> bool:
        """Whether a run trains, starts or is in a queue."""
        return any(not run.dead for run in self.status.working)


@dataclass(frozen=True)
class Trouble:
    """Runs that failed with the same last line.

    Attributes:
        line: The last line of their error.
        runs: The runs, newest first.
        tail: The last lines of the newest one's error; if that has no more than one, the last lines
            that its script printed.
    """

    line: str
    runs: Sequence[Failed]
    tail: str


@dataclass(frozen=True)
class Detail:
    """All that a page shows of one study, beside its curves.

    Attributes:
        course: How far it is.
        cells: Cell → status → number of runs.
        troubles: Its failed runs by their last line, the most frequent first.
        queue: The first runs that wait.
        decisions: A sentence, without full stop, on each decision that is made.
        queued: A sentence on its jobs in the queue of a cluster; "" without any.
        devices: What it used of each device.
    """

    course: Course
    cells: dict[str, dict[str, int]]
    troubles: Sequence[Trouble]
    queue: Sequence[Waiting]
    decisions: Sequence[str]
    queued: str
    devices: Sequence[DeviceUse]


def courses(db: Database, names: Sequence[str]) -> list[Course]:
    """Return how far studies are, in the order of registration.

    Args:
        db: The database.
        names: The studies, of which some may not be in the database; all if empty.
    """
    found = rows.studies(db)
    about = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    questions = {one["name"]: one["question"] for one in about}
    return [
        Course(one.name, questions[one.name], one, live.unplanned(db, one.name))
        for one in status.studies(db)
        if one.name in questions and (not names or one.name in names)
    ]


def detail(db: Database, course: Course) -> Detail:
    """Return all that a page shows of one study, beside its curves."""
    name = course.name
    return Detail(
        course,
        status.counts_by_cell(db, name),
        troubles(db, live.failed(db, name)),
        live.queue(db, name, QUEUED),
        list(dict.fromkeys(map(tune.describe, decisions.read(db, name)))),
        slurm.left(db, name),
        live.devices(db, name),
    )


def troubles(db: Database, failed: Sequence[Failed]) -> list[Trouble]:
    """Return failed runs by the last line of their error, the most frequent first."""
    by_line: dict[str, list[Failed]] = {}
    for line, those in groupby(failed, key=_last_line):
        by_line.setdefault(line, []).extend(those)
    return [
        Trouble(line, runs, _tail(runs[0].error) or _last(db.printed(runs[0].journal, TAIL_BYTES)))
        for line, runs in sorted(by_line.items(), key=lambda item: -len(item[1]))
    ]


def _last_line(run: Failed) -> str:
    lines = [line for line in run.error.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no message"


def _tail(error: str) -> str:
    """The last lines of an error; "" if it has no more than one."""
    text = error.strip()
    return _last(text) if "\n" in text else ""


def _last(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL:])
