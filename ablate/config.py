"""A resolved run: one frozen configuration, its canonical JSON and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from ablate.errors import AblateError, unknown, written
from ablate.factors import CATALOGUE

NUMERICS = 1  # raised whenever the mathematics or a default changes: part of every run's key


def _canonical(value: object, info: ValidationInfo) -> str:
    assert info.field_name
    return CATALOGUE[info.field_name].canonical(value)


Choice = Annotated[
    str, BeforeValidator(_canonical)
]  # a level of the factor that the field is named after


_SHARES = "shares of [MASK], random and kept tokens must be ≥ 0 and sum to 1"


def _are_shares(mix: tuple[float, ...]) -> bool:
    return min(mix) >= 0 and abs(sum(mix) - 1) <= 1e-6


class RunConfig(BaseModel):
    """Everything that decides a run's numbers, with one seed. Each field has a row in
    `ablate.factors.CATALOGUE`.

    Fields that have no meaning beside another's level (`Factor.needs`) are set back to their
    default, so that two ways of writing the same run are one run. Raises `AblateError` where fields
    contradict each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    topology: Choice = "serial"
    norm: Choice = "pre"
    norm_kind: Choice = "layernorm"
    n_layer: int = Field(4, ge=1, le=1024)
    d_model: int = Field(128, ge=1, le=65536)
    d_mlp: int = Field(0, ge=0, le=1 << 24)  # 0: by the activation's rule, filled in on validation
    activation: Choice = "gelu"
    outer_activation: Choice = "none"
    bias: Choice = "all"
    init: Choice = "fan-in"
    dropout: float = Field(0.0, ge=0, lt=1)

    attention: Choice = "causal"  # by default causal for causal models, full for masked ones
    n_head: int = Field(4, ge=1, le=4096)
    n_kv_head: int = Field(0, ge=0, le=4096)  # 0: n_head
    d_head: int = Field(0, ge=0, le=65536)  # 0: d_model / n_head
    head_combine: Choice = "concat"
    qkv: Choice = "linear"
    qk_norm: Choice = "none"
    attention_scale: Choice = "sqrt"
    score: Choice = "dot"

    position: Choice = "rotary"
    n_ctx: int = Field(256, ge=2, le=1 << 20)

    tie_embeddings: Choice = "untied"
    embed_norm: Choice = "none"
    mlm_head_transform: Choice = "none"
    n_vocab: int = Field(256, ge=2)

    objective: Choice = "causal"
    mask_ratio: float = Field(0.15, ge=0.05, le=0.95)
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    mask_kind: Choice = "token"
    z_loss: float = Field(0.0, ge=0, allow_inf_nan=False)

    corpus: str = "austen"
    tokenizer: str = "byte"
    corpus_hash: str = ""
    tokenizer_hash: str = ""

    steps: int = Field(1000, ge=1)
    batch_tokens: int = Field(8192, ge=1, le=1 << 32)
    lr: float = Field(1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(0.1, ge=0, allow_inf_nan=False)
    grad_clip: float = Field(1.0, ge=0, allow_inf_nan=False)
    warmup: float = Field(0.05, ge=0, le=1)
    schedule: Choice = "cosine"
    precision: Choice = "float32"
    seed: int = Field(0, ge=0, lt=1 << 31)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Follow the defaults that depend on other fields and drop what has no meaning beside
        them.
        """
        for name in given:
            if name not in CATALOGUE:
                raise unknown("factor", name, CATALOGUE)
        filled = dict(given)

        def value(name: str) -> Any:
            raw = filled.get(name, cls.model_fields[name].default)
            return CATALOGUE[name].canonical(raw) if CATALOGUE[name].levels else raw

        for name, row in CATALOGUE.items():
            if row.needs and name in filled and value(row.needs[0]) not in row.needs[1]:
                del filled[name]
        if "none" in (value("norm"), value("norm_kind")):  # one model, whichever of the two says so
            filled["norm"] = filled["norm_kind"] = "none"
        if value("n_head") == 1:  # whose sum is its concatenation
            filled.pop("head_combine", None)
        if "attention" not in filled:
            filled["attention"] = "full" if value("objective") == "masked" else "causal"
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        put = lambda name, number: object.__setattr__(self, name, number)  # noqa: E731 (frozen to everyone else)
        if not self.d_head:
            if self.d_model % self.n_head:
                raise AblateError(
                    f"n_head = {self.n_head} does not divide d_model = {self.d_model}; choose one"
                    f" of {_divisors(self.d_model)}, or give d_head"
                )
            put("d_head", self.d_model // self.n_head)
        if not self.n_kv_head:
            put("n_kv_head", self.n_head)
        if self.n_head % self.n_kv_head:
            raise AblateError(
                f"n_kv_head = {self.n_kv_head} does not divide n_head = {self.n_head}; choose one"
                f" of {_divisors(self.n_head)}"
            )
        if not self.d_mlp:
            put(
                "d_mlp",
                round(8 * self.d_model / 3) if self.activation == "swiglu" else 4 * self.d_model,
            )
        if self.position == "rotary" and self.d_head % 2:
            raise AblateError(
                f"position = 'rotary' turns pairs of channels: d_head = {self.d_head} is odd; make"
                " it even"
            )
        if self.position == "sinusoidal" and self.d_model % 2:
            raise AblateError(
                f"position = 'sinusoidal' fills pairs of channels: d_model = {self.d_model} is odd;"
                " make it even"
            )
        if self.objective == "causal" and self.attention == "full":
            raise AblateError(
                "attention = 'full' lets a causal model see what it predicts; use attention ="
                " 'causal' or objective = 'masked'"
            )
        if self.position == "rotary" and self.score == "additive":
            raise AblateError(
                "score = 'additive' adds queries and keys, but rotary acts through their product;"
                " choose another position"
            )
        if self.batch_tokens % self.n_ctx:
            raise AblateError(
                f"batch_tokens = {self.batch_tokens} is not a multiple of n_ctx = {self.n_ctx}"
            )
        if not _are_shares(self.mask_mix):
            raise AblateError(f"mask_mix = {list(self.mask_mix)}: {_SHARES}")
        return self

    @property
    def batch_size(self) -> int:
        """Sequences an optimiser step."""
        return self.batch_tokens // self.n_ctx

    @property
    def longest_context(self) -> int | None:
        """Tokens beyond which the position encoding is not defined; None where there are none."""
        return self.n_ctx if self.position == "learned" else None

    @property
    def tokens(self) -> int:
        """Tokens a run trains on."""
        return self.steps * self.batch_tokens

    def canonical_json(self, exclude: Collection[str] = ()) -> str:
        """The fields that differ from their default, sorted, without spaces: equal runs give equal
        text.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=set(exclude))
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @property
    def key(self) -> str:
        """SHA-256, in hexadecimal, of the canonical JSON and the `NUMERICS` number: the run's
        identity.

        Text is known by its content hash: what a file is called makes no other run.
        """
        names = [name for name in ("corpus", "tokenizer") if getattr(self, f"{name}_hash")]
        return hashlib.sha256(
            f"{NUMERICS}:{self.canonical_json(exclude=names)}".encode()
        ).hexdigest()


# tokens of a passage that a linear probe tells the class of; n_ctx, where that is less
PASSAGE = 128
# tokens that held-out windows tile together: arms whose n_ctx divides it score the same tokens
HELD_OUT_BLOCK = 1024


def n_scored(n_ctx: int) -> int:
    """Tokens scored of a context of whatever length: the last quarter of n_ctx, so that three
    quarters stand before them.
    """
    return max(1, n_ctx // 4)


class Probe(BaseModel):
    """A grid of masking settings under which masked models are compared: same held-out tokens
    scored in every arm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ratio: tuple[float, ...] = Field(
        (0.15,), max_length=100, description="shares of tokens that are hidden"
    )
    mix: tuple[float, float, float] = Field(
        (1.0, 0.0, 0.0), description="as `mask_mix`: shown as [MASK], as a random token, as is"
    )
    kind: Annotated[str, BeforeValidator(CATALOGUE["mask_kind"].canonical)] = Field(
        "token", description="as `mask_kind`"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _are_shares(self.mix):
            raise ValueError(f"mix = {list(self.mix)}: {_SHARES}")
        for ratio in self.ratio:
            if float(f"{ratio:g}") != ratio:
                raise ValueError(
                    f"ratio {ratio!r}: a metric names a ratio by six digits, such as"
                    f" probe_loss@{ratio:g}"
                )
        return self


class Evaluation(BaseModel):
    """What is measured on held-out text: a study's `[eval]`. No part of a run's key, for it changes
    no weight.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: int = Field(
        5,
        ge=1,
        le=10_000,
        description="held-out evaluations over a run, evenly spaced, the last at its end",
    )
    tokens: int = Field(65536, ge=1, le=10**12, description="held-out tokens read by each")
    lengths: tuple[float, ...] = Field(
        (1.0,),
        max_length=64,
        description="contexts, in units of n_ctx, at which the same tokens are scored",
    )
    probe: Probe = Field(
        Probe(),
        description="masking under which masked models are compared, the same for every arm",
    )
    downstream: tuple[str, ...] = Field(
        (), description="linear probes on frozen features, by the name of their metric"
    )

    def contexts(self, config: RunConfig) -> dict[float, int]:
        """Length factor → tokens of context, as far as the position encoding is defined; empty
        where only n_ctx is asked for.
        """
        lengths = (
            {}
            if self.lengths == (1.0,)
            else {factor: round(factor * config.n_ctx) for factor in self.lengths}
        )
        limit = config.longest_context
        return {
            factor: length for factor, length in lengths.items() if limit is None or length <= limit
        }

    def passes(self, config: RunConfig) -> float:
        """How often a run's evaluations read the held-out tokens, in all; linear probes are left
        out.
        """
        probes = 1 + len(self.probe.ratio) if config.objective == "masked" else 0
        return self.points + sum(self.contexts(config)) + probes

    def finals(self, config: RunConfig) -> list[tuple[str, float]]:
        """The finals, as (name, at), that are asked of a run."""
        names = [("loss", 0.0), ("bits_per_byte", 0.0), ("accuracy", 0.0)]
        names += [("loss_at_length", factor) for factor in self.contexts(config)]
        if config.objective == "masked":
            names += [
                (name, ratio)
                for name in ("probe_loss", "probe_accuracy")
                for ratio in self.probe.ratio
            ]
            names.append(("pseudo_perplexity", 0.0))
        return names + [(name, 0.0) for name in self.downstream]


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def resolve(fields: dict[str, Any]) -> RunConfig:
    """`RunConfig(**fields)` with pydantic's complaint turned into one line: key, value, and what it
    should be.
    """
    try:
        return RunConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "configuration"
        raise AblateError(
            f"{key} = {written(first['input']):.80}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None
