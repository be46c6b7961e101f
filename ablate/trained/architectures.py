"""Models of the `transformers` library that ablate's are too: GPT-2, BERT, GPT-NeoX, Llama, T5,
BART.

A row of `ARCHITECTURES` says which levels a model of that library has, and maps configurations and
names of parameters in both directions. `tests/test_model_references.py` compares the models with
these rows.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.components import CATALOGUE
from ablate.components.position import t5_buckets
from ablate.config import RunConfig, field_info
from ablate.errors import AblateError, missing, written

_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu"}
_GATED = {"swiglu": "silu"}
_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}  # other names of one function
# Fields that do not change the function from tokens to logits, or of which any value can be saved.
# All other fields have their default, or a value that an architecture names.
_FREE_GROUPS = ("training", "data", "start")
_FREE = (
    *("n_layer", "n_layer_encoder", "d_model", "d_mlp", "n_head", "n_kv_head", "d_head", "n_ctx"),
    *("n_vocab", "norm_epsilon", "rope_theta", "rope_share", "dropout", "init", "tie_embeddings"),
    *("mask_ratio", "mask_mix", "mask_kind", "mean_span", "corruption", "z_loss"),
)
_HEADS = ("n_kv_head", "d_head")
_PARTS = ("query", "key", "value")
_EMBEDDINGS = ("embedding", "position.table", "encoder.position.table")
_BLOCK = re.compile(r"(encoder\.)?blocks\.(\d+)\.(.+)")


def _shared(config: RunConfig) -> bool:
    """Return whether head and embedding are one matrix in the library's model too.

    Embeddings that are multiplied on entry are stored multiplied, and the head is not.
    """
    tied: bool = config.part("tie_embeddings").tied
    return tied and config.part("init").embedding_scale(config) == 1


@dataclass(frozen=True)
class Architecture:
    """A model of the transformers library.

    Attributes:
        name: Its name.
        kind: Its `model_type`.
        model: Its class.
        fields: Field of a run → the values that it may have, where these are not the default.
        settings: Run → the values of its configuration.
        read: Its configuration → the fields of a run that `fields` leaves open.
        outside: Our modules outside of blocks → theirs; the head follows from their model.
        blocks: The name of a block, with {} for its number; of a decoder, if there are two stacks.
        inside: Our modules in a block → theirs.
        encoder_blocks: As `blocks`, of an encoder.
        encoder_inside: As `inside`, of an encoder.
        only: Values of its configuration that a folder may have, where others change the model.
        plain_heads: Which of n_kv_head = n_head and d_head = d_model / n_head must hold.
        limits: Run → fields that it cannot have → the values that it could.
        transposed: Ends of the names of modules whose matrices have inputs first.
        joint: Their one matrix for queries, keys and values; "" if they have three.
        join: Run, and our parameters of queries, keys and values → their joint parameter.
        split: Run, and their joint parameter → ours.
        zeros: Run → their parameters that our model lacks, which are zero.
        folded: Their table whose rows take up the first row of `zeros` when a folder is read.
        unused: Their tables → rows before the first one that is used.
        scaled: Our embeddings that are multiplied on entry, and theirs are not.
        shares: Run → whether head and embedding are one matrix of theirs.
        compared: Run → tokens on which the models of a folder are compared; an encoder reads half.
    """

    name: str
    kind: str
    model: str
    fields: Mapping[str, tuple[str, ...]]
    settings: Callable[[RunConfig], dict[str, Any]]
    read: Callable[[Any], dict[str, Any]]
    outside: Mapping[str, str]
    blocks: str
    inside: Mapping[str, str]
    encoder_blocks: str = ""
    encoder_inside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plain_heads: tuple[str, ...] = _HEADS
    limits: Callable[[RunConfig], dict[str, tuple[str, ...]]] = lambda config: {}
    transposed: tuple[str, ...] = ()
    joint: str = ""
    join: Callable[[RunConfig, Sequence[Tensor]], Tensor] = lambda config, parts: torch.cat(
        tuple(parts)
    )
    split: Callable[[RunConfig, Tensor], Sequence[Tensor]] = lambda config, whole: whole.chunk(3)
    zeros: Callable[[RunConfig], Mapping[str, tuple[int, ...]]] = lambda config: {}
    folded: str = ""
    unused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scaled: tuple[str, ...] = _EMBEDDINGS
    shares: Callable[[RunConfig], bool] = _shared
    compared: Callable[[RunConfig], int] = lambda config: 64

    def refused(self, config: RunConfig) -> dict[str, tuple[str, ...]]:
        """Return the fields of a run that this model does not have → the values it could have."""
        found: dict[str, tuple[str, ...]] = {}
        for name, row in CATALOGUE.items():
            allowed: tuple[Any, ...] = self.fields.get(name, (field_info(name).default,))
            free = row.group in _FREE_GROUPS or name in _FREE
            if not free and getattr(config, name, allowed[0]) not in allowed:
                found[name] = allowed
        if "n_kv_head" in self.plain_heads and config.n_kv_head != config.n_head:
            found["n_kv_head"] = (str(config.n_head),)
        if "d_head" in self.plain_heads and config.d_head * config.n_head != config.d_model:
            found["d_head"] = (f"{config.d_model / config.n_head:g}",)
        return found if found else self.limits(config)

    def make(self, config: RunConfig) -> Any:
        """Return the model of the library for a run, with random weights."""
        made = getattr(library(), self.model)
        sizes = {
            "vocab_size": config.n_vocab,
            "tie_word_embeddings": self.shares(config),
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        theirs = made(made.config_class(**sizes | self.settings(config))).eval()
        head, embedding = theirs.get_output_embeddings(), theirs.get_input_embeddings()
        if head is not None and head.weight is embedding.weight and not self.shares(config):
            head.weight = nn.Parameter(head.weight.detach().clone())
        return theirs

    def weights(
        self, config: RunConfig, ours: Mapping[str, Tensor], theirs: Any
    ) -> dict[str, Tensor]:
        """Return our parameters under their names. The map is linear, so it also maps gradients.

        Args:
            config: The run.
            ours: Name → parameter, of one run.
            theirs: Their model, which knows the name of its head.
        """
        scale, head = config.part("init").embedding_scale(config), _head(theirs)
        found: dict[str, Tensor] = {}
        joined: dict[str, dict[str, Tensor]] = {}
        for name, parameter in ours.items():
            their, part = self._place(name, head)
            if part:
                joined.setdefault(their, {})[part] = parameter
                continue
            if name.rpartition(".")[0] in self.scaled:
                parameter = parameter * scale
            if rows := self.unused.get(their, 0):
                parameter = F.pad(parameter, (0, 0, rows, 0))
            found[their] = parameter
        for their, parts in joined.items():
            found[their] = self.join(config, [parts[part] for part in _PARTS])
        found = {their: self._turned(their, one) for their, one in found.items()}
        if "unembedding.weight" not in ours and not self.shares(config) and head:
            found[f"{head}.weight"] = ours["embedding.weight"]
        return found | {name: torch.zeros(shape) for name, shape in self.zeros(config).items()}

    def parameters(
        self, config: RunConfig, shapes: Mapping[str, torch.Size], theirs: Any
    ) -> dict[str, Tensor]:
        """Return their parameters under our names: what `weights` undoes.

        A bias that they lack is zero.

        Args:
            config: The run.
            shapes: Our names → shapes, of one run.
            theirs: Their model.
        """
        state = dict(theirs.state_dict())
        for name in self.zeros(config) if self.folded else ():
            state[self.folded] = state[self.folded] + state[name][0]
        scale, head = config.part("init").embedding_scale(config), _head(theirs)
        found = {}
        for name, shape in shapes.items():
            their, part = self._place(name, head)
            if their not in state and name.endswith(".bias"):
                found[name] = torch.zeros(shape)
                continue
            whole = self._turned(their, state[their])[self.unused.get(their, 0) :]
            if part:
                whole = self.split(config, whole)[_PARTS.index(part)]
            found[name] = whole / scale if name.rpartition(".")[0] in self.scaled else whole
        return found

    def _place(self, name: str, head: str) -> tuple[str, str]:
        """Return their name of our parameter, and which part of a joint one it is."""
        owner, _, kind = name.rpartition(".")
        end = "weight" if kind == "gain" else kind
        if owner == "unembedding":
            return f"{head}.{end}", ""
        found = _BLOCK.fullmatch(owner)
        if not found:
            return f"{self.outside[owner]}.{end}", ""
        encodes, number, inner = found.groups()
        block = (self.encoder_blocks if encodes else self.blocks).format(number)
        part = inner.removeprefix("attention.")
        if self.joint and part in _PARTS:
            return f"{block}.{self.joint}.{end}", part
        return f"{block}.{(self.encoder_inside if encodes else self.inside)[inner]}.{end}", ""

    def _turned(self, their: str, parameter: Tensor) -> Tensor:
        module = their.rpartition(".")[0]
        turned = self.transposed and module.endswith(self.transposed) and parameter.ndim == 2
        return parameter.T if turned else parameter


def _head(theirs: Any) -> str:
    output = theirs.get_output_embeddings()
    return next((name for name, one in theirs.named_modules() if one is output), "")


def _by_head(config: RunConfig, parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of queries, keys and values, [H·D, …] each, grouped by head: [H·3·D, …]."""
    heads = [part.unflatten(0, (config.n_head, config.d_head)) for part in parts]
    return torch.stack(heads, 1).flatten(0, 2)


def _apart(config: RunConfig, whole: Tensor) -> Sequence[Tensor]:
    """Undo `_by_head`."""
    heads = whole.unflatten(0, (config.n_head, 3, config.d_head))
    return [one.flatten(0, 1) for one in heads.unbind(1)]


def _activation(name: str, levels: Mapping[str, str]) -> str:
    """Return the level of an activation of the library."""
    theirs = _ALIASES.get(name, name)
    for level, other in levels.items():
        if other == theirs:
            return level
    raise AblateError(f"activation {name!r}: ablate supports only {', '.join(levels.values())}")


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


def _usually(theirs: Any, levels: Mapping[str, str] = _ACTIVATIONS) -> dict[str, Any]:
    """Return the fields that `_usual` and `make` set."""
    return {
        "d_model": theirs.hidden_size,
        "n_layer": theirs.num_hidden_layers,
        "n_head": theirs.num_attention_heads,
        "d_mlp": theirs.intermediate_size,
        "n_ctx": theirs.max_position_embeddings,
        "activation": _activation(theirs.hidden_act, levels),
        "tie_embeddings": _tied(theirs),
    }


def _tied(theirs: Any) -> str:
    return "tied" if theirs.tie_word_embeddings else "untied"


def _rope(config: RunConfig) -> dict[str, Any]:
    """Return the settings of rotary positions, under the names of all versions of the library."""
    settings = {"rope_type": "default", "rope_theta": config.rope_theta}
    return {
        "rope_theta": config.rope_theta,
        "rope_parameters": settings | {"partial_rotary_factor": config.rope_share},
    }


def _turns(theirs: Any, share: str = "partial_rotary_factor") -> dict[str, Any]:
    """Return the fields that `_rope` sets."""
    given = {
        **(getattr(theirs, "rope_scaling", None) or {}),
        **(getattr(theirs, "rope_parameters", None) or {}),
    }
    kind = given.get("rope_type", given.get("type", "default"))
    if kind != "default":
        raise AblateError(f"rope_type = {kind!r}: ablate's rotary positions support only 'default'")
    theta = given.get("rope_theta", getattr(theirs, "rope_theta", 10000.0))
    turned = given.get("partial_rotary_factor", getattr(theirs, share, 1.0))
    return {"rope_theta": float(theta), "rope_share": float(turned)}


def _t5_shares(config: RunConfig) -> bool:
    """T5 divides the stream by √d_model before a head that is the embedding."""
    scale = config.part("init").embedding_scale(config)
    tied: bool = config.part("tie_embeddings").tied
    return tied and math.isclose(scale, math.sqrt(config.d_model))


def _t5_limits(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """T5 has one number of buckets; ours has fewer in the stack with one direction if n_ctx is
    short.
    """
    one, other = t5_buckets(config), t5_buckets(config.part("architecture").encoder(config))
    return {} if one == other else {"n_ctx": ("64 or more",)}


def _t5_context(theirs: Any) -> int:
    """Return the context for which `t5_buckets` gives theirs."""
    distance = theirs.relative_attention_max_distance
    n_ctx: int = 512 if distance == 128 else distance if distance < 128 else 4 * distance
    return n_ctx


def _same(theirs: Any, one: str, other: str) -> int:
    """Return a value that must be the same in both stacks."""
    n: int = getattr(theirs, one)
    if n != getattr(theirs, other):
        raise AblateError(
            f"{one} = {n} and {other} = {getattr(theirs, other)}, and ablate's stacks have one"
            " number"
        )
    return n


_SEQ2SEQ = {"architecture": ("encoder-decoder",), "objective": ("pairs", "span", "denoise")}

_T5_ENCODER = {
    "n1": "layer.0.layer_norm",
    **{
        f"attention.{part}": f"layer.0.SelfAttention.{part[0]}"
        for part in ("query", "key", "value", "output")
    },
    "n2": "layer.1.layer_norm",
    "mlp.hidden": "layer.1.DenseReluDense.wi",
    "mlp.output": "layer.1.DenseReluDense.wo",
}
_T5_TABLE = "block.0.layer.0.SelfAttention.relative_attention_bias"
_BART_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_BART_ENCODER = {
    **{f"attention.{our}": f"self_attn.{their}" for our, their in _BART_ATTENTION.items()},
    "p1": "self_attn_layer_norm",
    "mlp.hidden": "fc1",
    "mlp.output": "fc2",
    "p2": "final_layer_norm",
}
_BART_TABLES = ("model.decoder.embed_positions", "model.encoder.embed_positions")

ARCHITECTURES = (
    Architecture(
        name="GPT-2",
        kind="gpt2",
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
            "layer_norm_epsilon": config.norm_epsilon,
            "scale_attn_weights": config.part("attention_scale").scale(config.d_head) != 1,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
        },
        read=lambda theirs: {
            "n_ctx": theirs.n_positions,
            "d_model": theirs.n_embd,
            "n_layer": theirs.n_layer,
            "n_head": theirs.n_head,
            "d_mlp": theirs.n_inner or 4 * theirs.n_embd,
            "activation": _activation(theirs.activation_function, _ACTIVATIONS),
            "attention_scale": "sqrt" if theirs.scale_attn_weights else "none",
            "norm_epsilon": theirs.layer_norm_epsilon,
            "dropout": theirs.resid_pdrop,
            "tie_embeddings": _tied(theirs),
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
        only={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        joint="attn.c_attn",
    ),
    Architecture(
        name="BERT",
        kind="bert",
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
                "layer_norm_eps": config.norm_epsilon,
                "type_vocab_size": 1,
                "hidden_dropout_prob": config.dropout,
                "attention_probs_dropout_prob": 0.0,
            }
        ),
        read=lambda theirs: (
            _usually(theirs)
            | {"norm_epsilon": theirs.layer_norm_eps, "dropout": theirs.hidden_dropout_prob}
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
        only={
            "is_decoder": False,
            "add_cross_attention": False,
            "position_embedding_type": "absolute",
        },
        zeros=lambda config: {"bert.embeddings.token_type_embeddings.weight": (1, config.d_model)},
        folded="bert.embeddings.position_embeddings.weight",
    ),
    Architecture(
        name="GPT-NeoX",
        kind="gpt_neox",
        model="GPTNeoXForCausalLM",
        fields={"topology": ("serial", "parallel"), "activation": tuple(_ACTIVATIONS)},
        settings=lambda config: (
            _usual(config)
            | _rope(config)
            | {
                "layer_norm_eps": config.norm_epsilon,
                "use_parallel_residual": config.part("topology").joins == 1,
                "rotary_pct": config.rope_share,
                "rotary_emb_base": config.rope_theta,
                "hidden_dropout": config.dropout,
                "attention_dropout": 0.0,
            }
        ),
        read=lambda theirs: (
            _usually(theirs)
            | _turns(theirs, "rotary_pct")
            | {
                "topology": "parallel" if theirs.use_parallel_residual else "serial",
                "norm_epsilon": theirs.layer_norm_eps,
                "dropout": theirs.hidden_dropout,
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
        split=_apart,
    ),
    Architecture(
        name="Llama",
        kind="llama",
        model="LlamaForCausalLM",
        fields={"norm_kind": ("rmsnorm",), "activation": tuple(_GATED), "bias": ("all", "none")},
        plain_heads=(),
        limits=lambda config: {} if config.rope_share == 1 else {"rope_share": ("1.0",)},
        settings=lambda config: (
            _usual(config)
            | _rope(config)
            | {
                "num_key_value_heads": config.n_kv_head,
                "head_dim": config.d_head,
                "rms_norm_eps": config.norm_epsilon,
                "attention_bias": config.part("bias").present,
                "mlp_bias": config.part("bias").present,
                "attention_dropout": 0.0,
            }
        ),
        read=lambda theirs: (
            _usually(theirs, _GATED)
            | _turns(theirs)
            | {
                "n_kv_head": theirs.num_key_value_heads,
                "d_head": theirs.head_dim,
                "norm_epsilon": theirs.rms_norm_eps,
                "bias": "all" if theirs.attention_bias or theirs.mlp_bias else "none",
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
    Architecture(
        name="T5",
        kind="t5",
        model="T5ForConditionalGeneration",
        fields={
            **_SEQ2SEQ,
            "norm_kind": ("rmsnorm",),
            "bias": ("none",),
            "position": ("t5",),
            "attention_scale": ("none",),
            "activation": tuple(_ACTIVATIONS),
        },
        plain_heads=("n_kv_head",),
        limits=_t5_limits,
        settings=lambda config: {
            "d_model": config.d_model,
            "d_kv": config.d_head,
            "d_ff": config.d_mlp,
            "num_layers": config.n_layer_encoder,
            "num_decoder_layers": config.n_layer,
            "num_heads": config.n_head,
            "relative_attention_num_buckets": t5_buckets(config)[0],
            "relative_attention_max_distance": t5_buckets(config)[1],
            "layer_norm_epsilon": config.norm_epsilon,
            "feed_forward_proj": _ACTIVATIONS[config.activation],
            "dropout_rate": config.dropout,
        },
        read=lambda theirs: {
            "d_model": theirs.d_model,
            "d_head": theirs.d_kv,
            "d_mlp": theirs.d_ff,
            "n_layer_encoder": theirs.num_layers,
            "n_layer": theirs.num_decoder_layers,
            "n_head": theirs.num_heads,
            "n_ctx": _t5_context(theirs),
            "norm_epsilon": theirs.layer_norm_epsilon,
            "activation": _activation(theirs.feed_forward_proj, _ACTIVATIONS),
            "dropout": theirs.dropout_rate,
            "objective": "span",
            # scaled outputs mean a head that is the embedding
            **(
                {"tie_embeddings": "tied", "init": "fan-in"}
                if getattr(theirs, "scale_decoder_outputs", theirs.tie_word_embeddings)
                else {"tie_embeddings": "untied"}
            ),
        },
        outside={
            "embedding": "shared",
            "position.table": f"decoder.{_T5_TABLE}",
            "final_norm": "decoder.final_layer_norm",
            "encoder.position.table": f"encoder.{_T5_TABLE}",
            "encoder.final_norm": "encoder.final_layer_norm",
        },
        blocks="decoder.block.{}",
        inside={
            **_T5_ENCODER,
            "n3": "layer.1.layer_norm",
            **{
                f"cross.{part}": f"layer.1.EncDecAttention.{part[0]}"
                for part in ("query", "key", "value", "output")
            },
            "n2": "layer.2.layer_norm",
            "mlp.hidden": "layer.2.DenseReluDense.wi",
            "mlp.output": "layer.2.DenseReluDense.wo",
        },
        encoder_blocks="encoder.block.{}",
        encoder_inside=_T5_ENCODER,
        only={"relative_attention_num_buckets": 32},
        scaled=("embedding",),
        shares=_t5_shares,
        # in both stacks beyond the distance from which on all keys are in one bucket
        compared=lambda config: 2 * (t5_buckets(config)[1] + 2),
    ),
    Architecture(
        name="BART",
        kind="bart",
        model="BartForConditionalGeneration",
        fields={
            **_SEQ2SEQ,
            "norm": ("post",),
            "position": ("learned",),
            "embed_norm": ("layernorm",),
            "activation": tuple(_ACTIVATIONS),
        },
        settings=lambda config: {
            "d_model": config.d_model,
            "max_position_embeddings": config.n_ctx,
            "encoder_layers": config.n_layer_encoder,
            "decoder_layers": config.n_layer,
            **{f"{stack}_attention_heads": config.n_head for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": config.d_mlp for stack in ("encoder", "decoder")},
            "activation_function": _ACTIVATIONS[config.activation],
            "dropout": config.dropout,
            "attention_dropout": 0.0,
            "scale_embedding": config.part("init").embedding_scale(config) != 1,
        },
        read=lambda theirs: {
            "d_model": theirs.d_model,
            "n_ctx": theirs.max_position_embeddings,
            "n_layer_encoder": theirs.encoder_layers,
            "n_layer": theirs.decoder_layers,
            "n_head": _same(theirs, "encoder_attention_heads", "decoder_attention_heads"),
            "d_mlp": _same(theirs, "encoder_ffn_dim", "decoder_ffn_dim"),
            "activation": _activation(theirs.activation_function, _ACTIVATIONS),
            "dropout": theirs.dropout,
            "init": "fan-in" if theirs.scale_embedding else "normal-0.02",
            "tie_embeddings": "tied",
            "objective": "denoise",
        },
        outside={
            "embedding": "model.shared",
            "position.table": _BART_TABLES[0],
            "embed_norm": "model.decoder.layernorm_embedding",
            "encoder.position.table": _BART_TABLES[1],
            "encoder.embed_norm": "model.encoder.layernorm_embedding",
        },
        blocks="model.decoder.layers.{}",
        inside={
            **_BART_ENCODER,
            **{f"cross.{our}": f"encoder_attn.{their}" for our, their in _BART_ATTENTION.items()},
            "p3": "encoder_attn_layer_norm",
        },
        encoder_blocks="model.encoder.layers.{}",
        encoder_inside=_BART_ENCODER,
        # without them, the library has a table of embeddings for each stack
        only={"tie_word_embeddings": True},
        limits=lambda config: (
            {} if config.part("tie_embeddings").tied else {"tie_embeddings": ("tied",)}
        ),
        unused={f"{table}.weight": 2 for table in _BART_TABLES},
        scaled=("position.table", "encoder.position.table"),
        shares=lambda config: True,
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
        f"{field} = {written(getattr(config, field))} must be {' or '.join(map(written, levels))}"
        for field, levels in refused[nearest].items()
    ]
    could = "; ".join(_representable(refused[nearest]))
    raise AblateError(
        f"transformers has no such model. The most similar one is {nearest}: {'; '.join(lacks)}"
        + (f". Levels that can be saved: {could}" if could else "")
    )


def _representable(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield the levels of each of these fields that some architecture has."""
    for field in fields:
        if field in _HEADS:
            yield f"any {field} with Llama"
            continue
        if field in _FREE:  # `Architecture.limits` says it
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


def library() -> Any:
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
