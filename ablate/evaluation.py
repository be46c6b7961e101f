"""What is measured on held-out text: a study's `[eval]`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ablate.components import CATALOGUE
from ablate.config import SHARES, RunConfig, are_shares

# tokens of a passage for linear probes; n_ctx, where that is less
PASSAGE = 128
# tokens of a block of held-out windows: arms whose n_ctx divides it score the same tokens
HELD_OUT_BLOCK = 1024
# widest beam search
WIDEST_BEAM = 64
# mean length of a span of hidden tokens under which arms are compared, as in T5 and BART
PROBE_SPAN = 3.0
# the linear probe on a study's own texts, and the share of its commonest class
LABELLED, CHANCE = "label_accuracy", "label_chance"
# finals of a fine-tuned run → whether they are of the model that it starts from
TASK_FINALS = {
    "task_loss": False,
    "task_accuracy": False,
    "task_f1": False,
    "task_chance": False,
    "pretraining_loss": True,
    "forgetting": True,
}
# metric on the texts that are tested → the same on those of a validation part, where there is one
VALIDATION = {
    "task_loss": "validation_loss",
    "task_accuracy": "validation_accuracy",
    "task_f1": "validation_f1",
}
FILLED_IN = ("probe_csv_hash", "own")  # what no study file sets
# tokens of the copy probe for each held-out token that an evaluation reads
COPY_SHARE = 1 / 8
# time of an evaluated token, as a share of a training token's: no backward pass
FORWARD = 1 / 3


def n_scored(n_ctx: int) -> int:
    """Return the tokens scored of a context of any length: the last quarter of n_ctx."""
    return max(1, n_ctx // 4)


def copied(config: RunConfig) -> int:
    """Return the tokens of half a sequence of the copy probe; 0 where a run has no such probe.

    A masked model sees both halves, a half of one token has no target, and a pair has no halves.
    """
    half, objective = config.n_ctx // 2, config.part("objective")
    return half if half > 1 and not (objective.masks or objective.has_source) else 0


class Probe(BaseModel):
    """Masking settings under which masked models are compared; all arms score the same tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ratio: tuple[float, ...] = Field(
        (0.15,), max_length=100, description="shares of tokens that are hidden"
    )
    mix: tuple[float, float, float] = Field(
        (1.0, 0.0, 0.0), description="as `mask_mix`: shares shown as [MASK], random, unchanged"
    )
    kind: Annotated[str, BeforeValidator(CATALOGUE["mask_kind"].canonical)] = Field(
        "token", description="as `mask_kind`"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not are_shares(self.mix):
            raise ValueError(f"mix = {list(self.mix)}: {SHARES}")
        for ratio in self.ratio:
            if float(f"{ratio:g}") != ratio:
                raise ValueError(
                    f"ratio {ratio!r}: a metric names a ratio by six digits, such as"
                    f" probe_loss@{ratio:g}"
                )
        return self


class Evaluation(BaseModel):
    """What is measured on held-out text: a study's `[eval]`.

    It changes no weight, so it is not part of a run's key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: int = Field(
        5,
        ge=1,
        le=10_000,
        description="held-out evaluations over a run, evenly spaced, the last at its end",
    )
    tokens: int = Field(
        65536, ge=1, le=10**12, description="held-out tokens read by each evaluation"
    )
    final_tokens: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description=(
            "held-out tokens that the final loss is measured on, at least `tokens`; the default"
            " depends on the cost of training"
        ),
    )
    lengths: tuple[float, ...] = Field(
        (1.0,),
        max_length=64,
        description="contexts, in units of n_ctx, at which the same tokens are scored",
    )
    probe: Probe = Field(
        Probe(),
        description="masking under which masked models are compared, the same for every arm",
    )
    decoded: int = Field(
        256, ge=1, le=10**6, description="held-out pairs whose targets are decoded at the end"
    )
    beams: tuple[int, ...] = Field(
        (1, 4),
        min_length=1,
        max_length=8,
        description="widths of the beam by which targets are decoded; 1 is greedy",
    )
    downstream: tuple[str, ...] = Field(
        (), description="linear probes on frozen features, by the name of their metric"
    )
    probe_csv: str | None = Field(
        None,
        description=(
            "a CSV, TSV, JSON or Parquet file with the columns text and label, on which"
            " `label_accuracy` is measured"
        ),
    )
    probe_csv_hash: str | None = Field(None, description="SHA-256 of probe_csv; filled in")
    own: tuple[tuple[str, str], ...] | None = Field(
        None, description="metrics of a study's `use`, each with the version of its code; filled in"
    )

    def contexts(self, config: RunConfig) -> dict[float, int]:
        """Return length factor → tokens of context, for the lengths that the run is defined for.

        It is empty where only n_ctx is asked for, and where the targets have a source.
        """
        lengths = (
            {}
            if self.lengths == (1.0,) or config.part("objective").has_source
            else {factor: round(factor * config.n_ctx) for factor in self.lengths}
        )
        limit = config.longest_context
        return {
            factor: length for factor, length in lengths.items() if limit is None or length <= limit
        }

    @property
    def own_names(self) -> tuple[str, ...]:
        """Metrics of the user's own."""
        return tuple(name for name, _ in self.own or ())

    @property
    def n_final(self) -> int:
        """Held-out tokens that the final loss is measured on: at least those of each point."""
        return max(self.tokens, self.final_tokens or 0)

    def final_passes(self, config: RunConfig) -> int:
        """Return how often the final evaluation reads `n_final` tokens: for the loss and probes."""
        objective = config.part("objective")
        probed = objective.masks or objective.corrupts or objective.regresses
        return 1 + (len(self.probe.ratio) if probed else 0)

    def read(self, config: RunConfig, held_out: float) -> float:
        """Return the tokens that a run's evaluations read, without those of linear probes.

        Args:
            config: The run.
            held_out: Held-out tokens of its text.
        """
        each, final = min(self.tokens, held_out), min(self.n_final, held_out)
        masked = config.part("objective").masks
        passes = self.points + sum(self.contexts(config)) + (1 if masked else 0)
        passes += COPY_SHARE * self.points if copied(config) else 0
        # the last point is the final loss where both read the same tokens
        return each * passes + final * (self.final_passes(config) - (final == each))

    def finals(self, config: RunConfig) -> list[tuple[str, float]]:
        """Return the finals, as (name, at), that a run is to report."""
        names = [(name, 0.0) for name in ("loss", "bits_per_byte", "accuracy", "unigram_loss")]
        if copied(config):
            names += [("copy_loss", 0.0), ("copy_loss_first", 0.0)]
        names += [("loss_at_length", factor) for factor in self.contexts(config)]
        if config.part("objective").masks:
            names += [
                (name, ratio)
                for name in ("probe_loss", "probe_accuracy")
                for ratio in self.probe.ratio
            ]
            names.append(("pseudo_perplexity", 0.0))
        if config.part("objective").corrupts:
            names += [
                (name, ratio)
                for name in ("corrupted_loss", "corrupted_accuracy")
                for ratio in self.probe.ratio
            ]
        if config.part("objective").pairs:
            names += [(name, beam) for beam in self.beams for name in ("exact_match", "error_rate")]
        names += [(name, 0.0) for name in (*self.downstream, *self.own_names)]
        return names + [(CHANCE, 0.0)] * (LABELLED in self.downstream)
