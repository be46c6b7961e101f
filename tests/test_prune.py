"""`ablate prune`: the loss without each head and block, as weights set to zero by hand give it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cli_helpers import Run
from finetune_study import train
from random_weights import random_model, randomise
from scipy import signal, stats
from torch import Tensor

from ablate import text
from ablate.config import RunConfig
from ablate.data.batches import gather, held_out_starts
from ablate.errors import AblateError
from ablate.plan import plan
from ablate.stats.text import independent, over_windows
from ablate.study import load
from ablate.text import corpora, tokenizers
from ablate.train import weights
from ablate.trained import Model
from ablate.trained.load import load_model
from ablate.trained.prune import Part, Pruned, prune
from ablate.units import signed

SIZES = {"n_layer": 2, "d_model": 16, "n_head": 4, "d_mlp": 24, "n_ctx": 16, "n_vocab": 256}
BUDGET = 16 * 24  # tokens: 24 windows


def own(**fields: Any) -> Model:
    """Return a model of bytes with random weights, of which attention is not uniform."""
    corpus = corpora.find("austen", Path())
    config = RunConfig(**{**SIZES, "corpus_hash": corpus.hash, "batch_tokens": 64, **fields})
    return random_model(config, seed=1, deviation=0.4)


def read(n_ctx: int = 16) -> Tensor:
    """Return the held-out windows of austen, [W, T + 1]."""
    corpus = corpora.find("austen", Path())
    tokens = text.of(corpus, tokenizers.describe("byte", corpus, Path()))
    starts = held_out_starts(len(tokens.held_out), n_ctx, BUDGET)
    return gather(tokens.held_out, starts, n_ctx + 1)


@torch.inference_mode()
def losses(logits: Tensor, targets: Tensor) -> np.ndarray:
    """Return the mean loss of each window, [W]."""
    return F.cross_entropy(logits.mT, targets, reduction="none").mean(-1).double().numpy()


def worth(found: Pruned) -> dict[Part, float]:
    return {one.part: one.effect.mean for one in found.parts}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_kv_head": 2, "bias": "none", "precision": "float64"},
        {"topology": "parallel", "norm": "post", "position": "t5", "d_head": 6},
    ],
    ids=["plain", "groups", "parallel"],
)
def test_a_head_is_its_columns_of_the_output_matrix(fields: dict[str, Any]) -> None:
    model, windows = own(**fields), read()
    before = model(windows[:, :-1]).detach()
    found = prune(model, "heads", tokens=BUDGET)
    assert torch.equal(model(windows[:, :-1]), before), "the model is whole again"
    whole = losses(before, windows[:, 1:])
    assert found.loss == pytest.approx(whole.mean(), abs=1e-6) and found.windows == len(whole)
    width, got = model.config.d_head, worth(found)
    assert [(part.layer, part.head) for part in got] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    for part in got:
        assert part.head is not None
        changed = own(**fields)
        with torch.no_grad():
            output = changed.transformer.blocks[part.layer].attention.output
            output.weight[:, :, part.head * width : (part.head + 1) * width] = 0
        expected = losses(changed(windows[:, :-1]), windows[:, 1:]) - whole
        assert got[part] == pytest.approx(expected.mean(), abs=2e-6)
    assert np.ptp(list(got.values())) > 0.01


def test_heads_of_one_shared_output_matrix_are_left_out_alone() -> None:
    """head_combine = "sum": a head whose values are zero adds nothing."""
    model, windows = own(head_combine="sum"), read()
    whole = losses(model(windows[:, :-1]), windows[:, 1:])
    for part, difference in worth(prune(model, "heads", tokens=BUDGET)).items():
        assert part.head is not None
        changed = own(head_combine="sum")
        with torch.no_grad():
            value = changed.transformer.blocks[part.layer].attention.value
            value.weight[:, 4 * part.head : 4 * part.head + 4] = 0
            value.bias[:, 4 * part.head : 4 * part.head + 4] = 0
        expected = losses(changed(windows[:, :-1]), windows[:, 1:]) - whole
        assert difference == pytest.approx(expected.mean(), abs=2e-6)


def test_the_interval_is_students_over_windows_that_are_not_alike() -> None:
    model, windows = own(), read()
    found = prune(model, "blocks", tokens=BUDGET)
    whole = losses(model(windows[:, :-1]), windows[:, 1:])
    p = []
    for one in found.parts:
        changed = own()
        x, bias = changed.transformer.start(windows[None, :, :-1])
        for layer, block in enumerate(changed.transformer.blocks):
            x = x if layer == one.part.layer else block(x, bias)
        logits = changed.transformer.head(changed.transformer.final_norm(x))[0].detach()
        difference = losses(logits, windows[:, 1:]) - whole
        assert one.part.head is None
        assert one.effect.mean == pytest.approx(difference.mean(), abs=2e-6)
        _, blocks, left = independent(difference[None])
        blocks = blocks[0]
        if left > 0:  # a correlation that is left widens the interval
            blocks = blocks.mean() + (blocks - blocks.mean()) * (1 + 2 * left) ** 0.5
        test = stats.ttest_1samp(blocks, 0)
        interval = test.confidence_interval(0.95)
        found_interval = one.effect.lo, one.effect.hi
        assert found_interval == pytest.approx((interval.low, interval.high), rel=1e-3)
        p.append(test.pvalue)
    low, high = sorted(p)
    holm = {low: 2 * low, high: max(2 * low, high)}
    assert [one.effect.p_holm for one in found.parts] == pytest.approx(
        [min(1, holm[value]) for value in p], rel=1e-2
    )


def test_intervals_of_correlated_windows_hold_the_truth() -> None:
    """Of autocorrelated differences, 95% intervals over single windows hold it in 70%."""
    generator = np.random.default_rng(0)
    held, naive = 0, 0
    for _ in range(100):
        values = signal.lfilter([1.0], [1.0, -0.6], generator.normal(size=300))[44:]
        _, effect = over_windows(values)
        held += effect.lo <= 0 <= effect.hi
        naive += stats.ttest_1samp(values, 0).pvalue > 0.05
    assert naive < 75 and held > 86


def test_windows_that_are_alike_count_as_one() -> None:
    drift = np.repeat(np.random.default_rng(0).normal(size=32), 8)[None]
    block, blocks, _ = independent(drift)
    assert block == 8 and blocks.shape == (1, 32)
    noise = np.random.default_rng(1).normal(size=(1, 256))
    assert independent(noise)[0] == 1


def test_an_encoder_decoder_has_three_kinds_of_heads() -> None:
    fields = {
        "architecture": "encoder-decoder",
        "objective": "denoise",
        "n_vocab": 258,
        "n_layer_encoder": 1,
    }
    model = own(**fields)
    got = worth(prune(model, "heads", tokens=BUDGET))
    assert {(part.stack, part.attention, part.layer) for part in got} == {
        ("encoder", "self", 0),
        *(("decoder", kind, layer) for kind in ("self", "cross") for layer in (0, 1)),
    }
    loss = prune(model, "heads", tokens=BUDGET).loss
    for part in (
        Part("encoder", 0, "self", 1),
        Part("decoder", 1, "cross", 2),
        Part("decoder", 0, "self", 3),
    ):
        assert part.head is not None
        changed = own(**fields)
        stack = changed.transformer.encoder if part.stack == "encoder" else changed.transformer
        block = stack.blocks[part.layer]
        attention = block.cross if part.attention == "cross" else block.attention
        with torch.no_grad():
            attention.output.weight[:, :, 4 * part.head : 4 * part.head + 4] = 0
        expected = prune(changed, "blocks", tokens=BUDGET).loss - loss
        assert got[part] == pytest.approx(expected, abs=2e-6)
    blocks = worth(prune(model, "blocks", tokens=BUDGET))
    assert {(part.stack, part.layer) for part in blocks} == {
        *(("encoder", 0), ("decoder", 0), ("decoder", 1))
    }


def test_heads_of_an_rnn_are_those_of_its_attention() -> None:
    """The state bottleneck has none."""
    fields = {"objective": "denoise", "n_vocab": 258, "n_layer": 1}
    for architecture, kinds in (
        ("rnn-cross-attention", {("decoder", "cross")}),
        ("rnn-self-attention", {("decoder", "self"), ("decoder", "cross")}),
    ):
        model = own(architecture=architecture, **fields)
        found = prune(model, "heads", tokens=BUDGET)
        assert {(one.part.stack, one.part.attention) for one in found.parts} == kinds
        got = worth(found)
        for stack, kind in kinds:
            part = Part(stack, 0, kind, 3)
            changed = own(architecture=architecture, **fields)
            block = changed.transformer.blocks[0]
            attention = block.cross if kind == "cross" else block.attention.over
            with torch.no_grad():
                attention.output.weight[:, :, 12:16] = 0
            expected = prune(changed, "blocks", tokens=BUDGET).loss - found.loss
            assert got[part] == pytest.approx(expected, abs=2e-6)
    bottleneck = own(architecture="rnn-seq2seq", **fields)
    with pytest.raises(AblateError, match=r"'rnn-seq2seq'.*no heads; use --blocks"):
        prune(bottleneck, "heads", tokens=BUDGET)
    assert len(prune(bottleneck, "blocks", tokens=BUDGET).parts) == 2


# -- folders of transformers -----------------------------------------------------------------------


def folder(path: Path, kind: str) -> Any:
    """Save a model of the library that reads bytes, with its tokenizer; return it."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from ablate.text.tokenizers import byte_level

    letters = {letter: value for value, letter in byte_level().items()}
    if kind in ("t5", "bart"):
        return encoder_decoder(path, kind)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=260, n_embd=16, n_head=4, n_layer=2, n_positions=16
        )
        theirs = transformers.GPT2LMHeadModel(config).eval()
    else:
        # the mask is a token among others, as in BERT's own vocabulary
        letters = {"[MASK]": 0, **{letter: value + 1 for letter, value in letters.items()}}
        config = transformers.BertConfig(
            vocab_size=260,
            hidden_size=16,
            num_attention_heads=4,
            num_hidden_layers=2,
            intermediate_size=24,
            max_position_embeddings=16,
        )
        theirs = transformers.BertForMaskedLM(config).eval()
    randomise(theirs, seed=3, deviation=0.4)
    theirs.save_pretrained(path)
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save(str(path / "tokenizer.json"))
    return theirs


SENTINELS = 20


def encoder_decoder(path: Path, kind: str) -> Any:
    """Save a T5 or BART that reads bytes behind three tokens: begin, end and what begins a target.

    Behind the bytes stand the sentinels, of which the first one is the last, or the mask.
    """
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from ablate.text.tokenizers import byte_level

    hidden = ["<mask>"] if kind == "bart" else [f"<extra_id_{n}>" for n in range(SENTINELS)][::-1]
    letters = byte_level()
    names = ["<s>", "</s>", "<pad>", *(letters[byte] for byte in range(256)), *hidden]
    numbers = {"vocab_size": 290, "eos_token_id": 1, "decoder_start_token_id": 2, "pad_token_id": 2}
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3}
        config = transformers.T5Config(
            **numbers, **sizes, num_heads=4, relative_attention_max_distance=64
        )
        theirs = transformers.T5ForConditionalGeneration(config).eval()
    else:
        config = transformers.BartConfig(
            **numbers,
            bos_token_id=0,
            d_model=16,
            max_position_embeddings=64,
            encoder_layers=2,
            decoder_layers=3,
            **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": 24 for stack in ("encoder", "decoder")},
        )
        theirs = transformers.BartForConditionalGeneration(config).eval()
    randomise(theirs, seed=3, deviation=0.3)
    theirs.save_pretrained(path)
    tokenizer = Tokenizer(models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([*names[:3], *hidden])
    tokenizer.save(str(path / "tokenizer.json"))
    return theirs


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_heads_of_a_folder_with_two_stacks_are_those_of_the_library(
    kind: str, tmp_path: Path
) -> None:
    """The library makes inputs of the decoder, masks and losses from lists written by hand."""
    from ablate.data.corrupt import Denoise, Span

    theirs, length = folder(tmp_path, kind), 63 if kind == "t5" else 62
    model, budget = load_model(tmp_path), 63 * 16
    found = prune(model, "heads", corpus="austen", tokens=budget)
    corpus = corpora.find("austen", Path())
    of_bytes = text.of(corpus, tokenizers.describe("byte", corpus, Path()))
    starts = held_out_starts(len(of_bytes.held_out), 64, budget)
    windows = gather(of_bytes.held_out, starts, length + 1)
    # as a run of bytes corrupts them
    special = 101 if kind == "t5" else 2
    fields = {"architecture": "encoder-decoder", "objective": "span" if special > 2 else "denoise"}
    config = RunConfig(**fields, n_ctx=length, n_vocab=256 + special, batch_tokens=length)
    example = (Span if kind == "t5" else Denoise)([config], of_bytes, "cpu").test(windows)
    assert example.source is not None and example.source_starts is not None
    # of a run: what begins a target, then the first sentinel or the mask
    tokens = {256 + special - 1: 2} | {byte: byte + 3 for byte in range(256)}
    tokens[12] = 1  # a document ends with the folder's own token
    for number in range(SENTINELS if kind == "t5" else 1):
        tokens[256 + special - 2 - number] = 259 + (SENTINELS - 1 - number if kind == "t5" else 0)

    def row(values: Tensor, keep: Tensor, ends: bool) -> list[int]:
        inner = [tokens[int(one)] for one, kept in zip(values, keep, strict=True) if kept]
        # the end of a T5's target stands for the last sentinel
        inner = inner[:-1] if ends and kind == "t5" else inner
        return [*([0] if kind == "bart" else []), *inner, 1]

    rows = range(len(windows))
    read = [row(example.source[0, n], example.source_starts[0, n] == 0, False) for n in rows]
    labels = [row(example.targets[0, n], example.weights[0, n] > 0, True) for n in rows]

    @torch.inference_mode()
    def measured() -> np.ndarray:
        return np.array(
            [
                float(theirs(input_ids=torch.tensor([a]), labels=torch.tensor([b])).loss)
                for a, b in zip(read, labels, strict=True)
            ]
        )

    whole = measured()
    assert found.loss == pytest.approx(whole.mean(), abs=1e-5) and found.windows == len(whole)
    got, inner = worth(found), 6 if kind == "t5" else 4
    assert len(got) == 4 * (2 + 3 + 3)
    for part in [*got][::3]:
        assert part.head is not None
        if kind == "t5":
            layer = getattr(theirs, part.stack).block[part.layer].layer
            cross = part.attention == "cross"
            matrix = layer[1].EncDecAttention.o if cross else layer[0].SelfAttention.o
        else:
            layer = getattr(theirs.model, part.stack).layers[part.layer]
            matrix = (layer.encoder_attn if part.attention == "cross" else layer.self_attn).out_proj
        kept = matrix.weight.detach().clone()
        with torch.no_grad():
            matrix.weight[:, inner * part.head : inner * (part.head + 1)] = 0
            expected = measured() - whole
            matrix.weight.copy_(kept)
        assert got[part] == pytest.approx(expected.mean(), abs=1e-5)
    assert np.ptp(list(got.values())) > 0.01


def test_heads_and_blocks_of_a_folder_are_those_of_the_library(tmp_path: Path) -> None:
    theirs, windows = folder(tmp_path, "gpt2"), read()
    model = load_model(tmp_path)
    whole = losses(theirs(windows[:, :-1]).logits, windows[:, 1:])
    heads = prune(model, "heads", corpus="austen", tokens=BUDGET)
    assert heads.loss == pytest.approx(whole.mean(), abs=1e-5)
    for part, difference in worth(heads).items():
        assert part.head is not None
        matrix = theirs.transformer.h[part.layer].attn.c_proj.weight  # inputs first
        kept = matrix.detach().clone()
        with torch.no_grad():
            matrix[4 * part.head : 4 * part.head + 4] = 0
            expected = losses(theirs(windows[:, :-1]).logits, windows[:, 1:]) - whole
            matrix.copy_(kept)
        assert difference == pytest.approx(expected.mean(), abs=1e-5)
    blocks = worth(prune(model, "blocks", corpus="austen", tokens=BUDGET))
    layers = theirs.transformer.h
    for part, difference in blocks.items():
        theirs.transformer.h = torch.nn.ModuleList(
            layer for number, layer in enumerate(layers) if number != part.layer
        )
        expected = losses(theirs(windows[:, :-1], use_cache=False).logits, windows[:, 1:]) - whole
        assert difference == pytest.approx(expected.mean(), abs=1e-5)


SAVED: dict[str, dict[str, Any]] = {
    "span": {"objective": "span", "n_vocab": 357, "norm_kind": "rmsnorm", "bias": "none"}
    | {"position": "t5", "attention_scale": "none", "activation": "relu"},
    "denoise": {"objective": "denoise", "n_vocab": 258},
    "pairs": {"objective": "pairs", "corpus": "cmudict"},
}


@pytest.mark.parametrize("objective", SAVED)
def test_a_saved_run_with_two_stacks_is_pruned_as_the_run(objective: str, tmp_path: Path) -> None:
    """Its folder says which tokens the objective writes."""
    pytest.importorskip("transformers")
    from ablate.trained import hugging_face
    from ablate.trained.sample import sample

    corpus = SAVED[objective].get("corpus", "austen")
    bart = {"norm": "post", "position": "learned", "embed_norm": "layernorm"}
    levels = bart | {"tie_embeddings": "tied", "architecture": "encoder-decoder", "n_ctx": 64}
    found = corpora.find(corpus, Path())
    model = own(**levels | {"corpus_hash": found.hash} | SAVED[objective])
    if objective == "span":
        model = own(**{"architecture": "encoder-decoder", "n_ctx": 64} | SAVED[objective])
    hugging_face.save(model, tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert again.config.objective == objective
    expected = prune(model, "blocks", tokens=64 * 8)
    saved = prune(again, "blocks", corpus=corpus, tokens=64 * 8)
    assert saved.loss == pytest.approx(expected.loss, abs=1e-5)
    assert worth(saved) == pytest.approx(worth(expected), abs=1e-5)
    given = "hello" if objective == "pairs" else "It is a [MASK] universally"
    assert sample(again, given) == sample(model, given) != ""


def test_a_masked_folder_hides_tokens_by_its_own_mask(tmp_path: Path) -> None:
    from ablate.data.objectives import Masked

    theirs = folder(tmp_path, "bert")
    model = load_model(tmp_path)
    found = prune(model, "blocks", corpus="austen", tokens=BUDGET)
    windows = read()
    corpus = corpora.find("austen", Path())
    bytes_of = text.of(corpus, tokenizers.describe("byte", corpus, Path()))
    shifted = Masked(
        [model.config],
        type(bytes_of)(**{**bytes_of.__dict__, "n_vocab": 259, "spelling": None}),
        "cpu",
    )
    example = shifted.test(windows + 1)
    scored = example.weights[0]
    inputs = example.inputs[0].masked_fill(example.inputs[0] == 259, 0)
    with torch.inference_mode():
        nats = F.cross_entropy(theirs(inputs).logits.mT, windows[:, :-1] + 1, reduction="none")
    expected = ((nats * scored).sum(-1) / scored.sum(-1)).mean()
    assert (inputs == 0).any()
    assert found.loss == pytest.approx(float(expected), abs=1e-5)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_prints_a_table_json_and_a_figure(ablate: Run, tmp_path: Path) -> None:
    model, file = own(), tmp_path / "model.safetensors"
    kept = {name: one[0] for name, one in model.transformer.state_dict().items()}
    weights.write(file, kept, model.about)
    few = ("--tokens", "384")
    code, out, _ = ablate("prune", str(file), *few, "--plot", "heads.svg")
    assert code == 0 and "24 windows of austen" in out and "Drawn: heads.svg" in out
    lines = [line.split() for line in out.splitlines()]
    assert sum(line[:1] in (["0"], ["1"]) for line in lines) == 8
    drawn = (tmp_path / "heads.svg").read_text()
    code, out, _ = ablate("prune", str(file), *few, "--json", "--plot", "heads.pdf")
    found = json.loads(out)
    assert (tmp_path / "heads.pdf").exists() and found["windows"] == 24
    expected = prune(model, "heads", tokens=BUDGET)
    assert found["loss"] == expected.loss
    for row, one in zip(found["parts"], expected.parts, strict=True):
        assert (row["layer"], row["head"]) == (one.part.layer, one.part.head)
        assert (row["difference"], row["lo"]) == (one.effect.mean, one.effect.lo)
        half = (one.effect.hi - one.effect.lo) / 2  # of which the table shows two digits
        table = [line for line in lines if line[:2] == [str(one.part.layer), str(one.part.head)]]
        digits = len(table[0][3].partition(".")[2])
        assert 10 <= half * 10**digits < 100 and table[0][3] == signed(one.effect.mean, digits)
        number = f"{row['difference']:.2f}".replace("-", "−")
        assert f">{number}" in drawn or f" {number}" in drawn
    code, out, _ = ablate("prune", str(file), *few, "--blocks", "--json", "--plot", "blocks.png")
    assert [row["head"] for row in json.loads(out)["parts"]] == [None, None]
    assert (tmp_path / "blocks.png").exists()


PAIRS = """
name = "a"
question = "?"
metric = "loss"
seeds = 1
[base]
architecture = "encoder-decoder"
objective = "pairs"
corpus = "texts/rev.tsv"
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 64
tokens = 640
[factors]
norm = ["pre", "post"]
[data]
pairs = ["de", "en"]
[eval]
points = 1
tokens = "1K"
final_tokens = "1K"
[run]
keep = "final"
"""


def test_a_run_on_pairs_of_a_file_is_pruned_from_any_folder(ablate: Run, tmp_path: Path) -> None:
    """The weights say where the text is and how it is read; another file is read alike."""
    study = tmp_path / "study"
    (study / "texts").mkdir(parents=True)
    (study / "a.toml").write_text(PAIRS)
    lines = [f"{k:04}\t{k * 7:05}\tno" for k in range(400)]
    (study / "texts/rev.tsv").write_text("\n".join(["de\ten\tother", *lines]))
    outcome, said = train(plan(load(str(study / "a.toml"))), tmp_path / "a.db")
    assert outcome.exit_code == 0, said
    at = ("--db", str(tmp_path / "a.db"), "--tokens", "1K", "--json")
    code, out, error = ablate("prune", "1", *at)
    assert code == 0, error
    again = ablate("prune", "1", *at, "--corpus", str(study / "texts/rev.tsv"))
    assert again[0] == 0 and json.loads(again[1])["loss"] == json.loads(out)["loss"]
    (study / "texts/rev.tsv").rename(study / "texts/moved.tsv")
    code, _, error = ablate("prune", "1", *at)
    assert code == 2 and "--corpus" in error and error.count("\n") == 1


def test_what_cannot_be_pruned_is_one_line(ablate: Run, tmp_path: Path) -> None:
    folder(tmp_path / "made", "gpt2")
    for arguments, words in (
        ((), "--corpus austen"),
        (("--heads", "--blocks"), "one of --heads and --blocks"),
        (("--corpus", "nowhere.txt"), "nowhere.txt"),
        (("--corpus", "austen", "--tokens", "16"), "raise --tokens"),
        (("--corpus", "austen", "--plot", "a.gif"), "'.gif'"),
        (("--corpus", "austen", "--device", "cuda:9"), "cuda:9"),
    ):
        code, out, err = ablate("prune", "made", *arguments)
        assert code == 2 and not out and err.count("\n") == 1 and words in err, err
    with pytest.raises(AblateError, match="no heads; use --blocks"):
        prune(own(mixer="rnn"), "heads")
    assert len(prune(own(mixer="rnn"), "blocks", tokens=BUDGET).parts) == 2
    with pytest.raises(AblateError, match="not the text that the run was trained on"):
        prune(own(corpus_hash="0" * 64), "heads")
    with pytest.raises(AblateError, match=r"gone.*--corpus"):
        prune(own(corpus="gone.txt"), "heads")
