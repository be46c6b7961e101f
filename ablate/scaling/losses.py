"""A table of losses for a fit: loss, resources and curve of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.scaling.bootstrap import BOOTSTRAPS
from ablate.scaling.solve import Floats
from ablate.scaling.table import TableFit, fit_table, silent


@dataclass(frozen=True)
class Losses:
    """P runs that completed their schedule, in any order."""

    loss: Floats  # [P]
    # of "n" parameters, "d" tokens and "c" FLOPs what is known, [P] each
    columns: dict[str, Floats]
    curves: tuple[str, ...]  # [P] names; all "" where there is one curve
    # curve → the curve it is compared with; without those that are compared with none
    against: dict[str, str]
    means: dict[str, str]  # resource → what it counts, in words
    notes: tuple[str, ...] = ()  # what was left out, and why

    def fit(
        self,
        *,
        form: str = "",
        hold_out: str = "",
        predict: Sequence[Mapping[str, float]] = (),
        bootstraps: int = BOOTSTRAPS,
        progress: Callable[[str], object] = silent,
    ) -> TableFit:
        """Return `fit_table` of these runs; the same runs give the same numbers."""
        n, d, flops = (self.columns.get(name) for name in ("n", "d", "c"))
        return fit_table(
            self.loss,
            n=n,
            d=d,
            flops=flops,
            group=self.curves if any(self.curves) else None,
            against=self.against,
            form=form,
            hold_out=hold_out,
            predict=predict,
            bootstraps=bootstraps,
            rng=np.random.default_rng(0),
            progress=progress,
        )

    def measured(self) -> str:
        """Return one line on what was measured, over which range."""
        ranges = [
            f"{name.upper()} {column.min():.3g} to {column.max():.3g}"
            + (f" ({self.means[name]})" if name in self.means else "")
            for name, column in self.columns.items()
        ]
        return f"{len(self.loss):,} runs; {'; '.join(ranges)}"
