"""Scaling curves: power laws with intervals from finished runs, isoFLOP exponents, comparisons."""

from ablate.scaling.beyond import Forecast, Outlook
from ablate.scaling.bootstrap import Interval
from ablate.scaling.design import expected_width, sufficient_grid
from ablate.scaling.fit import Fit, fit
from ablate.scaling.forms import FORMS, best_split
from ablate.scaling.groups import Comparison, Difference, compare_groups
from ablate.scaling.held_out import HeldOut
from ablate.scaling.isoflop import IsoFlop, Minimum, isoflop
from ablate.scaling.losses import Losses
from ablate.scaling.table import TableFit, fit_table

__all__ = [
    "FORMS",
    "Comparison",
    "Difference",
    "Fit",
    "Forecast",
    "HeldOut",
    "Interval",
    "IsoFlop",
    "Losses",
    "Minimum",
    "Outlook",
    "TableFit",
    "best_split",
    "compare_groups",
    "expected_width",
    "fit",
    "fit_table",
    "isoflop",
    "sufficient_grid",
]
