"""Weights of finished runs: a safetensors file for each, from which its model can be built again.

Next to the weights a file has, as text in its metadata, all that the model is made of: the run's
resolved fields and key, the tokenizer's content, the code of levels from outside. A member of a
pack has a file of its own, without the axis of the pack.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors
from safetensors.torch import save
from torch import Tensor, nn

from ablate import __version__, text
from ablate.code import Code
from ablate.errors import AblateError
from ablate.kinds import Job, Run
from ablate.paths import atomic
from ablate.train.checkpoint import State

_PLAIN = ("key", "keep", "step", "loss", "version")  # attributes of `About` that are JSON values


@dataclass(frozen=True)
class About:
    """What a file says of its weights.

    Attributes:
        run: The run.
        key: Its key.
        keep: Whether these are its "final" or its "best" weights; "given" for a model that ablate
            did not train.
        step: The step after which they were taken.
        loss: Held-out loss of the evaluation at that step, in nats per token.
        tokenizer: Content of the tokenizer's file; b"" for bytes, and where there is none.
        use: Code of the run's levels from outside.
        version: Of the ablate that wrote it.
        location: Of the text, as `ablate.text.corpora.Corpus` has it; "" if that is not known.
    """

    run: Run
    key: str
    keep: str
    step: int
    loss: float
    tokenizer: bytes
    use: tuple[Code, ...]
    version: str = __version__
    location: str = ""


@dataclass(frozen=True)
class Kept:
    """A file that was written."""

    path: Path
    keep: str
    step: int


class Taken(NamedTuple):
    """Weights of a run after a step, and its held-out loss there."""

    step: int
    loss: float
    weights: dict[str, Tensor]


class Keeper:
    """Keeps the weights of the members of a job, as the job says.

    The best ones wait in the memory of the host until their run is complete.

    Args:
        job: Names the files; those of a run without one are not kept.
        model: The models of the pack.

    Raises:
        AblateError: The tokenizer cannot be read.
    """

    def __init__(self, job: Job, model: nn.Module):
        self._job, self._model = job, model
        self._files = job.weights or (None,) * len(job.runs)
        self._evaluated: tuple[int, Sequence[float]] = 0, ()  # last step, loss of each member
        self._best: list[Taken | None] = [None] * len(job.runs)
        config, any_file = job.runs[0].config, any(self._files)
        self._tokenizer = text.content(config, job.sources) if any_file else b""

    def evaluated(self, step: int, losses: Sequence[float], members: Sequence[int]) -> None:
        """Note held-out losses, and keep the weights that are the best so far.

        Args:
            step: Steps made.
            losses: Held-out loss of each member.
            members: Those to look at.
        """
        self._evaluated = step, losses
        for k in members if self._job.best else ():
            best = self._best[k]
            if self._files[k] and (best is None or losses[k] < best.loss):
                self._best[k] = Taken(step, losses[k], self._weights(k))

    def write(self, k: int) -> Kept | None:
        """Write the weights of a member that is complete, if they are kept."""
        path = self._files[k]
        if path is None:
            return None
        step, losses = self._evaluated
        best = self._best[k] or Taken(step, losses[k], self._weights(k))
        keep = "best" if self._job.best else "final"
        run, use = self._job.runs[k], self._job.use
        location = self._job.sources.get(run.config.corpus_hash, "")
        of_step = best.step, best.loss
        about = About(run, run.key, keep, *of_step, self._tokenizer, use, location=location)
        write(path, best.weights, about)
        return Kept(path, keep, best.step)

    def state(self) -> State:
        """Return what a checkpoint has of the best weights so far; nothing if none are kept."""
        return {"best": [best and best._asdict() for best in self._best]} if self._job.best else {}

    def fits(self, state: State) -> bool:
        """Return whether a checkpoint has what is needed: the best of earlier evaluations."""
        return not self._job.best or "best" in state

    def load_state(self, state: State, members: Sequence[int]) -> None:
        """Continue from a checkpoint, in which these are the members of this job."""
        if self._job.best:
            earlier = [state["best"][k] for k in members]
            self._best = [best and Taken(**best) for best in earlier]

    def _weights(self, k: int) -> dict[str, Tensor]:
        """Return parameters and buffers of member k on the CPU, in the shapes of one run."""
        return {
            name: tensor[k].detach().to("cpu", copy=True).contiguous()
            for name, tensor in self._model.state_dict().items()
        }


def write(path: Path, weights: Mapping[str, Tensor], about: About) -> None:
    """Write a file of weights whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    described = {
        "run": asdict(about.run),
        # not where the file was, which means nothing elsewhere
        "use": [
            {name: value for name, value in asdict(code).items() if name != "file"}
            for code in about.use
        ],
        **{name: getattr(about, name) for name in (*_PLAIN, "location")},
    }
    metadata = {
        "format": "pt",
        "ablate": json.dumps(described),
        "tokenizer": base64.b64encode(about.tokenizer).decode(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as part:
        # not `save_file`, whose error for a full disk is no OSError
        part.write_bytes(save(dict(weights), metadata))


def read(path: Path) -> tuple[dict[str, Tensor], About]:
    """Return the weights of a file, on the CPU, and what it says of them. Runs no code of it.

    The weights have the shapes of one run, without the axis of a pack.

    Raises:
        AblateError: It is missing, damaged, or no file of `write`.
    """
    if not path.is_file():
        raise AblateError(f"weights {path}: there is no such file")
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise AblateError(f"weights {path} cannot be read: {error}") from None
    try:
        told = json.loads(metadata["ablate"])
        return weights, About(
            run=Run(**told["run"]),
            tokenizer=base64.b64decode(metadata["tokenizer"]),
            use=tuple(Code(**code) for code in told["use"]),
            **{name: told[name] for name in _PLAIN},
            location=told.get("location", ""),
        )
    except (LookupError, TypeError, ValueError):
        raise AblateError(f"weights {path} were not written by ablate: they name no run") from None
