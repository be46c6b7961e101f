"""Compute effects from contrasts and paired finals.

`ablate.stats` does the arithmetic. This module decides which pairs count: those whose runs both
completed with a finite value. A pair is lost if one of its runs diverged or failed, and pending if
one is still to be run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ablate import metrics, results, stats, tune
from ablate.analysis.records import Measured
from ablate.components import CATALOGUE
from ablate.plan import Contrast
from ablate.stats import selection
from ablate.store.records import ACCEPTED, FAILED
from ablate.study import split_seed

if TYPE_CHECKING:
    from ablate.store import Database

CONFIDENCE = 0.95
NAMED = tuple(field.name for field in fields(Contrast))  # what names a contrast
# columns of `changes` and `interactions`; `resolved` is the former name of `significant`
CHANGE = ("n", "mean", "lo", "hi", "p", "p_holm", "resolvable", "significant", "resolved")
TIMES = " × "  # between names, and levels, of factors that are varied together
# columns of an effect that an arm which did not learn leaves without a value
SIZED = (
    *("mean", "sd", "lo", "hi", "family_lo", "family_hi", "p", "p_holm", "p_sign_flip"),
    *("standardised", "resolvable"),
)
ENDED = (*ACCEPTED, *FAILED)  # a run of another status may still get a value


@dataclass(frozen=True, kw_only=True)
class EffectRow(Measured, Contrast):
    """One contrast with its effect: a row of `effects`.

    Attributes:
        standardised: mean / sd.
        resolvable: Smallest true effect that this many pairs of this noise detect with 80% power,
            after correction.
        resolved: Whether p_holm is at most 0.05, as the table `effect` calls it.
    """

    standardised: float
    resolvable: float
    resolved: bool

    @property
    def significant(self) -> bool:
        """Whether p_holm is at most 0.05."""
        return self.resolved


def effects(study: str, db: Database | str | None = None) -> pd.DataFrame:
    """Compute a study's effects from what the database holds now.

    Args:
        study: Name of the study.
        db: See `ablate.load`.

    Returns:
        One row for each contrast, with the columns of `EffectRow` and three more: `significant`,
        the present name of `resolved`; `baseline_level`, the baseline's level in the factor; and
        `arm`, as in `ablate.load`. A contrast with a cell that did not learn beyond token
        frequencies, or of tokenizers of which one loses text, has no numbers, and does not count in
        the correction of others.
    """
    pairs, row = results.pairs(study, db), results.study(study, db)
    chosen = choices(results.decisions(study, db), pairs)
    finals, runs = results.finals(study, db=db), results.load(study, db)
    return effects_of(
        pairs,
        pilots(study, db),
        chosen,
        untrained(finals, runs, row.metric, own=row.own)
        | lossy(finals, runs, row.metric, own=row.own),
        settings=row.settings,
        levels=results.levels(study, db),
        arms=results.arms(study, db),
    )


def effects_of(
    pairs: pd.DataFrame,
    pilots: Mapping[str, Pilot],
    choices: Mapping[str, Chosen],
    sizeless: frozenset[str],
    *,
    settings: Mapping[str, Any],
    levels: Mapping[str, dict[str, str]],
    arms: pd.DataFrame,
) -> pd.DataFrame:
    """Return `effects` from what was read already.

    Args:
        pairs: As in `of_pairs`.
        pilots: As in `of_pairs`.
        choices: As in `of_pairs`.
        sizeless: As in `of_pairs`.
        settings: The study file's tables.
        levels: As `ablate.results.levels` returns them.
        arms: As `ablate.results.arms` returns them.
    """
    covered, both = correction(settings), crossed(settings)
    rows = of_pairs(pairs, pilots, choices, correction=covered, crossed=both, sizeless=sizeless)
    numbers = [field.name for field in fields(EffectRow) if field.name not in NAMED]
    frame = pd.DataFrame([asdict(row) for row in rows], columns=[*NAMED, *numbers])
    names = arms.set_index("cell")["arm"]
    named = zip(frame["factor"], frame["baseline"], strict=True)
    return frame.assign(
        significant=frame["resolved"],
        baseline_level=[
            results.baseline_level(factor, levels[baseline]) for factor, baseline in named
        ],
        arm=pd.Categorical(
            frame["cell"].map(names.astype(str)), categories=names.cat.categories, ordered=True
        ),
    )


def _without_size(row: EffectRow) -> EffectRow:
    """Return a row whose numbers are unknown: its difference is that to a ceiling."""
    return replace(row, **dict.fromkeys(SIZED, math.nan), resolved=False)  # type: ignore[arg-type]


def near_unigram(finals: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return cell, seed, loss, unigram_loss and `near` of the runs that have both losses.

    Runs that were not to learn, as they were evaluated at once, are left out, and so are those from
    given weights, whose text may be another one than what the weights were trained on. `near`:
    whether the loss is at least 99% of that of the training text's token frequencies.

    Args:
        finals: As `ablate.finals` returns them.
        runs: As `ablate.load` returns them.
    """
    if not (finals["name"] == "unigram_loss").any():
        none = finals.loc[[], ["cell", "seed"]]
        return none.assign(loss=np.nan, unigram_loss=np.nan, near=np.zeros(0, bool))
    left_out = set(finals.loc[(finals["name"] == "epochs") & (finals["value"] == 0), "run"])
    if "start" in runs:
        row = CATALOGUE["start"]
        given = [name for name in row.names if row[name].given]
        left_out |= set(runs.loc[runs["start"].isin(given), "run"])
    both = finals[finals["name"].isin(["loss", "unigram_loss"]) & ~finals["run"].isin(left_out)]
    runs = both.pivot_table(index=["cell", "seed"], columns="name", values="value")
    runs = runs.reindex(columns=["loss", "unigram_loss"]).dropna().reset_index()
    return runs.assign(near=runs["loss"] >= (1 - metrics.NEAR_UNIGRAM) * runs["unigram_loss"])


def untrained(
    finals: pd.DataFrame, runs: pd.DataFrame, metric: str, *, own: bool = False
) -> frozenset[str]:
    """Return the cells of which more than half of the runs did not learn beyond frequencies.

    None where a linear probe judges: features may be useful while the loss is above that ceiling.
    None of a script or of imported runs: what these call unigram_loss may be anything.

    Args:
        finals: As `ablate.finals` returns them.
        runs: As `ablate.load` returns them.
        metric: Of the study.
        own: Whether the runs are of a script, or imported.
    """
    row = metrics.METRICS.get(metric)
    if own or (row and row.downstream):
        return frozenset()
    near = near_unigram(finals, runs)
    if near.empty:
        return frozenset()
    share = near.groupby("cell")["near"].mean()
    return frozenset(share.index[share > 0.5])


def lossy(
    finals: pd.DataFrame, runs: pd.DataFrame, metric: str, *, own: bool = False
) -> frozenset[str]:
    """Return the cells whose tokenizer loses text, in strata of several tokenizers.

    Bits per byte count the bytes of the text, and such a model predicts fewer.

    Args:
        finals: As `ablate.finals` returns them.
        runs: As `ablate.load` returns them.
        metric: Of the study.
        own: Whether the runs are of a script, or imported.
    """
    if own or metric != "bits_per_byte" or runs.empty:
        return frozenset()
    found = runs["run"].isin(finals.loc[finals["name"].isin(metrics.LOSSY), "run"])
    several = runs.groupby("stratum")["tokenizer_hash"].transform("nunique") > 1
    return frozenset(runs.loc[found & several, "cell"])


@dataclass(frozen=True)
class Pilot:
    """The pilot that decided how many seeds a stratum has.

    Intervals and tests are then based on its noise (see `ablate.stats.noise_of`).

    Attributes:
        seeds: Seeds of the pilot.
        resolution: Half width that it aimed at; None for differences that it did not aim at.
    """

    seeds: Sequence[int] = ()
    resolution: float | None = None


def pilots(study: str, db: Database | str | None = None) -> dict[str, Pilot]:
    """Return stratum → its pilot; empty for a study whose seeds were given."""
    decisions = results.decisions(study, db)
    decided = decisions.loc[decisions["name"] == "seeds", "evidence"]
    return {
        evidence["stratum"]: Pilot(evidence["pilot"], evidence["resolution"])
        for evidence in decided
    }


@dataclass(frozen=True)
class Chosen:
    """The tuned learning rate of a cell.

    Attributes:
        decision: The same for cells whose rate is one decision, or one result of the same runs.
        choice: What its luck adds to the error of the cell's expected metric.
    """

    decision: str
    choice: selection.Choice


def choices(decisions: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, Chosen]:
    """Return cell → its tuned rate; empty for a study that tunes none.

    The error comes from the tuning runs of the group's first cell. With one tuning seed their noise
    is not known apart from the curve; then it is that of the group's compared runs, an upper bound.

    Args:
        decisions: As `ablate.results.decisions` returns them.
        pairs: As in `of_pairs`.
    """
    found: dict[str, Chosen] = {}
    for row in decisions[decisions["name"] != "seeds"].to_dict("records"):
        evidence, rates = row["evidence"], row["evidence"]["rates"]
        values, ladder = tune.values(evidence), evidence["ladder"]
        outcomes = tune.outcomes(evidence) if tune.OUTCOMES in evidence else None
        choice = selection.choice_error(
            rates,
            values,
            row["value"],
            step=evidence.get("step") or math.log(ladder[1] / ladder[0]),
            goal=tune.goal(evidence),
            noise=_seed_noise(pairs, evidence["cells"]) if len(values) == 1 else None,
            outcomes=outcomes,
        )
        decision = repr((row["value"], rates, values, outcomes))
        found |= {cell: Chosen(decision, choice) for cell in evidence["cells"]}
    return found


def _seed_noise(pairs: pd.DataFrame, cells: Sequence[str]) -> tuple[float, int] | None:
    """The largest sd over seeds of cells that share a rate, with its degrees of freedom."""
    pairs = pairs[pairs["cell"].isin(cells) | pairs["baseline"].isin(cells)]
    sides = (("cell", "value", "status"), ("baseline", "baseline_value", "baseline_status"))
    runs = pd.concat(
        pairs.loc[pairs[status] == "complete", [cell, "seed", value]].set_axis(
            ["cell", "seed", "value"], axis=1
        )
        for cell, value, status in sides
    ).drop_duplicates(["cell", "seed"])
    values = runs[runs["cell"].isin(cells)].dropna().groupby("cell")["value"]
    known = [(stats.spread(one.to_numpy(float)), len(one) - 1) for _, one in values if len(one) > 1]
    return max(known, default=None)


def choice_of(arms: Iterable[tuple[str, int]], choices: Mapping[str, Chosen]) -> selection.Choice:
    """The error of the choices in a sum of arms.

    Args:
        arms: Cell and its weight in the sum.
        choices: As in `of_pairs`.
    """
    weights: dict[str, int] = {}
    errors: dict[str, selection.Choice] = {}
    for cell, weight in arms:
        if chosen := choices.get(cell):
            errors[chosen.decision] = chosen.choice
            weights[chosen.decision] = weights.get(chosen.decision, 0) + weight
    return selection.combined([(weights[key], choice) for key, choice in errors.items()])


def choice(pairs: pd.DataFrame, choices: Mapping[str, Chosen]) -> selection.Choice:
    """Return what the choice of learning rates adds to the error of one contrast.

    Args:
        pairs: Pairs of the contrast.
        choices: As in `of_pairs`.
    """
    return choice_of(_contrast(pairs), choices)


def _contrast(pairs: pd.DataFrame) -> list[tuple[str, int]]:
    """The arms of a contrast, and their weights."""
    first = pairs.iloc[0]
    return [(str(first["cell"]), 1), (str(first["baseline"]), -1)]


def correction(settings: Mapping[str, Any]) -> str:
    """Return what Holm's correction covers by a study's tables: "family" or "study"."""
    return str(settings.get("report", {}).get("correction", "family"))


def crossed(settings: Mapping[str, Any]) -> bool:
    """Return whether seeds of initialisation and of data order are crossed by a study's tables."""
    seeds = settings.get("seeds")
    return isinstance(seeds, dict) and "init" in seeds


def split(seeds: Iterable[int]) -> np.ndarray:
    """Return the seeds of initialisation and of data order behind crossed seeds, [n, 2]."""
    return np.array([split_seed(int(seed)) for seed in seeds], dtype=int).reshape(-1, 2)


def of_pairs(
    pairs: pd.DataFrame,
    pilots: Mapping[str, Pilot] = {},
    choices: Mapping[str, Chosen] = {},
    *,
    correction: str = "family",
    crossed: bool = False,
    sizeless: frozenset[str] = frozenset(),
) -> list[EffectRow]:
    """Compute the effect of every contrast, corrected within each family or over the study.

    Args:
        pairs: Pairs as `ablate.results.pairs` returns them.
        pilots: Stratum → the pilot that decided its number of seeds.
        choices: Cell → its tuned rate, whose choice then counts in intervals and p. A contrast of
            cells that share a decision has no such error.
        correction: "family", or "study" for all contrasts together.
        crossed: Whether the seeds are pairs of a seed of the initialisation and one of the data
            order, which are then both random.
        sizeless: Cells that did not learn beyond token frequencies, or whose tokenizer loses text:
            their contrasts have no numbers, and do not count in the correction of others.
    """
    sized = ~pairs[["cell", "baseline"]].isin(sizeless).any(axis=1)
    rows = [
        *_corrected(pairs[sized], pilots, choices, correction, crossed),
        *map(_without_size, _corrected(pairs[~sized], pilots, choices, "family", crossed)),
    ]
    families = {name: i for i, name in enumerate(pairs["family"].unique())}
    cells = {name: i for i, name in enumerate(pairs["cell"].unique())}
    return sorted(rows, key=lambda row: (families[row.family], cells[row.cell]))


def _corrected(
    pairs: pd.DataFrame,
    pilots: Mapping[str, Pilot],
    choices: Mapping[str, Chosen],
    correction: str,
    crossed: bool,
) -> list[EffectRow]:
    """Return `of_pairs` of contrasts that all have an effect size, or that all have none."""
    if pairs.empty:  # pandas takes milliseconds for that too
        return []
    rows: list[tuple[pd.DataFrame, stats.Effect, str]] = []
    for _, family in pairs.groupby("family", sort=False):
        contrasts = [
            part.sort_values("seed") for _, part in family.groupby(["cell", "baseline"], sort=False)
        ]
        chosen = [choice_of(_contrast(part), choices) for part in contrasts]
        digest = _digest(family, chosen)
        effects = _family(
            [counted(part) for part in contrasts],
            pilots.get(contrasts[0]["stratum"].iloc[0], Pilot()),
            chosen,
            crossed=crossed,
        )
        rows += [(part, one, digest) for part, one in zip(contrasts, effects, strict=True)]
    if correction == "study" and rows:
        together = stats.together([effect for _, effect, _ in rows])
        rows = [
            (part, _detecting(effect, len(rows)), digest)
            for (part, _, digest), effect in zip(rows, together, strict=True)
        ]
    return [_row(*row) for row in rows]


def successive(pairs: pd.DataFrame, levels: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield the pairs of each level of a factor with the level before it, stratum after stratum.

    Args:
        pairs: Those of the factor's contrasts, as in `of_pairs`.
        levels: Of the factor, the baseline's first.
    """
    for name, stratum in pairs.groupby("stratum", sort=False):
        # parts of leave-one-out designs are one family, and these differences are not
        family = " | ".join(filter(None, [stratum["factor"].iloc[0], str(name)]))
        stratum = stratum.assign(family=family)
        parts = {level: part.set_index("seed") for level, part in stratum.groupby("level")}
        before: pd.DataFrame | None = None
        for level in levels[1:]:
            if level not in parts:
                continue
            part = parts[level]
            if before is not None:
                part = part.loc[part.index.isin(before.index)]
                part = part.assign(
                    baseline=before["cell"],
                    baseline_value=before["value"],
                    baseline_status=before["status"],
                    difference=part["value"] - before["value"],
                )
            yield part.reset_index()
            before = parts[level]


def changes(
    pairs: pd.DataFrame,
    pilots: Mapping[str, Pilot] = {},
    choices: Mapping[str, Chosen] = {},
    *,
    against: Mapping[str, Sequence[str]] | None = None,
    crossed: bool = False,
    sizeless: frozenset[str] = frozenset(),
) -> pd.DataFrame:
    """Compute how the effect of each level changes from one stratum to another.

    This is the interaction with `within`. A change is the mean, over seeds, of a level's difference
    in the stratum minus its difference in the first one. It is tested as an effect is, in the
    family of the effect in that stratum.

    Args:
        pairs: As in `of_pairs`.
        pilots: As in `of_pairs`.
        choices: As in `of_pairs`.
        against: Stratum → the strata from which its effects change, each a `first`; None to compare
            all with the study's first stratum.
        crossed: As in `of_pairs`.
        sizeless: As in `of_pairs`: their effects have no size, so they have no change either.

    Returns:
        Columns family, factor, level, stratum, first, n, mean, lo, hi, p, p_holm, resolvable,
        significant, resolved; no rows without a second stratum.
    """
    columns = ["family", "factor", "level", "stratum", "first", *CHANGE]
    strata = list(dict.fromkeys(pairs["stratum"]))
    if len(strata) < 2:
        return pd.DataFrame(columns=columns)
    if against is None:
        against = dict.fromkeys(strata[1:], strata[:1])
    pairs = pairs[~pairs[["cell", "baseline"]].isin(sizeless).any(axis=1)]
    grouped = dict(list(pairs.groupby(["factor", "level", "stratum"], sort=False)))
    by_contrast = {key: counted(part) for key, part in grouped.items()}
    rows = []
    for stratum, first in ((one, first) for one, firsts in against.items() for first in firsts):
        for family, part in pairs[pairs["stratum"] == stratum].groupby("family", sort=False):
            named = dict.fromkeys(zip(part["factor"], part["level"], strict=True))
            both = [one for one in named if (*one, first) in by_contrast]
            moved = [_minus(by_contrast[*one, stratum], by_contrast[*one, first]) for one in both]
            pilot = pilots.get(stratum) or pilots.get(first, Pilot())
            chosen = [
                choice_of(
                    [
                        *_contrast(grouped[*one, stratum]),
                        *_negative(_contrast(grouped[*one, first])),
                    ],
                    choices,
                )
                for one in both
            ]
            tested = _family(moved, Pilot(pilot.seeds), chosen, crossed=crossed)
            for one, effect in zip(both, tested, strict=True):
                rows.append(
                    (family, *one, stratum, first, *(getattr(effect, name) for name in CHANGE))
                )
    return pd.DataFrame(rows, columns=columns)


def _negative(arms: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(cell, -weight) for cell, weight in arms]


def interactions(
    pairs: pd.DataFrame,
    pilots: Mapping[str, Pilot] = {},
    choices: Mapping[str, Chosen] = {},
    *,
    crossed: bool = False,
) -> pd.DataFrame:
    """Compute the interactions of factors that were varied together and each alone.

    An interaction is the mean, over seeds, of the difference of a cell that varies several factors
    minus the sum of the differences of the cells that vary one of them. It is tested as an effect
    is; a family is the levels of the same factors in one stratum.

    Args:
        pairs: As in `of_pairs`.
        pilots: As in `of_pairs`.
        choices: As in `of_pairs`.
        crossed: As in `of_pairs`.

    Returns:
        Columns factor, level, stratum, n, mean, lo, hi, p, p_holm, resolvable, significant,
        resolved.
    """
    columns = ["factor", "level", "stratum", *CHANGE]
    if not any(TIMES in factor for factor in pairs["factor"].unique()):
        return pd.DataFrame(columns=columns)
    grouped = pairs.groupby(["factor", "level", "stratum"], sort=False)
    parts_of = {tuple(map(str, key)): part for key, part in grouped}
    by_contrast = {key: counted(part) for key, part in parts_of.items()}
    families: dict[tuple[str, str], dict[str, tuple[pd.Series, selection.Choice]]] = {}
    for (factor, level, stratum), together in by_contrast.items():
        parts = [
            (*part, stratum) for part in zip(factor.split(TIMES), level.split(TIMES), strict=False)
        ]
        if len(parts) > 1 and all(part in by_contrast for part in parts):
            alone = pd.concat([by_contrast[part] for part in parts], axis=1)
            arms = [
                *_contrast(parts_of[factor, level, stratum]),
                *(one for part in parts for one in _negative(_contrast(parts_of[part]))),
            ]
            difference = _minus(together, alone.sum(axis=1, skipna=False))
            families.setdefault((factor, stratum), {})[level] = difference, choice_of(arms, choices)
    rows = []
    for (factor, stratum), levels in families.items():
        effects = _family(
            [difference for difference, _ in levels.values()],
            Pilot(pilots.get(stratum, Pilot()).seeds),
            [choice for _, choice in levels.values()],
            crossed=crossed,
        )
        for level, effect in zip(levels, effects, strict=True):
            rows.append((factor, level, stratum, *(getattr(effect, name) for name in CHANGE)))
    return pd.DataFrame(rows, columns=columns)


def equivalence(
    pairs: pd.DataFrame,
    margin: float,
    pilots: Mapping[str, Pilot] = {},
    choices: Mapping[str, Chosen] = {},
    *,
    crossed: bool = False,
) -> stats.Equivalence:
    """Test whether the effect of one contrast lies within ± `margin`.

    Args:
        pairs: Pairs of the contrast.
        margin: In the metric's unit.
        pilots: As in `of_pairs`.
        choices: As in `of_pairs`.
        crossed: As in `of_pairs`.
    """
    difference = counted(pairs)
    pilot = pilots.get(pairs["stratum"].iloc[0], Pilot())
    first = difference[difference.index.isin(pilot.seeds)]
    return selection.equivalence_with(
        difference.to_numpy(float),
        margin,
        choice_of(_contrast(pairs), choices),
        pilot=first.to_numpy(float),
        resolution=pilot.resolution,
        crossed=split(difference.index) if crossed else None,
    )


def ended(pairs: pd.DataFrame) -> pd.Series:
    """Return which pairs have two runs that ended."""
    return pairs["status"].isin(ENDED) & pairs["baseline_status"].isin(ENDED)


def counted(pairs: pd.DataFrame) -> pd.Series:
    """Return seed → difference of a contrast's pair; NaN for a lost or pending pair."""
    its, other = (pairs[name].to_numpy(object) for name in ("status", "baseline_status"))
    value, baseline = (pairs[name].to_numpy(float) for name in ("value", "baseline_value"))
    complete = (its == "complete") & (other == "complete") & np.isfinite(value)
    complete &= np.isfinite(baseline)
    whole = (np.where(complete, one, np.nan) for one in (value, baseline))
    return pd.Series(stats.differences(*whole), pd.Index(pairs["seed"]))


def _minus(one: pd.Series, other: pd.Series) -> pd.Series:
    """Return the difference of two series by seed, as `stats.differences` has it."""
    one, other = one.align(other)
    return pd.Series(stats.differences(one, other), one.index)


def _family(
    differences: Sequence[pd.Series],
    pilot: Pilot,
    chosen: Sequence[selection.Choice],
    *,
    crossed: bool,
) -> list[stats.Effect]:
    """Return the effects of a family, with detectable effects corrected for its size."""
    if not differences:
        return []
    together = pd.concat(differences, axis=1)
    first = together.index.isin(pilot.seeds)
    effects = selection.with_choices(
        stats.family(
            together.to_numpy(float),
            confidence=CONFIDENCE,
            pilot=first,
            resolution=pilot.resolution,
            crossed=split(together.index) if crossed else None,
        ),
        chosen,
    )
    return [_detecting(one, len(effects)) for one in effects]


def _detecting(effect: stats.Effect, size: int) -> stats.Effect:
    """Return an effect with what is detectable after correction over `size` contrasts."""
    alpha = (1 - CONFIDENCE) / size
    return replace(effect, resolvable=stats.detectable(effect.n, effect.noise, alpha=alpha))


def _row(pairs: pd.DataFrame, effect: stats.Effect, digest: str) -> EffectRow:
    first, done = pairs.iloc[0], ended(pairs)
    value = np.where(counted(pairs).notna(), pairs["value"].astype(float), math.nan)
    return EffectRow(
        **{name: str(first[name]) for name in (*NAMED, "metric")},
        n=effect.n,
        lost=int(done.sum()) - effect.n,
        pending=int((~done).sum()),
        mean=effect.mean,
        sd=effect.sd,
        lo=effect.lo,
        hi=effect.hi,
        family_lo=effect.family_lo,
        family_hi=effect.family_hi,
        p=effect.p,
        p_holm=effect.p_holm,
        p_sign_flip=effect.p_sign_flip,
        correlation=stats.pair_correlation(value, pairs["baseline_value"].to_numpy(float)),
        standardised=effect.standardised,
        resolvable=effect.resolvable,
        resolved=effect.significant,
        method=effect.method,
        input_hash=digest,
    )


def _digest(family: pd.DataFrame, chosen: Sequence[selection.Choice]) -> str:
    """Return the SHA-256 of the family's pairs, in any order, and of the errors of its choices."""
    columns = [
        "cell",
        "baseline",
        "seed",
        "metric",
        "value",
        "baseline_value",
        "status",
        "baseline_status",
    ]
    lines: Iterable[str] = sorted(
        repr(row) for row in family[columns].astype(object).itertuples(index=False, name=None)
    )
    lines = [*lines, *(repr(choice) for choice in chosen if choice.error)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
