"""Presets: the parameters of published models, and the fields of runs that name one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from cli_helpers import Run

from ablate import sizes
from ablate.components.presets import PRESETS
from ablate.config import RunConfig, resolve
from ablate.errors import AblateError
from ablate.plan import plan
from ablate.plan.tiny import tiny
from ablate.study import Study, load

transformers = pytest.importorskip("transformers")

# the library's own model of each preset: class, what its configuration changes
GPT_2 = "GPT2LMHeadModel"
LLAMA: dict[str, Any] = {"vocab_size": 32000, "tie_word_embeddings": False}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("OpenAIGPTLMHeadModel", {}),
    "gpt2": (GPT_2, {}),
    "gpt2-medium": (GPT_2, {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": (GPT_2, {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": (GPT_2, {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-base": ("BertForMaskedLM", {}),
    "bert-large": (
        "BertForMaskedLM",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "t5-small": ("T5ForConditionalGeneration", {}),
    "t5-base": (
        "T5ForConditionalGeneration",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    ),
    "bart-base": (
        "BartForConditionalGeneration",
        {
            "d_model": 768,
            "vocab_size": 50265,
            **{f"{stack}_layers": 6 for stack in ("encoder", "decoder")},
            **{f"{stack}_attention_heads": 12 for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": 3072 for stack in ("encoder", "decoder")},
        },
    ),
    # Marian is the Transformer of 2017: post-norm, tied, with fixed sines as positions
    **{
        name: (
            "MarianMTModel",
            {
                "d_model": width,
                "vocab_size": 37000,
                "pad_token_id": 0,
                "decoder_start_token_id": 0,
                "eos_token_id": 0,
                "forced_eos_token_id": 0,
                **{f"{stack}_layers": 6 for stack in ("encoder", "decoder")},
                **{f"{stack}_attention_heads": width // 64 for stack in ("encoder", "decoder")},
                **{f"{stack}_ffn_dim": 4 * width for stack in ("encoder", "decoder")},
            },
        )
        for name, width in (("transformer-base", 512), ("transformer-big", 1024))
    },
    "tinyllama-1.1b": (
        "LlamaForCausalLM",
        LLAMA
        | {
            "hidden_size": 2048,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 5632,
        },
    ),
    "vit-b16": ("ViTForImageClassification", {"num_labels": 1000}),
    "llama-7b": ("LlamaForCausalLM", LLAMA),
    "llama-13b": (
        "LlamaForCausalLM",
        LLAMA
        | {
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "intermediate_size": 13824,
        },
    ),
}
# parameters that the library's model has and ours has not
SEGMENTS = "token_type_embeddings"
# of two tables of positions; of the class token, whose vector and position are one here
UNUSED_ROWS = {"bart-base": 2 * 2 * 768, "vit-b16": 768}
# to how many parameters the source rounds, by default a million
ROUNDED = {
    **dict.fromkeys(("bert-base", "t5-small", "t5-base", "bart-base"), 10e6),
    **dict.fromkeys(("tinyllama-1.1b", "llama-7b", "llama-13b"), 100e6),
    # numbers that no count of the published shape gives: see the docstring of the table
    "bert-large": 10e6,
    "transformer-base": 4e6,
    "transformer-big": 2.5e6,
    "vit-b16": 2e6,  # 86M is without the head of 0.8M
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_preset_has_the_parameters_of_the_published_model(name: str) -> None:
    row = PRESETS[name]
    found = sizes.count(resolve(row.whole)).params
    of, changed = THEIRS[name]
    made = getattr(transformers, of)
    with torch.device("meta"):
        theirs = made(made.config_class(**changed))
    expected = sum(
        one.numel()
        for key, one in theirs.named_parameters()
        # fixed sines are no parameters
        if SEGMENTS not in key and not (of == "MarianMTModel" and "embed_positions" in key)
    )
    assert found == expected - UNUSED_ROWS.get(name, 0)
    assert abs(found - row.published * 1e6) <= ROUNDED.get(name, 1e6) / 2


def test_every_preset_is_compared_with_a_published_model() -> None:
    assert {*PRESETS} == {*THEIRS, "vit-22b-layer"}


def test_a_layer_of_vit_22b_has_the_parameters_of_one_of_its_48_blocks() -> None:
    row = PRESETS["vit-22b-layer"]
    width, mlp = 6144, 24576
    products = 4 * width**2 + 2 * width * mlp
    assert round(48 * products / 1e6) == 21743  # Table 1 of the paper
    norms = 3 * width + 2 * 128  # of attention, MLP and the end; of queries and keys of 48 heads
    counted = sizes.count(resolve(row.whole))
    assert counted.body == products + norms
    assert round(products / 1e6) == row.published
    patches = 3 * 14**2 * width + 256 * width
    assert counted.params == products + norms + patches + 1000 * width


HEAD = 'name = "a"\nquestion = "?"\nseeds = 2\n'
BASE = 'tokenizer = "byte"\ntokens = "2M"\nbatch_tokens = 8192\n'
FACTORS = "[factors]\nlr = [1e-3, 1e-4]\n"


def read(tmp_path: Path, base: str, rest: str = FACTORS) -> Study:
    file = tmp_path / "a.toml"
    file.write_text(f"{HEAD}[base]\n{base}{rest}", encoding="utf-8")
    return load(str(file))


def keys(study: Study) -> list[str]:
    return [one.run.key for one in plan(study).runs]


def test_a_run_of_a_preset_is_that_of_its_fields_written_out(tmp_path: Path) -> None:
    by_name = keys(read(tmp_path, f'preset = "bert-base"\n{BASE}'))
    written = """
        objective = "masked"
        norm = "post"
        norm_epsilon = 1e-12
        position = "learned"
        embed_norm = "layernorm"
        mlm_head_transform = "dense"
        tie_embeddings = "tied"
        init = "normal-0.02"
        dropout = 0.1
        n_layer = 12
        d_model = 768
        n_head = 12
        n_ctx = 512
        weight_decay = 0.01
        warmup = 0.01
        schedule = "linear"
    """
    assert by_name == keys(read(tmp_path, f"{written}\n{BASE}"))


def test_every_field_that_a_study_sets_replaces_that_of_its_preset(tmp_path: Path) -> None:
    base = f'preset = "gpt2"\nd_model = 384\nn_head = 6\n{BASE}'
    rest = """
        [factors]
        norm = ["pre", "post"]
        shape = { deep = { n_layer = 24 }, flat = { n_layer = 6, dropout = 0.2 } }
        [tune]
        weight_decay = [1e-3, 1e-1]
        points = 3
        per = "study"
    """
    configs = [cell.config for cell in plan(read(tmp_path, base, rest)).cells]
    assert {(c.norm, c.n_layer) for c in configs} == {
        (norm, n) for norm in ("pre", "post") for n in (24, 6)
    }
    for config in configs:
        assert (config.d_model, config.n_head, config.d_mlp) == (384, 6, 4 * 384)
        assert (config.position, config.n_ctx, config.batch_tokens) == ("learned", 1024, 8192)
        assert config.n_vocab == 256  # of the tokenizer
        assert config.dropout == (0.2 if config.n_layer == 6 else 0.1)


def test_a_level_that_leaves_a_field_out_has_that_of_the_preset(tmp_path: Path) -> None:
    rest = """
        [factors]
        depth = { published = {}, deep = { n_layer = 24 } }
        change = { none = {}, relu = { activation = "relu" }, post = { norm = "post" } }
    """
    study = read(tmp_path, f'preset = "gpt2"\n{BASE}', rest)
    cells = {tuple(cell.levels.values()): cell.config for cell in plan(study).cells}
    whole = plan(read(tmp_path, f'preset = "gpt2"\n{BASE}', FACTORS)).cells[0].config
    assert cells["published", "none"] == whole.model_copy(update={"lr": RunConfig().lr})
    assert {c.n_layer for (depth, _), c in cells.items() if depth == "published"} == {12}
    assert cells["published", "post"].activation == "gelu-tanh"
    assert cells["deep", "relu"].norm == "pre"


def test_a_preset_of_a_level_replaces_that_of_base_as_a_whole(tmp_path: Path) -> None:
    rest = '[factors]\nmodel = { a = {}, b = { preset = "gpt" } }\n'
    both = plan(read(tmp_path, f'preset = "llama-7b"\n{BASE}', rest)).cells
    for cell, name in zip(both, ("llama-7b", "gpt"), strict=True):
        alone = plan(read(tmp_path, f'preset = "{name}"\n{BASE}', FACTORS)).cells[0].config
        assert cell.config.model_copy(update={"lr": alone.lr}) == alone
    depth = "depth = { published = {}, deep = { n_layer = 24 } }\n"
    with pytest.raises(AblateError, match=r"line \d+: level 'published' .*leaves out n_layer"):
        read(tmp_path, BASE, f"{rest}{depth}")
    read(tmp_path, BASE, rest + depth.replace("{}", "{ n_layer = 12 }"))


def test_a_preset_yields_to_tune_and_to_the_ladder_of_sizes(tmp_path: Path) -> None:
    base = f'preset = "llama-7b"\nn_ctx = 64\n{BASE}'
    rest = """
        [factors]
        size = { params = ["0.5M", "1M"], aspect = 32, d_head = 32 }
        [tune]
        lr = [1e-4, 1e-2]
        points = 3
        per = "cell"
    """
    study = read(tmp_path, base, rest)
    assert "lr" not in study.base and study.base["weight_decay"] == 0.1
    configs = [cell.config for cell in plan(study).cells]
    bodies = [sizes.count(config).body for config in configs]
    assert bodies == pytest.approx([0.5e6, 1e6], rel=0.2)
    assert {(config.norm_kind, config.n_ctx) for config in configs} == {("rmsnorm", 64)}


def test_a_preset_is_a_level(tmp_path: Path) -> None:
    rest = '[factors]\npreset = ["gpt", "llama-7b"]\n'
    study = read(tmp_path, f"n_layer = 2\nd_model = 64\nn_head = 4\nn_ctx = 64\n{BASE}", rest)
    configs = {cell.levels["preset"]: cell.config for cell in plan(study).cells}
    assert configs["gpt"].norm == "post" and configs["llama-7b"].norm_kind == "rmsnorm"
    assert {config.n_layer for config in configs.values()} == {2}
    rest = '[factors]\nmodel = { a = { preset = "gpt" }, b = { preset = "gpt", norm = "pre" } }\n'
    study = read(tmp_path, BASE, rest)
    assert [cell.config.norm for cell in plan(study).cells] == ["post", "pre"]
    assert len({cell.config.n_ctx for cell in plan(study).cells}) == 1


def test_a_level_of_a_preset_that_another_level_replaces_is_no_fault_of_the_file(
    tmp_path: Path,
) -> None:
    level = '{ preset = "gpt", norm_kind = "none"%s }'  # gpt is post-norm
    rest = "[factors]\nmodel = { a = {}, b = %s }\n"
    study = read(tmp_path, BASE, rest % (level % ""))
    assert [cell.config.norm for cell in plan(study).cells] == ["pre", "none"]
    with pytest.raises(AblateError, match="norm = 'post' has no effect"):
        plan(read(tmp_path, BASE, rest % (level % ', norm = "post"')))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_planned_and_made_tiny(tmp_path: Path, name: str) -> None:
    data = "patch = 2" if PRESETS[name].side else 'tokenizer = "byte"'
    base = f'preset = "{name}"\n{data}\ntokens = "100M"\n'
    pairs = PRESETS[name].fields["objective"] == "pairs"
    study = read(tmp_path, base + ('corpus = "cmudict"\n' if pairs else ""))
    made = {cell.config.n_layer for cell in plan(study).cells}
    assert made == {PRESETS[name].fields["n_layer"]}
    small = [cell.config for cell in plan(tiny(study)).cells]
    heads = PRESETS[name].fields.get("n_head", 0)  # of two channels or more
    assert max(config.d_model for config in small) <= max(80, 2 * heads)


def test_a_preset_without_tokenizer_or_of_no_name_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(AblateError, match=r"a\.toml, line 5: .*'bert-base'.*\"bpe:30521\""):
        read(tmp_path, 'preset = "bert-base"\ntokens = "2M"\n')
    with pytest.raises(AblateError, match=r"a\.toml, line 5: .*'bert-bas'.*'bert-base'.*gpt2-xl"):
        read(tmp_path, f'preset = "bert-bas"\n{BASE}')
    with pytest.raises(AblateError, match=r"line 9: unknown preset 'gtp2'"):
        read(tmp_path, BASE, '[factors]\npreset = ["gtp2", "gpt"]\n')


@pytest.mark.parametrize(
    ("base", "rest", "line"),
    [
        ('preset = "gpt2"\nd_model = 100', "", 6),
        ('preset = "gpt2"', "[factors]\nn_head = [12, 7]\n", 10),
        ("n_head = 7", '[factors]\npreset = ["gpt", "bert-base"]\n', 5),
        ('preset = "gpt2"', "[factors.size]\na = { d_model = 768 }\nb = { d_model = 100 }\n", 11),
        # d_head, which follows from both
        ("", "[factors]\nn_head = [4, 8]\nd_model = [128, 100]\n", 9),
    ],
)
def test_fields_that_do_not_fit_beside_a_preset_are_named_with_their_line(
    base: str, rest: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(AblateError, match=rf"a\.toml, line {line}: cell '.*(d_model|d_head) = "):
        plan(read(tmp_path, f"{base}\n{BASE}", rest or FACTORS))


def test_new_leaves_a_study_of_a_preset_its_fields(ablate: Run) -> None:
    small = ("--base", "tokenizer=byte", "--base", "batch_tokens=8192")
    for option in (("--base", "preset=gpt2"), ("--factor", "preset=gpt2,gpt")):
        factor = ("--factor", "attention_scale=sqrt,none")
        name = option[0].strip("-")
        code, _, error = ablate("new", name, *factor, *option, *small)
        assert code == 0, error
        cells = plan(load(f"studies/{name}.toml")).cells
        assert {(cell.config.n_layer, cell.config.d_model) for cell in cells} == {(12, 768)}
    code, _, error = ablate("new", "c", "--factor", "norm=pre,post", "--base", "preset=gpt2")
    assert code == 2 and error.count("\n") == 1 and "bpe:50257" in error


def test_presets_are_listed(ablate: Run) -> None:
    _, out, _ = ablate("factors", "--presets")
    assert all(f" {name} " in out for name in PRESETS) and "124,439,808" in out
    assert "normal-0.02-scaled" in ablate("factors", "--presets", "gpt2")[1]
    code, _, error = ablate("factors", "--presets", "gtp2")
    assert code == 2 and "'gpt2'" in error
