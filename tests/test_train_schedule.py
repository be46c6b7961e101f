"""Schedules against hand-worked values."""

from __future__ import annotations

import math

import pytest
import torch

from ablate.components import CATALOGUE


def shares(level: str, steps: int, warmup: float) -> list[float]:
    """The share of the peak rate at every step, steps as a tensor of its own each."""
    total, rise = torch.tensor(float(steps)), torch.tensor(float(warmup))
    schedule = CATALOGUE["schedule"][level].load()()
    return [schedule(torch.tensor(float(step)), total, rise).item() for step in range(steps)]


EXPECTED = {  # ten steps, two of them warm-up: halves of the way up, then eighths of the way down
    "constant": [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "linear": [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8],
    "cosine": [0.5, 1, 1] + [0.1 + 0.9 * (1 + math.cos(math.pi * k / 8)) / 2 for k in range(1, 8)],
    "wsd": [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1 - math.sqrt(1 / 2)],
}


@pytest.mark.parametrize("level", CATALOGUE["schedule"].names)
def test_ten_steps_with_two_of_warmup(level: str) -> None:
    assert shares(level, 10, 2) == pytest.approx(EXPECTED[level], abs=1e-6)


@pytest.mark.parametrize("level", CATALOGUE["schedule"].names)
def test_without_warmup_the_first_step_is_at_the_peak(level: str) -> None:
    assert shares(level, 10, 0)[0] == 1


def test_cosine_ends_near_a_tenth_and_linear_and_wsd_near_nothing() -> None:
    assert shares("cosine", 1000, 50)[-1] == pytest.approx(0.1, abs=1e-4)
    assert shares("linear", 1000, 50)[-1] == pytest.approx(1 / 950, abs=1e-5)
    assert shares("wsd", 1000, 50)[-1] == pytest.approx(1 - math.sqrt(199 / 200), abs=1e-5)


@pytest.mark.parametrize("level", CATALOGUE["schedule"].names)
@pytest.mark.parametrize("warmup", [0.5, 1, 1000])
def test_any_warmup_gives_shares_between_0_and_1(level: str, warmup: float) -> None:
    assert all(0 <= share <= 1 for share in shares(level, 20, warmup))
