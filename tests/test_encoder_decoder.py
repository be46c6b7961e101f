"""Encoder-decoders: equal to torch's by copied weights, wired as stated.

`test_model_references.py` compares them with T5 and BART of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_helpers import config, text

from ablate.components import CATALOGUE, level
from ablate.components.catalogue import remove
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.kinds.transformer import run_of
from ablate.model.encoder_decoder import EncoderDecoder
from ablate.model.recurrent import Recurrent
from ablate.plan import plan
from ablate.study import parse
from ablate.train.step import Step

WIDTH, HEADS, HIDDEN, VOCABULARY, LAYERS = 32, 4, 48, 50, 2
PARTS = ("query", "key", "value")


def _config(**fields: Any) -> RunConfig:
    sizes: dict[str, Any] = {"n_layer": LAYERS, "d_model": WIDTH, "n_head": HEADS}
    sizes |= {"d_mlp": HIDDEN, "n_ctx": 20, "n_vocab": VOCABULARY}
    sizes |= {"architecture": "encoder-decoder"}
    return RunConfig(
        **{**sizes, **fields}, init="normal-0.02", batch_tokens=2 * fields.get("n_ctx", 20)
    )


def _model(config: RunConfig, *seeds: int) -> EncoderDecoder:
    """Return a model with large random weights, so that attention is far from uniform."""
    model = EncoderDecoder(config, max(1, len(seeds)))
    model.initialise(seeds or (0,))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape[1:], generator=generator)
            parameter.copy_(noise * (0.25 if parameter.ndim > 2 else 0.1) + name.endswith("gain"))
    return model.eval()


def _read(config: RunConfig, source: int = 12, target: int = 9) -> tuple[Tensor, Tensor]:
    """Return tokens of a target and a source, [1, 2, T] and [1, 2, S]."""
    draw = torch.Generator().manual_seed(2)
    return tuple(  # type: ignore[return-value]
        torch.randint(1, config.n_vocab, (1, 2, length), generator=draw)
        for length in (target, source)
    )


def _same_as(
    ours: EncoderDecoder,
    theirs: nn.Module,
    names: dict[str, str],
    run: Callable[[Tensor, Tensor], Tensor],
    found: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Copy our weights into theirs, and compare outputs and the gradients of one backward pass."""
    named = dict(theirs.named_parameters())
    assert len(set(names.values())) == len(names)
    assert names.keys() == {name for name, _ in ours.named_parameters()}
    with torch.no_grad():
        for our, their in names.items():
            named[their].copy_(ours.get_parameter(our)[0])
    target, source = _read(ours.config)
    outputs = found(target, source)[0], run(target[0], source[0])
    assert outputs[1].std() > 0.3
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    wanted = torch.randint(outputs[1].shape[-1], (outputs[1].shape[0] * outputs[1].shape[1],))
    for output in outputs:
        F.cross_entropy(output.flatten(0, 1), wanted).backward()
    for our, their in names.items():
        torch.testing.assert_close(
            ours.get_parameter(our).grad[0], named[their].grad, atol=1e-5, rtol=1e-4
        )


class _Torch(nn.Module):
    """`nn.Transformer`, with query, key and value as parameters of their own."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        sizes = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN}
        self.model = nn.Transformer(
            **sizes,
            num_encoder_layers=LAYERS,
            num_decoder_layers=LAYERS,
            dropout=0.0,
            batch_first=True,
            norm_first=norm_first,
        ).eval()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if not norm_first:  # torch has a final norm in any case, Vaswani et al. have none
            self.model.encoder.norm = self.model.decoder.norm = nn.Identity()
        self.maps = nn.ParameterDict()
        for name, module in list(self.model.named_modules()):
            if isinstance(module, nn.MultiheadAttention):
                for part in PARTS:
                    self.maps[f"{name}.{part}.weight".replace(".", "/")] = nn.Parameter(
                        torch.zeros(WIDTH, WIDTH)
                    )
                    self.maps[f"{name}.{part}.bias".replace(".", "/")] = nn.Parameter(
                        torch.zeros(WIDTH)
                    )

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        joint = {}
        for name, module in self.model.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                for end in ("weight", "bias"):
                    joint[f"{name}.in_proj_{end}"] = torch.cat(
                        [self.maps[f"{name}.{part}.{end}".replace(".", "/")] for part in PARTS]
                    )
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = torch.func.functional_call(
            self.model, joint, (self.embedding(source), self.embedding(target)), {"tgt_mask": mask}
        )
        return self.head(x)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_torchs_transformer(norm: str) -> None:
    ours = _model(_config(norm=norm, position="none", activation="relu"))
    norms = {
        "pre": {"n1": "norm1", "n2": "norm2", "decoder n3": "norm2", "decoder n2": "norm3"},
        "post": {"p1": "norm1", "p2": "norm2", "decoder p3": "norm2", "decoder p2": "norm3"},
    }[norm]
    modules = {
        "attention": "self_attn",
        "cross": "multihead_attn",
        "mlp.hidden": "linear1",
        "mlp.output": "linear2",
    }
    names = {"embedding.weight": "embedding.weight", "unembedding.weight": "head.weight"}
    for name, _ in ours.named_parameters():
        stack = "encoder" if name.startswith("encoder.") else "decoder"
        part = name.removeprefix("encoder.")
        end = {"gain": "weight"}.get(part.rsplit(".", 1)[1], part.rsplit(".", 1)[1])
        if part.startswith("final_norm"):
            names[name] = f"model.{stack}.norm.{end}"
        if not part.startswith("blocks."):
            continue
        _, number, module, *rest, _ = part.split(".")
        layer = f"{stack}.layers.{number}"
        if module in ("attention", "cross"):
            joint = f"{layer}.{modules[module]}"
            names[name] = (
                f"model.{joint}.out_proj.{end}"
                if rest == ["output"]
                else "maps." + f"{joint}.{rest[0]}.{end}".replace(".", "/")
            )
        elif module == "mlp":
            names[name] = f"model.{layer}.{modules[f'mlp.{rest[0]}']}.{end}"
        else:
            found = norms.get(f"{stack} {module}", norms.get(module))
            names[name] = f"model.{layer}.{found}.{end}"
    theirs = _Torch(norm == "pre")
    _same_as(ours, theirs, names, theirs, lambda target, source: ours(target, None, source))


# -- wiring ----------------------------------------------------------------------------------------

WIRINGS: dict[str, Callable[..., Tensor]] = {
    "serial": lambda x, A, X, M, P1, P3, P2: P2(
        P3(P1(x + A(x)) + X(P1(x + A(x)))) + M(P3(P1(x + A(x)) + X(P1(x + A(x)))))
    ),
    "no-attention-skip": lambda x, A, X, M, P1, P3, P2: P2(P3(X(P1(A(x)))) + M(P3(X(P1(A(x)))))),
    "no-mlp-skip": lambda x, A, X, M, P1, P3, P2: P2(M(P3(P1(x + A(x)) + X(P1(x + A(x)))))),
    "concat": lambda x, A, X, M, P1, P3, P2: P2(M(torch.cat((x, P3(X(P1(A(x))))), -1))),
    "outer-skip": lambda x, A, X, M, P1, P3, P2: P2(x + M(P3(X(P1(A(x)))))),
    "double-skip": lambda x, A, X, M, P1, P3, P2: P2(
        x + P3(P1(x + A(x)) + X(P1(x + A(x)))) + M(P3(P1(x + A(x)) + X(P1(x + A(x)))))
    ),
    "parallel": lambda x, A, X, M, P1, P3, P2: P2(x + A(x) + X(x) + M(x)),
    "no-skip": lambda x, A, X, M, P1, P3, P2: P2(M(P3(X(P1(A(x)))))),
}


@pytest.mark.parametrize("topology", CATALOGUE["topology"].names)
@pytest.mark.parametrize("norm", ["pre", "post", "peri"])
def test_a_decoders_block_is_the_equation_of_its_topology(topology: str, norm: str) -> None:
    config = _config(topology=topology, norm=norm, position="none")
    block = _model(config).blocks[0]
    draw = torch.Generator().manual_seed(3)
    x, memory = (torch.randn(1, 2, n, WIDTH, generator=draw) for n in (9, 12))
    o1, o2, o3, n1, n2, n3 = (getattr(block, f"{kind}{i}") for kind in "on" for i in (1, 2, 3))
    expected = WIRINGS[topology](
        x,
        lambda x: o1(block.attention(n1(x), None)),
        lambda h: o3(block.cross(n3(h), None, memory)),
        lambda h: o2(block.mlp(n2(h))),
        block.p1,
        block.p3,
        block.p2,
    )
    torch.testing.assert_close(block(x, None, memory, None), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("position", ["learned", "t5", "alibi", "rotary"])
def test_what_fills_a_source_up_changes_nothing(position: str, score: str) -> None:
    if score == "additive" and position == "rotary":
        pytest.skip("no such model")
    config = _config(position=position, score=score)
    model = _model(config)
    target, source = _read(config)
    filled = F.pad(source, (0, 5), value=3)
    starts = torch.where(torch.arange(17) < 12, 0, 12).expand_as(filled)
    with torch.no_grad():
        found = model(target, None, filled, starts)
        torch.testing.assert_close(found, model(target, None, source), atol=1e-5, rtol=1e-4)
        other = torch.where(starts == 0, filled, 7)
        assert torch.equal(found, model(target, None, other, starts))


@pytest.mark.parametrize("encoder", ["full", "causal"])
def test_the_decoder_sees_its_past_and_the_whole_source(encoder: str) -> None:
    config = _config(encoder_attention=encoder)
    model = _model(config)
    target, source = _read(config)
    later, changed = target.clone(), source.clone()
    later[..., 5:] = (later[..., 5:] + 1) % VOCABULARY
    changed[..., -1] = (changed[..., -1] + 1) % VOCABULARY
    with torch.no_grad():
        before = model(target, None, source)
        apart = (before - model(later, None, source)).abs().amax((0, 1, 3))
        assert apart[:5].max() < 1e-6 and apart[5:].min() > 1e-3
        assert (before - model(target, None, changed)).abs().amax((0, 1, 3)).min() > 1e-4
        memories = [
            model.encoder.through(model.encoder.blocks, *model.read(text))
            for text in (source, changed)
        ]
    earlier = (memories[0] - memories[1]).abs().amax((0, 1, 3))[:-1]
    assert bool(earlier.max() < 1e-6) is (encoder == "causal")


def test_a_member_of_a_pack_computes_what_it_computes_alone() -> None:
    config = _config(dropout=0.2)
    target, source = _read(config)
    packed = EncoderDecoder(config, 2)
    packed.initialise([4, 9])
    together = packed(target.expand(2, -1, -1), None, source.expand(2, -1, -1))
    for k, seed in enumerate((4, 9)):
        alone = EncoderDecoder(config)
        alone.initialise([seed])
        torch.testing.assert_close(
            together[k], alone(target, None, source)[0], atol=1e-5, rtol=1e-4
        )


def test_an_encoder_has_as_many_blocks_as_asked_for() -> None:
    assert len(EncoderDecoder(_config()).encoder.blocks) == LAYERS
    model = EncoderDecoder(_config(n_layer_encoder=5))
    assert len(model.encoder.blocks) == 5 and len(model.blocks) == LAYERS


def test_what_an_encoder_decoder_cannot_do_is_refused() -> None:
    with pytest.raises(AblateError, match="objective = 'pairs'"):
        _config(objective="causal")


# -- parts of a user's own -------------------------------------------------------------------------


def _serial(x: Tensor, A: Any, M: Any, P1: Any, P2: Any, X: Any = None, P3: Any = None) -> Tensor:
    h = P1(x + A(x))
    if X is not None:
        h = P3(h + X(h))
    return P2(h + M(h))


class _Serial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, *branches: Any, X: Any = None, P3: Any = None) -> Tensor:
        return self.one * _serial(x, *branches, X=X, P3=P3)


class _Dot(nn.Module):
    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.scale = d_head**-0.5

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.scale * query @ key.mT


class _Mean(nn.Module):
    """The mean of all tokens up to now."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


OWN = [
    ("topology", _serial, {}),
    ("topology", _Serial, {}),
    ("score", _Dot, {"position": "alibi"}),
    ("mixer", _Mean, {"position": "none"}),
]


@pytest.mark.parametrize(("factor", "made", "fields"), OWN, ids=lambda one: str(one)[:20])
def test_parts_of_a_users_own_stand_in_both_stacks(
    factor: str, made: Any, fields: dict[str, Any]
) -> None:
    with _own(factor, made):
        config = _config(**fields, **{factor: "own"})
        tokens, source = _read(config, 6)
        if factor == "mixer":  # the decoder still sees the source
            own = _model(config)
            assert (
                (own(tokens, None, source) != own(tokens, None, (source + 1) % VOCABULARY))
                .any(-1)
                .all()
            )
            return
        built_in = _model(_config(**fields))
        own = EncoderDecoder(config)
        own.initialise((0,))
        own.load_state_dict(built_in.state_dict(), strict=False)
        outputs = [model(tokens, None, source) for model in (own.eval(), built_in)]
        torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)


def test_a_topology_without_a_place_for_an_encoder_is_refused() -> None:
    def plain(x: Tensor, A: Any, M: Any, P1: Any, P2: Any) -> Tensor:
        return x

    with _own("topology", plain):
        with pytest.raises(AblateError, match=r"topology = 'own' .*X=None and P3=None"):
            _config(topology="own")
        _config(topology="own", architecture="rnn-seq2seq", position="none")


@contextmanager
def _own(factor: str, made: Any) -> Iterator[None]:
    level(factor, "own", meaning="its own")(made)
    try:
        yield
    finally:
        remove(CATALOGUE[factor]["own"])


# -- recurrent layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["all", "none"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_layers_are_torchs(cell: str, bias: str) -> None:
    config = RunConfig(mixer="rnn", rnn_cell=cell, d_model=16, bias=bias)
    ours = Recurrent(config, 2, 16)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 4)
    x, state = torch.randn(2, 3, 7, 16, generator=draw), torch.randn(2, 3, 16, generator=draw)
    for k in (0, 1):
        theirs = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](
            16, 16, bias=bias == "all", batch_first=True
        )
        with torch.no_grad():
            for name, part in (("ih", ours.input), ("hh", ours.recurrent)):
                getattr(theirs, f"weight_{name}_l0").copy_(part.weight[k])
                if bias == "all":
                    getattr(theirs, f"bias_{name}_l0").copy_(part.bias[k])
        first = (state[k][None],) * 2 if cell == "lstm" else state[k][None]
        torch.testing.assert_close(ours(x, None, state)[k], theirs(x[k], first)[0])
        zero = torch.zeros_like(state)
        torch.testing.assert_close(ours(x)[k], ours(x, None, zero)[k])


def test_the_bottleneck_is_a_loop_over_tokens() -> None:
    """One layer of each stack, by hand: the decoder knows of the source only its last state."""
    config = _config(architecture="rnn-seq2seq", n_layer=1, norm="post", activation="relu")
    model = _model(config)
    target, source = _read(config)
    weights = {name: parameter[0] for name, parameter in model.named_parameters()}

    def block(stack: str, tokens: Tensor, h: Tensor) -> Tensor:
        outputs = []
        for token in tokens:
            x = weights["embedding.weight"][token]
            own = {
                name.removeprefix(f"{stack}blocks.0."): value
                for name, value in weights.items()
                if name.startswith(f"{stack}blocks.0.")
            }
            of_x = own["attention.input.weight"] @ x + own["attention.input.bias"]
            of_h = own["attention.recurrent.weight"] @ h + own["attention.recurrent.bias"]
            (rx, zx, nx), (rh, zh, nh) = of_x.chunk(3), of_h.chunk(3)
            z = torch.sigmoid(zx + zh)
            h = (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh) + z * h
            a = F.layer_norm(x + h, (WIDTH,), own["p1.gain"], own["p1.bias"])
            hidden = F.relu(own["mlp.hidden.weight"] @ a + own["mlp.hidden.bias"])
            m = own["mlp.output.weight"] @ hidden + own["mlp.output.bias"]
            outputs.append(F.layer_norm(a + m, (WIDTH,), own["p2.gain"], own["p2.bias"]))
        return torch.stack(outputs)

    for row in (0, 1):
        memory = block("encoder.", source[0, row], torch.zeros(WIDTH))
        decoded = block("", target[0, row], memory[-1])
        logits = decoded @ weights["unembedding.weight"].T
        found = model(target, None, source)[0, row]
        torch.testing.assert_close(found, logits, atol=1e-5, rtol=1e-5)


ROAD = (
    *("rnn-seq2seq", "rnn-cross-attention", "rnn-self-attention", "rnn-encoder"),
    *("causal-encoder-decoder", "encoder-decoder"),
)


@pytest.mark.parametrize("architecture", ROAD)
def test_each_step_of_the_road_reads_source_and_past_and_no_filling(architecture: str) -> None:
    config = _config(architecture=architecture)
    model = _model(config)
    target, source = _read(config)
    filled = F.pad(source, (0, 5), value=3)
    starts = torch.where(torch.arange(17) < 12, 0, 12).expand_as(filled)
    later, changed = target.clone(), source.clone()
    later[..., 5:] = (later[..., 5:] + 1) % VOCABULARY
    changed[..., 0] = (changed[..., 0] + 1) % VOCABULARY
    with torch.no_grad():
        found = model(target, None, source)
        torch.testing.assert_close(model(target, None, filled, starts), found, atol=1e-5, rtol=1e-4)
        apart = (found - model(later, None, source)).abs().amax((0, 1, 3))
        assert apart[:5].max() < 1e-6 and apart[5:].min() > 1e-3
        assert (found - model(target, None, changed)).abs().amax((0, 1, 3)).min() > 1e-6


def test_each_step_of_the_road_changes_one_thing() -> None:
    def parts(architecture: str) -> set[str]:
        names = [name for name, _ in _model(_config(architecture=architecture)).named_parameters()]
        found = set()
        for name in names:
            stack = "encoder" if name.startswith("encoder.") else "decoder"
            if ".blocks.0." in f".{name}":
                module = name.split(".0.")[1]
                kind = (
                    "rnn"
                    if "recurrent" in module
                    else "attention"
                    if module.startswith("attention") and "query" in module
                    else "cross"
                    if "cross.query" in module
                    else ""
                )
                found |= {f"{stack} {kind}"} if kind else set()
        return found

    assert [parts(name) for name in ROAD] == [
        {"encoder rnn", "decoder rnn"},
        {"encoder rnn", "decoder rnn", "decoder cross"},
        {"encoder rnn", "decoder rnn", "decoder attention", "decoder cross"},
        {"encoder rnn", "decoder attention", "decoder cross"},
        {"encoder attention", "decoder attention", "decoder cross"},
        {"encoder attention", "decoder attention", "decoder cross"},
    ]
    assert [_config(architecture=name).encoder_attention for name in ROAD[-2:]] == [
        "causal",
        "full",
    ]


def test_equal_architectures_have_one_key_and_others_do_not() -> None:
    """A key is that of another run exactly where all losses of a short training are its losses."""
    open_to: list[tuple[str, str, str]] = [
        (architecture, mixer, attention)
        for architecture, of_encoder in (
            ("encoder-decoder", ("full", "causal")),
            ("causal-encoder-decoder", ("causal",)),
        )
        for mixer in CATALOGUE["mixer"].names
        for attention in of_encoder
    ]
    fixed = [
        (name, CATALOGUE["architecture"][name].implies["mixer"], "full")
        for name in ROAD
        if name.startswith("rnn")
    ]
    keys, losses = [], []
    for architecture, mixer, attention in (*open_to, *fixed):
        named = {"architecture": architecture, "mixer": mixer, "encoder_attention": attention}
        given = config(**named, objective="denoise", position="learned", dropout=0.1, steps=6)
        keys.append(run_of(given).key)
        # as the levels alone say, whatever the configuration makes of them
        step = Step([given.model_copy(update=named)], text(), "cpu")
        step.run(given.steps, lambda: False)
        losses.append(tuple(step.read(given.steps)[0].flatten().tolist()))
    pairs = [*zip(keys, losses, strict=True)]
    assert len(set(keys)) == len(set(losses)) == len(set(pairs))
    of = dict(zip((*open_to, *fixed), keys, strict=True))
    assert of["encoder-decoder", "rnn", "full"] == of["rnn-cross-attention", "rnn", "full"]
    assert len(set(keys)) == 8


def test_cells_are_a_factor_wherever_an_architecture_has_a_recurrence() -> None:
    """Each level of both factors is a cell of its own; without a recurrence there is one."""
    names = CATALOGUE["architecture"].names
    recurrent = [name for name in names if name.startswith("rnn-")]
    study = f"""
name = "cells"
question = "?"
design = "grid"
seeds = 2
[base]
corpus = "cmudict"
objective = "pairs"
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 64
tokens = 10000
[factors]
rnn_cell = ["gru", "lstm"]
architecture = {[*recurrent, "encoder-decoder"]}
"""
    cells = plan(parse(study, Path("cells.toml"))).cells
    assert len(recurrent) == 4 and len(cells) == 2 * 4 + 1
    assert len({run_of(cell.config).key for cell in cells}) == len(cells)
