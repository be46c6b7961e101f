"""How fast a plan says that its cells train."""

from __future__ import annotations

import pytest

from ablate.launch.speed import compiled


def test_a_job_too_short_to_be_compiled_is_as_fast_as_it_was_timed() -> None:
    assert compiled(5e6, 1 / 5e6, 5_000_000, shared=False) == 5e6


def test_a_compiled_job_is_as_much_faster_as_is_known() -> None:
    """On an H200 5.7 Mtok/s became 9.5 to 12, and 3.2 became 7.3 to 8.1: packs of 8 of studies/topology.toml."""
    assert 9.5e6 < compiled(5.69e6, 1 / 5.69e6, 8 * 12_800_000, shared=True) < 12e6
    assert 6.5e6 < compiled(3.15e6, 1 / 3.15e6, 8 * 12_800_000, shared=True) < 8.1e6


def test_a_compiler_gains_nothing_where_a_level_is_slow() -> None:
    """A level that needs a microsecond a token more than the others needs that much more when both are compiled."""
    tokens = 1_000_000_000
    plain, slow = compiled(5e5, 2e-6, tokens, shared=False), compiled(1 / 3e-6, 2e-6, tokens, shared=False)
    assert 1 / slow - 1 / plain == pytest.approx(1e-6)
    assert slow / plain < 0.5  # and 2/3 without a compiler
