"""`ablate new`: a study file from the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NoReturn

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.cli.render import console, writing
from ablate.units import plural

PLAIN = ("question", "metric", "design")
COMMA = re.compile(r",(?![^\[]*\])")  # between levels, not within the brackets of one
# an option, and its key again, with which an error begins: "[command] run: run: …"
TWICE = re.compile(r"^((?:\[\w+\] |--\w+ |--)(\w+)): (?:\w+\.)?\2(?=:| = )")
START = {
    "n_layer": 4,
    "d_model": 128,
    "n_head": 4,
    "n_ctx": 256,
    "corpus": "austen",
    "tokenizer": "byte",
    "tokens": "2M",
    "lr": 1e-3,
}
OF_TEXT = ("corpus", "n_ctx", "tokenizer")  # what a study on images does not start from
PATHS = {"corpus", "tokenizer"}  # may be paths
BESIDE_PRESET = ("corpus", "tokens")  # of START, where a preset brings all else


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The study's name; the file is studies/NAME.toml.")
    ],
    factor: Annotated[
        list[str],
        option(
            "What varies, the baseline first. May be repeated.",
            metavar="NAME=LEVEL,LEVEL",
            autocompletion=complete.levels,
        ),
    ] = [],  # noqa: B006
    within: Annotated[
        list[str],
        option(
            "A factor whose levels form strata. May be repeated.",
            metavar="NAME",
            autocompletion=complete.factors,
        ),
    ] = [],  # noqa: B006
    base: Annotated[
        list[str],
        option(
            "What every run starts from. May be repeated.",
            metavar="NAME=VALUE",
            autocompletion=complete.levels,
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        str | None,
        option(
            "Runs of each cell, by default 5; or pilot=5,resolution=0.01,max=30; or init=8,data=8.",
            metavar="N",
        ),
    ] = None,
    tune: Annotated[
        list[str],
        option(
            "A key of the table tune, such as lr=[1e-4,1e-2]: learning rates are tuned. May be"
            " repeated.",
            metavar="KEY=VALUE",
        ),
    ] = [],  # noqa: B006
    exclude: Annotated[
        list[str],
        option(
            "A combination of levels to leave out. May be repeated.",
            metavar="NAME=LEVEL,NAME=LEVEL",
        ),
    ] = [],  # noqa: B006
    command: Annotated[
        str | None,
        option(
            "A training script of your own, such as 'python train.py'. Options for the factors and"
            " the seed are added, where it has no {placeholder} for them.",
            metavar="TEXT",
        ),
    ] = None,
    keys: Annotated[
        list[str],
        option(
            "A key of the table command, such as metrics=log.csv or gpus=0. May be repeated.",
            "--set",
            metavar="KEY=VALUE",
        ),
    ] = [],  # noqa: B006
    goal: Annotated[
        str | None,
        option("Which direction of a script's metric is better.", metavar="lower|higher"),
    ] = None,
    question: Annotated[
        str | None, option("The question that the report answers.", metavar="TEXT")
    ] = None,
    metric: Annotated[
        str | None, option("The number that decides it; by default loss.", metavar="METRIC")
    ] = None,
    design: Annotated[
        str | None, option("grid, one-factor, …; by default grid.", metavar="DESIGN")
    ] = None,
    origin: Annotated[
        str | None,
        option(
            "A study to start from.", "--from", metavar="STUDY", autocompletion=complete.studies
        ),
    ] = None,
    out: Annotated[Path | None, option("Where to write it.", "--out", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented study file, checked before it is written.

    ablate new depth --factor topology=1,2,5 --factor n_layer=4,12 --within n_layer --seeds 8
    """
    from ablate.errors import AblateError, unknown
    from ablate.evaluation import LABELLED
    from ablate.plan import plan
    from ablate.study.model import reads_images
    from ablate.study.parse import parse
    from ablate.study.write import value, write

    path = out or Path("studies") / f"{name}.toml"
    if path.exists() and not force:
        raise AblateError(
            f"{path} already exists; --force overwrites it, --out FILE writes elsewhere"
        )
    raw = _start(origin, [*factor, *base]) if command is None or origin else _script()
    raw["name"] = name
    raw |= {
        key: value
        for key, value in zip(PLAIN, (question, metric, design), strict=True)
        if value is not None
    }
    if seeds is not None:
        raw["seeds"] = _pairs("--seeds", seeds) if "=" in seeds else value(seeds)
    if tune:
        _tune(raw, tune)
    if exclude:
        raw["exclude"] = [*raw.get("exclude", []), *(_pairs("--exclude", one) for one in exclude)]
    own = command is not None or "command" in raw
    varied, started = _vary(raw, factor, own), _begin(raw, base, own)
    if not own and origin is None and reads_images(raw["base"], raw["factors"]):
        for key in {*OF_TEXT} - varied - started:
            raw["base"].pop(key, None)
        raw["metric"] = metric or LABELLED
    if not own:
        _place(raw, varied | started, path.parent)
    if both := sorted(varied & started):
        raise AblateError(f"{both[0]} is given both by --factor and by --base; keep one of them")
    if not raw["factors"]:
        raise AblateError(
            f"nothing varies: ablate new {name} --factor topology=serial,parallel, the baseline"
            " first; `ablate factors` lists what can vary"
        )
    if strange := next((one for one in within if one not in raw["factors"]), None):
        raise unknown("factor", strange, raw["factors"], f"--within {strange}")
    if within:
        raw["within"] = list(within)
    if command is not None or keys:
        _command(raw, command, keys, path.parent)
    if own:
        from ablate import metrics

        raw["goal"] = goal or raw.get("goal") or metrics.likely_goal(str(raw["metric"]))
        if not raw["goal"]:
            raise AblateError(
                f"--goal lower or higher is missing: the name of {raw['metric']!r} does not say"
                " which is better"
            )
    elif goal is not None:
        raw["goal"] = goal
    raw.setdefault("question", _question(raw))
    text = write(raw)
    with _by_option(path, text, set() if own else varied | started):
        study_plan = plan(parse(text, path))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    pairs = len(study_plan.study.seeds)
    console().print(
        f"{path}: {len(study_plan.cells)} cells × {plural(pairs, 'seed')}. Next:"
        f" ablate plan {quote(str(path))}",
        markup=False,
        soft_wrap=True,
    )


def _start(origin: str | None, given: Sequence[str]) -> dict[str, Any]:
    """Return the tables of the study to start from, or of a small study without factors."""
    import tomllib

    from ablate.components.presets import PRESET
    from ablate.study import find, load

    if origin is None:
        preset = any(text.startswith(f"{PRESET}=") for text in given)
        base = {name: START[name] for name in (BESIDE_PRESET if preset else START)}
        return {"metric": "loss", "design": "grid", "seeds": 5, "base": base, "factors": {}}
    load(origin)  # raises if the file is wrong
    return tomllib.loads(find(origin).read_text(encoding="utf-8-sig"))


def _script() -> dict[str, Any]:
    """Return the tables of a study of a script, without factors."""
    return {
        "metric": "loss",
        "goal": "",
        "design": "grid",
        "seeds": 5,
        "command": {},
        "factors": {},
    }


def _command(raw: dict[str, Any], command: str | None, keys: Sequence[str], folder: Path) -> None:
    """Set [command]; options for the fields and the seed are added where it lacks them."""
    from ablate.study.model import TUNE_KEYS
    from ablate.study.template import placeholders, words
    from ablate.study.write import value

    table = raw.setdefault("command", {})
    if command is not None:
        fields = [*raw.get("base", {}), *raw["factors"]]
        if tune := raw.get("tune"):
            fields += [key for key in tune if key not in TUNE_KEYS]
        for name in fields:
            if placeholders([f"{{{name}}}"]) != [name]:
                _rename(name)
        used = placeholders(words(command))
        missing = [] if "fields" in used else [f for f in (*fields, "seed") if f not in used]
        missing = [name for name in missing if name != "revision"]
        table["run"] = " ".join([command, *(f"--{name}={{{name}}}" for name in missing)])
        if folder.resolve() != Path.cwd():
            table["folder"] = os.path.relpath(Path.cwd(), folder.resolve())
    for text in keys:
        key, rest = _split("--set", text)
        table[key] = value(rest)


def _rename(name: str) -> NoReturn:
    """Refuse a name that no placeholder can have, and say how the script gets its option."""
    from ablate.errors import AblateError

    valid = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
    # a name like optim.lr is one of Hydra, whose options have no dashes
    dashes = "--" if re.fullmatch(r"[\w-]+", name) else ""
    raise AblateError(
        f"{name!r:.80}: a name is letters, digits and underscores; call it {valid:.80}, and write"
        f" its option in --command, such as {dashes}{name:.80}={{{valid:.80}}}"
    )


@contextmanager
def _by_option(path: Path, text: str, given: set[str]) -> Iterator[None]:
    """Name options and keys instead of lines in errors about `text`, which is not yet in `path`.

    Args:
        path: The file to be.
        text: What it would hold.
        given: Fields of options, whose paths are relative to the working directory.
    """
    from ablate.errors import AblateError

    lines = text.splitlines()

    def option_of(match: re.Match[str]) -> str:
        before = lines[: int(match[1])]
        section = next((line.strip("[]") for line in reversed(before) if line.startswith("[")), "")
        key = "" if before[-1].startswith("[") else before[-1].partition(" = ")[0]
        if section in ("base", "factors"):
            return f"--{section.removesuffix('s')} {key}".strip()
        return f"[{section}] {key}".strip() if section else "NAME" if key == "name" else f"--{key}"

    try:
        yield
    except AblateError as error:
        prefix = re.escape(str(path))
        said = re.sub(rf"{prefix}, line (\d+)", option_of, str(error))
        said = re.sub(r"(\[\w+\]) \(\1\)", r"\1", said)  # the name of a table, and where it is
        if given & PATHS & {*said.partition(":")[0].split()}:
            said = said.replace(str(path.parent.resolve()), str(Path.cwd()))
            said = said.replace("the study file's folder", "the working directory")
        raise AblateError(TWICE.sub(r"\1", re.sub(rf"^{prefix}: ", "", said))) from None


def _vary(raw: dict[str, Any], texts: Sequence[str], own: bool) -> set[str]:
    """Set factors ("topology=1,2,5"), remove them from [base], and return their names."""
    from ablate.study.write import value

    names = set()
    for text in texts:
        name, levels = _split("--factor", text)
        raw["factors"][name] = [value(level.strip()) for level in COMMA.split(levels)]
        raw.get("base", {}).pop(name, None)
        if not own:
            _one_budget(raw, name)
        names.add(name)
    return names


def _begin(raw: dict[str, Any], texts: Sequence[str], own: bool) -> set[str]:
    """Set values of [base] ("d_model=256"), remove them as factors, and return their names."""
    from ablate.study.write import value

    names = set()
    for text in texts:
        name, rest = _split("--base", text)
        raw.setdefault("base", {})[name] = value(rest)
        raw["factors"].pop(name, None)
        if not own:
            _one_budget(raw, name)
        names.add(name)
    return names


def _place(raw: dict[str, Any], given: set[str], folder: Path) -> None:
    """Write paths that were given relative to the working directory as the study's folder needs."""

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: placed(part) for key, part in value.items()}
        return _relative(value, folder) if isinstance(value, str) else value

    for name in given & PATHS:
        if name in raw.get("base", {}):
            raw["base"][name] = placed(raw["base"][name])
        if name in raw["factors"]:
            raw["factors"][name] = [placed(level) for level in raw["factors"][name]]


def _relative(spec: str, folder: Path) -> str:
    """Return a path or glob that is there, as it is seen from a folder; anything else unchanged."""
    from ablate.text.corpora import NAMED
    from ablate.text.sources import is_glob

    path = Path(spec.removeprefix("hf:")).expanduser()
    if spec in NAMED or path.is_absolute():
        return spec
    try:
        there = any(Path().glob(str(path))) if is_glob(str(path)) else path.exists()
    except (OSError, ValueError, NotImplementedError):
        return spec
    if not there:
        return spec
    return spec[: len(spec) - len(spec.removeprefix("hf:"))] + os.path.relpath(path, folder)


def _tune(raw: dict[str, Any], texts: Sequence[str]) -> None:
    """Set keys of [tune], and remove the learning rate that every run started from."""
    from ablate.study.write import value

    table = raw.setdefault("tune", {"points": 7, "per": "cell"})
    for text in texts:
        key, rest = _split("--tune", text)
        table[key] = value(rest)
    raw.get("base", {}).pop("lr", None)


def _pairs(option: str, text: str) -> dict[str, Any]:
    """Return the table of "pilot=5,resolution=0.01,max=30"."""
    from ablate.study.write import value

    parts = (_split(option, part) for part in COMMA.split(text))
    return {name: value(rest) for name, rest in parts}


def _one_budget(raw: dict[str, Any], name: str) -> None:
    """Remove other budgets from [base] if `name` is one."""
    from ablate.study.values import BUDGETS

    if name in BUDGETS:
        for other in BUDGETS:
            if other != name:
                raw["base"].pop(other, None)


def _split(option: str, text: str) -> tuple[str, str]:
    from ablate.errors import AblateError

    name, equals, rest = text.partition("=")
    if not equals or not name.strip() or not rest.strip():
        raise AblateError(f"{option} {text}: write {option} NAME=VALUE")
    return name.strip(), rest.strip()


def _question(raw: dict[str, Any]) -> str:
    varied = [name for name in raw["factors"] if name not in raw.get("within", [])]
    return f"Does {' or '.join(varied)} change the {raw.get('metric', 'loss')}?"
