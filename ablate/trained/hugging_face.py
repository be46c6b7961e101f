"""Runs whose model is also in the `transformers` library: GPT-2, BERT, GPT-NeoX, Llama.

A row of `ARCHITECTURES` says which levels a model of that library has, and maps names of
parameters. `tests/test_model_references.py` compares the models with these rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ablate.components import CATALOGUE
from ablate.config import RunConfig, field_info
from ablate.errors import AblateError, missing, written
from ablate.model.norm import EPSILON
from ablate.text.tokenizers import Bytes, byte_level, is_own
from ablate.trained.model import Model
from ablate.trained.tokens import MASK, TextTokenizer

CLOSE = 1e-4  # largest allowed difference of logits, relative to the largest logit
_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu"}
_GATED = {"swiglu": "silu"}
# Fields that do not change the function from tokens to logits, or of which any value can be saved.
# All other fields have their default, or a value that an architecture names.
_FREE_GROUPS = ("training", "data")
_FREE = (
    *("n_layer", "d_model", "d_mlp", "n_head", "n_kv_head", "d_head", "n_ctx", "n_vocab"),
    *("dropout", "init", "tie_embeddings", "mask_ratio", "mask_mix", "mask_kind", "z_loss"),
)


@dataclass(frozen=True)
class Architecture:
    """A model of the transformers library.

    Attributes:
        name: Its name.
        model: Its class.
        fields: Field of a run → the values that it may have, where these are not the default.
        plain_heads: Whether n_kv_head = n_head and d_head = d_model / n_head.
        settings: Run → the values of its configuration.
        outside: Our modules outside of blocks → theirs; the head follows from their model.
        blocks: The name of a block, with {} for its number.
        inside: Our modules in a block → theirs.
        transposed: Their modules whose matrices have inputs first.
        joint: Their one matrix for queries, keys and values; "" if they have three.
        join: Run, and our parameters of queries, keys and values → their joint parameter.
        zeros: Run → their parameters that our model lacks, which are zero.
    """

    name: str
    model: str
    fields: Mapping[str, tuple[str, ...]]
    settings: Callable[[RunConfig], dict[str, Any]]
    outside: Mapping[str, str]
    blocks: str
    inside: Mapping[str, str]
    plain_heads: bool = True
    transposed: tuple[str, ...] = ()
    joint: str = ""
    join: Callable[[RunConfig, Sequence[Tensor]], Tensor] = lambda config, parts: torch.cat(
        tuple(parts)
    )
    zeros: Callable[[RunConfig], Mapping[str, tuple[int, ...]]] = lambda config: {}

    def refused(self, config: RunConfig) -> dict[str, tuple[str, ...]]:
        """Return the fields of a run that this model does not have → the values it could have."""
        found: dict[str, tuple[str, ...]] = {}
        for name, row in CATALOGUE.items():
            allowed: tuple[Any, ...] = self.fields.get(name, (field_info(name).default,))
            free = row.group in _FREE_GROUPS or name in _FREE
            if not free and getattr(config, name, allowed[0]) not in allowed:
                found[name] = allowed
        if self.plain_heads:
            if config.n_kv_head != config.n_head:
                found["n_kv_head"] = (str(config.n_head),)
            if config.d_head * config.n_head != config.d_model:
                found["d_head"] = (f"{config.d_model / config.n_head:g}",)
        return found

    def make(self, config: RunConfig) -> Any:
        """Return the model of the library for a run, with random weights."""
        library = _library()
        made = getattr(library, self.model)
        sizes = {
            "vocab_size": config.n_vocab,
            "tie_word_embeddings": tied(config),
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        return made(made.config_class(**sizes | self.settings(config))).eval()

    def weights(
        self, config: RunConfig, ours: Mapping[str, Tensor], theirs: Any
    ) -> dict[str, Tensor]:
        """Return our parameters under their names. The map is linear, so it also maps gradients.

        Args:
            config: The run.
            ours: Name → parameter, of one run.
            theirs: Their model, which knows the name of its head.
        """
        scale = config.part("init").embedding_scale(config)
        output = theirs.get_output_embeddings()
        head = next((name for name, one in theirs.named_modules() if one is output), "")
        found: dict[str, Tensor] = {}
        joined: dict[str, dict[str, Tensor]] = {}
        for name, parameter in ours.items():
            owner, _, kind = name.rpartition(".")
            end = "weight" if kind == "gain" else kind
            if owner == "unembedding":
                found[f"{head}.{end}"] = parameter
            elif not owner.startswith("blocks."):
                scaled = parameter * scale if owner in _SCALED else parameter
                found[f"{self.outside[owner]}.{end}"] = scaled
            else:
                _, number, inner = owner.split(".", 2)
                block, part = self.blocks.format(number), inner.removeprefix("attention.")
                if self.joint and part in _PARTS:
                    joined.setdefault(f"{block}.{self.joint}.{end}", {})[part] = parameter
                else:
                    module = self.inside[inner]
                    found[f"{block}.{module}.{end}"] = self._turned(module, parameter)
        for name, parts in joined.items():
            whole = self.join(config, [parts[part] for part in _PARTS])
            found[name] = self._turned(self.joint, whole)
        if "unembedding.weight" not in ours and not tied(config):
            found[f"{head}.weight"] = ours["embedding.weight"]
        return found | {name: torch.zeros(shape) for name, shape in self.zeros(config).items()}

    def _turned(self, module: str, parameter: Tensor) -> Tensor:
        return parameter.T if module in self.transposed and parameter.ndim == 2 else parameter


_PARTS = ("query", "key", "value")
_SCALED = ("embedding", "position.table")  # multiplied by a constant on entry


def tied(config: RunConfig) -> bool:
    """Return whether head and embedding are one matrix in the library's model too.

    Embeddings that are multiplied on entry are stored multiplied, and the head is not.
    """
    shared: bool = config.part("tie_embeddings").tied
    return shared and config.part("init").embedding_scale(config) == 1


def _by_head(config: RunConfig, parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of queries, keys and values, grouped by head."""
    heads = [part.unflatten(0, (config.n_head, config.d_head)) for part in parts]
    return torch.stack(heads, 1).flatten(0, 2)


def _usual(config: RunConfig) -> dict[str, Any]:
    """Return the settings that most configurations of the library share."""
    activation = _ACTIVATIONS | _GATED
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.d_mlp,
        "max_position_embeddings": config.n_ctx,
        "hidden_act": activation[config.activation],
    }


ARCHITECTURES = (
    Architecture(
        name="GPT-2",
        model="GPT2LMHeadModel",
        fields={
            "position": ("learned",),
            "activation": tuple(_ACTIVATIONS),
            "attention_scale": ("sqrt", "none"),
        },
        settings=lambda config: {
            "n_positions": config.n_ctx,
            "n_embd": config.d_model,
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_inner": config.d_mlp,
            "activation_function": _ACTIVATIONS[config.activation],
            "layer_norm_epsilon": EPSILON,
            "scale_attn_weights": config.part("attention_scale").scale(config.d_head) != 1,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
        },
        outside={
            "embedding": "transformer.wte",
            "position.table": "transformer.wpe",
            "final_norm": "transformer.ln_f",
        },
        blocks="transformer.h.{}",
        inside={
            "n1": "ln_1",
            "attention.output": "attn.c_proj",
            "n2": "ln_2",
            "mlp.hidden": "mlp.c_fc",
            "mlp.output": "mlp.c_proj",
        },
        transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        joint="attn.c_attn",
    ),
    Architecture(
        name="BERT",
        model="BertForMaskedLM",
        fields={
            "objective": ("masked",),
            "attention": ("full",),
            "norm": ("post",),
            "position": ("learned",),
            "embed_norm": ("layernorm",),
            "activation": tuple(_ACTIVATIONS),
            "mlm_head_transform": ("dense",),
        },
        settings=lambda config: (
            _usual(config)
            | {
                "layer_norm_eps": EPSILON,
                "type_vocab_size": 1,
                "hidden_dropout_prob": config.dropout,
                "attention_probs_dropout_prob": 0.0,
            }
        ),
        outside={
            "embedding": "bert.embeddings.word_embeddings",
            "position.table": "bert.embeddings.position_embeddings",
            "embed_norm": "bert.embeddings.LayerNorm",
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        },
        blocks="bert.encoder.layer.{}",
        inside={
            "attention.query": "attention.self.query",
            "attention.key": "attention.self.key",
            "attention.value": "attention.self.value",
            "attention.output": "attention.output.dense",
            "p1": "attention.output.LayerNorm",
            "mlp.hidden": "intermediate.dense",
            "mlp.output": "output.dense",
            "p2": "output.LayerNorm",
        },
        zeros=lambda config: {"bert.embeddings.token_type_embeddings.weight": (1, config.d_model)},
    ),
    Architecture(
        name="GPT-NeoX",
        model="GPTNeoXForCausalLM",
        fields={"topology": ("serial", "parallel"), "activation": tuple(_ACTIVATIONS)},
        settings=lambda config: (
            _usual(config)
            | {
                "layer_norm_eps": EPSILON,
                "use_parallel_residual": config.part("topology").joins == 1,
                "rotary_pct": 1.0,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 1.0,
                },
                "hidden_dropout": config.dropout,
                "attention_dropout": 0.0,
            }
        ),
        outside={"embedding": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm"},
        blocks="gpt_neox.layers.{}",
        inside={
            "n1": "input_layernorm",
            "attention.output": "attention.dense",
            "n2": "post_attention_layernorm",
            "mlp.hidden": "mlp.dense_h_to_4h",
            "mlp.output": "mlp.dense_4h_to_h",
        },
        joint="attention.query_key_value",
        join=_by_head,
    ),
    Architecture(
        name="Llama",
        model="LlamaForCausalLM",
        fields={"norm_kind": ("rmsnorm",), "activation": tuple(_GATED), "bias": ("all", "none")},
        plain_heads=False,
        settings=lambda config: (
            _usual(config)
            | {
                "num_key_value_heads": config.n_kv_head,
                "head_dim": config.d_head,
                "rms_norm_eps": EPSILON,
                "attention_bias": config.part("bias").present,
                "mlp_bias": config.part("bias").present,
                "attention_dropout": 0.0,
            }
        ),
        outside={"embedding": "model.embed_tokens", "final_norm": "model.norm"},
        blocks="model.layers.{}",
        inside={
            "n1": "input_layernorm",
            "attention.query": "self_attn.q_proj",
            "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj",
            "attention.output": "self_attn.o_proj",
            "n2": "post_attention_layernorm",
            "mlp.gate": "mlp.gate_proj",
            "mlp.hidden": "mlp.up_proj",
            "mlp.output": "mlp.down_proj",
        },
    ),
)


def architecture_of(config: RunConfig) -> Architecture:
    """Return the architecture of the library that a run has.

    Raises:
        AblateError: The library has none; the message names the fields that the most similar one
            does not support.
    """
    refused = {one.name: one.refused(config) for one in ARCHITECTURES}
    for one in ARCHITECTURES:
        if not refused[one.name]:
            return one
    nearest = min(refused, key=lambda name: len(refused[name]))
    lacks = [
        f"{field} = {written(getattr(config, field))}, and not {' or '.join(map(written, levels))}"
        for field, levels in refused[nearest].items()
    ]
    raise AblateError(
        f"transformers has no such model; the most similar, {nearest}, lacks {'; '.join(lacks)}."
        f" Levels that can be saved: {'; '.join(_representable(refused[nearest]))}"
    )


def _representable(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield the levels of each of these fields that some architecture has."""
    for field in fields:
        if field in ("n_kv_head", "d_head"):
            yield f"any {field} with Llama"
            continue
        default = (field_info(field).default,)
        levels = {
            level: [one.name for one in ARCHITECTURES if level in one.fields.get(field, default)]
            for one in ARCHITECTURES
            for level in one.fields.get(field, default)
        }
        yield f"{field} = " + ", ".join(
            f"{level} ({', '.join(names)})" for level, names in levels.items()
        )


def save(model: Model, folder: Path) -> str:
    """Save a model and its tokenizer in a folder, from which the Auto classes of `transformers`
    load them.

    A tokenizer of bytes becomes a tokenizer of UTF-8 text with 256 tokens, one for each byte.
    A tokenizer of the user's own is Python code, and is left out.

    Args:
        model: The model.
        folder: The folder to save in; it is made if it does not exist.

    Returns:
        What the model is in `transformers`, such as "GPT-2".

    Raises:
        AblateError: The library is not installed or has no such model, or the folder is not empty.
    """
    found = architecture_of(model.config)
    _library()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AblateError(f"{folder} exists and is not an empty folder; name another folder")
    theirs = found.make(model.config)
    ours = {
        name: parameter.detach()[0].to("cpu", torch.float32)
        for name, parameter in model.transformer.named_parameters()
    }
    weights = found.weights(model.config, ours, theirs)
    _, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    theirs.tie_weights()
    _compare(model, theirs)
    text = model.tokenizer
    known = text.inner is not None and not is_own(text.name)
    tokenizer = tokenizer_for(text, model.config) if known else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder if folder.exists() else folder.parent
    with TemporaryDirectory(dir=place, prefix=".ablate-") as part:
        theirs.save_pretrained(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        folder.mkdir(exist_ok=True)
        for file in Path(part).iterdir():  # all are whole
            file.replace(folder / file.name)
    return found.name


@torch.inference_mode()
def _compare(model: Model, theirs: Any) -> None:
    """Refuse a model whose logits differ from ours: another version of the library may differ."""
    config, device = model.config, next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.n_vocab, (1, config.n_ctx), generator=generator)
    # without autocast: what is saved computes in the precision of the weights
    expected = model.transformer(tokens[None].to(device))[0].float().cpu()
    found = theirs(input_ids=tokens).logits
    worst = float((found - expected).abs().max() / expected.abs().max())
    if not worst < CLOSE:
        raise AblateError(
            f"transformers {_library().__version__} computes different logits for this model, by up"
            f" to {worst:.2g} of the largest logit: nothing was saved"
        )


def tokenizer_for(of: TextTokenizer, config: RunConfig) -> Any:
    """Return a tokenizer of the transformers library that gives the tokens of a run.

    Raises:
        AblateError: The run's tokenizer leaves numbers unused, so that `transformers` gives the
            mask another number.
    """
    import tokenizers

    assert of.inner is not None
    if isinstance(of.inner, Bytes):
        library = _of_bytes()
    else:
        library = tokenizers.Tokenizer.from_str(of.inner.content.decode())
    special: dict[str, Any] = {}
    if len(of.separator) == 1 and not isinstance(of.inner, Bytes):
        special["eos_token"] = library.id_to_token(of.separator[0])
    if of.mask is not None:
        n = library.get_vocab_size()
        library.add_tokens([f"<unused{number}>" for number in range(n, of.mask)])
        mark = MASK if library.token_to_id(MASK) is None else "<|mask|>"
        library.add_special_tokens([mark])
        if library.token_to_id(mark) != of.mask:
            raise AblateError(
                f"tokenizer {of.name!r} leaves numbers unused, and transformers gives the mask one"
                f" of them: {library.token_to_id(mark)}, not {of.mask}"
            )
        special["mask_token"] = mark
    made: Any = _library().PreTrainedTokenizerFast(
        tokenizer_object=library, model_max_length=config.n_ctx, **special
    )
    return made


def _of_bytes() -> Any:
    """Return a tokenizer whose tokens are the bytes of UTF-8 text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(
        models.BPE(vocab={letter: value for value, letter in byte_level().items()}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _library() -> Any:
    """Import the library.

    Raises:
        AblateError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers

            transformers.utils.logging.disable_progress_bar()
    except ImportError:
        raise missing("transformers") from None
    return transformers
