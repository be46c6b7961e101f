"""[imported]: the files and columns that the imported runs of a study come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ablate.errors import AblateError
from ablate.study.names import FreeNames
from ablate.study.source import Source
from ablate.study.tables import table_of

# fields of an imported run: its parameters, tokens and FLOPs of training, where columns hold them
PARAMS, TOKENS, FLOPS = "params", "train_tokens", "train_flops"
RESOURCES: dict[str, Any] = {PARAMS: 1, TOKENS: 1}  # positive numbers, for [fit]
CONTENT, SOURCE = "content", "source"  # hash of its numbers; file and row that they come from


class ImportedTable(BaseModel):
    """The keys of [imported]: the arguments of `ablate import`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: list[str] = Field(description="files and folders that were read")
    seed: str = Field(description="column of the seed")
    step: str = Field("", description="column of the step, if a run has several rows")
    at: str | int = Field(
        "last", description='the value of a curve that is compared: "last", "best", or a step'
    )
    columns: dict[str, str] = Field({}, description="factor, metric or resource → its column")
    pattern: str = Field("", description="regular expression whose named groups become columns")
    where: list[str] = Field([], description="conditions that choose rows")


class ImportedNames(FreeNames):
    """Fields of imported runs; see `names.Names`."""

    def check_factor(self, name: str) -> None:
        """See `Names.check_factor`."""
        super().check_factor(name)
        if name in (CONTENT, SOURCE):
            raise AblateError(f"{name} is a field of every imported run; rename the column")


def parse(source: Source, raw: Mapping[str, Any]) -> str:
    """Return which value of the metric decides a study, as `ImportedTable.at` has it.

    Raises:
        AblateError: With the line of what is not valid.
    """
    return str(table_of(source, ImportedTable, raw, "imported", "[imported]").at)
