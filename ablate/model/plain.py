"""Plain modules, written for one model, in a model of a pack of K.

A plain module knows no axis of a pack. Its parameters and buffers are stacked along one here, and
`torch.func.vmap` calls it for all members at once: each member computes what it would alone, where
vmap knows every operation. `ablate.model.trial` finds out whether it does; else runs of the module
train alone. One member needs no vmap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ablate.code import place
from ablate.components.base import Component
from ablate.components.plain import construct
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.attention import each, future
from ablate.model.state import attributes_of, changed_state

Map = Callable[[Tensor], Tensor]


class Plain(nn.Module):
    """Base of the adapters: a plain module with its parameters stacked, [K, …] each.

    Attributes:
        member: The plain module; a parameter or buffer of it has all members' values.
        stacked: Their names. A buffer that a call fills is none of them.
    """

    _entry: _Entry

    def __init__(self, component: Component, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.pack, self.width = pack, width
        self.called = component.called(config)
        self._component, self._config = component, config
        self.member = self.made(0, "")
        self._attributes = attributes_of(self.member)
        _stack(self.member, pack)
        self.stacked = (*_parameters(self.member), *_buffers(self.member))
        # not a submodule: `member` is one already
        object.__setattr__(self, "_entry", _Entry(self.member))

    def made(self, seed: int, name: str) -> nn.Module:
        """Return a new plain module, as a seed and a name decide it."""
        with drawn(seed, name), torch.enable_grad():  # what is computed of parameters has one
            made = self._component.plain
            if not (isinstance(made, type) or self._component.makes):
                return Function(made)
            try:
                module = construct(made, self._config, width=self.width)
            except (torch.OutOfMemoryError, AblateError):
                raise
            except Exception as error:
                where = place(error, self._component.origin)
                said = " ".join(str(error).split())[:200]
                raise AblateError(
                    f"{self.called}{f' ({where})' if where else ''}: its constructor fails:"
                    f" {type(error).__name__}{f': {said}' if said else ''}"
                ) from error
        if not isinstance(module, nn.Module):
            raise AblateError(f"{self.called}: {type(module).__name__} is no torch.nn.Module")
        if any(hasattr(parameter, "decays") for parameter in module.parameters()):
            raise AblateError(
                f"{self.called}: the constructor takes a parameter that another layer or model has:"
                " each has its own, made in the constructor"
            )
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            if nn.parameter.is_lazy(tensor):
                raise AblateError(
                    f"{self.called}: the first call would decide the shape of {path}: state it in"
                    " the constructor, as in nn.Linear instead of nn.LazyLinear"
                )
        return module

    @torch.no_grad()
    def initialise(self, name: str, seeds: Sequence[int]) -> None:
        """Give every member the values that the module's own constructor draws.

        Args:
            name: Of this module in the model; decides the draws, together with the seed.
            seeds: Of the members.

        Raises:
            AblateError: It draws another attribute too, of which the members have one.
        """
        for k, seed in enumerate(seeds):
            fresh = self.made(seed, name)
            if what := changed_state(self._attributes, found := attributes_of(fresh)):
                if changed_state(found, attributes_of(self.made(seed, name))):
                    raise AblateError(
                        f"{self.called}: {what} differs from one construction to the next: draw"
                        " from torch's generator, and register it as a buffer"
                    )
                raise AblateError(
                    f"{self.called}: the constructor draws {what}, which would be the same in all"
                    " runs and layers: register it as a buffer, as in"
                    " self.register_buffer(name, tensor)"
                )
            for mine, its in ((_parameters, _parameters), (_buffers, _buffers)):
                stacked = mine(self.member)  # and what calls have filled
                for key, value in its(fresh).items():
                    stacked[key][k].copy_(value)

    def call(self, hook: str, *given: Tensor) -> Tensor:
        """Return what a method of the plain module returns for each member: [K, …].

        Args:
            hook: Name of the method.
            *given: Its arguments, [K, …] or, the same for all members, [1, …] each.
        """
        state = self._state()

        def one(state: dict[str, Tensor], *given: Tensor) -> Tensor:
            y: Any = functional_call(self._entry, state, (hook, *given))
            if not isinstance(y, Tensor):
                raise AblateError(f"{self.called} returns {_no_tensor(y)}")
            return y

        shared = [len(tensor) == 1 for tensor in given]
        given = tuple(x.squeeze(0) if alike else x for x, alike in zip(given, shared, strict=True))
        if self.pack > 1 and (state or not all(shared)):
            dims = tuple(None if alike else 0 for alike in shared)
            y: Tensor = vmap(one, in_dims=(0, *dims))(state, *given)
            return y
        # of a module without weights, members that get the same get the same
        return one({name: tensor.squeeze(0) for name, tensor in state.items()}, *given).unsqueeze(0)

    def _state(self) -> dict[str, Tensor]:
        """Return the stacked tensors by their names in `_Entry`.

        A buffer that a call fills has no axis of a pack: it stays where it is.
        """
        both = _parameters(self.member) | _buffers(self.member)
        return {f"member.{name}": both[name] for name in self.stacked}

    def checked(self, y: Any, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return an output in the precision of `like`.

        Raises:
            AblateError: It is not of this shape.
        """
        if not isinstance(y, Tensor) or tuple(y.shape) != tuple(shape):
            found = list(y.shape[1:]) if isinstance(y, Tensor) else type(y).__name__
            raise AblateError(f"{self.called} returns {found}, where {list(shape[1:])} is expected")
        return y.to(like.dtype)


class Same(Plain):
    """[K, B, T, width] → the same shape: norms, activations, mixers."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.checked(self.call("forward", x), x.shape, x)


class ToStream(Plain):
    """[K, B, T, width] → [K, B, T, C]: the MLP."""

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self._config.d_model)
        return self.checked(self.call("forward", x), shape, x)


class FromTokens(Plain):
    """tokens [K, B, T] → [K, B, T, C]: the embedding."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.call("forward", tokens)
        return self.checked(x, (*tokens.shape, self.width), x)


class Wiring(Plain):
    """A topology with weights: (x, A, M, P1, P2) → y, of one member; X and P3 in a decoder.

    It calls the branches, which have weights of other modules, so that vmap cannot call it.
    """

    def forward(self, x: Tensor, *branches: Map, **of_decoder: Map) -> Tensor:
        if self.pack > 1:
            raise AblateError(f"{self.called} has weights and calls attention and MLP")

        def alone(branch: Map) -> Map:
            return lambda h: branch(h.unsqueeze(0)).squeeze(0)

        state = {name: tensor.squeeze(0) for name, tensor in self._state().items()}
        given = ("forward", x.squeeze(0), *map(alone, branches))
        named = {name: alone(branch) for name, branch in of_decoder.items()}
        y = functional_call(self._entry, state, given, named).unsqueeze(0)
        return self.checked(y, x.shape, x)


class Score(Plain):
    """softmax(scores(Q, K) + bias) V; shapes are those of `ablate.model.attention.DotScore`.

    The plain module takes queries [B, H, T, D] and keys [B, H, S, D] and returns the scores
    [B, H, T, S] by query and key; S is T, except for a source.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        group = self._config.n_head // self._config.n_kv_head
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        apart = (self.pack, -1)
        given = (x.unflatten(0, apart) for x in (query, key))
        length = query.shape[2]
        shape = (self.pack, len(query) // self.pack, *query.shape[1:3], key.shape[2])
        scores = self.checked(self.call("forward", *given), shape, query).flatten(0, 1)
        if bias is not None:
            scores = scores + each(bias, len(query))
        elif self._config.part("attention").causal:
            scores = scores.masked_fill(future(length, query.device), -torch.inf)
        return scores.softmax(-1).to(value.dtype) @ value


class Position(Plain):
    """A position encoding: any of the hooks of `ablate.model.position.Position`.

    The plain module's `embed` takes embeddings [B, T, C], `rotate` queries or keys [B, H, T, D],
    and `bias` the distances from queries to keys, int64 [T, T], negative for earlier keys, for
    which it returns [H, T, T], [1, T, T] or [T, T].
    """

    _where: Tensor

    def __init__(self, component: Component, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(component, config, pack, width)
        self.register_buffer("_where", torch.zeros(()), persistent=False)  # on the model's device

    def embed(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        if not self._has("embed"):
            return x
        return self.checked(self.call("embed", x), x.shape, x)

    def rotate(self, x: Tensor) -> Tensor:
        if not self._has("rotate"):
            return x
        apart = x.unflatten(0, (self.pack, -1))
        return self.checked(self.call("rotate", apart), apart.shape, x).flatten(0, 1)

    def bias(self, length: int) -> Tensor | None:
        if not self._has("bias"):
            return None
        index = torch.arange(length, device=self._where.device)
        made = self.call("bias", (index - index[:, None]).unsqueeze(0))
        made = made.unsqueeze(1) if made.ndim == 3 else made
        heads = 1 if made.shape[1] == 1 else self._config.n_head
        return self.checked(made, (len(made), heads, length, length), made)

    def _has(self, hook: str) -> bool:
        return hasattr(self.member, hook)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


class _Entry(nn.Module):
    """Calls any method of a module, so that `functional_call` can replace its parameters."""

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member = member

    def forward(self, hook: str, *given: Any, **named: Any) -> Tensor:
        # a call of the module itself runs its hooks too
        call = self.member if hook == "forward" else getattr(self.member, hook)
        y: Tensor = call(*given, **named)
        return y


def _no_tensor(y: Any) -> str:
    """Describe what is returned in place of a tensor, and say what to return."""
    advice = ""
    if isinstance(getattr(y, "logits", None), Tensor):  # an output of transformers
        advice = ": return its `logits`"
    elif isinstance(y, tuple | list) and any(isinstance(one, Tensor) for one in y):
        advice = ": return it alone, as in `return logits` for `return logits, loss`"
    of = f" of {', '.join(type(one).__name__ for one in y)}" if isinstance(y, tuple | list) else ""
    return f"{type(y).__name__}{of}, where a tensor is expected{advice}"


@contextmanager
def drawn(seed: int, name: str) -> Iterator[None]:
    """Draw what is drawn inside from a seed and a name, and leave torch's generator as it was."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        yield


def _stack(module: nn.Module, pack: int) -> None:
    """Give every parameter and buffer a leading axis of K; shared ones stay shared."""
    stacked: dict[int, tuple[Tensor, Tensor]] = {}

    def made(tensor: Tensor) -> Tensor:
        if id(tensor) not in stacked:
            several = tensor.detach().expand(pack, *tensor.shape).clone()
            if isinstance(tensor, nn.Parameter):
                several = nn.Parameter(several, requires_grad=tensor.requires_grad)
                several.decays = tensor.ndim > 1  # type: ignore[attr-defined]
            stacked[id(tensor)] = tensor, several
        return stacked[id(tensor)][1]

    for owner in module.modules():
        for held in (owner._parameters, owner._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = made(tensor)  # type: ignore[assignment]


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers())
