"""The model of a run in a folder, for the library `transformers`."""

from __future__ import annotations

from pathlib import Path

from ablate.store import Database


def write(database: Database, run: str, where: str, role: str) -> str:
    """Save a run's model; see `ablate.export.write`. The role has no effect."""
    from ablate.trained.hugging_face import save
    from ablate.trained.load import load_model

    model = load_model(run, database)
    kind = save(model, Path(where))
    said = f"{where}: run {run} as a {kind} of transformers, with its {model.about.keep} weights"
    if not (Path(where) / "tokenizer.json").is_file():
        said += f"; without a tokenizer: transformers has none for {model.config.tokenizer!r}"
    return said
