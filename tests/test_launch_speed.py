"""How fast a plan says that its cells train."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.config import RunConfig
from ablate.launch import engine, packs, speed
from ablate.launch.devices import Device
from ablate.launch.speed import Job, compiled
from ablate.plan import plan
from ablate.study import parse
from ablate.train import warm

LONG = 1_000_000_000  # tokens, of a job that is compiled at any speed


def alone(speed: float, tokens: int, recompute: bool = False) -> float:
    return compiled({"": Job(speed, tokens, (), recompute)})[""]


def test_a_job_too_short_to_be_compiled_is_as_fast_as_it_was_timed() -> None:
    assert alone(5e6, 5_000_000) == 5e6


def test_a_compiled_job_is_as_much_faster_as_is_known() -> None:
    """On an H200 5.7 Mtok/s became 9.5 to 12, and 3.2 became 7.3 to 8.1: packs of 8 of studies/topology.toml."""
    found = compiled({"4 layers": Job(5.69e6, 8 * 12_800_000, (4,)), "12 layers": Job(3.15e6, 8 * 12_800_000, (12,))})
    assert 9.5e6 < found["4 layers"] < 12e6
    assert 6.5e6 < found["12 layers"] < 8.1e6


@pytest.mark.parametrize("order", [("plain", "slow"), ("slow", "plain")])
def test_a_compiler_gains_nothing_where_a_level_is_slow(order: tuple[str, ...]) -> None:
    """A level that needs a microsecond a token more than the others needs that much more when both are compiled."""
    jobs = {"plain": Job(5e5, LONG, ()), "slow": Job(1 / 3e-6, LONG, ())}
    found = compiled({name: jobs[name] for name in order})
    assert 1 / found["slow"] - 1 / found["plain"] == pytest.approx(1e-6)
    assert found["slow"] / found["plain"] < 0.5  # and 2/3 without a compiler


def test_the_first_compilation_has_to_be_worth_the_compilers_start() -> None:
    """0.48 · 40 + 8 + 15 > 40, of a job of 40 seconds; beside a longer one, which starts the compiler, it is compiled too."""
    assert alone(1e6, 40_000_000) == 1e6
    beside = compiled({"short": Job(1e6, 40_000_000, (1,)), "long": Job(1e6, 400_000_000, (2,))})
    assert beside["short"] == pytest.approx(1e6 / warm.TIME["block"])


def test_blocks_that_are_computed_again_are_compiled_one_by_one() -> None:
    assert alone(1e6, LONG) == pytest.approx(1e6 / warm.TIME["whole"])
    assert alone(1e6, LONG, recompute=True) == pytest.approx(1e6 / warm.TIME["block"])


STUDY = """
name = "t"
question = "?"
seeds = 2
[base]
corpus = "sotu"
tokens = 10_000_000_000
[factors]
topology = ["serial", "parallel"]
"""


@pytest.mark.parametrize("recompute", [False, True])
def test_every_shape_is_timed_before_any_speed_is_told(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline that is slow is not judged by itself, though it comes first."""
    monkeypatch.setattr(engine, "setup", lambda *of: None)
    monkeypatch.setattr(warm, "can_compile", lambda: True)
    monkeypatch.setattr(packs, "size", lambda *of, **more: packs.Size(2, 4, recompute))

    def timed(configs: list[RunConfig], *rest: object) -> float:
        return {"serial": 2e6, "parallel": 4e6}[configs[0].topology]

    monkeypatch.setattr(speed, "_speed", timed)
    done: list[int] = []
    found = speed.measure(plan(parse(STUDY, Path("t.toml"))), Device("cuda:0", 80 << 30, 8), done.append)
    share = warm.TIME["block" if recompute else "whole"]
    saved = (1 - share) / 4e6
    assert found == pytest.approx({"topology=serial": 1 / (1 / 2e6 - saved), "topology=parallel": 4e6 / share})
    assert done == [1, 2]
