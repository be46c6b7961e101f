"""Merging is idempotent, commutative, loses nothing and mixes no attempts; checking."""

from __future__ import annotations

import itertools
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from store_plans import claim_next, do_all, execute, fresh, names, plan_of, rows, train, trained

from ablate import store
from ablate.code import Code
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.plan import Decision, Plan
from ablate.store import Database, decisions, findings, owners, register, runs
from ablate.store import forget as forgetting
from ablate.store import merge as merging
from ablate.store.check import check
from ablate.store.findings import FindingRow
from ablate.store.ingest import ingest
from ablate.store.merge import merge

_RUN = "(SELECT key FROM run WHERE run.id = {}.run_id)"
_CELL = (
    "(SELECT study.name || '/' || label FROM cell JOIN study ON study.id = study_id WHERE cell.id"
    " = {})"
)
CONTENT = {
    "study": (
        "SELECT name, question, metric, goal, revision, toml, evaluation, plan_hash FROM study"
    ),
    "cell": f"SELECT {_CELL.format('c.id')}, stratum, active FROM cell AS c",
    "level": f"SELECT {_CELL.format('cell_id')}, factor, level, ordinal FROM cell_level",
    "member": (
        f"SELECT {_CELL.format('cell_id')}, {_RUN.format('member')}, role, ordinal FROM member"
    ),
    "decision": f"SELECT {_CELL.format('cell_id')}, name, value, evidence FROM decision",
    "contrast": (
        f"SELECT family, stratum, factor, level, {_CELL.format('cell_id')},"
        f" {_CELL.format('baseline_id')} FROM contrast"
    ),
    "effect": (
        f"SELECT {_CELL.format('contrast.cell_id')}, effect.metric, method, n, mean, input_hash"
        " FROM effect JOIN contrast ON contrast.id = contrast_id"
    ),
    "run": "SELECT key, kind, fields, status, diverged_at, seed, tokens, n_params, flops FROM run",
    "attempt": (
        f"SELECT {_RUN.format('attempt')}, n, status, owner, heartbeat, device, started, ended,"
        " resumed_step, journal, journal_offset, evaluation, error FROM attempt"
    ),
    "series": "SELECT name, unit, goal FROM series",
    "metric": (
        f"SELECT {_RUN.format('metric')}, (SELECT name FROM series WHERE id = series_id), step,"
        " value FROM metric"
    ),
    "final": f"SELECT {_RUN.format('final')}, name, at, value FROM final",
    "window_loss": (
        f"SELECT {_RUN.format('window_loss')}, name, at, tokens, layout, losses FROM window_loss"
    ),
    "finding": (
        "SELECT (SELECT name FROM study WHERE id = study_id), ordinal, kind, stratum, factor,"
        " level, cell, data FROM finding"
    ),
    "artifact": f"SELECT {_RUN.format('artifact')}, kind, path FROM artifact",
}


def _content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that a database says, without ids."""
    return {name: sorted(rows(path, sql), key=repr) for name, sql in CONTENT.items()}


def _merged(folder: Path, *paths: Path) -> Path:
    """A copy of the first database, with the others merged into it in this order."""
    path = folder / f"{secrets.token_hex(8)}.db"
    shutil.copy(paths[0], path)
    with store.open(str(path), create=True) as db:
        for other in paths[1:]:
            with store.open(str(other)) as opened:
                merge(db, opened)
    assert rows(path, "PRAGMA foreign_key_check") == [] and rows(
        path, "PRAGMA integrity_check"
    ) == [("ok",)]
    return path


# -- any two databases -----------------------------------------------------------------------------

# hundreds of small databases need no disk
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
LEVELS = ("serial", "parallel", "concat")
STATUS = ("complete", "diverged", "failed", "stopped", None)
_study = st.tuples(
    st.just("study"),
    st.sampled_from(["one", "two"]),
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3, unique=True),
    st.integers(1, 2),
    st.sampled_from([(1.0,), (1.0, 2.0)]),
)
_work = st.tuples(
    st.just("work"), st.integers(1, 3), st.sampled_from(STATUS), st.sampled_from([2.0, 3.0])
)
_decide = st.tuples(
    st.just("decide"), st.sampled_from(["lr", "seeds"]), st.sampled_from(["1", "2"])
)
_effect = st.tuples(st.just("effect"), st.integers(1, 3))
_find = st.tuples(st.just("find"), st.integers(0, 2), st.sampled_from(["", None]))
_life = st.lists(st.one_of(_study, _work, _work, _decide, _effect, _find), max_size=6)


def _live(db: Database, life: list[tuple[Any, ...]], counter: Iterator[int]) -> None:
    for what, *how in life:
        if what == "study":
            name, levels, seeds, lengths = how
            register.register(db, plan_of(name, levels, range(seeds), Evaluation(lengths=lengths)))
        elif what == "work":
            number, status, loss = how
            for (study_id,) in rows(db.path, "SELECT id FROM study"):
                with owners.Owner.here(db) as owner:
                    for claim in claim_next(db, study_id, owner, number):
                        finals = [("loss", 0.0, loss), ("loss_at_length", 2.0, loss)][
                            : int(loss) - 1
                        ]
                        train(claim, status=status, loss=loss + next(counter), finals=finals)
                        ingest(db, claim.attempt_id)
        elif what == "decide":
            execute(
                db.path,
                "INSERT OR REPLACE INTO decision SELECT study_id, id, ?, ?, '{}' FROM cell",
                *how,
            )
        elif what == "find":
            number, stratum = how
            found = [FindingRow("effect", stratum, data={"n": n}) for n in range(number)]
            for (study_id,) in rows(db.path, "SELECT id FROM study"):
                findings.write(db, study_id, found)
        elif what == "effect":
            execute(
                db.path,
                "INSERT OR REPLACE INTO effect (contrast_id, metric, method, n, lost, input_hash) "
                "SELECT id, 'loss', 't', ?, 0, 'x' FROM contrast",
                *how,
            )


_BEGUN = [("study", "one", ["serial", "parallel"], 1, (1.0,))]
_DONE, _LOST = ([("work", 2, status, 2.0)] for status in ("complete", "diverged"))


@example(common=_BEGUN, left=_DONE, right=_DONE)  # equal but for their numbers
@example(common=_BEGUN, left=_DONE, right=_LOST)  # with as many finals
# one side saw that an attempt of both had died
@example(common=[*_BEGUN, ("work", 1, None, 2.0)], left=_DONE, right=[])
# shrinking would take minutes
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(common=_life, left=_life, right=_life)
def test_merge_is_idempotent_and_commutative_and_loses_nothing(
    common: list[tuple[Any, ...]], left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]
) -> None:
    counter = itertools.count()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name, pytest.MonkeyPatch.context() as patch:
        # which studies are one has tests of its own; these plans differ while their files do not
        patch.setattr(merging, "_refuse_loss", lambda *given: None)
        # the same names every time
        patch.setattr(secrets, "token_hex", lambda size: f"{next(counter):0{2 * size}x}")
        folder = Path(name)
        base = folder / "base.db"
        with fresh(base) as db:
            _live(db, common, counter)
        a, b = folder / "a.db", folder / "b.db"
        for path, life in ((a, left), (b, right)):
            shutil.copy(base, path)
            with store.open(str(path), create=True) as db:
                _live(db, life, counter)

        both = _merged(folder, a, b)
        content = _content(both)
        assert content == _content(_merged(folder, b, a))
        assert content == _content(_merged(folder, both, b))
        assert content == _content(_merged(folder, both, a))

        with store.open(str(both)) as db:
            assert not [
                finding
                for finding in check(db)
                if "does not exist" in finding.text or "attempt" in finding.text
            ]
        for side in (a, b):
            there = _content(side)
            assert {row[9] for row in there["attempt"]} <= {row[9] for row in content["attempt"]}
            assert {row[0] for row in there["run"]} <= {row[0] for row in content["run"]}
            done = {row[0] for row in there["run"] if row[2] == "complete"}
            assert done <= {row[0] for row in content["run"] if row[2] == "complete"}
            assert {row[0] for row in there["cell"]} <= {row[0] for row in content["cell"]}
        assert all(
            _values(both, key) in (_values(a, key), _values(b, key))
            for (key,) in rows(both, "SELECT key FROM run")
        )


def _values(path: Path, key: str) -> list[Any]:
    """The points, finals and losses of windows of a run."""
    points = (
        "SELECT series.name, step, value FROM metric JOIN series ON series.id = series_id JOIN run"
        " ON run.id = run_id"
    )
    finals = "SELECT name, at, value FROM final JOIN run ON run.id = run_id"
    windows = "SELECT name, at, layout, losses FROM window_loss JOIN run ON run.id = run_id"
    return [sorted(rows(path, f"{sql} WHERE key = ?", key)) for sql in (points, finals, windows)]


# -- what a merge brings ---------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Database, Database]]:
    for name in "ab":
        (tmp_path / name).mkdir()
    with fresh(tmp_path / "a" / "a.db") as a, fresh(tmp_path / "b" / "b.db") as b:
        yield a, b


def test_two_halves_become_a_whole(two: tuple[Database, Database]) -> None:
    a, b = two
    trained(a, plan_of(seeds=(0,)))
    trained(b, plan_of("other"), loss=3.0)
    before = b.path.read_bytes()
    merged = merge(a, b)
    assert (merged.studies, merged.runs) == (1, 2) and merged.renewed in (0, 1, 2)
    assert merge(a, b).studies == merge(a, b).runs == merge(a, b).renewed == 0
    assert b.path.read_bytes() == before
    assert rows(a.path, "SELECT study, count(*), sum(loss IS NOT NULL) FROM runs GROUP BY 1") == [
        ("other", 4, 4),
        ("wiring", 2, 2),
    ]
    # both machines' attempts at the shared runs
    assert rows(a.path, "SELECT count(*) FROM attempt") == [(6,)]
    assert rows(a.path, "SELECT status, count(*) FROM attempt GROUP BY 1") == [
        ("complete", 4),
        ("dead", 2),
    ]
    assert rows(
        a.path, "SELECT count(*) FROM curves WHERE study = 'wiring' AND series = 'loss'"
    ) == [(6,)]


def test_complete_run_wins_over_a_broken_one(two: tuple[Database, Database]) -> None:
    a, b = two
    for db, status, loss in ((a, "stopped", 5.0), (b, "complete", 2.0)):
        study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
        with owners.Owner.here(db) as owner:
            (claim,) = claim_next(db, study_id, owner, 1)
            train(claim, steps=range(1, 9) if db is a else (1, 2), status=status, loss=loss)
            ingest(db, claim.attempt_id)
    merge(a, b)
    assert rows(a.path, "SELECT status, loss FROM runs") == [("complete", 2.0)]
    assert rows(a.path, "SELECT step, value FROM curves WHERE series = 'loss'") == [
        (1, 3.0),
        (2, 2.5),
    ]
    with owners.Owner.here(a) as owner:
        assert claim_next(a, 1, owner, 1) == []


def test_accepted_attempt_of_the_winner_stays_accepted(two: tuple[Database, Database]) -> None:
    a, b = two
    with owners.Owner.here(a) as owner:
        study_id = register.register(a, plan_of(seeds=(0,), levels=("serial",)))
        do_all(a, study_id, owner)
        a.close()
        shutil.copy(a.path, b.path)
    with owners.Owner.here(b) as owner:  # there it is done again for another final, and that fails
        register.register(
            b, plan_of(seeds=(0,), levels=("serial",), evaluation=Evaluation(lengths=(1, 2)))
        )
        do_all(b, study_id, owner, status="failed")
    for db, other in ((a, b), (b, a)):
        merge(db, other)
        assert rows(db.path, "SELECT status, loss FROM runs") == [("complete", 2.0)]
        assert rows(db.path, "SELECT status, count(*) FROM attempt GROUP BY 1") == [
            ("complete", 1),
            ("failed", 1),
        ]


def test_what_only_the_loser_measured_is_still_to_be_measured(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    wide = Evaluation(lengths=(1, 2))
    with owners.Owner.here(a) as owner:
        study_id = register.register(a, plan_of(seeds=(0,), levels=("serial",)))
        do_all(
            a,
            study_id,
            owner,
            finals=[
                ("loss", 0, 2.0),
                ("accuracy", 0, 0.5),
                ("bits_per_byte", 0, 1.0),
                ("epochs", 0, 1),
            ],
        )
    # its fewer finals give way to those of `a`, two of them to nothing
    with owners.Owner.here(b) as owner:
        study_id = register.register(b, plan_of(seeds=(0,), levels=("serial",), evaluation=wide))
        do_all(
            b,
            study_id,
            owner,
            finals=[("loss", 0, 2.0), ("loss_at_length", 1, 2.0), ("loss_at_length", 2, 2.5)],
        )
    merge(a, b)
    register.register(a, plan_of(seeds=(0,), levels=("serial",), evaluation=wide))
    assert rows(a.path, "SELECT count(*) FROM final WHERE name = 'loss_at_length'") == [(0,)]
    with owners.Owner.here(a) as owner:
        assert len(claim_next(a, 1, owner, 9)) == 1


def test_nan_and_infinity_are_merged(two: tuple[Database, Database]) -> None:
    a, b = two
    with owners.Owner.here(b) as owner:
        finals = [("loss", 0, float("nan")), ("accuracy", 0, float("-inf"))]
        do_all(
            b, register.register(b, plan_of(seeds=(0,), levels=("serial",))), owner, finals=finals
        )
    merge(a, b)
    assert rows(a.path, "SELECT name, value FROM final ORDER BY 1") == [
        ("accuracy", float("-inf")),
        ("loss", None),
    ]


def test_runs_that_were_measured_otherwise_do_not_count_after_a_merge(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    for db, seed, tokens in ((a, 0, 512), (b, 1, 1024)):
        trained(db, plan_of(seeds=(seed,), evaluation=Evaluation(tokens=tokens)))
    # the later revision
    register.register(b, plan_of(seeds=(0, 1), evaluation=Evaluation(tokens=1024)))
    for _ in range(2):
        merge(a, b)
        assert rows(a.path, "SELECT seed, status, count(*) FROM runs GROUP BY 1, 2") == [
            (0, "planned", 2),
            (1, "complete", 2),
        ]


def test_studies_that_measure_shared_runs_otherwise_are_not_merged(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    for db, name, tokens in ((a, "one", 512), (b, "other", 1024)):
        trained(db, plan_of(name, evaluation=Evaluation(tokens=tokens)))
    before = _content(a.path)
    with pytest.raises(AblateError, match="measures them differently"):
        merge(a, b)
    assert _content(a.path) == before


def _refused(a: Database, b: Database, *words: str) -> None:
    """Merging either into the other is refused in words, and changes nothing."""
    for ours, theirs in ((a, b), (b, a)):
        before = _content(ours.path)
        with pytest.raises(AblateError) as error:
            merge(ours, theirs)
        said = str(error.value)
        assert "\n" not in said and all(word in said for word in words), said
        assert _content(ours.path) == before


def test_a_study_that_loses_a_cell_is_refused_also_where_its_file_is_the_same(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    for db, lr in ((a, 0.1), (b, 0.2)):  # such as a rate that was chosen otherwise
        trained(db, plan_of(lr=lr))
    _refused(a, b, "4 runs of topology=serial and topology=parallel", "--rename wiring=NEW")
    merge(a, b, {"wiring": "other"})
    assert rows(a.path, "SELECT study, count(*) FROM runs WHERE loss IS NOT NULL GROUP BY 1") == [
        ("other", 4),
        ("wiring", 4),
    ]


def _split(
    seeds: list[int], line: str = "seeds = {}", code: tuple[Code, ...] = (), **fields: Any
) -> Plan:
    made = plan_of(seeds=seeds, **fields)
    toml = f'name = "wiring"\n{line.format(seeds)}\n[tune]\nseeds = 1\n'
    made = replace(made, code=code)
    return replace(made, study=replace(made.study, toml=toml))


def test_seeds_of_one_study_that_two_machines_trained_are_united(
    two: tuple[Database, Database], tmp_path: Path
) -> None:
    for db, seeds in zip(two, ([0, 1], [2, 3]), strict=True):
        trained(db, _split(seeds))
        db.close()
    united = _merged(tmp_path, *(db.path for db in two))
    pairs = "SELECT cell, seed, status FROM runs ORDER BY 1, 2"
    assert rows(united, pairs) == [
        (f"topology={level}", seed, "complete")
        for level in ("parallel", "serial")
        for seed in range(4)
    ]
    ((toml,),) = rows(united, "SELECT toml FROM study")
    assert tomllib.loads(toml) == {"name": "wiring", "seeds": 4, "tune": {"seeds": 1}}
    content = _content(united)
    assert content == _content(_merged(tmp_path, *(db.path for db in reversed(two))))
    assert content == _content(_merged(tmp_path, united, two[0].path))
    with store.open(str(united)) as db:  # the file that the merge asks for trains nothing
        register.register(db, _split([0, 1, 2, 3]))
        assert rows(united, "SELECT status, count(*) FROM runs GROUP BY 1") == [("complete", 8)]


@pytest.mark.parametrize(
    "changed",
    [
        {"lr": 0.2},
        {"levels": ("serial", "concat")},
        {"code": (Code("a.py", "2" * 64, "two"),)},
        {"line": " seeds = {}"},  # the merge rewrites lines that begin with the key
        {"line": "seeds = [ # of [a]\n2, 3]"},
    ],
)
def test_seeds_of_two_studies_that_differ_in_more_are_not_united(
    two: tuple[Database, Database], changed: dict[str, Any]
) -> None:
    a, b = two
    same = {"lr": 0.1, "code": (Code("a.py", "1" * 64, "one"),)}
    trained(a, _split([0, 1], **same))
    trained(b, _split([2, 3], **{**same, **changed}))
    _refused(a, b, "runs of", "--rename wiring=NEW")


OWN = [Evaluation(own=(("share", version * 64),)) for version in "12"]
VALUES = [("loss", 0, 2.0), ("accuracy", 0, 0.5), ("share", 0, 0.5)]


def test_results_that_two_versions_of_a_metric_measured_are_not_mixed(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    for db, evaluation in zip(two, OWN, strict=True):
        trained(db, plan_of(evaluation=evaluation), finals=VALUES)
    _refused(a, b, "4 runs of topology=serial and topology=parallel", "keep two databases")


def test_results_that_were_measured_again_take_the_place_of_the_earlier_ones(
    two: tuple[Database, Database],
) -> None:
    a, b = two
    trained(a, plan_of(evaluation=OWN[0]), finals=VALUES)
    a.close()
    shutil.copy(a.path, b.path)
    trained(b, plan_of(evaluation=OWN[1]), loss=3.0, finals=[("loss", 0, 3.0), *VALUES[1:]])
    for db, other in ((b, a), (a, b)):
        merge(db, other)
        assert rows(db.path, "SELECT status, loss, count(*) FROM runs GROUP BY 1, 2") == [
            ("complete", 3.0, 4)
        ]


def test_merge_while_a_study_runs_is_refused(two: tuple[Database, Database]) -> None:
    a, b = two
    study_id = register.register(b, plan_of())
    with owners.Owner.here(b) as owner:
        claim_next(b, study_id, owner, 1)
        with pytest.raises(AblateError, match="is being written by 1 run"):
            merge(a, b)
    assert rows(a.path, "SELECT count(*) FROM study") == [(0,)]


# -- weights ---------------------------------------------------------------------------------------

ONE = {"seeds": (0,), "levels": ("serial",)}
MORE = [("loss", 0, 2.0), ("accuracy", 0, 0.5), ("bits_per_byte", 0, 1.0), ("epochs", 0, 1)]


def keep(db: Database, content: str, name: str = "", run: int = 1) -> Path:
    """Give a run of a database weights, under a name of its own or another one."""
    ((key,),) = rows(db.path, "SELECT key FROM run WHERE id = ?", run)
    file = db.weights_of(key, "final")
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    execute(db.path, "INSERT INTO artifact VALUES (?, 'final-weights', ?)", run, name or file.name)
    return file


def artifacts(db: Database) -> list[tuple[Any, ...]]:
    return rows(db.path, "SELECT run_id, kind, path FROM artifact")


def test_weights_are_those_of_the_attempt_that_is_kept(two: tuple[Database, Database]) -> None:
    a, b = two
    for db, finals in ((a, MORE[:1]), (b, MORE)):
        trained(db, plan_of(**ONE), finals=finals)
    ours, theirs = keep(a, "worse"), keep(b, "better")
    assert merge(b, a).weights == 0 and theirs.read_text() == "better"
    assert merge(a, b).weights == 1 and ours.read_text() == "better"
    assert names(a.weights) == [ours.name] and artifacts(a) == [(1, "final-weights", ours.name)]
    assert merge(a, b).weights == 0


def test_weights_of_an_attempt_that_gives_way_go_with_it(two: tuple[Database, Database]) -> None:
    a, b = two
    for db, finals in ((a, MORE[:1]), (b, MORE)):
        trained(db, plan_of(**ONE), finals=finals)
    keep(a, "worse")
    merge(b, a)
    assert not b.weights.exists() and artifacts(b) == []
    merge(a, b)
    assert artifacts(a) == [] and names(a.weights) == []
    with owners.Owner.here(a) as owner:
        assert runs.claim(a, 1, owner, [1], keep="final")


def test_of_equal_attempts_the_one_with_weights_is_kept(two: tuple[Database, Database]) -> None:
    a, b = two
    for at, db in enumerate(two):
        trained(db, plan_of(**ONE), loss=2.0 + at)
    (first, _), (second, _) = (rows(db.path, "SELECT journal, 1 FROM attempt")[0] for db in two)
    loser = a if first < second else b
    winner = b if loser is a else a
    loss = rows(loser.path, "SELECT loss FROM runs")
    keep(loser, "kept")
    merge(winner, loser)
    assert rows(winner.path, "SELECT loss FROM runs") == loss
    assert [file.read_text() for file in winner.weights.iterdir()] == ["kept"]


def test_a_copy_that_fails_changes_nothing(two: tuple[Database, Database]) -> None:
    a, b = two
    kept = []
    for db, finals in ((a, MORE[:1]), (b, MORE)):
        trained(db, plan_of(), finals=finals)
        kept.append([keep(db, db.path.stem, run=run) for run in (1, 2, 3, 4)])
    ours, theirs = kept
    last = max(ours)  # the others are copied before
    last.with_name(f"{last.name}.tmp").symlink_to("/dev/full")
    before = _content(a.path)
    with pytest.raises(AblateError, match=rf"weights {max(theirs)} cannot be copied"):
        merge(a, b)
    assert [file.read_text() for file in ours] == ["a"] * 4
    assert names(a.weights) == sorted(file.name for file in ours)
    assert _content(a.path) == before
    assert merge(a, b).weights == 4 and [file.read_text() for file in ours] == ["b"] * 4


def test_weights_are_copied_while_others_write(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    trained(b, plan_of(**ONE))
    keep(b, "theirs")
    copy = shutil.copyfile

    def writing(source: Path, target: Path) -> None:
        execute(a.path, "INSERT INTO series (name, unit, goal) VALUES ('meanwhile', '', '')")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", writing)
    assert merge(a, b).weights == 1


def test_weights_under_the_name_of_another_run_are_left(two: tuple[Database, Database]) -> None:
    """A database of a stranger may say that its run has the weights of one of ours."""
    a, b = two
    trained(a, plan_of(**ONE))
    ours = keep(a, "ours")
    trained(b, plan_of("other", ("parallel",), (0,)))
    keep(b, "theirs", ours.name).rename(b.weights / ours.name)
    assert merge(a, b).weights == 0
    assert ours.read_text() == "ours" and artifacts(a) == [(1, "final-weights", ours.name)]
    a_too = fresh(a.path.with_name("c.db"))
    with a_too:
        merge(a_too, a)
        execute(a_too.path, "INSERT INTO artifact VALUES (2, 'best-weights', ?)", ours.name)
        register.register(a_too, plan_of("other", ("parallel",), (0,)))
        forgetting.forget(a_too, "other")
        assert [file.read_text() for file in a_too.weights.iterdir()] == ["ours"]


# -- check -----------------------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with fresh(tmp_path / "ablate.db") as db:
        trained(db, plan_of())
        yield db


def _repaired(db: Database, *texts: str, stays: str = "") -> None:
    """`check` finds exactly these and changes nothing; `repair` leaves only `stays`."""
    before = _content(db.path), names(db.journals)
    found = check(db)
    assert len(found) == len(texts) and all(
        text in finding.text for text, finding in zip(texts, found, strict=True)
    ), found
    assert not any(finding.repair for finding in found)
    assert (_content(db.path), names(db.journals)) == before
    assert all(
        finding.repair or (stays and stays in finding.text) for finding in check(db, repair=True)
    )
    assert [finding.text for finding in check(db) if not stays or stays not in finding.text] == []


def test_rows_that_refer_to_nothing(db: Database) -> None:
    execute(db.path, "DELETE FROM run WHERE id = 1")  # sqlite3 itself keeps no foreign keys
    _repaired(
        db,
        "rows of attempt",
        "rows of final",
        "rows of member",
        "rows of run_field",
        "rows of window_loss",
        "6 points belong to a run",
        stays="belongs to no run",
    )


def test_doubled_attempts(db: Database) -> None:
    execute(db.path, "DROP INDEX ix_attempt_accepted")
    columns = "status, owner, heartbeat, journal_offset, evaluation"
    execute(
        db.path,
        f"INSERT INTO attempt (run_id, n, journal, {columns}) SELECT run_id, 2, 'x', {columns} FROM"
        " attempt WHERE id = 1",
    )
    _repaired(db, "run 1 has 2 accepted attempts")
    assert rows(db.path, "SELECT n, status FROM attempt WHERE run_id = 1") == [
        (1, "superseded"),
        (2, "complete"),
    ]


def test_states_that_contradict(db: Database) -> None:
    execute(db.path, "UPDATE run SET status = 'running' WHERE id = 1")
    execute(db.path, "UPDATE attempt SET status = 'superseded' WHERE run_id = 2")
    _repaired(
        db,
        "run 1 is running, but none of its attempts",
        "run 2 is complete, but none of its attempts",
    )
    assert rows(db.path, "SELECT status FROM run") == [
        ("planned",),
        ("planned",),
        ("complete",),
        ("complete",),
    ]


def test_ended_owners_and_their_locks(db: Database) -> None:
    study_id = register.register(db, plan_of(seeds=(0, 1, 2)))
    owner = owners.Owner.here(db)
    claim = claim_next(db, study_id, owner, 1)[0]
    train(claim, status=None)
    assert check(db) == []
    assert owner._lock
    owner._lock.close()  # as a killed process does: the file stays
    _repaired(db, f"run {claim.run_id} is marked running, but its launcher", "lock file")
    assert rows(db.path, "SELECT count(*) FROM metric WHERE run_id = ?", claim.run_id) == [(6,)]


def test_orphan_journals_are_taken_in(db: Database) -> None:
    study_id = register.register(db, plan_of(seeds=(0, 1, 2, 3)))
    with owners.Owner.here(db) as owner:
        whole, cut, done = claim_next(db, study_id, owner, 3)
    train(whole)
    train(cut, status=None)
    train(done)
    execute(db.path, "DELETE FROM attempt WHERE status = 'running'")  # as in a backup from before
    execute(db.path, "UPDATE run SET status = 'planned' WHERE status = 'running'")
    with owners.Owner.here(db) as owner:
        (again,) = [
            claim for claim in claim_next(db, study_id, owner, 3) if claim.run_id == done.run_id
        ]
        train(again, loss=9.0)
        ingest(db, again.attempt_id)
        execute(db.path, "DELETE FROM attempt WHERE status = 'running'")
        execute(db.path, "UPDATE run SET status = 'planned' WHERE status = 'running'")
    _repaired(db, *["belongs to no attempt"] * 3)
    found = rows(
        db.path, "SELECT run_id, status, journal FROM attempt WHERE run_id > 4 ORDER BY id"
    )
    assert sorted(found) == sorted(
        [
            (whole.run_id, "complete", whole.journal.name),
            (cut.run_id, "dead", cut.journal.name),
            (done.run_id, "complete", again.journal.name),
            (done.run_id, "superseded", done.journal.name),
        ]
    )
    assert rows(db.path, "SELECT status, loss FROM runs WHERE run = ?", whole.run_id) == [
        ("complete", 2.0)
    ]
    assert rows(db.path, "SELECT status, loss FROM runs WHERE run = ?", done.run_id) == [
        ("complete", 9.0)
    ]
    assert rows(db.path, "SELECT status FROM run WHERE id = ?", cut.run_id) == [("planned",)]


def test_journal_that_lost_its_end(db: Database) -> None:
    first = sorted(db.journals.glob("*.jsonl"))[0]
    first.write_text("")
    (finding,) = check(db)
    assert "shorter than what was read from it" in finding.text


def test_damage_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with fresh(path) as db:
        trained(db, plan_of(seeds=range(8)), steps=range(400))
    data = bytearray(path.read_bytes())
    middle = len(data) // 4096 // 2  # points, not the schema
    for page in range(middle, middle + 4):
        data[4096 * page : 4096 * page + 64] = b"\xff" * 64
    path.write_bytes(data)
    with store.open(str(path)) as db, pytest.raises(AblateError, match="is damaged"):
        check(db, repair=True)


def test_decisions_go_with_their_plan(tmp_path: Path) -> None:
    """Of two revisions the later one's members and decisions stand: the other's rates would be of
    runs that are no members.
    """
    for name, levels in (("early", ["serial", "parallel"]), ("late", ["serial", "concat"])):
        with fresh(tmp_path / f"{name}.db") as db:
            study_id = register.register(db, plan_of(levels=["serial"]))
            if name == "late":
                register.register(db, plan_of(levels=["serial", "parallel"]))
            register.register(db, plan_of(levels=levels))
            for cell in levels:
                decision = Decision(
                    f"topology={cell}", "lr", 2e-3 if name == "early" else 1e-3, {"basis": name}
                )
                decisions.write(db, study_id, [decision])
    for order in itertools.permutations(["early", "late"]):
        path = _merged(tmp_path, *(tmp_path / f"{name}.db" for name in order))
        with store.open(str(path)) as db:
            assert {decision.cell: decision.value for decision in decisions.read(db, "wiring")} == {
                "topology=serial": 1e-3,
                "topology=concat": 1e-3,
            }
