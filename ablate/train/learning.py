"""Fit a learner of another library to the features of a pre-trained model, whose weights stay."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ablate import sizes
from ablate.data.tasks import scores
from ablate.train.on_task import OnTask


class Learning(OnTask):
    """The fitting of one learner, which reads the features that a classifier would."""

    def run(self) -> None:
        """Compute the features, fit the learner and measure it, or until `stop()`."""
        self.started()
        self.model.eval()
        begun = time.perf_counter()
        fitted = self.features(self.rows)
        status = "complete" if fitted is not None else "stopped"
        if fitted is not None and not np.isfinite(fitted).all():
            status = "diverged"
        elif fitted is not None:
            with self.context.progress.during(long=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a solver that ends before its tolerance
                learner = self.config.part("method").load()(self.config)
                with threadpool_limits(1):  # as in `ablate.data.passages.fit`
                    learner.fit(fitted, self.passages.labels(self.rows))
            seconds = time.perf_counter() - begun
            status = self._measure(learner, seconds)
        self.ended(status, 0)

    def measure(self, held_out: np.ndarray) -> None:
        """Compute the features of some texts, to be timed."""
        self.features(held_out)

    def _measure(self, learner: Any, seconds: float) -> str:
        """Emit the finals; return "complete", "diverged" or "stopped"."""
        finals = {**self.of_texts(), "train_seconds": seconds, "epochs": 1.0}
        for name, rows in self.held_out.items():
            features = self.features(rows)
            if features is None:
                return "stopped"
            if not np.isfinite(features).all():
                return "diverged"
            truth = self.passages.labels(rows)
            for what, value in scores(truth, learner.predict(features)).items():
                finals[name.replace("loss", what)] = value
            if self.config.part("method").has_loss:
                logarithms = learner.predict_log_proba(features)
                place = np.searchsorted(learner.classes_, truth)
                finals[name] = float(-logarithms[np.arange(len(truth)), place].mean())
        if self.before is not None:  # no weight has changed
            finals |= {"pretraining_loss": self.before, "forgetting": 0.0}
        self.emit("final", values=[[name, 0, value] for name, value in finals.items()])
        return "complete"

    @torch.no_grad()
    def features(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the features of some texts or of their words, float64 [n, C]; None if stopped."""
        found = []
        at_once = sizes.batch(self.config)
        for first in range(0, len(rows), at_once):
            if self.context.stop():
                return None
            some = rows[first : first + at_once]
            with self.step.autocast():
                pooled = self.labelled(some, self.model.pooled(*self.read(some)))
            found.append(pooled.double().cpu().numpy())
            self.context.progress.advance()
        return np.concatenate(found)
