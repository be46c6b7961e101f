"""[slurm]: what the jobs of a study ask of Slurm; no part of any run's key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ablate.errors import AblateError, unknown
from ablate.study.model import Slurm
from ablate.study.source import Source, located
from ablate.study.tables import validated

SET_BY_ABLATE = (
    *("array", "chdir", "error", "job-name", "nodes", "ntasks", "open-mode", "output"),
    *("parsable", "quiet", "test-only", "wait", "wrap"),
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])i?B?", re.IGNORECASE)
_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SlurmTable(BaseModel):
    """The keys of [slurm] that ablate reads. Every other key is an option of `sbatch`."""

    model_config = ConfigDict(extra="allow", strict=True)

    max_jobs: int = Field(
        8, ge=1, le=1000, description="most Slurm jobs of the study at a time, waiting and running"
    )
    memory: str = Field(
        "16GB",
        description="memory of a GPU, or of a Slurm job without one; it limits the runs of a pack",
    )


def parse(source: Source, raw: Mapping[str, Any]) -> Slurm:
    """Return [slurm].

    Raises:
        AblateError: With the line of what is not valid.
    """
    table = validated(source, SlurmTable, raw, "slurm")
    return _checked(table, source)


def changed(slurm: Slurm, words: Sequence[str]) -> Slurm:
    """Return [slurm] with other values, as a command line gives them.

    Args:
        slurm: What the study file says.
        words: "KEY=VALUE", or the name of an option of `sbatch` that has no value.

    Raises:
        AblateError: A value is not valid.
    """
    options = dict(slurm.options)
    max_jobs, memory = slurm.max_jobs, slurm.memory
    for word in words:
        key, given, value = word.partition("=")
        if key == "max_jobs":
            if not value.isdecimal() or not 1 <= int(value) <= 1000:
                raise AblateError(f"--slurm {word}: max_jobs is a number from 1 to 1000")
            max_jobs = int(value)
        elif key == "memory":
            memory = _bytes(value)
        else:
            options[_option(key)] = value if given and value != "true" else True
    return Slurm(max_jobs, memory, options)


def _checked(table: SlurmTable, source: Source) -> Slurm:
    with located(source, "slurm", "memory"):
        memory = _bytes(table.memory)
    options = {}
    for key, value in (table.model_extra or {}).items():
        with located(source, "slurm", key):
            if not isinstance(value, str | int) or value is False:
                raise AblateError(
                    f"slurm.{key} = {value!r:.80}: text, a whole number, or true for an option"
                    " without a value"
                )
            options[_option(key)] = value
    return Slurm(table.max_jobs, memory, options)


def _option(key: str) -> str:
    """Return the name of an option of `sbatch`, which a study file may write with _."""
    name = key.replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z-]+", name):
        raise unknown(
            "key of [slurm]", key, [*SlurmTable.model_fields, "partition", "gres", "time"]
        )
    if name in SET_BY_ABLATE:
        raise AblateError(f"slurm.{key}: ablate sets this option of sbatch itself; remove it")
    return name


def _bytes(text: str) -> int:
    found = _MEMORY.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise AblateError(f'slurm.memory = {text!r:.80}: an amount is wanted, such as "80GB"')
    return int(float(found[1]) * _UNITS[found[2].upper()])
