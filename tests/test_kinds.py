"""A run as all kinds share it: its key, its hash and runs derived from it."""

from __future__ import annotations

from ablate.config import RunConfig
from ablate.kinds import Run
from ablate.kinds.transformer import run_of


def test_equal_runs_are_one_element_of_a_set() -> None:
    run = run_of(RunConfig(n_layer=2, seed=3))
    again = Run(run.kind, dict(reversed(run.fields.items())), run.seed)
    assert run == again and {run, again} == {run}
    others = [run.with_(seed=4), run.with_(lr=0.5), run_of(RunConfig(n_layer=2, seed=3), "ab" * 32)]
    assert len({run, *others}) == 4


def test_a_derived_run_is_the_run_of_its_fields() -> None:
    run = run_of(RunConfig(n_layer=2, seed=3), parent="ab" * 32)
    for seed, lr in ((0, 2e-3), (3, 1.0)):
        derived = run.with_(seed=seed, lr=lr)
        assert derived == run_of(RunConfig(n_layer=2, seed=seed, lr=lr), parent="ab" * 32)
        assert derived.config == RunConfig(n_layer=2, seed=seed, lr=lr)
    assert run.with_(lr=2e-3).seed == 3 and run.with_() == run
