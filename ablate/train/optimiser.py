"""AdamW over K runs, each with its own learning rate, weight decay and clipping.

`torch.optim.AdamW` has one learning rate for all its parameters. Here all parameters of a pack are
in one buffer [K, N], a row a member, so that an update is a few operations on whole rows. Source:
Loshchilov & Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ablate.components.base import Component
from ablate.components.plain import construct
from ablate.config import RunConfig

ALIGN = 64  # elements: every parameter starts at an address that is fast for matrix products


class AdamW:
    """The parameters and the two moments of their gradient as rows [K, N].

    It takes over the storage of a module's parameters that are trained, which all are unless
    `requires_grad` says otherwise: afterwards each is a view of `weights`.
    Those called `weight` (matrices, embeddings) are decayed; biases, gains and vectors are not. Of
    a plain module all that have two axes or more are.
    """

    def __init__(
        self, module: nn.Module, *, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
    ):
        trained = [pair for pair in module.named_parameters() if pair[1].requires_grad]
        named = sorted(trained, key=lambda pair: not _decays(*pair))
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.betas, self.eps = betas, eps
        first = self.parameters[0]
        self.n_members = first.shape[0]
        widths = [p[0].numel() for p in self.parameters]
        self._padding = [-width % ALIGN for width in widths]
        room = [width + pad for width, pad in zip(widths, self._padding, strict=True)]
        self.n_decayed = sum(n for n, one in zip(room, named, strict=True) if _decays(*one))
        self.weights = first.new_zeros(self.n_members, sum(room), requires_grad=False)
        for p, width, row in zip(
            self.parameters, widths, self.weights.split(room, dim=1), strict=True
        ):
            view = row[:, :width].view(p.shape)
            view.copy_(p.detach())
            p.data = view
        self.mean = torch.zeros_like(self.weights)
        self.square = torch.zeros_like(self.weights)
        self._zeros = {
            pad: first.new_zeros(self.n_members, pad, requires_grad=False)
            for pad in set(self._padding)
            if pad
        }

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides the tensors that have a row a member."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def reset(self) -> None:
        """Set all moments to zero, as before the first step."""
        self.mean.zero_()
        self.square.zero_()

    def flatten(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return gradients of `self.parameters`, in their order, as rows [K, N] (a copy)."""
        pieces = []
        for gradient, pad in zip(gradients, self._padding, strict=True):
            pieces.append(gradient.reshape(self.n_members, -1))
            if pad:
                pieces.append(self._zeros[pad])
        return torch.cat(pieces, dim=1)

    @torch.no_grad()
    def update(
        self,
        gradient: Tensor,
        step: Tensor,
        lr: Tensor,
        weight_decay: Tensor,
        clip: Tensor,
        alive: Tensor,
    ) -> Tensor:
        """Make one step.

        Args:
            gradient: [K, N].
            step: Steps made before, 0-d, floating.
            lr: [K].
            weight_decay: [K].
            clip: Largest norm of a gradient, inf for none; [K].
            alive: Which members change their weights; [K] bool.

        Returns:
            Norm of each member's gradient before clipping, [K].
        """
        beta1, beta2 = self.betas
        norm = torch.linalg.vector_norm(gradient, dim=1)
        scale = (clip / (norm + 1e-6)).clamp(max=1)
        gradient = torch.where(alive[:, None], gradient * scale[:, None], 0)
        rate = torch.where(alive, lr, 0)[:, None]
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        unbiased = (1 - beta2 ** (step + 1)).sqrt()
        denominator = (self.square.sqrt() / unbiased).add_(self.eps)
        self.weights[:, : self.n_decayed].mul_(1 - rate * weight_decay[:, None])
        self.weights.sub_(rate / (1 - beta1 ** (step + 1)) * self.mean / denominator)
        return norm


class Given(AdamW):
    """A `torch.optim.Optimizer` of a user's own, for one model.

    It sees parameters without the axis of a pack, in two groups: those that decay, and the others
    with a weight decay of 0. The gradient is clipped before. It runs eagerly, because it reads the
    learning rate as a number.
    """

    def __init__(self, module: nn.Module, component: Component, config: RunConfig):
        super().__init__(module)
        assert self.n_members == 1, component.solo
        self.mean, self.square = (self.weights.new_zeros(1, 0) for _ in range(2))
        self._make = functools.partial(construct, component.plain, config)
        self.views = [nn.Parameter(p.data.squeeze(0)) for p in self.parameters]
        self._decayed = [_decays(*one) for one in zip(self.names, self.parameters, strict=True)]
        self.reset()

    def reset(self) -> None:
        of = list(zip(self.views, self._decayed, strict=True))
        groups: list[dict[str, Any]] = [
            {"params": [view for view, decays in of if decays]},
            {"params": [view for view, decays in of if not decays], "weight_decay": 0.0},
        ]
        self.optimiser = self._make(params=[group for group in groups if group["params"]])

    def state(self) -> dict[str, Any]:
        state = copy.deepcopy(self.optimiser.state_dict())
        for of in state["state"].values():
            of |= {name: one.cpu() for name, one in of.items() if isinstance(one, Tensor)}
        return {"optimiser": state}

    def load_state(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state["optimiser"])

    @torch.no_grad()
    def update(
        self,
        gradient: Tensor,
        step: Tensor,
        lr: Tensor,
        weight_decay: Tensor,
        clip: Tensor,
        alive: Tensor,
    ) -> Tensor:
        norm = torch.linalg.vector_norm(gradient, dim=1)
        if alive.item():
            gradient = gradient * (clip / (norm + 1e-6)).clamp(max=1)[:, None]
            room = [p.numel() + pad for p, pad in zip(self.views, self._padding, strict=True)]
            for view, row in zip(self.views, gradient[0].split(room), strict=True):
                view.grad = row[: view.numel()].view(view.shape)
            for group in self.optimiser.param_groups:
                group["lr"] = lr.item()
            with torch.enable_grad():
                self.optimiser.step()
        return norm


def _decays(name: str, parameter: Tensor) -> bool:
    """Plain modules say it of each parameter, which they name as they like."""
    return bool(getattr(parameter, "decays", name.rpartition(".")[2] == "weight"))
