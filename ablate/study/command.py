"""[command]: a training script of the user's own, and the keys that its studies may set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ablate.errors import AblateError, unknown, written
from ablate.study.levels import Factors
from ablate.study.model import Command, Fields
from ablate.study.names import FreeNames
from ablate.study.source import Source, located
from ablate.study.tables import table_of
from ablate.study.template import check_no_shell, placeholders, words

GIVEN = {  # placeholders that are no fields
    "seed": "the seed of the run, which the study's `seeds` sets",
    "init_seed": "the seed of initialisation, where seeds = { init, data }",
    "data_seed": "the seed of the data order, where seeds = { init, data }",
    "out": "a folder of the run",
    "checkpoints": "a folder of the run that is kept until it has ended",
    "fields": "all fields as JSON",
}
SECONDS = "train_seconds"  # final of a run: the time of its script
OF_RUNS = (  # what ablate says itself of a run of a script; no metric has such a name
    *("study", "cell", "stratum", "role", "run", "key", "status", "diverged_at", "seed", "metric"),
    *("tokens", "n_params", "n_params_body", "flops", "device_seconds", "attempts", SECONDS),
)
OWN = ("command", "code", "reads")  # fields of the runs of a command
REVISION = "revision"  # the field that names a git revision
_UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)")


class CommandTable(BaseModel):
    """The keys of [command]."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str = Field(
        description="the command line: {NAME} is a factor or a field of [base]; also {seed}, {out}"
    )
    folder: str = Field(
        ".", description="where it runs, seen from the study file; by default the file's folder"
    )
    code: list[str] | None = Field(
        None,
        min_length=1,
        description=(
            "what belongs to a run's identity: folders of a git work tree, files, globs, seen from"
            " `folder`; by default the work tree, or the script and the modules beside it that it"
            " imports"
        ),
    )
    gpus: int | float | None = Field(
        None,
        ge=0,
        le=1024,
        description="GPUs of a run, such as 0.25 for four runs a GPU; by default 1 if there is any",
    )
    cpus: int = Field(1, ge=1, le=4096, description="cores of a run, where it has no GPU")
    metrics: str | list[str] = Field(
        [], description="files in {out} that it writes its numbers to, or globs"
    )
    pattern: str | list[str] = Field(
        [], description="regular expressions with named groups, for numbers that it prints"
    )
    at: str | int = Field(
        "last", description='the value that decides: "last", "best", or that of a step'
    )
    limit: str | int | float | None = Field(
        None, description='the most time of a run, such as "2h" or "90min"'
    )


class CommandNames(FreeNames):
    """Fields of a command; see `names.Names`."""

    def check_factor(self, name: str) -> None:
        """See `Names.check_factor`."""
        if name in (*GIVEN, *OWN):
            what = GIVEN.get(name, "a field of every command")
            raise AblateError(f"{name} is {what}; give this field another name")
        super().check_factor(name)

    def value(self, name: str, raw: object) -> Any:
        """See `Names.value`."""
        raw = super().value(name, raw)
        if isinstance(raw, str) and "\0" in raw:
            raise AblateError(f"{name} = {raw!r:.80}: no command line can hold this text")
        if name == REVISION and not isinstance(raw, str):
            raise AblateError(f"{name} = {written(raw):.80}: a git revision is text")
        return raw

    def tuned(self, name: str) -> tuple[type | None, bool]:
        """See `Names.tuned`."""
        if name == REVISION:
            raise AblateError(f"{name} is text, and [tune] finds a number")
        return super().tuned(name)


def parse(source: Source, raw: Mapping[str, Any]) -> tuple[Command, str]:
    """Return [command], and which value of the metric decides, as `CommandTable.at` has it.

    Raises:
        AblateError: With the line of what is not valid.
    """
    table = table_of(source, CommandTable, raw, "command", "[command]")
    with located(source, "command", "run"):
        template = words(table.run)
        check_no_shell(template)
    patterns = _listed(table.pattern)
    for pattern in patterns:
        with located(source, "command", "pattern"):
            _check_pattern(pattern)
    folder = (source.path.parent / Path(table.folder).expanduser()).resolve()
    if not folder.is_dir():
        raise AblateError(
            f"{source.where('command', 'folder')}: command.folder = {table.folder!r}: there is no"
            f" folder {folder}"
        )
    if table.gpus is not None and table.gpus > 1 and table.gpus != int(table.gpus):
        raise AblateError(
            f"{source.where('command', 'gpus')}: command.gpus = {table.gpus}: a whole number, or a"
            " share of one GPU such as 0.5"
        )
    if isinstance(table.at, str) and table.at not in ("last", "best"):
        raise unknown(
            "value of command.at", table.at, ["last", "best", "5000"], source.where("command", "at")
        )
    if isinstance(table.at, int) and table.at < 0:
        raise AblateError(
            f"{source.where('command', 'at')}: command.at = {table.at}: a step is at least 0"
        )
    with located(source, "command", "limit"):
        limit = None if table.limit is None else _seconds(table.limit)
    command = Command(
        template,
        folder,
        None if table.code is None else tuple(table.code),
        table.gpus,
        table.cpus,
        _listed(table.metrics),
        patterns,
        limit,
    )
    return command, str(table.at)


def metric_of(source: Source, name: str, at: str) -> str:
    """Return the metric of a study: "val_loss", "best val_loss", "val_loss@5000".

    Raises:
        AblateError: The name has no place in a results database.
    """
    if not name.strip() or name != name.strip() or not name.isprintable() or "@" in name:
        raise AblateError(
            f"{source.where('metric')}: metric = {name!r:.80}: a name that the script reports,"
            " without @"
        )
    return {"last": name, "best": best(name)}.get(at, f"{name}@{at}")


def check_metric(source: Source, name: str) -> None:
    """Refuse a metric of a script with the name of a number that ablate sets for its runs.

    Raises:
        AblateError: The message says what to do.
    """
    why = ""
    if name.lower() in OF_RUNS:
        why = f"runs have a column {name.lower()!r} of ablate's own"
    elif name.startswith(best("")):
        why = 'at = "best" under [command] makes this name of the best value over a run'
    if why:
        raise AblateError(
            f"{source.where('metric')}: metric = {name!r:.80}: {why}; rename it in the script, or"
            " read it under another name by [command] pattern"
        )


def of_script(name: str) -> str:
    """Return where a number of a script is kept whose name is one that ablate sets itself."""
    return f"{name} of the script"


def best(name: str) -> str:
    """Return what the best value of a metric is called."""
    return f"best {name}"


def check_placeholders(
    source: Source,
    command: Command,
    base: Fields,
    factors: Factors,
    extra: Iterable[str],
    *,
    crossed: bool,
) -> None:
    """Refuse a placeholder that is no field, and a field that no placeholder uses.

    Args:
        source: The study file.
        command: Its [command].
        base: [base].
        factors: [factors].
        extra: Other fields: what [tune] finds.
        crossed: Whether seeds of initialisation and data order are crossed.
    """
    varied = {
        field for levels in factors.values() for fields in levels.values() for field in fields
    }
    known = [*dict.fromkeys((*base, *sorted(varied), *extra))]
    used = placeholders(command.words)
    location = source.where("command", "run")
    for name in used:
        if name not in known and name not in GIVEN:
            raise AblateError(
                f"{unknown('placeholder', name, [*known, *GIVEN], location)} A field is given in"
                " [base] or varies in [factors]."
            )
    for name in known:
        if name not in used and "fields" not in used and name != REVISION:
            where = ("base", name) if name in base else ("factors", name)
            raise AblateError(
                f"{source.where(*where)}: {name} has no effect: {{{name}}} is not in [command] run"
                f" ({location}); add it there, such as --{name} {{{name}}}"
            )
    if crossed and not {"init_seed", "data_seed"} <= set(used):
        raise AblateError(
            f"{location}: seeds = {{ init, data }} needs {{init_seed}} and {{data_seed}} in run"
        )


def _listed(one: str | list[str]) -> tuple[str, ...]:
    return (one,) if isinstance(one, str) else tuple(one)


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise AblateError(f"pattern = {pattern!r:.80}: {error}") from None
    if not groups:
        raise AblateError(
            f"pattern = {pattern!r:.80}: no group has a name; write (?P<val_loss>\\S+)"
        )
    if SECONDS in groups:
        raise AblateError(
            f"pattern = {pattern!r:.80}: ablate measures {SECONDS} itself, the time of the script;"
            " give this group another name"
        )


def _seconds(raw: str | int | float) -> float:
    found = _TIME.fullmatch(str(raw).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= 1e9:
        raise AblateError(f'limit = {raw!r:.80}: a time is wanted, such as "2h", "90min" or 3600')
    return seconds
