"""The command factors: what can vary, its levels, and presets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.cli.render import console, table

if TYPE_CHECKING:
    from ablate.components import Factor


def factors(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A factor, or with --presets a preset, to show in detail.",
            show_default=False,
            autocompletion=complete.factors,
        ),
    ] = None,
    presets: Annotated[
        bool, option("List presets instead: published models, each as fields of a run.")
    ] = False,
    use: Annotated[
        list[str] | None,
        option("A file or package with parts of your own, to list them too. May be repeated."),
    ] = None,
) -> None:
    """List the factors, or the levels of one factor with their sources."""
    from pathlib import Path

    from ablate import outside
    from ablate.components import factor

    if use:
        outside.find(use, Path())
    if presets:
        _presets() if name is None else _preset(name)
    elif name is None:
        _catalogue()
    else:
        _one(factor(name))


def _catalogue() -> None:
    from ablate.components import CATALOGUE
    from ablate.study.values import BUDGETS, FOLLOWS

    out = console()
    for group in dict.fromkeys(row.group for row in CATALOGUE.values()):
        rows = [row for row in CATALOGUE.values() if row.group == group and row.name not in FOLLOWS]
        lines = [
            (row.name, ", ".join(row.names) or _default(row.name), row.meaning) for row in rows
        ]
        if group == "training":
            lines += [(name, "", f"Budget: {meaning}.") for name, meaning in BUDGETS.items()]
        out.print(table([group, "levels or default", "meaning"], lines, widths=(20, 44, None)))
    out.print(
        "`ablate factors NAME` shows the levels of one factor, with equations and sources; `ablate"
        " factors --presets` lists what `preset` may be.",
        markup=False,
    )


def _presets() -> None:
    from ablate import sizes
    from ablate.components.presets import PRESETS
    from ablate.config import resolve

    rows = []
    for name, row in PRESETS.items():
        config = resolve(row.whole)
        shape = (config.n_layer, config.d_model, config.n_head, config.n_ctx, f"{row.n_vocab:,}")
        params = f"{sizes.count(config).params:,}"
        rows.append((name, params, f"{row.published:g}M", *map(str, shape), row.source))
    sized = ("n_layer", "d_model", "n_head", "n_ctx", "n_vocab")
    out = console()
    out.print(table(["preset", "parameters", "published", *sized, "source"], rows))
    out.print(
        "Parameters count the published vocabulary; a run has the vocabulary of its tokenizer."
        " `ablate factors --presets NAME` shows the fields of a preset.",
        markup=False,
    )


def _preset(name: str) -> None:
    from ablate.components import CATALOGUE
    from ablate.components.presets import preset
    from ablate.study.values import label

    row, out = preset(name), console()
    out.print(f"{name}: {row.source}", style="bold", markup=False)
    fields = [(key, label(row.fields[key])) for key in CATALOGUE if key in row.fields]
    out.print(table(["field", "value"], fields))
    out.print(f"Published vocabulary: {row.n_vocab:,}", markup=False)
    if row.differs:
        out.print(f"Differs from the published model: {row.differs}", markup=False)


def _one(row: Factor) -> None:
    from ablate.study.values import FOLLOWS

    out = console()
    out.print(f"{row.name}: {row.meaning}", style="bold", markup=False)
    if row.name in FOLLOWS:
        out.print(f"Not a key of a study file: it {FOLLOWS[row.name]}.", markup=False)
    if row.source:
        out.print(f"Source: {row.source}", markup=False)
    if row.needs:
        needs = (f"{other} = {' or '.join(levels)}" for other, levels in row.needs.items())
        out.print(f"Applies only with {', or '.join(needs)}.", markup=False)
    if row.levels:
        lines = [
            (
                level.name,
                ", ".join(sorted({str(alias) for alias in level.aliases})),
                level.meaning,
                level.source,
            )
            for level in row.levels
        ]
        columns = dict(
            zip(("level", "or", "meaning", "source"), zip(*lines, strict=True), strict=True)
        )
        shown = {heading: cells for heading, cells in columns.items() if any(cells)}
        out.print(table(list(shown), zip(*shown.values(), strict=True)))
    out.print(f"Default: {_default(row.name)}", markup=False)


def _default(name: str) -> str:
    """The default of a field, in words."""
    from ablate.config import field_info

    ruled = {
        "n_kv_head": "n_head",
        "d_head": "d_model / n_head",
        "d_mlp": "4·d_model; 8/3·d_model for gated activations",
        "attention": "causal; full for masked models",
    }
    default = field_info(name).default
    return ruled.get(name) or (str(list(default)) if isinstance(default, tuple) else f"{default}")
