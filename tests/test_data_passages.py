"""Passages with their classes, and the linear probe that tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate import text
from ablate.config import RunConfig
from ablate.data.passages import Passages, fit, passages
from ablate.errors import AblateError
from ablate.text import Tokens, corpora, labels, sources, tokenizers

# config, tokens and locations of a run
Loaded = tuple[RunConfig, Tokens, dict[str, str]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Loaded]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = {}
        for name in ("austen", "sotu"):
            corpus = corpora.find(name, Path())
            config = RunConfig(corpus=name, corpus_hash=corpus.hash)
            locations = {corpus.hash: corpus.location}
            found[name] = (config, text.load(config, locations), locations)
        yield found


METRICS = [("novel_accuracy", "austen", 6), ("era_accuracy", "sotu", 4)]


@pytest.mark.parametrize(("metric", "corpus", "n_classes"), METRICS)
def test_passages_lie_in_documents_of_their_class_and_test_ones_are_held_out(
    loaded: dict[str, Loaded], metric: str, corpus: str, n_classes: int
) -> None:
    tokens = loaded[corpus][1]
    found = passages(metric, *loaded[corpus])
    assert found.inputs.shape == (400 * n_classes, 128)
    for fitted in (True, False):
        assert (np.bincount(found.classes[found.fitted == fitted]) == 200).all()
    documents = [
        document.buffer[document.start : document.end]
        for document in sources.at(f"named:{corpus}").documents()
    ]
    of_class = [[] for _ in range(n_classes)]  # type: list[list[bytes]]
    for number, document in enumerate(documents):
        of_class[labels.LABELS[metric].of(np.array([number]))[0]].append(document)
    held_out = tokens.held_out.tobytes()
    for row in range(0, len(found.inputs), 37):
        passage = bytes(found.inputs[row].tolist())
        assert any(passage in document for document in of_class[found.classes[row]])
        assert (passage in held_out) == (not found.fitted[row])
        assert b"\f" not in passage
    assert len(set(map(tuple, found.inputs.tolist()))) == len(found.inputs)


def test_eras_begin_with_the_documented_messages() -> None:
    rule = labels.LABELS["era_accuracy"]
    documents = [
        document.buffer[document.start : document.end]
        for document in sources.at("named:sotu").documents()
    ]
    opening = [documents[first][:400].decode() for first in rule.firsts]
    # Washington, January 1790
    assert "I embrace with great satisfaction the opportunity" in opening[0]
    # Lincoln, December 1861
    assert "In the midst of unprecedented political troubles" in opening[1]
    assert "In pursuance of my constitutional duty" in opening[2]  # Wilson, December 1913
    assert "Released January 21, 1946" in opening[3]  # Truman
    assert rule.of(np.array([0, 71, 72, 123, 124, 156, 157, 248])).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_novels_are_in_the_order_of_their_names() -> None:
    for document, name in zip(
        sources.at("named:austen").documents(), labels.LABELS["novel_accuracy"].names, strict=True
    ):
        assert (
            document.buffer[document.start : document.end][:40]
            .decode()
            .upper()
            .startswith(name.upper())
        )


def test_counts_of_characters_tell_novels_apart_better_than_chance(
    loaded: dict[str, Loaded],
) -> None:
    found = passages("novel_accuracy", *loaded["austen"])
    characters = torch.stack([torch.bincount(row, minlength=256) for row in found.inputs]).float()
    assert 1.5 / 6 < found.accuracy(characters) < 0.6


def test_the_probe_is_the_minimum_that_torch_finds() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(60, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 0]
    classes = (features[:, 0] + features[:, 1] / 10 + draw.normal(size=60) > 0.5).astype(int) + (
        features[:, 2] > 0.1
    )
    probe = fit(features, classes)
    x = torch.tensor((features - features.mean(0)) / features.std(0))
    weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=300,
        tolerance_grad=1e-10,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            x @ weights[:-1] + weights[-1], torch.tensor(classes), reduction="sum"
        )
        loss = loss + weights[:-1].square().sum() / 2
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    ours, theirs = torch.tensor(probe.weights), weights.detach()
    assert torch.allclose(
        ours - ours.mean(1, keepdim=True), theirs - theirs.mean(1, keepdim=True), atol=1e-3
    )


def test_separable_classes_are_separated_despite_constant_or_infinite_features() -> None:
    classes = np.arange(40) % 4
    features = torch.eye(4)[classes] * 1e-3
    found = Passages(torch.zeros(40, 1), classes, np.arange(40) < 20)
    assert found.accuracy(torch.cat([features, torch.full((40, 2), 7.7)], 1)) == 1
    assert found.accuracy(torch.zeros(40, 3)) == 0.25
    assert np.isnan(found.accuracy(features + torch.tensor([0, 0, 0, float("inf")])))


def test_a_run_on_another_text_reads_the_same_passages_with_its_own_tokenizer(
    loaded: dict[str, Loaded], tmp_path: Path
) -> None:
    there = passages("novel_accuracy", *loaded["austen"])
    elsewhere = passages("novel_accuracy", *loaded["sotu"])
    assert torch.equal(there.inputs, elsewhere.inputs)
    (tmp_path / "own.txt").write_text("the cat and the dog sat on the mat; " * 400)
    own = corpora.find("own.txt", tmp_path)
    bpe = tokenizers.describe("bpe:270", own, Path())
    config = RunConfig(
        corpus="own.txt", tokenizer="bpe:270", corpus_hash=own.hash, tokenizer_hash=bpe.hash
    )
    locations = {own.hash: own.location, bpe.hash: bpe.location}
    found = passages("novel_accuracy", config, text.of(own, bpe), locations)
    encoder = text.encoder(config, locations)
    novels = [
        one.buffer[one.start : one.end].decode() for one in sources.at("named:austen").documents()
    ]
    for row in range(0, len(found.inputs), 97):
        passage = encoder.decode(found.inputs[row].tolist()).strip("\ufffd")
        assert passage in novels[found.classes[row]]


def test_a_metric_that_is_none_is_refused(loaded: dict[str, Loaded]) -> None:
    with pytest.raises(AblateError, match=r"'era_acuracy'.*'era_accuracy'"):
        passages("era_acuracy", *loaded["sotu"])
