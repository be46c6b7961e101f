"""What a plan consists of: cells, contrasts, runs, confounds, decisions."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.config import RunConfig
from ablate.kinds import Cost, Run
from ablate.kinds.transformer import run_of
from ablate.sizes import Sizes
from ablate.study import Study


@dataclass(frozen=True)
class Cell:
    """One combination of levels: everything but the seed.

    Attributes:
        label: Such as "topology=parallel, n_layer=12"; unique in its study.
        levels: Factor → label of its level, without factors that have no meaning beside the others.
        stratum: The levels of the `within` factors, such as "n_layer=12"; "" for none.
        config: The configuration with seed 0.
        sizes: Of one model.
        epochs: Passes over the training text; estimated for most tokenizers.
        held_out: Held-out tokens of the text; estimated as `epochs` is.
        spelt: Bytes that the tokens spell per byte of text, 1 where nothing is known to be lost.
    """

    label: str
    levels: dict[str, str]
    stratum: str
    config: RunConfig
    sizes: Sizes
    epochs: float
    held_out: float = math.inf
    spelt: float = 1.0

    @functools.cached_property
    def run(self) -> Run:
        """The cell's run with seed 0."""
        return run_of(self.config)

    @functools.cached_property
    def cost(self) -> Cost:
        """What one of its runs takes."""
        return self.run.cost


@dataclass(frozen=True)
class Contrast:
    """A cell against the baseline of its stratum. `factor` names what differs, joined by " × "
    where several do.
    """

    family: (
        str  # the contrasts that are corrected together: one factor, or all parts, in one stratum
    )
    stratum: str
    factor: str
    level: str
    cell: str  # labels
    baseline: str


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan: a cell with one of its seeds."""

    cell: str
    config: RunConfig
    role: str = "compare"  # "compare" | "tune" | "parent"

    @functools.cached_property
    def run(self) -> Run:
        """The run, as code that knows no kind of run by name takes it."""
        return run_of(self.config)


@dataclass(frozen=True)
class Confound:
    """Something besides the factor that a comparison cannot tell apart from it."""

    # "parameters" | "tokens" | "corpus" | "held-out text" | "passages" | "learning rate" | "same
    # configuration"
    kind: str
    cell: str  # label; "" for all
    text: str


@dataclass(frozen=True)
class Group:
    """Cells that share a learning rate: it is tuned on the first of them."""

    label: str  # "topology=serial, n_layer=4"; "all cells"
    cells: tuple[str, ...]  # labels

    @property
    def representative(self) -> str:
        return self.cells[0]


@dataclass(frozen=True)
class Decision:
    """Something the study learnt while running.

    "lr" is the learning rate of the group whose representative `cell` is, "seeds" how many seeds
    the cells of the stratum get whose baseline it is.
    """

    cell: str
    name: str  # "lr" | "seeds"
    value: float
    evidence: Mapping[str, Any] = field(default_factory=dict)  # what it rests on, as JSON holds it


@dataclass(frozen=True)
class Plan:
    """What a study will do, in the order in which it is done: seed after seed, so that pairs are
    complete early.
    """

    study: Study
    cells: tuple[Cell, ...]
    contrasts: tuple[Contrast, ...]
    runs: tuple[
        PlannedRun, ...
    ]  # cells of one configuration share a key: such a run is trained once
    later: tuple[
        PlannedRun, ...
    ] = ()  # runs that wait for a learning rate, at a supposed one: only good for their price
    groups: tuple[Group, ...] = ()  # of cells that share a tuned learning rate
    undecided: tuple[Group, ...] = ()  # those of them whose learning rate is still to be found
    sources: dict[str, str] = field(
        default_factory=dict
    )  # content hash of a corpus or tokenizer → where it lies
    confounds: tuple[Confound, ...] = ()
    notes: tuple[str, ...] = ()  # what is good to know beforehand
    excluded: tuple[str, ...] = ()  # labels of cells that [[exclude]] leaves out
    too_long: tuple[Cell, ...] = ()  # cells that max_epochs leaves out
