"""The cells of a study of a training script: its fields, and the version of its code."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate import metrics, snapshot
from ablate.code import Code
from ablate.errors import AblateError
from ablate.kinds import SEEDS, Run, kind
from ablate.kinds.words import words_of
from ablate.plan.model import Cell, Plan, Resolved, Text
from ablate.study import Fields, Study
from ablate.study.command import REVISION
from ablate.study.model import Command
from ablate.study.source import Source, located
from ablate.study.template import placeholders
from ablate.units import duration, listed

WORK_TREE = "work tree"  # the name of code as it is on the disk
# programs that read the code of a run, or start those that do, and are none themselves
_PROGRAM = re.compile(
    r"(i?python|pypy|(ba|da|z|k|fi)?sh|julia|Rscript|R|node|perl|ruby|lua|env|uv|torchrun"
    r"|accelerate|deepspeed|srun|mpirun|mpiexec|nohup|nice|ionice|numactl|taskset|chrt|setsid"
    r"|stdbuf|time|timeout|apptainer|singularity|poetry|pixi|conda|mamba|micromamba)[\d.]*"
)
SCRIPTS = (".py", ".sh", ".R", ".jl", ".pl", ".rb", ".lua", ".js")  # ends of their names


class CommandResolver:
    """Resolves the cells of one study; see `ablate.plan.model.Resolver`."""

    def __init__(self, study: Study):
        assert study.command
        self.study, self.command = study, study.command
        self.sources: dict[str, str] = {}
        self.texts: dict[tuple[str, str], Text] = {}
        self._taken: dict[str, snapshot.Snapshot] = {}  # revision, "" for none → code
        self._source = Source(study.path, study.toml)
        self._run: Run | None = None  # the first
        with located(self._source, "command", "run"):
            _check_words(self.command, revisions=self._varies_revision)

    def levels(self, chosen: dict[str, str]) -> dict[str, str]:
        """See `Resolver.levels`: every field has an effect."""
        return dict(chosen)

    def resolve(self, chosen: dict[str, str], baseline: Run | None) -> Resolved:
        """See `Resolver.resolve`."""
        fields: Fields = dict(self.study.base)
        for factor, level in chosen.items():
            fields |= self.study.factors[factor][level]
        if tune := self.study.tune:
            fields[tune.field] = tune.rate(0)  # until the study's rate is known
        if self.study.crossed:
            fields |= dict.fromkeys(SEEDS)
        fields["command"] = json.dumps(self.command.words)
        fields["code"] = self._code(str(fields.get(REVISION, "")), chosen)
        reads = {"pattern": self.command.patterns, "metrics": self.command.metrics}
        if any(reads.values()):  # other numbers are read from the same output
            fields["reads"] = json.dumps(reads)
        run = Run("command", kind("command").check(fields))
        self._run = self._run or run
        return Resolved(run)

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `ablate.kinds.process.Settings`."""
        name, at = metrics.final(self.study.reported)
        split = "@" in self.study.metric
        return {
            "folder": str(self.command.folder),
            "code": self._entries,
            "metrics": self.command.metrics,
            "patterns": self.command.patterns,
            "metric": name,
            "goal": self.study.goal,
            "at": at if split else None,
            "limit": self.command.limit,
        }

    @property
    def about(self) -> list[str]:
        """Lines on the command line of the first run, its code and its limit."""
        assert self._run
        words = words_of(self._run, "OUT", "CHECKPOINTS")
        lines = [f"Command, in {self.command.folder}: {' '.join(words)}"]
        for revision, taken in self._taken.items():
            lines += _about_code(revision, taken)
        if self.command.code is None and any(not one.commit for one in self._taken.values()):
            lines.append(
                "Other files that the command reads, such as configuration, make no new runs when"
                " they change, unless [command] code lists them"
            )
        if all(self._taken) and self._entries:  # only revisions
            left_out = snapshot.take(self.command.folder, self._entries).changed
            if left_out:
                lines.append(
                    f"Warning: uncommitted changes in {listed(left_out, most=5)} are in no"
                    " revision: no run is made with them"
                )
        if not self._entries:
            lines.append(
                "Warning: no code is part of a run's identity, since the command line names no file"
                " here and the folder is no git work tree: name it in [command] code"
            )
        lines.append(f"What decides: {deciding(self.study.metric)}")
        if self.command.limit is not None:
            lines.append(f"A run may take {duration(self.command.limit)}")
        return lines

    @property
    def code(self) -> list[Code]:
        """The versions of the code, each with its commit and what differs from it."""
        return [
            Code(
                revision or WORK_TREE,
                taken.version,
                taken.diff or None,
                {"commit": taken.commit, "files": self._entries, "changed": taken.changed},
            )
            for revision, taken in self._taken.items()
            if taken.version
        ]

    @property
    def _varies_revision(self) -> bool:
        varied = (fields for levels in self.study.factors.values() for fields in levels.values())
        return REVISION in self.study.base or any(REVISION in fields for fields in varied)

    @cached_property
    def _entries(self) -> tuple[str, ...]:
        """What belongs to the identity of a run."""
        if self.command.code is not None:
            return self.command.code
        if snapshot.toplevel(self.command.folder):
            return (".",)
        return tuple(dict.fromkeys(_files(self.command)))

    def _code(self, revision: str, chosen: Mapping[str, str]) -> str:
        """Return the version of the code, of a git revision where there is one."""
        if revision not in self._taken:
            place = ("factors", REVISION, revision) if REVISION in self.study.factors else ("base",)
            with located(self._source, *(place if revision else ("command", "code"))):
                folder = self.command.folder
                commit = snapshot.commit_of(folder, revision) if revision else ""
                entries = self._entries
                taken = snapshot.take(folder, entries, commit) if entries else snapshot.Snapshot("")
            self._taken[revision] = taken
            self.sources[taken.version] = f"{folder}@{commit}" if commit else str(folder)
        return self._taken[revision].version


def _files(command: Command) -> Iterator[str]:
    """Yield the files that a command line names, and the modules beside them that they import."""
    folder, words = command.folder, command.words
    before_script = True  # after it, -m is an option of the script
    for k, word in enumerate(words):
        if placeholders([word]):
            continue
        path, named = folder / word, []
        if _PROGRAM.fullmatch(path.name):  # also after the image of a container, or a wrapper
            before_script = True
        elif path.is_file():
            before_script = False
            yield word
            named = snapshot.modules(path.parent, [path])[1:] if path.suffix == ".py" else []
        elif before_script and word == "-m" and k + 1 < len(words):  # python -m package.module
            name = words[k + 1]
            files = [*snapshot.module(folder, name), *snapshot.module(folder, f"{name}.__main__")]
            named = snapshot.modules(folder, files)
        for file in named:
            yield str(file) if Path(word).is_absolute() else os.path.relpath(file, folder)


def deciding(metric: str) -> str:
    """Return in words which value of a run decides a study, for its metric as the study has it."""
    name, at = metrics.final(metric)
    if "@" in metric:
        return f"the value of {name} at step {at:g}"
    if metric.startswith("best "):
        name = metric.removeprefix("best ")
        return f"the best value of {name} over a run, which flatters a noisy curve"
    return f"the last value of {name}"


def _about_code(revision: str, taken: snapshot.Snapshot) -> Iterator[str]:
    named = f"{revision}, " if revision else ""
    commit = f"commit {taken.commit[:12]}, " if taken.commit else ""
    if taken.version:
        files = "" if commit else f" of {listed(taken.files, most=10)}"
        yield f"Code: {named}{commit}version {taken.version[:12]}{files}"
    if taken.changed:
        yield (
            f"Warning: uncommitted changes in {listed(taken.changed, most=5)}: runs are made with"
            " them, and the study keeps the diff; commit them to give the version a name"
        )
    if taken.untracked:
        yield (
            f"Warning: git does not track {listed(taken.untracked, most=5)}: a change there makes"
            " no new runs; `git add` them if the command reads them"
        )


def _check_words(command: Command, *, revisions: bool) -> None:
    """Refuse a program or a script that does not exist.

    Raises:
        AblateError: It names what was not found, and where it was looked for.
    """
    program = command.words[0]
    local = command.folder / program if "/" in program else Path(program)
    if not placeholders([program]) and not revisions and shutil.which(str(local)) is None:
        where = command.folder if "/" in program else "the folders of PATH"
        raise AblateError(f"run: there is no program {program!r} in {where}")
    if revisions:
        return  # each revision has its own files
    for word in command.words[1:]:
        if word.startswith("-") or placeholders([word]) or not word.endswith(SCRIPTS):
            continue
        if not (command.folder / word).is_file():
            raise AblateError(
                f"run: there is no script {word!r} in {command.folder}, where the command runs;"
                " [command] folder says where"
            )
        return


def edited(plan: Plan) -> bool:
    """Return whether the code of a command is no longer that with which its runs were planned."""
    command = plan.study.command
    planned = next((one for one in plan.code if one.name == WORK_TREE), None)
    if command is None or planned is None:
        return False
    try:
        return snapshot.take(command.folder, planned.about["files"]).version != planned.version
    except AblateError:  # files are gone
        return True


def notes(study: Study, cells: Sequence[Cell], texts: Sequence[Text]) -> Iterator[str]:
    """Yield that the command line does not have the seed, where it does not."""
    assert study.command
    if not {"seed", "fields", "init_seed"} & set(placeholders(study.command.words)):
        yield (
            "The command line has no {seed}: the script must read ABLATE_SEED from its environment,"
            " else all seeds give the same run"
        )
