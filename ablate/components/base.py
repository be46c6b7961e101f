"""What a component is: one level of one factor, with its rules, its own fields and its sizes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, get_origin

from ablate.errors import AblateError, assigned

TAKEN = (  # columns that every table of results has: no names for factors
    "study",
    "cell",
    "stratum",
    "role",
    "run",
    "key",
    "status",
    "diverged_at",
    "seed",
    "n_params",
    "n_params_body",
    "metric",
    "loss",
    "bits_per_byte",
    "accuracy",
    "device_seconds",
    "attempts",
    "family",
    "factor",
    "level",
    "baseline",
    "value",
    "series",
    "step",
)
# names that no field of a run may have: columns of the results, and parts of its key beside fields
RESERVED = frozenset((*TAKEN, "tokens", "flops", "run_id", "kind", "parent"))

Config: TypeAlias = Any  # an `ablate.config.RunConfig`, which is made from components


@dataclass(frozen=True)
class Field:
    """One field of a run: a hyper-parameter that a study file may set.

    Attributes:
        name: Key in a study file and in a run's fields.
        type: int, float, str, bool, or a tuple of these.
        default: Value if a study does not set it.
        meaning: One sentence.
        source: Paper or code base.
    """

    name: str
    type: type
    default: Any
    meaning: str
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.type, str):
            raise AblateError(
                f"field {self.name!r}: type = {self.type!r}: give the type itself, such as float"
            )
        of_several = tuple in (self.type, get_origin(self.type))
        if self.type not in (int, float, str, bool, type(None)) and not of_several:
            raise AblateError(
                f"field {self.name!r}: type = {self.type!r:.80}: give int, float, str, bool, or a"
                " tuple of these, such as tuple[int, ...]"
            )
        if of_several and not isinstance(self.default, tuple):
            raise AblateError(f"field {self.name!r}: default = {self.default!r:.80} is no tuple")
        if self.type in (int, float, str):
            fits = isinstance(self.default, (float, int) if self.type is float else self.type)
            if not fits or isinstance(self.default, bool):
                raise AblateError(
                    f"field {self.name!r}: default = {self.default!r:.80} is no"
                    f" {self.type.__name__}"
                )


def check_name(field: str, existing: Iterable[str] = ()) -> None:
    """Refuse a field that cannot be a column of the results.

    Names of columns do not differ by letter case.

    Args:
        field: Name of the field.
        existing: Names of the other fields; one that equals `field` is another run's same field.

    Raises:
        AblateError: What the name clashes with, and what to do.
    """
    if not field.isidentifier():
        raise AblateError(f"field {field!r} of a run: a name is letters, digits and underscores")
    if field.lower() in RESERVED:
        raise AblateError(
            f"field {field!r} of a run: results have a column {field.lower()!r}; rename the field"
        )
    for other in existing:
        if other != field and other.lower() == field.lower():
            raise AblateError(
                f"field {field!r} of a run differs from field {other!r} only in letter case;"
                " rename one of them"
            )


@dataclass(frozen=True)
class Counts:
    """Sizes of a part of a model, for one member of a pack. They can be added and multiplied by n.

    What eager PyTorch keeps for the backward pass is counted per token, in two precisions and in
    bytes; it is an estimate, and a compiled step keeps less.

    Attributes:
        params: Numbers that are learnt.
        flops: Per token of a forward pass over n_ctx tokens, in matrix products alone; a
            multiplication with its addition is two.
        products: Numbers kept in the precision of matrix products.
        streams: Numbers kept in the precision of the residual stream.
        bytes: Further bytes kept.
    """

    params: int = 0
    flops: int = 0
    products: int = 0
    streams: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self._values, other._values, strict=True)))

    def __mul__(self, n: int) -> Counts:
        return Counts(*(n * value for value in self._values))

    def shared(self, n: int) -> Counts:
        """Return the counts of the same weights applied to n vectors of a token.

        Args:
            n: Vectors; parameters are counted once, all else n times.
        """
        return Counts(self.params, *(n * value for value in self._values[1:]))

    @property
    def _values(self) -> tuple[int, ...]:
        return (self.params, self.flops, self.products, self.streams, self.bytes)


@dataclass(frozen=True)
class Parts:
    """Sizes of a model by its parts: one block, the rest of the body, embeddings and head.

    Attributes:
        counted: Whether FLOPs and memory are known, too.
        divided: Whether it is known what the body is.
        tokens: How many tokens the counts are for, besides parameters.
    """

    block: Counts
    body: Counts
    rest: Counts
    counted: bool = True
    divided: bool = True
    tokens: int = 1


def linear(n_in: int, n_out: int, bias: bool) -> Counts:
    """Return parameters and FLOPs of a linear map."""
    return Counts(params=n_in * n_out + bias * n_out, flops=2 * n_in * n_out)


@dataclass(frozen=True)
class Component:
    """One level of a factor. `ablate.level` makes one of a class and adds it to the catalogue.

    A subclass says what the level needs and decides, as class attributes and methods that import
    no torch when they are defined. Methods get the run's resolved `RunConfig`.

    Attributes:
        factor: Name of the factor.
        name: Name of the level.
        meaning: What it does, in one line.
        source: Paper, equation or code base.
        aliases: Other values of a study file that mean this level.
        origin: Labels of the code that it comes from, where that is not ablate, and then of what
            that imports: see `ablate.code`.
    """

    factor: str
    name: str
    meaning: str
    source: str = ""
    aliases: tuple[object, ...] = ()
    origin: tuple[str, ...] = ()

    factors: ClassVar[tuple[str, ...]] = ()  # whose levels a subclass can be
    # what a level has to say, where it names no module: one of these methods
    hooks: ClassVar[tuple[str, ...]] = ()
    # Of a base class, for `ablate.components.plain`: "package.module:Class" of what runs plain
    # modules, the class that these are subclasses of, the methods of which they have one, and the
    # method that a plain function becomes.
    adapter: ClassVar[str] = ""
    plain_class: ClassVar[tuple[str, str]] = ("torch.nn.modules.module", "Module")
    plain_hooks: ClassVar[tuple[str, ...]] = ("forward",)
    solo: ClassVar[str] = ""  # why runs with a plain level of it always train one at a time
    function_hook: ClassVar[str] = ""
    called_with: ClassVar[tuple[str, ...]] = ()  # what a plain function is called with, by position
    makes: ClassVar[bool] = False  # whether a plain function makes the module, and is not it
    # whether what makes it is given all fields of a run, and not its own alone
    configured: ClassVar[bool] = True
    plain: ClassVar[Any] = None  # a class or function that knows nothing of packs
    # whether a plain module that sees all tokens of a sequence takes more of them than n_ctx
    any_length: ClassVar[bool] = False
    compiles: ClassVar[bool] = True  # whether torch compiles its module
    module: ClassVar[str] = ""  # "package.module:Class" of the torch module, "" for none
    fields: ClassVar[tuple[Field, ...]] = ()  # hyper-parameters of its own
    # fields of a run that a plain constructor takes by name, or that the plain module reads of the
    # `config` that it takes: they have a meaning for this level
    asks: ClassVar[Set[str]] = frozenset()
    implies: ClassVar[Mapping[str, str]] = {}  # factor → level, which a study cannot change
    defaults: ClassVar[Mapping[str, Any]] = {}  # factor → level, if a study does not set it

    @classmethod
    def of_plain(cls, names: set[str]) -> dict[str, Any]:
        """Return class attributes that follow from what a plain module of this base defines."""
        return {}

    def called(self, config: Config) -> str:
        """Return the level as errors name it, with the values that the run gives its own fields.

        Args:
            config: The run.
        """
        values = {field.name: getattr(config, field.name) for field in self.fields}
        return ", ".join([f"{self.factor} = {self.name!r}", *assigned(values)])

    def check(self, config: Config) -> None:
        """Raise an error for anything that this level cannot be combined with.

        Args:
            config: The run.

        Raises:
            AblateError: What contradicts what, and what to do instead.
        """

    def revision(self, config: Config) -> int:
        """Return how often the level's mathematics has changed for such a run.

        It is part of the run's key where it is not 0, so that a correction gives new keys to the
        runs that it concerns, and to no others.

        Args:
            config: The run.
        """
        return 0

    def sizes(self, config: Config, width: int) -> Counts | None:
        """Return the sizes of the level's module, built with the same `width`.

        None means that the component does not know: the whole model is then built once on torch's
        meta device and counted. By default a level without a module has no sizes, and one with a
        module does not know them.

        Args:
            config: The run.
            width: As in `build`.
        """
        return None if self.module else Counts()

    def longest_context(self, config: Config) -> int | None:
        """Return the number of tokens beyond which it is not defined; None without a limit.

        Args:
            config: The run.
        """
        return None

    def load(self) -> Any:
        """Return the class named by `module`. Imports torch.

        Raises:
            AblateError: There is no such module or class.
        """
        assert self.module, f"{self.factor} level {self.name!r} names no class"
        module, _, name = self.module.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise AblateError(
                f"{self.factor} level {self.name!r}: module = {self.module!r}: {error}"
            ) from error

    def build(self, config: Config, pack: int, width: int) -> Any:
        """Return the torch module for a pack of runs.

        Args:
            config: The run, or what the runs of a pack have in common.
            pack: Number of runs, the leading axis of every parameter.
            width: Of the vectors that the module acts on or makes; each factor says which.
        """
        made = self.load()
        of_plain = () if self.plain is None else (self,)
        return made(*of_plain, config, pack, width)
