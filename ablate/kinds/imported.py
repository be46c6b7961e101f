"""The kind of runs that were made elsewhere, whose numbers are imported; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.errors import AblateError
from ablate.kinds import Context, Cost, Fields, Job
from ablate.kinds.free import FreeFields
from ablate.study.imported import FLOPS, PARAMS, SOURCE, TOKENS


class Imported(FreeFields):
    """Runs whose numbers were imported.

    The fields are the factors of the study and perhaps `params`, `train_tokens` and `train_flops`;
    `content` is the hash of the numbers, so that equal runs of two databases are one run and
    changed numbers make another; `source` says where they stood, and is no part of the identity.
    """

    name = "imported"
    no_weights = "it was imported, and an import brings numbers alone"

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return all fields but the place in a file, which may move."""
        return {name: value for name, value in fields.items() if name != SOURCE}

    def cost(self, fields: Fields) -> Cost:
        """Return what the columns say, and that everything else is unknown."""
        return Cost(params=fields.get(PARAMS), tokens=fields.get(TOKENS), flops=fields.get(FLOPS))

    def train(self, job: Job, context: Context) -> None:
        """Refuse: what made the numbers is not known."""
        raise AblateError("an imported run cannot be trained")
