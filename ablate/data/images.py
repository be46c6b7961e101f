"""Objectives on images: from rows of bytes to patches, targets, and which patches are hidden.

A row of a batch has the bytes of an image and of its class, as `ablate.images.sets.Images` lays
them out. All draws are functions of (seed, stream, step, index), and all shapes are fixed, so that
a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ablate import draws
from ablate.config import RunConfig
from ablate.data.objectives import Example, rank
from ablate.images import Images
from ablate.images.sets import LABEL_BYTES

_TRAIN, _TEST = (draws.stream(name) for name in ("hide patches", "hide held-out patches"))
_TEST_SEED = 0  # of every mask on held-out images, whatever the run's seed
SPREAD = 1e-6  # added to the variance of a patch, as in He et al.


class OfImages:
    """Base of the objectives on images.

    Pixels are numbers from −1 to 1. A patch is read row by row, with the channels of a pixel
    together.
    """

    def __init__(self, configs: Sequence[RunConfig], images: Images, device: torch.device | str):
        first: Any = configs[0]
        self._device, self._n_runs = device, len(configs)
        patch, self.n_ctx = first.patch, first.n_ctx
        rows, columns = first.image_height // patch, first.image_width // patch
        self._split = (rows, patch, columns, patch * first.image_channels)  # of the pixels

    def load(self, configs: Sequence[RunConfig]) -> None:
        """Take other runs of the same shape."""
        assert len(configs) == self._n_runs

    def patches(self, windows: Tensor) -> Tensor:
        """Return the patches of rows [..., span] of bytes, [..., T, P] float32."""
        pixels = windows[..., :-LABEL_BYTES].unflatten(-1, self._split)
        return pixels.transpose(-3, -2).flatten(-2).flatten(-3, -2).float() / 127.5 - 1

    def classes(self, windows: Tensor) -> Tensor:
        """Return the classes of rows [..., span] of bytes, [...] int64."""
        low, high = windows[..., -LABEL_BYTES:].unbind(-1)
        return low + 256 * high


class Classify(OfImages):
    """The class of an image. Source: Dosovitskiy et al. 2020, arXiv:2010.11929."""

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        targets = self.classes(windows)[..., None]
        return Example(self.patches(windows), targets, torch.ones_like(targets, dtype=torch.float))

    def test(self, windows: Tensor, row: int = 0) -> Example:
        return self.train(windows.expand(self._n_runs, *windows.shape), 0)


class MaskedAutoencoding(OfImages):
    """The pixels of hidden patches; exactly round(mask_ratio · T) of an image are hidden.

    Each patch is normalised by its own mean and deviation. Source: He et al. 2021,
    arXiv:2111.06377.
    """

    def __init__(self, configs: Sequence[RunConfig], images: Images, device: torch.device | str):
        super().__init__(configs, images, device)
        self._n_hidden: int = configs[0].part("objective").n_hidden(configs[0])
        self._seeds = torch.zeros(len(configs), dtype=torch.int64, device=device)
        self.load(configs)

    def load(self, configs: Sequence[RunConfig]) -> None:
        super().load(configs)
        self._seeds.copy_(torch.tensor([config.batches_seed for config in configs]))

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        shape = (windows.shape[1], self.n_ctx)
        uniforms = draws.uniforms(self._seeds, _TRAIN, step, shape, row)
        return self._hide(self.patches(windows), uniforms, self._n_hidden)

    def test(self, windows: Tensor, row: int = 0) -> Example:
        example = self._test(windows, self._n_hidden, row)
        return example.each(lambda one: one.expand(self._n_runs, *one.shape[1:]))

    def probe(self, windows: Tensor, ratio: float, row: int = 0) -> Example:
        """Return an example of [1, W, T] from held-out images, equal for all arms.

        Args:
            windows: [W, span].
            ratio: Share of patches that are hidden; at least one is, and one is shown.
            row: Number of the first of them among all images of the evaluation.
        """
        n = min(max(1, round(ratio * self.n_ctx)), self.n_ctx - 1)
        return self._test(windows, n, row)

    def _test(self, windows: Tensor, n: int, row: int) -> Example:
        patches = self.patches(windows[None].to(self._device))
        seed = torch.tensor([_TEST_SEED], device=self._device)
        return self._hide(patches, draws.uniforms(seed, _TEST, 0, patches.shape[1:3], row), n)

    def _hide(self, patches: Tensor, uniforms: Tensor, n: int) -> Example:
        """Hide the n patches of each image that have the lowest numbers [K or 1, B, T]."""
        shown = rank(uniforms) >= n
        length = shown.shape[-1]
        # the places of those that are shown, in order; all others go behind them
        place = torch.where(shown, shown.cumsum(-1) - 1, length - n)
        index = torch.arange(length, device=shown.device).expand(shown.shape)
        places = index.new_zeros(*shown.shape[:-1], length - n + 1).scatter(-1, place, index)
        return Example(
            patches, normalised(patches), (~shown).float(), None, places[..., : length - n]
        )


def normalised(patches: Tensor) -> Tensor:
    """Return patches [..., P], each less its mean and divided by its standard deviation."""
    variance, mean = torch.var_mean(patches, -1, keepdim=True)
    return (patches - mean) * (variance + SPREAD).rsqrt()
