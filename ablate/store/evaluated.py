"""What a study's `[eval]` asks of a run, and whether two of them measure alike."""

from __future__ import annotations

from ablate.config import Evaluation, RunConfig


def asked(config: RunConfig, evaluation: Evaluation) -> set[tuple[str, float]]:
    """The finals, as (name, at), that an evaluation asks of a run."""
    wanted = {("loss", 0.0)} | {(name, 0.0) for name in evaluation.downstream}
    if evaluation.lengths != (1.0,):
        wanted |= {("loss_at_length", factor) for factor in evaluation.lengths}
    if config.objective == "masked":
        wanted |= {(name, ratio) for name in ("probe_loss", "probe_accuracy") for ratio in evaluation.probe.ratio}
    return wanted


def measure(evaluation: Evaluation) -> tuple[object, ...]:
    """What decides the value of a final, beside the run: finals of unequal measure do not compare."""
    return evaluation.tokens, evaluation.probe.mix, evaluation.probe.kind
