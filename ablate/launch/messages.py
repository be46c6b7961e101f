"""A job as one line of JSON, as it goes to a worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ablate.code import Code
from ablate.evaluation import Evaluation
from ablate.kinds import Job, Run


def encode(handle: int, job: Job, journals: Sequence[Path]) -> bytes:
    """Return a job as a line of JSON.

    Args:
        handle: Number by which the worker answers.
        job: What to train.
        journals: One file for each of its runs.
    """
    message = {"handle": handle, "journals": journals, **asdict(job)}
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    """A path or an evaluation as JSON has it."""
    return value.model_dump(mode="json") if isinstance(value, Evaluation) else str(value)


def decode(line: bytes) -> tuple[int, Job, list[Path]]:
    """Return (handle, job, journals) of a line that `encode` made."""
    message: dict[str, Any] = json.loads(line)
    handle, journals = message.pop("handle"), map(Path, message.pop("journals"))
    message["runs"] = tuple(Run(**run) for run in message["runs"])
    message["use"] = tuple(Code(**code) for code in message["use"])
    message["evaluation"] = Evaluation(**message["evaluation"])
    for name in ("checkpoint", "resume", "folder", "log"):
        message[name] = message[name] and Path(message[name])
    for name in ("weights", "parents"):
        message[name] = tuple(path and Path(path) for path in message[name])
    return handle, Job(**message), list(journals)
