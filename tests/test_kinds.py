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


def test_a_split_seed_enters_the_key_where_it_differs_from_the_seed() -> None:
    plain = run_of(RunConfig(n_layer=2, seed=3))
    split = {
        (init, data): run_of(RunConfig(n_layer=2, seed=3, init_seed=init, data_seed=data))
        for init in (None, 0, 3, 4)
        for data in (None, 0, 3, 4)
    }
    for (init, data), run in split.items():
        assert (run.key == plain.key) is ({init, data} <= {None, 3})
        assert run.config.weights_seed == (3 if init is None else init)
        assert run.config.batches_seed == (3 if data is None else data)
        assert run.pack_key == plain.pack_key
    distinct = {run.key for run in split.values()}
    assert len(distinct) == 9  # 0, 3 and 4 of each: None is 3
