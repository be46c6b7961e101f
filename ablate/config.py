"""A resolved run: one frozen configuration, its canonical JSON and its key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic import Field as Limits
from pydantic.fields import FieldInfo

from ablate import code, metrics
from ablate.components import CATALOGUE, Component, Field
from ablate.components.catalogue import CROSSES
from ablate.errors import AblateError, unknown, written
from ablate.formats import LARGEST

NUMERICS = 1  # increased whenever the mathematics or a default changes: part of every run's key


def _canonical(value: object, info: ValidationInfo) -> str:
    assert info.field_name
    return CATALOGUE[info.field_name].canonical(value)


# a level of the factor that the field is named after
Choice = Annotated[str, BeforeValidator(_canonical)]


# in which runs of one job may differ: every member of a pack has its own value
SEED_FIELDS = ("seed", "init_seed", "data_seed")
MEMBER_FIELDS = (*SEED_FIELDS, "lr", "weight_decay", "mask_ratio")
# values that are loaded into a step that is built already: they change no module and no size
LOADED_FIELDS = (*MEMBER_FIELDS, "steps", "warmup", "grad_clip", "corpus", "corpus_hash", "split")

SHARES = "shares of [MASK], random and kept tokens must be ≥ 0 and sum to 1"


def are_shares(mix: tuple[float, ...]) -> bool:
    """Return whether these are shares as `SHARES` says."""
    return min(mix) >= 0 and abs(sum(mix) - 1) <= 1e-6


class RunConfig(BaseModel):
    """Everything that decides a run's numbers, with one seed.

    Each field has a row in `ablate.components.CATALOGUE`; own fields of the run's components, and
    of the metrics that are measured, are fields too. Fields that have no meaning with another's
    level (`Factor.needs`) are set back to their default, so that two ways of writing the same run
    are one run.

    Raises:
        AblateError: A field is unknown, has a wrong value, or contradicts another.
    """

    # own fields of components are extra fields; `_fill` refuses all others
    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    architecture: Choice = "transformer"
    topology: Choice = "serial"
    norm: Choice = "pre"
    norm_kind: Choice = "layernorm"
    norm_epsilon: float = Limits(1e-5, gt=0, le=1)
    n_layer: int = Limits(4, ge=1, le=1024)
    n_layer_encoder: int = Limits(0, ge=0, le=1024)  # 0: n_layer
    d_model: int = Limits(128, ge=1, le=65536)
    d_mlp: int = Limits(0, ge=0, le=1 << 24)  # 0: by the activation's rule, filled in on validation
    mlp: Choice = "dense"
    activation: Choice = "gelu"
    outer_activation: Choice = "none"
    bias: Choice = "all"
    init: Choice = "fan-in"
    dropout: float = Limits(0.0, ge=0, lt=1)

    mixer: Choice = "attention"
    rnn_cell: Choice = "gru"
    attention: Choice = "causal"  # by default causal for causal models, full for masked ones
    encoder_attention: Choice = "full"
    document_mask: Choice = "none"
    n_head: int = Limits(4, ge=1, le=4096)
    n_kv_head: int = Limits(0, ge=0, le=4096)  # 0: n_head
    d_head: int = Limits(0, ge=0, le=65536)  # 0: d_model / n_head
    head_combine: Choice = "concat"
    qkv: Choice = "linear"
    qk_norm: Choice = "none"
    attention_scale: Choice = "sqrt"
    score: Choice = "dot"

    position: Choice = "rotary"
    rope_theta: float = Limits(10000.0, gt=1, allow_inf_nan=False)
    rope_share: float = Limits(1.0, gt=0, le=1)
    n_ctx: int = Limits(256, ge=2, le=1 << 20)

    embedding: Choice = "lookup"
    class_token: Choice = "none"
    tie_embeddings: Choice = "untied"
    embed_norm: Choice = "none"
    mlm_head_transform: Choice = "none"
    n_vocab: int = Limits(256, ge=2)

    objective: Choice = "causal"
    mask_ratio: float = Limits(0.15, ge=0.05, le=0.95)
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    mask_kind: Choice = "token"
    mean_span: float = Limits(3.0, allow_inf_nan=False)
    corruption: Choice = "infill"
    z_loss: float = Limits(0.0, ge=0, allow_inf_nan=False)

    corpus: str = "austen"
    tokenizer: str = "byte"
    corpus_hash: str = ""
    code: tuple[str, ...] = ()  # what its levels from outside come from, as `ablate.code` labels it
    split: str = ""  # of the corpus, for readers; no part of the key
    tokenizer_hash: str = ""

    start: Choice = "random"
    corruption_tokens: Choice = "last"
    steps: int = Limits(1000, ge=0)  # 0: given weights are evaluated at once
    batch_tokens: int = Limits(8192, ge=1, le=1 << 32)
    optimiser: Choice = "adamw"
    lr: float = Limits(1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Limits(0.1, ge=0, allow_inf_nan=False)
    grad_clip: float = Limits(1.0, ge=0, allow_inf_nan=False)
    warmup: float = Limits(0.05, ge=0, le=1)
    schedule: Choice = "cosine"
    precision: Choice = "float32"
    method: Choice = "none"
    pooling: Choice = "mean"
    text_format: Choice = "plain"
    seed: int = Limits(0, ge=0, lt=1 << 31)
    init_seed: int | None = Limits(None, ge=0, lt=1 << 31)  # None: seed
    data_seed: int | None = Limits(None, ge=0, lt=1 << 31)  # None: seed

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Fill in what follows from other fields, and drop what has no meaning with them."""
        for name in fields:
            if name not in CATALOGUE:
                raise unknown("factor", name, CATALOGUE, every="ablate factors")
        filled = dict(fields)
        architecture = _canonical_level("architecture", filled)
        for (factor, its), other in CATALOGUE["architecture"][architecture].equals.items():
            if _canonical_level(factor, filled) == its:
                filled["architecture"] = other
                break
        found = implied(filled)
        filled |= found

        def level(name: str) -> str:
            return _canonical_level(name, filled)

        def has_meaning(name: str) -> bool:
            return _has_meaning(name, filled, found)

        if has_meaning("topology"):
            topology, init = (CATALOGUE[name][level(name)] for name in ("topology", "init"))
            if init.unscaled and not (topology.adds_attention or topology.adds_mlp):
                filled["init"] = init.unscaled  # there is no branch to scale
        # only now are all levels known, so that a displaced level leaves no field of its own behind
        filled = {name: value for name, value in filled.items() if has_meaning(name)}
        components = [row[level(row.name)] for row in CATALOGUE.values() if row.choice]
        components += [
            row[filled[row.name]]
            for row in CATALOGUE.values()
            if row.open and filled.get(row.name) in row.names
        ]
        for component in components:
            for name, default in component.defaults.items():
                filled.setdefault(name, default)
        # a resolved run says which code made it; other metrics do not concern it
        measured = metrics.with_fields(filled.get("code"))
        for part in (*components, *measured):
            for field in part.fields:
                filled[field.name] = own_value(field, filled.get(field.name, field.default))
        origins = tuple(sorted({label for one in (*components, *measured) for label in one.origin}))
        if filled.get("code", origins) not in (origins, list(origins)):
            raise AblateError(
                f"a run was made by {', '.join(filled['code'])}, and here is"
                f" {', '.join(origins) or 'no such code'}"
            )
        return filled | {"code": origins}

    @model_validator(mode="after")
    def _check(self) -> Self:
        put = lambda name, number: object.__setattr__(self, name, number)  # noqa: E731 (frozen)
        if not self.d_head:
            if self.d_model % self.n_head:
                raise AblateError(
                    f"n_head = {self.n_head} does not divide d_model = {self.d_model}; choose one"
                    f" of {_divisors(self.d_model)}, or give d_head"
                )
            put("d_head", self.d_model // self.n_head)
        if self.part("architecture").encodes and not self.n_layer_encoder:
            put("n_layer_encoder", self.n_layer)
        if not self.n_kv_head:
            put("n_kv_head", self.n_head)
        if self.n_head % self.n_kv_head:
            raise AblateError(
                f"n_kv_head = {self.n_kv_head} does not divide n_head = {self.n_head}; choose one"
                f" of {_divisors(self.n_head)}"
            )
        if not self.d_mlp:
            put("d_mlp", self.part("activation").d_mlp(self.d_model))
        for component in self.parts:
            component.check(self)
        if self.batch_tokens % self.n_ctx:
            raise AblateError(
                f"batch_tokens = {self.batch_tokens} is not a multiple of n_ctx = {self.n_ctx}"
            )
        if not are_shares(self.mask_mix):
            raise AblateError(f"mask_mix = {list(self.mask_mix)}: {SHARES}")
        return self

    def part(self, factor: str) -> Any:
        """Return the component that is this run's level of a factor."""
        return CATALOGUE[factor][getattr(self, factor)]

    @property
    def parts(self) -> Iterator[Component]:
        """The components of this run, one a factor with levels."""
        return (self.part(name) for name, row in CATALOGUE.items() if row.choice)

    @property
    def weights_seed(self) -> int:
        """Seed of the initial weights."""
        return self.seed if self.init_seed is None else self.init_seed

    @property
    def batches_seed(self) -> int:
        """Seed of batch order, masks and dropout."""
        return self.seed if self.data_seed is None else self.data_seed

    def free_of_shape(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `MEMBER_FIELDS` or `LOADED_FIELDS` that decide no shape of this run."""
        shapes = self.part("objective").shapes
        return tuple(name for name in names if name not in shapes)

    @property
    def batch_size(self) -> int:
        """Sequences per optimiser step."""
        return self.batch_tokens // self.n_ctx

    @property
    def longest_context(self) -> int | None:
        """Tokens beyond which the model is not defined; None where there are none."""
        limits = [one.longest_context(self) for one in self.parts]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def tokens(self) -> int:
        """Tokens a run trains on."""
        return self.steps * self.batch_tokens

    @property
    def identity(self) -> dict[str, Any]:
        """What enters the key: the fields that differ from their default, as JSON values, and
        revisions of its components.

        Text is known by its content hash: the name of a file does not change a run.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"split"})
        for name in self.model_extra or {}:
            if fields[name] == field_info(name).default:
                del fields[name]
        for name in ("corpus", "tokenizer"):
            if getattr(self, f"{name}_hash"):
                fields.pop(name, None)
        if fields.get("start_hash"):
            fields.pop("start_from", None)
        if self.code:
            fields["code"] = code.identity(self.code)
        revisions = {one.factor: one.revision(self) for one in self.parts}
        if any(revisions.values()):
            fields["revisions"] = {factor: n for factor, n in revisions.items() if n}
        return fields


def implied(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the levels that other levels imply, whatever the fields say of their factors."""
    filled, found = dict(fields), dict[str, str]()
    while more := {
        factor: level
        for row in CATALOGUE.values()
        if row.choice and _has_meaning(row.name, filled, found)
        for factor, level in row[_canonical_level(row.name, filled)].implies.items()
        if factor not in found
    }:
        found |= more
        filled |= more
    return found


def _has_meaning(name: str, fields: Mapping[str, Any], found: Collection[str]) -> bool:
    if name == "head_combine" and fields.get("n_head", field_info("n_head").default) == 1:
        return False  # a single head's sum is its concatenation
    no_heads = _canonical_level("mixer", fields) == "rnn"
    if name in ("n_head", "n_kv_head", "d_head") and no_heads:
        return _canonical_level("architecture", fields) in CROSSES
    return meaningful(name, fields, found)


def meaningful(
    name: str, fields: Mapping[str, Any], found: Collection[str] = (), seen: Sequence[str] = ()
) -> bool:
    """Return whether a field has an effect with the other fields (`Factor.needs`).

    Args:
        name: The field, or another word of a study file, which has an effect.
        fields: Those that are set; all others have their defaults.
        found: Factors whose level follows from another level: those of `implied`.
        seen: Fields that are asked about already: two parts can ask for each other's factor.
    """
    if name in found or name not in CATALOGUE or not CATALOGUE[name].needs:
        return True
    return any(
        other not in seen
        and _level(other, fields) in named
        and meaningful(other, fields, found, (*seen, name))
        for other, named in CATALOGUE[name].needs.items()
    )


def _canonical_level(name: str, fields: Mapping[str, Any]) -> str:
    value, row = fields.get(name, field_info(name).default), CATALOGUE[name]
    return row.canonical(value) if row.choice else str(value)


def _level(name: str, fields: Mapping[str, Any]) -> str:
    """Return the level of a factor; one that is unknown, as of a deleted file, by its own name."""
    try:
        return _canonical_level(name, fields)
    except AblateError:
        return str(fields[name])


def field_info(name: str) -> FieldInfo:
    """Return type, default and bounds of a field, a component's own one included."""
    own = CATALOGUE[name].field
    if own is None:
        return RunConfig.model_fields[name]
    return FieldInfo(annotation=own.type, default=own.default)


def own_value(field: Field, value: object) -> Any:
    """Return the value of a part's own field, checked by its type.

    Raises:
        AblateError: It is of another type, or a whole number that the database does not hold.
    """
    try:
        own: Any = TypeAdapter(field.type).validate_python(value)
    except ValidationError as error:
        raise AblateError(
            f"{field.name} = {written(value):.80}: {error.errors()[0]['msg'].lower()}"
        ) from None
    for one in own if isinstance(own, tuple) else [own]:
        if isinstance(one, int) and abs(one) > LARGEST:
            raise AblateError(f"{field.name} = {written(value):.80}: at most {LARGEST} in size")
    return own


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def resolve(fields: dict[str, Any]) -> RunConfig:
    """Return `RunConfig(**fields)`.

    Raises:
        AblateError: One line with key, value and what it should be.
    """
    try:
        return RunConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "configuration"
        raise AblateError(
            f"{key} = {written(first['input']):.80}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
