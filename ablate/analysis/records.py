"""The findings of a study: one typed record for each result, with its numbers and no prose.

A number that is not known is NaN. Differences are in the unit of the study's metric; a positive
difference is a larger value than the baseline's. Only `notes` of scaling curves are prose: cautions
that are found as the curves are fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

# an estimate, lower and upper end of its 95% interval
Ends = tuple[float, float, float]
Verdict = Literal["better", "worse", "inconclusive", "partial", "untrained", "lossy", "unknown"]
# of contrasts that have no effect size, whatever their pairs
SIZELESS: tuple[Verdict, ...] = ("untrained", "lossy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result.

    Attributes:
        kind: Name of the kind of finding, as in JSON and SQL.
        stratum: Levels of the factors in `within`; "" without any.
    """

    kind: ClassVar[str]
    stratum: str = ""


@dataclass(frozen=True, kw_only=True)
class OfCell(Finding):
    """A result of one cell.

    Attributes:
        cell: Label of the cell.
        arm: Its short name, unique in the stratum.
    """

    cell: str
    arm: str


@dataclass(frozen=True, kw_only=True)
class OfContrast(Finding):
    """A result of one cell against its baseline.

    Attributes:
        family: Contrasts that are corrected together.
        factor: Factor, or factors joined by " × ", that differ from the baseline.
        level: Level of `factor`.
        baseline_level: The baseline's level of `factor`.
        cell: Label of the cell.
        baseline: Label of the baseline cell.
    """

    family: str
    factor: str
    level: str
    baseline_level: str
    cell: str
    baseline: str


@dataclass(frozen=True)
class Pair:
    """Two runs of one seed: a cell's and its baseline's."""

    seed: int
    value: float
    baseline_value: float
    status: str
    baseline_status: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A difference from the baseline, in the metric's unit.

    Attributes:
        metric: Name of the metric.
        n: Pairs that count.
        lost: Pairs that ended without a finite difference.
        pending: Pairs still to be run.
        mean: Mean paired difference; positive means a larger metric than the baseline's.
        sd: Standard deviation of the paired differences.
        lo: Lower end of the 95% interval, for new seeds on this held-out text. It includes the
            choice of the learning rates where they were tuned.
        hi: Upper end of it.
        family_lo: Lower end of the simultaneous interval over the family.
        family_hi: Upper end of it.
        p: p value of no effect.
        p_holm: The same after Holm's correction over the family.
        p_sign_flip: p value of the exact sign-flip test; NaN where seeds are crossed.
        correlation: Correlation of the two arms over seeds.
        method: Name of the test.
        input_hash: Hash of every input value of the family: equal hashes, equal results.
    """

    metric: str
    n: int
    lost: int
    pending: int
    mean: float
    sd: float
    lo: float
    hi: float
    family_lo: float
    family_hi: float
    p: float
    p_holm: float
    p_sign_flip: float
    correlation: float
    method: str
    input_hash: str


@dataclass(frozen=True, kw_only=True)
class Contrast(Measured, OfContrast):
    """The effect of a level, with its verdict.

    Attributes:
        verdict: "better" or "worse": significant after Holm's correction, with every pair;
            "inconclusive"; "partial": pairs were lost, so the effect holds for the others only;
            "untrained": an arm learnt no more than token frequencies, so there is no effect size;
            "lossy": neither is there where the tokenizer of one of them loses text;
            "unknown": too few pairs, or no noise, to test.
        pairs: Every pair, by seed.
        p_study: p after Holm's correction over all contrasts of the study.
        detectable: Smallest true effect that is detected with 80% power, after correction.
        choice_error: Standard error that the choice of the learning rates adds; 0 for a shared
            rate, NaN where nothing was tuned.
        median: Hodges–Lehmann estimate of the difference.
        median_lo: Lower end of its exact interval; NaN below six pairs.
        median_hi: Upper end of it.
        outlying: Seeds whose pair lies far from the others.
        text_lo: Lower end of the 95% interval for new seeds and new text; NaN where no losses of
            single windows are stored.
        text_hi: Upper end of it.
        significant: Whether Holm's p is at most 0.05.
        exact: Whether nothing was trained or drawn in both arms, so that seeds change nothing.
    """

    kind: ClassVar[str] = "contrast"
    verdict: Verdict
    pairs: tuple[Pair, ...]
    p_study: float
    detectable: float
    choice_error: float
    median: float
    median_lo: float
    median_hi: float
    outlying: tuple[int, ...]
    text_lo: float
    text_hi: float
    significant: bool
    exact: bool = False

    @property
    def corrected(self) -> bool:
        """Whether Holm's correction counts it: it has an effect size, known or still to come."""
        return self.verdict not in SIZELESS


@dataclass(frozen=True, kw_only=True)
class Equivalence(OfContrast):
    """Two one-sided tests of a contrast.

    Attributes:
        margin: The largest difference that counts as none, in the metric's unit.
        proposed: Whether the margin was derived from the noise, as the study file gives none.
        p: The larger p of the two tests.
        equivalent: Whether p is below 0.05.
    """

    kind: ClassVar[str] = "equivalence"
    margin: float
    proposed: bool
    p: float
    equivalent: bool


@dataclass(frozen=True, kw_only=True)
class SameRuns(OfContrast):
    """Two cells that are the same configuration: they share their runs."""

    kind: ClassVar[str] = "same-runs"


@dataclass(frozen=True, kw_only=True)
class Spread(OfContrast):
    """Two arms whose seeds spread unequally (Pitman 1939, Morgan 1939).

    Attributes:
        wide: Level with the larger standard deviation over seeds.
        narrow: The other one.
        ratio: Its standard deviation over the other's; above 1.
        p: p value of equal spread.
        outlying: Seeds of the wide arm that lie far from its others.
    """

    kind: ClassVar[str] = "spread"
    wide: str
    narrow: str
    ratio: float
    p: float
    outlying: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Failures(OfContrast):
    """How often the runs of two arms failed, paired by seed.

    Attributes:
        ended: Pairs of which both runs ended.
        failed: Seeds of the arm's runs without a finite value.
        baseline_failed: Seeds of such runs of the baseline.
        rate_lo: Lower end of the arm's 95% interval of the rate (Wilson 1927). NaN, as both p,
            where seeds are crossed, so that pairs are not independent.
        rate_hi: Upper end of it.
        p: p value of equal failure rates (exact McNemar test).
        p_worst_rank: p value of the signed-rank test in which a failed run is worse than any
            value.
        worse: Whether the ranks are to the arm's disadvantage.
    """

    kind: ClassVar[str] = "failures"
    ended: int
    failed: tuple[int, ...]
    baseline_failed: tuple[int, ...]
    rate_lo: float
    rate_hi: float
    p: float
    p_worst_rank: float
    worse: bool


@dataclass(frozen=True, kw_only=True)
class Mismatch(OfContrast):
    """How much larger, and how much more expensive to train, a cell is than its baseline.

    Attributes:
        params: Relative difference of all parameters; NaN where a size is not known.
        params_body: The same without embeddings and head.
        flops: Relative difference of the training FLOPs.
    """

    kind: ClassVar[str] = "mismatch"
    params: float
    params_body: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class EffectAtRate(OfContrast):
    """The effect of a level if both arms are trained at one learning rate, on the tuning seeds.

    Attributes:
        lr: The learning rate.
        n: Tuning seeds.
        mean: Mean paired difference.
        lo: Lower end of the 95% t-interval; NaN with one seed.
        hi: Upper end of it.
    """

    kind: ClassVar[str] = "effect-at-rate"
    lr: float
    n: int
    mean: float
    lo: float
    hi: float


@dataclass(frozen=True, kw_only=True)
class Tested(Finding):
    """A mean over seeds with its test.

    Attributes:
        n: Seeds that are complete in all cells involved.
        mean: Mean over seeds.
        lo: Lower end of the 95% interval.
        hi: Upper end of it.
        p: p value of zero.
        p_holm: The same after Holm's correction over the family.
        detectable: Smallest true value that is detected with 80% power, after correction.
        significant: Whether p_holm is at most 0.05.
    """

    n: int
    mean: float
    lo: float
    hi: float
    p: float
    p_holm: float
    detectable: float
    significant: bool


@dataclass(frozen=True, kw_only=True)
class Change(Tested):
    """How the effect of a level changes from another stratum to this one.

    The two differ in one factor of `within`, which has its first level in the other stratum, or the
    first one of a grid with gaps. A stratum that differs from all others in several factors is
    compared with the study's first one.

    Attributes:
        family: Changes that are corrected together.
        factor: As in `Contrast`.
        level: As in `Contrast`.
        first: The other stratum.
    """

    kind: ClassVar[str] = "change"
    family: str
    factor: str
    level: str
    first: str


@dataclass(frozen=True, kw_only=True)
class Successive(Tested):
    """The difference of a level from the one before it, for a factor of `[report] successive`.

    A family is the levels of the factor in one stratum.

    Attributes:
        factor: The factor.
        level: Its level.
        before: The level before it; where that has no contrast in the stratum, the last one that
            has, or the baseline's.
        lost: As in `Contrast`.
        verdict: As in `Contrast`.
        params, params_body, flops: As in `Mismatch`, against the level before.
    """

    kind: ClassVar[str] = "successive"
    factor: str
    level: str
    before: str
    lost: int
    verdict: Verdict
    params: float
    params_body: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class Interaction(Tested):
    """The effect of factors varied together minus the sum of their separate effects.

    A family is the levels of the same factors in one stratum.

    Attributes:
        factor: Factors, joined by " × ".
        level: Their levels.
    """

    kind: ClassVar[str] = "interaction"
    factor: str
    level: str


@dataclass(frozen=True, kw_only=True)
class GridTerm(Finding):
    """The share of a full grid's variance that a factor or an interaction explains.

    Attributes:
        term: Factor, interaction ("a × b"), "seed" or "residual".
        explained: Share of the total sum of squares.
        df: Degrees of freedom.
        f: F statistic, type III; NaN for the residual.
        p: Its p value.
    """

    kind: ClassVar[str] = "grid-term"
    term: str
    explained: float
    df: int
    f: float
    p: float


@dataclass(frozen=True, kw_only=True)
class GridLevel(Finding):
    """The effect of a level averaged over all levels of the other factors.

    Attributes:
        factor: The factor.
        level: Its level.
        baseline_level: The factor's first level.
        mean: The effect.
        lo: Lower end of the 95% interval.
        hi: Upper end of it.
        p: p value of no effect.
        p_holm: The same after Holm's correction over the factor's levels.
    """

    kind: ClassVar[str] = "grid-level"
    factor: str
    level: str
    baseline_level: str
    mean: float
    lo: float
    hi: float
    p: float
    p_holm: float


@dataclass(frozen=True, kw_only=True)
class GridNote(Finding):
    """Why a grid has no explained variance, or on what its numbers rest.

    Attributes:
        reason: Why there are no numbers; "" where there are.
        additive: Whether combinations have no run, so that effects are assumed additive.
        left_out: Runs left out because they diverged or failed.
    """

    kind: ClassVar[str] = "grid"
    reason: str
    additive: bool
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Best(Finding):
    """The arms that are the best or not distinguishable from the best (Hsu 1984).

    Attributes:
        arms: Names of the arms in the set, the lowest (goal min) mean first.
        means: Their means.
        excluded: Arms that are significantly worse than another arm.
        failed: Arms that cannot be in the set because runs of theirs failed, or learnt nothing.
        seeds: Seeds compared.
        exact: Whether nothing was trained or drawn, so that seeds change nothing: the order of the
            arms on this held-out text is then known, and `arms` are those with the best value.
        clear: Whether the first of `arms` is significantly better than each of `excluded`.
    """

    kind: ClassVar[str] = "best"
    arms: tuple[str, ...]
    means: tuple[float, ...]
    excluded: tuple[str, ...]
    failed: tuple[str, ...]
    seeds: int
    exact: bool = False
    clear: bool = True


@dataclass(frozen=True, kw_only=True)
class Untrained(OfCell):
    """A cell whose runs ended at 99% or more of the loss that token frequencies alone give.

    Attributes:
        seeds: Seeds of such runs.
        of: Completed runs of the cell.
        loss: Mean final loss of those runs, nats per token.
        unigram: Loss of the token frequencies of the training text on the same held-out tokens.
        whole: Whether this is true of more than half of the runs, so that effects have no size;
            never in a study by a linear probe.
    """

    kind: ClassVar[str] = "untrained"
    seeds: tuple[int, ...]
    of: int
    loss: float
    unigram: float
    whole: bool


@dataclass(frozen=True, kw_only=True)
class SeedGroups(OfCell):
    """A cell whose seeds fall into separated groups.

    Attributes:
        groups: Seeds of each group, the lowest values first.
        means: Mean metric of each group.
        p: p value of one group, after Holm's correction over the cells of the study.
        copying: Mean copy loss of each group, nats per token; empty where it was not measured.
        p_copying: p value of no association of the groups with the copy loss (exact).
        like: Other arms of the stratum whose seeds fall into the same groups.
    """

    kind: ClassVar[str] = "seed-groups"
    groups: tuple[tuple[int, ...], ...]
    means: tuple[float, ...]
    p: float
    copying: tuple[float, ...]
    p_copying: float
    like: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Threshold(OfCell):
    """The mean of a cell against the threshold of [report].

    Attributes:
        threshold: The value to beat.
        n: Runs that count.
        mean: Their mean.
        lo: Lower end of its 95% t-interval.
        hi: Upper end of it.
        p: One-sided p value of a true mean that does not beat the threshold (Student's t).
        p_holm: The same after Holm's correction over the cells of the study.
        beaten: Whether p_holm is at most 0.05.
    """

    kind: ClassVar[str] = "threshold"
    threshold: float
    n: int
    mean: float
    lo: float
    hi: float
    p: float
    p_holm: float
    beaten: bool


@dataclass(frozen=True, kw_only=True)
class SameSeeds(OfCell):
    """A cell of a script whose seeds give the same curve: it may ignore its seed.

    Attributes:
        seeds: Seeds with identical curves of the metric.
        of: Seeds that completed.
    """

    kind: ClassVar[str] = "same-seeds"
    seeds: tuple[int, ...]
    of: int


@dataclass(frozen=True, kw_only=True)
class SameArms(Finding):
    """A cell of a script with the curves of its baseline: it may ignore or misread the factor.

    Attributes:
        factor: Factor that differs from the baseline.
        level: Level of `factor`.
        baseline_level: The baseline's level of `factor`.
        cell: Label of the cell.
        baseline: Label of the baseline cell.
        seeds: Seeds that both completed, all with identical curves of the metric.
    """

    kind: ClassVar[str] = "same-arms"
    factor: str
    level: str
    baseline_level: str
    cell: str
    baseline: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LossyTokenizer(Finding):
    """A tokenizer that loses text, in a study by bits per byte.

    Attributes:
        tokenizer: Its name.
        byte_coverage: Bytes that its tokens encode per byte of held-out text; 1 where about all.
        text_kept: Share of the words and signs of held-out text that they hold; 1 where about all.
    """

    kind: ClassVar[str] = "lossy-tokenizer"
    tokenizer: str
    byte_coverage: float
    text_kept: float


@dataclass(frozen=True, kw_only=True)
class PartlyReported(Finding):
    """A number that only some of a script's completed runs reported.

    Attributes:
        name: Its name.
        runs: Runs that reported it.
        of: Runs that completed.
    """

    kind: ClassVar[str] = "partly-reported"
    name: str
    runs: int
    of: int


@dataclass(frozen=True, kw_only=True)
class OtherSteps(Finding):
    """Runs of a script, or imported ones, whose last values are compared but are of other steps.

    Attributes:
        cells: Labels of the cells of all strata in which runs end at different steps.
        first: The earliest step at which a run of each ends.
        last: The latest.
    """

    kind: ClassVar[str] = "other-steps"
    cells: tuple[str, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Copying(Finding):
    """Cells in which some seeds have learnt to copy and others have not.

    Attributes:
        cells: Labels of the cells.
        copies: Number of runs that copy, of each cell.
        of: Number of runs in which copying was measured, of each cell.
        measured: Number of cells in which copying was measured, these and others.
        mean: Metric of the runs that copy minus that of the others, within cells.
        lo: Lower end of its 95% interval.
        hi: Upper end of it.
        p: p value of no difference (t test, cells as fixed effects).
    """

    kind: ClassVar[str] = "copying"
    cells: tuple[str, ...]
    copies: tuple[int, ...]
    of: tuple[int, ...]
    measured: int
    mean: float
    lo: float
    hi: float
    p: float


@dataclass(frozen=True)
class Part:
    """One part of a variance over crossed seeds, in the metric's unit squared.

    Attributes:
        variance: Its estimate, not below 0.
        lo: Lower end of its 95% interval.
        hi: Upper end of it.
        share: Share in the sum of the parts.
        share_lo: Lower end of its 95% interval.
        share_hi: Upper end of it.
    """

    variance: float
    lo: float
    hi: float
    share: float
    share_lo: float
    share_hi: float


@dataclass(frozen=True, kw_only=True)
class Variance(OfCell):
    """The variance of a cell's metric over crossed seeds of initialisation and of data order.

    Attributes:
        inits: Seeds of the initialisation that count.
        orders: Seeds of the data order that count, each with each of the others.
        init: What the initialisation adds.
        order: What batch order, masks and dropout add.
        residual: What the combination of both adds, and noise of the hardware.
    """

    kind: ClassVar[str] = "variance"
    inits: int
    orders: int
    init: Part
    order: Part
    residual: Part


@dataclass(frozen=True, kw_only=True)
class DifferenceVariance(OfContrast):
    """The same as `Variance`, of the paired difference from the baseline."""

    kind: ClassVar[str] = "difference-variance"
    inits: int
    orders: int
    init: Part
    order: Part
    residual: Part


@dataclass(frozen=True, kw_only=True)
class NoFailures(Finding):
    """No run failed: what failure rate this many seeds are compatible with.

    Attributes:
        seeds: Completed seeds of the arm with the fewest.
        upper: 95% upper bound of the failure rate of one arm.
    """

    kind: ClassVar[str] = "no-failures"
    seeds: int
    upper: float


@dataclass(frozen=True, kw_only=True)
class Pairing(Finding):
    """What pairing by seed gains.

    Attributes:
        seeds: Seeds compared.
        correlation: Median correlation of two arms over seeds.
        width: Median width of a paired interval over that of an unpaired one (Welch); below 1
            where pairing pays.
    """

    kind: ClassVar[str] = "pairing"
    seeds: int
    correlation: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Multiplicity(Finding):
    """How many questions the study asks at once.

    Attributes:
        families: Families of contrasts, each corrected by itself.
        contrasts: Contrasts that are corrected, in all families.
        correction: What Holm's correction of p_holm covers: "family" or "study".
        significant: Contrasts significant after that correction.
        significant_study: Contrasts significant after Holm's correction over the whole study.
        sign_flip_floor: Smallest p that the sign-flip test can reach after that correction, in
            any contrast.
    """

    kind: ClassVar[str] = "multiplicity"
    families: int
    contrasts: int
    correction: str
    significant: int
    significant_study: int
    sign_flip_floor: float


@dataclass(frozen=True, kw_only=True)
class LengthChange(OfCell):
    """The change of loss on the same targets in a longer context than the one trained with.

    Attributes:
        factor: Context over the training context.
        defined: Whether the position encoding is defined there.
        n: Runs that count.
        lost: Runs without a finite value.
        mean: Mean change, nats per token.
        lo: Lower end of the 95% t-interval.
        hi: Upper end of it.
    """

    kind: ClassVar[str] = "length"
    factor: float
    defined: bool
    n: int
    lost: int
    mean: float
    lo: float
    hi: float


@dataclass(frozen=True, kw_only=True)
class LengthError(OfCell):
    """The change of a cell's error rate from the shortest sources to the longest.

    Sources are in bins of about equally many held-out pairs, by their tokens.

    Attributes:
        short: Tokens of the longest source in the first bin.
        long: Tokens of the shortest source in the last bin.
        n: Runs that count.
        lost: Runs without a finite value.
        mean: Mean change, errors per symbol.
        lo: Lower end of the 95% t-interval.
        hi: Upper end of it.
    """

    kind: ClassVar[str] = "length_error"
    short: int
    long: int
    n: int
    lost: int
    mean: float
    lo: float
    hi: float


@dataclass(frozen=True, kw_only=True)
class LinearProbe(OfCell):
    """The accuracy of a linear probe on a cell's features.

    Attributes:
        name: The metric.
        seeds: Runs.
        mean: Mean accuracy.
        sd: Standard deviation over seeds.
    """

    kind: ClassVar[str] = "linear_probe"
    name: str
    seeds: int
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class ProbeLoss(OfCell):
    """The loss of a cell on hidden tokens at one probe ratio; they are the same in every arm.

    Attributes:
        name: The metric: probe_loss of masked models, corrupted_loss of encoder-decoders.
        ratio: Share of tokens hidden.
        seeds: Runs.
        mean: Mean loss, nats per token.
        sd: Standard deviation over seeds.
    """

    kind: ClassVar[str] = "probe"
    name: str
    ratio: float
    seeds: int
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class Tuning(Finding):
    """The learning rate of a group of cells.

    Attributes:
        group: Name of the group.
        cells: Its cells; the first was tuned.
        lr: The chosen rate, by the curve fitted to all tuning runs.
        metric: What decided.
        goal: Of that metric, "min" or "max".
        fitted: What decided, on that curve at the chosen rate; NaN without one.
        error: The error that the choice adds to the study's metric of the cell, a root mean square.
        trains: Whether a rate trained the cell at all.
        rates: Rates tried, ascending.
        losses: What decided, at each, mean over the tuning seeds; NaN where a run diverged.
        outcomes: The study's metric at each, as `losses`.
        seeds: Tuning seeds.
        requested: Lowest and highest rate of the study file.
        at_edge: Whether no rate was tried below, or none above, the chosen one or the best of those
            tried.
        near_cliff: Whether runs diverged or were sharply worse at a rate close above the best one
            tried: the next rate below that is chosen only for a gain beyond noise.
        left_range: Whether rates outside the requested range were tried.
        sensitivity: Mean over the study file's rates of min(loss, ln n_vocab) minus the smallest
            loss, nats per token (Wortsman et al. 2023).
    """

    kind: ClassVar[str] = "tuning"
    group: str
    cells: tuple[str, ...]
    lr: float
    metric: str
    goal: str
    fitted: float
    error: float
    trains: bool
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    outcomes: tuple[float, ...]
    seeds: tuple[int, ...]
    requested: tuple[float, float]
    at_edge: bool
    near_cliff: bool
    left_range: bool
    sensitivity: float


@dataclass(frozen=True, kw_only=True)
class TuningChange(OfCell):
    """What an arm reaches at the baseline's best rate and at its own, on the tuning seeds.

    Attributes:
        baseline: Whether the arm is the baseline.
        shared_lr: The best rate of the baseline among those that every arm was trained with.
        lr: The arm's own rate.
        at_shared: Metric at the shared rate, mean over seeds; NaN where a run diverged.
        at_own: The same at the tried rate that is nearest to its own.
    """

    kind: ClassVar[str] = "tuning-change"
    baseline: bool
    shared_lr: float
    lr: float
    at_shared: float
    at_own: float


@dataclass(frozen=True, kw_only=True)
class SeedCount(Finding):
    """The number of seeds that a pilot decided on.

    Attributes:
        pilot: Seeds of the pilot.
        seeds: Seeds decided on.
        resolution: Half width of the interval that was asked for.
        required: Seeds that it needs.
        capped: Whether the study file allows fewer.
        unknown: Cells that lost too many pairs of the pilot to be included.
    """

    kind: ClassVar[str] = "seed-count"
    pilot: int
    seeds: int
    resolution: float
    required: int
    capped: bool
    unknown: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalingRuns(Finding):
    """The runs that scaling curves were fitted to.

    Attributes:
        runs: Their number.
        ranges: Resource ("n" parameters, "d" tokens, "c" FLOPs) → smallest and largest value.
        notes: What was left out, taken for granted or looks odd, as printed.
    """

    kind: ClassVar[str] = "scaling-runs"
    runs: int
    ranges: dict[str, tuple[float, float]]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalingFit(Finding):
    """A fitted scaling curve.

    Attributes:
        curve: Group of runs; "" for one curve.
        form: The form, such as "L(N, D)".
        equation: Its equation, such as "E + A/N^alpha + B/D^beta".
        runs: Runs fitted.
        lost: Runs without a finite loss, which are not fitted.
        constants: Name → value, lower and upper end of its 95% interval.
        n_exponent: a of best N ∝ C^a with its interval; None for a form of one resource.
        noise: Standard deviation of log loss about the curve.
        describes: Whether the curve describes its runs well enough to be used.
        held_out: What was held out, such as "largest size (N = 6e+06)"; "" without a check.
        held_out_runs: Runs held out.
        predicted: Geometric mean of their predicted losses; NaN without a check.
        reached: Geometric mean of their losses.
        miss: Relative error of the held-out prediction; NaN without one.
        miss_lo: Lower end of the 95% interval in which the miss was expected.
        miss_hi: Upper end of it.
        trusted: Whether the held-out runs lie in the prediction interval.
        notes: Cautions, as printed.
    """

    kind: ClassVar[str] = "scaling-fit"
    curve: str
    form: str
    equation: str
    runs: int
    lost: int
    constants: dict[str, Ends]
    n_exponent: Ends | None
    noise: float
    describes: bool
    held_out: str
    held_out_runs: int
    predicted: float
    reached: float
    miss: float
    miss_lo: float
    miss_hi: float
    trusted: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class IsoFlopMinimum:
    """The size of lowest loss in a budget.

    Attributes:
        c: The budget in FLOPs.
        n: Parameters with their 95% interval; NaN without a minimum.
        d: Tokens.
        loss: The lowest loss.
        reason: Why there is no minimum; "" if there is one.
    """

    c: float
    n: Ends
    d: float
    loss: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class ScalingIsoFlop(Finding):
    """The isoFLOP minima of a curve: best N = n_scale · C^n_exponent, likewise best D.

    Attributes:
        curve: Group of runs; "" for one curve.
        minima: One for each budget, ascending.
        n_exponent: With its 95% interval, as every list of three.
        d_exponent: Likewise.
        n_scale: Best N at C = 1.
        d_scale: Best D at C = 1.
        noise: Standard deviation of log loss from run to run.
        noise_from: "repeated runs", or "roughness of the curves" where no run is repeated.
        constants: Constants of the lowest loss over the budget, L(C); empty without that fit.
        notes: Cautions, as printed.
    """

    kind: ClassVar[str] = "scaling-isoflop"
    curve: str
    minima: tuple[IsoFlopMinimum, ...]
    n_exponent: Ends
    d_exponent: Ends
    n_scale: float
    d_scale: float
    noise: float
    noise_from: str
    constants: dict[str, Ends]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalingComparison(Finding):
    """Two scaling curves compared.

    Attributes:
        curve: The group.
        baseline: The group that it is compared with.
        verdict: "exponent", "offset" or "inconclusive", as `ablate.scaling.Comparison` says.
        trusted: Whether both curves describe their runs and predicted what was held out.
        exponents: Name → difference, lower and upper end of its 95% interval, Holm's p.
        one_floor: The same if both curves had one floor E.
        gap: Relative difference of loss with its interval: at the points of both groups, or by the
            curves over the measured range if there are fewer than three such points.
        measured: Whether `gap` is at the points of both groups.
        axis: Resource that the curves are compared along.
        low: Lower end of its measured range.
        high: Upper end of it.
        gap_low: Relative difference of the curves at the lower end, with its interval.
        gap_high: Likewise at the upper end.
        crossing: Where the curves cross, with its interval; NaN for no crossing in the range
            searched, 0 and ∞ for open ends.
        crosses: Share of replicates in which the curves cross in the measured range.
    """

    kind: ClassVar[str] = "scaling-comparison"
    curve: str
    baseline: str
    verdict: str
    trusted: bool
    exponents: dict[str, tuple[float, float, float, float]]
    one_floor: dict[str, tuple[float, float, float, float]]
    gap: Ends
    measured: bool
    axis: str
    low: float
    high: float
    gap_low: Ends
    gap_high: Ends
    crossing: Ends
    crosses: float


@dataclass(frozen=True, kw_only=True)
class ScalingPrediction(Finding):
    """The loss that a scaling curve predicts for a run.

    Attributes:
        curve: Group of runs; "" for one curve.
        at: Resource ("n" parameters, "d" tokens, "c" FLOPs) → its value.
        loss: Predicted loss, lower and upper end of the 95% interval of a run's loss.
        beyond: Resource → the same as a multiple of the largest run's; above 1, no run is as large.
        below: Resource → how many times smaller than the smallest run's; above 1, no run is as
            small.
    """

    kind: ClassVar[str] = "scaling-prediction"
    curve: str
    at: dict[str, float]
    loss: tuple[float, float, float]
    beyond: dict[str, float]
    below: dict[str, float]


def kinds() -> dict[str, type[Finding]]:
    """Return the name of every kind of finding → its class."""
    found, queue = {}, [Finding]
    while queue:
        cls = queue.pop()
        queue += cls.__subclasses__()
        if "kind" in vars(cls):
            found[cls.kind] = cls
    return dict(sorted(found.items()))
