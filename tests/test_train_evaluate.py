"""Values on held-out text, worked by hand for a model of two tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import train_helpers
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.frequencies import repeated
from ablate.evaluation import Evaluation
from ablate.text.frequencies import counts
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step


def _finals(
    config: RunConfig,
    held_out: np.ndarray,
    share: Callable[[Tensor], Tensor],
    evaluation: Evaluation,
) -> dict[tuple[str, float], float]:
    """Return the finals of a model with p(token 0) = `share(inputs)`, p(token 1) the rest."""
    tokens = dataclasses.replace(train_helpers.text(), held_out=held_out.astype(np.uint8))
    step = Step([config], tokens, "cpu")

    def head(inputs: Tensor) -> Tensor:
        logits = torch.full((*inputs.shape, config.n_vocab), -1e9)
        logits[..., 0], logits[..., 1] = share(inputs).log(), (1 - share(inputs)).log()
        return logits

    step.model.features, step.model.head = (lambda inputs, *_: inputs), head  # type: ignore[assignment, method-assign]
    found = Evaluator(step, [config], evaluation, tokens).finals()
    return {(name, at): value for name, at, (value,) in found}


def test_masked_numbers_by_hand() -> None:
    """Half of the windows are token 0, half token 1; p(0) is 3/4 at [MASK], else 1/2."""
    half = 8 * 16
    held_out = np.repeat([0, 1], [half, half + 1])
    finals = _finals(
        train_helpers.config(objective="masked", mask_ratio=0.5, mask_mix=(1, 0, 0)),
        held_out,
        lambda inputs: torch.where(inputs == 32, 0.75, 0.5),
        Evaluation(tokens=2 * half, probe={"ratio": (0.15, 0.5)}),  # type: ignore[arg-type]
    )
    mean = (math.log(4 / 3) + math.log(4)) / 2
    assert finals["pseudo_perplexity", 0] == pytest.approx((4 / 3 * 4) ** 0.5, rel=1e-6)
    for name in (("loss", 0), ("probe_loss", 0.15), ("probe_loss", 0.5)):
        assert finals[name] == pytest.approx(mean, rel=1e-6)
    for name in (("accuracy", 0), ("probe_accuracy", 0.15), ("probe_accuracy", 0.5)):
        assert finals[name] == 0.5  # it always says 0
    # every token spells two bytes
    assert finals["bits_per_byte", 0] == pytest.approx(mean / math.log(2) / 2, rel=1e-6)


def test_loss_by_position_by_hand() -> None:
    """Token 0 alone, to which position t gives the probability 1/(t + 2)."""
    shares = 1 / (torch.arange(16.0) + 2)
    finals = _finals(
        train_helpers.config(),
        np.zeros(65),
        lambda inputs: shares.expand(inputs.shape),
        Evaluation(tokens=64),
    )
    nats = [math.log(t + 2) for t in range(16)]
    for first, last in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16)):
        assert finals["loss_at_position", first] == pytest.approx(
            sum(nats[first:last]) / (last - first), rel=1e-6
        )
    assert finals["loss", 0] == pytest.approx(sum(nats) / 16, rel=1e-6)
    # position 0 alone gives it half, and the first of equals counts
    assert finals["accuracy", 0] == 1 / 16


def test_losses_of_windows_are_those_of_torch_and_average_to_the_final() -> None:
    """Blocks of 1024 tokens at n_ctx = 16, and the same blocks at n_ctx = 64."""
    random = np.random.default_rng(0)
    tokens = dataclasses.replace(
        train_helpers.text(), held_out=random.integers(0, 32, 7000).astype(np.uint8)
    )
    evaluation = Evaluation(tokens=1024, final_tokens=3072)
    found = {}
    for n_ctx in (16, 64):
        configs = [train_helpers.config(n_ctx=n_ctx, seed=seed) for seed in (0, 1)]
        step = Step(configs, tokens, "cpu")
        evaluator = Evaluator(step, configs, evaluation, tokens)
        (name, at, final), *_ = evaluator.finals()
        (of_loss,) = evaluator.by_window
        for k, windows in enumerate(of_loss):
            assert (windows.name, windows.at, windows.tokens) == (name, at, 1024)
            assert (windows.losses * windows.scored).sum() / 3072 == pytest.approx(final[k])
        found[n_ctx] = of_loss[1]
        start = int(of_loss[1].starts[1])
        text = torch.from_numpy(tokens.held_out[start : start + 1025].astype(np.int64))
        inputs, targets = text[:-1].reshape(-1, n_ctx), text[1:]
        logits = step.model(inputs.expand(2, *inputs.shape))[1].flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, targets).item()
        assert of_loss[1].losses[1] == pytest.approx(expected, rel=1e-6)
    assert found[16].starts.tolist() == found[64].starts.tolist()
    assert found[16].scored.tolist() == found[64].scored.tolist() == [1024] * 3


def test_masked_windows_count_their_scored_tokens_at_every_probe_ratio() -> None:
    config = train_helpers.config(objective="masked", mask_ratio=0.5, mask_kind="span")
    tokens = train_helpers.text(40_000)
    evaluation = Evaluation(tokens=1024, final_tokens=4000, probe={"ratio": (0.15, 0.5)})  # type: ignore[arg-type]
    evaluator = Evaluator(Step([config], tokens, "cpu"), [config], evaluation, tokens)
    finals = {(name, at): value for name, at, (value,) in evaluator.finals()}
    names = [(windows.name, windows.at) for (windows,) in evaluator.by_window]
    assert names == [("loss", 0), ("probe_loss", 0.15), ("probe_loss", 0.5)]
    for (windows,) in evaluator.by_window:
        mean = np.average(windows.losses, weights=windows.scored)
        assert mean == pytest.approx(finals[windows.name, windows.at], rel=1e-6)
        assert len(windows.starts) == 4


def test_a_mask_does_not_depend_on_how_many_windows_are_scored_together() -> None:
    config = train_helpers.config(objective="masked", batch_tokens=256)
    tokens = train_helpers.text(40_000)
    evaluation = Evaluation(tokens=64, final_tokens=2048)
    found = []
    for micro_batch in (16, 3):
        step = Step([config], tokens, "cpu", micro_batch)
        finals = Evaluator(step, [config], evaluation, tokens).finals()
        found.append({(name, at): value for name, at, (value,) in finals})
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_unigram_loss_by_hand() -> None:
    """Three tokens in training 0, 0, 1 of a vocabulary of 32; one is added to each count."""
    tokens = dataclasses.replace(
        train_helpers.text(),
        train=np.array([0, 0, 1] * 6, np.uint8),
        held_out=np.array([0] * 17 + [1] * 16, np.uint8),
    )
    nats = [math.log((18 + 32) / (count + 1)) for count in (12, 6)]
    config = train_helpers.config(steps=1)
    step = Step([config], tokens, "cpu")
    finals = Evaluator(step, [config], Evaluation(tokens=32), tokens).finals()
    (unigram,) = [values for name, _, values in finals if name == "unigram_loss"]
    assert unigram == pytest.approx([sum(nats) / 2], rel=1e-6)  # 16 targets are 0, 16 are 1


def test_the_copy_probe_of_a_model_that_copies() -> None:
    """A model that knows the token `half` places back: no loss on the second half, log V before."""
    config = train_helpers.config(n_ctx=16)
    tokens = train_helpers.text()
    step = Step([config], tokens, "cpu")
    asked: list[Tensor] = []

    def head(inputs: Tensor) -> Tensor:
        asked.append(inputs)
        logits = torch.zeros(*inputs.shape, config.n_vocab)
        return logits.scatter(-1, inputs.roll(7, -1)[..., None], 100.0 * _second_half(inputs))

    step.model.features, step.model.head = (lambda inputs, *_: inputs), head  # type: ignore[assignment, method-assign]
    evaluator = Evaluator(step, [config], Evaluation(tokens=1024), tokens)
    copies = evaluator.copies()
    assert copies["copy_loss"] == pytest.approx([0.0], abs=1e-6)
    assert copies["copy_loss_first"] == pytest.approx([math.log(32)], rel=1e-6)
    sequences = torch.cat(asked, 1)[0]
    assert sequences.shape == (8, 16) and (sequences[:, :8] == sequences[:, 8:]).all()
    again = Evaluator(step, [config.model_copy(update={"seed": 5})], Evaluation(tokens=512), tokens)
    assert again.copy is not None and torch.equal(again.copy.inputs[0], sequences[:4])


def _second_half(inputs: Tensor) -> Tensor:
    half = inputs.shape[-1] // 2
    return (torch.arange(inputs.shape[-1]) >= half).float().expand_as(inputs)[..., None]


def test_tokens_of_the_copy_probe_have_the_frequencies_of_the_held_out_text() -> None:
    tokens = dataclasses.replace(
        train_helpers.text(), held_out=np.repeat([3, 5, 9], [100, 300, 600]).astype(np.uint8)
    )
    drawn = repeated(tokens, 50, 200, "cpu").inputs[0, :, :50]
    share = np.bincount(drawn.flatten(), minlength=32) / drawn.numel()
    # 10,000 draws: three standard errors
    assert share[[3, 5, 9]] == pytest.approx([0.1, 0.3, 0.6], abs=3 * (0.24 / 1e4) ** 0.5)
    assert share.sum() == pytest.approx(share[[3, 5, 9]].sum())


@pytest.mark.parametrize("changes", [{"objective": "masked"}, {"n_ctx": 2, "batch_tokens": 64}])
def test_a_run_without_two_halves_has_no_copy_probe(changes: dict[str, Any]) -> None:
    config, tokens = train_helpers.config(**changes), train_helpers.text()
    evaluation = Evaluation(tokens=256)
    evaluator = Evaluator(Step([config], tokens, "cpu"), [config], evaluation, tokens)
    names = {name for name, _, _ in evaluator.finals()}
    assert evaluator.copies() == {} and not names & {"copy_loss", "copy_loss_first"}
    assert not {name for name, _ in evaluation.finals(config)} & {"copy_loss", "copy_loss_first"}


def test_counts_of_a_long_text_are_of_pieces_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.repeat(np.arange(32), 1000).astype(np.uint8)
    assert counts(stream, 33).tolist() == [1000] * 32 + [0]
    monkeypatch.setattr("ablate.text.frequencies._PIECE", 100)
    monkeypatch.setattr("ablate.text.frequencies.SAMPLE", 3200)
    sampled = counts(stream, 32)
    assert sampled.sum() == 3200 and sampled.min() > 0
