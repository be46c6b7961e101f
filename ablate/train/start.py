"""Given weights: the trained model that runs start from, and what their own models take of it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate import cache, draws
from ablate.components import CATALOGUE, places
from ablate.components.catalogue import OF_MODELS
from ablate.components.places import Part
from ablate.config import RunConfig
from ablate.errors import AblateError, written
from ablate.kinds import Run
from ablate.model.places import attention_of
from ablate.model.transformer import model_of
from ablate.train import weights

GROUPS = (*OF_MODELS, "objective")  # of fields that are given
NO_TOKEN = -1e4  # the bias of a token that is never predicted
_BLOCK = re.compile(r"(encoder\.)?blocks\.(\d+)\.")
_VOCABULARY = ("embedding.weight", "unembedding.weight", "unembedding.bias")


@dataclass(frozen=True)
class Source:
    """A trained model that runs start from.

    Attributes:
        path: Its folder of `transformers`, or the file of weights of a run.
        hash: SHA-256 of its weights.
        run: The run that it is, or stands for. A masked model of a folder has one more token than
            the folder's: ablate's [MASK], which is the last one.
        tokenizer: Its tokenizer, as a study file names one.
        mask: The folder's own token of the mask; None where the last one is.
    """

    path: Path
    hash: str
    run: Run
    tokenizer: str
    mask: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its model, and the tokens that it knows corrupted text by."""
        known = CATALOGUE["corruption_tokens"]
        tokens = {known.name, *(field.name for field in known["folder"].fields)}
        return {
            name: value
            for name, value in self.run.fields.items()
            if name != "n_vocab" and (CATALOGUE[name].group in GROUPS or name in tokens)
        }


def source(path: Path) -> Source:
    """Return the trained model in a folder of `transformers`, or in a file of weights.

    Raises:
        AblateError: There is none, or none that runs can start from.
    """
    return _source(path, tuple((file, file.stat().st_mtime_ns) for file in _files(path)))


@functools.lru_cache(maxsize=64)
def _source(path: Path, files: tuple[tuple[Path, int], ...]) -> Source:
    found = _hash([file for file, _ in files])
    if path.is_file():
        _, about = weights.read(path)
        if about.use or about.run.kind != "transformer":
            raise AblateError(
                f"{path}: the weights of a run with parts of your own, or of another kind than"
                " transformer, cannot be a start"
            )
        spec = about.run.config.tokenizer
        if about.tokenizer:
            key = hashlib.sha256(about.tokenizer).hexdigest()
            made = cache.built(
                "tokenizers",
                f"given-{key}",
                lambda folder: _write(folder / "tokenizer.json", about.tokenizer),
            )
            spec = str(made / "tokenizer.json")
        return Source(path, found, about.run, spec)
    from ablate.trained import hugging_face  # a later module: `tests/test_structure.py` allows it

    run, mask = hugging_face.described(path)
    spec = str(path / hugging_face.TOKENIZER) if run.config.tokenizer_hash else "tokens"
    if not run.config.part("objective").masks:
        return Source(path, found, run, spec)
    if mask is None:
        raise AblateError(f"{path}: its tokenizer names no mask_token, which a masked model reads")
    return Source(path, found, run.with_(n_vocab=run.config.n_vocab + 1), spec, mask)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _files(path: Path) -> list[Path]:
    """Return the files of weights of a folder, or the file itself."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise AblateError(
            f"there is no folder or file {path}; give a folder of transformers, or the file of"
            " weights of a run, which `ablate show RUN` names"
        )
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise AblateError(f"{path} has no *.safetensors: it is not the folder of a model")
    return found


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()


# -- what fits -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """What a model takes of a given one.

    Attributes:
        taken: Name of a parameter → the given one that it takes.
        new: Names of parameters that the given model lacks, with * for the number of a block.
        unused: Names of given parameters that the model lacks, likewise.
    """

    taken: Mapping[str, str] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1 << 10)
def fit(given: RunConfig, config: Any) -> Fit:
    """Return what the model of a run takes of a given one.

    A parameter is taken if the given model has one of its name and shape; of learned positions the
    first n_ctx are. The parameters of another position encoding are new.

    Raises:
        AblateError: A parameter has another shape, or biases are for other distances; the message
            names the field that decides it.
    """
    _check_distances(given, config)
    theirs, orders = _shapes(given), config.part("start").order(config)
    taken, new = {}, []
    for name, shape in _shapes(config).items():
        their = _their(name, orders)
        if their not in theirs or _replaced(name, given, config):
            new.append(name)
        elif _serves(name, theirs[their], shape, config):
            taken[name] = their
        else:
            raise AblateError(_unfit(given, config, name, theirs[their], shape))
    left = theirs.keys() - taken.values()
    unused = [name for name in theirs if name in left and not _dropped(name, orders)]
    return Fit(taken, _patterns(new), _patterns(unused))


def _their(name: str, orders: Mapping[str, Sequence[int]]) -> str:
    """Return the given parameter that stands where one of a run does."""
    block = _BLOCK.match(name)
    if not block:
        return name
    number = orders[_stack(block, orders)][int(block[2])]
    return f"{block[1] or ''}blocks.{number}.{name[block.end() :]}"


def _dropped(name: str, orders: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a given parameter is one of a block that a run leaves out."""
    block = _BLOCK.match(name)
    stack = _stack(block, orders) if block else ""
    return block is not None and stack in orders and int(block[2]) not in orders[stack]


def _stack(block: re.Match[str], orders: Mapping[str, Sequence[int]]) -> str:
    """Return the stack of a run that a block is in: the last one, if it is not an encoder's."""
    return "encoder" if block[1] else [*orders][-1]


def _check_distances(given: RunConfig, config: Any) -> None:
    """Refuse a context that gives learned biases other distances.

    Raises:
        AblateError: It does.
    """
    position = config.part("position")
    if given.position != config.position:
        return
    theirs, ours = position.farthest(given), position.farthest(config)
    if theirs != ours:
        raise AblateError(
            f"n_ctx = {config.n_ctx}: with position = {position.name!r} the given weights, of n_ctx"
            f" = {given.n_ctx}, have biases up to distance {theirs}, and this n_ctx has them up to"
            f" {ours}; give n_ctx from {theirs} to {max(4 * theirs, given.n_ctx)}"
        )


def _shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters, by their names."""
    with torch.device("meta"):
        model = model_of(config)
    return {name: tuple(one.shape[1:]) for name, one in model.named_parameters()}


def _replaced(name: str, given: RunConfig, config: RunConfig) -> bool:
    return "position" in name.split(".") and given.position != config.position


def _serves(name: str, theirs: tuple[int, ...], ours: tuple[int, ...], config: RunConfig) -> bool:
    """Return whether a given parameter serves: whole, or the first rows of a table of positions."""
    if theirs == ours:
        return True
    limited = config.part("position").longest_context(config) is not None
    positions = name.removeprefix("encoder.").startswith("position.")
    table = limited and positions and theirs[1:] == ours[1:]
    return table and ours[0] <= theirs[0]


def _unfit(
    given: RunConfig, config: RunConfig, name: str, theirs: tuple[int, ...], ours: tuple[int, ...]
) -> str:
    """Say which field gives a parameter another shape."""
    differing = [
        one
        for one, row in CATALOGUE.items()
        if row.group in GROUPS
        and hasattr(given, one)
        and hasattr(config, one)
        and getattr(given, one) != getattr(config, one)
    ]
    deciding = []
    for one in differing:
        alone = given.model_dump() | {one: getattr(config, one)}
        try:
            other = _shapes(RunConfig(**alone)).get(name, theirs)
        except (AblateError, ValueError):  # it cannot be changed alone
            continue
        if other != theirs and not _serves(name, theirs, other, config):
            deciding.append(one)
    said = ", ".join(f"{one} = {written(getattr(config, one))}" for one in deciding or differing)
    have = ", ".join(f"{one} = {written(getattr(given, one))}" for one in deciding or differing)
    return (
        f"{said}: the given weights have {have}, and {_patterns([name])[0]} of the shape"
        f" {list(theirs)} does not serve as {list(ours)}"
    )


def _patterns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_BLOCK.sub(r"\1blocks.*.", name) for name in names))


# -- what is given ---------------------------------------------------------------------------------


@torch.no_grad()
def give(model: Any, configs: Sequence[RunConfig], sources: Mapping[str, str]) -> None:
    """Give the models of a pack the weights that their runs start from.

    Parameters that the given model lacks keep their initial values.

    Args:
        model: The models, with initial weights.
        configs: Their runs.
        sources: Content hash of the given weights → their location.

    Raises:
        AblateError: The weights have changed since the plan, or are gone.
    """
    config: Any = configs[0]
    location = sources.get(config.start_hash, "")
    found = source(Path(location)) if location else None
    if found is None or found.hash != config.start_hash:
        raise AblateError(
            f"the weights of {config.start_from!r} have changed since the study was planned: run"
            " the study again"
        )
    kept, taken = _weights(found), fit(found.run.config, config).taken
    for name, parameter in model.named_parameters():
        if name in taken:
            parameter.copy_(kept[taken[name]][: parameter.shape[1]].to(parameter))
    for k, of_member in enumerate(configs):
        _leave_out(model, k, of_member)
        _shuffle(model, k, of_member)


def _weights(found: Source) -> dict[str, Tensor]:
    """Return the given weights by the names of parameters, in the shapes of one run, without K."""
    if found.path.is_file():
        return weights.read(found.path)[0]
    from ablate.trained import hugging_face  # a later module: `tests/test_structure.py` allows it

    loaded = hugging_face.load(found.path).transformer.named_parameters()
    kept = {name: one.detach()[0] for name, one in loaded}
    if found.mask is not None:
        for name in _VOCABULARY:
            if name in kept:
                of_mask = kept[name][found.mask : found.mask + 1]
                if kept[name].ndim == 1:
                    of_mask = torch.full_like(of_mask, NO_TOKEN)
                kept[name] = torch.cat([kept[name], of_mask])
    return kept


def _random(config: RunConfig, what: str) -> np.random.Generator:
    return np.random.default_rng((config.weights_seed, draws.stream(f"start.{what}")))


def left_out(config: Any) -> list[Part]:
    """Return the heads that a run leaves out, as parts of its own model.

    A larger share of one seed has the heads of a smaller one.
    """
    heads = places.heads(config)
    n = round(config.prune_share * len(heads))
    drawn = _random(config, "heads").permutation(len(heads))[:n].tolist()
    chosen = {*config.part("start").heads(config), *(heads[number] for number in drawn)}
    return [head for head in heads if head in chosen]


def _leave_out(model: Any, k: int, config: RunConfig) -> None:
    """Set the columns of heads in W_O to 0, and with them their values.

    Where both are 0, both gradients are: no training brings the head back.
    """
    width = config.d_head
    for part in left_out(config):
        assert part.head is not None
        own = slice(part.head * width, (part.head + 1) * width)
        attention: Any = attention_of(model, part)
        attention.output.weight[k, :, own] = 0
        if config.n_kv_head == config.n_head:
            value = getattr(attention.value, "output", attention.value)
            value.weight[k, own] = 0
            if value.bias is not None:
                value.bias[k, own] = 0


def _shuffle(model: Any, k: int, config: Any) -> None:
    """Exchange the columns of heads in W_O, in a share of the blocks that have heads."""
    if not config.shuffle_heads:
        return
    random, n_head = _random(config, "shuffled"), config.n_head
    blocks: dict[tuple[str, int], list[Part]] = {}
    for part in places.attentions(config):
        blocks.setdefault((part.stack, part.layer), []).append(part)
    chosen = random.permutation(len(blocks))[: round(config.shuffle_heads * len(blocks))]
    for number in chosen.tolist():
        for part in [*blocks.values()][number]:
            weight = attention_of(model, part).output.weight
            order = torch.from_numpy(random.permutation(n_head)).to(weight.device)
            columns = weight[k].unflatten(1, (n_head, -1))
            weight[k] = columns[:, order].flatten(1)
