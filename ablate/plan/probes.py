"""The texts of a study's own linear probe: `[eval] probe_csv`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ablate.plan.model import Plan
from ablate.study import Study
from ablate.study.source import Source, located
from ablate.text import labels, sources


def labelled(study: Study) -> tuple[Study, dict[str, str]]:
    """Return a study that knows the content of its `probe_csv`, and the content's location.

    Returns:
        The study with `[eval] probe_csv_hash`, and that hash → the file's path; without the key the
        same study and nothing.

    Raises:
        AblateError: The file does not serve; the message has the line in the study file.
    """
    evaluation = study.evaluation
    if evaluation.probe_csv is None:
        return study, {}
    with located(Source(study.path, study.toml), "eval", "probe_csv"):
        path = sources.absolute(evaluation.probe_csv, study.path.parent)
        found = labels.read(path).hash
    known = evaluation.model_copy(update={"probe_csv_hash": found})
    return replace(study, evaluation=known), {found: str(path)}


def texts(plan: Plan) -> labels.LabelledTexts | None:
    """Return the texts of the probe of a plan, None if it has no `probe_csv`."""
    found = plan.study.evaluation.probe_csv_hash
    return labels.read(Path(plan.sources[found])) if found else None
