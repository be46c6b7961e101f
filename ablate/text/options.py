"""How a text is to be read: a study's `corpus` and its `[data]`, and both as one location."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

NAMED = "named:"  # prefix of the location of a corpus that comes with the package
BYTES = "bytes"  # the encoding that leaves a file's bytes as they are


class Reading(BaseModel):
    """The keys of [data]: how the texts of a study are read.

    What they change is part of a run's identity, because a text is known by the hash of what was
    read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["auto", "text", "jsonl", "csv", "tsv", "parquet", "arrow", "tokens"] = Field(
        "auto", description="the format of the files; by default by the ends of their names"
    )
    field: str = Field(
        "",
        description=(
            "the key or column that holds the text; by default `text` or `content`, else the only"
            " column of text"
        ),
    )
    rows: Literal["auto", "documents", "lines"] = Field(
        "auto",
        description=(
            "what a row of a table is: a document, or a line of running text; by default detected"
            " from the first rows"
        ),
    )
    pairs: tuple[str, str] | None = Field(
        None,
        description=(
            "the keys or columns that hold source and target, for objective = 'pairs'; a document"
            " is then a row, source and target with a tab between"
        ),
    )
    encoding: str = Field(
        "",
        description=(
            "the encoding of text that is not UTF-8, such as cp1252; by default detected;"
            " `bytes` keeps every byte"
        ),
    )
    line_ends: Literal["lf", "kept"] = Field(
        "lf", description="whether line ends of Windows become those of Unix"
    )
    dtype: Literal["auto", "uint8", "uint16", "uint32", "int32", "int64", "uint64"] = Field(
        "auto", description="the integer type of token files without a header; by default detected"
    )


DEFAULT = Reading()


@dataclass(frozen=True)
class Request:
    """What a study wants to read.

    Attributes:
        train: Location of the text, or of its training part.
        held_out: Location of the held-out part; "" for a split of the text, or ours.
        reading: How.
        explicit: Whether the study names the parts, so that names of files mean no split.
    """

    train: str
    held_out: str = ""
    reading: Reading = DEFAULT
    explicit: bool = False

    @property
    def location(self) -> str:
        """The request as one text, from which `of` makes it again."""
        options = self.reading.model_dump(exclude_defaults=True)
        if not options and not self.explicit:
            return self.train
        parts = {"train": self.train, "held_out": self.held_out, "explicit": self.explicit}
        return json.dumps(parts | {"reading": options}, sort_keys=True)

    @classmethod
    def of(cls, location: str) -> Request:
        """Return the request behind a location."""
        if not location.startswith("{"):
            return cls(location)
        parts = json.loads(location)
        return cls(**{**parts, "reading": Reading(**parts["reading"])})


def spec(train: str, held_out: str = "") -> str:
    """Return what a study's table of two parts becomes; `split_spec` takes it apart."""
    parts = {"train": train} | ({"held_out": held_out} if held_out else {})
    return json.dumps(parts, sort_keys=True)


def split_spec(spec: str) -> tuple[str, str, bool]:
    """Return training part, held-out part and whether a study's `corpus` names them.

    Args:
        spec: A name or path, or the JSON that `{ train = …, held_out = … }` becomes.
    """
    try:
        parts = json.loads(spec) if spec.startswith("{") else None
    except ValueError:
        parts = None  # a path
    if not isinstance(parts, dict) or not isinstance(parts.get("train"), str):
        return spec, "", False
    return parts["train"], str(parts.get("held_out", "")), True
