"""The catalogue of what can vary: factor → level → meaning, source, class. One table; no torch.

Every field of a run's configuration (`ablate.config.RunConfig`) has a row here. A factor with
levels is a choice among kinds; one without is a number, a name or a path. Error texts, `ablate
factors`, the documentation and the tests all follow from this table: a new level is one class and
one `Level` row.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ablate.errors import unknown


@dataclass(frozen=True)
class Level:
    """One value of a factor that is a choice among kinds."""

    name: str
    meaning: str
    source: str = ""  # paper, equation or code base
    path: str = ""  # "module:Class" that implements it, where one class does
    aliases: tuple[object, ...] = ()  # other spellings a study file may use


@dataclass(frozen=True)
class Factor:
    """One field of a run's configuration."""

    name: str
    group: str  # heading under which it is listed
    meaning: str
    levels: tuple[Level, ...] = ()
    source: str = ""
    # (other factor, its levels) without which this has no meaning
    needs: tuple[str, tuple[str, ...]] | None = None

    @property
    def names(self) -> list[str]:
        return [level.name for level in self.levels]

    def canonical(self, value: object) -> str:
        """The level's name for a name or an alias of it; `AblateError` for anything else."""
        for level in self.levels:
            if value == level.name or (type(value) is not bool and value in level.aliases):
                return level.name
        raise unknown(f"{self.name} level", value, self.names)

    def load(self, level: str) -> Any:
        """The class that implements `level`; imports the module it lives in."""
        for row in self.levels:
            if row.name == level and row.path:
                module, name = row.path.split(":")
                return getattr(importlib.import_module(module), name)
        raise AssertionError(f"{self.name} level {level!r} names no class")


_LECTURE = "CS182/282A lecture 18 (Spring 2023), Fig. 18.3"
_VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"
_BERT = "Devlin et al. 2019, arXiv:1810.04805"

_ROWS = (
    # -- block -------------------------------------------------------------------------------------
    Factor(
        "topology",
        "block",
        "How attention, MLP and residual connections are wired.",
        (
            Level(
                "serial",
                "h = P1(x + A(x)); y = P2(h + M(h))",
                f"{_LECTURE} option 1; {_VASWANI}",
                "ablate.model.block:Serial",
                (1, "1"),
            ),
            Level(
                "no-attention-skip",
                "h = P1(A(x)); y = P2(h + M(h))",
                f"{_LECTURE} option 2",
                "ablate.model.block:NoAttentionSkip",
                (2, "2"),
            ),
            Level(
                "no-mlp-skip",
                "h = P1(x + A(x)); y = P2(M(h)) (an interpretation of the lost figure)",
                f"{_LECTURE} option 3",
                "ablate.model.block:NoMlpSkip",
                (3, "3"),
            ),
            Level(
                "concat",
                "y = P2(M([x ; P1(A(x))])), N2 over 2·d_model (an interpretation of option 3)",
                f"{_LECTURE} option 3",
                "ablate.model.block:Concat",
                ("3-concat",),
            ),
            Level(
                "outer-skip",
                "y = P2(x + M(P1(A(x)))) (an interpretation of options 2 and 3)",
                f"{_LECTURE} options 2, 3",
                "ablate.model.block:OuterSkip",
                ("3-outer",),
            ),
            Level(
                "double-skip",
                "h = P1(x + A(x)); y = P2(x + h + M(h))",
                f"{_LECTURE} option 4",
                "ablate.model.block:DoubleSkip",
                (4, "4"),
            ),
            Level(
                "parallel",
                "y = P2(x + A(x) + M(x)), no P1",
                f"{_LECTURE} option 5; GPT-J; PaLM, arXiv:2204.02311; ViT-22B, arXiv:2302.05442",
                "ablate.model.block:Parallel",
                (5, "5"),
            ),
            Level(
                "no-skip",
                "y = P2(M(P1(A(x)))): a control that shows rank collapse",
                "Dong et al. 2021, arXiv:2103.03404",
                "ablate.model.block:NoSkip",
            ),
        ),
    ),
    Factor(
        "norm",
        "block",
        "Where normalisation stands in a block.",
        (
            Level(
                "pre",
                "N1, N2 on the inputs of attention and MLP; a final norm after the last block",
                "Xiong et al. 2020, arXiv:2002.04745",
            ),
            Level(
                "post",
                "P1, P2 on the joins, where attention and MLP meet the stream; no final norm",
                _VASWANI,
            ),
            Level(
                "peri",
                "N1, N2 on the inputs and O1, O2 on the outputs of attention and MLP; a final norm",
                "Kim et al. 2025, arXiv:2502.02732",
            ),
            Level(
                "none",
                "no norm in the block and none after the last",
                "ReZero, arXiv:2003.04887, studies this",
            ),
        ),
    ),
    Factor(
        "norm_kind",
        "block",
        "What a norm computes.",
        (
            Level(
                "layernorm",
                "centre, divide by the standard deviation, gain (and bias) per channel",
                "Ba et al. 2016, arXiv:1607.06450",
                "ablate.model.norm:LayerNorm",
            ),
            Level(
                "rmsnorm",
                "divide by the root mean square, gain per channel",
                "Zhang & Sennrich 2019, arXiv:1910.07467",
                "ablate.model.norm:RMSNorm",
            ),
            Level(
                "layernorm-scalar",
                "layernorm with one gain for all channels and no bias",
                f"{_LECTURE}",
                "ablate.model.norm:ScalarLayerNorm",
            ),
            Level(
                "none",
                "the identity, wherever a norm would stand",
                "ReZero, arXiv:2003.04887, studies this",
                "ablate.model.norm:NoNorm",
            ),
        ),
        needs=("norm", ("pre", "post", "peri")),
    ),
    Factor("n_layer", "block", "Number of blocks."),
    Factor("d_model", "block", "Width of the residual stream."),
    Factor(
        "d_mlp",
        "block",
        "Hidden width of the MLP; by default 4·d_model, for gated activations 8/3·d_model.",
    ),
    Factor(
        "activation",
        "block",
        "The MLP's nonlinearity.",
        (
            Level(
                "gelu",
                "x·Φ(x), exact",
                "Hendrycks & Gimpel 2016, arXiv:1606.08415",
                "ablate.model.mlp:Gelu",
            ),
            Level(
                "gelu-tanh",
                "GELU by its tanh approximation, as in GPT-2",
                "Hendrycks & Gimpel 2016, arXiv:1606.08415",
                "ablate.model.mlp:GeluTanh",
            ),
            Level("relu", "max(x, 0)", _VASWANI, "ablate.model.mlp:Relu"),
            Level(
                "swiglu",
                "silu(W_g x) · W_u x: a gated MLP of three matrices",
                "Shazeer 2020, arXiv:2002.05202",
                "ablate.model.mlp:SwiGLU",
            ),
        ),
    ),
    Factor(
        "outer_activation",
        "block",
        "A second nonlinearity, on the MLP's output.",
        (
            Level("none", "the MLP ends with its second matrix", _VASWANI),
            Level("relu", "max(x, 0) on the MLP's output, as some lectures draw it", _LECTURE),
        ),
    ),
    Factor(
        "bias",
        "block",
        "Which linear maps and norms carry a bias.",
        (
            Level(
                "all",
                "every linear map and every layernorm of the blocks, and the final norm",
                _VASWANI,
            ),
            Level("none", "no bias anywhere", "PaLM, arXiv:2204.02311"),
        ),
    ),
    Factor(
        "init",
        "block",
        "How weights start.",
        (
            Level(
                "fan-in",
                "normal, std 1/√fan_in: keeps the variance; embeddings std 1/√d_model, multiplied"
                " by √d_model on entry, so that the stream starts at 1 and a tied head as an"
                " untied one",
                f"LeCun et al. 1998, Efficient BackProp; {_VASWANI}, §3.4",
            ),
            Level(
                "depth-scaled",
                "fan-in, with the output matrices of attention and MLP divided by √(2·n_layer)",
                "GPT-2, Radford et al. 2019",
            ),
            Level(
                "normal-0.02",
                "normal, std 0.02 for every matrix and embedding, nothing multiplied",
                "GPT-2, Radford et al. 2019; BERT",
            ),
        ),
    ),
    Factor(
        "dropout",
        "block",
        "Share of activations dropped: of the embeddings, A(x) and M(h).",
        source="Srivastava et al. 2014",
    ),
    # -- attention ---------------------------------------------------------------------------------
    Factor(
        "attention",
        "attention",
        "What a position may attend to.",
        (
            Level("causal", "itself and what stands before it", _VASWANI),
            Level("full", "every position; refused with objective = causal", _BERT),
        ),
    ),
    Factor("n_head", "attention", "Number of query heads.", source=_VASWANI),
    Factor(
        "n_kv_head",
        "attention",
        "Number of key and value heads; by default n_head. 1 is multi-query attention.",
        source="Shazeer 2019, arXiv:1911.02150; Ainslie et al. 2023, arXiv:2305.13245",
    ),
    Factor("d_head", "attention", "Width of a head; by default d_model / n_head."),
    Factor(
        "head_combine",
        "attention",
        "How heads become one output.",
        (
            Level(
                "concat",
                "y = W_O [head_1; …; head_H], W_O: n_head·d_head → d_model",
                _VASWANI,
                "ablate.model.attention:Concatenate",
            ),
            Level(
                "sum",
                "y = W_O Σ_h head_h, one W_O: d_head → d_model for all heads; starts with fan-in"
                " n_head·d_head",
                _LECTURE,
                "ablate.model.attention:Sum",
            ),
        ),
    ),
    Factor(
        "qkv",
        "attention",
        "How queries, keys and values are made.",
        (
            Level("linear", "one matrix each", _VASWANI, "ablate.model.attention:LinearProjection"),
            Level(
                "mlp",
                "two matrices each with a ReLU between, hidden width d_model",
                _LECTURE,
                "ablate.model.attention:MlpProjection",
            ),
        ),
    ),
    Factor(
        "qk_norm",
        "attention",
        "Normalisation of queries and keys over d_head, before the scores.",
        (
            Level("none", "none", _VASWANI, "ablate.model.norm:NoNorm"),
            Level(
                "rmsnorm",
                "RMSNorm with a gain per channel",
                "Henry et al. 2020, arXiv:2010.04245",
                "ablate.model.norm:RMSNorm",
            ),
            Level(
                "layernorm",
                "LayerNorm with a gain per channel",
                "ViT-22B, arXiv:2302.05442",
                "ablate.model.norm:LayerNorm",
            ),
        ),
    ),
    Factor(
        "attention_scale",
        "attention",
        "What scores are multiplied by before the softmax.",
        (
            Level("sqrt", "1/√d_head", _VASWANI),
            Level("none", "1", f"{_VASWANI}, §3.2.1 says what it would do"),
        ),
        needs=("score", ("dot",)),
    ),
    Factor(
        "score",
        "attention",
        "How a query is compared with a key.",
        (
            Level("dot", "qᵀk", _VASWANI, "ablate.model.attention:DotScore"),
            Level(
                "additive",
                "vᵀ tanh(q + k), one v a head: memory O(T²·d_head); refused with position = rotary",
                "Bahdanau et al. 2015, arXiv:1409.0473",
                "ablate.model.attention:AdditiveScore",
            ),
        ),
    ),
    # -- position ----------------------------------------------------------------------------------
    Factor(
        "position",
        "position",
        "How a model knows where a token stands.",
        (
            Level(
                "rotary",
                "queries and keys turned by position·10000^(−2i/d_head)",
                "Su et al. 2021, arXiv:2104.09864",
                "ablate.model.position:Rotary",
            ),
            Level(
                "none",
                "no encoding; a causal model can still tell",
                "Haviv et al. 2022, arXiv:2203.16634",
                "ablate.model.position:NoPosition",
            ),
            Level(
                "sinusoidal",
                "fixed sines and cosines added to the embedding",
                _VASWANI,
                "ablate.model.position:Sinusoidal",
            ),
            Level(
                "learned",
                "one learned vector a position; not defined beyond n_ctx",
                "Radford et al. 2018 (GPT)",
                "ablate.model.position:Learned",
            ),
            Level(
                "alibi",
                "scores lowered by slope·distance, symmetric under full attention",
                "Press et al. 2022, arXiv:2108.12409",
                "ablate.model.position:Alibi",
            ),
            Level(
                "t5",
                "a learned bias a head and distance bucket, one table for all blocks: 32 buckets to"
                " distance 128 or n_ctx/4, within n_ctx; in two directions under full attention",
                "Raffel et al. 2020, arXiv:1910.10683",
                "ablate.model.position:T5Bias",
            ),
        ),
    ),
    Factor("n_ctx", "position", "Tokens in a training sequence."),
    # -- embedding and head ------------------------------------------------------------------------
    Factor(
        "tie_embeddings",
        "embedding",
        "Whether the output head is the embedding matrix.",
        (
            Level("untied", "a matrix of its own", _VASWANI),
            Level(
                "tied", "the embedding matrix, transposed", "Press & Wolf 2017, arXiv:1608.05859"
            ),
        ),
    ),
    Factor(
        "embed_norm",
        "embedding",
        "A norm on the embeddings, before the first block.",
        (
            Level("none", "none", _VASWANI, "ablate.model.norm:NoNorm"),
            Level(
                "layernorm",
                "LayerNorm",
                f"{_BERT}; BLOOM, arXiv:2211.05100",
                "ablate.model.norm:LayerNorm",
            ),
            Level(
                "rmsnorm",
                "RMSNorm",
                "Zhang & Sennrich 2019, arXiv:1910.07467",
                "ablate.model.norm:RMSNorm",
            ),
        ),
    ),
    Factor(
        "mlm_head_transform",
        "embedding",
        "What stands before the head of a masked model.",
        (
            Level("none", "nothing", f"{_VASWANI}, §3.4"),
            Level(
                "dense",
                "a square matrix, the activation and a LayerNorm; with bias = all, also a bias on"
                " the logits",
                _BERT,
                "ablate.model.transformer:MlmTransform",
            ),
        ),
        needs=("objective", ("masked",)),
    ),
    Factor(
        "n_vocab", "embedding", "Size of the vocabulary; follows from the tokenizer (and [MASK])."
    ),
    # -- objective ---------------------------------------------------------------------------------
    Factor(
        "objective",
        "objective",
        "What is predicted.",
        (
            Level(
                "causal",
                "each next token",
                "Radford et al. 2018 (GPT)",
                "ablate.data.objectives:Causal",
            ),
            Level("masked", "tokens hidden from the input", _BERT, "ablate.data.objectives:Masked"),
        ),
    ),
    Factor(
        "mask_ratio",
        "objective",
        "Share of tokens predicted by a masked model, 0.05 to 0.95.",
        source=f"{_BERT}; Wettig et al. 2023, arXiv:2202.08005",
        needs=("objective", ("masked",)),
    ),
    Factor(
        "mask_mix",
        "objective",
        "Of the predicted tokens: shares shown as [MASK], as a random token, as they are.",
        source=_BERT,
        needs=("objective", ("masked",)),
    ),
    Factor(
        "mask_kind",
        "objective",
        "What is masked together.",
        (
            Level("token", "each token on its own", _BERT, "ablate.data.objectives:TokenMask"),
            Level(
                "span",
                "runs of tokens of geometric length, mean 3",
                "SpanBERT, Joshi et al. 2020, arXiv:1907.10529",
                "ablate.data.objectives:SpanMask",
            ),
            Level(
                "whole-word",
                "all tokens of a word",
                "BERT's whole-word masking",
                "ablate.data.objectives:WordMask",
            ),
        ),
        needs=("objective", ("masked",)),
    ),
    Factor(
        "z_loss",
        "objective",
        "Weight of (log Σ exp logits)² in the training loss.",
        source="PaLM, arXiv:2204.02311",
    ),
    # -- data --------------------------------------------------------------------------------------
    Factor(
        "corpus",
        "data",
        "Text: austen, sotu, debian-docs (built by `python studies/corpora/debian_docs.py`);"
        " a file, folder or glob; hf:FOLDER for a local Hugging Face data set; a folder with"
        " nanoGPT's"
        " train.bin and val.bin.",
    ),
    Factor(
        "tokenizer",
        "data",
        "byte; bpe:SIZE trained on the training part; a tokenizer.json; tokens, for a train.bin.",
    ),
    Factor("corpus_hash", "data", "SHA-256 of the text; filled in."),
    Factor("tokenizer_hash", "data", "SHA-256 of the tokenizer; filled in."),
    # -- training ----------------------------------------------------------------------------------
    Factor("steps", "training", "Optimiser steps; follows from tokens, tokens_per_param or flops."),
    Factor("batch_tokens", "training", "Tokens an optimiser step."),
    Factor(
        "lr",
        "training",
        "Peak learning rate of AdamW.",
        source="Loshchilov & Hutter 2019, arXiv:1711.05101",
    ),
    Factor(
        "weight_decay",
        "training",
        "AdamW's decoupled weight decay, on matrices and embeddings.",
        source="Loshchilov & Hutter 2019, arXiv:1711.05101",
    ),
    Factor(
        "grad_clip",
        "training",
        "Largest norm of a run's gradient; 0 for no clipping.",
        source="Pascanu et al. 2013, arXiv:1211.5063",
    ),
    Factor("warmup", "training", "Share of the steps over which the learning rate rises from 0."),
    Factor(
        "schedule",
        "training",
        "How the learning rate falls after warm-up.",
        (
            Level(
                "cosine",
                "half a cosine down to a tenth",
                "Hoffmann et al. 2022, arXiv:2203.15556",
                "ablate.train.schedule:Cosine",
            ),
            Level(
                "linear",
                "straight down to zero",
                "Bergsma et al. 2025, arXiv:2502.15938",
                "ablate.train.schedule:Linear",
            ),
            Level(
                "constant",
                "not at all",
                "Hägele et al. 2024, arXiv:2405.18392, compares with it",
                "ablate.train.schedule:Constant",
            ),
            Level(
                "wsd",
                "constant, then 1 − √ down to zero over the last fifth",
                "Hägele et al. 2024, arXiv:2405.18392",
                "ablate.train.schedule:WarmupStableDecay",
            ),
        ),
    ),
    Factor(
        "precision",
        "training",
        "Arithmetic of the matrix products; stream, norms, loss and weights stay float32.",
        (
            Level("float32", "float32 throughout", "IEEE 754"),
            Level("bfloat16", "bfloat16 matrix products", "Kalamkar et al. 2019, arXiv:1905.12322"),
            Level("float64", "float64 throughout; for checks", "IEEE 754"),
        ),
    ),
    Factor(
        "seed",
        "training",
        "Seed of weights, batch order, masks and dropout; set by the study's `seeds`.",
    ),
)

CATALOGUE: dict[str, Factor] = {row.name: row for row in _ROWS}


def factor(name: str) -> Factor:
    """The catalogue's row for `name`; `AblateError` with the nearest name for any other."""
    if name not in CATALOGUE:
        raise unknown("factor", name, CATALOGUE)
    return CATALOGUE[name]
