"""Trials of a model: what every level has to pass, of ablate's own and of a user's.

`ablate check` and the tests run all of them, planning only those without which a run fails or means
nothing. Each takes a configuration, which should be small, and returns what is wrong, "" for
nothing.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from ablate import code, outside
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model import measure
from ablate.model.plain import Plain
from ablate.model.state import changed_state, state_of
from ablate.model.transformer import Transformer, beside, model_of, normal

SEEDS = (4, 9)  # of the members of a pack
STEPS, RATE = 30, 3e-3  # in which the loss of a model falls
FALL = 0.02  # nats, at least
# tokens of texts that hold chunks or windows: whole ones, as many as a run has by default, and ones
# of which the last is cut off
LONG = (256, 247)
VOCABULARY = 1 << 10  # tokens of a model that planning tries, where no part has its own number
TRIED = 1024  # tokens of a batch by which causality is tried; four sequences may be more


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Keep out what torch says where vmap calls an operation once for each member."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def built(config: RunConfig, *seeds: int) -> Transformer:
    """Return a model with initial weights, of the configuration's seed by default."""
    model: Transformer = model_of(config, max(1, len(seeds)))
    model.initialise(seeds or (config.weights_seed,))
    return model


def moved(config: RunConfig, *seeds: int) -> Transformer:
    """Return a model whose weights have left their initial values.

    At those a branch may be multiplied by nearly 0, which hides what it computes. A number keeps
    its sign; small ones grow and large ones shrink, so that what is positive stays so and what
    decays does not explode. Members of a pack move as they do alone. If logits are not finite then,
    weights are the initial ones.
    """
    model = built(config, *seeds)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = normal(0, name, parameter.shape[1:]).to(parameter)
            for member in parameter:
                size = member.std(correction=0).clamp(min=0.1)
                away = 0.5 * size * (0.5 + noise.abs().clamp(max=1))
                away = torch.where(member.abs() > 2 * away, -away, away)
                member.add_(away * torch.where(member == 0, noise, member).sgn())
        finite = logits_of(model, tokens(config, model.pack)).isfinite().all()
    return model if finite else built(config, *seeds)


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
    """Whether a run means something: what planning asks of a model with parts of a user's own.

    Shapes, a gradient for every parameter, even if it is 0, the same numbers from call to call, and
    causality.
    """
    try:
        wrong = unregistered(config) or _step(config) or deterministic(config) or causal(config)
    except Exception as error:
        return said(config, error)
    return f"{_parts(config)}: {wrong}" if wrong else ""


def _step(config: RunConfig) -> str:
    model, given = built(config), tokens(config)
    logits = logits_of(model, given)
    if wrong := _shape(config, logits):
        return wrong
    loss = loss_of(model, given)
    if _leaves(loss) - set(map(id, model.parameters())):
        return (
            "the loss depends on a tensor that requires a gradient and that torch does not"
            " register, so that it is not trained: make it an nn.Parameter of an nn.Module"
        )
    trained = _trained(model)
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    unused = [name for name, one in zip(trained, found, strict=True) if one is None]
    return f"the loss does not depend on parameter {_short(unused[0])}" if unused else ""


def _trained(model: Transformer) -> dict[str, nn.Parameter]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def _leaves(loss: Tensor) -> set[int]:
    """Return the identities of the tensors that a gradient of the loss reaches."""
    leaves, seen, open_ = set[int](), set[Any](), [loss.grad_fn]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            leaves.add(id(variable))
        open_ += [before for before, _ in node.next_functions]
    return leaves


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
    """Whether no position sees a later one, and no sequence another.

    The first token that changes is another one in each sequence: the second, which tests a prefix
    that sees all of itself; a few neighbours in the middle, because a leak within a chunk is
    invisible if the change begins with the chunk; and the last ones, which test a last chunk that
    is cut off. In a short text each token but the first is tried. The model is tried as in training
    and as in evaluation.
    """
    rows = max(2, min(config.n_ctx - 1, max(4, TRIED // config.n_ctx)))
    model = moved(config.model_copy(update={"batch_tokens": rows * config.n_ctx}))
    return _leak(model.train()) or _leak(model.eval())


def _leak(model: Transformer) -> str:
    config, given = model.config, tokens(model.config)
    length, rows = config.n_ctx, config.batch_size
    other = (given + 1) % config.n_vocab
    before = logits_of(model, given)
    row = torch.arange(rows)
    for even in (0, 1):
        same = row % 2 == even
        after = logits_of(model, torch.where(same[:, None], given, other))
        if not _close(after[:, same], before[:, same]):
            return "a sequence changes when another one of the batch does"
    if not config.part("attention").causal:
        return ""
    at = (length - rows + 1) // 2 + row
    at[0] = 1
    at[rows - rows // 4 :] = length - rows // 4 + row[: rows // 4]
    same = torch.arange(length) < at[:, None]
    after = logits_of(model, torch.where(same, given, other))
    for k, first in enumerate(at.tolist()):
        if not _close(after[:, k, :first], before[:, k, :first]):
            return (
                f"logits before token {first} change when tokens from it on do: it sees the future"
            )
    return ""


def causality(config: RunConfig) -> str:
    """Whether a model is causal, for this number of tokens and for `LONG`, if it takes as many."""
    wrong = causal(config)
    for length in LONG:
        with contextlib.suppress(Exception):  # such as a table of positions of its own length
            wrong = wrong or causal(config.model_copy(update={"n_ctx": length}))
    return wrong


def gradients(config: RunConfig) -> str:
    """Whether the loss depends on every parameter, and on nothing else that is to be trained."""
    return unregistered(config) or _step(config)


def zeros(config: RunConfig) -> str:
    """Whether every parameter of the user's own gets a gradient that is not 0.

    That of a bias of keys is 0: it moves all scores of a query by one number, which a softmax takes
    away. Attention of ablate's own has such biases.
    """
    named = dict(built(config).named_modules())

    def own(parameter: str) -> bool:
        ends = (at for at, letter in enumerate(parameter) if letter == ".")
        above = [named[parameter[:at]] for at in ends]
        return any(isinstance(one, Plain) or not _is_of_library(one) for one in above)

    dead = without_gradient(config, smallest=1e-7)  # above rounding
    said = ", ".join(map(_short, filter(own, dead)))
    return f"that of {said} is 0: if so in a run, its loss does not train it" if said else ""


def _is_of_library(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("ablate.", "torch."))


@unwarned()
def without_gradient(config: RunConfig, smallest: float = 1e-9) -> list[str]:
    """Return the parameters whose gradient is 0 for a member of a pack of two.

    One model is tried where packs do not serve. Of what moved weights leave without a gradient,
    such as an orthogonal matrix whose signs are no longer ±1, initial ones are asked, too.
    """
    seeds = SEEDS[:1] if packed(config) else SEEDS
    dead = _without(moved(config, *seeds), smallest)
    if not dead:
        return []
    return [name for name in _without(built(config, *seeds), smallest) if name in dead]


def _without(model: Transformer, smallest: float) -> list[str]:
    loss = loss_of(model, tokens(model.config, model.pack))
    named = _trained(model)
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return [
        name
        for name, gradient in zip(named, found, strict=True)
        if gradient is None or gradient.reshape(len(gradient), -1).abs().amax(1).min() <= smallest
    ]


def unregistered(config: RunConfig) -> str:
    """Whether torch knows of every parameter: else it is not trained, saved or counted."""
    model = built(config)
    plain = [one for one in model.modules() if isinstance(one, Plain)]
    stacked = {module for one in plain for module in one.modules()}
    # plain modules as their constructors make them: attributes know nothing of stacked parameters
    for root in (model, *(one.made(0, "") for one in plain)):
        known = set(map(id, root.parameters()))
        for owner in root.modules():
            for name, value in vars(owner).items() if owner not in stacked else ():
                if any(id(parameter) not in known for parameter in _trainable(value)):
                    return (
                        f"attribute {name!r} of {type(owner).__name__} has parameters that torch"
                        " does not register, so that they are not trained: use nn.Parameter,"
                        " nn.ParameterList, nn.ModuleList or nn.ModuleDict"
                    )
    return ""


def _trainable(held: Any) -> Iterator[Tensor]:
    """Yield the leaves of autograd in what an attribute holds, and of which it is computed."""
    if isinstance(held, nn.Module):
        yield from (one for one in held.parameters() if one.requires_grad)
    elif isinstance(held, Tensor) and held.is_leaf:
        yield from [held] if held.requires_grad else []
    elif isinstance(held, Tensor):
        nodes: list[Any] = [held.grad_fn]
        for node in nodes:
            if hasattr(node, "variable"):
                yield node.variable
            nodes += [one for one, _ in node.next_functions if one and one not in nodes]
    elif isinstance(held, dict | list | tuple | set):
        for one in held.values() if isinstance(held, dict) else held:
            yield from _trainable(one)


@torch.no_grad()
def deterministic(config: RunConfig) -> str:
    """Whether the same seed and tokens give the same numbers, call after call and step after step.

    What a call or a step leaves behind is in no checkpoint: a run that is resumed would differ.
    """
    model, given = built(config), tokens(config)
    saved, initial = model.state_dict().keys(), _held(model)
    first, again = logits_of(model, given), logits_of(model, given)
    fresh, away = built(config), moved(config)
    values = zip(_held(fresh).values(), _held(built(config)).values(), strict=True)
    if not all(torch.equal(one, other) for one, other in values):
        return "initial values differ from one construction to the next"
    other, kept = (given + 1) % config.n_vocab, _held(away)
    calls = [(mode, read) for mode in (True, False) for read in (given, other)]
    with _carried(away) as carried:
        (once, before, held), (twice, after, now) = (
            (
                [_call(away.train(mode), read) for mode, read in calls],
                state_of(away),
                {name: tensor.clone() for name, tensor in carried.items()},
            )
            for _ in "ab"
        )
    if what := changed_state(before, after):
        return f"calls change {what}: checkpoints do not keep it, and it would affect later runs"
    weights = {name: kept[name][0] for name in now if name in _trained(away)}
    pairs = (initial, _held(model)), (kept, _held(away)), (held, now), (weights, now)
    if changed := next(filter(None, (_changed(*pair) for pair in pairs)), ""):
        buffer = changed in dict(away.named_buffers())
        why = "checkpoints do not keep buffers" if buffer else "only the optimiser may change it"
        return f"a call changes {_short(changed)}: {why}"
    if not torch.equal(first, again) or not all(map(torch.equal, once, twice)):
        return (
            "a second call returns other numbers: it keeps state, or draws random numbers, such as"
            " a dropout of its own; the run's `dropout` acts on ablate's own blocks"
        )
    if new := sorted(model.state_dict().keys() - saved):
        return (
            f"a call registers {_short(new[0])}: do so in the constructor, or give a buffer that"
            " the first call fills persistent=False"
        )
    logits_of(fresh, other)
    if not torch.equal(first, logits_of(fresh, given)):
        return "equal weights give other numbers: an earlier call may have stored something"
    with outside.afresh():  # what is drawn differs then
        elsewhere = built(config)
        alike = not _changed(initial, _held(elsewhere))
        logits_of(elsewhere, other)
        if not alike or not torch.equal(first, logits_of(elsewhere, given)):
            return (
                "another process would compute other numbers: it keeps what it draws, such as a"
                " table, outside of the module; draw it in the constructor, and register it, as in"
                " self.register_buffer(name, tensor)"
            )
    seed = config.weights_seed + 1
    next_ = moved(config, seed)
    model.initialise((seed,))  # as the next run does in the same model
    for mine, its in zip(model.parameters(), next_.parameters(), strict=True):
        mine.copy_(its)
    if not torch.equal(logits_of(model, given), logits_of(next_, given)):
        return (
            "a call uses what an earlier one has computed of weights or buffers, which are other"
            " ones now: compute it in each call"
        )
    return ""


def _call(model: Transformer, given: Tensor) -> Tensor:
    """Return the logits of a call as a run makes it: in training, gradients follow."""
    with torch.set_grad_enabled(model.training):
        logits = logits_of(model, given)
        if model.training:
            trained = list(_trained(model).values())
            torch.autograd.grad(logits.logsumexp(-1).mean(), trained, allow_unused=True)
    return logits.detach()


@contextlib.contextmanager
def _carried(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """Let calls of plain modules find the buffers as the call before has left them.

    Plain modules are called with the stored tensors in place of their own: another tensor that a
    call assigns to a buffer is lost after it, so that the part is not the one that was written.

    Yields:
        The parameters and buffers of one member, as the last calls have left them.
    """
    carried: dict[str, Tensor] = {}

    def put(path: str, plain: Plain, *_: Any) -> None:
        for name in plain.stacked:
            owner, _dot, own = name.rpartition(".")
            buffers = plain.member.get_submodule(owner)._buffers
            if own in buffers and (kept := carried.get(f"{path}.member.{name}")) is not None:
                buffers[own] = kept

    def take(path: str, plain: Plain, *_: Any) -> None:
        both = (*plain.member.named_parameters(), *plain.member.named_buffers())
        carried.update(
            (f"{path}.member.{n}", one.detach()) for n, one in both if n in plain.stacked
        )

    with contextlib.ExitStack() as hooks:
        for path, one in model.named_modules():
            if isinstance(one, Plain):
                entry = one._entry
                for add, hook in (
                    (entry.register_forward_pre_hook, put),
                    (entry.register_forward_hook, take),
                ):
                    hooks.callback(add(functools.partial(hook, path, one)).remove)
        yield carried


def _held(model: Transformer) -> dict[str, Tensor]:
    """Return copies of parameters and buffers."""
    both = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in both}


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    """Return the name of a tensor that has another value, or none any more; "" for none."""
    now = (name for name, one in before.items() if not _equal(one, after.get(name)))
    return next(now, "")


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and torch.equal(one, other)


@unwarned()
def packed(config: RunConfig, seeds: Sequence[int] = SEEDS) -> str:
    """Whether members of a pack compute what they compute alone: logits and gradients."""
    given = tokens(config, len(seeds))
    try:
        together = moved(config, *seeds)
        together.rng.step.fill_(7)
        logits = logits_of(together, given)
        of_pack = torch.autograd.grad(loss_of(together, given), list(_trained(together).values()))
    except Exception as error:
        return said(config, error)
    for k, seed in enumerate(seeds):
        solo = moved(config, seed)
        solo.rng.step.fill_(7)
        mine = given[k : k + 1]
        if not _close(logits_of(solo, mine)[0], logits[k]):
            return "logits of a member of a pack differ from those of a run alone"
        alone = torch.autograd.grad(loss_of(solo, mine), list(_trained(solo).values()))
        if not all(_close(one[0], all_[k]) for one, all_ in zip(alone, of_pack, strict=True)):
            return "gradients of a member of a pack differ from those of a run alone"
    return ""


@measure.apart
def alone(config: RunConfig) -> str:
    """Return why runs of a model with plain modules train one at a time; "" if in packs.

    Raises:
        AblateError: One of its modules does not work.
    """
    fewer = {"n_layer": 1} if config.part("architecture").of_blocks else {}
    of_tokens = map(config.part, ("architecture", "embedding"))
    if all("n_vocab" in one.asks for one in of_tokens if one.origin):
        fewer["n_vocab"] = min(config.n_vocab, VOCABULARY)
    few = config.model_copy(update=fewer | {"batch_tokens": 2 * config.n_ctx})
    if measure.params(few, few.n_layer) > measure.LARGEST:
        return "too large to be tried on this host"
    if broken := works(few):
        raise AblateError(broken)
    return packed(few)


def learns(config: RunConfig) -> str:
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
    for step in range(STEPS):
        model.rng.step.fill_(step)
        loss = F.cross_entropy(logits_of(model, shown).flatten(0, 2), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    last = sum(losses[-5:]) / 5
    return "" if last < losses[0] - FALL else f"loss {losses[0]:.3f}, then {last:.3f} nats"


def said(config: RunConfig, error: Exception) -> str:
    """Return the first sentence of an error of a model's module, with the line of its file."""
    if _recomputes(error):
        return (
            f"{_parts(config)}: torch.utils.checkpoint would call the part again in the backward"
            " pass, when it no longer has its weights: call the function itself; where memory is"
            " short, ablate reads fewer sequences at once, and recomputes its own blocks"
        )
    text = " ".join(str(error).split()).partition(". ")[0][:200]
    place = code.place(error, config.code)
    if text.startswith(_parts(config)):
        return text
    where = f" ({place})" if place else ""
    return f"{_parts(config)}{where}: {type(error).__name__}{f': {text}' if text else ''}"


def _recomputes(error: Exception) -> bool:
    """Whether it is raised as a backward pass calls what torch.utils.checkpoint has called."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    backward = torch.autograd.graph.__file__
    inside = files[files.index(backward) :] if backward in files else []
    return torch.utils.checkpoint.__file__ in inside


def _parts(config: RunConfig) -> str:
    """The run's levels from outside."""
    found = [one.called(config) for one in config.parts if one.origin]
    return ", ".join(found) or "the model"


def _short(parameter: str) -> str:
    """A parameter's name as its plain module knows it."""
    return parameter.replace(".member.", ".")


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether numbers differ by no more than rounding, which is as large as the largest allow."""
    tolerance = 1e-9 if a.dtype == torch.float64 else 1e-4
    largest = max(1.0, float(b.detach().abs().max())) if b.numel() else 0.0
    return torch.allclose(a, b, atol=tolerance * largest, rtol=0)
