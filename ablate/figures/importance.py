"""Losses without each head or block of a trained model."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from ablate.components.places import has_several
from ablate.figures import style
from ablate.figures.compare import heat

COLUMN = 0.42  # inches, of a number


def importance(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much higher the loss is without each part of a model, with the numbers.

    Args:
        frame: One row a part: `stack` ("encoder" or "decoder"), `layer`, `attention` ("self" or
            "cross") and `head` (both None for blocks), and `difference`, in nats per token.
        ax: Axes to draw on, None for a new figure.
    """
    heads = bool(frame["head"].notna().any())
    several = has_several({*zip(frame["stack"], frame["attention"], strict=True)})
    down = frame["stack"].astype(str)
    if heads:
        layers = frame["layer"].map("{:d}".format)
        down = down + " " + frame["attention"] + " " + layers if several else layers
    across = (frame["head"] if heads else frame["layer"]).astype(int)
    x, y = ("head", "block") if heads else ("block", "stack")
    # categories: rows and columns keep the order of the model
    table = pd.DataFrame(
        {
            x: across,
            y: pd.Categorical(down, categories=list(dict.fromkeys(down)), ordered=True),
            "difference": frame["difference"],
        }
    )
    with style.theme():
        if ax is None:
            width = max(style.width(), 0.9 + COLUMN * table[x].nunique())
            height = 1.55 + 0.26 * table[y].nunique()
            ax = plt.subplots(figsize=(width, height), layout="constrained")[1]
        label = f"loss without the {x} − with it (nats per token)"
        ax = heat(table, x=x, y=y, value="difference", label=label, ax=ax)
        ax.set_xticklabels([text.get_text() for text in ax.get_xticklabels()], rotation=0)
        for text in ax.get_xticklabels():
            text.set_horizontalalignment("center")
        ax.set_title(x, fontsize=8)
        return ax
