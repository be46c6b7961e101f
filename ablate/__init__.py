"""ablate: find out whether a part of a model matters, and by how much.

In Python `ablate.load(study)`, `curves`, `finals`, `pairs` and `effects` give tidy DataFrames,
which the functions of `ablate.figures` draw. `ablate.findings(study)` gives all that a study found
as typed records. `ablate.level` registers a level of a factor, with hyper-parameters
that `ablate.Field` describes, and `ablate.factor` looks one up; `ablate.metric` registers a metric.
`ablate.log` reports the numbers of a training script. `ablate.load_model(run)` gives the model of a
run whose weights are kept, with its tokenizer. Documented modules, such as `ablate.stats`, are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.analysis import effects as effects
    from ablate.analysis import findings as findings
    from ablate.components import Field as Field
    from ablate.components import factor as factor
    from ablate.components import level as level
    from ablate.logged import log as log
    from ablate.metrics import metric as metric
    from ablate.results import curves as curves
    from ablate.results import finals as finals
    from ablate.results import load as load
    from ablate.results import pairs as pairs
    from ablate.trained.load import load_model as load_model

__version__ = "0.1.0"

# where each is, imported on first use: pandas takes half a second
_LAZY = dict.fromkeys(("load", "curves", "finals", "pairs"), "ablate.results") | {
    "effects": "ablate.analysis",
    "findings": "ablate.analysis",
    "level": "ablate.components",
    "factor": "ablate.components",
    "Field": "ablate.components",
    "log": "ablate.logged",
    "load_model": "ablate.trained.load",
    "metric": "ablate.metrics",
}
_MODULES = ("analysis", "components", "errors", "figures", "results", "stats", "study", "trained")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ablate.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
