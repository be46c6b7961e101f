"""A step of the size ladder: parameters, aspect ratio and head width → the shape of a model; and the width of an MLP
that brings a model to a given size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ablate import config as configuration
from ablate import sizes
from ablate.errors import AblateError
from ablate.sizes import Sizes
from ablate.study import Fields

DEEPEST = 256  # layers
NEAR = 0.1  # relative distance from the wanted parameters beyond which a step of the ladder is refused
CLOSE = 0.005  # relative distance that is close enough not to give up a round width


def solve(params: float, aspect: float, d_head: int, base: Fields) -> Fields:
    """n_layer, d_model, n_head, d_head and d_mlp of the model with about `params` parameters in its body.

    d_model is a multiple of d_head. Of all shapes the one is taken that is nearest, in log distance, to both the size
    and the aspect ratio d_model / n_layer with an MLP of the usual width; that width then makes up the difference.
    `base` holds the other fields. Raises `AblateError` where no shape comes within 10%.
    """
    shapes = list(_shapes(params, aspect, d_head, base))
    if shapes:
        shape = min(shapes, key=lambda pair: pair[0])[1]
        shape["d_mlp"] = fit_d_mlp(base | shape, params, lambda counted: counted.body)
        body = sizes.count(configuration.resolve(base | shape)).body
        if abs(body / params - 1) <= NEAR:
            return shape
    raise AblateError(
        f"size: no model has about {params:,.0f} body parameters with aspect = {aspect:g} and d_head = {d_head}; "
        "take a smaller d_head or more parameters"
    )


def fit_d_mlp(fields: Fields, target: float, measure: Callable[[Sizes], float]) -> int:
    """The d_mlp at which `measure` of the model comes nearest to `target`; a multiple of 8, 4 or 2 where that is close.

    `measure` grows linearly with d_mlp, as parameters and FLOPs do.
    """

    def at(d_mlp: int) -> float:
        return measure(sizes.count(configuration.resolve(fields | {"d_mlp": d_mlp})))

    first = at(1)
    exact = 1 + (target - first) / (at(2) - first)
    for step in (8, 4, 2):
        d_mlp = step * round(exact / step)
        if d_mlp > 0 and abs(at(d_mlp) / target - 1) <= CLOSE:
            return d_mlp
    return max(1, round(exact))


def _shapes(params: float, aspect: float, d_head: int, base: Fields) -> Iterator[tuple[float, Fields]]:
    """(distance, shape) of the shapes from one layer up to four times the size."""
    for n_layer in range(1, DEEPEST + 1):
        ideal = aspect * n_layer / d_head
        smallest = math.inf
        for n_head in {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}:
            shape = {"n_layer": n_layer, "d_model": n_head * d_head, "n_head": n_head, "d_head": d_head}
            try:
                body = sizes.count(configuration.resolve(base | shape)).body
            except AblateError:  # such as an n_kv_head that does not divide this n_head
                continue
            smallest = min(smallest, body)
            yield abs(math.log(body / params)) + abs(math.log(n_head * d_head / n_layer / aspect)), shape
        if params * 4 < smallest < math.inf:
            return
