"""Cross-entropy and its gradient against torch's, and what it keeps for the backward pass."""

from __future__ import annotations

import pytest
import torch

from ablate.train.loss import cross_entropy


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (4 * torch.randn(2, 3, 5, 17)).to(dtype).requires_grad_(), torch.randint(17, (2, 3, 5))


def test_loss_and_gradient_equal_torch_in_float64() -> None:
    logits, targets = inputs(torch.float64)
    loss, normaliser = cross_entropy(logits, targets)
    weights = torch.rand(2, 3, 5, dtype=torch.float64)
    (mine,) = torch.autograd.grad((loss * weights + 0.3 * normaliser**2).sum(), logits)
    expected = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
    (theirs,) = torch.autograd.grad(
        (expected * weights + 0.3 * logits.logsumexp(-1) ** 2).sum(), logits
    )
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits, targets = inputs(torch.bfloat16)
    loss, _ = cross_entropy(logits, targets)
    expected = torch.nn.functional.cross_entropy(
        logits.detach().float().movedim(-1, 1), targets, reduction="none"
    )
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_backward_pass_keeps_no_second_copy_of_the_logits(dtype: torch.dtype) -> None:
    logits, targets = inputs(dtype)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        cross_entropy(logits, targets)
    large = [t for t in kept if t.numel() == logits.numel()]
    assert [t.data_ptr() for t in large] == [logits.data_ptr()]
