"""The journal of an attempt: what was written is read, what was changed since is noticed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ablate import journal

EVENTS = [
    {"event": "start", "step": 0, "host": "é\u2028 \u0085\n", "time": 1.5},
    {"event": "metrics", "steps": [1, 2], "series": {"loss": [0.1 + 0.2, math.inf]}},
    {"event": "end", "status": "complete", "error": None, "note": ',"crc":"00000000"}'},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with journal.Journal(tmp_path / "a.jsonl") as writing:
        for event in EVENTS:
            writing.append(**event)
    return tmp_path / "a.jsonl"


def test_events_are_read_as_they_were_written(path: Path) -> None:
    size = path.stat().st_size
    assert journal.read(path) == (EVENTS, size)
    assert journal.read(path, size) == ([], size)
    for line, event in zip(path.read_bytes().splitlines(), EVENTS, strict=True):
        assert json.loads(line).items() > event.items()  # also plain JSON


def test_a_journal_of_an_earlier_version_is_read(path: Path) -> None:
    path.write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))
    assert journal.read(path)[0] == EVENTS
    path.write_bytes(path.read_bytes() + b'{"event": "metrics", "steps": [1\n')
    with pytest.raises(ValueError, match="EOF while parsing"):
        journal.read(path)


@pytest.mark.parametrize("bit", [0x01, 0x20, 0x80])
def test_every_flipped_byte_is_noticed(path: Path, bit: int) -> None:
    data = path.read_bytes()
    for place in range(len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"."):
            journal.read(path)
    path.write_bytes(data[:-1] + b"\x0b")  # its last line is not complete
    assert journal.read(path) == (EVENTS[:2], data[:-1].rindex(b"\n") + 1)


def test_a_torn_line_waits_for_its_rest(path: Path) -> None:
    data = path.read_bytes()
    second = data.index(b"\n") + 1
    for length in range(second, len(data)):
        path.write_bytes(data[:length])
        events, offset = journal.read(path, second)
        assert events == EVENTS[1 : 1 + len(events)] and len(events) < 2
        path.write_bytes(data)
        assert events + journal.read(path, offset)[0] == EVENTS[1:]
