"""The methods paragraphs: what was done, in words that a paper can take over."""

from __future__ import annotations

from ablate.figures.style import count
from ablate.report.material import Material
from ablate.report.words import listed, plural

SIGN_FLIP_FROM = 6  # pairs from which an exact sign-flip test can reach p < 0.05


def paragraphs(material: Material) -> list[str]:
    """Training, comparison, statistics, and where the numbers are; from what the study and its runs are."""
    runs = material.compared
    if runs.empty:
        return []
    return [_training(material), _comparison(material), _statistics(material), _provenance(material)]


def _training(material: Material) -> str:
    runs = material.compared
    values = {name: sorted(set(runs[name])) for name in ("corpus", "tokenizer", "objective", "schedule", "precision", "n_ctx", "batch_tokens")}
    tokens = sorted(set(runs["tokens"]))
    amount = f"{count(tokens[0])} tokens" if len(tokens) == 1 else f"{count(tokens[0])} to {count(tokens[-1])} tokens"
    return (
        f"Transformers with {listed(values['objective'], 'or')} language modelling were trained on {amount} of {listed(values['corpus'])} "
        f"({listed(values['tokenizer'])} tokens, {listed(values['n_ctx'], 'or')} a sequence, {listed(map(count, values['batch_tokens']), 'or')} "
        f"a step) with AdamW, {listed(values['schedule'], 'or')} learning-rate schedule, in {listed(values['precision'], 'or')}. "
        "Held-out text is the last part of each document, or every tenth document where there are many; it is never trained on."
    )


def _comparison(material: Material) -> str:
    seeds = material.compared["seed"].nunique()
    strata = f" within each of {len(material.strata)} strata" if len(material.strata) > 1 else ""
    return (
        f"Every cell was trained with the same {plural(seeds, 'seed')}. A seed fixes the order of batches and the start of every weight "
        f"by its name and shape, so that a cell and its baseline{strata} are compared pair by pair. The metric is {material.words.axis} "
        "at the end of the whole schedule; no checkpoint was chosen."
    )


def _statistics(material: Material) -> str:
    most = int(material.effects["n"].max()) if len(material.effects) else 0
    check = (
        f" With {plural(most, 'pair')} that test cannot reach p < 0.05, which takes {SIGN_FLIP_FROM} pairs, so the t-test's assumption of "
        "normal differences carries the result."
        if 0 < most < SIGN_FLIP_FROM
        else ""
    )
    return (
        "An effect is the mean of the paired differences, with the interval and the two-sided p of Student's t on one degree of freedom "
        "less than pairs. Within a family, which is the levels of one factor in one stratum, p is corrected by Holm's method (1979) and "
        "the family intervals by Bonferroni's; an effect is called resolved where Holm's p is at most 0.05. The exact sign-flip p is a "
        f"check that assumes symmetric noise only.{check} A pair one of whose runs diverged, failed, or ended without a finite value is "
        "lost: it is counted and named, never imputed. What a study can see is the smallest true effect that a t-test on so many "
        "pairs, of the noise found and with the family's correction, finds in four of five studies."
    )


def _provenance(material: Material) -> str:
    hashes = sorted({str(value)[:12] for value in material.effects["input_hash"]}) if len(material.effects) else []
    inputs = f" Inputs of the effects: {listed(hashes)} (SHA-256 of every value that went in, a family each)." if hashes else ""
    return f"All numbers are in the study's database, study {material.study.name}, revision {material.study.revision}.{inputs}"
