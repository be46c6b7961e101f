"""A trained model by its run, its file of weights, or a folder of `transformers`."""

from __future__ import annotations

from pathlib import Path

from ablate import store
from ablate.errors import AblateError
from ablate.store import details
from ablate.train import weights
from ablate.trained import hugging_face
from ablate.trained.model import Model


def load_model(
    run: int | str | Path, db: store.Database | Path | str | None = None, *, device: str = "cpu"
) -> Model:
    """Return a model in evaluation mode, with its tokenizer: that of a run whose weights are kept,
    or that of a folder of `transformers`.

    If the run has levels of the user's own, this runs the Python code of their file, which is kept
    with the weights.

    Args:
        run: Number of the run, the start of its key, or a file of weights or a folder with
            config.json and model.safetensors, which need no database.
        db: A database, its path or URL; None for $ABLATE_DB, else results/ablate.db.
        device: Torch's name of the device.

    Returns:
        A module from tokens [B, T] to logits [B, T, V], with the attributes `tokenizer` (`encode`,
        `decode`), `config` and `about`.

    Raises:
        AblateError: There is no such run, the run has no weights, or the weights cannot be read.
    """
    if Path(str(run)).is_dir() and not str(run).isdigit():
        return hugging_face.load(Path(str(run))).to(device)
    if isinstance(run, Path) or str(run).endswith(".safetensors"):
        path, key = Path(str(run)), ""
    elif isinstance(db, store.Database):
        path, key = details.weights(db, str(run))
    else:
        with store.open(None if db is None else str(db)) as opened:
            path, key = details.weights(opened, str(run))
    kept, about = weights.read(path)
    if key not in ("", about.key):
        raise AblateError(f"{path} holds the weights of another run, {about.key[:12]}")
    return Model(kept, about).to(device)
