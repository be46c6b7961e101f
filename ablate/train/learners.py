"""The learners of scikit-learn that `method` names; `ablate.train.learning` fits them."""

from __future__ import annotations

import importlib
from typing import Any

from ablate.config import RunConfig
from ablate.errors import missing


def logistic(config: RunConfig) -> Any:
    """Return a logistic regression of standardised features, multinomial, with an L2 penalty."""
    made = _of("linear_model").LogisticRegression(C=_options(config)["learner_c"], max_iter=5000)
    return _standardised(made)


def svm(config: RunConfig) -> Any:
    """Return a support vector machine with a Gaussian kernel, of standardised features."""
    return _standardised(_of("svm").SVC(C=_options(config)["learner_c"]))


def random_forest(config: RunConfig) -> Any:
    """Return a random forest, whose draws are those of the seed of the run's data."""
    n = _options(config)["n_trees"]
    return _of("ensemble").RandomForestClassifier(n, random_state=config.batches_seed)


def _options(config: RunConfig) -> dict[str, Any]:
    return config.model_extra or {}


def _standardised(learner: Any) -> Any:
    return _of("pipeline").make_pipeline(_of("preprocessing").StandardScaler(), learner)


def _of(name: str) -> Any:
    """Return a module of scikit-learn.

    Raises:
        AblateError: It is not installed.
    """
    try:
        return importlib.import_module(f"sklearn.{name}")
    except ModuleNotFoundError:
        raise missing("scikit-learn", "sklearn") from None
