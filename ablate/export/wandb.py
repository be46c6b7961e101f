"""A study for Weights & Biases: folders of runs that `wandb sync` uploads."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ablate import formats
from ablate.errors import AblateError, missing
from ablate.export import runs
from ablate.export.runs import Run
from ablate.paths import digest
from ablate.store import Database

LONGEST = 128  # characters of a name that W&B takes


def write(database: Database, study: str, where: str, role: str) -> str:
    """Write the runs of a study as W&B's offline runs, in the folder `wandb` of a folder.

    A run that was written before is replaced. See `ablate.export.write`.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError:
        raise missing("wandb") from None
    exported = runs.read(database, study, role)
    project = _short(re.sub(r"[/\\#?%:]", "-", study))
    numbers = [digest("\0".join((study, *run.identity)), 16) for run in exported.runs]
    folder = Path(where, "wandb")
    Path(where).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=where, prefix=".ablate-") as part:
        settings = _settings(wandb, part)
        # on a full disk, logging would print an error for each line of the log that W&B writes
        loud, logging.raiseExceptions = logging.raiseExceptions, False
        try:
            for number, run in zip(numbers, exported.runs, strict=True):
                _write(wandb, run, settings=settings, project=project, id=number)
        except wandb.Error as error:
            raise AblateError(f"W&B: {error}") from None
        finally:
            wandb.teardown()  # its service
            logging.raiseExceptions = loud
        folder.mkdir(exist_ok=True)
        for number in numbers:  # all are whole
            (new,) = Path(settings.wandb_dir).glob(f"offline-run-*-{number}")
            for old in folder.glob(f"offline-run-*-{number}"):
                shutil.rmtree(old)
            new.replace(folder / new.name)
    return exported.said(folder)


def _settings(wandb: Any, folder: str) -> Any:
    """Return settings that record nothing of this process, which did not train the runs."""
    return wandb.Settings(
        mode="offline",
        root_dir=folder,
        silent=True,
        symlink=False,
        host="",
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _write(wandb: Any, run: Run, **options: Any) -> None:
    """Write a run. Points have the time at which the run began: their own times are not known."""
    tracked = wandb.init(
        group=_short(run.cell),
        name=_short(run.name),
        job_type=run.role,
        config={**run.config, "seed": run.seed, **run.tags},
        **options,
    )
    time = {} if run.started is None else {"_timestamp": run.started}
    for step, values in run.points:
        tracked.log(values | time, step=step)
    # W&B's writer of summaries makes null of NaN and infinity
    tracked.summary.update(
        {
            name: value if abs(value) < float("inf") else formats.number(value)
            for name, value in run.finals.items()
        }
    )
    # an offline run of W&B has always ended: a running one has not failed at least
    tracked.finish(exit_code=0 if run.status in ("complete", "running") else 1)


def _short(text: str) -> str:
    """Return a text that is short enough for a name in W&B."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 9]}-{digest(text)}"
