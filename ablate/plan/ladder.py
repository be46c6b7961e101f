"""A step of the size ladder: parameters, aspect ratio and head width → the shape of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ablate import config as configuration
from ablate.errors import AblateError
from ablate.plan.match import fit_d_mlp, measure
from ablate.study import Fields

DEEPEST = 256  # layers
# relative distance from the requested parameters beyond which a step of the ladder is refused
NEAR = 0.1


def solve(params: float, aspect: float, d_head: int, base: Fields) -> Fields:
    """Return the shape of a model of a given size: n_layer, d_model, n_head, d_head and d_mlp.

    The shape is the one nearest, in log distance, to both size and aspect ratio with an MLP of the
    default width; the width of the MLP then makes up the difference.

    Args:
        params: Parameters of the body.
        aspect: d_model / n_layer.
        d_head: Width of a head, of which d_model is a multiple.
        base: The other fields.

    Raises:
        AblateError: No shape comes within 10% of the size.
    """
    shapes = list(_shapes(params, aspect, d_head, base))
    if shapes:
        shape = min(shapes, key=lambda pair: pair[0])[1]
        fitted = fit_d_mlp(configuration.resolve(base | shape), params, "body")
        if fitted and abs(measure(fitted, "body") / params - 1) <= NEAR:
            return shape | {"d_mlp": fitted.d_mlp}
    raise AblateError(
        f"size: no model has about {params:,.0f} body parameters with aspect = {aspect:g} and"
        f" d_head = {d_head}; take a smaller d_head or more parameters"
    )


def _shapes(
    params: float, aspect: float, d_head: int, base: Fields
) -> Iterator[tuple[float, Fields]]:
    """Yield (distance, shape) of the shapes from one layer up to four times the size."""
    for n_layer in range(1, DEEPEST + 1):
        ideal = aspect * n_layer / d_head
        smallest = math.inf
        for n_head in {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}:
            shape = {
                "n_layer": n_layer,
                "d_model": n_head * d_head,
                "n_head": n_head,
                "d_head": d_head,
            }
            try:
                body = measure(configuration.resolve(base | shape), "body")
            except AblateError:  # such as an n_kv_head that does not divide this n_head
                continue
            smallest = min(smallest, body)
            yield (
                abs(math.log(body / params)) + abs(math.log(n_head * d_head / n_layer / aspect)),
                shape,
            )
        if params * 4 < smallest < math.inf:
            return
