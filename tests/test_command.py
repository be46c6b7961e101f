"""[command]: what a study file may say of a script, and what its runs are known by."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Run as Command
from cli_helpers import git, refused
from scipy import stats as scipy_stats

from ablate import snapshot, stats, store
from ablate.components import CATALOGUE
from ablate.errors import AblateError
from ablate.kinds import Run
from ablate.kinds.words import words_of
from ablate.plan import Plan, plan
from ablate.store.register import register
from ablate.study.command import OF_RUNS, SECONDS
from ablate.study.parse import parse
from ablate.study.template import check_no_shell, words

GOOD: dict[str, str] = {
    "name": '"own"',
    "question": '"Which?"',
    "metric": '"val_loss"',
    "goal": '"lower"',
    "seeds": "3",
}
LIB = "lib/__init__.py lib/net.py lib/norm.py"  # what lib.net imports in a test
RUN = f'"{sys.executable} train.py --norm {{norm}} --lr {{lr}} --seed {{seed}}"'


def study(
    folder: Path,
    top: dict[str, str | None] | None = None,
    *,
    run: str = RUN,
    rest: str = "",
    base: str = "lr = 0.1",
    factors: str = "norm = [false, true]",
    command: str = "",
) -> Plan:
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text("print(1)\n")
    lines = [
        f"{key} = {value}" for key, value in {**GOOD, **(top or {})}.items() if value is not None
    ]
    text = "\n".join(
        [*lines, "[command]", f"run = {run}", command, "[base]", base, "[factors]", factors, rest]
    )
    path = folder / "own.toml"
    path.write_text(text)
    return plan(parse(text, path))


def line(folder: Path, made: Plan, cell: int = 0) -> list[str]:
    return words_of(made.cells[cell].run, "OUT", "CHECK")


def test_a_run_is_its_command_line(tmp_path: Path) -> None:
    made = study(tmp_path)
    assert [cell.label for cell in made.cells] == ["norm=false", "norm=true"]
    assert line(tmp_path, made, 1)[1:] == [
        *["train.py", "--norm", "true", "--lr", "0.1", "--seed", "0"]
    ]
    run = made.cells[0].run
    assert run.cost.tokens is None and run.config is None
    assert len({one.run.key for one in made.runs}) == 6


def test_values_are_inserted_as_they_are_and_words_are_split(tmp_path: Path) -> None:
    made = study(
        tmp_path,
        run="'" + f'{sys.executable} -c "x {{{{}}}}" {{*flag}} a={{text}} {{out}}/x' + "'",
        base='text = "two words; $HOME"',
        factors='flag = { off = "", on = "--b \'c d\'" }',
    )
    assert line(tmp_path, made)[1:] == ["-c", "x {}", "a=two words; $HOME", "OUT/x"]
    assert line(tmp_path, made, 1)[1:] == [
        *("-c", "x {}", "--b", "c d", "a=two words; $HOME", "OUT/x")
    ]


def test_a_level_of_empty_text_has_a_name(tmp_path: Path) -> None:
    factors = 'norm = ["", "a"]\nlr = [1, 2]'
    made = study(tmp_path, base="", factors=factors, rest='[[exclude]]\nnorm = ""\nlr = 2')
    assert [cell.levels["norm"] for cell in made.cells] == ['""', "a", "a"]
    assert made.cells[0].label == 'norm="", lr=1'
    assert line(tmp_path, made)[2:4] == ["--norm", ""]


def test_named_levels_set_several_fields(tmp_path: Path) -> None:
    made = study(
        tmp_path,
        factors="size = { a = { norm = false, lr = 1 }, b = { norm = true, lr = 2.5 } }",
        base="",
    )
    assert line(tmp_path, made, 1)[2:] == ["--norm", "true", "--lr", "2.5", "--seed", "0"]


@pytest.mark.parametrize(
    ("words_of_error", "changes"),
    [
        (["unknown placeholder 'lrr'", "'lr'"], {"run": RUN.replace("{lr}", "{lrr}")}),
        (["lr has no effect", "{lr}", "line"], {"run": RUN.replace("--lr {lr}", "")}),
        (["norm has no effect"], {"run": RUN.replace("--norm {norm}", "")}),
        (["no script 'tain.py'", "folder"], {"run": RUN.replace("train.py", "tain.py")}),
        (["no program 'pyhton'"], {"run": '"pyhton train.py {norm} {lr}"'}),
        (["goal is missing", "lower"], {"top": {"goal": None}}),
        (["goal", "lower"], {"top": {"goal": '"down"'}}),
        (["metric", "without @"], {"top": {"metric": '"a@b"'}}),
        (
            ["metric = 'train_seconds'", "rename it", "pattern"],
            {"top": {"metric": '"train_seconds"'}},
        ),
        (["metric = 'Status'", "rename it"], {"top": {"metric": '"Status"'}}),
        (["metric = 'best val_loss'", "at ="], {"top": {"metric": '"best val_loss"'}}),
        (["train_seconds", "group"], {"command": "pattern = '(?P<train_seconds>.+)'"}),
        (["[eval] has no effect"], {"rest": "[eval]\npoints = 3"}),
        (["out is", "another name"], {"base": "lr = 1\nout = 2"}),
        (["'metric'", "rename"], {"base": "lr = 1\nmetric = 2"}),
        (["lr = [1]", "a number"], {"base": "lr = [1]"}),
        (["limit", "2h"], {"command": 'limit = "soon"'}),
        (["no group has a name"], {"command": 'pattern = "loss ([0-9]+)"'}),
        (["pattern"], {"command": 'pattern = "(?P<a>["'}),
        (["gpus = 1.5"], {"command": "gpus = 1.5"}),
        (["command.at", "best"], {"command": 'at = "first"'}),
        (["unknown key of [command]", "'code'"], {"command": 'cod = ["."]'}),
        (["no such file", "missing.py"], {"command": 'code = ["missing.py"]'}),
        (["no git work tree", "train.py"], {"command": 'code = ["."]'}),
        (["there is no folder"], {"command": 'folder = "elsewhere"'}),
        (["revision 'x'", "no git work tree"], {"factors": 'norm = [1, 2]\nrevision = ["x", "y"]'}),
        (["closing quotation"], {"run": "'python \"train.py'"}),
        (["placeholder is {name}"], {"run": '"python train.py {"'}),
        (["'|' is shell syntax", "sh -c"], {"run": RUN[:-1] + ' | tee log"'}),
        (["'>' is shell syntax"], {"run": RUN[:-1] + ' > log"'}),
        (["'>' is shell syntax"], {"run": '"sh train.sh --norm {norm} --lr {lr} > log"'}),
        (["'$DATA/x' is shell syntax"], {"run": RUN[:-1] + ' $DATA/x"'}),
        (["'A=1' is no program", "env A=1"], {"run": '"A=1 ' + RUN[1:]}),
        (["seed is the seed of the run"], {"factors": "norm = [1, 2]\nseed = [1, 2]"}),
        (["by itself"], {"run": RUN.replace("{norm}", "a{*norm}")}),
        (
            ["tune.metric = 'loss'", "by the study's metric"],
            {"rest": '[tune]\nlr = [0.1, 1]\npoints = 3\nper = "cell"\nmetric = "loss"'}
            | {"base": "width = 1", "run": RUN[:-1] + ' --width {width}"'},
        ),
        (["init_seed", "data_seed"], {"top": {"seeds": "{ init = 2, data = 2 }"}}),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, words_of_error: list[str], changes: dict[str, Any]
) -> None:
    with pytest.raises(AblateError) as error:
        study(tmp_path, **changes)
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words_of_error), text


@pytest.mark.parametrize(
    ("name", "valid", "dashes"),
    [("optim.name", "optim_name", ""), ("2-a", "_2_a", "--"), ("+model.é", "_model__", "")],
)
@pytest.mark.parametrize("option", ["--factor", "--base", "--tune"])
def test_a_new_study_names_what_no_placeholder_can_name(
    ablate: Command, tmp_path: Path, option: str, name: str, valid: str, dashes: str
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    new = ["new", "own", "--metric", "val_loss", "--factor", "norm=1,2"]
    levels = "[0.1,1]" if option == "--tune" else "0.1" if option == "--base" else "0.1,1"
    more = ["--tune", "points=3"] if option == "--tune" else []
    for command in ("train.py", f"train.py {name}={{{name}}}"):
        old = ["--command", f"{sys.executable} {command}", option, f"{name}={levels}"]
        refused(ablate, [*new, *more, *old], [name, f" {dashes}{name}={{{valid}}}"])
    renamed = ["--command", f"{sys.executable} train.py {name}={{{valid}}}"]
    assert ablate(*new, *more, *renamed, option, f"{valid}={levels}")[0] == 0


@pytest.mark.parametrize(
    ("begin", "options"),
    [
        ("[command] run: there is no script 'tain.py'", {"--command": "tain.py"}),
        ("[command] run: '|' is shell syntax", {"--command": "train.py | tee log"}),
        ("[command] run: there is no program", {"--command": ""}),
        ("[command] limit = 'soon': a time", {"--set": 'limit="soon"'}),
        ("[command] gpus = 1.5: a whole number", {"--set": "gpus=1.5"}),
        ("--base lr = [1]: ", {"--base": "lr=[1]"}),
        ("--metric = 'a@b': a name", {"--metric": "a@b"}),
    ],
)
def test_a_new_study_names_a_wrong_key_once(
    ablate: Command, tmp_path: Path, begin: str, options: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    script = options.get("--command", "train.py")
    given = {"--metric": "val_loss", "--goal": "lower", "--factor": "norm=1,2", **options}
    given["--command"] = f"{sys.executable} {script}" if script else "no-such-program"
    code, _, error = ablate("new", "own", *(word for pair in given.items() for word in pair))
    assert code == 2 and error.startswith(f"ablate: {begin}"), error


def test_no_metric_has_the_name_of_what_ablate_says_of_a_run(tmp_path: Path) -> None:
    made = study(tmp_path)
    with store.open(str(tmp_path / "a.db"), create=True) as db:
        register(db, made)
        with db.read() as connection:
            columns = set(connection.exec_driver_sql("SELECT * FROM all_runs").keys())
    fields = {*CATALOGUE, *made.cells[0].run.fields} - {"seed"}
    finals = {"loss", "bits_per_byte", "accuracy"}  # as the script reports them
    assert columns - fields - finals == {*OF_RUNS} - {SECONDS}


def test_a_shell_gets_what_is_for_a_shell() -> None:
    for run in (
        "env A=1 sh -c 'python train.py --norm {norm} --lr {lr} | tee $LOG'",
        "Rscript -e 'x$loss' {norm} {lr}",
        "perl -e '$x=1' {norm} {lr}",
    ):
        check_no_shell(words(run))  # raises nothing


def test_a_plan_warns_of_a_command_line_without_a_seed(tmp_path: Path) -> None:
    assert study(tmp_path).notes == ()
    (note,) = study(tmp_path, run=RUN.replace("--seed {seed}", "")).notes
    assert "ABLATE_SEED" in note


def keys(made: Plan) -> set[str]:
    return {one.run.key for one in made.runs}


def test_the_key_follows_the_code_and_not_the_layout_of_the_command(tmp_path: Path) -> None:
    first = keys(study(tmp_path))
    assert keys(study(tmp_path, run=RUN.replace(" --lr", "   --lr"))) == first
    assert keys(study(tmp_path, top={"question": '"Another?"'}, command='limit = "2h"')) == first
    (tmp_path / "train.py").write_text("print(2)\n")
    assert not keys(study(tmp_path)) & first
    (tmp_path / "train.py").write_text("print(1)\n")
    assert keys(study(tmp_path)) == first
    assert not keys(study(tmp_path, run=RUN.replace("--seed", "-s"))) & first


def test_seeds_of_one_field_share_no_key_with_another_value() -> None:
    fields = {"a": 1, "command": "[]", "code": ""}
    runs = [Run("command", fields | {"a": a}, seed) for a in (1, 2) for seed in (0, 1)]
    assert len({run.key for run in runs}) == 4
    named = [Run("command", fields | {"revision": name}) for name in ("main", "v1")]
    assert len({run.key for run in named}) == 1  # `code` says what is in them


def test_code_in_git_is_known_by_the_content_of_tracked_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "part.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    made = study(tmp_path)
    (taken,) = made.code
    assert taken.text is None and taken.about["commit"] == git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "add", "own.toml")  # a study file and a database do not count
    (tmp_path / "ablate.db").write_text("x")
    git(tmp_path, "add", "ablate.db")
    git(tmp_path, "commit", "-qm", "a study")
    assert keys(study(tmp_path)) == keys(made)

    (tmp_path / "lib" / "part.py").write_text("a = 2\n")
    (tmp_path / "new.py").write_text("")
    changed = study(tmp_path)
    assert not keys(changed) & keys(made)
    (code,) = changed.code
    assert code.text and "+a = 2" in code.text and "-a = 1" in code.text
    about = " ".join(changed.about)
    assert "uncommitted changes in lib/part.py" in about and "does not track new.py" in about
    git(tmp_path, "commit", "-qam", "the change")  # the same content has the same key
    assert keys(study(tmp_path)) == keys(changed)
    assert keys(study(tmp_path, command='code = ["train.py"]')) != keys(changed)

    both = study(tmp_path, factors='norm = [1, 2]\nrevision = ["main", "main~2"]', run=RUN)
    versions = {cell.levels["revision"]: cell.run.fields["code"] for cell in both.cells}
    assert versions["main"] == changed.cells[0].run.fields["code"]
    assert versions["main~2"] == made.cells[0].run.fields["code"]
    assert "in no revision" not in " ".join(both.about)
    (tmp_path / "lib" / "part.py").write_text("a = 3\n")
    both = study(tmp_path, factors='norm = [1, 2]\nrevision = ["main", "main~2"]', run=RUN)
    assert "uncommitted changes in lib/part.py are in no revision" in " ".join(both.about)
    with pytest.raises(AblateError, match="no such branch"):
        study(tmp_path, factors='norm = [1, 2]\nrevision = ["main", "mian"]')


def test_data_that_git_does_not_track_counts_where_code_lists_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    for folder in ("ignored", "untracked"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a.csv").write_text("1")
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "add", "train.py", ".gitignore")
    git(tmp_path, "commit", "-qm", "first")
    unlisted = study(tmp_path)
    for folder in ("ignored", "untracked"):
        lists = [f'[".", "{folder}/{entry}"]' for entry in ("sub/a.csv", "sub/*.csv", "**/*")]
        before = [keys(study(tmp_path, command=f"code = {entries}")) for entries in lists]
        assert not keys(unlisted) & before[0] and before[0] == before[1] == before[2]
        (tmp_path / folder / "sub" / "a.csv").write_text("2")
        for entries in lists:
            assert not keys(study(tmp_path, command=f"code = {entries}")) & before[0]
        with pytest.raises(AblateError, match=f"{folder} has no file that git tracks"):
            study(tmp_path, command=f'code = [".", "{folder}"]')
    assert keys(study(tmp_path)) == keys(unlisted)


@pytest.mark.parametrize(
    ("run", "files"),
    [
        ("python train.py", "lib/__init__.py lib/net.py lib/norm.py other.py train.py"),
        (
            f"{sys.executable} ./train.py",
            "lib/__init__.py lib/net.py lib/norm.py other.py train.py",
        ),
        ("python -m lib.net", LIB),
        ("env A=1 python -m lib", "lib/__init__.py lib/__main__.py other.py"),
        ("sh plain.sh -m lib", "plain.sh"),
        (f"{sys.executable} -m elsewhere.train", ""),
        (f"{shutil.which('nohup')} {sys.executable} -m lib.net", LIB),
        (f"{shutil.which('nice')} -n 5 python -m lib.net", LIB),
        (f"{shutil.which('setsid')} ./plain.sh {sys.executable} -m lib.net", f"plain.sh {LIB}"),
    ],
)
def test_outside_of_git_code_is_the_script_and_the_modules_it_imports(
    tmp_path: Path, run: str, files: str
) -> None:
    texts = {
        "train.py": "import json, lib.net\ndef f():\n    from other import x\n",
        "lib/__init__.py": "",
        "lib/net.py": "from . import norm\nfrom .norm import rms\nfrom lib import missing\n",
        "lib/norm.py": "import lib\n",
        "lib/__main__.py": "from other import *\n",
        "other.py": "not python",
        "unused.py": "",
        "plain.sh": "python train.py\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run = f'"{run} --norm {{norm}} --lr {{lr}} --seed {{seed}}"'
    before = study(tmp_path, run=run)
    assert all(name in " ".join(before.about) for name in files.split())
    if files:  # nohup and the like have no part in it
        (code,) = (line for line in before.about if line.startswith("Code: "))
        assert "bin/" not in code
    for name in texts:
        (tmp_path / name).write_text(f"{texts[name]}# changed\n")
        assert bool(keys(study(tmp_path, run=run)) & keys(before)) is (name not in files), name
        (tmp_path / name).write_text(texts[name])
    if not files:
        assert "no code is part" in " ".join(before.about)


def test_a_script_outside_of_git_that_imports_nothing_here_has_the_version_it_had(
    tmp_path: Path,
) -> None:
    (made,) = study(tmp_path, run=RUN.replace(sys.executable, "python")).code
    assert made.version == ("50f73df5c95ad52178a3f191069b2d6272564c99e3e3cdd25a17b46bece9608d")


def test_runs_whose_numbers_are_read_in_another_way_are_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    ways = (
        "",
        "pattern = 'loss (?P<loss>.*)'",
        "pattern = 'loss=(?P<loss>.*)'",
        "metrics = 'a.csv'",
    )
    found = [keys(study(tmp_path, command=way)) for way in ways]
    assert len(set().union(*found)) == sum(map(len, found))


def test_a_file_has_the_hash_that_git_gives_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_bytes(b"x = '\xc3\xa9'\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    tracked = snapshot.take(tmp_path, ["."])
    subprocess.run(["rm", "-rf", str(tmp_path / ".git")], check=True)
    assert snapshot.take(tmp_path, ["a.py"]).version == tracked.version
    assert snapshot.take(tmp_path, ["*.py"]).version == tracked.version


def repository(folder: Path, **files: str) -> Path:
    """A git work tree with these files in one commit; `/` in a name is written `__`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def version(folder: Path, *code: str) -> str:
    return snapshot.take(folder, code or (".",)).version


def test_a_submodule_is_known_by_its_commit_and_what_differs_from_it(tmp_path: Path) -> None:
    lib = repository(tmp_path / "lib", net_py="a = 1\n")
    main = repository(tmp_path / "main", train_py="")
    git(main, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(lib), "lib")
    added = version(main)
    git(main, "commit", "-qm", "lib")
    assert version(main) == added
    (main / "lib" / "net.py").write_text("a = 2\n")
    dirty = snapshot.take(main, ["."])
    assert dirty.version != added and dirty.changed == ("lib",)
    assert version(main, "lib") != version(main, "train.py")
    git(main / "lib", "commit", "-qam", "second")
    moved = version(main)
    git(main, "commit", "-qam", "moved")
    assert version(main) == moved not in (added, dirty.version)
    git(main, "submodule", "-q", "deinit", "lib")
    assert version(main) == moved


def test_what_replaces_a_tracked_file_is_no_error(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", train_py="", conf="1")
    (main / "conf").unlink()
    without = version(main)
    (main / "conf").mkdir()
    assert version(main) == without


def test_links_out_of_the_work_tree_count_with_the_sources_they_lead_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "lib" / "net.py").write_text("1")
    (outside / "base.yaml").write_text("1")
    main = repository(tmp_path / "main", train_py="")
    (main / "lib").symlink_to("../outside/lib")
    (main / "base.yaml").symlink_to(outside / "base.yaml")
    (main / "inside").symlink_to("train.py")
    added = version(main)
    git(main, "add", ".")
    git(main, "commit", "-qm", "links")
    seen = {version(main)}
    assert added not in seen
    for path in ("lib/net.py", "base.yaml", "lib/more.py"):
        (outside / path).write_text("2")
        seen.add(version(main))
    assert len(seen) == 4
    (outside / "lib" / "weights.bin").write_text("1")
    assert version(main) in seen


def test_links_to_folders_of_too_many_files_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a data set, or a home folder."""
    monkeypatch.setattr(snapshot, "LINKED", 3)
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for name in ("net.py", "deep/a.txt", "deep/b.txt"):
        (outside / name).write_text("1")
    main = repository(tmp_path / "main", train_py="")
    (main / "lib").symlink_to(outside)
    git(main, "add", ".")
    git(main, "commit", "-qm", "link")
    before = version(main)
    (outside / "net.py").write_text("2")
    three = version(main)
    assert three != before
    (outside / "deep" / "c.txt").write_text("1")
    four = version(main)
    assert four not in (before, three)
    (outside / "net.py").write_text("3")
    assert version(main) == four


def test_a_listed_link_that_git_does_not_track_counts_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("1")
    (tmp_path / "train.py").symlink_to("net.py")
    before = version(tmp_path, "train.py")
    (tmp_path / "net.py").write_text("2")
    assert version(tmp_path, "train.py") != before


def test_an_uncommitted_file_has_the_version_of_its_commit_behind_a_filter(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", train_py="a\n", sub__part_py="a\n")
    (main / ".gitattributes").write_text("*.py text\n*.ipynb filter=strip\n")
    git(main, "config", "filter.strip.clean", "grep -v output")
    (main / "a.ipynb").write_text("code\n")
    git(main, "add", ".")
    git(main, "commit", "-qm", "filters")
    (main / "train.py").write_bytes(b"b\r\n")
    (main / "sub" / "part.py").write_bytes(b"b\r\n")
    (main / "a.ipynb").write_text("code 2\noutput\n")
    (main / "new.py").write_bytes(b"c\r\n")
    git(main, "add", "new.py")
    before = version(main), version(main / "sub"), version(main / "sub", "part.py")
    git(main, "commit", "-qam", "second")
    assert (version(main), version(main / "sub"), version(main / "sub", "part.py")) == before


def test_code_of_another_repository_and_absolute_globs(tmp_path: Path) -> None:
    lab = repository(tmp_path / "lab", src__mylab__net_py="a = 1\n", src__mylab__sub__a_py="")
    main = repository(tmp_path / "main" / "study", train_py="").parent
    entries = (
        "../lab/src/mylab",
        str(lab / "src/mylab"),
        f"{lab}/src/**/*.py",
        "../lab/src/./mylab/",
    )
    before = [version(main, "study/train.py", entry) for entry in entries]
    assert before[0] == before[1] == before[3]
    (lab / "src" / "mylab" / "net.py").write_text("a = 2\n")
    (lab / "src" / "mylab" / "new.py").write_text("")
    taken = snapshot.take(main / "study", ["train.py", "../../lab/src/mylab"])
    assert taken.changed == ("../../lab/src/mylab/net.py",) and "+a = 2" in taken.diff
    assert taken.untracked == ("../../lab/src/mylab/new.py",)
    for entry, old in zip(entries, before, strict=True):
        assert version(main, "study/train.py", entry) != old


@pytest.mark.parametrize("goal", ["min", "max"])
def test_a_mean_against_a_threshold_is_that_of_scipy(goal: str) -> None:
    values = np.array([3.27, 3.29, 3.26, 3.275, np.nan])
    found = stats.one_sample(values, 3.28, goal=goal)
    side = {"min": "less", "max": "greater"}[goal]
    expected = scipy_stats.ttest_1samp(values[:4], 3.28, alternative=side)
    interval = scipy_stats.ttest_1samp(values[:4], 3.28).confidence_interval(0.95)
    assert found.n == 4 and found.mean == pytest.approx(values[:4].mean())
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.lo, found.hi) == pytest.approx((interval.low, interval.high))
    assert np.isnan(stats.one_sample([1.0], 2.0, goal=goal).p)


def test_words_have_no_shell() -> None:
    assert words("a 'b c' $HOME | ~") == ("a", "b c", "$HOME", "|", "~")
