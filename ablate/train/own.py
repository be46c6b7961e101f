"""Metrics of a user's own: means over scored tokens of held-out text, measured with the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ablate.code import place
from ablate.config import RunConfig
from ablate.errors import AblateError, assigned
from ablate.metrics import GIVEN, METRICS, Metric, asked_for
from ablate.train.loss import cross_entropy

LARGEST = 64 << 20  # bytes of the logits that a metric is tried with
TRIED = (2, 3)  # windows of random tokens that a metric is tried with


class OwnMetric:
    """One metric, for runs of one configuration.

    The parameters of its function are names of `ablate.metrics.GIVEN`, for one run and W windows:
    logits [W, T, V] float32 or float64, targets [W, T] int64, losses [W, T] in nats and inputs
    [W, T] int64. It returns numbers [W, T], or [W, T, S]. A token for which it returns NaN does not
    count.

    Args:
        row: The metric.
        config: The run.
        spelling: Bytes of each token; None if unknown.

    Raises:
        AblateError: The metric cannot be constructed.
    """

    def __init__(self, row: Metric, config: RunConfig, spelling: Sequence[bytes] | None) -> None:
        self.row = row
        made = row.made
        own = {field.name: getattr(config, field.name) for field in row.fields}
        self._called = ", ".join([f"metric {row.name!r}", *assigned(own)])
        if isinstance(made, type):
            given = {"config": config, "spelling": spelling, **own}
            try:
                made = made(**{name: given[name] for name in asked_for(made, given)})
            except Exception as error:
                raise self._failed(error) from error
        self._value = getattr(made, "value", None)
        self._tokens = made.tokens if isinstance(row.made, type) else made
        self._own = {} if isinstance(row.made, type) else own
        self._asked = asked_for(self._tokens, (*GIVEN, *self._own))

    def sums(self, given: Mapping[str, Tensor], scored: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of each number over the tokens that count, and their count: [S] each.

        Args:
            given: Name of `ablate.metrics.GIVEN` → tensor.
            scored: Whether each token is scored, [W, T].

        Raises:
            AblateError: The metric fails, or does not return numbers for each token.
        """
        try:
            of = {**given, **self._own}
            found: Any = self._tokens(**{name: of[name] for name in self._asked})
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        windows, length = scored.shape
        most = 2 if self._value is None else 3
        if (
            not isinstance(found, Tensor)
            or found.shape[:2] != scored.shape
            or not 2 <= found.ndim <= most
        ):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise AblateError(
                f"{self._called} returns {shape} for W = {windows} windows of T ="
                f" {length} tokens: expected a number for each token, [W, T]"
                + (", or several, [W, T, S]" if most == 3 else "")
            )
        numbers = found.reshape(windows * length, -1)
        numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
        counts = scored.reshape(-1, 1) & ~numbers.isnan()
        wide = torch.float32 if numbers.device.type == "mps" else torch.float64
        return numbers.where(counts, 0).sum(0, dtype=wide), counts.sum(0)

    def value(self, sums: Tensor, counts: Tensor) -> float:
        """Return the metric of the sums over all tokens.

        Raises:
            AblateError: No token counts, or the metric's own `value` fails.
        """
        if not (counts > 0).all():
            raise AblateError(
                f"{self._called}: every scored token of the held-out text gives"
                " NaN; read more text: [eval] tokens"
            )
        means = (sums / counts).float()
        try:
            return float(means[0] if self._value is None else self._value(means))
        except Exception as error:
            raise self._failed(error) from error

    def tried(self, config: RunConfig, device: torch.device | str) -> None:
        """Apply the metric to random logits, so that an error appears before training.

        Raises:
            AblateError: As for `sums`.
        """
        for windows in TRIED:
            given = random_tokens(config, windows, device)
            self.sums(given, torch.ones_like(given["targets"], dtype=torch.bool))

    def _failed(self, error: Exception) -> AblateError:
        said = " ".join(str(error).split())[:200]
        where = place(error, self.row.origin)
        return AblateError(
            f"{self._called}{f' ({where})' if where else ''}: {type(error).__name__}"
            + (f": {said}" if said else "")
        )


class OwnScore:
    """Sums of all metrics of a user's own, for the members of a pack.

    Args:
        metrics: The metrics.
        pack: Number of members.
    """

    def __init__(self, metrics: Sequence[OwnMetric], pack: int) -> None:
        self._metrics, self._pack = metrics, pack
        self._sums: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def add(self, given: Mapping[str, Tensor], scored: Tensor) -> None:
        """Add windows; those of a member that has diverged are left out.

        Args:
            given: Name of `ablate.metrics.GIVEN` → tensor [K, W, T, …].
            scored: Whether each token is scored, [K, W, T].
        """
        for k in range(self._pack if self._metrics else 0):
            if not given["losses"][k][scored[k]].isfinite().all():
                continue
            mine = {name: of[k] for name, of in given.items()}
            if mine["logits"].dtype != torch.float64:
                mine["logits"] = mine["logits"].float()
            for one in self._metrics:
                more = one.sums(mine, scored[k])
                before = self._sums.get((one.row.name, k))
                self._sums[one.row.name, k] = (
                    more if before is None else (before[0] + more[0], before[1] + more[1])
                )

    def values(self, losses: Sequence[float]) -> dict[str, list[float]]:
        """Return metric → value of each member; NaN for one whose loss is not finite.

        Raises:
            AblateError: As for `OwnMetric.value`.
        """
        return {
            one.row.name: [
                one.value(*self._sums[one.row.name, k]) if math.isfinite(loss) else math.nan
                for k, loss in enumerate(losses)
            ]
            for one in self._metrics
        }


def own_metrics(
    names: Sequence[str],
    config: RunConfig,
    spelling: Sequence[bytes] | None,
    device: torch.device | str,
) -> list[OwnMetric]:
    """Return the metrics of these names, after trying each.

    Raises:
        AblateError: A metric does not work.
    """
    made = [OwnMetric(METRICS[name], config, spelling) for name in names]
    for one in made:
        one.tried(config, device)
    return made


def random_tokens(config: RunConfig, windows: int, device: torch.device | str) -> dict[str, Tensor]:
    """Return the arguments of a metric, with random logits and tokens."""
    generator = torch.Generator().manual_seed(windows)
    # fewer tokens of a window for a large vocabulary: trying has to fit wherever training does
    dtype = getattr(torch, config.part("precision").dtype)
    most = LARGEST // (windows * config.n_vocab * dtype.itemsize)
    shape = windows, max(1, min(config.n_ctx, most))
    logits = torch.randn(*shape, config.n_vocab, generator=generator)
    text = config.n_vocab - config.part("objective").n_added(config)  # targets are never [MASK]
    inputs, targets = (torch.randint(text, shape, generator=generator).to(device) for _ in range(2))
    logits = logits.to(device, dtype)
    losses, _ = cross_entropy(logits, targets)
    return {"logits": logits, "targets": targets, "losses": losses, "inputs": inputs}
