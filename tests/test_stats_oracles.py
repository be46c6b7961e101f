"""Where autorank and rliable compute the same thing, the numbers are the same. Skipped where they
are not installed:

pip install autorank; pip install --no-deps rliable "arch>=8" absl-py    # the arch that rliable
asks for needs pandas 2
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ablate import stats


def test_two_arms_have_autoranks_paired_t() -> None:
    autorank = pytest.importorskip("autorank")
    rng = np.random.default_rng(0)
    for n in (6, 12):
        baseline = rng.normal(3.0, 0.02, n)
        level = baseline + rng.normal(0.01, 0.01, n)
        theirs = autorank.autorank(
            pd.DataFrame({"level": level, "baseline": baseline}),
            alpha=0.05,
            force_mode="parametric",
        )
        assert theirs.omnibus == "ttest"
        assert stats.compare(level, baseline).p == pytest.approx(theirs.pvalue)


def test_several_arms_have_autoranks_repeated_measures_anova() -> None:
    autorank = pytest.importorskip("autorank")
    rng = np.random.default_rng(1)
    seeds, arms = 8, ("a", "b", "c", "d")
    frame = pd.DataFrame(
        rng.normal(3.0, 0.02, (seeds, 4)) + rng.normal(0, 0.05, (seeds, 1)) + [0, 0, 0.01, 0.03],
        columns=arms,
    )
    theirs = autorank.autorank(frame, alpha=0.05, force_mode="parametric")
    assert theirs.omnibus == "anova"
    factor = [arm for _ in range(seeds) for arm in arms]
    seed = [s for s in range(seeds) for _ in arms]
    ours = stats.grid_effects(frame.to_numpy().ravel(), {"arm": factor}, seed)
    (term,) = [term for term in ours.terms if term.name == "arm"]
    assert term.p == pytest.approx(theirs.pvalue)


def test_many_pairs_have_rliables_bootstrap_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstrap of a mean approaches the t interval; rliable 1.2.0 ignores its seed."""
    pytest.importorskip("rliable")
    try:
        from arch.bootstrap import IIDBootstrap
        from rliable import library as rly
    except TypeError as error:
        pytest.skip(f"rliable's arch does not import under this pandas: {error}")
    begin = IIDBootstrap.__init__
    # gone in arch 8
    monkeypatch.setattr(
        IIDBootstrap, "__init__", lambda self, *args, random_state=None: begin(self, *args)
    )
    d = np.random.default_rng(2).normal(0.02, 0.1, 150)
    _, intervals = rly.get_interval_estimates(
        {"difference": d[:, None]}, lambda scores: np.array([scores.mean()]), reps=4000
    )
    effect = stats.paired(d)
    assert intervals["difference"].ravel() == pytest.approx(
        [effect.lo, effect.hi], abs=0.1 * (effect.hi - effect.lo)
    )
