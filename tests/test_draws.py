"""Draws are Philox4x32-10 and a pure function of (seed, stream, step, row, number)."""

from __future__ import annotations

import pytest
import torch

from ablate import draws

# Random123 1.14, tests/kat_vectors, lines "philox4x32 10": counter, key → result.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def _words(text: str) -> list[torch.Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers_of_random123(counter: str, key: str, result: str) -> None:
    assert [
        f"{int(word):08x}" for word in draws.philox4x32(_words(counter), _words(key))
    ] == result.split()


def test_words_are_the_generators_for_key_seed_stream_and_counter_number_row_step() -> None:
    drawn = draws.words(torch.tensor([5, 9]), 7, 11, (2, 3, 4), row=20)
    expected = draws.philox4x32(
        [torch.tensor(n) for n in (2, 21, 11, 0)], [torch.tensor(9), torch.tensor(7)]
    )
    assert drawn[1, 1, 2].tolist() == [int(word) for word in expected]
    assert (
        draws.words(torch.tensor([9]), 7, 11, (1, 10), row=21)[0, 0].tolist()
        == drawn[1, 1].flatten()[:10].tolist()
    )


def test_a_draw_does_not_depend_on_pack_micro_batch_or_the_kind_of_step() -> None:
    whole = draws.uniforms(torch.tensor([1, 2, 3]), 4, 6, (8, 5, 3))
    part = draws.uniforms(torch.tensor([2]), 4, torch.tensor(6), (3, 5, 3), row=torch.tensor(4))
    assert torch.equal(part[0], whole[1, 4:7])


@pytest.mark.parametrize(
    "change", [{"seed": torch.tensor([8])}, {"stream": 5}, {"step": 3}, {"row": 1}]
)
def test_each_coordinate_changes_the_draw(change: dict[str, object]) -> None:
    given: dict = {"seed": torch.tensor([1]), "stream": 4, "step": 2, "row": 0}
    one, other = (
        draws.uniforms(**given, shape=(1, 64)),
        draws.uniforms(**(given | change), shape=(1, 64)),
    )
    assert (one == other).sum() == 0


def test_uniforms_are_uniform_and_independent() -> None:
    drawn = draws.uniforms(torch.tensor([3, 4]), draws.stream("mask"), 1, (64, 512, 4))
    assert drawn.dtype == torch.float32 and drawn.min() >= 0 and drawn.max() < 1
    counts = torch.histc(drawn, 32, 0, 1)
    expected = drawn.numel() / 32
    # chi-square, 31 degrees: p = 1e-4 at 67
    assert ((counts - expected) ** 2 / expected).sum() < 70
    assert torch.corrcoef(drawn.reshape(-1, 4).T).triu(1).abs().max() < 0.015
    assert torch.corrcoef(drawn.reshape(2, -1))[0, 1].abs() < 0.015


def test_compiled_draws_are_the_same() -> None:
    seed, step = torch.tensor([1, 2]), torch.tensor(3)
    # else the compiler first builds a program for each set of vector instructions of the processor
    known = {"cpp.vec_isa_ok": True}
    compiled = torch.compile(draws.uniforms, fullgraph=True, options=known)
    assert torch.equal(compiled(seed, 4, step, (3, 7)), draws.uniforms(seed, 4, step, (3, 7)))
