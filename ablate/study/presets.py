"""`preset = "gpt2"` in [base] or a level: fields of a published model, which all others replace."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.components.presets import PRESET, preset
from ablate.errors import AblateError
from ablate.study.levels import Factors, sets
from ablate.study.model import Fields
from ablate.study.source import Source


def applied(source: Source, base: Fields, factors: Factors, tuned: str) -> tuple[Fields, Factors]:
    """Return [base] and [factors] with the fields of presets in the place of their names.

    A preset yields to every field that the study sets itself: beside it, in [base], by another
    factor, or by [tune].

    Args:
        source: The study file.
        base: [base].
        factors: [factors].
        tuned: The field that [tune] finds; "" for none.

    Raises:
        AblateError: There is a preset, and the study gives no tokenizer.
    """
    by_factor = {name: set().union(*map(sets, levels.values())) for name, levels in factors.items()}
    _check_tokenizer(source, base, factors, base.keys() | set().union(*by_factor.values()))
    made: Factors = {}
    for name, levels in factors.items():
        others = {*base, tuned}.union(*(by_factor[other] for other in factors if other != name))
        made[name] = {label: _filled(fields, others) for label, fields in levels.items()}
    varied = {tuned}.union(
        *(sets(fields) for levels in made.values() for fields in levels.values())
    )
    return _filled(base, varied), made


def _filled(fields: Fields, others: set[str]) -> Fields:
    if PRESET not in fields:
        return fields
    own = {name: value for name, value in fields.items() if name != PRESET}
    given = preset(fields[PRESET]).fields
    return {name: value for name, value in given.items() if name not in others} | own


def _check_tokenizer(source: Source, base: Fields, factors: Factors, written: set[str]) -> None:
    for name, path in _named(base, factors):
        if "tokenizer" not in written:
            n = preset(name).n_tokenizer
            raise AblateError(
                f"{source.where(*path)}: preset {name!r} sets no tokenizer, but the tokenizer"
                f" decides the size of the vocabulary; give one: the path of a tokenizer.json, or"
                f' "bpe:{n}" (of the published size, trained on the corpus), or "byte"'
            )


def _named(base: Fields, factors: Factors) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the presets of a study, and where they are named."""
    if PRESET in base:
        yield base[PRESET], ("base", PRESET)
    for factor, levels in factors.items():
        for label, fields in levels.items():
            if PRESET in fields:
                yield fields[PRESET], ("factors", factor, label)
