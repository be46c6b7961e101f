"""Weights, gradients, packs, dropout and precision of the model, for every level."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from model_cases import MODEL_GROUPS, NUMBERS, ONE_FACTOR, ONE_FACTOR_IDS, build, small, tokens
from torch import Tensor, nn

from ablate import draws
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.kinds.transformer import run_of
from ablate.model import trial
from ablate.model.layers import Dropout, DropoutRng
from ablate.model.transformer import Transformer
from ablate.model.trial import loss_of
from ablate.trying import TRIALS

POSITIONS, TOPOLOGIES = CATALOGUE["position"].names, CATALOGUE["topology"].names


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "value", "baseline", "changed"), ONE_FACTOR, ids=ONE_FACTOR_IDS)
def test_changing_one_factor_leaves_weights_of_the_same_name_and_shape(
    factor: str, value: Any, baseline: RunConfig, changed: RunConfig
) -> None:
    before, after = (
        dict(build(baseline, 3).named_parameters()),
        dict(build(changed, 3).named_parameters()),
    )
    shared = [name for name in before if name in after and before[name].shape == after[name].shape]
    assert len(shared) >= 5 or factor == "d_model"
    if factor != "init":
        assert all(torch.equal(before[name], after[name]) for name in shared)


def test_weights_depend_on_seed_and_name_not_on_pack_or_precision() -> None:
    alone, packed = build(small(), 5), build(small(precision="float64"), 1, 5)
    values = [
        parameter.detach()
        for name, parameter in alone.named_parameters()
        if name.endswith("weight")
    ]
    for name, parameter in alone.named_parameters():
        assert torch.equal(dict(packed.named_parameters())[name][1].float(), parameter[0])
    assert len({round(float(value.flatten()[0] / value.std()), 4) for value in values}) == len(
        values
    )
    assert not torch.equal(packed.embedding.weight[0], packed.embedding.weight[1])


@pytest.mark.parametrize("name", CATALOGUE["init"].names)
def test_weights_start_at_the_stated_deviation(name: str) -> None:
    config = small(
        init=name,
        d_model=64,
        n_layer=4,
        head_combine="sum",
        qkv="mlp",
        n_vocab=256,
        position="learned",
        n_ctx=64,
    )
    model = build(config)
    normal = name.startswith("normal-0.02")
    last = 1 / math.sqrt(2 * 4) if name.endswith("-scaled") else 1
    fan_in = {
        "embedding.weight": 64,
        "position.table.weight": 64,
        "unembedding.weight": 64,
        "blocks.2.attention.query.output.weight": 64,
        "blocks.2.mlp.hidden.weight": 64,
        "blocks.2.mlp.output.weight": 256,
        # one matrix of d_head rows, four heads summed
        "blocks.2.attention.output.weight": 64,
    }
    for parameter, terms in fan_in.items():
        expected = 0.02 if normal else terms**-0.5
        if parameter.endswith(("mlp.output.weight", "attention.output.weight")):
            expected *= last
        weight = dict(model.named_parameters())[parameter]
        assert abs(float(weight.detach().std()) / expected - 1) < 5 / math.sqrt(
            2 * weight.numel()
        ), parameter
    stream = float(model.stream(tokens(config))[0][0, 0])
    assert abs(stream / (math.sqrt(2) * (0.02 if normal else 1)) - 1) < 0.05


@pytest.mark.parametrize("tie", CATALOGUE["tie_embeddings"].names)
@pytest.mark.parametrize("name", CATALOGUE["init"].names)
def test_the_first_loss_is_near_that_of_guessing(name: str, tie: str) -> None:
    config = small(init=name, tie_embeddings=tie, d_model=64, n_vocab=256, n_ctx=64)
    with torch.no_grad():
        first = float(loss_of(build(config), tokens(config))) - math.log(256)
    # A tied head favours the token it reads by up to √d_model, until training takes that back.
    assert abs(first) < 1 or (tie == "tied" and name != "normal-0.02" and 0 < first < 64**0.5)


def test_weights_are_nan_before_they_are_initialised() -> None:
    assert Transformer(small())(tokens(small())).isnan().all()


# -- gradients -------------------------------------------------------------------------------------


def _without_gradient(config: RunConfig) -> tuple[str, ...]:
    """Biases added to every key shift all scores of a query, which the softmax ignores."""
    if config.score == "additive":
        return ()
    ends = ("key.bias", "key.output.bias") if config.qk_norm == "none" else ("key_norm.bias",)
    # what a key's position turns is no longer the same for all keys; a source has no positions
    return tuple(f"cross.{end}" for end in ends) if config.position == "rotary" else ends


GRADIENT_CASES = [
    *(changed for _, _, _, changed in ONE_FACTOR),
    *(
        small(topology=topology, norm=norm)
        for topology in TOPOLOGIES
        for norm in ("post", "peri", "none")
    ),
    *(
        small(position=position, objective="masked", **more)
        for position in POSITIONS
        for more in ({}, {"qk_norm": "layernorm"})
    ),
    small(qkv="mlp", position="none"),
    small(
        objective="masked",
        mlm_head_transform="dense",
        tie_embeddings="tied",
        embed_norm="layernorm",
    ),
]


@pytest.mark.parametrize(
    "config", GRADIENT_CASES, ids=[run_of(config).key[:6] for config in GRADIENT_CASES]
)
def test_every_parameter_of_every_member_gets_a_gradient(config: RunConfig) -> None:
    config = config.model_copy(update={"precision": "float64"})
    dead = [
        name
        for name, _ in build(config).named_parameters()
        if name.endswith(_without_gradient(config) or ("none",))
    ]
    for smallest in (1e-12, 1e-9):  # nothing is nearly dead
        assert trial.without_gradient(config, smallest) == dead


# -- packs -----------------------------------------------------------------------------------------

PACK_CASES = [
    *(
        small(topology=topology, position=position, precision="float64")
        for topology in TOPOLOGIES
        for position in POSITIONS
    ),
    *(changed.model_copy(update={"precision": "float64"}) for _, _, _, changed in ONE_FACTOR),
]


@pytest.mark.parametrize(
    "config", PACK_CASES, ids=[run_of(config).key[:6] for config in PACK_CASES]
)
def test_packed_equals_solo(config: RunConfig) -> None:
    assert not trial.packed(config, (4, 9, 2))


@pytest.mark.parametrize("config", [changed for _, _, _, changed in ONE_FACTOR], ids=ONE_FACTOR_IDS)
def test_every_level_passes_the_trials_of_a_users_own(config: RunConfig) -> None:
    for what in ("shapes", "determinism", "causality", "sizes"):
        assert not TRIALS[what].run(config.model_copy(update={"precision": "float64"})), what
    assert not trial.works(config)


# -- dropout ---------------------------------------------------------------------------------------


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    dropout = Dropout(0.3, "site", DropoutRng(2))
    y = dropout(torch.ones(2, 8, 50, 40))
    assert abs(float((y == 0).float().mean()) - 0.3) < 0.01
    torch.testing.assert_close(y.unique(), torch.tensor([0, 1 / 0.7]))
    assert torch.equal(dropout.eval()(y), y)


def test_dropout_is_a_function_of_seed_site_step_and_row() -> None:
    rng = DropoutRng(2)
    rng.seed.copy_(torch.tensor([3, 4]))
    rng.step.fill_(5)
    x = torch.ones(2, 6, 7, 5)
    whole = Dropout(0.5, "a", rng)(x)
    drawn = draws.uniforms(rng.seed, draws.stream("dropout.a"), 5, (6, 7, 5))
    assert torch.equal(whole > 0, drawn >= 0.5)
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole, Dropout(0.5, "b", rng)(x))
    rng.row.fill_(4)
    assert torch.equal(Dropout(0.5, "a", rng)(x[:, :2]), whole[:, 4:])
    rng.row.zero_()
    rng.step.fill_(6)
    assert not torch.equal(Dropout(0.5, "a", rng)(x), whole)


def test_every_site_drops_in_training_alone_and_by_the_members_seeds() -> None:
    config = small(dropout=0.2, n_layer=3)
    model, given = build(config, 1, 2), tokens(config, 2)
    sites = [module for module in model.modules() if isinstance(module, Dropout)]
    assert len({site.stream for site in sites}) == len(sites) == 1 + 2 * 3
    assert torch.equal(model.rng.seed, torch.tensor([1, 2]))
    assert torch.equal(model(given), model(given)) and not torch.equal(
        model(given), model.eval()(given)
    )


# -- precision, compilation, copies ----------------------------------------------------------------


class _Kinds(set[torch.dtype]):
    """A forward hook that remembers what kinds of numbers it saw."""

    def __call__(self, module: nn.Module, given: Any, out: Tensor) -> None:
        self.add(out.dtype)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_stream_norms_and_logits_stay_float32_under_bfloat16(topology: str) -> None:
    for norm in CATALOGUE["norm"].names:
        config = small(
            topology=topology, norm=norm, position="t5", qk_norm="rmsnorm", embed_norm="rmsnorm"
        )
        model = build(config)
        streams, products = _Kinds(), _Kinds()
        for module in [
            model.dropout,
            *model.blocks,
            *(m for m in model.modules() if type(m).__name__.endswith("Norm")),
        ]:
            module.register_forward_hook(streams)
        model.blocks[0].mlp.hidden.register_forward_hook(products)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens(config))
        assert {logits.dtype, *streams} == {torch.float32} and products == {torch.bfloat16}
        assert 0 < (logits - model(tokens(config))).abs().max() < 0.3


COMPILED: list[dict[str, Any]] = [
    {"position": "t5", "dropout": 0.1, "n_kv_head": 1},
    {"position": "sinusoidal", "topology": "concat", "qk_norm": "layernorm"},
    {
        "position": "rotary",
        "activation": "swiglu",
        "norm": "peri",
        "norm_kind": "rmsnorm",
        "head_combine": "sum",
    },
    {
        "position": "learned",
        "score": "additive",
        "objective": "masked",
        "mlm_head_transform": "dense",
    },
    {
        "position": "alibi",
        "topology": "parallel",
        "norm": "post",
        "norm_kind": "layernorm-scalar",
        "tie_embeddings": "tied",
    },
]


@pytest.mark.parametrize("fields", COMPILED, ids=lambda fields: fields["position"])
def test_a_step_is_one_graph(fields: dict[str, Any]) -> None:
    torch._dynamo.reset()
    config = small(**fields, n_layer=1)
    model, given = build(config, 0, 1), tokens(config, 2)
    whole = torch.compile(lambda given: loss_of(model, given), fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(given), loss_of(model, given))


def test_a_copy_has_positions_of_its_own() -> None:
    model = build(small(position="rotary"))
    other = copy.deepcopy(model)
    assert other.blocks[0].attention.rotate.__self__ is other.position is not model.position


def test_every_factor_of_the_model_has_a_case() -> None:
    numbers = {
        name for name, row in CATALOGUE.items() if row.group in MODEL_GROUPS and not row.levels
    }
    assert numbers == set(NUMBERS)
