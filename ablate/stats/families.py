"""Many contrasts at once: a family is the levels of one factor in one stratum on one metric."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ablate.stats.pairs import Floats, Values


def holm(p: Values) -> Floats:
    """Holm's step-down p-values [m], in the order given (Holm 1979).

    A NaN (a contrast that could not be tested) stays NaN and still counts in the size of the family.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    raw: npt.NDArray[np.float64] = np.asarray(p, float)
    order = np.argsort(raw)  # NaN last
    stepped = raw[order] * np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted
