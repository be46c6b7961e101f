"""Random command lines, on sound and spoilt databases: exit code 0, 1 or 2, no traceback, and at
most two seconds of CPU, besides imports and figures.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import re
import shutil
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from launch_helpers import use_stub
from report_study import few_replicates, save_svg  # noqa: F401
from spoilt_databases import allowed, build, chunks, spoil
from study_mutations import HUGE, LEVELS, TEXTS

from ablate import figures
from ablate.board.server import Server
from ablate.cli import app, main, running
from ablate.components import CATALOGUE
from ablate.launch import forecast
from ablate.metrics import METRICS
from ablate.store.questions import QUESTIONS

SEED = 20_261_129
FEW, ALL, CHUNK = 16, 1000, 41

HOSTILE = (
    *(text for text in TEXTS if "\0" not in text),  # which no argument can hold
    *map(str, HUGE),
    *(
        "--",
        "-",
        "-x",
        "--db",
        "--nothing",
        "--=",
        "=",
        "a=b",
        "=x",
        "a=",
        "@x",
        "-1",
        "+1",
        "1e400",
    ),
    *(
        "\udcff",
        "\x1b]0;x\x07",
        "\r\n",
        "%s%n",
        "${HOME}",
        "`id`",
        "$(id)",
        "'",
        '"; DROP TABLE run',
    ),
)
NAMES = ("one", "two", "one.toml", "two.toml", "x.db", "other.db", "quickstart", "scaling", "none")
SQL = (
    *("SELECT 1", "SELECT", "SELECT * FROM runs", "SELECT * FROM nothing", "SELECT ?1, :a, @b, $c"),
    *("DROP TABLE run", "PRAGMA user_version = 7", "ATTACH 'y.db' AS y", "SELECT 1; SELECT 2"),
    *("WITH a AS (SELECT 1) SELECT * FROM a", "SELECT load_extension('x')", "SELECT cell FROM"),
    *("SELECT x'00ff', NULL, 1e999, 'é\u202e'", "VALUES (1), ('x')", "EXPLAIN SELECT 1", ";", "--"),
)
FACTORS = (
    *(
        "topology=serial,parallel",
        "lr=1e-3,1e-2",
        "n_layer=1,2",
        "topology=serial",
        "topology=",
        "a=b",
    ),
    *(
        "norm=pre,pre",
        "lr=nan,inf",
        "n_layer=-1,0",
        "n_layer=1,99999999999",
        "heads=1,2",
        "lr=1e400",
    ),
)
# by the name of a parameter
LIKELY: dict[str, Sequence[str]] = {
    "db": (
        *["x.db"] * 9,
        "other.db",
        "no.db",
        "fifo",
        "text",
        ".",
        "words.txt",
        "no/x.db",
        "/dev/null",
    ),
    "other": ("other.db", "x.db", "no.db", "words.txt", "fifo", "text"),
    "asked": (*SQL, *QUESTIONS, "-"),
    "words": ("one", "two", "loss", "study=one", "1", "lr"),
    "file": ("o.csv", "o.json", "o.tsv.gz", "o.jsonl", "o.parquet", "-", "o", "o.xyz", "no/o.csv"),
    "out": ("out", "words.txt", "no/out", ".", "fifo"),
    "factor": FACTORS,
    "base": (
        "tokens=1M",
        "tokens=x",
        "corpus=text",
        "corpus=fifo",
        "lr=1e-3",
        "n_layer=2",
        "nothing=1",
    ),
    "name": (*CATALOGUE, "x", "optimizer"),
    "csv": ("table.csv", "words.txt", "text", "x.db", "-", "fifo", "no.csv"),
    "metric": (*METRICS, "loss@1", "accuracy"),
    "seeds": (
        "3",
        "2,4",
        "init=3,data=2",
        "pilot=2,resolution=0.1,max=5",
        "0",
        "1000000",
        "pilot=2",
    ),
    "within": ("n_layer", "topology", "seed"),
    "tune": ("1e-4,1e-2", "lr=1e-4,1e-2", "1e-2,1e-4"),
    "exclude": ("topology=parallel,n_layer=2", "topology=serial"),
    "study": (*NAMES, *NAMES, "words.txt", "fifo", ".", "text"),
    "rename": ("one=three", "two=one", "one=one"),
    **dict.fromkeys(
        ("n", "d", "flops", "loss"), ("n", "d", "n*d", "6*n*d", "loss", "log(n)", "1/0")
    ),
    **dict.fromkeys(("run", "first", "second"), ("1", "2", "7", "0", "999", "a", "-1")),
    "what": ("runs", "curves", "finals", "pairs", "effects", "text", "one.toml", "fifo", "austen"),
    "as_": ("text", "json"),
    "role": ("compare", "tune", "all"),
    "effect": ("0.1", "0.01", "0", "1e9"),
    "chance": ("0.8", "0.99", "1", "0"),
    "where": ("name=a", "n=100", "name"),
    "predict": ("N=3.3e9,D=5e10", "C=1e20", "N=0,D=0"),
    "group": ("name", "topology", "nothing"),
    "hold_out": ("largest", "2", "0.2", "none"),
    "baseline": ("a", "serial"),
    "plot": ("c.png", "out", "fifo", "c.xyz"),
    "origin": NAMES,
    "keep": ("2", "50", "1", "1000000000"),
    "question": ("Which?",),
}
TABLE = "n,d,loss,name\n" + "".join(
    f"{n},{d},{2 + n**-0.3 + d**-0.3},{'ab'[n % 2]}\n"
    for n in (100, 1001, 10_000, 100_001)
    for d in (10_000, 100_000, 1_000_000)
)


def commands() -> Iterator[tuple[list[str], click.Command]]:
    """Every command with the words that call it."""

    def below(command: Any, words: list[str]) -> Iterator[tuple[list[str], click.Command]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, [*words, name])
        yield words, command

    return below(typer.main.get_command(app), [])


COMMANDS = list(commands())


def line(chance: random.Random) -> list[str]:
    """Return a random command line: likely values most of the time, hostile ones else."""
    words, command = chance.choice(COMMANDS)
    line = list(words)

    def value(parameter: Any) -> str:
        if chance.random() < 0.12:
            return chance.choice(HOSTILE)
        words = [word for word in re.split(r"[|<>,\[\]…]+", parameter.metavar or "") if word]
        choices = [*LIKELY.get(parameter.name, ()), *(words if len(words) > 1 else ())]
        return chance.choice(choices or (*HOSTILE, "1", "0.5", "loss", "2"))

    for parameter in command.params:
        names = [name for name in parameter.opts if name.startswith("-")]
        if names and "completion" in names[0]:  # Typer's own
            continue
        if not names:
            number = 1 if parameter.nargs == 1 else chance.randint(0, 3)
            if parameter.required or chance.random() < 0.7:
                line += [value(parameter) for _ in range(number if chance.random() < 0.95 else 2)]
        elif getattr(parameter, "is_flag", False):
            line += [names[0]] * (chance.random() < 0.2)
        elif chance.random() < 0.25:
            for _ in range(2 if chance.random() < 0.1 else 1):
                given = value(parameter)
                line += [f"{names[0]}={given}"] if chance.random() < 0.5 else [names[0], given]
    if chance.random() < 0.1:
        line.insert(chance.randint(0, len(line)), chance.choice((*HOSTILE, *LEVELS)))
    if line and chance.random() < 0.05:
        del line[chance.randrange(len(line))]
    if chance.random() < 0.05:
        line.append("--help")
    return line


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "here"
    folder.mkdir()
    build(folder)
    (folder / "words.txt").write_text("some words and more of them\n" * 3000)
    (folder / "table.csv").write_text(TABLE)
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("a document\n" * 9000)
    return folder


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process whose home is here, with stub workers and no GPU, figures of one format, a watch
    and a board that end at once, and no Datasette, whose server would take its place.
    """
    use_stub(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("ABLATE_DB", "x.db")
    monkeypatch.setattr(figures, "save", lambda figure, stem, *_: save_svg(figure, stem))
    monkeypatch.setattr(forecast, "SECONDS", 0.05)

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "time", types.SimpleNamespace(sleep=ended))
    monkeypatch.setattr(Server, "serve_forever", ended)
    find = importlib.util.find_spec

    def found(name: str, *more: Any) -> Any:
        return None if name == "datasette" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    return tmp_path


def outcome(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, stdin: str) -> Any:
    """Run a command; return its exit code, or the exception that is not one of a command."""
    monkeypatch.setattr(sys, "argv", ["ablate", *arguments])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    except BaseException as error:
        return error
    return 0


def complaints(err: str) -> int:
    """How many lines of standard error are errors; warnings of libraries may stand beside them."""
    return sum(line.startswith("ablate: ") for line in err.splitlines())


@pytest.mark.usefixtures("few_replicates")
@pytest.mark.parametrize("cases", chunks(FEW, ALL, CHUNK))
def test_a_command_line_is_an_answer_or_one_line(
    original: Path,
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    cases: Sequence[int],
) -> None:
    failed, slow, codes = [], [], dict.fromkeys(range(3), 0)
    for case in (None, *cases):
        chance = random.Random(SEED + (case or 0))
        folder = alone / "below" / str(case) / "here"
        shutil.copytree(original, folder)
        os.mkfifo(folder / "fifo")
        monkeypatch.chdir(folder)
        if case is None:  # imports what commands import
            for each in (
                ("report", "one"),
                ("plan", "one.toml", "--device=cpu"),
                ("fit", "--csv=table.csv", "--n=n", "--d=d", "--loss=loss"),
            ):
                assert outcome(each, monkeypatch, "") == 0, capfd.readouterr()
            continue
        spoilt = spoil(folder / "x.db", chance) if chance.random() < 0.5 else "sound"
        arguments = line(chance)
        begun = time.process_time()
        code = outcome(arguments, monkeypatch, chance.choice(("", *SQL, TABLE)))
        took = time.process_time() - begun
        err = capfd.readouterr().err
        said = f"case {case}: {spoilt}: {arguments!r:.300}"
        if isinstance(code, BaseException):
            last = traceback.extract_tb(code.__traceback__)[-1]
            failed.append(f"{said}\n    {code!r:.200} ({last.filename}:{last.lineno})")
        elif code not in codes or "Traceback (most" in err:
            failed.append(f"{said}\n    exit code {code}: {err[-300:]}")
        elif code == 2 and arguments not in ([], ["db"]) and complaints(err) != 1:
            failed.append(f"{said}\n    not one line: {err[-300:]}")
        else:
            codes[code] += 1
        if took > allowed(folder):
            slow.append(f"{said}\n    {took:.1f} s")
        monkeypatch.chdir(alone)
        shutil.rmtree(folder.parent)
    print(f"exit codes: {codes}")
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(failed)
    assert not slow, "\n".join(slow)
    assert min(codes[0], codes[2]) > len(cases) / 10, f"too shallow: {codes}"
