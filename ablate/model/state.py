"""The Python state of modules of a user's own: all but their parameters and buffers.

Seeds, packs and checkpoints know of parameters and buffers alone. What else a constructor draws
would be the same in all runs and layers, and what a call leaves behind would reach the next run.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_FEW = (int, float, complex, str, bytes, list, tuple, dict, set, deque, Tensor, np.ndarray)


def state_of(root: nn.Module) -> dict[str, Any]:
    """Return the state of the modules in `root`, as values that can be compared.

    To `attributes_of`, it adds data among the attributes of their classes and the names of the
    files of these.

    Returns:
        The values by where they are, in words.
    """
    found, seen = attributes_of(root), _registered(root)
    for owner in root.modules():
        functions = _functions(owner)
        for of in type(owner).__mro__:
            if of is not object and not of.__module__.startswith(("torch.", "ablate.")):
                functions += [one for one in vars(of).values() if isinstance(one, FunctionType)]
                for name, value in _data(vars(of)):
                    found[f"class attribute {name!r} of {of.__name__}"] = _value(value, seen)
        for names in {id(one.__globals__): one.__globals__ for one in functions}.values():
            for name, value in _data(names):
                found[f"the name {name!r} of its file"] = _value(value, seen)
    return found


def attributes_of(root: nn.Module) -> dict[str, Any]:
    """Return the attributes of the modules in `root` that are not ablate's own, as `state_of`.

    Parameters, buffers, and what has a gradient do not count.
    """
    found, seen = {}, _registered(root)
    for path, owner in root.named_modules():
        if not type(owner).__module__.startswith("ablate.") or _functions(owner):
            of = f" of {type(owner).__name__}{f' ({path})' if path else ''}"
            for name, value in vars(owner).items():
                if name not in _OF_TORCH:
                    found[f"attribute {name!r}{of}"] = _value(value, seen)
    return found


def changed_state(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return where two states differ first, in words; "" for nowhere."""
    return next(
        (what for what in {**after, **before} if before.get(what, ...) != after.get(what, ...)), ""
    )


def _registered(root: nn.Module) -> dict[int, Any]:
    """Return what stands for the modules, parameters and buffers of `root`, by their identity."""
    known = (*root.modules(), *root.parameters(), *root.buffers())
    return dict.fromkeys(map(id, known), "registered")


def _functions(owner: nn.Module) -> list[FunctionType]:
    """Return the functions that a module has as attributes, such as the one that is the level."""
    return [one for one in vars(owner).values() if isinstance(one, FunctionType)]


def _data(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names that hold data, not what Python and libraries put there."""
    for name, value in names.items():
        if isinstance(value, _FEW) and not name.startswith("__"):
            yield name, value


def _value(value: Any, seen: dict[int, Any]) -> Any:
    """Return what an object holds, of immutable and comparable parts."""
    if isinstance(value, _PLAIN):
        return repr(value)  # NaN equals itself
    if id(value) not in seen:
        seen[id(value)] = "itself"
        seen[id(value)] = type(value).__qualname__, *_parts(value, seen)
    return seen[id(value)]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield "" if value.requires_grad else _digest(value)
    elif isinstance(value, Mapping):
        yield from ((_value(key, seen), _value(one, seen)) for key, one in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from (_value(one, seen) for one in value)
    elif isinstance(value, set | frozenset):
        yield from sorted(repr(_value(one, seen)) for one in value)
    elif isinstance(value, torch.Generator):
        yield value.initial_seed()  # its state has bytes that nothing sets
    elif isinstance(value, MethodType):
        yield from (_value(value.__func__, seen), _value(value.__self__, seen))
    elif isinstance(value, FunctionType):
        yield from (value.__qualname__, _value(vars(value), seen))
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty one
                yield _value(cell.cell_contents, seen)
    elif hasattr(value, "__dict__") and type(value).__module__ != "logging":
        yield value.__qualname__ if isinstance(value, type) else _value(vars(value), seen)
    else:
        try:
            yield pickle.dumps(value)
        except Exception:  # what cannot be read cannot be compared
            yield ""


def _digest(tensor: Tensor) -> str:
    try:
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    except Exception:  # of no device, or of `vmap`
        return ""
    return f"{list(tensor.shape)} {tensor.dtype} {hashlib.sha256(values.tobytes()).hexdigest()}"
