"""Folders of `transformers`: a model that it saved is read with its logits, or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from cli_helpers import Run
from random_weights import random_model, randomise
from torch import Tensor

import ablate as library
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.position import T5Bias
from ablate.trained import Model, hugging_face
from ablate.trained.sample import sample

transformers = pytest.importorskip("transformers")

GPT_2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 20}
USUAL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
}
T5 = {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    "d_model": 32,
    "max_position_embeddings": 20,
    "encoder_layers": 2,
    "decoder_layers": 3,
    **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 48 for stack in ("encoder", "decoder")},
}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT_2),
    "gpt2, relu": ("GPT2LMHeadModel", GPT_2 | {"activation_function": "relu", "n_inner": 40}),
    "gpt2, untied": (
        "GPT2LMHeadModel",
        GPT_2
        | {"tie_word_embeddings": False, "scale_attn_weights": False, "layer_norm_epsilon": 0.1},
    ),
    "bert": ("BertForMaskedLM", USUAL),
    "bert, untied": (
        "BertForMaskedLM",
        USUAL | {"tie_word_embeddings": False, "hidden_act": "gelu_new", "type_vocab_size": 1},
    ),
    "neox": ("GPTNeoXForCausalLM", USUAL),  # of which a quarter of the channels turn
    "neox, serial": (
        "GPTNeoXForCausalLM",
        USUAL
        | {
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    "llama": ("LlamaForCausalLM", USUAL),
    "llama, groups": (
        "LlamaForCausalLM",
        USUAL | {"num_key_value_heads": 2, "head_dim": 6, "rms_norm_eps": 0.1},
    ),
    "llama, biases": (
        "LlamaForCausalLM",
        USUAL | {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": ROPE},
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, untied": (
        "T5ForConditionalGeneration",
        T5
        | {
            "tie_word_embeddings": False,
            "num_decoder_layers": 3,
            "relative_attention_max_distance": 200,
        },
    ),
    "bart": ("BartForConditionalGeneration", BART),
    "bart, scaled": (
        "BartForConditionalGeneration",
        BART | {"scale_embedding": True, "activation_function": "relu"},
    ),
}


def made(case: str, **changed: Any) -> Any:
    """Return a model of the library with random weights, of which attention is not uniform."""
    name, settings = CASES[case]
    of = getattr(transformers, name)
    numbers = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    theirs = of(of.config_class(**numbers | settings | changed)).eval()
    randomise(theirs, seed=0, deviation=0.25)
    return theirs


def drawn(encodes: bool) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    tokens, source = (torch.randint(1, 50, (3, n), generator=generator) for n in (20, 17))
    return tokens, source if encodes else None


@pytest.mark.parametrize("case", CASES)
def test_a_folder_has_the_logits_of_the_library(case: str, tmp_path: Path) -> None:
    theirs = made(case)
    theirs.save_pretrained(tmp_path)
    model = library.load_model(tmp_path)
    tokens, source = drawn(model.config.part("architecture").encodes)
    with torch.inference_mode():
        found, expected = model(tokens, source), hugging_face.logits(theirs, tokens, source)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["shards", "half", "no head", "other heads"])
def test_a_folder_may_have_any_layout_of_the_library(layout: str, tmp_path: Path) -> None:
    theirs = made("bert" if layout == "other heads" else "gpt2")
    if layout == "shards":
        theirs.save_pretrained(tmp_path, max_shard_size="20KB")
        assert (tmp_path / "model.safetensors.index.json").exists()
    elif layout == "half":
        theirs.to(torch.bfloat16).save_pretrained(tmp_path)
        theirs.float()
    elif layout == "no head":  # as the published GPT-2: its head is the embedding
        theirs.transformer.save_pretrained(tmp_path)
    else:  # as the published BERT: with a second task
        both = transformers.BertForPreTraining(theirs.config)
        both.load_state_dict(theirs.state_dict(), strict=False)
        both.save_pretrained(tmp_path)
    tokens, _ = drawn(False)
    with torch.inference_mode():
        found = library.load_model(tmp_path)(tokens)
        torch.testing.assert_close(found, theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def own(**fields: Any) -> Model:
    """Return a model of ablate with random weights, as one of a run."""
    sizes = {"n_layer": 2, "d_model": 32, "n_head": 4, "d_mlp": 48, "n_ctx": 128, "n_vocab": 50}
    config = RunConfig(**{**sizes, "tokenizer": "tokens", **fields}, batch_tokens=256)
    return random_model(config, seed=2, deviation=0.2)


BOTH: dict[str, dict[str, Any]] = {
    "T5": {
        "norm_kind": "rmsnorm",
        "bias": "none",
        "position": "t5",
        "activation": "relu",
        "attention_scale": "none",
        "n_layer_encoder": 1,
        "objective": "span",
    },
    "BART": {
        "norm": "post",
        "position": "learned",
        "embed_norm": "layernorm",
        "tie_embeddings": "tied",
        "objective": "denoise",
    },
}


@pytest.mark.parametrize("init", ["fan-in", "normal-0.02"])
@pytest.mark.parametrize("tie", ["tied", "untied"])
@pytest.mark.parametrize("name", BOTH)
def test_an_encoder_decoder_is_saved_and_read(
    name: str, tie: str, init: str, tmp_path: Path
) -> None:
    model = own(architecture="encoder-decoder", init=init, **BOTH[name] | {"tie_embeddings": tie})
    if name == "BART" and tie == "untied":
        with pytest.raises(AblateError, match="tie_embeddings = 'untied' must be 'tied'"):
            hugging_face.save(model, tmp_path / "out")
        return
    assert hugging_face.save(model, tmp_path / "out") == name
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    tokens, source = drawn(True)
    with torch.inference_mode():
        expected = model(tokens, source)
        theirs_again = hugging_face.logits(theirs, tokens, source)
        torch.testing.assert_close(theirs_again, expected, atol=1e-5, rtol=1e-5)
        again = library.load_model(tmp_path / "out")
        torch.testing.assert_close(again(tokens, source), expected, atol=1e-5, rtol=1e-5)
    assert theirs.config.decoder_start_token_id == 49  # the objective's last token begins a target


@pytest.mark.parametrize("both", [False, True], ids=["decoder", "encoder"])
def test_a_folder_is_compared_in_all_buckets_of_a_t5(
    both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("t5").save_pretrained(tmp_path)
    bucket = T5Bias.bucket

    def wrong(self: T5Bias, distance: Tensor) -> Tensor:
        found = bucket(self, distance)
        return torch.where(distance <= -120, 0, found) if self.both is both else found

    monkeypatch.setattr(T5Bias, "bucket", wrong)
    with pytest.raises(AblateError, match="computes different logits"):
        library.load_model(tmp_path)


def test_a_t5_with_a_short_context_is_refused(tmp_path: Path) -> None:
    """Its two stacks would have different buckets."""
    model = own(architecture="encoder-decoder", n_ctx=32, **BOTH["T5"])
    with pytest.raises(AblateError, match="n_ctx = 32 must be '64 or more'"):
        hugging_face.save(model, tmp_path / "out")


# what is refused: a case, what its configuration changes, what its message says
ASKED: dict[str, tuple[str, dict[str, Any], str]] = {
    "rotations": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type = 'linear'.*'default'",
    ),
    "activation": ("gpt2", {"activation_function": "silu"}, "'silu'.*gelu_new"),
    "gate": ("t5", {"feed_forward_proj": "gated-gelu"}, "'gated-gelu'"),
    "scales": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx = true.*GPT-2 supports only false",
    ),
    "buckets": ("t5", {"relative_attention_num_buckets": 16}, "buckets = 16.*T5 supports only 32"),
    "decoder": ("bert", {"is_decoder": True}, "is_decoder = true"),
    "widths": ("bart", {"encoder_ffn_dim": 40}, "encoder_ffn_dim = 40 and decoder_ffn_dim = 48"),
    "tables": ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings = false"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_a_configuration_asks_beyond_ablate_is_one_line(what: str, tmp_path: Path) -> None:
    case, settings, words = ASKED[what]
    made(case, **settings).save_pretrained(tmp_path)
    with pytest.raises(AblateError, match=words) as error:
        library.load_model(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def configured(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


# a folder that does not hold together: what is changed, what its message says
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "kind": (configured(model_type="mistral"), "'mistral'.*gpt_neox, llama"),
    "width": (configured(hidden_size=64, head_dim=16), r"\[50, 32\], not \[50, 64\], and"),
    "blocks": (configured(num_hidden_layers=3), r"model\.layers\.2\..* is missing, and"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    "weights": (lambda folder: (folder / "model.safetensors").write_bytes(b"what"), "be read"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "configuration": (lambda folder: (folder / "config.json").write_text("["), "no model_type"),
    "tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_folder_that_does_not_hold_together_is_one_line(
    what: str, tmp_path: Path, ablate: Run
) -> None:
    change, words = SPOILT[what]
    made("llama").save_pretrained(tmp_path)
    change(tmp_path)
    with pytest.raises(AblateError, match=words) as error:
        library.load_model(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    assert ablate("sample", str(tmp_path), "a") == (2, "", f"ablate: {error.value}\n")


def words() -> Any:
    """Return a tokenizer of "w0" to "w39", of which "w1" is token 3."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = ["<pad>", "[MASK]", *(f"w{n}" for n in range(40))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(known)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def test_sample_reads_a_folder(ablate: Run, tmp_path: Path) -> None:
    """With the tokenizer in it, which has a token for a hidden one."""
    tokenizer = words()
    for case, name in (("gpt2", "causal"), ("bert", "masked")):
        made(case).save_pretrained(tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    model = library.load_model(str(tmp_path / "causal"))
    code, out, _ = ablate("sample", str(tmp_path / "causal"), "w1 w2", "--tokens", "1")
    assert code == 0 and out.startswith("w1 w2")
    code, out, _ = ablate(
        "sample", str(tmp_path / "causal"), "w1 w2", "--tokens", "1", "--temperature", "0"
    )
    with torch.inference_mode():
        best = int(model(torch.tensor([model.tokenizer.encode("w1 w2")]))[0, -1].argmax())
    assert out.strip() == model.tokenizer.decode([3, 4, best]).strip()
    masked = library.load_model(tmp_path / "masked")
    assert masked.tokenizer.mask == 1 and masked.tokenizer.encode("w1 [MASK]") == [3, 1]
    code, out, _ = ablate("sample", str(tmp_path / "masked"), "w1 [MASK] w2")
    assert code == 0 and "[MASK]" not in out
    for name, option, value, offered in (
        ("causal", "--beam", "4", "--tokens, --temperature, --top-k"),
        ("masked", "--tokens", "7", "--temperature, --top-k"),
    ):
        code, _, err = ablate("sample", str(tmp_path / name), "w1 [MASK]", option, value)
        assert code == 2 and err.count("\n") == 1
        assert f"{option} = {value} has no effect" in err and offered in err
    (tmp_path / "causal" / "tokenizer.json").unlink()
    code, _, err = ablate("sample", str(tmp_path / "causal"), "w1")
    assert code == 2 and err.count("\n") == 1


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_a_target_is_that_of_generate(case: str, tmp_path: Path) -> None:
    """Greedily, with the tokens around source and target that the configuration names."""
    theirs = made(case, decoder_start_token_id=2, eos_token_id=5)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "EncDecAttention" in name or "encoder_attn" in name:
                parameter *= 4  # the target depends on the source
    theirs.save_pretrained(tmp_path)
    if case == "t5":  # which has no token before a source
        configured(bos_token_id=None)(tmp_path)
    words().save(str(tmp_path / "tokenizer.json"))
    model, seen = library.load_model(tmp_path), set()
    for text in ("w1 w2", "w3", "w8 w9 w10 w11", "w30 w4 w30"):
        ids = [*([0] if case == "bart" else []), *model.tokenizer.encode(text), 5]
        expected = theirs.generate(
            torch.tensor([ids]),
            num_beams=1,
            do_sample=False,
            max_new_tokens=12,
            forced_eos_token_id=None,
        )[0, 1:].tolist()
        wanted = [token for token in expected if token not in (0, 2, 5)]
        assert sample(model, text, tokens=12) == model.tokenizer.decode(wanted)
        seen.add(tuple(wanted))
    assert len(seen) > 1
