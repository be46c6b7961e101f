"""A job as one line of JSON, as it goes to a worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.evaluation import Evaluation
from ablate.kinds import Job, Run


def encode(handle: int, job: Job, journals: Sequence[Path]) -> bytes:
    """Return a job as a line of JSON.

    Args:
        handle: Number by which the worker answers.
        job: What to train.
        journals: One file for each of its runs.
    """
    message = {
        "job": handle,
        "runs": [
            {"kind": run.kind, "fields": dict(run.fields), "seed": run.seed, "parent": run.parent}
            for run in job.runs
        ],
        "journals": [str(journal) for journal in journals],
        "evaluation": job.evaluation.model_dump(mode="json"),
        "sources": dict(job.sources),
        "checkpoint": str(job.checkpoint) if job.checkpoint else None,
        "resume": job.resume,
        "micro_batch": job.micro_batch,
        "recompute": job.recompute,
        "compile": job.compile,
    }
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Job, list[Path]]:
    """Return (handle, job, journals) of a line that `encode` made."""
    message: dict[str, Any] = json.loads(line)
    job = Job(
        runs=tuple(Run(**run) for run in message["runs"]),
        evaluation=Evaluation(**message["evaluation"]),
        sources=message["sources"],
        checkpoint=Path(message["checkpoint"]) if message["checkpoint"] else None,
        resume=message["resume"],
        micro_batch=message["micro_batch"],
        recompute=message["recompute"],
        compile=message["compile"],
    )
    return message["job"], job, [Path(journal) for journal in message["journals"]]
