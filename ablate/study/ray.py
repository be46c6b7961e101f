"""[ray]: what the workers of a study ask of a Ray cluster; no part of any run's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ablate.errors import AblateError
from ablate.study.model import Ray
from ablate.study.source import Source
from ablate.study.tables import validated


class RayTable(BaseModel):
    """The keys of [ray]."""

    model_config = ConfigDict(extra="forbid", strict=True)

    address: str = Field(
        "auto", description='"auto" for the cluster of this host or of $RAY_ADDRESS, or HOST:PORT'
    )
    num_gpus: float | None = Field(
        None,
        ge=0,
        description=(
            "GPUs of a worker, or its share of one; by default as many as a run trains on, 0 in a"
            " cluster without GPUs"
        ),
    )
    num_cpus: int | None = Field(
        None, ge=1, description="CPUs of a worker; by default 1, and up to 5 for each GPU"
    )
    max_workers: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "most workers at a time, also of nodes that the cluster adds on demand; by default as"
            " many as its nodes have room for"
        ),
    )


def parse(source: Source, raw: Mapping[str, Any]) -> Ray:
    """Return [ray].

    Raises:
        AblateError: With the line of what is not valid.
    """
    table = validated(source, RayTable, raw, "ray")
    gpus = table.num_gpus
    if gpus and gpus > 1 and gpus % 1:
        raise AblateError(
            f"{source.where('ray', 'num_gpus')}: ray.num_gpus = {gpus:g}: a share of a GPU, or a"
            " whole number of GPUs, is wanted"
        )
    return Ray(table.address, gpus, table.num_cpus, table.max_workers)
