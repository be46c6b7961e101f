"""`ablate prune`: how much worse a trained model is without each head or block."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

from ablate.cli import complete
from ablate.cli.compare import DRAWN
from ablate.cli.flags import option
from ablate.cli.output import echo
from ablate.cli.render import Db, ModelName, show_all, table, working, writing
from ablate.launch.devices import KINDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.trained.prune import Importance, Pruned

ALPHA = 0.05


def prune(
    model: ModelName,
    heads: Annotated[
        bool, option("Leave out one attention head at a time; the default.", "--heads")
    ] = False,
    blocks: Annotated[bool, option("Leave out one block at a time.", "--blocks")] = False,
    corpus: Annotated[
        str, option("A corpus, as in a study file; by default that of the run.", metavar="CORPUS")
    ] = "",
    tokens: Annotated[
        str, option("Held-out tokens to read; by default 32K.", "--tokens", metavar="N")
    ] = "32K",
    device: Annotated[
        str,
        option(
            "Where the model computes; by default cpu.",
            metavar="|".join(KINDS),
            autocompletion=complete.devices,
        ),
    ] = "cpu",
    as_json: Annotated[bool, option("Print the result as JSON.", "--json")] = False,
    plot: Annotated[
        Path | None, option("Draw a figure: a .svg, .pdf or .png file.", "--plot", metavar="FILE")
    ] = None,
    db: Db = None,
) -> None:
    """Show the held-out loss of a trained model without each of its heads or blocks.

    ablate prune 12 --plot heads.svg

    ablate prune my-gpt2 --blocks --corpus austen --device cuda
    """
    from ablate.errors import AblateError, unknown
    from ablate.launch import devices
    from ablate.study.values import positive
    from ablate.trained.load import load_model
    from ablate.trained.prune import prune as measure

    if heads and blocks:
        raise AblateError("give one of --heads and --blocks")
    if plot and plot.suffix not in DRAWN:
        raise unknown("extension of --plot", plot.suffix or plot.name, DRAWN)
    n = int(positive("--tokens", tokens))
    loaded = load_model(model, db, device=devices.find(device)[0].name)
    with working("Reading the text …") as say:
        found = measure(
            loaded,
            "blocks" if blocks else "heads",
            corpus=corpus,
            tokens=n,
            advance=lambda done, of: say(f"{done} of {of} left out …"),
        )
    if as_json:
        echo(json.dumps(_rows(found), indent=1, ensure_ascii=False))
    else:
        show_all(_lines(found))
    if plot:
        with writing(plot):
            _plot(found, plot)
        if not as_json:
            show_all([f"Drawn: {plot}"])


def _rows(found: Pruned) -> dict[str, Any]:
    return {
        "what": found.what,
        "corpus": found.corpus,
        "loss": found.loss,
        "windows": found.windows,
        "block": found.block,
        "parts": [asdict(one.part) | _numbers(one) for one in found.parts],
    }


def _numbers(one: Importance) -> dict[str, float | None]:
    effect = one.effect
    values = {
        "difference": effect.mean,
        "lo": effect.lo,
        "hi": effect.hi,
        "p": effect.p,
        "p_holm": effect.p_holm,
    }
    return {name: value if value == value else None for name, value in values.items()}  # NaN


def _lines(found: Pruned) -> Iterator[RenderableType]:
    from ablate.components.places import has_several
    from ablate.report.labels import p_digits
    from ablate.units import decimals, ends, number, signed

    places = {(one.part.stack, one.part.attention) for one in found.parts}
    several = has_several(places)
    of_heads = found.what == "heads"
    named = ["stack"] * several + ["attention"] * (several and of_heads)
    headings = [*named, "block"] + ["head"] * of_heads
    numeric = ["loss without it", "difference", "95% interval", "p (Holm)"]
    rows, places_of_all = [], []
    for one in found.parts:
        part, effect = one.part, one.effect
        place = [str(getattr(part, name)) for name in named]
        where = [*place, str(part.layer)] + [str(part.head)] * of_heads
        digits = decimals((effect.hi - effect.lo) / 2)
        places_of_all.append(digits)
        interval = "–" if math.isnan(effect.lo) else ends(effect.lo, effect.hi, digits)
        without, difference = number(found.loss + effect.mean, digits), signed(effect.mean, digits)
        rows.append([*where, without, difference, interval, p_digits(effect.p_holm)])
    yield table([*headings, *numeric], rows, right=numeric)
    worse = [one for one in found.parts if one.effect.p_holm <= ALPHA and one.effect.mean > 0]
    better = [one for one in found.parts if one.effect.p_holm <= ALPHA and one.effect.mean < 0]
    n, kind = len(found.parts), found.what
    yield (
        f"Loss of the whole model: {number(found.loss, median_low(places_of_all))} nats per token,"
        f" on {found.windows} windows of {found.corpus}"
    )
    yield (
        f"Without one of {n} {kind}, the loss is significantly higher for {len(worse)}, lower for"
        f" {len(better)}; for {n - len(worse) - len(better)} no difference is found"
    )
    if found.block > 1:
        yield f"Neighbouring windows are correlated: up to {found.block} count as one"


def _plot(found: Pruned, path: Path) -> None:
    import matplotlib.pyplot as plt
    import pandas as pd

    from ablate import figures

    rows = [asdict(one.part) | {"difference": one.effect.mean} for one in found.parts]
    figure = figures.importance(pd.DataFrame(rows)).get_figure(root=True)
    assert figure
    figures.save(figure, path.with_suffix(""), [path.suffix[1:]])
    plt.close(figure)
