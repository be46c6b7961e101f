"""What a run is. A kind says which fields a run has, what it costs and how it is trained.

`Run` is one trained model: a kind, its resolved fields, a seed and perhaps a parent run. Everything
outside `ablate.kinds` and the packages that a kind trains with uses runs only through this module,
so that a new kind of run needs no changes there.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ablate.code import Code
from ablate.components import Field
from ablate.components.base import check_name
from ablate.errors import unknown
from ablate.evaluation import Evaluation

Fields = Mapping[str, Any]  # name → JSON value, defaults written out, without the seed
CHECKPOINTS = "checkpoints"  # folder in a run's own for what a script saves
SEEDS = ("init_seed", "data_seed")  # fields whose default is the run's seed
Emit = Callable[..., None]  # emit("metrics", steps=[…], series={…}): a journal event of one run


@dataclass(frozen=True)
class Cost:
    """What a run takes. None is "unknown": it is shown as unknown and enters no sum."""

    steps: int | None = None  # of the optimiser
    params: int | None = None
    params_body: int | None = None  # without embeddings and head
    tokens: int | None = None  # of the whole training
    flops: float | None = None  # of the whole training
    bytes: int | None = None  # peak memory of one run alone


@dataclass(frozen=True)
class Job:
    """Runs of one kind to train together, in one worker, and how.

    Attributes:
        runs: Members of the pack; a kind that cannot pack gets one.
        evaluation: What is measured on held-out text.
        use: Code of the runs' levels from outside, which the worker loads.
        sources: Content hash of a corpus, tokenizer or file → its location.
        checkpoint: File to checkpoint to, of this job alone; None for no checkpoints.
        resume: Checkpoint of an earlier job to continue from, None to begin at step 0.
        covered: Step up to which the points of earlier jobs are stored; a newer checkpoint is not
            continued from. None where all are.
        micro_batch: Sequences of each run in memory at once, 0 for the whole batch.
        recompute: Recompute activations in the backward pass.
        compile: What is compiled: a mode of `ablate.train.compiled.MODES`, or "auto" for the one
            that is done first. A CPU always works eagerly.
        settings: What the study says of its runs besides their fields, as JSON values; no part of
            a run's key.
        weights: A file for the weights of each run, None for a run whose weights are not kept; ()
            where none are.
        best: Whether the weights of the evaluation with the lowest held-out loss are kept, not the
            last.
        parents: A file with the weights that each run starts from, None for a run without a parent;
            () where none has one.
        folder: A folder of its first run, the same for every attempt.
        log: File for what the training prints.
    """

    runs: tuple[Run, ...]
    evaluation: Evaluation
    use: tuple[Code, ...] = field(default=(), kw_only=True)
    sources: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Path | None = None
    resume: Path | None = None
    covered: int | None = None
    micro_batch: int = 0
    recompute: bool = False
    compile: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[Path | None, ...] = ()
    best: bool = False
    parents: tuple[Path | None, ...] = ()
    folder: Path | None = None
    log: Path | None = None


@dataclass
class Progress:
    """How far a job is. The thread that trains sets it; heartbeats carry it to the launcher, which
    ends a worker whose job stands still.

    Attributes:
        done: Steps and parts of evaluations so far; grows while the job gets on.
        long: Whether it does one long thing: its set-up, its first step or a checkpoint.
    """

    done: int = 0
    long: bool = True

    def advance(self, n: int = 1) -> None:
        """Count n more."""
        self.done += n

    @contextmanager
    def during(self, long: bool) -> Iterator[None]:
        """Set `long` for a while."""
        before, self.long = self.long, long
        try:
            yield
        finally:
            self.long = before


@dataclass(frozen=True)
class Context:
    """What a worker offers to the job that it trains.

    Attributes:
        device: Torch's name of the device, such as "cuda:1".
        emit: One function a run; takes the events that `ablate.journal` lists.
        stop: Asked between steps; once true, the job checkpoints and returns.
        device_lock: Held while the device is in use, where several workers share it.
        progress: Where the job says how far it is.
        fail: Ends all runs that have not ended, with a status and an error, and the process; for a
            thread that knows why the one that trains waits in vain.
    """

    device: str
    emit: Sequence[Emit]
    stop: Callable[[], bool] = lambda: False
    device_lock: AbstractContextManager[None] = field(default_factory=nullcontext)
    progress: Progress = field(default_factory=Progress)
    fail: Callable[[str, str], None] = lambda status, error: None

    @property
    def shared(self) -> bool:
        """Whether several workers share the device: only then does the worker have a lock of it."""
        return not isinstance(self.device_lock, nullcontext)


class Kind(Protocol):
    """One kind of run."""

    name: str
    numerics: int  # increased whenever the mathematics or a default changes; part of every key
    fields: Mapping[str, Field]
    uses_torch: bool  # whether a worker trains it with torch
    no_weights: str  # why its runs have no weights that ablate keeps; "" if they can have

    def check(self, fields: Mapping[str, Any]) -> Fields:
        """Resolve fields: fill in defaults, apply rules.

        Raises:
            AblateError: A field is unknown, has a wrong value, or contradicts another.
        """
        ...

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return the part of the fields that enters the key, including hashes of text and code."""
        ...

    def cost(self, fields: Fields) -> Cost:
        """Return what a run of these fields takes, in closed form or measured once."""
        ...

    def typed(self, run: Run) -> Any:
        """Return the configuration that the code of this kind reads, or None."""
        ...

    def parent(self, run: Run) -> Run | None:
        """Return the run whose weights a run starts from; None if it starts from none."""
        ...

    def pack_key(self, run: Run) -> str:
        """Return a text that is equal for runs that can train in one job."""
        ...

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return the finals, as (name, at), that a run of these fields must report."""
        ...

    def train(self, job: Job, context: Context) -> None:
        """Train a job and emit `start`, `metrics`, `final` and `end` of every run."""
        ...


_PATHS = {  # name → "module:class"
    "transformer": "ablate.kinds.transformer:Transformer",
    "finetune": "ablate.kinds.finetune:Finetune",
    "image": "ablate.kinds.image:Image",
    "command": "ablate.kinds.command:Command",
    "imported": "ablate.kinds.imported:Imported",
}


@functools.cache
def kind(name: str) -> Kind:
    """Return the kind of that name.

    Raises:
        AblateError: There is no such kind, or a field of it cannot be a column of the results.
    """
    if name not in _PATHS:
        raise unknown("kind of run", name, _PATHS)
    module, attribute = _PATHS[name].split(":")
    found: Kind = getattr(importlib.import_module(module), attribute)()
    for own in found.fields:
        check_name(own, found.fields)
    return found


@dataclass(frozen=True)
class Run:
    """One model to train.

    Attributes:
        kind: Name of the kind.
        fields: Resolved fields, as `Kind.check` returns them.
        seed: Seed of weights, batch order, masks and dropout, but for what the fields `SEEDS` say;
            different for every run of a cell.
        parent: Key of the run whose weights this one starts from; "" for none.
    """

    kind: str
    fields: Fields
    seed: int = 0
    parent: str = ""

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 in hexadecimal of kind, identity, seed and parent: equal runs have equal keys.

        What has its default is left out, so that the keys of earlier versions stay valid.
        """
        of = kind(self.kind)
        content = dict(of.identity(self.fields))
        for name in SEEDS:
            if content.get(name) == self.seed:
                del content[name]
        content |= {"seed": self.seed} if self.seed else {}
        content |= {"kind": self.kind} if self.kind != "transformer" else {}
        content |= {"parent": self.parent} if self.parent else {}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(f"{of.numerics}:{text}".encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.key)

    def with_(self, seed: int | None = None, **fields: Any) -> Run:
        """Return this run with another seed or other values of its fields, and the parent of these.

        Args:
            seed: The seed; None for that of this run.
            **fields: Resolved values; rules between fields are not applied again.
        """
        assert fields.keys() <= self.fields.keys(), fields
        changed = {**self.fields, **fields} if fields else self.fields
        return replace(self, fields=changed, seed=self.seed if seed is None else seed).of_parent()

    def of_parent(self) -> Run:
        """Return this run with the key of its parent, as its kind derives it from the fields."""
        parent = self.parent_run
        return replace(self, parent=parent.key) if parent else self

    @functools.cached_property
    def parent_run(self) -> Run | None:
        """The run whose weights this one starts from, where its kind derives it from the fields."""
        return kind(self.kind).parent(self)

    @property
    def cost(self) -> Cost:
        """What training it takes."""
        return kind(self.kind).cost(self.fields)

    @functools.cached_property
    def config(self) -> Any:
        """Its typed configuration, such as a `RunConfig`; None for a kind without one."""
        return kind(self.kind).typed(self)

    @functools.cached_property
    def pack_key(self) -> str:
        """A text that is equal for runs that can train in one job."""
        return kind(self.kind).pack_key(self)
