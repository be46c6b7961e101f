"""How many seeds each stratum gets, from the noise of its pilot."""

from __future__ import annotations

import math

from ablate.plan import Decision, Plan
from ablate.plan.tuning import Tuning
from ablate.store import Database, decisions
from ablate.tune.evidence import Stored, question_hash


def decide_seeds(
    plan: Plan, tuning: Tuning, db: Database, stored: Stored
) -> tuple[list[Decision], list[Decision]]:
    """Return the stored numbers of seeds that hold, and those that can be decided now.

    A stratum with an undecided learning rate has no pilot yet and is left out.

    Args:
        plan: The study's plan, without decisions.
        tuning: Its learning rates, as far as they are decided.
        db: The database that holds its results.
        stored: Stored decisions, by cell and name.
    """
    study, two_stage = plan.study, plan.study.two_stage
    assert two_stage
    undecided = {label for group in tuning.undecided for label in group.cells}
    keys = {
        (cell.label, seed): cell.run.with_(seed=seed).key
        for cell in tuning.cells(plan.cells)
        if cell.label not in undecided
        for seed in study.seeds
    }
    values = decisions.values(db, list(keys.values()), study.metric)
    known, new = [], []
    for stratum, cells in _strata(plan).items():
        pilot = [keys.get((cell, seed)) for cell in cells for seed in study.seeds]
        if None in pilot:
            continue
        question = question_hash(study, [study.metric], two_stage.resolution, two_stage.most, pilot)
        old = stored.get((cells[0], "seeds"))
        if old and old.evidence.get(decisions.BASIS) == question:
            known.append(old)
        elif all(key in values for key in pilot):
            from ablate import stats  # loads scipy, which no study needs before its pilot has ended

            needed = {
                contrast.cell: _needed(
                    stats.differences(
                        *(
                            [values[keys[cell, seed]] for seed in study.seeds]
                            for cell in (contrast.cell, contrast.baseline)
                        )
                    ).tolist(),
                    two_stage.resolution,
                )
                for contrast in plan.contrasts
                if contrast.stratum == stratum
            }
            most = max((count for count in needed.values() if count), default=len(study.seeds))
            assert most >= len(study.seeds), needed
            evidence = {
                decisions.BASIS: question,
                "stratum": stratum,
                "metric": study.metric,
                "pilot": study.seeds,
                "resolution": two_stage.resolution,
                # by cell, before the cap; null: too few whole pairs to know its noise
                "wanted": needed,
                "capped": most > two_stage.most,
            }
            new.append(Decision(cells[0], "seeds", min(most, two_stage.most), evidence))
    return known, new


def _strata(plan: Plan) -> dict[str, list[str]]:
    """Stratum → its cells, the baseline first."""
    strata: dict[str, list[str]] = {}
    baselines = {contrast.baseline for contrast in plan.contrasts}
    for cell in sorted(plan.cells, key=lambda cell: cell.label not in baselines):
        strata.setdefault(cell.stratum, []).append(cell.label)
    return strata


def _needed(differences: list[float], resolution: float) -> int | None:
    """Seeds that a contrast needs: its pairs, and as many again as the pilot lost.

    None for one that has at most one pair: more seeds would be lost in the same way.
    """
    from ablate import stats

    whole = [difference for difference in differences if math.isfinite(difference)]
    if len(whole) < 2:
        return None
    return stats.two_stage(whole, resolution) + len(differences) - len(whole)
