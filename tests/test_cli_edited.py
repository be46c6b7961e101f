"""A study file that differs from its runs is named, with what changed and what left the study."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from cli_helpers import measure
from typer.testing import CliRunner

from ablate import store, study
from ablate.cli import app
from ablate.errors import AblateError
from ablate.plan import Plan, plan
from ablate.store import status
from ablate.store.merge import merge
from ablate.store.names import studies
from ablate.store.register import register, would_drop
from ablate.store.thin import thin
from ablate.study.revision import changes

FILE = """
name = "wiring"
question = "Which?"
seeds = 2
[base]
corpus = "austen"
tokens = 10_000
[factors]
topology = ["serial", "parallel", "concat"]
"""


def test_a_change_names_key_and_values() -> None:
    old = "seeds = 2\n[base]\nlr = 0.1 # note\nd_model = 64\n"
    new = "seeds = 3\n[base]\nlr = 0.1\nn_layer = 2\n"
    assert changes(old, new) == [
        "seeds: 2, now 3",
        "base.n_layer: added, 2",
        "base.d_model: removed, was 64",
    ]
    assert changes(old, old + "\n# a comment\n") == []


def test_folders_that_were_taken_out_are_no_change() -> None:
    new = '[base]\ncorpus = "/data/me/a.txt"\n[command]\ncode = ["/home/me/b/c.py"]\n'
    old = '[base]\ncorpus = "…/a.txt"\n[command]\ncode = ["~/b/c.py"]\n'
    assert changes(old, new) == [] and changes(new, old) == []
    assert len(changes(old, new, folders=True)) == 2
    assert changes(old.replace("a.txt", "b.txt"), new) == [
        "base.corpus: '…/b.txt', now '/data/me/a.txt'"
    ]


@pytest.mark.parametrize("command", ["plan", "status", "report", "figure"])
def test_commands_name_an_edited_file_and_the_runs_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("wiring.toml")
    with store.open("x.db", create=True) as db:
        for text in (FILE, FILE.replace(', "concat"', "")):
            file.write_text(text)
            register(db, plan(study.load(str(file))))
    file.write_text(file.read_text().replace("seeds = 2", "seeds = 4"))
    done = CliRunner().invoke(app, [command, str(file), "--db", "x.db"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "(revision 2): seeds: 2, now 4" in said
    assert "2 runs of earlier revisions left the study wiring: topology=concat" in said


OTHER = FILE.replace('topology = ["serial", "parallel", "concat"]', 'norm = ["pre", "post"]')
ONE = FILE.replace(', "parallel", "concat"]', ', "parallel"]')


def planned(folder: Path, text: str) -> Plan:
    file = folder / "wiring.toml"
    file.write_text(text)
    return plan(study.load(str(file)))


def trained(folder: Path, name: str, text: str) -> str:
    """A database with a study whose runs all have a result."""
    with store.open(str(folder / name), create=True) as db:
        made = planned(folder, text)
        register(db, made)
        measure(db, made.runs, lambda run: 1.0 + run.run.seed)
    return str(folder / name)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_commands_say_which_runs_keep_the_points_of_their_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = trained(tmp_path, "x.db", FILE)
    Path("wiring.toml").write_text(FILE + "[eval]\npoints = 8\n")
    for times in range(2):  # the second time the study in the database has 8
        done = CliRunner().invoke(app, [command, "wiring.toml", "--db", path])
        assert done.exit_code == 0, done.output
        assert "6 complete runs keep 5 points" in " ".join(done.output.split()), times


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OTHER, ["4 runs of topology=parallel and topology=concat", "norm"]),
        (FILE.replace("10_000", "20_000"), ["base.tokens: 10000, now 20000"]),
        (FILE.replace(', "concat"', ""), ["2 runs of topology=concat"]),
        (FILE.replace("seeds = 2", "seeds = 1"), ["3 runs of seed 1", "seeds: 2, now 1"]),
        (FILE.replace("seeds = 2", "seeds = [1, 2, 3]"), ["3 runs of seed 0"]),
    ],
)
def test_a_file_that_would_drop_results_needs_consent(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = trained(tmp_path, "x.db", FILE)
    other = planned(tmp_path, text)
    with store.open(path, create=True) as db:
        with pytest.raises(AblateError) as refused:
            register(db, other)
        said = str(refused.value)
        assert "\n" not in said and all(word in said for word in (*words, "--replace")), said
        assert register(db, planned(tmp_path, FILE)) == 1  # nothing was changed
        assert said.count(would_drop(db, other)) == 1
        register(db, other, replace=True)
        assert not would_drop(db, other)
        if text == OTHER:
            assert sum(status.left(db, "wiring").values()) == 4  # those of the baseline stay


@pytest.mark.parametrize(
    "text",
    [
        FILE + "\n# a comment\n",
        FILE.replace("Which?", "Which wiring?"),
        FILE.replace("seeds = 2", "seeds = 4"),
        FILE.replace("seeds = 2", "seeds = [4, 1, 0]"),
        FILE.replace('"concat"', '"concat", "no-skip"'),
        FILE + 'norm = ["pre", "post"]\n',
    ],
)
def test_a_study_grows_without_consent(tmp_path: Path, text: str) -> None:
    path = trained(tmp_path, "x.db", FILE)
    with store.open(path, create=True) as db:
        register(db, planned(tmp_path, text))


def test_a_file_whose_runs_have_no_result_may_change(tmp_path: Path) -> None:
    with store.open(str(tmp_path / "x.db"), create=True) as db:
        register(db, planned(tmp_path, FILE))
        register(db, planned(tmp_path, OTHER))


def test_run_refuses_another_study_of_the_same_name_and_plan_says_so(tmp_path: Path) -> None:
    path = trained(tmp_path, "x.db", FILE)
    planned(tmp_path, OTHER)
    file = str(tmp_path / "wiring.toml")
    said = CliRunner().invoke(app, ["plan", file, "--db", path]).output
    before, _, following = " ".join(said.split()).rpartition("Next: ")
    assert "4 runs" in before and following.endswith(f"ablate run {file} --db {path} --replace")
    done = CliRunner().invoke(app, ["run", file, "--db", path, "--device", "cpu"])
    assert isinstance(done.exception, AblateError) and "--replace" in str(done.exception)
    with store.open(path) as db:
        assert status.counts_by_cell(db, "wiring").keys() == {
            f"topology={level}" for level in ("serial", "parallel", "concat")
        }


def test_a_file_of_other_folders_needs_consent_after_they_were_taken_out(tmp_path: Path) -> None:
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.txt").write_text(f"part {part}. " * 3000)
    one, two = (
        FILE.replace('"austen"', f'"{tmp_path / part / "a.txt"}"') for part in ("one", "two")
    )
    paths = [trained(tmp_path, f"{part}.db", text) for part, text in (("1", one), ("2", two))]
    for path in paths:
        with store.open(path, create=True) as db:
            thin(db, 2)
    with store.open(paths[0], create=True) as db:
        assert not would_drop(db, planned(tmp_path, one))
        with pytest.raises(AblateError, match="--replace"):
            register(db, planned(tmp_path, two))
        before = status.counts_by_cell(db, "wiring")
        with store.open(paths[1]) as other, pytest.raises(AblateError, match="--rename"):
            merge(db, other)
        assert status.counts_by_cell(db, "wiring") == before


@pytest.mark.parametrize("text", [OTHER, FILE.replace("seeds = 2", "seeds = [1]")])
def test_merge_refuses_studies_of_one_name_that_drop_results(tmp_path: Path, text: str) -> None:
    a, b = trained(tmp_path, "a.db", FILE), trained(tmp_path, "b.db", text)
    for ours, theirs in ((a, b), (b, a)):
        with store.open(ours, create=True) as db, store.open(theirs) as other:
            before = status.counts_by_cell(db, "wiring")
            try:
                merge(db, other)
            except AblateError as refused:
                assert "--rename" in str(refused)
            after = status.counts_by_cell(db, "wiring")
            assert all(after[cell]["complete"] >= n["complete"] for cell, n in before.items()), (
                before,
                after,
            )


@pytest.mark.parametrize("theirs", ["a.db", "b.db"])
def test_a_refused_merge_says_what_either_database_has(tmp_path: Path, theirs: str) -> None:
    a = trained(tmp_path, "a.db", FILE)
    other_file = FILE.replace("seeds = 2", "seeds = [2, 3]").replace("10_000", "20_000")
    b = trained(tmp_path, "b.db", other_file)
    ours = b if theirs == "a.db" else a
    with (
        store.open(ours, create=True) as db,
        store.open(str(tmp_path / theirs)) as other,
        pytest.raises(AblateError) as refused,
    ):
        merge(db, other)
    said = str(refused.value)
    assert f"2 in {a}" in said and f"[2, 3] in {b}" in said and f"20000 in {b}" in said


def test_merge_says_whose_file_holds(tmp_path: Path) -> None:
    asked = {"a.db": "Which?", "b.db": "Which wiring?"}
    for name, question in asked.items():
        trained(tmp_path, name, FILE.replace("Which?", question))
    for ours, theirs in (("a.db", "b.db"), ("b.db", "a.db")):
        merged = shutil.copy(tmp_path / ours, tmp_path / "merged.db")
        done = CliRunner().invoke(app, ["db", "merge", str(tmp_path / theirs), "--db", str(merged)])
        said = " ".join(done.output.split())
        words = re.search(r"that of (\S+) holds: question: '(.*)', now '(.*)'", said)
        assert words
        holds, before, after = words.groups()
        assert {before, after} == set(asked.values())
        assert after == asked[theirs if Path(holds).name == theirs else ours]
        with store.open(str(merged)) as db:
            assert after in status.planned(db, "wiring")[0]


def test_merge_refuses_or_keeps_apart_studies_of_one_name(tmp_path: Path) -> None:
    a, b = trained(tmp_path, "a.db", FILE), trained(tmp_path, "b.db", OTHER)
    for ours, theirs in ((a, b), (b, a)):
        with store.open(ours, create=True) as db, store.open(theirs) as other:
            with pytest.raises(AblateError, match="--rename") as refused:
                merge(db, other)
            assert theirs in str(refused.value)
            assert list(studies(db)) == ["wiring"]
    with store.open(a, create=True) as db, store.open(b) as other:
        for _ in range(2):
            merge(db, other, {"wiring": "norms"})
            assert list(studies(db)) == ["wiring", "norms"]
            counts = [status.counts_by_cell(db, name) for name in studies(db)]
            assert [sum(c["complete"] for c in cells.values()) for cells in counts] == [6, 4]
        for names in ({"wirin": "x"}, {"wiring": "../x"}):
            with pytest.raises(AblateError):
                merge(db, other, names)


def test_merge_joins_a_study_that_grew_on_one_side_both_ways_round(tmp_path: Path) -> None:
    small, grown = trained(tmp_path, "a.db", ONE), trained(tmp_path, "b.db", ONE)
    trained(tmp_path, "b.db", FILE)  # one level more
    counts = []
    for ours, theirs in ((small, grown), (grown, small)):
        copy = tmp_path / f"{Path(ours).stem}-and.db"
        copy.write_bytes(Path(ours).read_bytes())
        with store.open(str(copy), create=True) as db, store.open(theirs) as other:
            merge(db, other)
            counts.append(status.counts_by_cell(db, "wiring"))
    assert counts[0] == counts[1] and len(counts[0]) == 3


def test_merge_follows_a_level_that_was_left_out_on_purpose(tmp_path: Path) -> None:
    before, after = trained(tmp_path, "a.db", FILE), trained(tmp_path, "b.db", FILE)
    with store.open(after, create=True) as db:
        register(db, planned(tmp_path, ONE), replace=True)
        with store.open(before) as other:
            merge(db, other)
        assert len(status.counts_by_cell(db, "wiring")) == 2
    with store.open(before, create=True) as db, store.open(after) as other:
        merge(db, other)
        assert len(status.counts_by_cell(db, "wiring")) == 2


def test_the_command_merges_under_another_name(tmp_path: Path) -> None:
    a, b = trained(tmp_path, "a.db", FILE), trained(tmp_path, "b.db", OTHER)
    command = ["db", "merge", b, "--db", a]
    refused = CliRunner().invoke(app, command).exception
    assert isinstance(refused, AblateError) and "--rename wiring=NEW" in str(refused)
    malformed = CliRunner().invoke(app, [*command, "--rename", "norms"]).exception
    assert isinstance(malformed, AblateError) and "OLD=NEW" in str(malformed)
    done = CliRunner().invoke(app, [*command, "--rename", "wiring=norms"])
    assert done.exit_code == 0, done.output
    with store.open(a) as db:
        assert list(studies(db)) == ["wiring", "norms"]


def test_a_study_of_the_former_order_of_add_one_in_is_not_turned_round(tmp_path: Path) -> None:
    """Its last levels were the baseline: the same file now asks for other runs."""
    text = FILE.replace("seeds = 2", 'seeds = 2\ndesign = "add-one-in"').replace(
        'topology = ["serial", "parallel", "concat"]',
        'topology = ["serial", "parallel"]\nnorm = ["pre", "post"]',
    )
    turned = text.replace('["serial", "parallel"]', '["parallel", "serial"]').replace(
        '["pre", "post"]', '["post", "pre"]'
    )
    path = trained(tmp_path, "x.db", turned)
    with store.open(path, create=True) as db:
        with db.begin() as connection:  # the text that such a study has
            connection.exec_driver_sql("UPDATE study SET toml = ?", (text,))
        made = planned(tmp_path, text)
        with pytest.raises(AblateError, match=r"2 runs of baseline.*topology=parallel.*--replace"):
            register(db, made)
        register(db, made, replace=True)
        assert not would_drop(db, made)
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "wiring.toml"), "--db", path])
    assert "Baseline: baseline (topology=serial, norm=pre)" in done.output
