"""The step: packs equal solo runs, accumulation equals the whole batch, steps are reusable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from train_helpers import config, text

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.train.step import Step

STEPS = 50
SEEDS = (3, 4)


def go(
    configs: list[RunConfig], n: int = STEPS, micro_batch: int = 0, recompute: bool = False
) -> Step:
    step = Step(configs, text(), "cpu", micro_batch, recompute)
    step.run(n, lambda: False)
    return step


def members(step: Step) -> list[dict[str, torch.Tensor]]:
    return [
        {name: p.detach()[k].cpu() for name, p in step.model.named_parameters()}
        for k in range(step.model.pack)
    ]


VARIANTS: list[dict[str, Any]] = [
    *({"topology": level} for level in CATALOGUE["topology"].names),
    *({"position": level} for level in CATALOGUE["position"].names if level != "rotary"),
    {"norm": "post", "tie_embeddings": "tied"},
    {"objective": "masked", "dropout": 0.1},
    {"n_kv_head": 1, "qk_norm": "rmsnorm", "activation": "swiglu", "z_loss": 1e-3},
    {
        "score": "additive",
        "position": "t5",
        "head_combine": "sum",
        "qkv": "mlp",
        "norm_kind": "layernorm-scalar",
    },
]


@pytest.mark.parametrize(
    "variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values()))
)
def test_packed_equals_solo_over_50_steps_in_float64(variant: dict[str, Any]) -> None:
    """Members differ in all that members may differ in."""
    masked = variant.get("objective") == "masked"
    own: list[dict[str, Any]] = [
        {"seed": 3, "lr": 3e-3, "weight_decay": 0.1, **({"mask_ratio": 0.15} if masked else {})},
        {"seed": 4, "lr": 1e-2, "weight_decay": 0.5, **({"mask_ratio": 0.5} if masked else {})},
    ]
    configs = [config(precision="float64", steps=STEPS, **variant, **fields) for fields in own]
    together = go(configs)
    for k, alone in enumerate(configs):
        solo = go([alone])
        rows, _ = together.read(STEPS)
        solo_rows, _ = solo.read(STEPS)
        assert abs(rows[:, :, k] - solo_rows[:, :, 0]).max() < 1e-9
        for name, parameter in members(solo)[0].items():
            torch.testing.assert_close(members(together)[k][name], parameter, rtol=0, atol=1e-9)


@pytest.mark.parametrize("position", CATALOGUE["position"].names)
def test_packed_equals_solo_to_1e5_in_float32(position: str) -> None:
    configs = [config(seed=seed, lr=1e-3, steps=STEPS, position=position) for seed in SEEDS]
    together = go(configs).read(STEPS)[0][:, 0]
    for k, alone in enumerate(configs):
        assert abs(together[:, k] - go([alone]).read(STEPS)[0][:, 0, 0]).max() < 1e-5


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"objective": "masked", "dropout": 0.2, "z_loss": 1e-3},
        {"objective": "masked", "mask_kind": "span"},
    ],
    ids=str,
)
@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_accumulated_micro_batches_equal_the_whole_batch(
    variant: dict[str, Any], micro_batch: int
) -> None:
    configs = [config(precision="float64", seed=seed, steps=10, **variant) for seed in SEEDS]
    whole, parts = go(configs, 10), go(configs, 10, micro_batch)
    assert abs(whole.read(10)[0] - parts.read(10)[0]).max() < 1e-11
    torch.testing.assert_close(parts.optimiser.weights, whole.optimiser.weights, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values()))
)
def test_blocks_computed_again_change_no_bit(variant: dict[str, Any]) -> None:
    configs = [config(precision="float64", seed=seed, steps=5, **variant) for seed in SEEDS]
    kept, again = go(configs, 5, 2), go(configs, 5, 2, recompute=True)
    assert torch.equal(again.optimiser.weights, kept.optimiser.weights)
    assert (again.read(5)[0] == kept.read(5)[0]).all()


def test_blocks_computed_again_keep_their_input_alone() -> None:
    """What autograd is given to keep within blocks, over a forward pass: all, or nothing."""
    kept = {}
    for recompute in (False, True):
        step = Step([config(n_layer=3)], text(), "cpu", recompute=recompute)
        example = step.example()
        sizes: list[int] = []

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            step.model.features(example.inputs)
        kept[recompute] = sum(sizes)
    assert kept[True] < kept[False] / 10


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    """Against torch's own loss on the same windows and weights."""
    step = Step([config(precision="float64", z_loss=0.01)], text(), "cpu")
    windows = step.batches.several(0, 1)[0]
    logits = step.model(windows[..., :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), windows[..., 1:].flatten())
    penalty = 0.01 * logits.logsumexp(-1).square().mean()
    gradient = torch.autograd.grad(loss + penalty, step.optimiser.parameters)
    norm = torch.stack([g.norm() for g in gradient]).norm()
    step.run(1, lambda: False)
    (row,), _ = step.read(1)
    assert row[:2, 0].tolist() == pytest.approx([loss.item(), norm.item()], rel=1e-10)


def test_each_step_draws_its_own_masks_and_dropout() -> None:
    """Against the model and the objective asked for the draws of step 2."""
    step = Step(
        [config(objective="masked", dropout=0.3, lr=1e-30, precision="float64")], text(), "cpu"
    )
    step.run(3, lambda: False)
    rows, _ = step.read(3)
    for number in (0, 2):
        step.model.rng.step.fill_(number)
        inputs, targets, weights, *_ = step.objective.train(
            step.batches.several(number, 1)[0], number
        )
        loss = torch.nn.functional.cross_entropy(
            step.model(inputs).flatten(0, -2), targets.flatten(), reduction="none"
        )
        assert rows[number, 0, 0] == pytest.approx(
            (loss @ weights.flatten().double() / weights.sum()).item(), rel=1e-12
        )


CROSSED = [(0, 0), (0, 5), (3, 0), (3, 5)]  # seeds of initialisation and of data order


def crossed(init: int, data: int) -> RunConfig:
    return config(
        objective="masked",
        dropout=0.2,
        precision="float64",
        seed=9,
        init_seed=init,
        data_seed=data,
        steps=10,
    )


def test_initialisation_and_data_order_have_seeds_of_their_own() -> None:
    """Equal init_seed: the same weights; equal data_seed: the same batches, masks and dropout."""
    whole = {pair: Step([crossed(*pair)], text(), "cpu") for pair in CROSSED}
    for one in CROSSED:
        for other in CROSSED:
            first, second = whole[one], whole[other]
            weights = torch.equal(first.optimiser.weights, second.optimiser.weights)
            windows = [step.batches.several(2, 1)[0] for step in (first, second)]
            examples = [
                step.objective.train(window, 2)
                for step, window in zip((first, second), windows, strict=True)
            ]
            assert weights is (one[0] == other[0])
            same_data = one[1] == other[1]
            assert torch.equal(*windows) is same_data
            assert torch.equal(*(example.inputs for example in examples)) is same_data
            assert torch.equal(*(example.weights for example in examples)) is same_data
            assert torch.equal(first.model.rng.seed, second.model.rng.seed) is same_data


def test_two_equal_seeds_are_a_run_with_that_seed() -> None:
    plain = config(objective="masked", dropout=0.2, precision="float64", seed=3, steps=10)
    assert torch.equal(go([plain], 10).optimiser.weights, go([crossed(3, 3)], 10).optimiser.weights)


def test_a_pack_of_crossed_seeds_equals_each_run_alone() -> None:
    together = members(go([crossed(*pair) for pair in CROSSED], 10))
    for pair, packed in zip(CROSSED, together, strict=True):
        (alone,) = members(go([crossed(*pair)], 10))
        for name, value in alone.items():
            torch.testing.assert_close(packed[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 7},
        {"init_seed": 7},
        {"data_seed": 7},
        {"lr": 0.003},
        {"weight_decay": 0.9},
        {"mask_ratio": 0.4},
        {"steps": 13},
        {"warmup": 0.5},
        {"grad_clip": 0.1},
        {"grad_clip": 0.0},
    ],
    ids=str,
)
def test_a_step_loaded_with_other_runs_is_as_a_new_one(change: dict[str, Any]) -> None:
    first = config(objective="masked", dropout=0.1)
    other = config(**{"objective": "masked", "dropout": 0.1} | change)
    used, untouched = go([first], 10), go([first], 10)
    used.load([other], text())
    used.run(10, lambda: False)
    new = go([other], 10)
    assert torch.equal(used.optimiser.weights, new.optimiser.weights)
    assert not torch.equal(new.optimiser.weights, untouched.optimiser.weights)


def test_without_clipping_a_gradient_of_any_norm_is_taken_as_it_is() -> None:
    unclipped, loose, tight = (go([config(grad_clip=clip)], 5) for clip in (0.0, 1e6, 0.01))
    assert torch.equal(unclipped.optimiser.weights, loose.optimiser.weights)
    assert not torch.equal(unclipped.optimiser.weights, tight.optimiser.weights)


@pytest.mark.parametrize("corpus", ["on the device", "on the host"])
def test_the_ring_holds_what_was_not_read_in_between(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go([config()], 21).read(21)[0]
    if corpus == "on the host":
        monkeypatch.setattr("ablate.train.step.TEXT_BYTES", 0)
    monkeypatch.setattr("ablate.train.step.RING", 5)
    step = Step([config()], text(), "cpu")
    rows = []
    for n in (3, 5, 5, 4, 4):
        step.run(n, lambda: False)
        rows += list(step.read(n)[0])
    assert len(rows) == 21 and all(
        (row == expected).all() for row, expected in zip(rows, whole, strict=True)
    )
