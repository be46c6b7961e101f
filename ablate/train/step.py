"""One training step of a pack as a function on static tensors: run eagerly on a CPU, captured in a CUDA graph on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.config import RunConfig
from ablate.factors import CATALOGUE
from ablate.train.loss import cross_entropy
from ablate.train.meter import SERIES
from ablate.train.optimiser import AdamW

RING = 256  # steps whose metrics the device holds before they must be read


class Step:
    """A model, its optimiser and everything a step reads and writes, at fixed addresses.

    What members or jobs of one shape differ in (seed, lr, weight decay, mask ratio, number of steps, warm-up, clipping)
    is a tensor, so that `load` makes the same step ready for other runs.
    """
