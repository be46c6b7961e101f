"""The cells of a study on images: the set of images, and what follows from the size of a patch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ablate import images, metrics
from ablate.config import field_info
from ablate.errors import AblateError
from ablate.evaluation import LABELLED
from ablate.images import ImageSet
from ablate.kinds import Run, kind
from ablate.plan import check
from ablate.plan import notes as of_transformers
from ablate.plan.model import Cell, Confound, Contrast, Resolved, Text
from ablate.plan.resolve import TransformerResolver, objective_of
from ablate.study import Fields, Study
from ablate.study.source import Source, located

COLOURS = 4  # most channels of usual images
DIGITS = "digits"  # the set of a study that names none


@dataclass
class ImageResolver(TransformerResolver):
    """Resolves the cells of a study on images; each set is read once."""

    kind = "image"
    _sets: dict[str, ImageSet] = field(default_factory=dict)  # by the name in the study

    @property
    def about(self) -> tuple[str, ...]:
        """See `TransformerResolver.about`: the sets of images."""
        found = self._sets.values()
        return (*(one.about for one in found), *(_swapped(one) for one in found if _looks_so(one)))

    def of_data(self, fields: Fields) -> Fields:
        """See `TransformerResolver.of_data`.

        Raises:
            AblateError: The objective reads text, n_ctx is given, or the set cannot be read.
        """
        objective = objective_of(fields)
        if not objective.images:
            raise AblateError(
                f"objective = {objective.name!r} reads text, and other cells read images: a study"
                " has one kind of data; split it into two studies"
            )
        if "n_ctx" in fields:
            raise AblateError("n_ctx of images follows from patch; remove it")
        found = self._set(fields.get("corpus") or DIGITS)
        return self.of_shape(fields) | {
            "corpus": found.name,
            "corpus_hash": found.hash,
            "split": found.split,
        }

    def of_shape(self, fields: Fields) -> Fields:
        """See `TransformerResolver.of_shape`: the sizes of images and patches."""
        found = self._set(fields.get("corpus") or DIGITS)
        objective, patch = objective_of(fields), fields.get("patch", field_info("patch").default)
        return {
            "image_height": found.height,
            "image_width": found.width,
            "image_channels": found.channels,
            # what is too small is refused by the objective, in words of images
            "n_ctx": max(2, found.height * found.width // max(1, patch) ** 2),
            "n_vocab": max(2, objective.n_outputs(patch**2 * found.channels, len(found.names))),
        }

    def resolved(self, run: Run) -> Resolved:
        """See `TransformerResolver.resolved`."""
        config = run.config
        found = next(one for one in self._sets.values() if one.hash == config.corpus_hash)
        epochs = config.steps * config.batch_size / found.n_train
        return Resolved(run, epochs, found.n_held_out * config.n_ctx)

    def _set(self, name: str) -> ImageSet:
        if name not in self._sets:
            table = "base" if "corpus" in self.study.base else "factors"
            with located(Source(self.study.path, self.study.toml), table, "corpus"):
                self._sets[name] = found = images.find(name, self.study.path.parent)
            self.sources[found.hash] = found.location
        return self._sets[name]


def _looks_so(found: ImageSet) -> bool:
    """Return whether images look as if the first of their axes were the channels."""
    return found.height <= COLOURS < min(found.width, found.channels)


def _swapped(found: ImageSet) -> str:
    return (
        f"Warning: corpus {found.name}: images of {found.height} × {found.width} pixels with"
        f" {found.channels} channels: the array looks like [N, channels, height, width], and is"
        " read as [N, height, width, channels]"
    )


def complaints(
    study: Study, cells: tuple[Cell, ...], compared: tuple[Contrast, ...], texts: Sequence[Text]
) -> Iterator[str]:
    """Yield what in a study has no effect, or would be misleading, with its line in the file."""
    source = Source(study.path, study.toml)
    location = source.where("metric") or str(study.path)
    for metric, line in check.asked(study, source):
        row, _ = metrics.parse(metric)
        for cell in cells:
            measured = {
                name for name, _ in kind(cell.run.kind).finals(cell.run.fields, study.evaluation)
            }
            objective = cell.config.part("objective")
            if objective.regresses and metric == study.metric:
                measured -= {"loss", "unigram_loss"}  # of a mask ratio of its own, and no nats
            if row.name not in measured:
                shown = ", ".join(sorted(measured | {LABELLED}))
                yield (
                    f"{line}: metric {metric!r} does not compare cells such as {cell.label!r},"
                    f" whose objective is {objective.name!r}; choose one of {shown}"
                )
    if study.evaluation.own:
        names = ", ".join(study.evaluation.own_names)
        yield (
            f"{source.where('use')}: metric {names}: metrics of your own are measured on text, and"
            " the study is on images; remove it from the file"
        )
    for probe in study.evaluation.downstream:
        if probe != LABELLED:
            yield (
                f"{source.where('eval', 'downstream') or location}: {probe} reads text, and the"
                f" study is on images; use {LABELLED}"
            )
    yield from check.complaints(study, cells, compared, texts)


def of_pairs(study: Study, pairs: Sequence[tuple[Cell, Cell]]) -> Iterator[Confound]:
    """Yield the confounds of cells with their baselines that are particular to images."""
    for cell, baseline in pairs:
        if cell.config.corpus_hash != baseline.config.corpus_hash:
            yield Confound(
                "corpus", cell.label, f"other images than {baseline.label!r}, also held out"
            )


def notes(study: Study, cells: Sequence[Cell], texts: Sequence[Text]) -> tuple[str, ...]:
    """Return sentences about cells of the study."""
    return of_transformers.of_all(study, cells)
