"""Attention: who sees whom, scores by position, each variant against a plain computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_cases import build, small, tokens
from torch import Tensor

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.position import Alibi, Rotary, T5Bias

POSITIONS = CATALOGUE["position"].names
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "multi-query": {"n_kv_head": 1},
    "grouped, own width": {"n_kv_head": 2, "d_head": 6},
    "sum": {"head_combine": "sum"},
    "mlp, normed, unscaled": {"qkv": "mlp", "qk_norm": "rmsnorm", "attention_scale": "none"},
    "additive": {"score": "additive", "n_kv_head": 2},
}


def _variants(**fields: Any) -> list[RunConfig]:
    return [
        small(objective="masked", precision="float64", **heads, **fields)
        for heads in HEADS.values()
        if not (heads.get("score") == "additive" and fields["position"] == "rotary")
    ]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("topology", CATALOGUE["topology"].names)
def test_causal_attention_sees_the_whole_past_and_nothing_of_the_future(
    topology: str, position: str
) -> None:
    for config in _variants(topology=topology, position=position, attention="causal"):
        model, given, cut = build(config, sharpen=5), tokens(config), 5
        later, earlier = given.clone(), given.clone()
        later[..., cut:] = (later[..., cut:] + 1) % config.n_vocab
        earlier[..., 0] = (earlier[..., 0] + 1) % config.n_vocab
        with torch.no_grad():
            logits, changed, shifted = model(given), model(later), model(earlier)
        assert (logits[..., :cut, :] - changed[..., :cut, :]).abs().max() < 1e-12, config
        assert (logits[..., cut:, :] - changed[..., cut:, :]).abs().amax(-1).min() > 1e-3, config
        assert (logits - shifted).abs().amax(-1).min() > 1e-7, config


@pytest.mark.parametrize("position", POSITIONS)
def test_full_attention_sees_the_future(position: str) -> None:
    for config in _variants(position=position, attention="full"):
        model, given = build(config, sharpen=5), tokens(config)
        later = given.clone()
        later[..., -1] = (later[..., -1] + 1) % config.n_vocab
        with torch.no_grad():
            assert (model(given) - model(later)).abs().amax(-1).min() > 1e-7, config


def test_rotary_scores_depend_on_distance_alone() -> None:
    rotary = Rotary(small(d_head=8), 1, 16).double()
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 40, 8)
    scores = (rotary.rotate(query) @ rotary.rotate(key).mT)[0, 0]
    _assert_toeplitz(scores)
    assert scores[0].std() > 0.01


@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("kind", [Alibi, T5Bias])
def test_biases_depend_on_distance_alone(kind: type, attention: str) -> None:
    config = small(attention=attention, objective="masked", n_head=6, d_head=4)
    position = kind(config, 2, 16)
    torch.nn.init.normal_(next(position.parameters(), torch.empty(0)))
    bias = position.bias(40).expand(2, 6, 40, 40)
    for one in bias.flatten(0, 1):
        _assert_toeplitz(one)
    symmetric = torch.equal(bias, bias.mT)
    assert symmetric == (kind is Alibi)


def _assert_toeplitz(scores: Tensor) -> None:
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], atol=1e-12, rtol=1e-12)


def test_alibi_slopes_are_the_papers() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert Alibi(small(n_head=8, d_head=2), 1, 16).slopes.tolist() == eight
    twelve = Alibi(small(n_head=12, d_head=2), 1, 16)
    torch.testing.assert_close(
        twelve.slopes, torch.tensor([*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    )
    assert twelve.bias(9)[0, 2, 5].tolist() == [
        -5 / 8,
        -4 / 8,
        -3 / 8,
        -2 / 8,
        -1 / 8,
        0,
        -1 / 8,
        -2 / 8,
        -3 / 8,
    ]


@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("n_ctx", [2, 3, 5, 8, 12, 31, 64, 100, 128, 512, 2048])
def test_every_t5_bucket_holds_a_distance(n_ctx: int, attention: str) -> None:
    position = T5Bias(small(n_ctx=n_ctx, attention=attention, objective="masked"), 1, 16)
    reach = torch.arange(1 - n_ctx, n_ctx if attention == "full" else 1)
    # in T5 too: distance 0 among the later keys
    unused = [position.buckets // 2] if attention == "full" else []
    assert position.bucket(reach).unique().tolist() == [
        n for n in range(position.buckets) if n not in unused
    ]
    assert position.maximum <= n_ctx


def test_sinusoids_are_the_papers_and_go_on_beyond_the_table() -> None:
    position = small(position="sinusoidal").part("position").build(small(), 1, 16).float()
    added = position.embed(torch.zeros(1, 1, 100, 16))
    assert added.shape == (1, 1, 100, 16)
    for t, i in [(0, 0), (1, 3), (47, 7), (99, 5)]:
        angle = torch.tensor(t / 10000 ** (2 * i / 16))
        torch.testing.assert_close(
            added[0, 0, t, 2 * i : 2 * i + 2], torch.stack((angle.sin(), angle.cos()))
        )


@pytest.mark.parametrize("position", POSITIONS)
def test_longer_texts_than_the_training_context(position: str) -> None:
    config = small(position=position)
    model = build(config)
    given = torch.randint(config.n_vocab, (1, 1, 5 * config.n_ctx))
    if position == "learned":
        assert config.longest_context == config.n_ctx
        with pytest.raises(AblateError, match=r"'learned'.* n_ctx = 12: .* 60"):
            model(given)
    else:
        assert config.longest_context is None
        torch.testing.assert_close(
            model(given)[..., :12, :], model(given[..., :12]), atol=1e-5, rtol=1e-4
        )


def _plain(model: Any, config: RunConfig, x: Tensor) -> Tensor:
    """Attention of one head after another, in loops, from the definitions."""
    attention, t = model.blocks[0].attention, x.shape[2]
    width, group = config.d_head, config.n_head // config.n_kv_head

    def norm(vector: Tensor, module: Any) -> Tensor:
        if config.qk_norm == "none":
            return vector
        return vector / (vector.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.gain[0]

    def rotated(vector: Tensor) -> Tensor:
        if config.position != "rotary":
            return vector
        rate = 10000.0 ** (-torch.arange(width // 2, dtype=torch.float64) * 2 / width)
        turn = torch.polar(
            torch.ones(t, width // 2, dtype=torch.float64), torch.arange(t)[:, None] * rate
        )
        turned = torch.complex(vector[..., : width // 2], vector[..., width // 2 :]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    heads = []
    for h in range(config.n_head):
        mine, shared = (
            slice(h * width, (h + 1) * width),
            slice(h // group * width, (h // group + 1) * width),
        )
        q = rotated(norm(attention.query(x)[..., mine], attention.query_norm))
        k = rotated(norm(attention.key(x)[..., shared], attention.key_norm))
        if config.score == "additive":
            scores = (
                torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ attention.score.vector[0, h]
            )
        else:
            scores = q @ k.mT * (1 if config.attention_scale == "none" else width**-0.5)
        if config.position == "t5":
            scores = scores + model.position.bias(t)[0, h]
        if config.attention == "causal":
            scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ attention.value(x)[..., shared])
    if config.head_combine == "sum":
        return torch.stack(heads).sum(0) @ attention.output.weight[0].T + attention.output.bias[0]
    return torch.cat(heads, -1) @ attention.output.weight[0].T + attention.output.bias[0]


@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("position", ["rotary", "t5", "none"])
def test_attention_is_its_definition(position: str, attention: str) -> None:
    for config in _variants(position=position, attention=attention):
        model = build(config, sharpen=3)
        x = torch.randn(1, 2, config.n_ctx, config.d_model, dtype=torch.float64)
        _, bias = model.start(tokens(config))
        torch.testing.assert_close(
            model.blocks[0].attention(x, bias), _plain(model, config, x), atol=1e-9, rtol=1e-9
        )


def test_additive_scores_with_rotary_positions_are_refused() -> None:
    with pytest.raises(AblateError, match=r"score = 'additive'.*choose another position"):
        small(score="additive", position="rotary")
