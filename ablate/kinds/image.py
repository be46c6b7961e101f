"""The kind of models of images: transformers that are trained by `ablate.train` on patches."""

from __future__ import annotations

from ablate import images, outside
from ablate.evaluation import CHANCE, LABELLED, Evaluation
from ablate.kinds import Context, Fields, Job
from ablate.kinds.transformer import Transformer, configured


class Image(Transformer):
    """Masked autoencoders and classifiers of images; the fields are those of all transformers."""

    name = "image"

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return the finals of a run, which depend on its objective."""
        names = [("loss", 0.0), ("unigram_loss", 0.0)]
        if configured(fields).part("objective").regresses:
            names += [("reconstruction_loss", ratio) for ratio in evaluation.probe.ratio]
        else:
            names.append(("accuracy", 0.0))
        return names + [
            (name, 0.0) for name in (LABELLED, CHANCE) if LABELLED in evaluation.downstream
        ]

    def train(self, job: Job, context: Context) -> None:
        """Load the images of a job and train it. Imports torch."""
        if job.use:  # in a worker, which has read no study
            outside.use(job.use)
        from ablate.train.images import train  # `tests/test_structure.py` allows it

        train(job, context, images.load(job.runs[0].config, job.sources))
