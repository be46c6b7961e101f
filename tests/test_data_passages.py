"""Passages with their classes, and the linear probe that tells them apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ablate import text
from ablate.config import RunConfig
from ablate.data.passages import Passages, fit, passages
from ablate.errors import AblateError
from ablate.text import Tokens, corpora, labels, sources


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunConfig, Tokens]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = {}
        for name in ("austen", "sotu"):
            corpus = corpora.find(name, Path())
            config = RunConfig(corpus=name, corpus_hash=corpus.hash)
            found[name] = (config, text.load(config, {corpus.hash: corpus.location}))
    return found


METRICS = [("novel_accuracy", "austen", 6), ("era_accuracy", "sotu", 4)]


@pytest.mark.parametrize(("metric", "corpus", "n_classes"), METRICS)
def test_passages_lie_in_documents_of_their_class_and_test_ones_are_held_out(
    loaded: dict[str, tuple[RunConfig, Tokens]], metric: str, corpus: str, n_classes: int
) -> None:
    config, tokens = loaded[corpus]
    found = passages(metric, config, tokens)
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
    loaded: dict[str, tuple[RunConfig, Tokens]],
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


@pytest.mark.parametrize(
    ("metric", "corpus", "complaint"),
    [
        ("novel_accuracy", "sotu", "'novel_accuracy' needs corpus = 'austen'.*'sotu'"),
        ("era_acuracy", "sotu", "'era_acuracy'.*'era_accuracy'"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(
    loaded: dict[str, tuple[RunConfig, Tokens]], metric: str, corpus: str, complaint: str
) -> None:
    with pytest.raises(AblateError, match=complaint):
        passages(metric, *loaded[corpus])
