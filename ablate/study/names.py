"""Which keys [base], [factors] and named levels have, for each kind of run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from ablate import metrics
from ablate.components import CATALOGUE
from ablate.components.base import TAKEN, check_name
from ablate.components.presets import PRESET, preset
from ablate.config import field_info
from ablate.errors import AblateError, own_name, unknown, written
from ablate.study.model import TUNE_KEYS
from ablate.study.source import Source, located
from ablate.study.values import (
    BUDGETS,
    CALLED,
    FOLLOWS,
    LARGEST,
    field_value,
    label,
    number,
    settable,
)

# table of a study file → group of the factors that only studies with this table have
OF_TABLE = {"finetune": "fine-tuning", "start": "start"}


class Names(Protocol):
    """The keys of one kind and their values."""

    def check(self, source: Source, name: str, *path: object) -> None:
        """Check that a study may set a key.

        Raises:
            AblateError: With its line, if it may not.
        """
        ...

    def check_factor(self, name: str) -> None:
        """Check the name of a factor whose levels have names of their own.

        Raises:
            AblateError: Without a line; see `located`.
        """
        ...

    def value(self, name: str, raw: object) -> Any:
        """Return the value of a key for what a file holds.

        Raises:
            AblateError: Without a line; see `located`.
        """
        ...

    def level(self, name: str, raw: object) -> str:
        """Return the label of a level of the factor `name` for what a file holds."""
        ...

    def tuned(self, name: str) -> tuple[type | None, bool]:
        """Return the type of a number that [tune] may find, and whether a search may leave the
        range of the study file.

        The type is int, float, or None if that range decides.

        Raises:
            AblateError: Without a line, if [tune] may not find this key.
        """
        ...

    def is_ladder(self, name: str, raw: object) -> bool:
        """Return whether a factor is the ladder of sizes of `ablate.study.levels`."""
        ...

    def fields(self, name: str, raw: object) -> Mapping[str, object] | None:
        """Return the fields that a named level sets for what a file holds; None if that is wrong.

        Args:
            name: The factor.
            raw: The level's table or value.
        """
        ...


class TransformerNames:
    """The fields of a transformer, budgets and the fields of components; see `Names`.

    Args:
        tables: Tables of `OF_TABLE` that the study has.
    """

    def __init__(self, tables: Collection[str] = ()):
        self._tables = tables

    def check(self, source: Source, name: str, *path: object) -> None:
        """See `Names.check`."""
        if name in FOLLOWS:
            raise AblateError(f"{source.where(*path)}: {name} {FOLLOWS[name]}")
        for table, group in OF_TABLE.items():
            if name in CATALOGUE and CATALOGUE[name].group == group and table not in self._tables:
                what = {
                    "finetune": "fine-tuning; add a table [finetune] with the task",
                    "start": "given weights; add a table [start] with `from`",
                }[table]
                raise AblateError(f"{source.where(*path)}: {name} is only for {what}")
        choices = [*settable(), PRESET]
        if name not in choices:
            error = unknown("key", name, choices, source.where(*path), "ablate factors")
            if field := own_name(name, CALLED):
                meaning = (BUDGETS.get(field) or CATALOGUE[field].meaning).rstrip(".")
                error.instead(f"give {field} instead: {meaning}")
            raise error

    def check_factor(self, name: str) -> None:
        """See `Names.check_factor`."""
        if name in CATALOGUE or name in TAKEN:
            raise AblateError(
                f"a factor with named levels cannot be called {name!r}: results have a column of"
                " that name"
            )
        if not name.isidentifier():
            raise AblateError(f"factor {name!r}: a name is letters, digits and underscores")

    def value(self, name: str, raw: object) -> Any:
        """See `Names.value`."""
        if name == PRESET:
            preset(raw)
            return raw
        if name == "tokens" and "start" in self._tables and number(name, raw) == 0:
            return 0  # given weights are evaluated at once
        return field_value(name, raw)

    def level(self, name: str, raw: object) -> str:
        """See `Names.level`."""
        has_levels = name in CATALOGUE and CATALOGUE[name].choice
        return CATALOGUE[name].canonical(raw) if has_levels else label(raw)

    def tuned(self, name: str) -> tuple[type | None, bool]:
        """See `Names.tuned`: numbers that decide no size, and own fields of components.

        A search for a learning rate may leave the range of the file.
        """
        numbers = {
            other: own.type if own else float
            for other in settable()
            # a share of channels is valid where it makes an even number of them
            if other not in BUDGETS and other != "rope_share"
            for own in [CATALOGUE[other].field]
            # values of a tokenizer make other tokens, those of a metric other numbers
            if "tokenizer" not in CATALOGUE[other].needs
            and CATALOGUE[other].group != metrics.GROUP
            and ((own and own.type in (int, float)) or field_info(other).annotation is float)
        }
        if name in numbers:
            return numbers[name], CATALOGUE[name].field is None or name == "finetune_lr"
        if name in settable():
            raise AblateError(
                f"[tune] cannot find {name}; it may find {', '.join(numbers)}, or a number that a"
                f" level of your own declares; make {name} a factor"
            )
        raise unknown("key of [tune]", name, [*numbers, *TUNE_KEYS])

    def is_ladder(self, name: str, raw: object) -> bool:
        """See `Names.is_ladder`."""
        return name == "size" and isinstance(raw, dict) and isinstance(raw.get("params"), list)

    def fields(self, name: str, raw: object) -> Mapping[str, object] | None:
        """See `Names.fields`."""
        return raw if isinstance(raw, dict) else None


class FreeNames:
    """Fields with names of the user's own: numbers, truth values and text; see `Names`."""

    def check(self, source: Source, name: str, *path: object) -> None:
        """See `Names.check`."""
        with located(source, *path):
            self.check_factor(name)

    def check_factor(self, name: str) -> None:
        """See `Names.check_factor`."""
        check_name(name)

    def value(self, name: str, raw: object) -> Any:
        """See `Names.value`."""
        if isinstance(raw, int | float) and not -LARGEST <= raw <= LARGEST:
            raise AblateError(f"{name} = {written(raw):.80}: a number of at most 1e30 is wanted")
        if not isinstance(raw, bool | int | float | str):
            raise AblateError(
                f"{name} = {written(raw):.80}: a number, true, false or text is wanted"
            )
        return raw

    def level(self, name: str, raw: object) -> str:
        """See `Names.level`."""
        return label(raw)

    def tuned(self, name: str) -> tuple[type | None, bool]:
        """See `Names.tuned`."""
        self.check_factor(name)
        return None, True

    def is_ladder(self, name: str, raw: object) -> bool:
        """See `Names.is_ladder`."""
        return False

    def fields(self, name: str, raw: object) -> Mapping[str, object] | None:
        """See `Names.fields`. A level that is no table is the value of the factor's own field."""
        return raw if isinstance(raw, dict) else {name: raw}
