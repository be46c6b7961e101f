"""Models of images: against the library `transformers`, by hand, in packs, and how they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from image_cases import digits, fields, small, train
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from train_helpers import Events, after

from ablate import images, sizes
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.images import Classify, MaskedAutoencoding
from ablate.data.objectives import Example
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.images import sets
from ablate.kinds import Run, kind
from ablate.model.transformer import model_of
from ablate.train import compiled
from ablate.train.loss import token_losses
from ablate.train.step import Step

EVALUATION = Evaluation(points=2, tokens=16 * 64, probe={"ratio": (0.5, 0.75)})  # type: ignore[arg-type]
TINY: dict[str, Any] = {"d_model": 16, "n_head": 2, "batch_tokens": 256, "steps": 6, "lr": 5e-3}


# -- the library's models, by copied weights -------------------------------------------------------

SIDE, PATCH = 8, 2
BOTH: dict[str, Any] = {"class_token": "learned", "image_height": SIDE, "norm_epsilon": 1e-12}
THEIRS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": PATCH,
    "num_channels": 3,
}
BLOCK = {
    "n1": "layernorm_before",
    "n2": "layernorm_after",
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.output": "attention.o_proj",
    "mlp.hidden": "mlp.fc1",
    "mlp.output": "mlp.fc2",
}


def named(ours: str) -> str:
    """The library's name of a parameter, but for embeddings and tokens."""
    stack = "decoder." if ours.startswith("decoder.") else ""
    name = ours.removeprefix(stack)
    names = {"final_norm": "vit.layernorm", "unembedding": "classifier"}
    if stack:
        names = {"final_norm": "decoder.decoder_norm", "embedding": "decoder.decoder_embed"}
    if name.startswith("blocks."):
        _, i, rest = name.split(".", 2)
        part, _, kind = rest.rpartition(".")
        where = "decoder.decoder_layers" if stack else "vit.layers"
        path = f"{where}.{i}.{BLOCK[part]}"
    else:
        part, _, kind = name.rpartition(".")
        path = names[part]
    return f"{path}.{'weight' if kind == 'gain' else kind}"


def copied(theirs: nn.Module, config: RunConfig) -> tuple[nn.Module, dict[str, str]]:
    """Our model with the library's weights, and our names → its, of equal parameters."""
    state = {name: one.detach() for name, one in theirs.named_parameters()}
    model = model_of(config)
    prefix = "vit.embeddings"
    position = state[f"{prefix}.position_embeddings"][0]
    made = {
        "embedding.weight": state[f"{prefix}.patch_embeddings.projection.weight"]
        .permute(0, 2, 3, 1)
        .flatten(1),
        "embedding.bias": state[f"{prefix}.patch_embeddings.projection.bias"],
        "position.table.weight": position[1:],
        "token.vector": state[f"{prefix}.cls_token"][0, 0] + position[0],
    }
    if "decoder.mask_token" in state:
        decoder = state["decoder.decoder_pos_embed"][0]
        assert not decoder[0].any()  # that of the class token
        made |= {
            "decoder.vector": state["decoder.mask_token"][0, 0],
            "decoder.position.table.weight": decoder[1:],
            "unembedding.weight": state["decoder.decoder_pred.weight"],
            "unembedding.bias": state["decoder.decoder_pred.bias"],
        }
    equal = {name: named(name) for name, _ in model.named_parameters() if name not in made}
    made |= {ours: state[other] for ours, other in equal.items()}
    model.load_state_dict({name: one[None] for name, one in made.items()})
    return model, equal


def check_gradients(model: nn.Module, theirs: nn.Module, equal: dict[str, str]) -> None:
    """Gradients of all parameters that both models have are equal."""
    others = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if name in equal:
            grad = others[equal[name]].grad
            torch.testing.assert_close(parameter.grad[0], grad, atol=1e-5, rtol=1e-4, msg=name)
    assert len(equal) > 30


def pictures() -> Tensor:
    """Bytes of images [B, H, W, 3]."""
    shape = (5, SIDE, SIDE, 3)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))


def windows(pixels: Tensor) -> Tensor:
    """Rows of bytes of images [B, H, W, 3], with class 1, [B, span]."""
    return torch.cat((pixels.flatten(1), torch.tensor([1, 0]).expand(len(pixels), 2)), 1)


def test_a_classifier_is_that_of_the_library() -> None:
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(**THEIRS, num_labels=5, hidden_dropout_prob=0.0)
    ).eval()
    config = small(objective="classify", init="normal-0.02", **BOTH)
    model, equal = copied(theirs, config)
    example = Classify([config], None, "cpu").test(windows(pictures()))  # type: ignore[arg-type]
    logits = model(*example.read)[0, :, 0]
    pixels = pictures().permute(0, 3, 1, 2) / 127.5 - 1
    expected = theirs(pixels, labels=torch.ones(5, dtype=torch.long))
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-5)
    loss, _ = token_losses(logits, example.targets[0, :, 0])
    torch.testing.assert_close(loss.mean(), expected.loss, atol=1e-5, rtol=1e-5)
    loss.mean().backward()
    expected.loss.backward()
    check_gradients(model, theirs, equal)


def test_a_masked_autoencoder_is_that_of_the_library() -> None:
    torch.manual_seed(0)
    theirs = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(
            **THEIRS,
            decoder_hidden_size=8,
            decoder_num_attention_heads=2,
            decoder_num_hidden_layers=1,
            decoder_intermediate_size=32,
            mask_ratio=0.75,
            norm_pix_loss=True,
        )
    )
    config = small(d_decoder=8, n_layer_decoder=1, init="normal-0.02", **BOTH)
    model, equal = copied(theirs, config)
    example = MaskedAutoencoding([config], None, "cpu").test(windows(pictures()))  # type: ignore[arg-type]
    pixels = pictures().permute(0, 3, 1, 2) / 127.5 - 1
    # the library keeps the patches with the lowest noise, and hides the rest
    expected = theirs(pixels, noise=example.weights[0])
    assert (expected.mask == example.weights[0]).all()
    logits = model(*example.read)
    torch.testing.assert_close(logits[0], expected.logits, atol=1e-5, rtol=1e-5)
    loss, _ = token_losses(logits, example.targets)
    loss = (loss * example.weights).sum() / example.weights.sum()
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.loss.backward()
    check_gradients(model, theirs, equal)
    with torch.no_grad():  # of whole images, as the library's encoder without masks
        theirs.config.mask_ratio = 0.0
        whole = theirs.vit(pixels).last_hidden_state[:, 0]
        torch.testing.assert_close(
            model.hidden(example.inputs)[0, :, 0], whole, atol=1e-5, rtol=1e-5
        )  # type: ignore[operator]


# -- by hand ---------------------------------------------------------------------------------------


def test_patches_are_read_row_by_row_with_the_channels_of_a_pixel_together() -> None:
    config = small(image_height=4, image_width=4, image_channels=2)
    pixels = torch.arange(32).reshape(1, 4, 4, 2)
    found = MaskedAutoencoding([config], None, "cpu").patches(windows(pixels))  # type: ignore[arg-type]
    expected = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    torch.testing.assert_close((found[0, :2] + 1) * 127.5, torch.tensor(expected).float())


def test_hidden_patches_by_hand() -> None:
    """Of 4 patches those with the lowest draws are hidden; each is normalised by itself."""
    config = small(image_height=4, image_width=4, image_channels=1, mask_ratio=0.5)
    objective = MaskedAutoencoding([config], None, "cpu")  # type: ignore[arg-type]
    patches = torch.tensor([[[[0.0, 0, 0, 4], [1, 2, 3, 4], [5, 5, 5, 5], [0, 0, 8, 8]]]])
    example = objective._hide(patches, torch.tensor([[[0.9, 0.1, 0.5, 0.3]]]), 2)
    assert example.weights.tolist() == [[[0, 1, 0, 1]]]
    assert example.source is not None and example.source.tolist() == [[[0, 2]]]
    expected = [[-0.5, -0.5, -0.5, 1.5], [-1.5, -0.5, 0.5, 1.5], [0.0] * 4, [-1, -1, 1, 1]]
    scales = [1.0, (3 / 5) ** 0.5, 1.0, 3**0.5 / 2]
    for found, values, scale in zip(example.targets[0, 0], expected, scales, strict=True):
        torch.testing.assert_close(found, torch.tensor(values) * scale, atol=1e-5, rtol=1e-5)


def test_the_decoder_reads_each_shown_patch_at_its_place_and_a_vector_at_all_others() -> None:
    config = small(image_height=4, image_width=4, position="none")
    model: Any = model_of(config)
    model.initialise([0])
    read = torch.randn(1, 3, 2, 16)
    shown = torch.tensor([[[0, 3], [1, 2], [2, 3]]])
    x, bias = model.decoder.start(read, shown)
    known = model.decoder.embedding(read)
    assert bias is None and x.shape == (1, 3, 4, 16)
    for image, places in enumerate(shown[0].tolist()):
        for place in range(4):
            other = model.decoder.vector[0]
            expected = known[0, image, places.index(place)] if place in places else other
            torch.testing.assert_close(x[0, image, place], expected)


def test_the_encoder_reads_shown_patches_alone() -> None:
    config = small()
    model: Any = model_of(config)
    model.initialise([0])
    example = _example(config)
    hidden = example.weights.bool()[..., None]
    with torch.no_grad():
        before = model(*example.read)
        other = example._replace(inputs=torch.where(hidden, 9.0, example.inputs))
        torch.testing.assert_close(model(*other.read), before)
        changed = example._replace(inputs=torch.where(hidden, example.inputs, 9.0))
        assert (model(*changed.read) - before).abs().max() > 1e-3


def _example(config: RunConfig, pack: int = 1) -> Example:
    shape = (2, config.part("objective").span(config))
    rows = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1))
    made = config.part("objective").load()([config] * pack, None, "cpu")
    return made.train(rows.expand(pack, *shape), 0)  # type: ignore[no-any-return]


def test_masks_are_those_of_the_seed_nested_and_the_same_for_all_arms_of_a_probe() -> None:
    few, many = (small(mask_ratio=ratio) for ratio in (0.25, 0.75))
    hidden = [_example(one).weights for one in (few, many)]
    assert [one.sum(-1).unique().tolist() for one in hidden] == [[3], [9]]
    assert (hidden[0] <= hidden[1]).all()
    other = _example(few.model_copy(update={"seed": 1})).weights
    assert not torch.equal(other, hidden[0])
    rows = windows(torch.randint(0, 256, (3, 6, 8, 3)))
    probes = [
        MaskedAutoencoding([one], None, "cpu").probe(rows, 0.5)  # type: ignore[arg-type]
        for one in (few, many, many.model_copy(update={"seed": 5}))
    ]
    assert probes[0].weights.sum(-1).unique().tolist() == [6]
    assert all(torch.equal(one.weights, probes[0].weights) for one in probes)


# -- sizes and rules -------------------------------------------------------------------------------

SIZED = [
    {},
    {"class_token": "learned", "d_decoder": 32, "mask_ratio": 0.5, "norm": "post", "bias": "none"},
    {"n_layer_decoder": 3, "topology": "concat", "n_kv_head": 2, "activation": "swiglu"},
    {"objective": "classify", "position": "t5", "class_token": "learned"},
    {"objective": "classify", "embed_norm": "rmsnorm", "topology": "parallel"},
]


@pytest.mark.parametrize("changes", SIZED, ids=str)
def test_parameters_and_flops_equal_the_modules(changes: dict[str, Any]) -> None:
    config = small(**changes)
    with torch.device("meta"):
        model = model_of(config)
        example = Example(*(None,) * 3, source=None)._replace(  # type: ignore[arg-type]
            inputs=torch.zeros(1, 1, config.n_ctx, 12)
        )
        n = config.part("objective").n_shown(config)
        if n < config.n_ctx:
            example = example._replace(source=torch.arange(n).expand(1, 1, -1))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(*example.read)
    counted = sizes.count(config)
    assert counted.params == model.n_params
    assert counted.flops_per_token == counter.get_total_flops() // config.n_ctx
    body = [
        one.numel()
        for name, one in model.named_parameters()
        if name.removeprefix("decoder.").startswith(("blocks.", "final_norm."))
        or (name.startswith("position.") and config.part("position").in_body)
    ]
    assert counted.body == sum(body)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patch": 4}, "patch = 4 does not divide the images of 6 × 8 pixels; choose one of 1, 2"),
        ({"mask_ratio": 1.0}, "mask_ratio = 1.0: .*less than or equal to 0.95"),
        ({"mask_ratio": 0.95, "image_height": 2, "image_width": 4}, "hides 2 of 2 patches"),
        ({"position": "rotary"}, "position = 'rotary' counts distances"),
        ({"d_decoder": 10}, "d_decoder = 10 is not a multiple of 4"),
        ({"n_layer_decoder": 0}, "n_layer_decoder = 0: a number from 1 to 1024"),
        ({"n_layer_decoder": 2**63}, "n_layer_decoder = 9223372036854775808: at most"),
        ({"n_layer_decoder": 10**9}, "n_layer_decoder = 1000000000: a number from 1 to 1024"),
        ({"d_decoder": -8}, "d_decoder = -8: a number from 0 to 65536"),
        ({"d_decoder": 10**9}, "d_decoder = 1000000000: a number from 0 to 65536"),
        ({"document_mask": "attention"}, "reads one image a row"),
        ({"class_token": "learned", "attention": "causal"}, "needs to see the patches after it"),
        (
            {"objective": "classify", "image_height": 2, "image_width": 2, "n_ctx": 2},
            "a single patch",
        ),
        ({"objective": "causal", "architecture": "masked-autoencoder"}, "reads images; use obj"),
        ({"objective": "causal", "embedding": "patches"}, "reads images; use obj"),
    ],
)
def test_what_contradicts_itself_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AblateError, match=said):
        kind("image").check(fields(**changes))


@pytest.mark.parametrize("objective", ["mae", "classify"])
def test_every_level_has_sizes_or_is_refused(objective: str) -> None:
    accepted = set()
    for name, row in CATALOGUE.items():
        for level in row.names if row.choice else ():
            try:
                run = Run(
                    "image", kind("image").check(fields(**{"objective": objective, name: level}))
                )
            except AblateError:
                continue
            accepted.add((name, level))
            assert sizes.alone(run.config) == "" and sizes.count(run.config).params > 0
    assert ("topology", "concat") in accepted
    assert ("mixer", "rnn") not in accepted


@pytest.mark.parametrize("topology", CATALOGUE["topology"].names)
def test_every_topology_and_norm_reaches_every_parameter(topology: str) -> None:
    for norm in CATALOGUE["norm"].names:
        config = small(topology=topology, norm=norm, class_token="learned", n_layer=1)
        model: Any = model_of(config, 2)
        model.initialise([0, 1])
        example = _example(config, 2)
        loss, _ = token_losses(model(*example.read), example.targets)
        (loss * example.weights).sum().backward()
        dead = [
            name
            for name, one in model.named_parameters()
            if one.grad is None or not one.grad.flatten(1).abs().amax(1).all()
        ]
        # the only norm without a gain at the input is not there; biases of keys have no effect
        assert [name for name in dead if not name.endswith("key.bias")] == [], norm


# -- training --------------------------------------------------------------------------------------


def test_a_step_traces_without_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tracer only: its graphs, which run eagerly, are what a compiler gets."""
    monkeypatch.setitem(compiled.COMPILER, "backend", "eager")
    depth = {"n_layer": 1, "n_layer_decoder": 1}
    run = digits(class_token="learned", dropout=0.1, **TINY | depth)
    packs = [run.with_(seed=seed).config for seed in range(2)]
    data = sets.of(images.find("digits", Path()))
    eager, step = (Step(packs, data, "cpu", 8) for _ in range(2))
    step.functions = compiled.functions(step, "block")
    for one in (eager, step):
        one.run(3, lambda: False)
    assert abs(step.read(3)[0] - eager.read(3)[0]).max() < 1e-5


def test_packed_equals_solo_and_ratios_are_not_packed() -> None:
    runs = [digits(**TINY).with_(seed=seed) for seed in (0, 1)]
    runs[1] = runs[1].with_(lr=1e-3)
    assert runs[0].pack_key == runs[1].pack_key != digits(**TINY, mask_ratio=0.5).pack_key
    together = train(*runs, evaluation=EVALUATION)
    for run, packed in zip(runs, together, strict=True):
        (alone,) = train(run, evaluation=EVALUATION)
        for series, points in alone.curve().items():
            assert packed.curve()[series] == pytest.approx(points, rel=1e-4), series
        assert packed.measured() == pytest.approx(alone.measured(), rel=1e-3)
        assert {("reconstruction_loss", 0.5), ("reconstruction_loss", 0.75)} <= {*alone.finals()}


def test_a_stopped_run_continues_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    run = digits(dropout=0.1, **TINY)
    (whole,) = train(run, evaluation=EVALUATION)
    events, path = [Events()], tmp_path / "checkpoint"
    train(run, evaluation=EVALUATION, into=events, checkpoint=path, stop=after(4))
    assert events[0].end["status"] == "stopped" and path.exists()
    train(run, evaluation=EVALUATION, into=events, checkpoint=path, resume=path)
    assert events[0].end["status"] == "complete"
    assert events[0].curve() == whole.curve() and events[0].measured() == whole.measured()


def test_seeds_are_paired_across_topologies_and_objectives() -> None:
    """Weights of one name and shape, and the order of images, are those of the seed."""
    one, other = digits(**TINY), digits(**TINY, objective="classify", topology="parallel")
    models = [model_of(run.config) for run in (one, other)]
    for model in models:
        model.initialise([3])
    first, second = (dict(model.named_parameters()) for model in models)
    same = [
        name for name in first.keys() & second.keys() if first[name].shape == second[name].shape
    ]
    assert len(same) > 20 and all(torch.equal(first[name], second[name]) for name in same)
    data = sets.of(images.find("digits", Path()))
    steps = [Step([run.config], data, "cpu") for run in (one, other)]
    assert torch.equal(*(step.batches.several(0, 3) for step in steps))


@pytest.mark.parametrize(
    "changes",
    [
        {"patch": 4, "batch_tokens": 64},
        {"class_token": "learned"},
        {"n_layer_decoder": 1},
        {"d_decoder": 8},
        {"mask_ratio": 0.5},
        {"position": "sinusoidal"},
        {"objective": "classify"},
    ],
    ids=str,
)
def test_every_field_of_images_changes_the_numbers(changes: dict[str, Any]) -> None:
    data = sets.of(images.find("digits", Path()))
    steps = [Step([run.config], data, "cpu") for run in (digits(**TINY), digits(**TINY | changes))]
    for step in steps:
        step.run(2, lambda: False)
    first, second = (step.read(2)[0][:, 0] for step in steps)
    assert not np.array_equal(first, second)


def test_losses_of_what_knows_nothing_but_means() -> None:
    """By hand: the frequencies of classes, and the mean patch at each place."""
    (classified,) = train(
        digits(**TINY | {"steps": 1}, objective="classify"), evaluation=EVALUATION
    )
    data = sets.of(images.find("digits", Path()))
    shares = np.bincount(data.classes(data.train)) / len(data.train_bounds[1:])
    tested = data.classes(data.held_out)[np.linspace(0, 354, 64).astype(int)]
    expected = -np.log(shares)[tested].mean()
    assert classified.finals()["unigram_loss", 0] == pytest.approx(expected, rel=1e-5)
    (masked,) = train(digits(**TINY | {"steps": 1}), evaluation=EVALUATION)
    pixels = [
        part.reshape(-1, 66)[:, :-2].reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4)
        for part in (data.train, data.held_out)
    ]
    patches = [part.reshape(-1, 16, 4) / 127.5 - 1 for part in pixels]
    train_targets, targets = (
        (part - part.mean(-1, keepdims=True)) / np.sqrt(part.var(-1, ddof=1, keepdims=True) + 1e-6)
        for part in patches
    )
    errors = ((targets - train_targets.mean(0)) ** 2).mean(-1)[np.linspace(0, 354, 64).astype(int)]
    # all patches instead of the hidden ones, which are a random sample of them
    assert masked.finals()["unigram_loss", 0] == pytest.approx(errors.mean(), rel=0.1)


def test_a_classifier_learns_the_digits() -> None:
    run = digits(objective="classify", d_model=32, n_head=4, batch_tokens=1024, steps=80, lr=1e-2)
    (events,) = train(run, evaluation=Evaluation(points=1, tokens=1 << 14))
    assert events.finals()["accuracy", 0] > 0.8


LEARNS: dict[str, Any] = {"d_model": 32, "n_head": 4, "n_layer_decoder": 1, "batch_tokens": 512}


def test_an_autoencoder_learns_more_than_the_mean_patch_at_each_place() -> None:
    run = digits(**LEARNS, n_layer=1, mask_ratio=0.5, steps=150, lr=1e-2)
    (events,) = train(run, evaluation=Evaluation(points=1, tokens=1 << 14))
    finals = events.finals()
    assert finals["loss", 0] < 0.93 * finals["unigram_loss", 0]


@pytest.mark.slow
def test_a_linear_probe_on_a_pretrained_encoder_beats_one_on_a_random_encoder() -> None:
    """Random features of digits are good already: few steps of pre-training make them worse."""
    evaluation = Evaluation(points=1, tokens=1 << 10, downstream=("label_accuracy",))
    runs = [
        [digits(**LEARNS, n_layer=2, **of).with_(seed=seed) for seed in range(4)]
        for of in ({"steps": 800, "lr": 4e-3}, {"steps": 1, "lr": 1e-9})
    ]
    pretrained, random = (
        [one.finals()["label_accuracy", 0] for one in train(*pack, evaluation=evaluation)]
        for pack in runs
    )
    assert np.mean(pretrained) > np.mean(random) > 0.8
