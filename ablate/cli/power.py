"""`ablate power`: how many seeds an effect needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.cli.render import Db, console, table

if TYPE_CHECKING:
    from ablate.store import Database
    from ablate.store.noise import Setting

ALPHA = 0.05
SHARES = (0.5, 1.0, 2.0)  # times the noise: the effects shown if none is given


def power(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study in the database, or a study file.",
            autocompletion=complete.studies,
        ),
    ],
    effect: Annotated[
        list[float],
        option("An effect to detect, in the metric's unit. May be repeated.", metavar="X"),
    ] = [],  # noqa: B006
    chance: Annotated[
        float, typer.Option("--power", metavar="P", help="The probability of detecting it.")
    ] = 0.8,
    db: Db = None,
) -> None:
    """Estimate how many seeds an effect needs, from the noise of similar runs in the database."""
    from ablate import metrics, stats, store
    from ablate.errors import AblateError
    from ablate.store.noise import NEAR, noise_of

    if not all(x > 0 for x in effect):
        raise AblateError(
            f"--effect {next(x for x in effect if not x > 0):g}: an effect must be above 0; its"
            " sign does not matter"
        )
    if not 0.05 < chance < 1:
        raise AblateError(f"--power {chance:g}: expected a probability between 0.05 and 1")
    with store.open(db) as database:
        name, metric, settings, largest = _named(study, database)
        noise = noise_of(name, metric, settings, database)
        contrasts = _contrasts(name, database)
    if noise is None:
        raise AblateError(
            f"the database cannot estimate the noise in {metric} for such runs: it needs a contrast"
            " with three complete pairs, in any study with the same objective, corpus and"
            f" tokenizer, and with tokens and parameters within a factor of {NEAR}"
        )
    effects = sorted(effect) or [float(f"{share * noise.sd:.1g}") for share in SHARES]
    own = any(setting.command for setting in settings)
    unit = f" ({metrics.unit(metric)})" if metrics.unit(metric) and not own else ""
    out = console()
    out.print(
        f"{name}: seeds needed to detect an effect on {metric}{unit} with {chance:.0%} power. "
        f"Noise: sd {noise.sd:.2g} of a paired difference, from {noise.source}.",
        markup=False,
        soft_wrap=True,
    )
    headings = ["contrast", "pairs", "sd", *(f"±{x:g}" for x in effects)]

    def needed(sd: float, family: int) -> list[str]:
        return [
            f"{stats.seeds_needed(x, sd, power=chance, alpha=ALPHA / family):,}" for x in effects
        ]

    rows = [
        [label, str(n), f"{sd:.2g}", *needed(sd, size)]
        for label, n, sd, size in contrasts
        if sd > 0
    ]
    corrected = max((size for *_, size in contrasts), default=largest)
    rows.append(["any, at the median noise", "", f"{noise.sd:.2g}", *needed(noise.sd, corrected)])
    out.print(table(headings, rows, right=headings[1:]))
    if corrected > 1:
        out.print("After correction for the contrasts of a family.", markup=False)


def _named(study: str, database: Database) -> tuple[str, str, set[Setting], int]:
    """Return name, metric, settings of runs and size of the largest planned family of a study.

    The study is one in the database, where the size is 1, or a file.
    """
    from ablate.plan import plan
    from ablate.plan.price import price
    from ablate.store.names import studies
    from ablate.store.noise import planned_settings, settings_in
    from ablate.study import load

    stored = studies(database)
    if study in stored:
        settings = {setting for _, setting in settings_in(database, study)}
        return study, stored[study], settings, 1
    planned = plan(load(study))
    return (
        planned.study.name,
        planned.study.metric,
        planned_settings(planned),
        max(1, price(planned).largest_family),
    )


def _contrast(row: Mapping[Any, Any]) -> str:
    stratum = f" | {row['stratum']}" if row["stratum"] else ""
    return f"{row['factor']}{stratum}: {row['level']}"


def _contrasts(study: str, database: Database) -> list[tuple[str, int, float, int]]:
    """Return (contrast, complete pairs, sd, size of the family) of each contrast of a study."""
    from ablate import analysis
    from ablate.store.names import studies

    if study not in studies(database):
        return []
    frame = analysis.effects(study, database)
    size = frame.groupby("family")["cell"].size()
    return [
        (_contrast(row), row["n"], row["sd"], int(size[row["family"]]))
        for row in frame.to_dict("records")
    ]
