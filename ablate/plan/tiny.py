"""`--size tiny`: the same study, shrunk until a CPU runs it in minutes, for trials and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.plan.cells import build
from ablate.study import Crossed, Fields, Study
from ablate.study.levels import sets
from ablate.study.values import BUDGETS, label

IMAGE = "image"  # the kind of a study on images
SEEDS = 2
RATES = 3  # of the ladder of [tune]
WIDTH, CONTEXT, BATCH = 32, 32, 512  # near which the largest d_model, n_ctx, batch_tokens come
# optimiser steps of the shortest run, unless the longest would then take more than LONGEST
SHORTEST, LONGEST = 20, 400
FEWEST = 2
FINETUNED = 20  # most steps of a fine-tuning
HELD_OUT = 2048  # tokens of an evaluation
DECODED = 16  # pairs
VOCABULARY = 512
SHIPPED_INSTEAD = {"debian-docs": "austen"}  # corpora that have to be built first

Change = Callable[[Any], Any]


def tiny(study: Study) -> Study:
    """Return `study` with narrow, shallow models, short contexts, few steps and two seeds.

    Where initialisation and data order are crossed, there are two of each.

    Levels stay different from each other. All widths are divided by one number and all budgets
    multiplied by one, so that their ratios are unchanged.

    Raises:
        AblateError: The study is one of a script, whose size ablate does not know, or of given
            weights, whose size cannot change.
    """
    if study.starts:
        raise AblateError(
            f"{study.path}: --size tiny makes models smaller, and the weights of [start] decide"
            " their size; give fewer tokens in [base] and [eval], or the folder of a smaller model"
        )
    if study.command:
        raise AblateError(
            f"{study.path}: --size tiny shrinks transformers; give the options of a script smaller"
            " values in [base]"
        )
    crossed = Crossed(SEEDS, SEEDS) if study.crossed else None
    shrunk = _changed(_explicit(study), _shape_changes(study))
    shrunk = replace(
        shrunk,
        name=f"{study.name}-tiny",
        seeds=crossed.seeds if crossed else study.seeds[:SEEDS],
        crossed=crossed,
        tune=replace(study.tune, points=RATES, seeds=1) if study.tune else None,
        two_stage=replace(study.two_stage, most=SEEDS + 1) if study.two_stage else None,
        evaluation=study.evaluation.model_copy(
            update={
                "points": min(3, study.evaluation.points),
                "tokens": min(HELD_OUT, study.evaluation.tokens),
                "decoded": min(DECODED, study.evaluation.decoded),
            }
            | (
                {"final_tokens": min(HELD_OUT, study.evaluation.final_tokens)}
                if study.evaluation.final_tokens
                else {}
            )
        ),
    )
    steps = [cell.config.steps for cell in build(replace(shrunk, max_epochs=None)).cells]
    scale = (
        min(1.0, max(min(SHORTEST / min(steps), LONGEST / max(steps)), FEWEST / min(steps)))
        if steps
        else 1.0
    )
    return _changed(shrunk, {name: lambda amount: _rounded(amount * scale) for name in BUDGETS})


def _explicit(study: Study) -> Study:
    """The study with the defaults of what is shrunk written out, where a run has them."""
    written = {"n_layer", "d_model", "batch_tokens"}
    if study.kind != IMAGE:  # whose contexts follow from its patches
        written.add("n_ctx")
    for levels in study.factors.values():
        written -= set[str].intersection(*map(sets, levels.values()))
    return replace(
        study,
        base={name: RunConfig.model_fields[name].default for name in sorted(written)} | study.base,
    )


def _shape_changes(study: Study) -> dict[str, Change]:
    """Field → how its values change."""
    values = partial(_values, _explicit(study))
    narrower = _narrower(_explicit(study), values)
    # a context that holds the longest pair has to stay
    shorter = 1 if _of_pairs(values) else _divisor(values("n_ctx"), near=CONTEXT)
    contexts = math.lcm(*(n_ctx // shorter for n_ctx in values("n_ctx")), *_patches(study))
    smaller = _divisor(values("batch_tokens"), near=BATCH, multiple=contexts)
    depths = {depth: min(depth, rank) for rank, depth in enumerate(sorted(values("n_layer")), 2)}
    return {
        "d_model": lambda width: width // narrower,
        "d_head": lambda width: width // narrower,
        "d_mlp": lambda width: max(1, width // narrower),
        "d_decoder": lambda width: width // narrower,
        "params": lambda params: _rounded(params / narrower**2),
        "aspect": lambda aspect: aspect / narrower,
        "n_layer": lambda depth: depths[depth],
        "n_ctx": lambda n_ctx: n_ctx // shorter,
        "batch_tokens": lambda batch: batch // smaller,
        "finetune_steps": lambda steps: min(steps, FINETUNED),
        "tokenizer": lambda spec: (
            f"bpe:{min(VOCABULARY, int(spec[4:]))}" if spec.startswith("bpe:") else spec
        ),
        "corpus": lambda spec: SHIPPED_INSTEAD.get(spec, spec),
        "precision": lambda precision: CATALOGUE["precision"][precision].on_cpu,
    }


def _patches(study: Study) -> set[int]:
    """Return the numbers of patches of an image that a study reads; none for one of text."""
    if study.kind != IMAGE:
        return set()
    return {cell.config.n_ctx for cell in build(replace(study, max_epochs=None)).cells}


def _of_pairs(values: Callable[[str], list[Any]]) -> bool:
    """Return whether a study trains on pairs, as an encoder-decoder does by default."""
    architectures = map(CATALOGUE["architecture"].canonical, values("architecture"))
    objectives = values("objective")
    return "pairs" in objectives or (
        not objectives and any(CATALOGUE["architecture"][name].encodes for name in architectures)
    )


def _narrower(study: Study, values: Callable[[str], list[Any]]) -> int:
    """Return the divisor of the widths: heads still divide d_model, and have even widths."""
    if ladder := values("params"):
        widest = (max(ladder) * max(values("aspect")) / 12) ** (
            1 / 3
        )  # of a body of 12·n_layer·d_model² parameters
        return _divisor(values("d_head"), near=WIDTH * max(values("d_head")) / widest, multiple=2)
    return _divisor(values("d_model"), near=WIDTH, even=[*values("d_head"), *_head_widths(study)])


def _head_widths(study: Study) -> set[int]:
    """Return d_model / n_head of all combinations that tables set."""
    tables = _tables(study)
    both = [fields for fields in tables if {"d_model", "n_head"} <= set(fields)]
    apart = [fields for fields in tables if fields not in both]
    heads = [fields["n_head"] for fields in apart if "n_head" in fields] or [
        RunConfig.model_fields["n_head"].default
    ]
    pairs = [(fields["d_model"], fields["n_head"]) for fields in both]
    pairs += product((fields["d_model"] for fields in apart if "d_model" in fields), heads)
    return {width // n_head for width, n_head in pairs if width % n_head == 0}


def _rounded(value: float) -> float:
    """Three significant digits, for a level's name."""
    short = float(f"{value:.3g}")
    return int(short) if short == int(short) else short


def _values(study: Study, name: str) -> list[Any]:
    """The different values of a field in [base] and in all levels."""
    return list(dict.fromkeys(fields[name] for fields in _tables(study) if name in fields))


def _tables(study: Study) -> list[Fields]:
    return [
        study.base,
        *(fields for levels in study.factors.values() for fields in levels.values()),
    ]


def _divisor(
    values: Sequence[int], *, near: float, multiple: int = 1, even: Sequence[int] = ()
) -> int:
    """Return the common divisor that brings the largest of `values` nearest to `near`.

    Quotients of `values` are multiples of `multiple`, those of `even` are even. 1 where there is no
    other divisor.
    """
    common = math.gcd(*values)
    low = [divisor for divisor in range(1, math.isqrt(common) + 1) if common % divisor == 0]
    possible = [
        divisor
        for divisor in (*low, *(common // divisor for divisor in reversed(low)))
        if all(value % (divisor * multiple) == 0 for value in values)
        and all(value % (2 * divisor) == 0 for value in even)
    ]
    return min(possible, key=lambda divisor: abs(max(values) / divisor - near), default=1)


def _changed(study: Study, changes: dict[str, Change]) -> Study:
    """Return the study with changed values; levels named after their value are renamed."""

    def change(fields: Fields) -> Fields:
        return {
            name: changes[name](value) if name in changes else value
            for name, value in fields.items()
        }

    factors: dict[str, dict[str, Fields]] = {}
    names: dict[tuple[str, str], str] = {}
    for factor, levels in study.factors.items():
        changed = {name: change(fields) for name, fields in levels.items()}
        if len({str(fields) for fields in changed.values()}) < len(
            levels
        ):  # levels became equal: leave the factor unchanged
            changed = dict(levels)
        for name, fields in changed.items():
            value = fields.get(factor, fields.get("params"))
            names[factor, name] = name if fields == levels[name] or value is None else label(value)
        factors[factor] = {names[factor, name]: fields for name, fields in changed.items()}
    exclude = tuple(
        {factor: names[factor, level] for factor, level in rule.items()} for rule in study.exclude
    )
    return replace(study, base=change(study.base), factors=factors, exclude=exclude)
