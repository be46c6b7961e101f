"""Trials of a model: what every level has to pass, of ablate's own and of a user's.

`ablate check` and the tests run all of them, planning only those that a run would fail by. Each
takes a configuration, which should be small, and returns what is wrong, "" for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate import code, sizes
from ablate.config import RunConfig
from ablate.model.transformer import Transformer, beside, model_of

SEEDS = (4, 9)  # of the members of a pack
STEPS, RATE = 30, 3e-3  # in which the loss of a model falls
FALL = 0.02  # nats, at least


def built(config: RunConfig, *seeds: int) -> Transformer:
    """Return a model with initial weights, of the configuration's seed by default."""
    model: Transformer = model_of(config, max(1, len(seeds)))
    model.initialise(seeds or (config.weights_seed,))
    return model


def tokens(config: RunConfig, pack: int = 1, seed: int = 0) -> Tensor:
    """Return random tokens [K, B, T]."""
    shape = (pack, config.batch_size, config.n_ctx)
    return torch.randint(config.n_vocab, shape, generator=torch.Generator().manual_seed(seed))


def logits_of(model: Transformer, given: Tensor) -> Tensor:
    """Return the logits of tokens [K, B, T]; what an encoder reads is always the same."""
    logits: Tensor = model(given, *beside(model.config, given))
    return logits


def loss_of(model: Transformer, given: Tensor) -> Tensor:
    """Return the sum over members of the mean loss against the same tokens turned round."""
    logits = logits_of(model, given)
    return F.cross_entropy(logits.flatten(0, 2), given.flip(-1).flatten()) * len(given)


def works(config: RunConfig) -> str:
    """Whether a step can be made: shapes, and a gradient for every parameter, even if it is 0."""
    try:
        model, given = built(config), tokens(config)
        logits = logits_of(model, given)
        if wrong := _shape(config, logits):
            return wrong
        gradients = torch.autograd.grad(
            loss_of(model, given), list(model.parameters()), allow_unused=True
        )
    except Exception as error:
        return said(config, error)
    names = [name for name, _ in model.named_parameters()]
    if unused := [n for n, one in zip(names, gradients, strict=True) if one is None]:
        return f"{_parts(config)}: the loss does not depend on parameter {_short(unused[0])}"
    return deterministic(config)


def shapes(config: RunConfig) -> str:
    """Whether logits are [B, T, V], and finite."""
    return _shape(config, logits_of(built(config), tokens(config)))


def _shape(config: RunConfig, logits: Tensor) -> str:
    wanted = (1, config.batch_size, config.n_ctx, config.n_vocab)
    if tuple(logits.shape) != wanted:
        return f"logits are {list(logits.shape[1:])}, not {list(wanted[1:])}"
    return "" if logits.isfinite().all() else "logits are not finite"


@torch.no_grad()
def causal(config: RunConfig) -> str:
    """Whether no position sees a later one, and no sequence another."""
    model, given = built(config), tokens(config)
    before = logits_of(model, given)
    if config.part("attention").causal:
        for at in sorted({1, config.n_ctx // 2, config.n_ctx - 1}):
            later = given.clone()
            later[..., at:] = (later[..., at:] + 1) % config.n_vocab
            if not _close(config, logits_of(model, later)[..., :at, :], before[..., :at, :]):
                return (
                    f"positions before {at} change when tokens from {at} on do: it sees the future"
                )
    other = given.clone()
    other[:, 1:] = (other[:, 1:] + 1) % config.n_vocab
    if not _close(config, logits_of(model, other)[:, :1], before[:, :1]):
        return "a sequence changes when another one of the batch does"
    return ""


def gradients(config: RunConfig) -> str:
    """Whether every parameter of every member of a pack gets a gradient that is not 0."""
    dead = without_gradient(config)
    return f"no gradient reaches {', '.join(map(_short, dead))}" if dead else ""


def without_gradient(config: RunConfig, smallest: float = 1e-9) -> list[str]:
    """Return the parameters whose gradient is 0 for a member of a pack of two.

    Weights are moved from their initial values, at which a branch may be multiplied by 0.
    """
    model = built(config, *(SEEDS if not sizes.alone(config) else SEEDS[:1]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.std() if parameter.numel() > 1 else parameter.abs().mean()
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(0.1 * size.clamp(min=0.1) * noise)
    loss = loss_of(model, tokens(config, model.pack))
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return [
        name
        for name, gradient in zip(named, found, strict=True)
        if gradient is None or gradient.reshape(len(gradient), -1).abs().amax(1).min() <= smallest
    ]


def deterministic(config: RunConfig) -> str:
    """Whether the same seed and tokens give the same numbers, call after call."""
    model, given = built(config), tokens(config)
    with torch.no_grad():
        kept = [buffer.clone() for buffer in model.buffers()]
        first, again = logits_of(model, given), logits_of(model, given)
        fresh = built(config)
        initial = zip(fresh.parameters(), built(config).parameters(), strict=True)
        if not all(map(torch.equal, *zip(*initial, strict=True))):
            return f"{_parts(config)}: initial values differ from one construction to the next"
        if not torch.equal(first, again):
            return (
                f"{_parts(config)}: a second call returns other numbers: it keeps state, or draws"
                " random numbers, such as a dropout of its own; the run's `dropout` acts on"
                " ablate's own blocks"
            )
        if not all(map(torch.equal, kept, model.buffers())):
            return f"{_parts(config)}: a call changes its buffers, which no checkpoint keeps"
        return (
            ""
            if torch.equal(first, logits_of(fresh, given))
            else "equal weights give other numbers"
        )


def packed(config: RunConfig, seeds: Sequence[int] = SEEDS) -> str:
    """Whether members of a pack compute what they compute alone: logits and gradients."""
    given = tokens(config, len(seeds))
    try:
        together = built(config, *seeds)
        together.rng.step.fill_(7)
        logits = logits_of(together, given)
        of_pack = torch.autograd.grad(loss_of(together, given), list(together.parameters()))
    except Exception as error:
        return said(config, error)
    for k, seed in enumerate(seeds):
        solo = built(config, seed)
        solo.rng.step.fill_(7)
        mine = given[k : k + 1]
        if not _close(config, logits_of(solo, mine)[0], logits[k]):
            return "logits of a member of a pack differ from those of a run alone"
        alone = torch.autograd.grad(loss_of(solo, mine), list(solo.parameters()))
        if not all(
            _close(config, one[0], all_[k]) for one, all_ in zip(alone, of_pack, strict=True)
        ):
            return "gradients of a member of a pack differ from those of a run alone"
    return ""


def sized(config: RunConfig) -> str:
    """Whether the model has as many parameters as is said of it."""
    planned, found = sizes.count(config).params, built(config).n_params
    return "" if planned == found else f"{planned:,} parameters are stated, the model has {found:,}"


def learns(config: RunConfig, steps: int = STEPS) -> str:
    """Whether the loss falls by AdamW on a text with a rule.

    The text repeats itself, and has one token, the last, that never occurs.
    """
    model, n = built(config), config.n_ctx
    text = torch.arange(2 * n + 1) ** 2 % (config.n_vocab - 1)
    clean = torch.stack((text[: n + 1], text[n:]))[None]
    if not config.part("objective").masks:
        shown, wanted = clean[..., :-1], clean[..., 1:]
    else:
        hidden = torch.arange(n) % 3 == 1
        shown = clean[..., 1:].masked_fill(hidden, config.n_vocab - 1)
        wanted = clean[..., 1:].masked_fill(~hidden, -100)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=RATE), []
    for step in range(steps):
        model.rng.step.fill_(step)
        loss = F.cross_entropy(logits_of(model, shown).flatten(0, 2), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    last = sum(losses[-5:]) / 5
    return "" if last < losses[0] - FALL else f"loss {losses[0]:.3f}, then {last:.3f} nats"


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        holds: What holds where nothing is found.
        run: Returns what is wrong, "" for nothing.
        needed: Whether other trials mean nothing without it.
        fatal: Whether a level that fails it is wrong; else it is only slower.
    """

    holds: str
    run: Callable[[RunConfig], str]
    needed: bool = False
    fatal: bool = True


TRIALS = {
    "shapes": Trial("logits are [B, T, V] and finite", shapes, needed=True),
    "determinism": Trial(
        "the same seed and tokens give the same numbers", deterministic, needed=True
    ),
    "causality": Trial("no token sees a later one, or another sequence", causal),
    "gradients": Trial("a gradient reaches every parameter", gradients),
    "packs": Trial("a member of a pack computes what it computes alone", packed, fatal=False),
    "sizes": Trial("the model has the parameters that are planned", sized),
    "learning": Trial(f"the loss falls within {STEPS} steps", learns),
}


def said(config: RunConfig, error: Exception) -> str:
    """Return the first sentence of an error of a model's module, with the line of its file."""
    text = " ".join(str(error).split()).partition(". ")[0][:200]
    place = code.place(error, [label.rpartition("@")[0] for label in config.code])
    if text.startswith(_parts(config)):
        return text
    where = f" ({place})" if place else ""
    return f"{_parts(config)}{where}: {type(error).__name__}{f': {text}' if text else ''}"


def _parts(config: RunConfig) -> str:
    """The run's levels from outside."""
    found = [one.called(config) for one in config.parts if one.origin]
    return ", ".join(found) or "the model"


def _short(parameter: str) -> str:
    """A parameter's name as its plain module knows it."""
    return parameter.replace(".member.", ".")


def _close(config: RunConfig, a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-9 if a.dtype == torch.float64 else 1e-4
    return torch.allclose(a, b, atol=tolerance, rtol=tolerance)
