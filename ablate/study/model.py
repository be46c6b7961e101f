"""What a study file states, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ablate.code import Code
from ablate.components import CATALOGUE
from ablate.components.presets import PRESET, PRESETS
from ablate.evaluation import Evaluation
from ablate.text.options import DEFAULT, Reading

OWN = ("command", "imported")  # kinds of runs that are not of ablate's own training
Fields = dict[str, Any]  # field of a run's configuration, or a budget → value
Keep = Literal["none", "final", "best"]  # which weights of a run are kept
DevicesPerRun = int | Literal["auto"]  # "auto": as many as end the study first
MOST_DEVICES = 8  # of one run; they are on one host
WIDEST = 4  # most steps that a search may go beyond each end of the ladder of [tune]
TUNE_KEYS = ("points", "seeds", "per", "metric")  # of [tune], besides the field that is found


def tuned(field: str) -> str:
    """Return what readers call a field that [tune] finds."""
    return "learning rate" if field == "lr" else field


def tuned_field(settings: Mapping[str, Any]) -> str:
    """Return the field that the [tune] of a study's tables finds; "lr" where there is none."""
    table = settings.get("tune")
    keys = table if isinstance(table, dict) else {}
    return next((key for key in keys if key not in TUNE_KEYS), "lr")


def resource_fields(fit: Mapping[str, Any]) -> dict[str, str]:
    """Return resource → the field of a script that holds it, of a study's table [fit]."""
    return {name: str(fit[name]) for name in ("n", "d") if fit.get(name)}


def kind_of(settings: Mapping[str, Any]) -> str:
    """Return the kind of the runs of a study with these tables, see `ablate.kinds`."""
    for name in ("command", "imported", "finetune"):
        if isinstance(settings.get(name), dict):
            return name
    base, factors = settings.get("base", {}), settings.get("factors", {})
    return "image" if reads_images(base, factors) else "transformer"


def reads_images(base: Mapping[str, Any], factors: Mapping[str, Any]) -> bool:
    """Return whether a cell of a study with these tables reads images.

    Args:
        base: [base].
        factors: [factors], as a file writes them or as a `Study` has them.
    """
    objectives = CATALOGUE["objective"]
    tables = [base]
    for name, levels in factors.items():
        values = levels.values() if isinstance(levels, dict) else levels
        tables += [one if isinstance(one, dict) else {name: one} for one in values]
    named = [table["objective"] for table in tables if "objective" in table]
    of = [PRESETS.get(str(table[PRESET])) for table in tables if PRESET in table]
    named += [one.fields["objective"] for one in of if one]
    return any(name in objectives.names and objectives[name].images for name in named)


@dataclass(frozen=True)
class Match:
    """[match]: what every cell of a stratum shares with the baseline, and what is solved for it."""

    quantity: str  # "body" | "total": parameters; "flops"
    by: str  # "d_mlp" | "steps"


@dataclass(frozen=True)
class Tune:
    """[tune]: a number of each group of cells, such as the learning rate, found before comparing.

    It is found on seeds that are not compared. A group's number is found on its first cell and
    shared by its other cells.
    """

    low: float
    high: float
    points: int  # rates from low to high, evenly spaced on a log scale
    seeds: int  # runs at each rate
    # factors whose levels make a group: all of them for "cell", none for "study"
    per: tuple[str, ...]
    field: str = "lr"  # what is found
    whole: bool = False  # whether the field is a whole number
    down: int = WIDEST  # steps below `low` that a search may go
    up: int = WIDEST  # steps above `high`
    metric: str = "loss"  # what decides: the study's metric where the file names none
    goal: str = "min"  # of `metric`, "min" | "max"

    def rate(self, rung: float) -> float:
        """Return the learning rate of a rung of the ladder, to three digits, or a whole number.

        Args:
            rung: 0 for the lowest rate, points − 1 for the highest; halves lie between two rungs,
                numbers below 0 and from `points` on beyond the ends.
        """
        exact = self.low * (self.high / self.low) ** (rung / (self.points - 1))
        return max(1, round(exact)) if self.whole else float(f"{exact:.3g}")

    def value(self, stored: float) -> float:
        """Return a stored rate as the value of a run: an int if rates are whole numbers."""
        return round(stored) if self.whole else stored

    @property
    def ladder(self) -> tuple[float, ...]:
        """The learning rates that every group begins with."""
        return tuple(map(self.rate, range(self.points)))

    @property
    def what(self) -> str:
        """What is found, in words."""
        return tuned(self.field)


@dataclass(frozen=True)
class TwoStage:
    """seeds = { pilot, resolution, max }: as many seeds as the pilot requires (Stein 1945)."""

    # half the width that the 95% interval of an effect is to have, in the metric's unit
    resolution: float
    most: int  # seeds of a cell


@dataclass(frozen=True)
class Crossed:
    """seeds = { init, data }: each seed of the initialisation with each seed of the data order."""

    init: int  # seeds 0, 1, … of the initial weights
    data: int  # seeds 0, 1, … of batch order, masks and dropout

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of a cell's runs: one number for each pair, see `crossed_seed`."""
        return tuple(
            crossed_seed(init, data) for init, data in product(range(self.init), range(self.data))
        )


MOST_CROSSED = 1000  # seeds of either, so that `crossed_seed` has three digits for each


def crossed_seed(init: int, data: int) -> int:
    """Return the seed of the run with these seeds of initialisation and of data order.

    Unique among all pairs: the number itself where both are equal, as in a run whose seed is not
    split; 1003005 for 3 and 5.
    """
    return init if init == data else MOST_CROSSED**2 + MOST_CROSSED * init + data


def split_seed(seed: int) -> tuple[int, int]:
    """Return the seeds of initialisation and of data order behind a `crossed_seed`."""
    if seed < MOST_CROSSED**2:
        return seed, seed
    return seed // MOST_CROSSED - MOST_CROSSED, seed % MOST_CROSSED


@dataclass(frozen=True)
class Fit:
    """[fit]: the scaling curves that the report fits."""

    # a factor: one curve for each of its levels; "" for all factors except size and budgets
    group: str = ""
    # the runs that check the fit, a key of `ablate.scaling.held_out.HELD_OUT`; "" for none
    hold_out: str = ""
    predict: tuple[str, ...] = ()  # where losses are predicted, such as "N=3.3e9,D=5e10"
    n: str = ""  # the field of a script that holds its parameters, "" for none
    d: str = ""  # the field of a script that holds its tokens, "" for none

    @property
    def fields(self) -> dict[str, str]:
        """Resource, "n" or "d" → the field of a script that holds it."""
        return resource_fields(vars(self))


@dataclass(frozen=True)
class Reporting:
    """[report]: how the report tests."""

    delta: float | None = None  # effects within ±delta do not matter, in the metric's unit
    correction: str = "family"  # Holm's correction covers a family, or all of the "study"
    threshold: float | None = None  # that the mean of each cell is tested against
    successive: tuple[str, ...] = ()  # factors whose levels are each compared with the one before


@dataclass(frozen=True)
class Command:
    """[command]: a training script of the user's own.

    Attributes:
        words: Its command line, with placeholders.
        folder: Where it runs.
        code: What belongs to a run's identity; None for the default.
        gpus: GPUs of a run; None for one if there is any.
        cpus: Cores of a run without a GPU.
        metrics: Files, or globs, in the run's folder that hold numbers.
        patterns: Regular expressions for lines that it prints.
        limit: Seconds that a run may take, None for any number.
    """

    words: tuple[str, ...]
    folder: Path
    code: tuple[str, ...] | None
    gpus: float | None
    cpus: int
    metrics: tuple[str, ...]
    patterns: tuple[str, ...]
    limit: float | None


@dataclass(frozen=True)
class Slurm:
    """[slurm]: what the jobs of a study ask of Slurm; no part of a run's key."""

    max_jobs: int = 8  # most Slurm jobs at a time
    memory: int = 16 << 30  # bytes of a job's device, by which packs are sized
    options: Mapping[str, str | int] = field(default_factory=dict)  # of sbatch; True: no value


@dataclass(frozen=True)
class Ray:
    """[ray]: what the workers of a study ask of a Ray cluster; no part of a run's key."""

    address: str = "auto"  # or HOST:PORT
    num_gpus: float | None = None  # of a worker; None: as many as a run trains on
    num_cpus: int | None = None  # of a worker
    max_workers: int | None = None  # at a time; None: as many as nodes have room for


@dataclass(frozen=True)
class Study:
    """One question, as its file states it.

    Factors keep the file's order; a factor's first level is its baseline, in every design.
    """

    name: str
    question: str
    metric: str  # a name of `ablate.metrics.METRICS`, with "@" and a number where it takes one
    goal: str  # "min" | "max"
    design: str  # a name of `ablate.study.design.DESIGNS`
    within: tuple[str, ...]  # factors whose levels form strata
    seeds: tuple[int, ...]  # of every cell; those of the pilot, where there are two stages
    base: Fields
    factors: dict[str, dict[str, Fields]]  # factor → level's label → the fields it sets
    interactions: tuple[tuple[str, ...], ...] = ()  # groups of factors also varied together
    exclude: tuple[dict[str, str], ...] = ()  # factor → level's label
    max_epochs: float | None = None  # passes over the training text that no run may exceed
    match: Match | None = None
    tune: Tune | None = None
    two_stage: TwoStage | None = None
    crossed: Crossed | None = None
    fit: Fit | None = None
    reporting: Reporting = field(default_factory=Reporting)
    evaluation: Evaluation = field(default_factory=Evaluation)
    use: tuple[Code, ...] = ()  # what its levels from outside come from
    reading: Reading = DEFAULT  # [data]: how the files of a corpus are read
    command: Command | None = None  # [command]: its runs are those of a script
    keep: Keep = "none"  # which weights of compared runs are kept; no part of a run's key
    devices_per_run: DevicesPerRun = 1  # on how many one run trains; no part of a run's key
    slurm: Slurm = field(default_factory=Slurm)
    ray: Ray = field(default_factory=Ray)
    finetunes: bool = False  # [finetune]: its runs are fine-tuned on a task
    starts: bool = False  # [start]: its runs start from the weights of a trained model
    imported: bool = False  # [imported]: its runs were made elsewhere, and cannot be trained
    path: Path = Path("study.toml")  # the file; relative paths in it start from its folder
    toml: str = ""  # the file's text

    @property
    def kind(self) -> str:
        """The kind of its runs, see `ablate.kinds`."""
        if self.imported or self.command:
            return "imported" if self.imported else "command"
        if self.finetunes:
            return "finetune"
        return "image" if reads_images(self.base, self.factors) else "transformer"

    @property
    def own(self) -> bool:
        """Whether its runs are of a script or imported, and not of ablate's own training."""
        return self.kind in OWN

    @property
    def reported(self) -> str:
        """The name under which runs report the metric, without the prefix "best "."""
        return self.metric.removeprefix("best ") if self.own else self.metric

    def seed_fields(self, seed: int) -> Fields:
        """Return the fields of a run that its seed sets: none unless seeds are crossed."""
        if not self.crossed:
            return {}
        init, data = split_seed(seed)
        return {} if init == data else {"init_seed": init, "data_seed": data}
