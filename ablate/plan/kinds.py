"""What planning a study needs to know of the kind of its runs: one row of `PLANNING` for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ablate.plan import check, commands, confounds, finetuned, held_out, images
from ablate.plan import notes as transformer_notes
from ablate.plan.commands import CommandResolver
from ablate.plan.imported import ImportedResolver
from ablate.plan.model import Cell, Confound, Contrast, Plan, Resolver, Text
from ablate.plan.resolve import TransformerResolver
from ablate.study import Study


@dataclass(frozen=True)
class Planning:
    """How the studies of one kind are planned.

    Attributes:
        resolver: Makes what resolves the cells of a study.
        complaints: Study, cells, contrasts and texts → why the study is refused, as lines.
        confounds: Study, and each compared cell with its baseline → what is particular to the kind.
        shared_rate: Cells of a study that tunes nothing → whether they share a learning rate.
        notes: Study, cells and texts → sentences for the reader of the plan.
        measured: A plan → the plan with what its evaluation leaves open.
    """

    resolver: Callable[[Study], Resolver]
    complaints: Callable[
        [Study, tuple[Cell, ...], tuple[Contrast, ...], Sequence[Text]], Iterable[str]
    ]
    confounds: Callable[[Study, Sequence[tuple[Cell, Cell]]], Iterable[Confound]]
    shared_rate: Callable[[Sequence[Cell]], Iterable[Confound]]
    notes: Callable[[Study, Sequence[Cell], Sequence[Text]], Iterable[str]]
    measured: Callable[[Plan], Plan]


PLANNING = {
    "transformer": Planning(
        TransformerResolver,
        check.complaints,
        confounds.of_pairs,
        confounds.shared_rate,
        transformer_notes.notes,
        held_out.with_final_tokens,
    ),
    "finetune": Planning(
        finetuned.FinetuneResolver,
        finetuned.complaints,
        confounds.of_pairs,
        finetuned.shared_rate,
        finetuned.notes,
        finetuned.with_final_tokens,
    ),
    "image": Planning(
        images.ImageResolver,
        images.complaints,
        images.of_pairs,
        confounds.shared_rate,
        images.notes,
        held_out.with_final_tokens,
    ),
    "command": Planning(
        resolver=CommandResolver,
        complaints=lambda study, cells, compared, texts: (),
        confounds=lambda study, pairs: (),
        shared_rate=lambda cells: (),
        notes=commands.notes,
        measured=lambda plan: plan,
    ),
    "imported": Planning(
        resolver=ImportedResolver,
        complaints=lambda study, cells, compared, texts: (),
        confounds=lambda study, pairs: (),
        shared_rate=lambda cells: (),
        notes=lambda study, cells, texts: (),
        measured=lambda plan: plan,
    ),
}


def planning_of(study: Study) -> Planning:
    """Return how a study is planned."""
    return PLANNING[study.kind]
