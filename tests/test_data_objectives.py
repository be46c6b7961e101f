"""What is scored and shown: nested masks, their ratio, whole words, the same in every arm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.objectives import Causal, Example, Masked, SpanMask, WordMask, choose
from ablate.errors import AblateError
from ablate.evaluation import Probe
from ablate.text import Tokens

KINDS = ("token", "span", "whole-word")
T = 200
WORDS = torch.tensor(list(b" ".join(b"abcdefghi"[: 1 + n * n % 83 % 9] for n in range(20_000))))


def _tokens(spelled: bool = True) -> Tokens:
    bounds, numbers = np.array([0, 1]), np.array([0])
    spelling = tuple(bytes([value]) for value in range(256)) if spelled else None
    return Tokens(
        np.zeros(1, np.uint8),
        np.zeros(1, np.uint8),
        256,
        spelling,
        bounds,
        numbers,
        bounds,
        numbers,
    )


def _windows(*shape: int) -> torch.Tensor:
    """Windows [*shape, T + 1] of words of one to nine letters with single spaces between."""
    size = int(np.prod(shape)) * (T + 1)
    return WORDS[:size].reshape(*shape, T + 1)


def _masked(
    ratios: Sequence[float], kind: str = "token", seed: int = 0, **fields: object
) -> Masked:
    configs = [
        RunConfig(
            objective="masked", mask_kind=kind, mask_ratio=ratio, seed=seed, n_vocab=257, **fields
        )  # type: ignore[arg-type]
        for ratio in ratios
    ]
    return Masked(configs, _tokens(), "cpu")


def test_causal_scores_each_next_token() -> None:
    windows = _windows(2, 3)
    example = Causal([RunConfig(), RunConfig(seed=1)], _tokens(), "cpu").train(windows, 0)
    assert torch.equal(example.inputs[..., 1:], example.targets[..., :-1])
    assert torch.equal(torch.cat([example.inputs, example.targets[..., -1:]], -1), windows)
    assert example.weights.shape == (2, 3, T) and (example.weights == 1).all()
    tested = Causal([RunConfig(), RunConfig(seed=1)], _tokens(), "cpu").test(windows[0])
    assert tested.inputs.shape == (2, 3, T) and torch.equal(tested.targets[1], windows[0, :, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_part_of_the_mask_at_every_larger_ratio(kind: str) -> None:
    ratios = [0.05, 0.15, 0.4, 0.41, 0.8, 0.95]
    windows = _windows(1, 16).expand(len(ratios), -1, -1)
    masked = _masked(ratios, kind).train(windows, 7)
    for small, large in zip(masked.weights[:-1], masked.weights[1:], strict=True):
        assert (small <= large).all()
    both = (masked.weights[0] == 1) & (masked.weights[-1] == 1)
    assert torch.equal(masked.inputs[0][both], masked.inputs[-1][both])  # shown alike, too


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.5, 0.95])
def test_every_kind_reaches_its_ratio(kind: str, ratio: float) -> None:
    weights = _masked([ratio], kind).train(_windows(1, 128), 0).weights
    if kind == "token":
        assert (weights.sum(-1) == round(ratio * T)).all()
    else:
        assert (weights.sum(-1) - ratio * T).abs().max() <= (16 if kind == "span" else 5)
        assert abs(weights.mean() - ratio) < 0.01
    assert (weights.sum(-1) >= 1).all()


@pytest.mark.parametrize("length", [2, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_sequence_still_has_something_to_predict(kind: str, length: int) -> None:
    weights = _masked([0.05], kind).train(_windows(1, 64)[..., : length + 1], 0).weights
    assert (weights.sum(-1) >= 1).all() and (weights.sum(-1) < length).any()


def test_targets_are_the_text_and_what_is_not_scored_is_shown_as_it_is() -> None:
    windows = _windows(1, 32)
    example = _masked([0.4]).train(windows, 3)
    assert torch.equal(example.targets, windows[..., :-1])
    hidden = example.weights == 1
    assert torch.equal(example.inputs[~hidden], example.targets[~hidden])


@pytest.mark.parametrize("mix", [(0.8, 0.1, 0.1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0.2, 0.5, 0.3)])
def test_the_mix_sets_how_scored_tokens_are_shown(mix: tuple[float, float, float]) -> None:
    example = _masked([0.5], mask_mix=mix).train(_windows(1, 256), 0)
    scored = example.weights == 1
    inputs, targets = example.inputs[scored], example.targets[scored]
    as_mask, kept = (inputs == 256).double().mean(), (inputs == targets).double().mean()
    assert abs(as_mask - mix[0]) < 0.01
    assert abs(kept - mix[2] - mix[1] / 256) < 0.01
    other = inputs[(inputs != 256) & (inputs != targets)]
    assert len(other) == 0 or (other.min() >= 0 and other.max() <= 255)
    if mix[1] == 1:  # uniform over the whole vocabulary but [MASK]
        counts = torch.bincount(other, minlength=256)
        assert len(counts) == 256 and counts.min() > 0.5 * counts.double().mean()


def test_whole_words_are_masked_whole_with_the_space_before_them() -> None:
    example = _masked([0.3], "whole-word").train(_windows(1, 64), 0)
    for text, hidden in zip(
        example.targets[0].tolist(), example.weights[0].bool().tolist(), strict=True
    ):
        words: list[set[bool]] = []
        for letter, mask in zip(text, hidden, strict=True):
            if letter == ord(" ") or not words:
                words.append(set())
            words[-1].add(mask)
        assert all(len(word) == 1 for word in words)
        assert {True} in words and {False} in words


def test_signs_and_line_ends_are_words_of_their_own() -> None:
    # bytes from 128 on are letters
    words = ["(", "ab", ")", ",", " c3", "\n", "de", " ", " «f»", "!"]
    text = torch.tensor(list("".join(words).encode()))[None, None]
    starts = WordMask(_tokens(), "cpu").starts(text, torch.zeros(text.shape))
    expected = np.cumsum([0] + [len(word.encode()) for word in words[:-1]])
    assert np.flatnonzero(starts[0, 0].numpy()).tolist() == expected.tolist()


def test_a_word_without_end_is_cut() -> None:
    windows = torch.full((1, 8, T + 1), ord("a"))
    weights = _masked([0.5], "whole-word").train(windows, 0).weights
    assert (weights.sum(-1) - T / 2).abs().max() <= 16
    assert (weights[..., :16] == weights[..., :1]).all() and weights.std() > 0


def test_spans_have_geometric_lengths_of_mean_three() -> None:
    uniforms = torch.rand(1, 2000, T, generator=torch.Generator().manual_seed(0))
    starts = SpanMask(_tokens(), "cpu").starts(uniforms, uniforms)
    lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in starts[0].numpy()])
    assert abs(lengths.mean() - 3) < 0.05
    assert abs((lengths == 1).mean() - 1 / 3) < 0.01 and abs((lengths == 2).mean() - 2 / 9) < 0.01
    weights = _masked([0.15], "span").train(_windows(1, 400), 0).weights[0].bool().numpy()
    runs = sum(np.count_nonzero(np.diff(row.astype(int), prepend=0) == 1) for row in weights)
    assert 2.5 < weights.sum() / runs < 4.5  # neighbouring spans join


def test_groups_are_taken_in_order_whole_while_half_of_the_next_fits() -> None:
    order = torch.tensor([[[0.9, 0.0, 0.0, 0.5, 0.0, 0.1, 0.0, 0.3]]])
    # sizes 3, 2, 2, 1; taken 4th, 3rd, 1st, 2nd
    starts = torch.tensor([[[True, False, False, True, False, True, False, True]]])
    expected = {
        1: "00000110",
        2: "00000110",
        3: "00000111",
        4: "00011111",
        5: "00011111",
        6: "00011111",
        7: "11111111",
        8: "11111111",
    }
    for count, bits in expected.items():
        chosen = choose(order, starts, torch.tensor([count / 8]))
        assert "".join(str(int(bit)) for bit in chosen[0, 0]) == bits


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_of_a_pack_and_a_row_of_a_batch_draw_what_they_draw_alone(kind: str) -> None:
    windows = _windows(2, 16)
    configs = [
        RunConfig(objective="masked", mask_kind=kind, mask_ratio=r, seed=s, n_vocab=257)
        for s, r in ((3, 0.2), (9, 0.6))
    ]
    pack = Masked(configs, _tokens(), "cpu").train(windows, 5)
    for member, config in enumerate(configs):
        alone = Masked([config], _tokens(), "cpu").train(
            windows[member : member + 1, 4:9], torch.tensor(5), row=4
        )
        for whole, part in zip(pack[:3], alone[:3], strict=True):
            assert torch.equal(whole[member : member + 1, 4:9], part)
    assert not torch.equal(
        pack.weights[0], Masked(configs, _tokens(), "cpu").train(windows, 6).weights[0]
    )
    assert not torch.equal(
        _masked([0.3], kind, 1).train(windows[:1], 5).weights,
        _masked([0.3], kind, 2).train(windows[:1], 5).weights,
    )


def test_a_pack_that_is_loaded_with_other_runs_draws_as_a_new_one() -> None:
    windows = _windows(1, 8)
    loaded = _masked([0.2], seed=1)
    loaded.load([RunConfig(objective="masked", mask_ratio=0.7, seed=2, n_vocab=257)])
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            loaded.train(windows, 3)[:3], _masked([0.7], seed=2).train(windows, 3)[:3], strict=True
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_masks_depend_on_no_seed_and_nest_across_ratios(kind: str) -> None:
    windows = _windows(24)
    one, two = (_masked([0.15, 0.4], kind, seed).test(windows) for seed in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one[:3], two[:3], strict=True))
    assert one.inputs.shape == (2, 24, T) and (one.weights[0] <= one.weights[1]).all()


def test_the_probe_scores_the_same_tokens_in_every_arm_however_it_trained() -> None:
    windows = _windows(24)
    arms = [
        _masked([0.15], "token", 1),
        _masked([0.4, 0.9], "span", 2, mask_mix=(0, 1, 0)),
        _masked([0.8], "whole-word", 3, attention="causal", n_layer=2, n_ctx=T, batch_tokens=T),
    ]
    for probe in (Probe(), Probe(kind="span", mix=(0.8, 0.1, 0.1))):
        grids = [[arm.probe(windows, ratio, probe) for ratio in (0.15, 0.4, 0.8)] for arm in arms]
        for grid in grids[1:]:
            assert all(
                torch.equal(a, b)
                for one, two in zip(grids[0], grid, strict=True)
                for a, b in zip(one[:3], two[:3], strict=True)
            )
        assert (grids[0][0].weights <= grids[0][1].weights).all() and (
            grids[0][1].weights <= grids[0][2].weights
        ).all()
    example = arms[1].probe(windows, 0.4, Probe())
    assert example.inputs.shape == (1, 24, T) and (example.weights.sum(-1) == 80).all()
    assert torch.equal(example.inputs == 256, example.weights == 1)


@pytest.mark.parametrize(
    ("count", "scored"), [(24 * 5, 24 * 5), (24 * 5 + 3, 24 * 5), (7, 7), (10**6, 24 * T)]
)
def test_pseudo_perplexity_hides_one_token_at_a_time(count: int, scored: int) -> None:
    windows = _windows(24)
    example = _masked([0.15], "span", 4).alone(windows, count)
    assert example.inputs.shape == (1, scored, T)
    assert (example.weights.sum(-1) == 1).all()
    assert torch.equal(example.inputs == 256, example.weights == 1)
    where = {
        (tuple(text), position)
        for text, position in zip(
            example.targets[0].tolist(), example.weights[0].argmax(-1).tolist(), strict=True
        )
    }
    assert len(where) == scored
    assert {text for text, _ in where} <= {tuple(text) for text in windows[:, :-1].tolist()}


def test_the_end_of_an_example_scores_the_same_tokens_with_less_before_them() -> None:
    windows = _windows(6)
    for objective in (Causal([RunConfig()], _tokens(), "cpu"), _masked([0.4])):
        longest = objective.test(windows)
        short, long = longest.last(50, 10), longest.last(T, 10)
        assert short.inputs.shape == (1, 6, 50) and long.inputs.shape == (1, 6, T)
        assert (
            torch.equal(short.weights[..., -10:], long.weights[..., -10:])
            and short.weights[..., :-10].sum() == 0
        )
        assert (
            torch.equal(short.weights[..., -10:], longest.weights[..., -10:])
            and long.weights.sum() == short.weights.sum()
        )
        assert torch.equal(short.targets, long.targets[..., -50:]) and torch.equal(
            short.inputs, long.inputs[..., -50:]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_waits_for_the_device(kind: str) -> None:
    masked = _masked([0.2, 0.4], kind)
    windows = _windows(2, 4)

    def step(windows: torch.Tensor, number: torch.Tensor) -> Example:
        return masked.train(windows, number)

    # refuses whatever depends on values
    traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(
        windows, torch.tensor(1)
    )
    for ours, theirs in zip(
        step(windows, torch.tensor(2))[:3], traced(windows, torch.tensor(2))[:3], strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_draws_what_the_cpu_draws(kind: str) -> None:
    configs = [
        RunConfig(objective="masked", mask_kind=kind, mask_ratio=r, seed=3, n_vocab=257)
        for r in (0.2, 0.6)
    ]
    masked, step = (
        Masked(configs, _tokens(), "cuda"),
        torch.zeros((), dtype=torch.int64, device="cuda"),
    )
    windows = _windows(2, 16)
    there = windows.cuda()
    masked.train(there, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        example = masked.train(there, step)
    for number in (1, 70):
        step.fill_(number)
        graph.replay()
        ours = Masked(configs, _tokens(), "cpu").train(windows, number)
        assert ours.starts is example.starts is None
        for of_cpu, of_gpu in zip(ours[:3], example[:3], strict=True):
            assert torch.equal(of_cpu, of_gpu.cpu())


def test_whole_words_need_tokens_that_spell_text() -> None:
    config = RunConfig(objective="masked", mask_kind="whole-word", n_vocab=257)
    with pytest.raises(
        AblateError, match="mask_kind = 'whole-word' needs a tokenizer whose tokens spell text"
    ):
        Masked([config], _tokens(spelled=False), "cpu")


@pytest.mark.parametrize("name", ["objective", "mask_kind"])
def test_the_catalogue_names_the_classes(name: str) -> None:
    for level in CATALOGUE[name].levels:
        assert level.load().__module__.startswith("ablate.data.")
