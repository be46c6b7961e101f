"""Corrupted text for encoder-decoders: what is hidden, what the decoder writes, how often."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import train_helpers
from scipy import stats
from torch import Tensor

from ablate import draws
from ablate.config import RunConfig
from ablate.data import corrupt
from ablate.data.corrupt import Denoise, Span
from ablate.data.objectives import Example
from ablate.errors import AblateError
from ablate.model.transformer import model_of
from ablate.trained import sample as sampling
from ablate.trained.tokens import TextTokenizer

T, B = 64, 200


def _config(objective: str, **fields: Any) -> RunConfig:
    special = {"span": 101, "denoise": 2}[objective]
    return train_helpers.config(
        architecture="encoder-decoder",
        objective=objective,
        n_ctx=T,
        batch_tokens=B * T,
        n_vocab=32 + special,
        **fields,
    )


def _example(config: RunConfig, step: int = 0) -> tuple[Tensor, Example]:
    tokens = train_helpers.text(B * (T + 1) * 2)
    windows = torch.from_numpy(tokens.train[: B * (T + 1)].astype(np.int64)).view(1, B, T + 1)
    objective = {"span": Span, "denoise": Denoise}[config.objective]([config], tokens, "cpu")
    return windows[0, :, :-1], objective.train(windows, step)


def _rows(example: Example) -> list[tuple[list[int], list[int]]]:
    """Return what encoder and decoder have of each row: source, target."""
    assert example.source is not None and example.source_starts is not None
    return [
        (source[starts == 0].tolist(), target[weights > 0].tolist())
        for source, starts, target, weights in zip(
            example.source[0],
            example.source_starts[0],
            example.targets[0],
            example.weights[0],
            strict=True,
        )
    ]


@pytest.mark.parametrize("mean", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.45])
def test_sentinels_put_the_text_together_again(ratio: float, mean: float) -> None:
    config = _config("span", mask_ratio=ratio, mean_span=mean)
    texts, example = _example(config)
    hidden, start = round(ratio * T), config.n_vocab - 1
    spans = max(1, round(hidden / mean))
    lengths = []
    for text, (source, target) in zip(texts.tolist(), _rows(example), strict=True):
        sentinels = [start - k for k in range(1, spans + 2)]
        assert [token for token in target if token >= 32] == sentinels
        assert [token for token in source if token >= 32] == sentinels[:-1]
        assert target[-1] == sentinels[-1] and len(target) == hidden + spans + 1
        parts: dict[int, list[int]] = {}
        for token in target:
            if token >= 32:
                parts[token] = now = []
            else:
                now.append(token)
        lengths += [len(parts[sentinel]) for sentinel in sentinels[:-1]]
        rebuilt = [t for token in source for t in parts.get(token, [token])]
        assert rebuilt == text
        assert source[0] < 32  # a text begins outside of spans, as in T5
    assert min(lengths) >= 1 and np.mean(lengths) == pytest.approx(hidden / spans)
    # what the decoder reads is what it has written
    assert (example.inputs[0, :, 0] == start).all()
    assert torch.equal(example.inputs[0, :, 1:], example.targets[0, :, :-1])


def test_spans_have_the_lengths_of_a_random_partition() -> None:
    """All C(n - 1, s - 1) divisions of n items into s parts are equally likely."""
    ratios, uniforms = (
        torch.tensor([6 / 16]),
        draws.uniforms(torch.tensor([3]), draws.stream("x"), 0, (20_000, 16, 4)),
    )
    hidden, spans = corrupt.noise_spans(uniforms, ratios, 2.0)
    assert int(spans) == 3 and (hidden.sum(-1) == 6).all()
    found: dict[tuple[int, ...], int] = {}
    for row in hidden[0].tolist():
        runs = "".join("x" if flag else " " for flag in row).split()
        lengths = tuple(map(len, runs))
        found[lengths] = found.get(lengths, 0) + 1
    assert len(found) == math.comb(5, 2) and sum(found.values()) == 20_000
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def test_runs_of_a_pack_have_their_own_ratio_and_seed() -> None:
    configs = [
        _config("span", mask_ratio=ratio, seed=seed) for ratio, seed in ((0.15, 0), (0.5, 7))
    ]
    tokens = train_helpers.text(B * (T + 1) * 2)
    windows = torch.from_numpy(tokens.train[: B * (T + 1)].astype(np.int64)).view(1, B, T + 1)
    packed = Span(configs, tokens, "cpu").train(windows.expand(2, -1, -1), 5)
    for k, config in enumerate(configs):
        alone = Span([config], tokens, "cpu").train(windows, 5)
        for ours, theirs in zip(packed, alone, strict=True):
            assert ours is theirs is None or torch.equal(ours[k], theirs[0])
    test = Span(configs[:1], tokens, "cpu").test(windows[0])
    other = Span([configs[0].model_copy(update={"seed": 3})], tokens, "cpu").test(windows[0])
    assert torch.equal(test.inputs, other.inputs)  # held-out text is corrupted alike


@pytest.mark.parametrize(
    "corruption", ["mask", "delete", "infill", "permute", "rotate", "infill-permute"]
)
def test_the_decoder_writes_the_whole_text(corruption: str) -> None:
    config = _config("denoise", corruption=corruption, mask_ratio=0.3)
    texts, example = _example(config)
    assert torch.equal(example.targets[0], texts) and example.weights.min() == 1
    assert (example.inputs[0, :, 0] == config.n_vocab - 1).all()
    assert torch.equal(example.inputs[0, :, 1:], texts[:, :-1])


def _within(parts: list[int], whole: list[int], mask: int) -> bool:
    """Whether a text with masks for any tokens can be the whole: a hand-written regex."""
    reach = {0}
    for token in parts:
        if token == mask:
            reach = set(range(min(reach), len(whole) + 1))
        else:
            reach = {at + 1 for at in reach if at < len(whole) and whole[at] == token}
    return len(whole) in reach


def test_noise_is_what_it_is_called() -> None:
    n = round(0.3 * T)
    for corruption in ("mask", "delete", "infill", "rotate"):
        config = _config("denoise", corruption=corruption, mask_ratio=0.3)
        texts, example = _example(config)
        mask = config.n_vocab - 2
        for text, (source, _) in zip(texts.tolist(), _rows(example), strict=True):
            if corruption == "mask":
                assert len(source) == T and source.count(mask) == n
                assert all(a in (b, mask) for a, b in zip(source, text, strict=True))
            elif corruption == "delete":
                left = iter(text)
                assert len(source) == T - n and all(token in left for token in source)
            elif corruption == "infill":
                assert len(source) - source.count(mask) == T - n
                assert _within(source, text, mask)
            else:
                assert any(source == text[k:] + text[:k] for k in range(T))
    starts = {tuple(row) for row in example.source[0, :, :1].tolist()}  # type: ignore[index]
    assert len(starts) > 1


def test_infilled_spans_have_poisson_lengths() -> None:
    text = torch.arange(400).expand(1, 3000, -1)
    uniforms = draws.uniforms(torch.tensor([3]), draws.stream("x"), 0, (3000, 400, 4))
    source, starts = corrupt.infilled(text, uniforms, torch.tensor([0.3]), 3.0, 998, 999)
    lengths = []
    for row, begins in zip(source[0].tolist(), starts[0].tolist(), strict=True):
        kept = [token for token, start in zip(row, begins, strict=True) if start == 0]
        assert sum(token != 998 for token in kept) == 280
        last, open_ = -1, 0
        found = []
        for token in kept:
            if token == 998:
                open_ += 1
            else:
                assert open_ or token == last + 1  # nothing is missing without a mask
                found += [token - last - 1] if open_ else []
                last, open_ = token, 0
        lengths += found[:-2]  # the last ones are cut where the sum is reached
    counts = np.bincount(lengths, minlength=12)[:12]
    expected = stats.poisson(3).pmf(np.arange(12)) * sum(lengths >= np.int64(0))
    assert abs(np.mean(lengths) - 3) < 0.1
    assert np.abs(counts - expected).max() / len(lengths) < 0.01


@pytest.mark.parametrize("ratio", [0.01, 0.15, 0.5])
def test_texts_with_many_empty_spans_keep_their_tokens(ratio: float) -> None:
    """At mean 1, half of all texts draw more spans than tokens to replace."""
    rows, length, mask, fill = 2000, 64, 998, 999
    text = torch.arange(length).expand(1, rows, -1)
    uniforms = draws.uniforms(torch.tensor([3]), draws.stream("x"), 0, (rows, length, 4))
    given = (torch.tensor([ratio]), 1.0, mask, fill)
    source, starts = corrupt.infilled(text, uniforms, *given)
    n = max(1, round(ratio * length))
    places: tuple[list[int], list[int]] = ([], [])  # of full spans and of empty ones
    for row, begins in zip(source[0].tolist(), starts[0].tolist(), strict=True):
        read = [token for token, start in zip(row, begins, strict=True) if start == 0]
        kept = [token for token in read if token != mask]
        assert fill not in read and len(kept) == length - n and len(read) - len(kept) <= n
        assert _within(read, list(range(length)), mask)
        for at, token in enumerate(read[:-1]):
            if token == mask and read[at + 1] != mask and (at == 0 or read[at - 1] != mask):
                before = read[at - 1] if at else -1
                places[read[at + 1] == before + 1].append(at)
    full, empty = places
    assert ratio < 0.1 or 0 < len(empty) < len(full)
    # whether an empty span is left out does not depend on its place; a text's last one is full
    assert ratio < 0.5 or np.mean(empty) > 0.9 * np.mean(full)


def test_sentences_are_permuted_whole() -> None:
    text = torch.tensor([[[1, 2, 0, 3, 0, 4, 5, 6, 0, 7]]])
    seen = set()
    for seed in range(400):
        uniforms = draws.uniforms(torch.tensor([seed]), draws.stream("x"), 0, (1, 10))
        found = corrupt.permuted(text, text == 0, uniforms)[0, 0].tolist()
        parts = "".join(map(str, found))
        for sentence in ("120", "30", "4560", "7"):
            assert sentence in parts
        seen.add(parts)
    assert len(seen) == 24  # all orders of four sentences


def test_a_prefix_model_reads_the_first_part_and_writes_the_rest() -> None:
    """The control of T5's table 4."""
    config = _config("denoise", corruption="prefix")
    texts, example = _example(config)
    splits = set()
    for text, (source, target) in zip(texts.tolist(), _rows(example), strict=True):
        assert source + target == text and source and target
        splits.add(len(source))
    assert min(splits) < T / 8 and max(splits) > 7 * T / 8
    assert (example.inputs[0, :, 0] == config.n_vocab - 1).all()
    assert torch.equal(example.inputs[0, :, 1:], example.targets[0, :, :-1])


def test_a_causal_model_reads_nothing_and_writes_the_text() -> None:
    config = _config("denoise", corruption="causal")
    texts, example = _example(config)
    start = config.n_vocab - 1
    for text, row in zip(texts.tolist(), _rows(example), strict=True):
        assert row == ([start], text)


ARMS = (
    *(("span", {}), ("span", {"mean_span": 1.0, "mask_ratio": 0.2})),
    *(("denoise", {"corruption": name}) for name in ("mask", "rotate", "prefix", "causal")),
)


def test_the_probe_scores_the_same_tokens_in_all_arms_and_shows_none_of_them() -> None:
    tokens = train_helpers.text(B * (T + 1) * 2)
    windows = torch.from_numpy(tokens.train[: B * (T + 1)].astype(np.int64)).view(B, T + 1)
    scored, examples = [], {}
    for name, fields in ARMS:
        config = _config(name, **fields)
        arm = {"span": Span, "denoise": Denoise}[name]([config], tokens, "cpu")
        example = arm.probe(windows, 0.3)
        targets = zip(example.targets[0], example.weights[0], strict=True)
        scored.append([row[counts > 0].tolist() for row, counts in targets])
        examples[name, *fields.values()] = example
    assert all(rows == scored[0] for rows in scored)
    assert {len(row) for row in scored[0]} == {round(0.3 * T)}
    # what an encoder reads of the text: all that is not hidden, or its beginning, or nothing
    shown = {}
    for key, example in examples.items():
        assert example.source is not None and example.source_starts is not None
        shown[key] = [
            [token for token in row[starts == 0].tolist() if token < 32]
            for row, starts in zip(example.source[0], example.source_starts[0], strict=True)
        ]
        assert torch.equal(example.inputs[0, :, 1:], example.targets[0, :, :-1])
    whole = shown["denoise", "mask"]
    assert shown["span",] == shown["denoise", "rotate"] == whole
    assert shown["span", 1.0, 0.2] == whole
    for text, row, hidden, prefix, none in zip(
        windows[:, :-1].tolist(),
        whole,
        scored[0],
        shown["denoise", "prefix"],
        shown["denoise", "causal"],
        strict=True,
    ):
        assert sorted(row + hidden) == sorted(text) and none == []
        assert prefix == row[: len(prefix)] == text[: len(prefix)]
        assert text[len(prefix)] == hidden[0]  # it ends where the first token is hidden


@pytest.mark.parametrize("corruption", ["infill", "causal"])
def test_a_linear_probe_reads_the_stack_that_reads_text(corruption: str) -> None:
    config = _config("denoise", corruption=corruption, d_model=16, n_head=2, n_layer=1)
    model = model_of(config)
    model.initialise([0])
    texts = torch.randint(32, (1, 3, 10))
    found = model.hidden(texts)
    assert found.shape == (1, 3, 10, 16)
    changed = texts.clone()
    changed[..., 5] = (changed[..., 5] + 1) % 32
    moved = (model.hidden(changed) - found).abs().amax((0, 1, 3)) > 0
    # an encoder sees both sides; a decoder has read a token where it predicts the next
    assert moved.tolist() == [corruption == "infill" or at > 5 for at in range(10)]
    # what fills a row up changes nothing of the text
    longer = torch.cat((texts, texts.flip(-1)), -1)
    starts = torch.where(torch.arange(20) < 10, 0, 10).expand_as(longer)
    torch.testing.assert_close(model.hidden(longer, starts)[:, :, :10], found)


def test_what_cannot_be_corrupted_is_refused() -> None:
    for match, fields in (
        ("needs an encoder", {"architecture": "transformer", "objective": "span"}),
        ("can write 99", {"objective": "span", "n_ctx": 2048, "mask_ratio": 0.5}),
        ("lower mask_ratio", {"objective": "span", "n_ctx": 32, "mask_ratio": 0.95}),
        ("mean_span = 0.5", {"objective": "denoise", "mean_span": 0.5}),
    ):
        with pytest.raises(AblateError, match=match):
            RunConfig(**{"architecture": "encoder-decoder", **fields}, batch_tokens=2048)


@pytest.mark.parametrize("objective", ["span", "denoise"])
def test_a_run_learns_from_corrupted_text(objective: str) -> None:
    config = _config(objective, steps=60).model_copy(update={"batch_tokens": 8 * T})
    (events,) = train_helpers.run(config)
    curve = list(events.series("train_loss").values())
    assert events.end["status"] == "complete" and curve[-1] < curve[0] - 0.5
    assert math.isfinite(events.finals()["loss", 0])


def _sampled(
    monkeypatch: pytest.MonkeyPatch, text: str, write: list[int], **fields: Any
) -> tuple[str, Example]:
    """Return what `sample` makes of a text whose target is decoded as `write`, and of what."""
    special = {"span": 101, "denoise": 2}[fields["objective"]]
    config = RunConfig(
        architecture="encoder-decoder", n_ctx=32, batch_tokens=32, n_vocab=256 + special, **fields
    )
    model: Any = SimpleNamespace(
        config=config,
        tokenizer=TextTokenizer(config, b""),
        transformer=None,
        computing=nullcontext,
        check_reads_text=lambda what: None,
        parameters=lambda: iter([torch.zeros(())]),
    )
    seen: list[Example] = []

    def decode(model: None, example: Example, beam: int, end: int) -> Tensor:
        seen.append(example)
        return torch.tensor([[[*write, *[end] * (32 - len(write))]]])

    monkeypatch.setattr(sampling, "targets", decode)
    return sampling.sample(model, text), seen[0]


def test_sample_restores_a_text_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a [MASK] of[MASK]"
    found, example = _sampled(monkeypatch, text, list(b"a cat of mine"), objective="denoise")
    assert found == "a cat of mine" and example.source is not None
    # one mask a span, and the end of the document
    assert example.source[0, 0].tolist() == [*b"a ", 256, *b" of", 256, 12]
    assert example.weights.min() == 1 and example.inputs[0, 0, 0] == 257
    first, second = 355, 354  # sentinels; 356 begins a target
    written = [first, *b"cat", second, *b" mine"]
    found, example = _sampled(monkeypatch, text, written, objective="span")
    assert found == "a cat of mine" and example.source is not None
    assert example.source[0, 0].tolist() == [*b"a ", first, *b" of", second]
    assert example.inputs[0, 0, :2].tolist() == [356, 353]  # what begins, and what ends a target


def test_sample_continues_a_text_with_the_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    for corruption, source in (("prefix", list(b"It is")), ("causal", [257])):
        fields = {"objective": "denoise", "corruption": corruption}
        found, example = _sampled(monkeypatch, "It is", list(b" a truth"), **fields)
        assert found == "It is a truth" and example.source is not None
        assert example.source[0, 0].tolist() == source
        scored = example.weights[0, 0] > 0  # what a language model reads is no target
        assert example.inputs[0, 0][~scored].tolist() == [257, *b"It i"] * (corruption == "causal")
        with pytest.raises(AblateError, match="only continues a text"):
            _sampled(monkeypatch, "It [MASK]", [], **fields)
    with pytest.raises(AblateError, match=r"0 .MASK."):
        _sampled(monkeypatch, "It is", [], objective="span")
    with pytest.raises(AblateError, match="1 to n_ctx = 32"):
        _sampled(monkeypatch, "It is " * 9, [], objective="denoise")


# what encoder and decoder have of 10 … 17 without 12, 13 and 16: start 2, before 0, behind 1
AROUND = [
    ("span", -1, [10, 11, 29, 14, 15, 28, 17, 1], [29, 12, 13, 28, 16, 1], [12, 13, 16]),
    ("span", 0, [0, 10, 11, 29, 14, 15, 28, 17, 1], [0, 29, 12, 13, 28, 16, 1], [12, 13, 16]),
    ("denoise", 0, [0, 10, 11, 29, 14, 15, 29, 17, 1], [0, *range(10, 18), 1], [12, 13, 16]),
]


@pytest.mark.parametrize(("objective", "before", "source", "target", "scored"), AROUND)
def test_a_folders_tokens_hide_text_and_stand_around_it(
    objective: str, before: int, source: list[int], target: list[int], scored: list[int]
) -> None:
    """T5's and BART's own tokens, by hand; a probe scores hidden tokens alone."""
    given = {"source_token": before, "target_token": 2, "end_token": 1, "hidden_tokens": (29, 28)}
    around = 1 + (before >= 0)
    config = _config(objective, corruption_tokens="folder", **given)
    made = {"span": Span, "denoise": Denoise}[objective]
    of = made([config.model_copy(update={"n_ctx": 8 + around})], train_helpers.text(), "cpu")
    windows = torch.arange(10, 19 + around)[None]
    texts = of._texts(windows[None])
    assert texts[0, 0].tolist() == [*range(10, 18)]
    hidden = torch.zeros(1, 1, 8, dtype=torch.bool)
    hidden[..., [2, 3, 6]] = True
    example = of.restore(texts, hidden)
    (found,) = _rows(example)
    assert found == (source, scored)
    row = example.targets[0, 0].tolist()
    assert row[: len(target)] == target
    assert example.inputs[0, 0].tolist() == [2, *row[:-1]]
    # trained on, all tokens of a target are scored, and the row is no longer than n_ctx
    for example in (of.train(windows[None], 0), of.test(windows)):
        (source, written) = _rows(example)[0]
        assert source[-1] == written[-1] == 1 and (source[0] == written[0] == 0) is (before == 0)
        assert max(len(source), len(written)) <= 8 + around
        if objective == "denoise":
            assert written == target
