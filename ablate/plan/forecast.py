"""How long a plan takes, from the speed at which its cells train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ablate import sizes
from ablate.errors import AblateError
from ablate.evaluation import FORWARD, Evaluation
from ablate.plan.model import Cell, Plan, before

SLOW = 0.75  # share of the baseline's speed, below which a cell is listed


@dataclass(frozen=True)
class Forecast:
    """The speed of a plan's cells.

    Attributes:
        tokens_per_second: Label of a cell → tokens a second of its training, all members of a pack
            together.
        side_by_side: Runs or packs that train at the same time.
        start: Seconds from the command to the first step.
        device: Where the speed was measured; "" for one that was given.
        estimated: Whether some speeds are estimated: those of compiled steps from eager ones, those
            of several devices from one.
    """

    tokens_per_second: Mapping[str, float]
    side_by_side: int = 1
    start: float = 0.0
    device: str = ""
    estimated: bool = False

    def seconds(self, cell: Cell, evaluation: Evaluation) -> float:
        """Return the seconds of one run of a cell, evaluations included."""
        evaluated = evaluation.read(cell.config, cell.held_out)
        tokens = cell.cost.tokens or cell.config.tokens
        return (tokens + FORWARD * evaluated) / self.tokens_per_second[cell.label]

    def total(self, plan: Plan) -> float:
        """Return the seconds of all distinct runs of a plan."""
        planned = (*plan.runs, *plan.later)
        distinct = {one.run.key: (one.cell, one.role == "pretrain") for one in planned}.values()
        each = {
            (cell.label, of is not cell): self.seconds(of, plan.study.evaluation)
            for cell in plan.cells
            for of in (cell, before(cell))
            if of
        }
        return sum(each[one] for one in distinct) / self.side_by_side

    def slow(self, plan: Plan) -> list[tuple[str, str, float]]:
        """Return (cell, baseline, share of its speed) of cells much slower than their baseline."""
        speed = self.tokens_per_second
        shares = {
            contrast.cell: (contrast.baseline, speed[contrast.cell] / speed[contrast.baseline])
            for contrast in plan.contrasts
        }
        return [(cell, *pair) for cell, pair in shares.items() if pair[1] < SLOW]


def at_speed(plan: Plan, flops: float) -> Forecast:
    """Return the forecast for a device of a given speed.

    Args:
        plan: The plan.
        flops: Floating-point operations a second.

    Raises:
        AblateError: The FLOPs of a cell are unknown.
    """
    speeds = {}
    for cell in plan.cells:
        if cell.cost.flops is None:
            raise AblateError(
                f"--flops: the FLOPs of {cell.label!r} are unknown; --device times the models"
            )
        if cell.cost.tokens and cell.cost.flops:
            speeds[cell.label] = flops * cell.cost.tokens / cell.cost.flops
        else:  # it is evaluated without training, at a third of the price of a training token
            speeds[cell.label] = flops / (3 * (sizes.count(cell.config).flops_per_token or 1))
    return Forecast(speeds)
