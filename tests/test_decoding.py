"""Decoding with kept keys, values and states computes what reading the whole text again does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import train_helpers

from ablate.components import CATALOGUE, level
from ablate.components.catalogue import remove
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model import decoding
from ablate.model.transformer import model_of

PACK, ROWS, BEAM, LENGTH, SOURCE = 2, 3, 2, 6, 7

# every level of what reads other tokens, in a single stack and in an encoder-decoder
CASES: list[dict[str, Any]] = [
    {"architecture": architecture, factor: name}
    for architecture, factors in (
        ("transformer", ("position", "score", "mixer")),
        ("encoder-decoder", ("position", "score", "mixer", "topology", "qk_norm", "head_combine")),
    )
    for factor in factors
    for name in CATALOGUE[factor].names
]
CASES += [
    {"architecture": name, "rnn_cell": "lstm" if name.startswith("rnn") else "gru"}
    for name in CATALOGUE["architecture"].names
]
CASES += [
    {"n_kv_head": 1},
    {"architecture": "encoder-decoder", "n_layer_encoder": 1, "position": "t5", "n_kv_head": 1},
    {"rope_share": 0.5},
    {"position": "t5", "score": "additive"},
]


def _config(fields: dict[str, Any]) -> RunConfig | None:
    """Return a small run, None where these levels do not go together."""
    shape = {"n_layer": 2, "d_model": 16, "n_head": 2, "n_ctx": 16, "n_vocab": 12}
    if fields.get("score") == "additive" or fields.get("mixer") == "rnn":
        fields = {"position": "none"} | fields
    if CATALOGUE["architecture"][fields.get("architecture", "transformer")].encodes:
        fields = {"objective": "pairs"} | fields
    try:
        return train_helpers.config(**shape, batch_tokens=16, **fields)
    except AblateError:
        return None


@pytest.mark.parametrize("fields", CASES, ids=lambda one: "-".join(map(str, one.values())))
def test_the_next_token_is_as_likely_as_if_the_text_were_read_again(fields: dict[str, Any]) -> None:
    config = _config(fields)
    if config is None:
        pytest.skip("the levels do not go together")
    model = model_of(config, PACK)
    model.initialise([0, 1])
    model.eval()
    whole = model_of(config, PACK)  # which never keeps anything
    whole.load_state_dict(model.state_dict())
    whole.eval()
    assert decoding.keeps(model)
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(12, (PACK, ROWS * BEAM, LENGTH), generator=draw)
    source, starts = None, None
    if config.part("architecture").encodes:
        source = torch.randint(12, (PACK, ROWS, SOURCE), generator=draw)
        count = torch.tensor([SOURCE, 2, 5])[None, :, None]
        starts = torch.where(torch.arange(SOURCE) < count, 0, count).expand(PACK, -1, -1)
    given = [one if one is None else one.repeat_interleave(BEAM, 1) for one in (source, starts)]
    rows = torch.arange(PACK * ROWS * BEAM)
    with torch.no_grad(), decoding.decoder(model, (source, starts), BEAM) as texts:
        for length in range(3, LENGTH + 1):
            logits = texts.next(tokens[..., :length])
            expected = whole(tokens[..., :length], None, *given)[:, :, -1]
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
            # two hypotheses of a source change places, or one takes the place of both
            pairs = rows.view(-1, BEAM)
            chosen = (pairs.flip(1) if length % 2 else pairs[:, :1].expand(-1, BEAM)).flatten()
            texts.choose(chosen)
            tokens = tokens.flatten(0, 1)[chosen].view_as(tokens)
            tokens[..., length:] = torch.randint(12, tokens[..., length:].shape, generator=draw)
    assert texts.parts and all(part.kept is None for part in texts.parts)  # type: ignore[attr-defined]


@pytest.fixture
def own_norm() -> Iterator[str]:
    class Later(torch.nn.Module):
        """Divides by the largest number of all tokens up to now."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.abs().amax(-1, keepdim=True).cummax(-2).values.clamp(min=1e-5)

    level("norm_kind", "later", meaning="depends on earlier tokens")(Later)
    yield "later"
    remove(CATALOGUE["norm_kind"]["later"])


def test_levels_of_a_users_own_are_read_again(own_norm: str) -> None:
    config = _config({"norm_kind": own_norm})
    assert config is not None
    model = model_of(config)
    model.initialise([0])
    assert not decoding.keeps(model)
    tokens = torch.randint(12, (1, 2, 8))
    with torch.no_grad(), decoding.decoder(model) as texts:
        for length in (3, 4, 8):
            expected = model(tokens[..., :length])[:, :, -1]
            torch.testing.assert_close(texts.next(tokens[..., :length]), expected)
