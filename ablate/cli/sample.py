"""`ablate sample`: text by the model of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.flags import option
from ablate.cli.output import deliver
from ablate.cli.render import Db, RunName


def sample(
    run: RunName,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help=(
                "The beginning of a text; for a masked model a text with [MASK] for each token to"
                " fill in; for a model of pairs a source. By default a document begins."
            ),
            show_default=False,
        ),
    ] = "",
    tokens: Annotated[
        int, typer.Option(metavar="N", min=0, help="Most tokens to add; a document may end before.")
    ] = 100,
    temperature: Annotated[
        float | None,
        option(
            "Divides the logits; 0 takes the likeliest token. By default 1, for masks 0.",
            metavar="T",
            min=0,
        ),
    ] = None,
    top_k: Annotated[
        int | None, option("Choose among the N likeliest tokens.", metavar="N", min=1)
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Another seed, another text.")
    ] = 0,
    beam: Annotated[
        int, typer.Option(metavar="N", min=1, help="Hypotheses kept of the target of a pair.")
    ] = 1,
    db: Db = None,
) -> None:
    """Continue a text with the model of a run, fill in its [MASK]s, or decode its target.

    Its study must keep weights: keep = "final" in the table run of the study file.
    """
    from ablate.trained import load_model
    from ablate.trained.sample import sample as write

    model = load_model(run, db)
    made = write(
        model, text, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed, beam=beam
    )
    deliver(f"{made}\n")
