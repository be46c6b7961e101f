"""Losses in float32 or better from outputs of any precision: cross-entropy without a copy of the
logits, and the squared error of numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CrossEntropy(torch.autograd.Function):
    """−log softmax(logits)[target], and log Σ exp logits for the z-loss (arXiv:2204.02311).

    Autograd would keep the logits in float32 as well as those of the matrix product; this function
    keeps only the latter, and compiled code makes none in float32. Computing head and loss by
    chunks of tokens gained no speed at 124M parameters; where logits do not fit, a micro-batch has
    fewer.
    """

    @staticmethod
    def forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        normaliser = torch.logsumexp(_wide(logits), dim=-1)
        chosen = logits.gather(-1, targets[..., None])[..., 0]
        return normaliser - chosen, normaliser

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        logits, targets = inputs
        ctx.save_for_backward(logits, targets, output[1])

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, d_normaliser: Tensor) -> tuple[Tensor, None]:
        logits, targets, normaliser = ctx.saved_tensors
        share = (_wide(logits) - normaliser[..., None]).exp() * (d_loss + d_normaliser)[..., None]
        hit = torch.arange(logits.shape[-1], device=logits.device) == targets[..., None]
        return torch.where(hit, share - d_loss[..., None], share).to(logits.dtype), None


def cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of every token and its log Σ exp logits.

    Args:
        logits: […, V].
        targets: […] int64.

    Returns:
        […] each, float32, or float64 for float64 logits.
    """
    loss, normaliser = CrossEntropy.apply(logits, targets)
    return loss, normaliser


def token_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of every token, and what the z-loss takes the square of.

    Integers are classes, whose loss is the cross-entropy. The loss of numbers is the mean of their
    squared errors, and has no z-loss.

    Args:
        outputs: Of the head, […, V].
        targets: […] int64, or numbers […, V].

    Returns:
        […] each, float32, or float64 for float64 outputs.
    """
    if not targets.is_floating_point():
        return cross_entropy(outputs, targets)
    error = (_wide(outputs) - targets).square().mean(-1)
    return error, torch.zeros_like(error)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
