"""Compiled steps: when compilation pays, and that compiled and captured code compute the same."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from train_helpers import Events, config, run, text

from ablate.components import factor
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.train import compiled
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step


def never() -> bool:
    return False


def rows(step: Step, n: int) -> np.ndarray:
    step.run(n, never)
    return step.read(n)[0]


@pytest.fixture
def no_cached_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has trained nothing yet."""
    monkeypatch.setattr(compiled, "step_cache", type(compiled.step_cache)())
    monkeypatch.setattr(compiled.CompiledStep, "compiler_begun", False)


# -- which mode ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "blocks", "there", "mode"),
    [
        (2, 4, "eager", "eager"),  # a 2-second run never waits for a compiler
        (13, 4, "eager", "eager"),
        (15, 4, "eager", "block"),  # 0.42 · 15 + 8 < 15
        (15, 100, "eager", "block"),  # all blocks share their code
        (1900, 4, "eager", "block"),
        (2100, 4, "eager", "whole"),  # 0.41 · 2100 + 8 + 4 · 5 < 0.42 · 2100 + 8
        (11_900, 24, "eager", "block"),
        (12_100, 24, "eager", "whole"),
        (2100, 4, "block", "block"),  # what is there costs nothing: 0.41 · 2100 + 28 > 0.42 · 2100
        (2900, 4, "block", "whole"),
        (1, 4, "whole", "whole"),
        (1, 4, "block", "block"),
    ],
)
def test_compilation_is_chosen_by_the_time_it_saves(
    seconds: float, blocks: int, there: str, mode: str
) -> None:
    assert compiled.worthwhile(seconds, blocks, mode=there) == mode


def test_a_compiler_that_works_while_others_train_is_worth_less_time() -> None:
    assert compiled.worthwhile(10, 4) == "eager"
    assert compiled.worthwhile(10, 4, shared=True) == "block"  # 0.42 · 10 + 8 / 3 < 10


def test_matrix_products_are_no_faster_when_compiled() -> None:
    assert compiled.worthwhile(20, 4) == "block"
    assert compiled.worthwhile(20, 4, 10) == "eager"  # 10 + 0.42 · 10 + 8 > 20
    assert compiled.MODES["block"].seconds(20, 10) == pytest.approx(14.2)
    assert compiled.MODES["block"].eager(14.2, 10) == pytest.approx(20)
    assert compiled.MODES["block"].seconds(8, 10) == 8


@pytest.mark.parametrize(
    ("flops", "eager", "block", "whole"),
    [  # a token; Mtok/s of `benchmarks/RESULTS.md`, and of a run at 302M parameters
        (6.49e6, 5.20, 10.87, 11.35),
        (6.49e6, 7.96, 14.58, 14.85),
        (4.45e6, 5.98, 14.25, 14.69),
        (4.74e6, 3.34, 8.46, 8.64),
        (71.4e6, 2.35, 3.74, 3.63),
        (854e6, 0.27, 0.53, 0.54),
        (2116e6, 0.127, None, 0.214),
    ],
)
def test_the_speed_of_compiled_steps_is_told_from_eager_ones(
    flops: float, eager: float, block: float | None, whole: float
) -> None:
    for mode, measured in (("block", block), ("whole", whole)):
        if measured:
            told = 1e-6 / compiled.MODES[mode].seconds(1e-6 / eager, flops / compiled.PRODUCTS)
            assert measured / 1.25 < told < 1.25 * measured


def test_what_a_process_compiles_first_has_to_be_worth_more() -> None:
    assert compiled.worthwhile(35, 4, first=True) == "eager"  # 0.42 · 35 + 8 + 15 > 35
    assert compiled.worthwhile(45, 4, first=True) == "block"
    assert compiled.worthwhile(40, 4, mode="block", first=True) == "block"


Counted = Callable[..., tuple[compiled.CompiledStep, list[str]]]


@pytest.fixture
def counted(no_cached_steps: None, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Makes a compiled step whose eager steps take 0.01 s, and the list of what it captures."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    monkeypatch.setattr(compiled, "can_compile", lambda: True)
    monkeypatch.setattr(compiled, "functions", lambda step, mode: step.captured.append(mode))
    monkeypatch.setattr(compiled, "capture", lambda step: setattr(step, "replay", "graph"))
    monkeypatch.setattr(
        compiled, "timed", lambda step: compiled.MODES[step.captured[-1]].seconds(0.01, 0)
    )

    def make(recompute: bool = False) -> tuple[compiled.CompiledStep, list[str]]:
        model = SimpleNamespace(pack=1, recompute=recompute)
        step = SimpleNamespace(
            device=torch.device("cuda"),
            config=config(),
            model=model,
            step=None,
            replay=None,
            captured=[],
        )
        return compiled.CompiledStep(cast("Step", step)), step.captured

    return make


def test_a_shape_that_keeps_coming_is_compiled_in_the_end(counted: Counted) -> None:
    """Jobs of 10 s: the fourth is worth a process's first compilation, the second a later one."""
    (first, seen), (second, later) = counted(), counted()
    for captured in (["eager"], ["eager"], ["eager"], ["eager", "block"], ["eager", "block"]):
        first.prepare(1000, "auto")
        assert seen == captured
    for captured in (["eager"], ["eager", "block"], ["eager", "block"]):
        second.prepare(1000, "auto")
        assert later == captured


def test_an_eager_step_has_not_begun_the_compiler(counted: Counted) -> None:
    counted()[0].prepare(10, "eager")
    assert not compiled.CompiledStep.compiler_begun
    counted()[0].prepare(10, "block")
    assert compiled.CompiledStep.compiler_begun


def test_nothing_is_compiled_where_there_is_no_compiler(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "can_compile", lambda: False)
    step, captured = counted()
    step.prepare(1_000_000, "auto")
    assert captured == ["eager"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dropout": 0.1},
        {"dropout": 0.1, "architecture": "encoder-decoder", "objective": "span"},
    ],
)
def test_blocks_share_their_compiled_code(changes: dict[str, Any]) -> None:
    """Else set-up grows with depth: models with dropout once compiled every block anew."""
    graphs = []
    for n_layer in (2, 4):
        torch._dynamo.reset()
        counter = CompileCounter()
        compile_ = partial(torch.compile, backend=counter, **compiled.COMPILER)
        step = Step([config(n_layer=n_layer, **changes)], text(), "cpu")
        step.features(step.example(), step.model.pieces(compile_)).sum().backward()
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[1] > 2


@pytest.mark.parametrize("wanted", ["auto", "whole"])
def test_blocks_that_are_computed_again_are_compiled_one_by_one(
    wanted: str, counted: Counted
) -> None:
    (plain, seen), (again, other) = counted(), counted(recompute=True)
    for step in (plain, again):
        step.prepare(1_000_000, wanted)
    assert (seen[-1], other[-1]) == ("whole", "block")


def test_an_unknown_mode_names_the_modes() -> None:
    with pytest.raises(AblateError, match=r"whole"):
        run(config(), compile="hole")


def test_a_cpu_works_eagerly(no_cached_steps: None) -> None:
    (events,) = run(config(steps=2), compile="whole")
    assert events.of("start")[0]["compile_mode"] == "eager"


# -- which steps are kept --------------------------------------------------------------------------


def test_only_runs_of_one_shape_share_a_step(
    no_cached_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compiled.KEPT, "cpu", 100)
    first = compiled.cached_step([config()], text(), "cpu")
    for change in (
        {"seed": 3},
        {"lr": 0.1},
        {"steps": 7},
        {"warmup": 0.3},
        {"grad_clip": 0.0},
        {"weight_decay": 0.3},
    ):
        assert compiled.cached_step([config(**change)], text(), "cpu") is first
    for change in (
        {"d_model": 8},
        {"schedule": "wsd"},
        {"batch_tokens": 128},
        {"dropout": 0.1},
        {"precision": "float64"},
        {"document_mask": "attention"},
    ):
        assert compiled.cached_step([config(**change)], text(), "cpu") is not first
    assert compiled.cached_step([config(), config(seed=1)], text(), "cpu") is not first
    assert compiled.cached_step([config()], text(), "cpu", micro_batch=2) is not first
    assert compiled.cached_step([config()], text(), "cpu", recompute=True) is not first


def test_the_steps_not_used_for_longest_are_forgotten(
    no_cached_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compiled.KEPT, "cpu", 3)
    first = compiled.cached_step([config(d_mlp=1)], text(), "cpu")
    for width in (2, 3):
        compiled.cached_step([config(d_mlp=width)], text(), "cpu")
        assert compiled.cached_step([config(d_mlp=1)], text(), "cpu") is first
    compiled.cached_step([config(d_mlp=100)], text(), "cpu")  # one too many: d_mlp = 2 goes
    kept = [entry.step.config.d_mlp for entry in compiled.step_cache.values()]
    assert kept == [3, 1, 100]


# -- compiled --------------------------------------------------------------------------------------


@pytest.mark.parametrize("document_mask", ["none", "attention"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("mode", ["block", "whole"])
def test_a_step_traces_without_a_break_and_computes_the_same(
    mode: str, recompute: bool, document_mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tracer only: its graphs, which run eagerly, are what a compiler gets."""
    monkeypatch.setitem(compiled.COMPILER, "backend", "aot_eager")
    packs = [
        config(n_layer=1, position="t5", document_mask=document_mask, seed=seed)
        for seed in range(2)
    ]
    eager, step = Step(packs, text(), "cpu", 2), Step(packs, text(), "cpu", 2, recompute)
    step.functions = compiled.functions(step, mode)
    assert abs(rows(step, 5) - rows(eager, 5)).max() < 1e-5
    step.functions = compiled.functions(step, "eager")
    assert step.functions == step.eager


# -- CUDA ------------------------------------------------------------------------------------------

LEARNED_BIAS: dict[str, Any] = {
    "position": "t5",
    "precision": "bfloat16",
    "d_model": 96,
    "n_head": 4,
    "n_kv_head": 2,
    "n_ctx": 80,
    "batch_tokens": 320,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"precision": "bfloat16", "topology": "parallel"},
    {"objective": "masked", "dropout": 0.1, "position": "alibi"},
    {"objective": "masked", "mask_kind": "span", "position": "t5", "precision": "bfloat16"},
    LEARNED_BIAS,
    {
        "tie_embeddings": "tied",
        "n_kv_head": 1,
        "qk_norm": "rmsnorm",
        "activation": "swiglu",
        "position": "learned",
    },
    {
        "score": "additive",
        "position": "none",
        "head_combine": "sum",
        "norm": "post",
        "z_loss": 1e-4,
    },
    {"document_mask": "attention"},
    {"document_mask": "attention", "position": "learned", "precision": "bfloat16"},
    {"document_mask": "attention", "position": "sinusoidal", "objective": "masked"},
    {"document_mask": "attention", "position": "alibi", "n_kv_head": 1, "precision": "bfloat16"},
    {"document_mask": "attention", "position": "none", "score": "additive"},
    LEARNED_BIAS | {"document_mask": "attention"},
]
ENCODER_DECODERS: list[dict[str, Any]] = [
    {"architecture": "encoder-decoder", "objective": "span", "mean_span": 2},
    *(
        {"architecture": "encoder-decoder", "objective": "denoise", "corruption": name}
        for name in factor("corruption").names
    ),
]


@pytest.mark.parametrize("variant", VARIANTS + ENCODER_DECODERS, ids=str)
def test_a_step_makes_no_tensor_of_numbers_of_the_host(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph that is captured cannot copy from the host's memory."""
    step = Step([config(**variant, seed=seed) for seed in range(2)], text(), "cpu", 2)

    def refuse(*of: object, **named: object) -> None:
        raise AssertionError(f"a copy of {of}")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, refuse)
    step.step()


def cuda(test: Any) -> Any:
    return pytest.mark.cuda(
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")(test)
    )


@cuda
@pytest.mark.parametrize("variant", VARIANTS + ENCODER_DECODERS, ids=str)
@pytest.mark.parametrize("pack", [1, 3])
def test_a_step_does_not_wait_for_the_device(variant: dict[str, Any], pack: int) -> None:
    step = Step([config(**variant, seed=seed) for seed in range(pack)], text(), "cuda", 2)
    rows(step, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cuda
@pytest.mark.parametrize("mode", compiled.MODES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_captured_step_equals_the_eager_one(variant: dict[str, Any], mode: str) -> None:
    packs = [config(**variant, seed=seed, lr=1e-3) for seed in range(2)]
    eager, step = Step(packs, text(), "cuda"), Step(packs, text(), "cuda")
    step.functions = compiled.functions(step, mode)
    compiled.capture(step)
    assert step.replay != step.step
    tolerance = 0.02 if variant.get("precision") == "bfloat16" else 1e-4
    assert abs(rows(step, 20)[:, 0] - rows(eager, 20)[:, 0]).max() < tolerance


@cuda
@pytest.mark.parametrize("document_mask", ["none", "attention"])
def test_a_learned_bias_has_the_same_gradient_when_compiled(document_mask: str) -> None:
    variant = LEARNED_BIAS | {"document_mask": document_mask}

    def gradient(mode: str) -> Tensor:
        step = Step([config(**variant, seed=seed) for seed in range(3)], text(), "cuda")
        step.functions = compiled.functions(step, mode)
        step.windows.copy_((torch.arange(step.windows.numel()) ** 2 % 31).view(step.windows.shape))
        example = step.functions.example()
        loss, _ = step.functions.losses(example, example.weights.sum((1, 2)))
        (found,) = torch.autograd.grad(loss.sum(), list(step.model.position.parameters()))
        return found

    expected = gradient("eager")
    for mode in ("block", "whole"):
        assert torch.linalg.vector_norm(
            gradient(mode) - expected
        ) < 0.02 * torch.linalg.vector_norm(expected)


@cuda
@pytest.mark.parametrize("mode", ["eager", "block"])
def test_blocks_computed_again_take_less_memory_and_change_nothing(mode: str) -> None:
    packs = [config(n_layer=8, d_model=128, n_ctx=128, batch_tokens=64 * 128, dropout=0.1, lr=1e-3)]
    losses, peaks = [], []
    for recompute in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step = Step(packs, text(), "cuda", recompute=recompute)
        step.functions = compiled.functions(step, mode)
        compiled.capture(step)
        losses.append(rows(step, 10)[:, 0])
        peaks.append(torch.cuda.max_memory_allocated() - held)
        del step
    assert abs(losses[1] - losses[0]).max() < 1e-4
    assert peaks[1] < 0.6 * peaks[0]


@cuda
def test_an_evaluation_takes_the_memory_that_steps_of_other_shapes_hold(
    no_cached_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = run(config(), device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    run(config(n_layer=8, d_model=256, n_ctx=128, batch_tokens=64 * 128), device="cuda")
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    held = reserved - before  # by the captured step of the large model
    assert held > 2**28 and len(compiled.step_cache) == 2
    evaluate = Evaluator.held_out

    def large(evaluator: Evaluator) -> Any:
        torch.empty(held // 2, dtype=torch.uint8, device="cuda")
        return evaluate(evaluator)

    monkeypatch.setattr(Evaluator, "held_out", large)
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((reserved + held // 4) / total)
    try:
        (events,) = run(config(), device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert events.curve() == expected.curve() and len(compiled.step_cache) == 1


@cuda
def test_packed_equals_solo_over_32_seeds() -> None:
    """Rounding lets two trainings of one seed part in time; on the whole it must favour neither."""
    shape = {
        "d_model": 64,
        "n_ctx": 64,
        "batch_tokens": 4096,
        "steps": 100,
        "lr": 1e-3,
        "precision": "bfloat16",
    }
    wanted = [config(**shape, seed=seed) for seed in range(32)]

    def losses(*configs: RunConfig) -> list[float]:
        step = Step(configs, text(), "cuda")
        compiled.capture(step)
        return Evaluator(run_to_end(step), configs, Evaluation(tokens=2048), text()).held_out().loss

    packed = np.array(
        [loss for first in range(0, 32, 8) for loss in losses(*wanted[first : first + 8])]
    )
    solo = np.array([loss for one in wanted for loss in losses(one)])
    difference = packed - solo
    half = stats.t.ppf(0.975, 31) * difference.std(ddof=1) / 32**0.5
    assert abs(difference.mean()) + half < 0.2 * solo.std(ddof=1)


def run_to_end(step: Step) -> Step:
    while step.done < step.config.steps:
        rows(step, min(step.ring, step.config.steps - step.done))
    return step


@cuda
def test_a_captured_step_serves_other_runs() -> None:
    variant = {"objective": "masked", "dropout": 0.1}
    step = Step([config(**variant)], text(), "cuda")
    compiled.capture(step)
    rows(step, 10)
    other = config(
        **variant,
        seed=5,
        lr=3e-3,
        mask_ratio=0.4,
        steps=17,
        warmup=0.2,
        grad_clip=0.3,
        weight_decay=0.7,
    )
    step.load([other], text())
    assert abs(rows(step, 17) - rows(Step([other], text(), "cuda"), 17)).max() < 1e-4


@cuda
@pytest.mark.parametrize("document_mask", ["none", "attention"])
def test_the_gpu_computes_what_the_cpu_does(document_mask: str) -> None:
    variant = {"objective": "masked", "dropout": 0.1, "document_mask": document_mask}
    packs = [config(seed=seed, precision="float64", **variant) for seed in range(2)]
    assert (
        abs(rows(Step(packs, text(), "cuda"), 20) - rows(Step(packs, text(), "cpu"), 20)).max()
        < 1e-9
    )


@cuda
@pytest.mark.parametrize("mode", ["auto", *compiled.MODES])
def test_a_pack_trains_on_a_gpu(mode: str, no_cached_steps: None) -> None:
    evaluation = Evaluation(points=3, tokens=256, lengths=(1, 2))
    good, bad = run(
        config(seed=1), config(seed=2, lr=1e30), evaluation=evaluation, device="cuda", compile=mode
    )
    assert good.of("start")[0]["compile_mode"] == ("eager" if mode == "auto" else mode)
    assert good.end["status"] == "complete" and good.end["peak_bytes"] > 0
    assert good.finals()["loss", 0] < 2.5
    assert bad.end["status"] == "diverged" and bad.end["step"] == 2


@cuda
def test_a_gpu_resumes(tmp_path: Any, no_cached_steps: None) -> None:
    asked = iter(range(100))
    (whole,) = run(config(), device="cuda")
    events = [Events()]
    run(
        config(),
        device="cuda",
        into=events,
        checkpoint=tmp_path / "c",
        stop=lambda: next(asked) == 13,
    )
    run(config(), device="cuda", into=events, checkpoint=tmp_path / "c", resume=True)
    assert events[0].of("start")[1]["step"] == 13
    assert list(events[0].series("train_loss").values()) == pytest.approx(
        list(whole.series("train_loss").values()), abs=1e-4
    )
