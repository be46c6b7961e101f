"""The cells of an imported study: what its levels say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.code import Code
from ablate.kinds import Run, kind
from ablate.plan.model import Resolved, Text
from ablate.study import Fields, Study


class ImportedResolver:
    """Resolves the cells of one study; see `ablate.plan.model.Resolver`."""

    settings: Mapping[str, Any] = {}
    about: Sequence[str] = ()
    code: Sequence[Code] = ()

    def __init__(self, study: Study):
        self.study = study
        self.sources: dict[str, str] = {}
        self.texts: dict[tuple[str, str], Text] = {}

    def levels(self, chosen: dict[str, str]) -> dict[str, str]:
        """See `Resolver.levels`: every field has an effect."""
        return dict(chosen)

    def resolve(self, chosen: dict[str, str], baseline: Run | None) -> Resolved:
        """See `Resolver.resolve`."""
        fields: Fields = {}
        for factor, level in chosen.items():
            fields |= self.study.factors[factor][level]
        return Resolved(Run("imported", kind("imported").check(fields)))
