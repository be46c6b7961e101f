"""Each topology equals its equation under each norm, and torch's encoder layer if the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from model_cases import build, small, tokens
from torch import nn

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.kinds.transformer import run_of
from ablate.model.norm import LayerNorm, NoNorm
from ablate.model.transformer import Transformer

EQUATIONS = {
    "serial": "h = P1(x + A(x)); y = P2(h + M(h))",
    "no-attention-skip": "h = P1(A(x)); y = P2(h + M(h))",
    "no-mlp-skip": "h = P1(x + A(x)); y = P2(M(h))",
    "concat": "y = P2(M([x ; P1(A(x))]))",
    "outer-skip": "y = P2(x + M(P1(A(x))))",
    "double-skip": "h = P1(x + A(x)); y = P2(x + h + M(h))",
    "parallel": "y = P2(x + A(x) + M(x))",
    "no-skip": "y = P2(M(P1(A(x))))",
}
PRESENT = {"pre": "N1 N2", "post": "P1 P2", "peri": "N1 N2 O1 O2", "none": ""}


class Text(str):
    """An expression that + and `torch.cat` write down."""

    def __add__(self, other: str) -> Text:
        return Text(f"{self!s} + {other!s}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Text:
        assert function is torch.cat and args[1] == -1
        return Text("[" + " ; ".join(map(str, args[0])) + "]")


class Stub(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Text, bias: object = None) -> Text:
        return Text(f"{self.name}({x!s})")


def _expected(topology: str, norm: str) -> str:
    """The equation with A, M and h written out and the norms that `norm` does not have left out."""

    def named(name: str, present: bool = True) -> Any:
        return lambda x: Text(f"{name}({x!s})") if present else Text(x)

    present = PRESENT[norm].split()
    p1, p2, n1, n2, o1, o2 = (
        named(name, name in present) for name in ("P1", "P2", "N1", "N2", "O1", "O2")
    )
    attention, mlp = named("Attn"), named("MLP")
    scope: dict[str, Any] = {
        "x": Text("x"),
        "P1": p1,
        "P2": p2,
        "A": lambda x: o1(attention(n1(x))),
        "M": lambda h: o2(mlp(n2(h))),
        "cat": lambda a, b: Text(f"[{a} ; {b}]"),
    }
    exec(re.sub(r"\[(.*) ; (.*)\]", r"cat(\1, \2)", EQUATIONS[topology]), scope)
    return str(scope["y"])


@pytest.mark.parametrize("norm", PRESENT)
@pytest.mark.parametrize("topology", EQUATIONS)
def test_forward_is_the_equation(topology: str, norm: str) -> None:
    block = Transformer(small(topology=topology, norm=norm)).blocks[0]
    for name in ("p1", "p2", "n1", "n2", "o1", "o2"):
        if not isinstance(getattr(block, name), NoNorm):
            assert isinstance(getattr(block, name), LayerNorm)
            setattr(block, name, Stub(name.upper()))
    block.attention, block.mlp = Stub("Attn"), Stub("MLP")
    block.attention_dropout = block.mlp_dropout = nn.Identity()
    assert block(Text("x")) == _expected(topology, norm)


def test_the_catalogue_and_the_classes_state_the_same_equations() -> None:
    assert list(EQUATIONS) == CATALOGUE["topology"].names
    for level in CATALOGUE["topology"].levels:
        assert level.meaning.startswith(EQUATIONS[level.name])
        assert type(level).__doc__.startswith(EQUATIONS[level.name])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_serial_equals_torchs_encoder_layer(norm: str, attention: str, activation: str) -> None:
    config = small(
        norm=norm,
        attention=attention,
        objective="masked",
        activation=activation,
        position="none",
        d_mlp=40,
        precision="float64",
    )
    ours = build(config, sharpen=4).blocks[1]
    theirs = nn.TransformerEncoderLayer(
        16, 4, 40, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    ).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += torch.randn(parameter.shape) / 8  # gains and biases too
        attention_maps = [ours.attention.query, ours.attention.key, ours.attention.value]
        theirs.self_attn.in_proj_weight.copy_(torch.cat([one.weight[0] for one in attention_maps]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([one.bias[0] for one in attention_maps]))
        pairs = [
            (theirs.self_attn.out_proj, ours.attention.output),
            (theirs.linear1, ours.mlp.hidden),
        ]
        for their, our in [*pairs, (theirs.linear2, ours.mlp.output)]:
            their.weight.copy_(our.weight[0])
            their.bias.copy_(our.bias[0])
        norms = (ours.n1, ours.n2) if norm == "pre" else (ours.p1, ours.p2)
        for their, our in zip((theirs.norm1, theirs.norm2), norms, strict=True):
            their.weight.copy_(our.gain[0])
            their.bias.copy_(our.bias[0])
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(12, dtype=torch.float64)
    expected = theirs(x, src_mask=mask if attention == "causal" else None)
    torch.testing.assert_close(ours(x[None])[0], expected, atol=1e-10, rtol=1e-10)


def test_option_four_grows_as_designed_and_stream_rms_shows_it() -> None:
    config = small(topology="double-skip", n_layer=8, d_model=32)
    rms, _ = build(config).stream(tokens(config))
    growth = rms[0, 1:] / rms[0, :-1]
    assert growth.min() > 1.7 and growth.max() < 2.6


def test_stream_statistics_are_what_they_say() -> None:
    config = small(topology="no-skip", norm="none", precision="float64")
    model, given = build(config, 0, 1), tokens(config, 2)
    rms, similarity = model.stream(given)
    x = model.embedding(given)
    streams = [x]
    for block in model.blocks:
        streams.append(block(streams[-1]))
    for k in range(2):
        for depth, x in enumerate(streams):
            cosines = [nn.functional.cosine_similarity(s[:, None], s[None], dim=-1) for s in x[k]]
            off_diagonal = torch.stack(
                [c[~torch.eye(12, dtype=torch.bool)].mean() for c in cosines]
            ).mean()
            torch.testing.assert_close(similarity[k, depth], off_diagonal, atol=1e-9, rtol=0)
            torch.testing.assert_close(rms[k, depth], x[k].square().mean().sqrt())
    assert (similarity[:, -1] > similarity[:, 0] + 0.3).all()  # rank collapse


# -- depth-scaled initialisation -------------------------------------------------------------------


@pytest.mark.parametrize("topology", CATALOGUE["topology"].names)
def test_depth_scaling_shrinks_what_is_added_to_the_stream_alone(topology: str) -> None:
    """By the topology's equation: whether A or M is itself a summand."""
    deviations = {}
    for init in ("fan-in", "depth-scaled"):
        model = build(small(topology=topology, init=init, n_layer=6, d_model=64, n_head=4))
        block = model.blocks[3]
        deviations[init] = [
            float(part.output.weight.detach().std()) for part in (block.attention, block.mlp)
        ]
    added = [f"+ {sublayer}(" in EQUATIONS[topology] for sublayer in "AM"]
    expected = [12**-0.5 if one else 1.0 for one in added]
    ratios = [
        small_ / plain
        for small_, plain in zip(deviations["depth-scaled"], deviations["fan-in"], strict=True)
    ]
    assert ratios == pytest.approx(expected, rel=1e-5)  # the same draws, scaled


@pytest.mark.parametrize("topology", CATALOGUE["topology"].names)
def test_depth_scaling_does_not_starve_a_deep_stream_without_norms(topology: str) -> None:
    """RMS after 12 blocks of width 64: a shrunk path without a residual was at 1e-12 and below."""
    after = {}
    for init in ("fan-in", "depth-scaled"):
        config = small(
            topology=topology, init=init, norm="none", n_layer=12, d_model=64, n_head=4, n_ctx=32
        )
        after[init] = float(build(config).stream(tokens(config))[0][0, -1])
    if topology in ("no-skip", "concat"):  # nothing is added to the stream
        assert after["depth-scaled"] == after["fan-in"]
    elif topology in ("serial", "parallel", "outer-skip"):
        assert 0.5 < after["depth-scaled"] < 2  # what depth scaling is for
    elif topology == "double-skip":  # x is added twice a block
        assert 2**11 < after["depth-scaled"] < 2**13
    elif topology == "no-mlp-skip":  # GELU halves a small input, and attention adds to it
        assert after["depth-scaled"] > 2**-13
    else:  # M at most doubles the variance of h, so that without it a block loses at most √2
        assert after["depth-scaled"] > after["fan-in"] / 2**6


def test_only_runs_whose_initialisation_was_corrected_have_another_key() -> None:
    for name in CATALOGUE["topology"].names:
        for init in ("fan-in", "depth-scaled", "normal-0.02"):
            identity = small(topology=name, init=init).identity
            topology = CATALOGUE["topology"][name]
            # without any branch it is fan-in
            starved = topology.adds_attention != topology.adds_mlp
            corrected = {"revisions": {"init": 1}} if starved and init == "depth-scaled" else {}
            assert {k: v for k, v in identity.items() if k == "revisions"} == corrected


@pytest.mark.parametrize(
    ("scaled", "plain"), [("depth-scaled", "fan-in"), ("normal-0.02-scaled", "normal-0.02")]
)
def test_a_scaled_init_without_a_branch_to_scale_is_the_plain_one(scaled: str, plain: str) -> None:
    """Equal weights have one key, and the plan says so; where one weight differs, they have two."""
    for topology in CATALOGUE["topology"].names:
        of = {
            init: RunConfig(topology=topology, init=init, n_layer=3, d_model=8, n_head=2, n_ctx=8)
            for init in (scaled, plain)
        }
        models = []
        for config in of.values():
            model = Transformer(config)
            # as the level alone says, whatever the configuration makes of it
            model.config = config.model_copy(update={"init": scaled if not models else plain})
            model.initialise([0])
            models.append(dict(model.named_parameters()))
        equal = all(torch.equal(models[0][name], one) for name, one in models[1].items())
        assert (run_of(of[scaled]).key == run_of(of[plain]).key) is equal, topology
