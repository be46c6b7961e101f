"""`ablate sample`: generate text with the model of a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ablate.cli.flags import option
from ablate.cli.output import deliver
from ablate.cli.render import Db, ModelName


def sample(
    model: ModelName,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help=(
                "The beginning of a text; for a masked model, a text with [MASK] for each token to"
                " fill in; for a model of corrupted text, one with [MASK] for each hidden span; for"
                " a model of pairs or an encoder-decoder of transformers, a source."
                " Without TEXT, a causal model begins a new document."
            ),
            show_default=False,
        ),
    ] = "",
    tokens: Annotated[
        int | None,
        option(
            "Largest number of tokens to add, by default 100; fewer if the document ends.",
            metavar="N",
            min=0,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        option(
            "Divides the logits; 0 takes the likeliest token. By default 1, for a masked model 0.",
            metavar="T",
            min=0,
        ),
    ] = None,
    top_k: Annotated[
        int | None, option("Choose among the N likeliest tokens.", metavar="N", min=1)
    ] = None,
    seed: Annotated[
        int | None,
        option("Seed of the random choices, by default 0.", metavar="N", min=0, max=2**63 - 1),
    ] = None,
    beam: Annotated[
        int | None,
        option("Width of the beam search for a target, by default 1.", metavar="N", min=1),
    ] = None,
    db: Db = None,
) -> None:
    """Continue a text with a trained model, fill in each [MASK], or decode a target.

    The study of a run must keep weights: keep = "final" in the table run of the study file.
    """
    from ablate.trained.load import load_model
    from ablate.trained.sample import check_options
    from ablate.trained.sample import sample as write

    loaded = load_model(model, db)
    given: dict[str, Any] = {
        "tokens": tokens,
        "temperature": temperature,
        "top_k": top_k,
        "seed": seed,
        "beam": beam,
    }
    check_options(loaded, {f"--{name.replace('_', '-')}": one for name, one in given.items()})
    made = write(loaded, text, **given)
    deliver(f"{made}\n")
