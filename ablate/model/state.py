"""The Python state of modules of a user's own: all but their parameters and buffers.

Seeds, packs and checkpoints know of parameters and buffers alone. What else a constructor draws
would be the same in all runs and layers, and what a call leaves behind would reach the next run.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate import loading
from ablate.components.catalogue import OUTSIDE

_OF_TORCH = frozenset(vars(nn.Module()))
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_FEW = (
    *(int, float, complex, str, bytes, list, tuple, dict, set, deque, count),
    *(Tensor, np.ndarray),
)

# objects that were read, by identity: kept, so that no other has it, with their digests
Seen = dict[int, tuple[Any, bytes]]


def state_of(root: nn.Module) -> dict[str, bytes]:
    """Return the state of the modules in `root`, as digests.

    To `attributes_of`, it adds data among the attributes of their classes and the names of the
    files of these, and of all modules of code that is used.

    Returns:
        The digests by where the values are, in words.
    """
    found, seen = attributes_of(root), _registered(root)
    files = {id(names): names for names in map(vars, loading.modules())}
    for owner in root.modules():
        functions = _functions(owner)
        for of in type(owner).__mro__:
            if of is not object and not of.__module__.startswith(("torch.", "ablate.")):
                functions += [one for one in vars(of).values() if isinstance(one, FunctionType)]
                for name, value in _data(vars(of)):
                    found[f"class attribute {name!r} of {of.__name__}"] = _digest(value, seen)
        files |= {id(one.__globals__): one.__globals__ for one in functions}
    for names in files.values():
        module = names.get("__name__", "")
        where = "its file" if module.startswith(OUTSIDE) else f"module {module}"
        for name, value in _data(names):
            found[f"the name {name!r} of {where}"] = _digest(value, seen)
    return found


def attributes_of(root: nn.Module) -> dict[str, bytes]:
    """Return the attributes of the modules in `root` that are not ablate's own, as `state_of`.

    Parameters, buffers, and what has a gradient do not count, nor what torch.compile notes.
    """
    found: dict[str, bytes] = {}
    seen = _registered(root)
    for path, owner in root.named_modules():
        if type(owner).__module__.startswith("torch._dynamo."):
            continue
        if not type(owner).__module__.startswith("ablate.") or _functions(owner):
            of = f" of {type(owner).__name__}{f' ({path})' if path else ''}"
            for name, value in vars(owner).items():
                if name not in _OF_TORCH:
                    found[f"attribute {name!r}{of}"] = _digest(value, seen)
    return found


def changed_state(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return where two states differ first, in words; "" for nowhere."""
    return next(
        (what for what in {**after, **before} if before.get(what, ...) != after.get(what, ...)), ""
    )


def _registered(root: nn.Module) -> Seen:
    """Return what stands for the modules, parameters and buffers of `root`, by their identity."""
    known = (*root.modules(), *root.parameters(), *root.buffers())
    return {id(one): (one, b"registered") for one in known}


def _functions(owner: nn.Module) -> list[FunctionType]:
    """Return the functions that a module has as attributes, such as the one that is the level."""
    return [one for one in vars(owner).values() if isinstance(one, FunctionType)]


def _data(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names that hold data, not what Python and libraries put there.

    So do functions and objects of code that is used: defaults, closures, attributes.
    """
    own = {module.__name__ for module in loading.modules()}
    for name, value in names.items():
        if name.startswith("__"):
            continue
        if isinstance(value, FunctionType):
            of = value.__globals__.get("__name__")  # not that of what a decorator wraps
        else:
            of = type(value).__module__
        if isinstance(value, _FEW) or of in own:
            yield name, value


def _digest(value: Any, seen: Seen) -> bytes:
    """Return a digest of what an object holds; a loop, because objects may be a long chain."""
    open_ = [(value, iter((value,)), hashlib.sha256())]
    while True:
        owner, parts, digest = open_[-1]
        try:
            part = next(parts, open_)
        except Exception:  # what cannot be read cannot be compared
            part = open_
        if isinstance(part, _PLAIN):
            digest.update(f"{part!r};".encode())  # by its text, in which NaN equals NaN
        elif part is not open_ and id(part) in seen:
            digest.update(seen[id(part)][1])
        elif part is not open_:
            seen[id(part)] = part, b"itself"
            open_.append((part, _parts(part, seen), hashlib.sha256(repr(type(part)).encode())))
        elif len(open_) == 1:
            return digest.digest()
        else:
            seen[id(owner)] = owner, digest.digest()
            open_.pop()
            open_[-1][2].update(digest.digest())


def _parts(value: Any, seen: Seen) -> Iterator[Any]:
    """Yield what an object consists of, as objects or their digests."""
    if isinstance(value, Tensor):
        if not value.requires_grad:
            yield _of_array(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
            yield from (str(value.dtype), value.shape)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield _of_array(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        yield from (str(value.dtype), value.shape)
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from pair
    elif isinstance(value, list | tuple | deque):
        yield from value
    elif isinstance(value, set | frozenset):
        yield from sorted(_digest(one, seen) for one in value)
    elif isinstance(value, torch.Generator):
        yield value.initial_seed()  # its state has bytes that nothing sets
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif hasattr(value, "_torchdynamo_orig_callable"):  # compiled: the rest is torch's own
        yield value._torchdynamo_orig_callable
    elif isinstance(value, FunctionType):
        yield from (value.__qualname__, vars(value), value.__defaults__, value.__kwdefaults__)
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty one
                yield cell.cell_contents
    elif isinstance(value, type | ModuleType):
        yield value.__name__
    else:
        if hasattr(value, "__dict__") and type(value).__module__ != "logging":
            yield vars(value)
        # of classes in C, or with slots: the arguments of a partial, the state of random.Random
        made = value.__reduce_ex__(2)
        yield from (made,) if isinstance(made, str) else made[1:]


def _of_array(data: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(data.data).digest()
