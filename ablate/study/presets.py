"""`preset = "gpt2"` in [base] or a level: fields of a published model, which all others replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablate.components.presets import PRESET, preset
from ablate.errors import AblateError
from ablate.study.levels import Factors, sets
from ablate.study.model import Fields
from ablate.study.source import Source


def applied(source: Source, base: Fields, factors: Factors, tuned: str) -> tuple[Fields, Factors]:
    """Return [base] and [factors] with the fields of presets in the place of their names.

    A preset yields to every field that the study sets itself: beside it, in [base], by another
    factor, or by [tune]. A level keeps what the preset of [base] says of a field that only other
    levels of its factor set. Where levels name presets, that of [base] is that of the others.

    Args:
        source: The study file.
        base: [base].
        factors: [factors].
        tuned: The field that [tune] finds; "" for none.

    Raises:
        AblateError: There is a preset of text, and the study gives no tokenizer; or what a level
            leaves out follows from a level of another factor.
    """
    by_factor = {name: set().union(*map(sets, levels.values())) for name, levels in factors.items()}
    _check_tokenizer(source, base, factors, base.keys() | set().union(*by_factor.values()))
    of_base = {name: base[name] for name in base if name == PRESET}
    if any(PRESET in fields for fields in by_factor.values()):
        _check_whole(source, factors, by_factor)
        base = {name: value for name, value in base.items() if name != PRESET}
    kept = _filled(of_base, set()) if PRESET in base else {}
    made: Factors = {}
    for name, levels in factors.items():
        others = {*base, tuned}.union(*(by_factor[other] for other in factors if other != name))
        default = of_base if PRESET in by_factor[name] else {}
        made[name] = {
            label: {field: kept[field] for field in (by_factor[name] & kept.keys()) - sets(fields)}
            | _filled(default | fields, others)
            for label, fields in levels.items()
        }
    return _filled(base, {tuned}.union(*by_factor.values())), made


def _filled(fields: Fields, others: set[str]) -> Fields:
    """Return fields with those of their preset, but for the names `others`, below them."""
    if PRESET not in fields:
        return fields
    own = {name: value for name, value in fields.items() if name != PRESET}
    given = preset(fields[PRESET]).fields
    return {name: value for name, value in given.items() if name not in others} | own


def _check_tokenizer(source: Source, base: Fields, factors: Factors, written: set[str]) -> None:
    for name, path in _named(base, factors):
        if "tokenizer" not in written and not preset(name).side:
            n = preset(name).n_tokenizer
            raise AblateError(
                f"{source.where(*path)}: preset {name!r} sets no tokenizer, but the tokenizer"
                f" decides the size of the vocabulary; give one: the path of a tokenizer.json, or"
                f' "bpe:{n}" (of the published size, trained on the corpus), or "byte"'
            )


def _check_whole(source: Source, factors: Factors, by_factor: Mapping[str, set[str]]) -> None:
    """Refuse a level without a field that others of its factor set, where presets are levels of
    another factor: each of them has a value of its own for it.
    """
    chosen = {name for name, _ in _named({}, factors)}
    brought = set().union(*(preset(name).fields for name in chosen))
    for factor, levels in factors.items():
        for label, fields in levels.items() if PRESET not in by_factor[factor] else ():
            if lacking := sorted((by_factor[factor] & brought) - sets(fields)):
                raise AblateError(
                    f"{source.where('factors', factor, label)}: level {label!r} of {factor} leaves"
                    f" out {lacking[0]}, which other levels set and presets would bring; write it"
                    " in every level"
                )


def _named(base: Fields, factors: Factors) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the presets of a study, and where they are named."""
    if PRESET in base:
        yield base[PRESET], ("base", PRESET)
    for factor, levels in factors.items():
        for label, fields in levels.items():
            if PRESET in fields:
                yield fields[PRESET], ("factors", factor, label)
