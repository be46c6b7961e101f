"""What a run starts from: random weights, or given ones of a trained model with parts left out.

Blocks and heads have the numbers that they have in the given model, from 0.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ablate.components.base import Component, Config, Counts, Field
from ablate.components.catalogue import level
from ablate.errors import AblateError

MICHEL = "Michel et al. 2019, arXiv:1905.10650"
_HEAD = re.compile(r"(\d+)\.(\d+)")


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
        Field("drop_blocks", tuple[int, ...], (), "Blocks of the given model that are left out."),
        Field(
            "swap_blocks",
            tuple[int, ...],
            (),
            "Blocks of the given model that change places: the first with the second, and so on.",
        ),
        Field(
            "prune_heads",
            tuple[str, ...],
            (),
            'Heads of the given model that are left out, as "BLOCK.HEAD".',
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
        changed = [one.name for one in self.fields[2:] if getattr(config, one.name) != one.default]
        if model.encodes and changed:
            raise AblateError(
                f"{changed[0]}: architecture = {model.name!r} has two stacks: blocks and heads can"
                " be left out of models with one stack; remove it"
            )
        blocks = self.blocks(config)
        for name in ("drop_blocks", "swap_blocks"):
            numbers = getattr(config, name)
            if len(set(numbers)) < len(numbers) or not {*numbers} <= {*range(len(blocks))}:
                raise AblateError(
                    f"{name} = {list(numbers)}: different blocks from 0 to {len(blocks) - 1} are"
                    " wanted"
                )
        if len(config.swap_blocks) % 2:
            raise AblateError(
                f"swap_blocks = {list(config.swap_blocks)}: an even number of blocks is wanted"
            )
        for name in ("prune_share", "shuffle_heads"):
            share = getattr(config, name)
            if not 0 <= share <= 1:
                raise AblateError(f"{name} = {share:g}: a share from 0 to 1 is wanted")
        self._check_heads(config)

    def _check_heads(self, config: Config) -> None:
        for head in config.prune_heads:
            found = _HEAD.fullmatch(head)
            if (
                not found
                or int(found[1]) not in self.order(config)
                or int(found[2]) >= config.n_head
            ):
                raise AblateError(
                    f"prune_heads: {head!r:.40}: the number of a block that the model has, a dot"
                    f" and the number of a head below {config.n_head}, such as '0.1'"
                )
        if not (config.prune_heads or config.prune_share or config.shuffle_heads):
            return
        if not config.part("mixer").attends or config.head_combine != "concat":
            raise AblateError(
                f"prune_heads, prune_share and shuffle_heads: mixer = {config.mixer!r} with"
                f" head_combine = {config.head_combine!r} has no heads with columns of their own in"
                " W_O"
            )
        prunes = config.prune_heads or config.prune_share
        if prunes and config.steps and config.n_kv_head != config.n_head:
            raise AblateError(
                f"prune_heads and prune_share: n_kv_head = {config.n_kv_head} of n_head ="
                f" {config.n_head}: heads that share values can only be left out without training;"
                " give tokens = 0"
            )

    def blocks(self, config: Config) -> range:
        """Return the numbers of the given model's blocks."""
        return range(config.n_layer + len(config.drop_blocks))

    def order(self, config: Config) -> list[int]:
        """Return the given model's number of each block of a run."""
        order = list(self.blocks(config))
        swapped = config.swap_blocks
        for one, other in zip(swapped[::2], swapped[1::2], strict=True):
            order[one], order[other] = order[other], order[one]
        return [number for number in order if number not in config.drop_blocks]

    def heads(self, config: Config) -> list[tuple[int, int]]:
        """Return the heads that `prune_heads` names, as numbers of block and head."""
        found = [head.partition(".") for head in config.prune_heads]
        return [(int(block), int(head)) for block, _, head in found]
