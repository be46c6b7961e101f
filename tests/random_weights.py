"""Models with random weights, of which attention is not uniform."""

from __future__ import annotations

import torch
from torch import nn

from ablate.config import RunConfig
from ablate.kinds import Run
from ablate.model.transformer import model_of
from ablate.train.weights import About
from ablate.trained import Model


def randomise(model: nn.Module, seed: int, deviation: float) -> None:
    """Draw every parameter of a model of ablate or of `transformers`; gains are around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = name.endswith("gain") or (parameter.ndim == 1 and name.endswith("weight"))
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation + gain)


def random_model(config: RunConfig, seed: int, deviation: float) -> Model:
    """Return a model of ablate with random weights, as one of a run."""
    run = Run("transformer", config.model_dump(mode="json"))
    transformer = model_of(run.config)
    transformer.initialise([0])
    randomise(transformer, seed, deviation)
    kept = {name: one[0].clone() for name, one in transformer.state_dict().items()}
    return Model(kept, About(run, run.key, "final", 1, 0.0, b"", ()))
