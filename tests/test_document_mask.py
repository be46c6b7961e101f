"""Attention within documents: each document is read as if it stood alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
import train_helpers
from model_cases import build, small
from torch import Tensor
from train_helpers import run

from ablate import sizes, text
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.objectives import Causal
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds.transformer import run_of
from ablate.plan import plan
from ablate.study.parse import parse
from ablate.text import Tokens
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step

SEPARATOR = 7
DOCUMENTS = (5, 1, 3, 8, 2, 1)  # tokens of each, its separator included
LENGTH = sum(DOCUMENTS)
POSITIONS = CATALOGUE["position"].names


def windows(config: RunConfig, pack: int, seed: int = 0) -> Tensor:
    """Windows [K, B, LENGTH] of documents; those of sequence b begin b tokens later."""
    generator = torch.Generator().manual_seed(seed)
    shape = (pack, config.batch_size, 2 * LENGTH)
    # one less, so that no token is the separator by chance
    stream = torch.randint(SEPARATOR, shape, generator=generator)
    stream[..., (np.cumsum(DOCUMENTS * 2) - 1).tolist()] = SEPARATOR
    rows = [stream[:, row, row : row + LENGTH] for row in range(config.batch_size)]
    return torch.stack(rows, 1)


def spans(sequence: Sequence[int]) -> list[slice]:
    """The documents of one sequence, found by walking over it."""
    found, first = [], 0
    for index, token in enumerate(sequence):
        if token == SEPARATOR:
            found.append(slice(first, index + 1))
            first = index + 1
    return found + [slice(first, len(sequence))] * (first < len(sequence))


def of_documents(n_tokens: int = 4000, length: int = 11) -> Tokens:
    """A text of documents of random tokens below 7, of 2 to `length` tokens with separator 7."""
    random = np.random.default_rng(1)
    stream = random.integers(SEPARATOR, size=n_tokens).astype(np.uint8)
    stream[np.cumsum(random.integers(2, length + 1, size=n_tokens // length)) - 1] = SEPARATOR
    made = dataclasses.replace(
        train_helpers.text(), train=stream[: n_tokens // 2], held_out=stream[n_tokens // 2 :]
    )
    return dataclasses.replace(made, separator=(SEPARATOR,))


def masked(**fields: Any) -> RunConfig:
    """A small run whose attention stays within documents."""
    return small(**{"document_mask": "attention", "n_ctx": LENGTH} | fields)


CASES: list[dict[str, Any]] = [
    *({"position": position} for position in POSITIONS),
    *({"position": position, "objective": "masked"} for position in POSITIONS),
    *(
        {"position": position, "score": "additive"}
        for position in POSITIONS
        if position != "rotary"
    ),
    {"score": "additive", "position": "t5", "objective": "masked"},
    {"n_kv_head": 2, "qk_norm": "rmsnorm", "head_combine": "sum", "qkv": "mlp"},
    {"attention_scale": "none", "position": "alibi", "n_kv_head": 1},
    {"topology": "parallel", "norm": "peri"},
    {"objective": "masked", "attention": "causal"},
]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("pack", [1, 3])
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_a_document_has_the_logits_and_gradients_that_it_has_alone(
    fields: dict[str, Any], pack: int, recompute: bool
) -> None:
    config = masked(**fields, precision="float64")
    model = build(config, *range(pack), sharpen=2)
    model.recompute = recompute
    texts = windows(config, pack)
    objective = Causal([config] * pack, of_documents(), "cpu")
    starts = objective.train(F.pad(texts, (0, 1)), 0).starts
    draw = torch.randn(*texts.shape, config.n_vocab, dtype=torch.float64)
    together = model(texts, starts)
    (together * draw).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    alone = torch.zeros_like(together)
    for row in range(config.batch_size):
        # the members' windows have documents at the same places
        for span in spans(texts[0, row].tolist()):
            logits = model(texts[:, row : row + 1, span])
            (logits * draw[:, row : row + 1, span]).sum().backward()
            alone[:, row, span] = logits[:, 0].detach()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-10)
    assert not torch.allclose(together, model(texts), atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("position", POSITIONS)
def test_other_precisions_agree_within_their_rounding(position: str, precision: str) -> None:
    config = masked(position=position)
    exact = build(config.model_copy(update={"precision": "float64"}))
    model = build(config.model_copy(update={"precision": precision}))
    texts = windows(config, 1)
    starts = Causal([config], of_documents(), "cpu").train(F.pad(texts, (0, 1)), 0).starts
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        found = model(texts, starts)
    bound = 0.1 if precision == "bfloat16" else 1e-4
    assert abs(found - exact(texts, starts)).max() < bound


@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "learned"])
@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_contexts_beyond_n_ctx_and_beyond_every_table(position: str, objective: str) -> None:
    config = small(
        position=position,
        objective=objective,
        document_mask="attention",
        n_ctx=2,
        precision="float64",
    )
    model, texts = build(config, sharpen=2), windows(small(), 1)
    assert texts.shape[-1] > 4 * config.n_ctx
    starts = Causal([config], of_documents(), "cpu").train(F.pad(texts, (0, 1)), 0).starts
    together = model(texts, starts)
    for row in range(texts.shape[1]):
        for span in spans(texts[0, row].tolist()):
            alone = model(texts[:, row : row + 1, span])[:, 0]
            torch.testing.assert_close(together[:, row, span], alone, rtol=0, atol=1e-12)


# -- where documents start -------------------------------------------------------------------------


def starts_of(texts: Tensor) -> Tensor:
    """Starts of documents, by walking over each sequence."""
    found = torch.zeros_like(texts)
    for index in np.ndindex(*texts.shape[:-1]):
        for span in spans(texts[index].tolist()):
            found[index][span] = span.start
    return found


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_starts_are_those_of_the_text_and_nothing_else_changes(objective: str) -> None:
    config = masked(objective=objective, mask_ratio=0.5, mask_mix=(0.4, 0.4, 0.2))
    plain = config.model_copy(update={"document_mask": "none"})
    level = CATALOGUE["objective"][objective].load()
    # a masked model's vocabulary has [MASK] too
    tokens = dataclasses.replace(of_documents(), n_vocab=11 - (objective == "masked"))
    made, without = level([config] * 2, tokens, "cpu"), level([plain] * 2, tokens, "cpu")
    texts = F.pad(windows(config, 2), (0, 1))
    expected = starts_of(texts[..., :-1])
    examples = [(made.train(texts, 3), without.train(texts, 3), expected)]
    examples.append((made.test(texts[0]), without.test(texts[0]), expected[:1].expand(2, -1, -1)))
    if objective == "masked":
        hidden = [objective_.alone(texts[0], 6) for objective_ in (made, without)]
        examples.append((*hidden, starts_of(hidden[0].targets)))
        probes = [one.probe(texts[0], 0.9, Evaluation().probe) for one in (made, without)]
        examples.append((*probes, expected[:1]))
        assert (probes[0].inputs == 10).any(-1).all()
    for found, other, starts in examples:
        assert torch.equal(found.starts, starts) and other.starts is None
        assert all(torch.equal(a, b) for a, b in zip(found[:3], other[:3], strict=True))


def test_the_end_of_a_context_keeps_its_documents() -> None:
    config = masked()
    whole = Causal([config], of_documents(), "cpu").train(F.pad(windows(config, 1), (0, 1)), 0)
    for length in (3, 9, LENGTH):
        end = whole.last(length, 3)
        assert end.starts is not None and torch.equal(end.starts, starts_of(end.inputs))


# -- training and evaluation -----------------------------------------------------------------------

RUNS: list[dict[str, Any]] = [
    {"position": "learned"},
    {"position": "alibi", "dropout": 0.1},
    {"position": "t5", "score": "additive"},
    {"position": "sinusoidal", "objective": "masked"},
]


def within(**changes: Any) -> RunConfig:
    return train_helpers.config(document_mask="attention", **changes)


@pytest.mark.parametrize("fields", RUNS, ids=str)
def test_a_pack_trains_as_its_members_do_alone_in_any_micro_batch(fields: dict[str, Any]) -> None:
    configs = [within(**fields, seed=seed, steps=12) for seed in range(3)]
    tokens = of_documents()
    evaluation = Evaluation(
        points=2, tokens=256, lengths=(0.5, 1) if fields["position"] == "learned" else (1, 3)
    )
    packed = run(*configs, evaluation=evaluation, tokens=tokens)
    small_parts = run(*configs, evaluation=evaluation, tokens=tokens, micro_batch=1, recompute=True)
    for config, *members in zip(configs, packed, small_parts, strict=True):
        (alone,) = run(config, evaluation=evaluation, tokens=tokens)
        for events in members:
            assert events.measured() == pytest.approx(alone.measured(), abs=1e-4)
            for name, curve in alone.curve().items():
                assert events.curve()[name] == pytest.approx(curve, abs=1e-4)


def test_losses_are_those_of_documents_read_alone() -> None:
    """The finals of an untrained model, against one document after the other."""
    config, tokens = within(position="learned", n_vocab=32), of_documents()
    step = Step([config], tokens, "cpu")
    evaluator = Evaluator(step, [config], Evaluation(tokens=256), tokens)
    evaluator.held_out()
    finals = {(name, at): value for name, at, (value,) in evaluator.finals()}
    held_out, n_ctx = torch.from_numpy(tokens.held_out.astype(np.int64)), config.n_ctx
    nats, by_window = [], []
    with torch.no_grad():
        for start in evaluator.starts:
            window = held_out[start : start + n_ctx + 1]
            before = len(nats)
            for span in spans(window[:-1].tolist()):
                logits = step.model(window[None, None, span])[0, 0]
                targets = window[span.start + 1 : span.stop + 1]
                nats += F.cross_entropy(logits, targets, reduction="none").tolist()
            by_window.append(nats[before:])
        assert finals["loss", 0] == pytest.approx(np.mean(nats), rel=1e-5)
        (found,) = evaluator.by_window[0]
        assert np.average(found.losses, weights=found.scored) == pytest.approx(np.mean(nats))
        # the first tokens of a window, whatever their place in a document
        first = [losses[0] for losses in by_window]
        assert finals["loss_at_position", 0] == pytest.approx(np.mean(first), rel=1e-5)
        # a sequence of the copy probe is one document, though separators are drawn for it
        assert evaluator.copy is not None
        inputs, targets, weights, *_ = evaluator.copy
        assert (inputs == SEPARATOR).any()
        loss = F.cross_entropy(step.model(inputs).mT[0], targets[0].T[None].mT[0], reduction="none")
        half = inputs.shape[-1] // 2
        second = (loss * weights[0])[:, half:].sum() / weights[0, :, half:].sum()
        assert finals["copy_loss", 0] == pytest.approx(float(second), rel=1e-5)


# -- identity, plan and text -----------------------------------------------------------------------


def test_the_default_leaves_keys_and_packs_as_they_were() -> None:
    assert run_of(small(document_mask="none")).key == run_of(small()).key
    assert "document_mask" not in small().identity
    assert run_of(small(document_mask="attention")).key != run_of(small()).key
    assert run_of(small(document_mask="attention")).pack_key != run_of(small()).pack_key


def test_it_costs_the_same_parameters_and_flops_and_more_memory() -> None:
    for position in POSITIONS:
        plain, within_ = small(position=position), masked(position=position, n_ctx=12)
        one, other = sizes.count(plain), sizes.count(within_)
        assert (one.params, one.flops_per_token) == (other.params, other.flops_per_token)
        assert sizes.memory_bytes(within_) > sizes.memory_bytes(plain)


STUDY = """
name = "documents"
question = "Does attention across documents matter?"
seeds = 1
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 256
tokens = 2048
corpus = "{corpus}"
tokenizer = "{tokenizer}"
[factors]
document_mask = ["none", "attention"]
"""


def tokenizer_file(path: Path, end: str) -> None:
    """A tokenizer of the words a and b and a special token; its normaliser drops form feeds."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2, end: 3}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([end])
    path.write_text(made.to_str())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts of 60 documents, token files and two tokenizers."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text("\f".join("a b " * n for n in range(3, 63)))
    (tmp_path / "bins").mkdir()
    ids = np.array([0, 1, 0, 3] * 500, "<u2")
    for name in ("train.bin", "val.bin"):
        ids.tofile(tmp_path / "bins" / name)
    tokenizer_file(tmp_path / "ends.json", "<|endoftext|>")
    tokenizer_file(tmp_path / "endless.json", "<pad>")
    return tmp_path


@pytest.mark.parametrize(
    ("corpus", "tokenizer", "separator"),
    [
        ("words.txt", "byte", 12),
        ("words.txt", "bpe:300", None),
        ("words.txt", "ends.json", 3),
        ("bins", "ends.json", 3),
    ],
)
def test_documents_of_a_text_are_found_by_the_separator_of_its_tokenizer(
    folder: Path, corpus: str, tokenizer: str, separator: int | None
) -> None:
    study = parse(STUDY.format(corpus=corpus, tokenizer=tokenizer), folder / "documents.toml")
    planned = plan(study)
    config = planned.cells[1].config
    tokens = text.load(config, planned.sources)
    (found,) = tokens.separator
    assert separator in (None, found)
    if corpus == "words.txt":
        ends = tokens.train[tokens.train_bounds[1:] - 1]
        assert (ends == found).all() and (tokens.train == found).sum() == len(ends)
        assert text.load(config, planned.sources).separator == tokens.separator  # from the cache
    (events,) = run(config, evaluation=Evaluation(points=1, tokens=64), tokens=tokens)
    assert events.end["status"] == "complete"


@pytest.mark.parametrize(
    ("corpus", "tokenizer", "complaint"),
    [
        ("bins", "tokens", "'tokens' do not say where documents end"),
        ("words.txt", "endless.json", "'endless.json' ends a document with 0 tokens"),
    ],
)
def test_a_text_without_known_ends_of_documents_is_refused(
    folder: Path, corpus: str, tokenizer: str, complaint: str
) -> None:
    study = parse(STUDY.format(corpus=corpus, tokenizer=tokenizer), folder / "documents.toml")
    with pytest.raises(AblateError, match=f"document_mask = 'attention': .*{complaint}"):
        plan(study)
