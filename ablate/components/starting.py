"""What a run starts from: random weights, or given ones of a trained model with parts left out.

Blocks and heads have the names that they have in the given model: see `ablate.components.places`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ablate.components import places
from ablate.components.base import Component, Config, Counts, Field
from ablate.components.catalogue import level
from ablate.components.places import Part
from ablate.errors import AblateError, written
from ablate.units import listed

MICHEL = "Michel et al. 2019, arXiv:1905.10650"


class Start(Component):
    """Base of the levels of `start`.

    Attributes:
        given: Whether it is given weights of a trained model.
    """

    factors = ("start",)
    given: ClassVar[bool] = False

    def sizes(self, config: Config, width: int) -> Counts:
        """See `Component.sizes`: it adds no parameters."""
        return Counts()


@level("start", "random")
class Random(Start):
    """Random weights, as `init` says."""

    def check(self, config: Config) -> None:
        """See `Component.check`: a model of random weights has to be trained."""
        if not config.steps:
            raise AblateError(
                "steps = 0 trains nothing: only a run that starts from given weights ([start]) can"
                " be evaluated at once"
            )


@level("start", "given", source=MICHEL)
class Given(Start):
    """Weights of a trained model, without some of its heads or blocks."""

    given = True
    fields = (
        Field("start_from", str, "", "Folder of `transformers`, or file of weights of a run."),
        Field("start_hash", str, "", "SHA-256 of the given weights; filled in."),
        Field(
            "drop_blocks",
            tuple[int | str, ...],
            (),
            'Blocks of the given model that are left out; of an encoder-decoder as "encoder.0".',
        ),
        Field(
            "swap_blocks",
            tuple[int | str, ...],
            (),
            "Blocks of the given model that change places: the first with the second, and so on.",
        ),
        Field(
            "prune_heads",
            tuple[str, ...],
            (),
            'Heads of the given model that are left out, as "BLOCK.HEAD"; of an encoder-decoder as'
            ' "encoder.BLOCK.HEAD", "decoder.BLOCK.HEAD" or "cross.BLOCK.HEAD".',
            MICHEL,
        ),
        Field(
            "prune_share",
            float,
            0.0,
            "Share of all heads that are left out, drawn by the seed.",
            MICHEL,
        ),
        Field(
            "shuffle_heads",
            float,
            0.0,
            "Share of the blocks in which heads exchange their columns of W_O, drawn by the seed.",
        ),
    )

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        model = config.part("architecture")
        if not model.of_blocks:
            raise AblateError(
                f"[start]: architecture = {model.name!r}: only weights of models of ablate's blocks"
                " can be given"
            )
        given = self.given_stacks(config)
        blocks_of("drop_blocks", config.drop_blocks, given)
        swapped = blocks_of("swap_blocks", config.swap_blocks, given)
        said = f"swap_blocks = {list(config.swap_blocks)}"
        if len(swapped) % 2:
            raise AblateError(f"{said}: give an even number of blocks")
        if any(a.stack != b.stack for a, b in zip(swapped[::2], swapped[1::2], strict=True)):
            raise AblateError(f"{said}: exchange blocks of the same stack")
        for name in ("prune_share", "shuffle_heads"):
            share = getattr(config, name)
            if not 0 <= share <= 1:
                raise AblateError(f"{name} = {share:g}: a share from 0 to 1 is wanted")
        self._check_heads(config)

    def _check_heads(self, config: Config) -> None:
        if not (config.prune_heads or config.prune_share or config.shuffle_heads):
            return
        heads = self._heads(config)
        if not heads or config.head_combine != "concat":
            raise AblateError(
                f"prune_heads, prune_share and shuffle_heads: mixer = {config.mixer!r} with"
                f" head_combine = {config.head_combine!r} has no heads with columns of their own in"
                " W_O"
            )
        for head in config.prune_heads:
            if head not in heads:
                block = head.rpartition(".")[0].replace(places.CROSS, "decoder")
                dropped = block in map(str, config.drop_blocks)
                raise AblateError(
                    f"prune_heads = {written(list(config.prune_heads)):.80}: {head!r:.40} is"
                    + (
                        f" in block {block}, which drop_blocks leaves out"
                        if dropped
                        else f" no head of the model. Choices: {_ranges(list(heads))}."
                    )
                )
        prunes = config.prune_heads or config.prune_share
        if prunes and config.steps and config.n_kv_head != config.n_head:
            raise AblateError(
                f"prune_heads and prune_share: n_kv_head = {config.n_kv_head} of n_head ="
                f" {config.n_head}: heads that share values can only be left out without training;"
                " give tokens = 0"
            )

    def given_stacks(self, config: Config) -> dict[str, int]:
        """Return the stacks of the given model → how many blocks each has, for a run of it."""
        names = {str(name) for name in config.drop_blocks}
        found = places.stacks(config)
        if len(found) == 1:
            return {stack: n + len(names) for stack, n in found.items()}
        return {
            stack: n + sum(name.startswith(f"{stack}.") for name in names)
            for stack, n in found.items()
        }

    def order(self, config: Config) -> dict[str, list[int]]:
        """Return each stack of a run → the given model's number of each of its blocks."""
        given = self.given_stacks(config)
        orders = {stack: list(range(n)) for stack, n in given.items()}
        swapped = blocks_of("swap_blocks", config.swap_blocks, given)
        for one, other in zip(swapped[::2], swapped[1::2], strict=True):
            order = orders[one.stack]
            order[one.layer], order[other.layer] = order[other.layer], order[one.layer]
        for part in blocks_of("drop_blocks", config.drop_blocks, given):
            orders[part.stack].remove(part.layer)
        return orders

    def heads(self, config: Config) -> list[Part]:
        """Return the heads that `prune_heads` names, as parts of the run's model."""
        found = self._heads(config)
        return [found[name] for name in config.prune_heads]

    def _heads(self, config: Config) -> dict[str, Part]:
        """Return the heads of a run by their names in the given model."""
        order, several = self.order(config), config.part("architecture").encodes
        return {
            places.named(replace(head, layer=order[head.stack][head.layer]), several): head
            for head in places.heads(config)
        }


def blocks_of(field: str, names: Sequence[int | str], stacks: Mapping[str, int]) -> list[Part]:
    """Return the blocks that a field names.

    Args:
        field: The field.
        names: Their names.
        stacks: Stacks of the given model → their numbers of blocks.

    Raises:
        AblateError: There is no such block, or one is named twice.
    """
    several = len(stacks) > 1
    blocks = [Part(stack, layer) for stack, n in stacks.items() for layer in range(n)]
    # the blocks of one stack have numbers, not names
    known = {
        name if several else int(name): one
        for one in blocks
        for name in [places.named(one, several)]
    }
    if len(set(names)) < len(names) or not {*names} <= known.keys():
        what = _ranges([str(name) for name in known])
        raise AblateError(f"{field} = {list(names)!s:.80}: give different blocks, {what}")
    return [known[name] for name in names]


def _ranges(names: Sequence[str]) -> str:
    """Return the first and the last of the names of each stack, or of each kind of heads."""
    found: dict[str, list[str]] = {}
    for name in names:
        kind, _, rest = name.partition(".")
        found.setdefault(kind if rest and not kind.isdigit() else "", []).append(name)
    return listed((f"from {its[0]} to {its[-1]}" for its in found.values()), "or")
