"""Parameters, FLOPs and memory of a configuration in closed form; no torch.

Letters: C = d_model, H query heads, G key and value heads, D = d_head, T = n_ctx, V = n_vocab.
"""

from __future__ import annotations

from dataclasses import dataclass

from ablate.config import RunConfig

_GATED = ("swiglu",)
_BYTES = {
    "float32": (4, 4),
    "bfloat16": (4, 2),
    "float64": (8, 8),
}  # precision → bytes of a stream's and a product's number


@dataclass(frozen=True)
class Sizes:
    """How large a model of a configuration is, for one member."""

    params: int  # total
    # blocks, their position bias and the final norm: without embeddings, positions among them, and
    # head
    body: int
    # matrix products of a forward pass over n_ctx tokens, per token; causal attention in full
    flops_per_token: int
    state_bytes: int  # weights, gradients and the two moments of Adam
    activation_bytes_per_token: (
        int  # kept for the backward pass, with logits and their gradient; an estimate
    )
    recomputed_bytes_per_token: int  # the same where blocks are computed again in the backward pass


def count(config: RunConfig) -> Sizes:
    """The sizes of `config`. Parameters and FLOPs equal those of the real modules."""
    total, body = _params(config)
    stream, product = _BYTES[config.precision]
    casts = 2 if config.precision == "bfloat16" else 0  # weights are cast once a step
    block, rest = _activation_bytes(config, stream, product)
    return Sizes(
        params=total,
        body=body,
        flops_per_token=_flops_per_token(config),
        state_bytes=total * (4 * stream + casts),
        activation_bytes_per_token=config.n_layer * block + rest,
        recomputed_bytes_per_token=config.n_layer * stream * config.d_model + block + rest,
    )


def train_flops(config: RunConfig) -> int:
    """FLOPs of a run: three forward passes' worth for each token (a backward pass costs two)."""
    return 3 * count(config).flops_per_token * config.tokens


def head_flops_per_token(d_model: int, n_vocab: int, mlm_head_transform: str) -> int:
    """FLOPs a token of the matrix products of the head, in a forward pass."""
    return 2 * d_model * (n_vocab + (d_model if mlm_head_transform == "dense" else 0))


def memory_bytes(
    config: RunConfig, pack: int = 1, micro_batch: int = 0, recompute: bool = False
) -> int:
    """Estimated peak memory of a training step for `pack` members, `micro_batch` sequences of each
    (0: all) at once.
    """
    sizes = count(config)
    per_token = sizes.recomputed_bytes_per_token if recompute else sizes.activation_bytes_per_token
    return pack * (
        sizes.state_bytes + (micro_batch or config.batch_size) * config.n_ctx * per_token
    )


def score_bytes(config: RunConfig) -> int:
    """The part of `memory_bytes` for one member that `score = "additive"` needs for its scores,
    O(n_ctx²·d_head); else 0.
    """
    _, product = _BYTES[config.precision]
    return config.n_layer * product * config.batch_tokens * _score_numbers(config)


def embedding_scale(config: RunConfig) -> float:
    """What embeddings are multiplied by where they enter the stream (Vaswani et al. 2017, §3.4).

    √d_model, for embeddings that start at std 1/√d_model: the stream starts at an RMS of 1, and a
    tied head is as an untied one, but that it first favours the token it reads, which training
    takes back within some tens of steps. 1 for `init = "normal-0.02"`, which is as in GPT-2 and
    BERT.
    """
    return 1.0 if config.init == "normal-0.02" else config.d_model**0.5


def t5_buckets(config: RunConfig) -> tuple[int, int]:
    """Number of buckets and maximum distance of `position = "t5"`.

    T5's 32 and 128 at its context of 512; the distance follows a quarter of longer contexts and
    stays within shorter ones, which get fewer buckets where some would hold no distance. Full
    attention shares them between two directions.
    """
    directions = 2 if config.attention == "full" else 1
    distance = min(config.n_ctx, max(128, config.n_ctx // 4))
    each = max(2, min(32 // directions, distance // 2 // 2 * 2))
    return directions * each, distance


def _widths(config: RunConfig) -> tuple[int, int, int]:
    """What all query heads, all key heads and the MLP's input are wide."""
    read = 2 if config.topology == "concat" else 1
    return config.n_head * config.d_head, config.n_kv_head * config.d_head, read * config.d_model


def _matrices(config: RunConfig) -> list[tuple[int, int]]:
    """(inputs, outputs) of the linear maps of a block; the attention output, whose inputs
    `head_combine` sets, is last.
    """
    queries, keys, read = _widths(config)
    c, hidden = config.d_model, config.d_mlp
    project = [(c, width) for width in (queries, keys, keys)]
    if config.qkv == "mlp":
        project += [(c, c)] * 3
    up = [(read, hidden)] * (2 if config.activation in _GATED else 1)
    return [
        *project,
        *up,
        (hidden, c),
        (config.d_head if config.head_combine == "sum" else queries, c),
    ]


def _norm(config: RunConfig, kind: str, width: int) -> int:
    """Parameters of a norm."""
    layernorm = width * (2 if config.bias == "all" else 1)
    return {"layernorm": layernorm, "rmsnorm": width, "layernorm-scalar": 1, "none": 0}[kind]


def _norm_widths(config: RunConfig) -> list[int]:
    """Width of each norm of a block."""
    c, read = config.d_model, _widths(config)[2]
    joins = [c] if config.topology == "parallel" else [c, c]
    return {"pre": [c, read], "post": joins, "peri": [c, read, c, c], "none": []}[config.norm]


def _params(config: RunConfig) -> tuple[int, int]:
    """Parameters: total, body."""
    c, v = config.d_model, config.n_vocab
    bias = config.bias == "all"
    block = sum(n_in * n_out + bias * n_out for n_in, n_out in _matrices(config))
    block += sum(_norm(config, config.norm_kind, width) for width in _norm_widths(config))
    block += 2 * _norm(config, config.qk_norm, config.d_head)
    block += config.n_head * config.d_head if config.score == "additive" else 0
    body = config.n_layer * block
    body += _norm(config, config.norm_kind, c) if config.norm in ("pre", "peri") else 0
    body += t5_buckets(config)[0] * config.n_head if config.position == "t5" else 0
    rest = v * c + _norm(config, config.embed_norm, c)
    rest += config.n_ctx * c if config.position == "learned" else 0
    rest += v * c if config.tie_embeddings == "untied" else 0
    if config.mlm_head_transform == "dense":
        rest += c * c + bias * c + _norm(config, "layernorm", c) + bias * v
    return body + rest, body


def _flops_per_token(config: RunConfig) -> int:
    """Two a multiplication and addition, in matrix products alone."""
    block = sum(n_in * n_out for n_in, n_out in _matrices(config))
    block += 2 * config.n_ctx * config.n_head * config.d_head  # scores, and the mean of the values
    return 2 * config.n_layer * block + head_flops_per_token(
        config.d_model, config.n_vocab, config.mlm_head_transform
    )


def _score_numbers(config: RunConfig) -> int:
    """Numbers a token and block that additive scores keep: tanh(q + k), the scores and their
    softmax, for every key.
    """
    return config.n_ctx * config.n_head * (config.d_head + 2) if config.score == "additive" else 0


def _activation_bytes(config: RunConfig, stream: int, product: int) -> tuple[int, int]:
    """What eager PyTorch keeps per token for the backward pass, of a block and of all else; a
    compiled step keeps less.
    """
    c, hidden = config.d_model, config.d_mlp
    queries, keys, read = _widths(config)
    gated = config.activation in _GATED
    twice = (
        gated and config.precision == "bfloat16"
    )  # autocast casts the input of each of the two matrices anew
    inputs = c + (2 if twice else 1) * read
    attention = 2 * queries + 2 * keys + (3 * c if config.qkv == "mlp" else 0)
    if config.qkv == "linear" and (config.position == "rotary" or config.qk_norm != "none"):
        attention += queries + keys  # as they were made, beside the values in one tensor
    attention += _score_numbers(config)
    mlp = hidden * (4 if gated else 1 if config.activation == "relu" else 2)
    mlp += c if config.outer_activation == "relu" else 0
    norms = 2 * sum(_norm_widths(config)) if config.norm_kind != "none" else 0
    norms += 2 * (queries + keys) if config.qk_norm != "none" else 0
    shares = (
        config.n_head * config.n_ctx if config.position == "t5" else 0
    )  # a learned bias needs the softmax's gradient
    dropped = 2 * c if config.dropout else 0  # a byte each
    block = product * (inputs + attention + mlp) + stream * (norms + shares) + dropped
    head = 5 * c + (5 * c if config.mlm_head_transform == "dense" else 0) + 3 * config.n_vocab
    return block, stream * head
