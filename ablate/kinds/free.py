"""What the kinds have in common whose studies name their fields themselves; without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ablate.components.base import check_name
from ablate.errors import AblateError, written
from ablate.evaluation import Evaluation
from ablate.kinds import SEEDS, Cost, Field, Fields, Run


class FreeFields:
    """Runs of which ablate knows what their fields say, and nothing else; see `Kind`."""

    numerics = 1
    uses_torch = False
    fields: Mapping[str, Field] = {}  # each study has its own

    def check(self, fields: Mapping[str, Any]) -> Fields:
        """Return the fields, each of which is a number, true, false or text.

        Raises:
            AblateError: A name cannot be a column of the results, or a value is another one.
        """
        for name, value in fields.items():
            check_name(name, fields)
            split = name in SEEDS and value is None
            finite = isinstance(value, bool | int | str) or (
                isinstance(value, float) and math.isfinite(value)
            )
            if not finite and not split:
                raise AblateError(
                    f"{name} = {written(value):.80}: a number, true, false or text is wanted"
                )
        return dict(fields)

    def cost(self, fields: Fields) -> Cost:
        """Return that nothing is known."""
        return Cost()

    def typed(self, run: Run) -> None:
        """Return None: there is no configuration besides the fields."""

    def parent(self, run: Run) -> None:
        """Return None: a run starts from no other."""

    def pack_key(self, run: Run) -> str:
        """Return the run's own key: a job is one run."""
        return run.key

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return nothing: what a run reports is not known before."""
        return []
