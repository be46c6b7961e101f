"""[match]: parameters or FLOPs of a cell made equal to its baseline's by d_mlp or steps."""

from __future__ import annotations

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError

# relative distance within which a cell is not changed, and within which a round width is taken
CLOSE = 0.005


def measure(config: RunConfig, quantity: str) -> int:
    """Return what [match] calls "body" or "total" (parameters), or "flops" (forward, a token).

    Raises:
        AblateError: It is unknown.
    """
    counted = sizes.count(config)
    found = {"body": counted.body, "total": counted.params, "flops": counted.flops_per_token}
    if (value := found[quantity]) is None:
        what = "FLOPs" if quantity == "flops" else "parameters without embeddings and head"
        raise AblateError(f"the {what} of this model are unknown; choose another quantity")
    return value


def mismatch(config: RunConfig, baseline: RunConfig, quantity: str) -> float:
    """Return the relative difference of a cell from its baseline.

    It is that of parameters, or for "flops" of the FLOPs of the whole training.
    """
    if quantity == "flops":
        own, other = (measure(one, quantity) * one.tokens for one in (config, baseline))
        return own / other - 1
    return measure(config, quantity) / measure(baseline, quantity) - 1


def matched_d_mlp(config: RunConfig, baseline: RunConfig, quantity: str) -> int:
    """Return the d_mlp that gives `config` the baseline's parameters or FLOPs.

    Raises:
        AblateError: No d_mlp does.
    """
    target = measure(baseline, quantity)
    if abs(measure(config, quantity) / target - 1) <= CLOSE:
        return config.d_mlp
    fitted = fit_d_mlp(config, target, quantity)
    if fitted is None:
        least = measure(with_d_mlp(config, 1), quantity)
        raise AblateError(
            f"[match]: even with the narrowest MLP, {quantity} is {least:,}, but {target:,} in the"
            " baseline: d_mlp cannot match them"
        )
    return fitted.d_mlp


def matched_steps(config: RunConfig, baseline: RunConfig) -> int:
    """Return the steps at which the training FLOPs of `config` come nearest to the baseline's."""
    wanted = measure(baseline, "flops") * baseline.tokens
    return max(1, round(wanted / (measure(config, "flops") * config.batch_tokens)))


def fit_d_mlp(config: RunConfig, target: float, quantity: str) -> RunConfig | None:
    """Return `config` with the d_mlp at which `quantity` comes nearest to `target`.

    A multiple of 8, 4 or 2 is taken where that is close. Parameters and FLOPs are linear in d_mlp.

    Returns:
        None where d_mlp would have to be below 1.
    """
    first = measure(with_d_mlp(config, 1), quantity)
    more = measure(with_d_mlp(config, 2), quantity) - first
    if more == 0:
        factor = "mlp" if config.part("architecture").of_blocks else "architecture"
        raise AblateError(
            f"[match]: the size of {config.part(factor).called(config)} does not depend on d_mlp;"
            ' match training instead: flops = true, by = "steps"'
        )
    exact = 1 + (target - first) / more
    for step in (8, 4, 2):
        fitted = with_d_mlp(config, max(step, step * round(exact / step)))
        if abs(measure(fitted, quantity) / target - 1) <= CLOSE:
            return fitted
    return with_d_mlp(config, round(exact)) if round(exact) >= 1 else None


def with_d_mlp(config: RunConfig, d_mlp: int) -> RunConfig:
    """Return `config` with another width of the MLP."""
    return config.model_copy(update={"d_mlp": d_mlp})
