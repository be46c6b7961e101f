"""What a worker is to do next: runs of the study, claimed together, as one job."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ablate.config import RunConfig
from ablate.kinds import Run
from ablate.kinds.transformer import config_of
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.plan import Plan
from ablate.store import Database, status
from ablate.store.runs import Claim, Owner, claim


@dataclass(frozen=True)
class Job:
    """A pack of runs to train together."""

    claims: list[Claim]
    message: dict[str, Any]  # to the worker: see `ablate.launch.worker`
    squeezed: int  # how often its shape had run out of memory before

    @property
    def within(self) -> str:
        """How much of it is in memory at once."""
        if not (sequences := self.message["micro_batch"]):
            return f"{len(self.claims)} run{'s' if len(self.claims) > 1 else ''} at a time"
        again = (
            ", and blocks computed again in the backward pass" if self.message["recompute"] else ""
        )
        return (
            f"{sequences} of {self.claims[0].config.batch_size} sequences in memory at once{again}"
        )


class Jobs:
    """The jobs of a study for one launcher. They become smaller where memory runs out."""

    def __init__(self, plan: Plan, db: Database, study_id: int, owner: Owner, longest_first: bool):
        self._plan, self._db, self._study_id, self._owner = plan, db, study_id, owner
        self._longest_first = longest_first
        self._squeezed: dict[str, int] = {}  # shape → how often it ran out of memory

    def next(self, device: Device, idle: int) -> Job | None:
        """Claim the next job for one of `idle` devices; None when there is nothing to claim now.

        Its runs are of one shape. Those that left a checkpoint together go on together.
        """

        @functools.cache
        def checkpoints() -> dict[
            str, str
        ]:  # not before `claim` asks: by then it has read what the dead wrote
            return status.checkpoints(self._db, self._study_id)

        def checkpoint(config: RunConfig) -> str | None:
            return (
                checkpoints().get(config.key) if packs.shape(config) not in self._squeezed else None
            )

        def limit(first: Run, waiting: int) -> int:
            config = config_of(first)
            return (
                waiting
                if checkpoint(config)
                else packs.share(waiting, self._size(config, device)[0], idle)
            )

        def alike(run: Run) -> tuple[str, str | None]:
            config = config_of(run)
            return packs.shape(config), checkpoint(config)

        claims = claim(
            self._db,
            self._study_id,
            self._owner,
            limit,
            alike=alike,
            longest_first=self._longest_first,
        )
        if not claims:
            return None
        first = claims[0].config
        _, micro_batch, recompute = self._size(first, device)
        old = checkpoint(first)
        message = {
            "job": claims[0].attempt_id,
            "runs": [
                {"config": claim.config.model_dump(mode="json"), "journal": str(claim.journal)}
                for claim in claims
            ],
            "evaluation": claims[0].evaluation.model_dump(mode="json"),
            "sources": self._plan.sources,
            "checkpoint": old or str(self._db.checkpoints / f"{first.key[:12]}-{claims[0].n}.pt"),
            "resume": old is not None,
            "micro_batch": micro_batch,
            "recompute": recompute,
        }
        return Job(claims, message, self._squeezed.get(packs.shape(first), 0))

    def too_large(self, job: Job) -> None:
        """The job ran out of memory: the next of its shape is to be smaller."""
        self._squeezed[packs.shape(job.claims[0].config)] = job.squeezed + 1

    def _size(self, config: RunConfig, device: Device) -> packs.Size:
        return packs.size(config, device, self._squeezed.get(packs.shape(config), 0))
