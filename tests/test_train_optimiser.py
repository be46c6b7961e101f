"""The stacked AdamW against torch's, member by member."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ablate.train.optimiser import AdamW

# of a member, odd sizes
SHAPES = {
    "a_weight": (5, 7),
    "b_bias": (3,),
    "c_weight": (11, 2),
    "d_gain": (64,),
    "e_vector": (2, 3),
}
LR, DECAY, CLIP = [1e-3, 3e-2, 1e-2], [0.1, 0.0, 0.5], [1.0, float("inf"), 0.5]
STEPS = 50


def members() -> nn.Module:
    """A module with parameters named as a model's: `weight` (decayed), `bias`, `gain`, `vector`."""
    torch.manual_seed(0)
    module = nn.Module()
    for name, shape in SHAPES.items():
        owner, kind = name.split("_")
        module.add_module(owner, nn.Module())
        module.get_submodule(owner).register_parameter(
            kind, nn.Parameter(torch.randn(3, *shape, dtype=torch.float64))
        )
    return module


def gradients(step: int) -> list[Tensor]:
    torch.manual_seed(1000 + step)
    return [
        torch.randn(3, *shape, dtype=torch.float64) * (1 + step % 3) for shape in SHAPES.values()
    ]


def theirs(k: int) -> tuple[list[Tensor], list[float]]:
    """Return member k's weights and norms after 50 steps of torch's AdamW with clipping."""
    mine = [nn.Parameter(p.detach()[k].clone()) for p in members().parameters()]
    groups = [
        {"params": [mine[0], mine[2]], "weight_decay": DECAY[k]},
        {"params": [mine[1], mine[3], mine[4]], "weight_decay": 0.0},
    ]
    torch_adamw = torch.optim.AdamW(groups, lr=LR[k], betas=(0.9, 0.95), eps=1e-8)
    norms = []
    for step in range(STEPS):
        for p, g in zip(mine, gradients(step), strict=True):
            p.grad = g[k].clone()
        norms.append(nn.utils.clip_grad_norm_(mine, CLIP[k]).item())
        torch_adamw.step()
    return [p.detach() for p in mine], norms


def ours(diverging: int | None = None, steps: int = STEPS) -> tuple[list[nn.Parameter], Tensor]:
    """All members' weights and norms [STEPS, K]. `diverging`: a member whose gradients are NaN from
    step 20 on.
    """
    module = members()
    parameters = list(module.parameters())
    optimiser = AdamW(module)
    order = [next(i for i, p in enumerate(parameters) if p is q) for q in optimiser.parameters]
    alive = torch.ones(3, dtype=torch.bool)
    vectors = [torch.tensor(values, dtype=torch.float64) for values in (LR, DECAY, CLIP)]
    norms = []
    for step in range(steps):
        grads = gradients(step)
        if diverging is not None and step >= 20:
            alive[diverging] = False
            for g in grads:
                g[diverging] = float("nan")
        flat = optimiser.flatten([grads[i] for i in order])
        norms.append(
            optimiser.update(flat, torch.tensor(float(step), dtype=torch.float64), *vectors, alive)
        )
    return parameters, torch.stack(norms)


@pytest.mark.parametrize("k", range(3))
def test_fifty_steps_equal_torch_adamw_with_clipping(k: int) -> None:
    parameters, norms = ours()
    expected, expected_norms = theirs(k)
    for p, q in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.detach()[k], q, rtol=1e-10, atol=1e-12)
    assert norms[:, k].tolist() == pytest.approx(expected_norms, rel=1e-12)


def test_a_member_that_is_not_alive_keeps_its_weights_and_the_others_do_not_notice() -> None:
    parameters, _ = ours(diverging=1)
    undisturbed, _ = ours()
    at_its_end, _ = ours(steps=20)
    for p, q, last in zip(parameters, undisturbed, at_its_end, strict=True):
        assert torch.equal(p[1], last[1])
        assert torch.equal(p[0], q[0]) and torch.equal(p[2], q[2])


def test_reset_makes_the_next_steps_those_of_a_new_optimiser() -> None:
    optimiser = AdamW(members())
    start = optimiser.weights.clone()
    arguments = [torch.tensor(values, dtype=torch.float64) for values in (LR, DECAY, CLIP)]

    def run() -> Tensor:
        with torch.no_grad():
            optimiser.weights.copy_(start)
        optimiser.reset()
        for step in range(3):
            gradient = torch.sin(optimiser.weights * (step + 1))
            optimiser.update(
                gradient, torch.tensor(float(step)), *arguments, torch.ones(3, dtype=torch.bool)
            )
        return optimiser.weights.clone()

    assert torch.equal(run(), run())
