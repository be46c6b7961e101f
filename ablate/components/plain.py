"""Plain modules and functions as levels: what people write for one model, without packs.

A plain module is a `torch.nn.Module` without the axis of a pack. `component` makes a component of
it, a subclass of the base class of the factor; `ablate.model.plain` runs it for a pack. Nothing
here imports torch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, get_origin, get_type_hints

from ablate.components.base import Component, Config, Field
from ablate.errors import AblateError
from ablate.units import listed

GIVEN = ("config", "width", "params")  # arguments of a constructor that are no fields of a run


def is_component(made: object) -> bool:
    """Return whether a class is a component itself."""
    return isinstance(made, type) and issubclass(made, Component)


def _is_a(made: object, base: tuple[str, str]) -> bool:
    """Return whether a class is a subclass of one that is not imported for it."""
    if not isinstance(made, type):
        return False
    return base in [(one.__module__, one.__name__) for one in made.__mro__]


def base_of(factor: str) -> type[Component] | None:
    """Return the base class of the levels of a factor."""
    return next(
        (one for one in _subclasses(Component) if factor in vars(one).get("factors", ())), None
    )


def _of_modules() -> list[str]:
    """Return the factors that a plain torch module can be a level of."""
    module = Component.plain_class
    found = (one for one in _subclasses(Component) if one.adapter and one.plain_class == module)
    return list(dict.fromkeys(name for one in found for name in one.factors if one.plain_hooks))


def _subclasses(base: type[Component]) -> Iterator[type[Component]]:
    for made in base.__subclasses__():
        yield made
        yield from _subclasses(made)


def component(made: Any, factor: str, fields: Mapping[str, Any], who: str) -> type[Component]:
    """Return a component class for a plain module or function.

    Class attributes that the factor's base class documents, such as `gated` of an activation, and
    `fields`, may stand in a plain class.

    Args:
        made: A class or a function.
        factor: The factor that it is to be a level of.
        fields: The catalogue, which names the fields that a constructor may take.
        who: It, for errors.

    Raises:
        AblateError: Levels of the factor are no plain modules, the module lacks the method that
            the factor calls, or its constructor takes what a run does not have.
    """
    base = base_of(factor)
    if base is None:
        raise AblateError(f"{who}: {factor} has no levels that can be added")
    of_class = isinstance(made, type)
    of_function = bool(base.function_hook or (base.adapter and "forward" in base.plain_hooks))
    of_function |= base.makes or (base.adapter != "" and not base.plain_hooks)
    fits = base.adapter and base.plain_hooks and _is_a(made, base.plain_class)
    if not (fits if of_class else of_function):
        accepted = [f"a subclass of {base.__module__}.{base.__name__}"]
        if base.adapter and base.plain_hooks:
            package = ".".join(base.plain_class[0].split(".")[:2])
            accepted.append(f"a {package}.{base.plain_class[1]}")
        accepted += ["a function"] * of_function
        error = f"{who} cannot be a level of {factor}, which is {' or '.join(accepted)}"
        if not base.adapter:
            meant = [name for name in _of_modules() if factor in name.split("_")]
            error += f"; did you mean {listed(meant, 'or')}?" if meant else "."
            error += f" Plain modules are levels of {', '.join(_of_modules())}"
        raise AblateError(error)
    own = own_fields(made, who)
    attributes: dict[str, Any] = {
        "__doc__": made.__doc__,
        "__module__": made.__module__,
        "__qualname__": made.__qualname__,
    }
    if not of_class and base.called_with:
        _check_call(made, base.called_with, who)
    if not of_class and base.function_hook:
        return type(made.__name__, (base,), attributes | {base.function_hook: staticmethod(made)})
    attributes |= {"plain": made if of_class else staticmethod(made), "module": base.adapter}
    if of_class or base.makes:
        known = {*fields, *GIVEN} if base.configured else set()
        _check_arguments(made, known, {one.name for one in own}, who)
        _check_truth(made, fields, {one.name for one in own}, who)
        asked = {one.name for one in _arguments(made)}
        if "config" in asked:
            asked |= _read_of_config(made)
        attributes["asks"] = asked & known - {*GIVEN, *(one.name for one in own)}
    if of_class:
        names = _names(made)
        of = [one for one in made.__mro__ if (one.__module__, one.__name__) != base.plain_class]
        if not any(hook in vars(one) for one in of for hook in base.plain_hooks):
            hooks = " or ".join(base.plain_hooks)
            raise AblateError(f"{who} has no method {hooks}, which {factor} calls")
        attributes |= {
            name: getattr(made, name)
            for name, hint in get_type_hints(base).items()
            if (get_origin(hint) or hint) is ClassVar and name in names and name not in _OF_BASE
        }
        attributes |= base.of_plain(names)
    return type(made.__name__, (base,), attributes)


def own_fields(made: Any, who: str) -> tuple[Field, ...]:
    """Return the hyper-parameters that a class or function of a user's own declares: `fields`.

    Raises:
        AblateError: They are no tuple of `Field`, or two have one name.
    """
    found = getattr(made, "fields", ())
    if not isinstance(found, tuple | list) or not all(isinstance(one, Field) for one in found):
        raise AblateError(f"{who}: fields is a tuple, as in fields = (Field(…),)")
    for one in found:
        if sum(other.name == one.name for other in found) > 1:
            raise AblateError(f"{who}: two of its fields are called {one.name!r}; rename one")
    return tuple(found)


# class attributes of a component that a plain class does not set
_OF_BASE = (
    "factors",
    "hooks",
    "adapter",
    "plain_hooks",
    "function_hook",
    "called_with",
    "makes",
    "configured",
    "plain",
    "module",
    "asks",
)


def _names(made: type) -> set[str]:
    """Names that a class and its bases define, without those of torch."""
    return {
        name
        for one in made.__mro__
        if one is not object and not one.__module__.startswith("torch.")
        for name in vars(one)
    }


def _arguments(made: Any) -> list[inspect.Parameter]:
    given = inspect.signature(made).parameters.values()
    return [one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def default_of(component: Component, name: str) -> Any:
    """Return the default of an argument that a plain class or function has; None for none."""
    if component.plain is None:
        return None
    found = (one.default for one in _arguments(component.plain) if one.name == name)
    return next((one for one in found if one is not inspect.Parameter.empty), None)


def _read_of_config(made: Any) -> set[str]:
    """Return what a class or function reads as `config.NAME` or `….config.NAME`."""
    functions = [made]
    if isinstance(made, type):
        own = (one for one in made.__mro__ if not one.__module__.startswith("torch."))
        held = [value for one in own for value in vars(one).values()]
        functions = [getattr(one, "fget", getattr(one, "__func__", one)) for one in held]
    found = set()
    for function in filter(inspect.isfunction, functions):
        with suppress(OSError, SyntaxError):  # its source is not known, or not a whole statement
            source = inspect.getsource(function)
            # not textwrap.dedent, which leaves code as it is where a comment is at the left edge
            tree = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source)
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute):
                    of = node.value
                    name = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
                    found |= {node.attr} if name == "config" else set()
    return found


def _check_arguments(made: Any, known: set[str], own: set[str], who: str) -> None:
    given = "config, width and fields of a run, such as d_model or one of its own `fields`"
    given = given if known else f"its own `fields`, {', '.join(sorted(own))}" if own else ""
    for one in _arguments(made):
        if one.name not in known | own and one.default is one.empty:
            raise AblateError(
                f"{who}: its constructor takes {one.name!r}; it is given"
                f" {f'{given}, by their names' if given else 'nothing'}"
            )


def _check_truth(made: Any, fields: Mapping[str, Any], own: set[str], who: str) -> None:
    """Refuse an argument that is true or false where the run's field is text or a number."""
    for one in _arguments(made):
        row = None if one.name in own else fields.get(one.name)
        if row and (isinstance(one.default, bool) or one.annotation in (bool, "bool")):
            given = f"one of {', '.join(row.offered)}" if row.choice else "a number or text"
            raise AblateError(
                f"{who}: its constructor takes {one.name} as true or false; it is given the run's"
                f" field {one.name}, which is {given}: give the argument another name, or compare"
                " it with these"
            )


def _check_call(function: Any, given: Sequence[str], who: str) -> None:
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        raise AblateError(
            f"{who} is called with {', '.join(given)}, in this order: {error}"
        ) from None


def construct(made: Any, config: Config, **given: Any) -> Any:
    """Return a new plain module: its constructor gets its arguments by their names.

    Args:
        made: The class, or for a whole model a function.
        config: The run.
        **given: What else there is: `width` of the vectors that a module acts on, or `params`.
    """
    given["config"] = config
    return made(
        **{
            one.name: given[one.name] if one.name in given else getattr(config, one.name)
            for one in _arguments(made)
            if one.name in given or hasattr(config, one.name)
        }
    )


def check_component(made: type[Component], who: str, factor: str) -> None:
    """Refuse a component that lacks the method that its factor calls.

    Raises:
        AblateError: It does.
    """
    base: Any = next(one for one in made.__mro__ if vars(one).get("factors"))
    if made.module or not base.hooks or made.build is not base.build:
        return
    if all(getattr(made, hook) is getattr(base, hook) for hook in base.hooks):
        raise AblateError(f"{who} has no method {' or '.join(base.hooks)}, which {factor} calls")
