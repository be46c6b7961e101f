"""Journals into tables: every event, every value, exactly once."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Run
from store_plans import claim_next, execute, of_windows, plan_of, rows, train

from ablate import results, windows
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.store import Database, owners, records, register, schema
from ablate.store import ingest as module
from ablate.store.ingest import IngestError, ingest, ingest_all

VALUES = [
    0.0,
    1.5,
    5e-324,
    -2.2250738585072014e-308,
    1e308,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    0.1,
    2**53 + 0.0,
]


@pytest.fixture
def claim(db: Database, owner: owners.Owner) -> records.Claim:
    return claim_next(db, register.register(db, plan_of()), owner, 1)[0]


def _bits(value: float | None) -> bytes:
    return struct.pack("<d", schema.from_db(value))


def test_every_event_reaches_its_columns(db: Database, claim: records.Claim) -> None:
    with Journal(claim.journal) as journal:
        journal.append(
            "start",
            step=0,
            time=86400.5,
            host="h",
            pid=7,
            device="cuda:0",
            threads=2,
            pack_size=4,
            compile_mode="default",
            versions={"torch": "2.13"},
            commit="abc",
            dirty=True,
        )
        journal.append("metrics", steps=[10, 20], series={"loss": [2.5, 2.0], "lr": [1, 2]})
        journal.append("checkpoint", step=20, path="a.checkpoints/x.pt")
        journal.append("final", values=[["loss", 0, 2.0], ["loss_at_length", 2, 2.25]])
        journal.append(
            "end",
            status="complete",
            step=20,
            error=None,
            device_seconds=3.5,
            peak_bytes=1 << 40,
            time=86401,
        )
    events = ingest(db, claim.attempt_id)
    assert [event["event"] for event in events] == [
        "start",
        "metrics",
        "checkpoint",
        "final",
        "end",
    ]
    assert rows(
        db.path,
        'SELECT n, status, host, device, threads, pack_size, compile_mode, versions, "commit",'
        " dirty, started, ended, device_seconds, peak_bytes, resumed_step, error, journal_offset"
        " FROM attempt",
    ) == [
        (
            1,
            "complete",
            "h",
            "cuda:0",
            2,
            4,
            "default",
            '{"torch": "2.13"}',
            "abc",
            1,
            "1970-01-02T00:00:00.500Z",
            "1970-01-02T00:00:01.000Z",
            3.5,
            1 << 40,
            0,
            None,
            claim.journal.stat().st_size,
        )
    ]
    assert rows(db.path, "SELECT series, step, tokens, value FROM curves ORDER BY 1, 2") == [
        ("loss", 10, 640, 2.5),
        ("loss", 20, 1280, 2.0),
        ("lr", 10, 640, 1.0),
        ("lr", 20, 1280, 2.0),
    ]
    assert rows(db.path, "SELECT name, at, value FROM final ORDER BY 1") == [
        ("loss", 0.0, 2.0),
        ("loss_at_length", 2.0, 2.25),
    ]
    assert rows(db.path, "SELECT run_id, kind, path FROM artifact") == [
        (claim.run_id, "checkpoint", "a.checkpoints/x.pt")
    ]
    assert rows(db.path, "SELECT unit, goal FROM series WHERE name = 'loss'") == [("nats", "min")]
    assert ingest(db, claim.attempt_id) == []


@pytest.mark.parametrize("place", ["metric", "final"])
def test_values_come_back_bit_by_bit(db: Database, claim: records.Claim, place: str) -> None:
    values = [*VALUES, math.nan]
    with Journal(claim.journal) as journal:
        if place == "metric":
            journal.append("metrics", steps=list(range(len(values))), series={"x": values})
        else:
            journal.append("final", values=[["x", at, value] for at, value in enumerate(values)])
    ingest(db, claim.attempt_id)
    order = "step" if place == "metric" else "at"
    stored = [value for (value,) in rows(db.path, f"SELECT value FROM {place} ORDER BY {order}")]
    assert stored[-1] is None and math.isnan(schema.from_db(stored[-1]))
    assert [_bits(value) for value in stored] == [_bits(value) for value in values]
    assert [schema.to_db(value) for value in values] == stored


@pytest.mark.parametrize("points", [1, 9, 10, 49, 50, 51, 61, 100, 1000])
def test_every_point_of_a_long_series_once(db: Database, claim: records.Claim, points: int) -> None:
    with Journal(claim.journal) as journal:
        for first in range(0, points, 7):
            steps = list(range(first, min(first + 7, points)))
            journal.append(
                "metrics",
                steps=steps,
                series={name: [step / 7 + k for step in steps] for k, name in enumerate("ab")},
            )
    ingest(db, claim.attempt_id)
    wanted = [(name, step, step / 7 + k) for k, name in enumerate("ab") for step in range(points)]
    assert rows(db.path, "SELECT series, step, value FROM curves ORDER BY series, step") == wanted


def test_half_a_character_in_an_error(db: Database, claim: records.Claim) -> None:
    """A file name that is not UTF-8 has lone surrogates in Python; no database takes them."""
    with Journal(claim.journal) as journal:
        journal.append("end", status="failed", step=0, error="no file caf\udce9 – ∞")
    ingest(db, claim.attempt_id)
    assert rows(db.path, "SELECT error FROM attempt") == [("no file caf? – ∞",)]


def test_losses_of_windows_are_taken_once_and_read_as_they_were(
    db: Database, claim: records.Claim
) -> None:
    """977 windows of a million tokens: evenly spaced, the last one shorter."""
    random = np.random.default_rng(0)
    starts = np.linspace(0, 2733, 977).astype(np.int64) * 1024
    scored = np.full(977, 1024)
    scored[-1] = 512
    losses = random.normal(1.2, 0.1, 977).astype(np.float32)
    losses[5] = np.nan
    packed = windows.WindowLosses("loss", 0.0, 1024, starts, scored, losses).packed()
    assert len(packed[0]) < 600, "starts and counts take less than the losses"
    with Journal(claim.journal) as journal:
        layout, values = (base64.b64encode(part).decode() for part in packed)
        event = {"name": "loss", "at": 0.0, "tokens": 1024, "layout": layout, "losses": values}
        journal.append("windows", **event)
        ingest(db, claim.attempt_id)
        journal.append("windows", **event)  # as a resumed attempt measures them again
        ingest(db, claim.attempt_id)
    frame = results.window_losses("wiring", db)
    assert frame["window"].tolist() == starts.tolist()
    assert frame["scored"].tolist() == scored.tolist()
    assert frame["loss"].to_numpy().tobytes() == losses.tobytes()
    assert frame["tokens"].unique().tolist() == [1024]
    assert results.window_losses("wiring", db, "probe_loss@0.4").empty


@pytest.mark.parametrize("damage", ["layout", "losses"])
def test_windows_that_could_not_be_read_are_refused(
    db: Database, claim: records.Claim, damage: str
) -> None:
    with Journal(claim.journal) as journal:
        journal.append("windows", **of_windows(2.0) | {damage: "AAAA"})
    with pytest.raises(IngestError, match="windows"):
        ingest(db, claim.attempt_id)
    assert rows(db.path, "SELECT count(*) FROM window_loss") == [(0,)]


def test_piecewise_and_torn_lines(db: Database, claim: records.Claim) -> None:
    train(claim, steps=range(1, 40))
    whole = claim.journal.read_bytes()
    claim.journal.write_bytes(b"")
    seen = 0
    for end in range(0, len(whole) + 97, 97):
        claim.journal.write_bytes(whole[:end])
        seen += len(ingest(db, claim.attempt_id))
    assert seen == 5
    assert rows(
        db.path, "SELECT count(*), count(DISTINCT step), sum(value) FROM metric WHERE series_id = 1"
    ) == [(39, 39, pytest.approx(sum(2 + 1 / step for step in range(1, 40))))]


def test_start_deletes_points_beyond_its_step(db: Database, claim: records.Claim) -> None:
    with owners.Owner.here(db) as owner:
        train(claim, steps=range(0, 100, 10), status="stopped")
        ingest(db, claim.attempt_id)
        # another run: not to be touched
        execute(db.path, "INSERT INTO metric SELECT 2, series_id, step, value FROM metric")
        again = claim_next(db, 1, owner, 1)[0]
        assert again.run_id == claim.run_id
        train(again, steps=(60, 70), start=50, loss=7.0)
        ingest(db, again.attempt_id)
    stored = rows(db.path, "SELECT step, value FROM metric WHERE run_id = 1 AND series_id = 1")
    assert [step for step, _ in stored] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert [value for _, value in stored] == [
        3,
        *(2 + 1 / s for s in (10, 20, 30, 40, 50)),
        *(7 + 1 / s for s in (60, 70)),
    ]
    assert rows(db.path, "SELECT count(*) FROM metric WHERE run_id = 2") == [(20,)]
    assert rows(db.path, "SELECT status, resumed_step FROM attempt") == [
        ("stopped", 0),
        ("complete", 50),
    ]


def test_rows_and_offset_are_one_transaction(
    db: Database, claim: records.Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(claim)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(module, "_end", fail)
        ingest(db, claim.attempt_id)
    assert rows(db.path, "SELECT count(*) FROM metric") == [(0,)]
    assert rows(db.path, "SELECT journal_offset, status FROM attempt") == [(0, "running")]
    assert rows(db.path, "SELECT count(*) FROM series") == [(0,)]
    assert len(ingest(db, claim.attempt_id)) == 5  # no stale series id either
    assert rows(db.path, "SELECT count(*) FROM curves") == [(6,)]


def test_ingester_that_read_the_same_lines_gets_nothing(
    db: Database, claim: records.Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(claim, status=None)
    read = module.journal.read

    def slow_read(path: Path, offset: int) -> object:
        found = read(path, offset)
        monkeypatch.setattr(module.journal, "read", read)
        assert len(ingest(db, claim.attempt_id)) == 2  # another one is quicker
        return found

    monkeypatch.setattr(module.journal, "read", slow_read)
    assert ingest(db, claim.attempt_id) == []
    assert rows(db.path, "SELECT count(*) FROM metric") == [(6,)]


# -- several together ------------------------------------------------------------------------------


@pytest.fixture
def pack(db: Database, owner: owners.Owner) -> list[records.Claim]:
    return claim_next(db, register.register(db, plan_of()), owner, 4)


def _points(db: Database) -> dict[int, int]:
    return dict(rows(db.path, "SELECT run_id, count(*) FROM metric GROUP BY run_id"))


def test_a_pack_is_one_transaction(
    db: Database, pack: list[records.Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    for claim in pack:
        train(claim)
    begun = []
    begin = Database.begin
    monkeypatch.setattr(Database, "begin", lambda self: begun.append(1) or begin(self))
    events = ingest_all(db, [claim.attempt_id for claim in pack])
    assert {attempt: [event["event"] for event in new] for attempt, new in events.items()} == {
        claim.attempt_id: ["start", "metrics", "windows", "final", "end"] for claim in pack
    }
    assert len(begun) == 1
    assert _points(db) == {claim.run_id: 6 for claim in pack}
    assert rows(db.path, "SELECT count(*), sum(status = 'complete') FROM attempt") == [(4, 4)]
    assert ingest_all(db, [claim.attempt_id for claim in pack]) == {
        claim.attempt_id: [] for claim in pack
    }


DAMAGE = {  # a line, and how its error goes on behind "is damaged after byte 0: "
    "a line that is no JSON": (b'{"event": "metrics", "steps": [1\n', ".* its checksum"),
    "a line that is no object": (b"[]\n", "a line of 2 bytes does not have its checksum"),
    "points without steps": (
        b'{"event": "metrics", "steps": [], "series": {"x": [1]}}\n',
        "series 'x' does not have one value per step",
    ),
    "an object for a step": (
        b'{"event": "metrics", "steps": [{}], "series": {"x": [1]}}\n',
        ".*type 'dict' is not supported",
    ),
    "nothing for a step": (
        b'{"event": "metrics", "steps": [null], "series": {"x": [1]}}\n',
        "NOT NULL constraint failed",
    ),
    "a step beyond all numbers": (
        b'{"event": "metrics", "steps": [1%s], "series": {"x": [1]}}\n' % (20 * b"0"),
        ".*too large",
    ),
    "a list for series": (
        b'{"event": "metrics", "steps": [1], "series": [[1]]}\n',
        "'list' object has no attribute",
    ),
    "an event of a later version": (b'{"event": "surprise"}\n', "event 'surprise' is unknown"),
    "a line that lacks what it needs": (b'{"event": "end"}\n', "key 'status' is missing"),
}


def _damage(claim: records.Claim, how: str) -> str:
    """Append a line to the journal; how the error has to read, as a regular expression."""
    line, why = DAMAGE[how]
    if line.endswith(b"}\n"):  # a later version's, or a faulty one's, and as it was written
        line = line[:-2] + b',"crc":"%08x"}\n' % zlib.crc32(line[:-1])
    with claim.journal.open("ab") as file:
        file.write(line)
    return f"^journal {re.escape(str(claim.journal))} is damaged after byte 0: {why}"


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_journal_blocks_no_other(
    db: Database, pack: list[records.Claim], how: str
) -> None:
    for claim in pack:
        train(claim)
    with pytest.raises(IngestError, match=_damage(pack[1], how)) as error:
        ingest_all(db, [claim.attempt_id for claim in pack])
    others = [claim for claim in pack if claim is not pack[1]]
    taken = {
        claim.attempt_id: ["start", "metrics", "windows", "final", "end"] for claim in others
    } | {pack[1].attempt_id: []}
    assert {
        attempt: [event["event"] for event in events]
        for attempt, events in error.value.ingested.items()
    } == taken
    assert _points(db) == {claim.run_id: 6 for claim in others}, (
        "of the damaged one nothing, of the others all"
    )
    ends = {claim.run_id: ("complete", claim.journal.stat().st_size) for claim in others} | {
        pack[1].run_id: ("running", 0)
    }
    assert {
        run: tuple(rest)
        for run, *rest in rows(db.path, "SELECT run_id, status, journal_offset FROM attempt")
    } == ends


def test_of_several_damaged_journals_one_is_named_and_all_are_counted(
    db: Database, pack: list[records.Claim]
) -> None:
    for claim in pack:
        train(claim)
    unknown = _damage(pack[1], "an event of a later version")
    _damage(pack[2], "a line that lacks what it needs")
    with pytest.raises(
        IngestError, match=f"{unknown}; it is one of 2 journals that cannot be ingested$"
    ):
        ingest_all(db, [claim.attempt_id for claim in pack])


MARKED_DEAD = {  # ways in which a dead attempt is taken back
    "mark_all_dead": lambda db, again, ablate: owners.mark_all_dead(db),
    "claim": lambda db, again, ablate: claim_next(db, 1, again, 1),
    "db check --repair": lambda db, again, ablate: ablate(
        "db", "check", "--repair", "--db", str(db.path)
    ),
}


@pytest.mark.parametrize("way", MARKED_DEAD)
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_journal_of_an_ended_owner_stops_nothing(
    db: Database, ablate: Run, how: str, way: str
) -> None:
    with owners.Owner.here(db) as owner:
        dead = claim_next(db, register.register(db, plan_of()), owner, 1)[0]
    train(dead, status=None)
    damaged = _damage(dead, how)
    with owners.Owner.here(db) as again:
        answer = MARKED_DEAD[way](db, again, ablate)
    if way == "db check --repair":
        code, out, err = answer
        assert (code, err) == (0, "")
        assert (
            f"run {dead.run_id} is marked running, but its launcher and worker no longer run:"
            " planned again" in out
        )
    ((status, error),) = rows(
        db.path, "SELECT status, error FROM attempt WHERE id = ?", dead.attempt_id
    )
    gone, _, why = error.partition("; ")
    assert (status, gone) == ("dead", "its launcher and its worker no longer ran") and re.match(
        damaged, why
    )
    with owners.Owner.here(db) as last:
        claimed = answer if way == "claim" else claim_next(db, 1, last, 1)
    assert [(claim.run_id, claim.n) for claim in claimed] == [(dead.run_id, 2)], (
        "the run is done again"
    )


def test_a_full_disk_takes_in_none_and_then_all(db: Database, pack: list[records.Claim]) -> None:
    for claim in pack:
        train(claim, steps=range(5000))
    with db.begin() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        # room for one of the four
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 60}")
    with pytest.raises(AblateError, match="disk is full"):
        ingest_all(db, [claim.attempt_id for claim in pack])
    assert _points(db) == {}
    with db.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    ingest_all(db, [claim.attempt_id for claim in pack])
    assert _points(db) == {claim.run_id: 10_000 for claim in pack}


def test_of_a_pack_that_another_reads_too_each_run_is_taken_once(
    db: Database, pack: list[records.Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    for claim in pack:
        train(claim, status=None)
    execute(
        db.path,
        "CREATE TRIGGER twice BEFORE UPDATE ON metric BEGIN SELECT RAISE(ABORT, 'a point came"
        " twice'); END",
    )
    read = module.journal.read

    def slow_read(path: Path, offset: int) -> object:
        found = read(path, offset)
        monkeypatch.setattr(module.journal, "read", read)
        # another process is quicker with one of them
        assert len(ingest(db, pack[2].attempt_id)) == 2
        return found

    monkeypatch.setattr(module.journal, "read", slow_read)
    new = ingest_all(db, [claim.attempt_id for claim in pack])
    assert [len(new[claim.attempt_id]) for claim in pack] == [2, 2, 0, 2]
    assert _points(db) == {claim.run_id: 6 for claim in pack}


def test_no_attempts_are_no_work(db: Database) -> None:
    assert ingest_all(db, []) == {}
