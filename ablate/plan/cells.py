"""The cells of a study: the combinations of its design, without those that are excluded."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.components import CATALOGUE
from ablate.errors import AblateError
from ablate.formats import LARGEST
from ablate.kinds import Cost, Run
from ablate.plan.kinds import planning_of
from ablate.plan.model import Cell, Plan, Resolver
from ablate.plan.where import of_cell
from ablate.study import Study
from ablate.study.design import Combination, combinations
from ablate.study.source import Source
from ablate.units import listed

BASELINE = "baseline"  # the name of the cell that has the first level of each factor


def build(study: Study) -> Plan:
    """Resolve the combinations of a study's design: its plan without comparisons and runs.

    A factor that has no effect with a cell's other levels adds no cells: it is left out of their
    `levels`.

    Raises:
        AblateError: A cell's fields contradict each other, two cells have one name, an [[exclude]]
            matches none, or max_epochs leaves none.
    """
    resolver = planning_of(study).resolver(study)
    cells: dict[str, Cell] = {}
    excluded = []
    unused = list(study.exclude)
    baselines: dict[str, Run] = {}  # of each stratum: its first cell
    for chosen, levels in _distinct(study, resolver):
        label = _label(study, levels)
        if rules := [rule for rule in study.exclude if rule.items() <= levels.items()]:
            excluded.append(label)
            unused = [rule for rule in unused if rule not in rules]
            continue
        if label in cells:
            raise AblateError(f"{study.path}: two cells would be called {label!r}; rename a level")
        stratum = _stratum(study, levels)
        with of_cell(study, chosen, label):
            resolved = resolver.resolve(chosen, baselines.get(stratum))
            _check_cost(resolved.run.cost)
        baselines.setdefault(stratum, resolved.run)
        cells[label] = Cell(**vars(resolved), label=label, levels=levels, stratum=stratum)
    if unused:
        location = Source(study.path, study.toml).where("exclude", study.exclude.index(unused[0]))
        raise AblateError(
            f"{location}: [[exclude]] {_text(unused[0])} matches no cell of the design; remove it"
        )
    too_long = _too_long(study, tuple(cells.values()))
    kept = tuple(cell for cell in cells.values() if cell not in too_long)
    if too_long and not kept:
        raise AblateError(
            f"{Source(study.path, study.toml).where('base', 'max_epochs')}: every cell reads its"
            f" text more than max_epochs = {study.max_epochs:g} times, {too_long[0].label!r}"
            f" {too_long[0].epochs:.2f} times; lower the budget or use a larger corpus"
        )
    if too_long and not study.fit and len({cell.stratum for cell in kept}) == len(kept):
        raise AblateError(
            f"{Source(study.path, study.toml).where('base', 'max_epochs')}: max_epochs ="
            f" {study.max_epochs:g} leaves {listed([repr(cell.label) for cell in kept], most=3)} of"
            f" {len(cells)} cells, so nothing is left to compare; lower the budget of the others or"
            " use a larger corpus"
        )
    return Plan(
        study,
        kept,
        sources=resolver.sources,
        texts=tuple(resolver.texts.values()),
        settings=resolver.settings,
        about=tuple(resolver.about),
        code=tuple(resolver.code),
        excluded=tuple(excluded),
        too_long=too_long,
    )


def _check_cost(cost: Cost) -> None:
    """Refuse a run that is too large for the whole numbers of the database.

    Raises:
        AblateError: What of it is, such as its parameters.
    """
    for words, number in (
        ("steps", cost.steps),
        ("parameters", cost.params),
        ("training tokens", cost.tokens),
    ):
        if number is not None and number > LARGEST:
            raise AblateError(f"{number:.3g} {words} are too many for a run: at most {LARGEST:.3g}")


def _too_long(study: Study, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Return the cells that would read their text too often, and those whose baseline would."""
    baselines: dict[str, Cell] = {}
    for cell in cells:
        baselines.setdefault(cell.stratum, cell)
    most = study.max_epochs
    return tuple(
        cell
        for cell in cells
        if most is not None
        and max(cell.epochs or 0.0, baselines[cell.stratum].epochs or 0.0) > most
    )


def check_levels(study: Study, cells: tuple[Cell, ...], too_long: tuple[Cell, ...]) -> None:
    """Raise an error if a level of the study is in none of its cells.

    Raises:
        AblateError: The first such level, with its line in the study file.
    """
    source = Source(study.path, study.toml)
    if not cells:
        raise AblateError(f"{source.where('exclude')}: [[exclude]] leaves no cell")
    for factor, named in study.factors.items():
        reached = {cell.levels[factor] for cell in (*cells, *too_long) if factor in cell.levels}
        for level in named:
            if level not in reached:
                location = source.where("factors", factor, level)
                why = "it has no effect with the other levels, or is excluded"
                if not reached and factor in CATALOGUE and CATALOGUE[factor].needs:
                    why = f"it needs {CATALOGUE[factor].needed}"
                    why += ", or is excluded" if study.exclude else ""
                raise AblateError(
                    f"{location}: level {level!r} of {factor} occurs in no cell: {why}"
                )


def baseline_levels(study: Study) -> Combination:
    """Return each factor's first level."""
    return {factor: next(iter(levels)) for factor, levels in study.factors.items()}


def _distinct(study: Study, resolver: Resolver) -> Iterator[tuple[Combination, Combination]]:
    """Yield (the combination, its levels that have a meaning), each of the latter once."""
    seen = set()
    names = {factor: list(levels) for factor, levels in study.factors.items()}
    for chosen in combinations(study.design, names, study.within, study.interactions):
        with of_cell(study, chosen, _label(study, chosen)):
            levels = resolver.levels(chosen)
        if (identity := tuple(levels.items())) not in seen:
            seen.add(identity)
            yield chosen, levels


def _stratum(study: Study, levels: Combination) -> str:
    return _text({factor: level for factor, level in levels.items() if factor in study.within})


def _label(study: Study, levels: Combination) -> str:
    """Return all levels in a grid; elsewhere the stratum and what differs from the baseline."""
    varied = [factor for factor in study.factors if factor not in study.within]
    if study.design == "grid" or len(varied) == 1:
        return _text(levels)
    first = baseline_levels(study)
    named = {
        factor: level
        for factor, level in levels.items()
        if factor in study.within or level != first[factor]
    }
    if any(factor in varied for factor in named):
        return _text(named)
    return ", ".join(part for part in (_text(named), BASELINE) if part)


def _text(levels: Combination) -> str:
    return ", ".join(f"{factor}={level}" for factor, level in levels.items())
