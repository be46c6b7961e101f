"""Documents, their pieces, and the held-out rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.text.documents import Document, documents, every_tenth


def _texts(buffer: bytes) -> list[bytes]:
    return [b"".join(document.pieces()) for document in documents(buffer)]


def test_form_feeds_separate_documents_without_the_white_space_around_them() -> None:
    assert _texts(b"\n one\n\ntwo \f\f \r\n\fthree") == [b"one\n\ntwo", b"three"]
    assert _texts(b"") == _texts(b" \f\n") == []


@given(st.text("ab é語\n ", max_size=200), st.integers(4, 40))
def test_pieces_are_the_document_cut_where_white_space_begins_else_between_characters(
    text: str, size: int
) -> None:
    whole = text.encode()
    pieces = list(Document(whole, 0, len(whole)).pieces(size))
    assert b"".join(pieces) == whole
    assert max(map(len, pieces)) <= size
    for before, after in pairwise(pieces):
        begins = after[:1] in (b" ", b"\n") and before[-1:] not in (b" ", b"\n")
        before.decode()
        assert begins or not before.strip() or not (set(before.lstrip()) & set(b" \n"))


@given(st.lists(st.text("ab é\n", min_size=1, max_size=300), min_size=1, max_size=8))
def test_a_part_is_trained_on_or_held_out_and_nothing_is_lost(texts: list[str]) -> None:
    found = list(documents("\f".join(texts).encode()))
    for number, document in enumerate(found):
        split = every_tenth(len(found)).parts(document, number)
        ranges = [(part.start, part.end) for part, _ in split]
        assert ranges == sorted(ranges) and all(a[1] <= b[0] for a, b in pairwise(ranges))
        kept = b" ".join(part.buffer[part.start : part.end] for part, _ in split)
        whole = document.buffer[document.start : document.end]
        assert b"".join(kept.split()) == b"".join(whole.split())
        for part, held_out in split:
            part.buffer[part.start : part.end].decode()
            assert len(part) <= (0.2 if held_out else 1) * len(document)


def test_the_last_tenth_of_each_of_few_documents_is_held_out_from_a_line_on() -> None:
    lines = "".join(f"line {n:03d} of it\n" for n in range(100)).encode().strip()
    (train, first), (tail, second) = every_tenth(49).parts(Document(lines, 0, len(lines)), 3)
    assert (first, second) == (False, True)
    assert lines[tail.start : tail.end].startswith(b"line 090")
    assert lines[train.start : train.end].endswith(b"line 089 of it")


def test_without_lines_the_last_tenth_begins_between_characters() -> None:
    text = ("é" * 105).encode()
    (train, _), (tail, _) = every_tenth(1).parts(Document(text, 0, len(text)), 0)
    assert (len(train), len(tail)) == (188, 22)


@pytest.mark.parametrize("n_documents", [50, 249])
def test_every_tenth_of_many_documents_is_held_out_whole(n_documents: int) -> None:
    document = Document(b"some text", 0, 9)
    held_out = [
        n
        for n in range(n_documents)
        if every_tenth(n_documents).parts(document, n) == [(document, True)]
    ]
    assert held_out == list(range(9, n_documents, 10))
