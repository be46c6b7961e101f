"""How many held-out tokens the final loss of a study is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ablate.evaluation import FORWARD, Evaluation
from ablate.plan.model import Cell, Plan

# Few steps, far apart: a study that grows a little, or shares runs with another, keeps its number.
STEPS = (1 << 20, 1 << 22, 1 << 24)
SHARE = 0.03  # of the cost of training


def final_tokens(cells: Sequence[Cell], evaluation: Evaluation) -> int | None:
    """Return the default of `[eval] final_tokens`, for all runs of a study; None for `tokens`.

    It is the largest of `STEPS` that takes at most 3% of the FLOPs of training all cells, and at
    least a million where a cell's precision is made for a GPU; a text that has fewer is read whole.
    It depends on the cells alone, not on the machine, so that a study scores the same tokens
    wherever it is planned and run. Cells that are evaluated without training do not count.

    Args:
        cells: The cells.
        evaluation: What the study file says.
    """
    trained = [cell for cell in cells if cell.config.tokens]
    costs = [cell.cost.flops or cell.config.tokens for cell in trained]

    def share(n: int) -> float:
        """Cost of the final evaluations, as a share of that of training."""
        read = (
            cost
            * FORWARD
            * evaluation.final_passes(cell.config)
            * min(n, cell.held_out)
            / cell.config.tokens
            for cost, cell in zip(costs, trained, strict=True)
        )
        return sum(read) / sum(costs)

    for_gpu = any(cell.config.part("precision").on_cpu != cell.config.precision for cell in cells)
    chosen = STEPS[0] if for_gpu else 0
    longest = max(cell.held_out for cell in cells)
    for n in STEPS:
        if not trained or max(chosen, evaluation.tokens) >= longest or share(n) > SHARE:
            break
        chosen = n
    return chosen if chosen > evaluation.tokens else None


def with_final_tokens(plan: Plan) -> Plan:
    """Return a plan whose final loss is measured on the default number of tokens."""
    return measured(plan, final_tokens(plan.cells, plan.study.evaluation))


def measured(plan: Plan, final_tokens: int | None) -> Plan:
    """Return a plan whose final loss is measured on so many tokens, unless its file says how many.

    The field stays one that the file does not set.
    """
    old = plan.study.evaluation
    if "final_tokens" in old.model_fields_set or old.final_tokens == final_tokens:
        return plan
    new = Evaluation.model_construct(
        set(old.model_fields_set), **{**dict(old), "final_tokens": final_tokens}
    )
    return replace(plan, study=replace(plan.study, evaluation=new))
