"""What a plan consists of: cells, contrasts, runs, confounds, decisions."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from ablate.code import Code
from ablate.kinds import Cost, Run
from ablate.study import Study
from ablate.text.corpora import Corpus
from ablate.text.tokenizers import TokenizerInfo


@dataclass(frozen=True)
class Resolved:
    """What a combination of levels is resolved to.

    Attributes:
        run: Its run with seed 0.
        epochs: Passes over the training text; None if unknown.
        estimated: Whether `epochs` is an estimate, as the tokens of the text are not counted yet.
        held_out: Held-out tokens of the text. An estimate for most tokenizers, also where they are
            counted: on it depends what is measured, which is the same on every machine.
        byte_coverage: Bytes that the tokens decode to per byte of text; 1 if unknown.
        seeded: Whether its runs depend on their seed: not where given weights are evaluated as they
            are.
    """

    run: Run
    epochs: float | None = None
    held_out: float = math.inf
    byte_coverage: float = 1.0
    seeded: bool = True
    estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell(Resolved):
    """One combination of levels: everything but the seed.

    Attributes:
        label: Such as "topology=parallel, n_layer=12"; unique in its study.
        levels: Factor → label of its level, without factors that have no meaning beside the others.
        stratum: The levels of the `within` factors, such as "n_layer=12"; "" for none.
    """

    label: str
    levels: dict[str, str]
    stratum: str

    @property
    def config(self) -> Any:
        """The typed configuration of its run."""
        return self.run.config

    @functools.cached_property
    def cost(self) -> Cost:
        """What one of its runs takes."""
        return self.run.cost


def before(cell: Cell) -> Cell | None:
    """Return a cell with the run that its run starts from; None if that starts from none."""
    parent = cell.run.parent_run
    return replace(cell, run=parent) if parent else None


class Resolver(Protocol):
    """Resolves the cells of one study.

    Attributes:
        sources: Content hash of what its runs read → its location.
        texts: Names of corpus and tokenizer → what was read; {} for a kind without text.
        settings: What the study says of its runs besides their fields.
        about: Lines on how its runs are made.
        code: Code from outside of ablate that its runs depend on.
    """

    sources: dict[str, str]
    texts: dict[tuple[str, str], Text]

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def about(self) -> Sequence[str]: ...

    @property
    def code(self) -> Sequence[Code]: ...

    def levels(self, chosen: dict[str, str]) -> dict[str, str]:
        """Return `chosen` (factor → label) without factors that have no effect in it."""
        ...

    def resolve(self, chosen: dict[str, str], baseline: Run | None) -> Resolved:
        """Resolve a combination.

        Args:
            chosen: Factor → label of its level.
            baseline: The run of its stratum's baseline; None for a baseline itself.

        Raises:
            AblateError: Fields contradict each other.
        """
        ...


@dataclass(frozen=True)
class Contrast:
    """A cell compared with the baseline of its stratum.

    Attributes:
        family: The contrasts that are corrected together: one factor, or all parts, in a stratum.
        stratum: The stratum of both cells.
        factor: What differs; several are joined by " × ".
        level: The cell's level of it.
        cell: Label of the cell.
        baseline: Label of the baseline.
    """

    family: str
    stratum: str
    factor: str
    level: str
    cell: str
    baseline: str


Role = Literal["compare", "tune", "pretrain"]  # "pretrain": a parent of others
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan: a cell with one of its seeds."""

    cell: str  # label
    run: Run
    role: Role = "compare"

    @property
    def config(self) -> Any:
        """The typed configuration of the run."""
        return self.run.config


@dataclass(frozen=True)
class Confound:
    """A confound: something besides the factor that a comparison cannot separate from it."""

    # "parameters" | "tokens" | "training" | "FLOPs" | "corpus" | "held-out text" | "passages" |
    # "text read" | "learning rate" | "same configuration"
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
    """A decision that the study made while running.

    "lr" is the learning rate of the group that `cell` represents; "seeds" is the number of seeds
    of the cells in the stratum whose baseline is `cell`.
    """

    cell: str
    name: str  # "lr" | "seeds"
    value: float
    evidence: Mapping[str, Any] = field(default_factory=dict)  # what it is based on, as JSON values


@dataclass(frozen=True)
class Text:
    """A corpus with its tokenizer."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    train_tokens: float  # estimated where nothing depends on it and counting would take long
    held_out_tokens: float  # estimated likewise
    estimated: bool  # whether the two are

    def is_of(self, config: Any) -> bool:
        """Return whether a run with this configuration reads it."""
        hashes = config.corpus_hash, config.tokenizer_hash
        return (self.corpus.hash, self.tokenizer.hash) == hashes


@dataclass(frozen=True)
class Plan:
    """What a study trains, in this order: seed after seed, so that pairs are complete early.

    Attributes:
        study: The study.
        cells: Stratum after stratum, the baseline first.
        contrasts: What is compared.
        runs: Runs that can be trained now, parents before their children. Cells of one
            configuration share a run.
        later: Runs whose learning rate is not decided, at an assumed rate; only for their price.
        groups: Cells that share a tuned learning rate.
        undecided: Groups whose learning rate is not decided.
        sources: Content hash of a corpus, tokenizer or file of labels → its location.
        texts: Corpora with their tokenizers.
        settings: What the study says of its runs besides their fields, see `Job.settings`.
        about: Lines on how its runs are made, for the reader of the plan.
        code: Code from outside of ablate that its runs depend on.
        confounds: Differences besides the factors.
        notes: Warnings and hints for the reader of the plan.
        excluded: Labels of cells that [[exclude]] leaves out.
        too_long: Cells that max_epochs leaves out, with the whole stratum of a baseline.
    """

    study: Study
    cells: tuple[Cell, ...]
    contrasts: tuple[Contrast, ...] = ()
    runs: tuple[PlannedRun, ...] = ()
    later: tuple[PlannedRun, ...] = ()
    groups: tuple[Group, ...] = ()
    undecided: tuple[Group, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    texts: tuple[Text, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: tuple[str, ...] = ()
    code: tuple[Code, ...] = ()
    confounds: tuple[Confound, ...] = ()
    notes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    too_long: tuple[Cell, ...] = ()
