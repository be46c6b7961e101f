"""How fast a plan says that its cells train."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.config import RunConfig
from ablate.launch import engine, packs, speed
from ablate.launch.devices import Device
from ablate.launch.speed import Job, modes
from ablate.model import attention
from ablate.plan import plan
from ablate.study import parse
from ablate.train import compiled as steps

LONG = 2_000_000_000  # tokens, of a job that is compiled at any speed


def compiled(jobs: dict[str, Job]) -> dict[str, float]:
    return speed.compiled(jobs, modes(jobs))


def alone(speed: float, tokens: int, recompute: bool = False) -> float:
    return compiled({"": Job(speed, tokens, (), recompute)})[""]


def test_a_job_too_short_to_be_compiled_is_as_fast_as_it_was_timed() -> None:
    assert alone(5e6, 5_000_000) == 5e6


def test_a_compiled_job_is_as_much_faster_as_is_known() -> None:
    """Within 27%, on an H200: packs of studies/topology.toml and a run of 10.8M: 6.0 Mtok/s became
    14.3, 3.3 8.5, and 2.3 3.7.
    """
    shapes = {"4 layers": (5.98e6, 8), "12 layers": (3.34e6, 8), "10.8M": (2.35e6, 1)}
    found = compiled(
        {
            name: Job(eager, pack * 100_000_000, (k,))
            for k, (name, (eager, pack)) in enumerate(shapes.items())
        }
    )
    for name, measured in {"4 layers": 14.25e6, "12 layers": 8.46e6, "10.8M": 3.74e6}.items():
        assert found[name] == pytest.approx(measured, rel=0.27)


@pytest.mark.parametrize("order", [("plain", "slow"), ("slow", "plain")])
def test_a_compiler_gains_nothing_where_a_level_is_slow(order: tuple[str, ...]) -> None:
    """A level that needs a microsecond a token more than the others needs that much more when both
    are compiled.
    """
    jobs = {"plain": Job(5e5, LONG, ()), "slow": Job(1 / 3e-6, LONG, ())}
    found = compiled({name: jobs[name] for name in order})
    assert 1 / found["slow"] - 1 / found["plain"] == pytest.approx(1e-6)
    assert found["slow"] / found["plain"] < 0.5  # and 2/3 without a compiler


def test_what_becomes_one_kernel_is_as_fast_as_another_position_once_it_is_compiled() -> None:
    """Packs of 8 of 0.6M parameters on an H200: T5's 13.3 Mtok/s beside 13.9 with rotary positions
    and 15.2 with none.
    """
    found = compiled({"rotary": Job(6e5, LONG, ()), "t5": Job(4e5, LONG, (), fused=True)})
    assert found["t5"] == found["rotary"]
    assert (
        compiled({"rotary": Job(6e6, 1000, ()), "t5": Job(4e6, 1000, (), fused=True)})["t5"] == 4e6
    )


def test_the_first_compilation_has_to_be_worth_the_compilers_start() -> None:
    """0.5 · 40 + 8 + 15 > 40, of a job of 40 seconds; beside a longer one, which starts the
    compiler, it is compiled too.
    """
    assert alone(1e6, 40_000_000) == 1e6
    beside = compiled({"short": Job(1e6, 40_000_000, (1,)), "long": Job(1e6, 400_000_000, (2,))})
    assert beside["short"] == pytest.approx(1e6 / steps.MODES["block"].time)


def test_blocks_that_are_computed_again_are_compiled_one_by_one() -> None:
    assert alone(1e6, LONG) == pytest.approx(1e6 / steps.MODES["whole"].time)
    assert alone(1e6, LONG, recompute=True) == pytest.approx(1e6 / steps.MODES["block"].time)


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
def test_every_shape_is_timed_before_any_speed_is_told(
    recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline that is slow is not judged by itself, though it comes first."""
    monkeypatch.setattr(engine, "setup", lambda *of: None)
    monkeypatch.setattr(speed, "can_compile", lambda: True)
    monkeypatch.setattr(packs, "size", lambda *of, **more: packs.Size(2, 4, recompute))

    def timed(configs: list[RunConfig], *rest: object) -> float:
        return {"serial": 2e6, "parallel": 4e6}[configs[0].topology]

    monkeypatch.setattr(speed, "_speed", timed)
    done: list[int] = []
    found = speed.measure(
        plan(parse(STUDY, Path("t.toml"))), Device("cuda:0", 80 << 30, 8), done.append
    )
    share = steps.MODES["block" if recompute else "whole"].time
    saved = (1 - share) / 4e6
    assert found.tokens_per_second == pytest.approx(
        {"topology=serial": 1 / (1 / 2e6 - saved), "topology=parallel": 4e6 / share}
    )
    assert (
        found.start
        == speed.START + steps.FIRST + steps.MODES["block" if recompute else "whole"].setup
    )
    assert done == [1, 2]


POSITIONS = """
name = "t"
question = "?"
seeds = 2
[base]
corpus = "sotu"
tokens = 10_000_000_000
n_layer = 2
d_model = 128
{base}
[factors]
position = ["none", "{position}"]
"""


@pytest.mark.parametrize(
    ("position", "base", "gained"),
    [
        ("rotary", "n_head = 2", True),
        ("t5", 'precision = "bfloat16"\nn_head = 4', True),
        ("t5", 'precision = "bfloat16"\nn_head = 4  # on a small GPU', False),
        (
            "t5",
            'precision = "bfloat16"\nn_head = 2',
            False,
        ),  # heads of 64, at which FlexAttention gains little
        ("t5", 'precision = "bfloat16"\nn_head = 16', False),  # heads of 8, which have none
        ("t5", 'precision = "float32"\nn_head = 4', False),
        ("t5", 'precision = "bfloat16"\nn_head = 4\nscore = "additive"', False),
        ("alibi", 'precision = "bfloat16"\nn_head = 4', False),
    ],
)
def test_what_a_position_costs_is_gained_by_compiling_where_it_becomes_part_of_other_kernels(
    position: str, base: str, gained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is foretold as long as without a compiler, so that a plan names the cell."""
    monkeypatch.setattr(engine, "setup", lambda *of: None)
    monkeypatch.setattr(speed, "can_compile", lambda: True)
    monkeypatch.setattr(packs, "size", lambda *of, **more: packs.Size(2))
    monkeypatch.setattr(
        attention, "_shared_memory", lambda: 101_376 if "small GPU" in base else 166_912
    )  # RTX 4090, A100
    monkeypatch.setattr(
        speed, "_speed", lambda configs, *rest: 4e6 if configs[0].position == "none" else 2e6
    )
    study = parse(POSITIONS.format(position=position, base=base), Path("t.toml"))
    found = speed.measure(
        plan(study), Device("cuda:0", 80 << 30, 8), lambda done: None
    ).tokens_per_second
    plain, other = found["position=none"], found[f"position={position}"]
    assert 1 / other - 1 / plain == pytest.approx(0 if gained else 1 / 4e6, abs=1e-12)


def test_a_position_in_smaller_packs_is_not_taken_for_as_fast_as_another_in_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "setup", lambda *of: None)
    monkeypatch.setattr(speed, "can_compile", lambda: True)
    monkeypatch.setattr(
        packs, "size", lambda config, *of, **more: packs.Size(2 if config.position == "none" else 1)
    )
    monkeypatch.setattr(speed, "_speed", lambda configs, *rest: 4e6 * len(configs) ** 1.5)
    study = parse(POSITIONS.format(position="rotary", base=""), Path("t.toml"))
    found = speed.measure(
        plan(study), Device("cuda:0", 80 << 30, 8), lambda done: None
    ).tokens_per_second
    assert found["position=rotary"] == pytest.approx(4e6 / steps.MODES["whole"].time)
