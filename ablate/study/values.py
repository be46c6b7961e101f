"""Values as a study file may write them → the values of a run's configuration."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from ablate.components import CATALOGUE, Field
from ablate.config import field_info
from ablate.errors import AblateError, unknown, written
from ablate.text.options import spec

BUDGETS = {
    "tokens": "tokens that a run trains on",
    "tokens_per_param": (
        "tokens that a run trains on, for each of its parameters (embeddings and head included)"
    ),
    "flops": "floating-point operations that a run's training takes (three forward passes a token)",
}
CALLED = {  # a field → what nanoGPT, transformers and others call it
    "n_layer": ("num_layers", "num_hidden_layers", "depth", "layers"),
    "n_head": ("num_heads", "num_attention_heads", "heads"),
    "n_kv_head": ("num_key_value_heads", "num_kv_heads"),
    "d_model": ("n_embd", "hidden_size", "d_embed", "embed_dim", "width", "dim"),
    "d_mlp": ("intermediate_size", "d_ff", "d_ffn", "ffn_dim"),
    "n_ctx": ("block_size", "context_length", "seq_len", "max_seq_len", "sequence_length"),
    "tokenizer": ("vocab_size",),
    "lr": ("learning_rate",),
    "batch_tokens": ("batch_size",),
    "tokens": ("epochs", "max_iters", "max_steps", "n_steps", "num_train_epochs"),
    "warmup": ("warmup_iters", "warmup_steps", "warmup_ratio"),
    "norm_epsilon": ("layer_norm_eps", "rms_norm_eps", "eps"),
}
FOLLOWS = {
    "steps": "follows from the budget; give tokens, tokens_per_param or flops",
    "n_vocab": "follows from the tokenizer, or from the images",
    "corpus_hash": "follows from corpus",
    "tokenizer_hash": "follows from tokenizer",
    "task_hash": "follows from task",
    "start_hash": "follows from `from` of [start]",
    **dict.fromkeys(
        ("corruption_tokens", "source_token", "target_token", "end_token", "hidden_tokens"),
        "follows from the folder that `from` of [start] names",
    ),
    "n_class": "follows from task",
    "n_validation": "follows from task",
    "n_texts": "follows from task",
    "n_fitted": "follows from task",
    "n_tested": "follows from task",
    "unit": "follows from task",
    "special_ids": "follows from text_format and tokenizer",
    "image_height": "follows from corpus",
    "image_width": "follows from corpus",
    "image_channels": "follows from corpus",
    "split": "follows from corpus",
    "code": "follows from `use`",
    "seed": "is set by the study's `seeds`",
    "init_seed": "is set by the study's `seeds`",
    "data_seed": "is set by the study's `seeds`",
}
# Fields of which 0 means without limit: field → word that a file may write for 0.
UNLIMITED = {"labels": "all", "grad_clip": "none"}
PARTS = {
    "train": "the file, folder or glob that is trained on",
    "held_out": "the one that is held out; without it a tenth of the first is held out",
}
LARGEST_BUDGET = {"tokens": 1e15, "tokens_per_param": 1e9, "flops": 1e28}

LARGEST = 10**30  # of all numbers that a file may hold
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*)?\.?\d*(?:[eE][+-]?\d{1,3})?)\s*([kKMBGT]?)")

RESOURCES = ("n", "d", "c")  # parameters, tokens, FLOPs: where a loss can be predicted

# how `Decimal` writes a number that ends in zeros
_EXPONENT = re.compile(r"(-?\d(?:\.\d+)?)E\+(\d+)")


def point(text: object) -> dict[str, float]:
    """Return where a loss is to be predicted.

    Args:
        text: Such as "N=3.3e9,D=5e10", or "C=1e22".

    Raises:
        AblateError: It is no such point.

    >>> point("N = 3.3B, D = 5e10")
    {'n': 3300000000.0, 'd': 50000000000.0}
    """
    wanted = "expected N=3.3e9,D=5e10 or C=1e22: N parameters, D tokens, C FLOPs"
    found: dict[str, float] = {}
    for part in text.split(",") if isinstance(text, str) else [""]:
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name.lower() not in RESOURCES or name.lower() in found:
            raise AblateError(f"predict = {written(text)}: {wanted}")
        found[name.lower()] = float(number(f"predict, {name}", value))
        if not found[name.lower()] > 0:
            raise AblateError(f"predict = {written(text)}: {name} must be more than zero")
    if len(found) == len(RESOURCES):
        raise AblateError(f"predict = {written(text)}: two of N, D and C give the third")
    return found


def settable() -> list[str]:
    """Return the keys of [base], [factors] and named levels, components' own fields included."""
    return [name for name in (*CATALOGUE, *BUDGETS) if name not in FOLLOWS]


def number(name: str, raw: object) -> int | float:
    """Return a number, which may have a unit or an exponent: 20000000, 2e7, "20M", "3e14".

    Args:
        name: of the key, for the error.
        raw: from the file.

    Raises:
        AblateError: it is not a finite number of at most 1e30.
    """
    match = _NUMBER.fullmatch(raw.strip()) if isinstance(raw, str) else None
    value = (
        Decimal(match[1].replace("_", "")) * _UNITS[match[2]]
        if match and any(c.isdigit() for c in match[1])
        else raw
    )
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        word = f', or "{UNLIMITED[name]}"' if name in UNLIMITED else ""
        raise AblateError(
            f'{name} = {written(raw):.80}: expected a number such as 20000000, 2e7 or "20M"{word}'
        )
    if not -LARGEST <= value <= LARGEST:
        raise AblateError(
            f"{name} = {written(raw):.80}: expected a finite number of less than {LARGEST:.0e} in"
            " size".replace("e+", "e")
        )
    return int(value) if value == int(value) else float(value)


def positive(name: str, raw: object) -> float:
    """Return a number above 0 and up to 1e12, see `number`."""
    value = number(name, raw)
    if not 0 < value <= 1e12:
        raise AblateError(f"{name} = {raw!r:.80}: expected a number above 0 and up to 1e12")
    return value


def field_value(name: str, raw: object) -> Any:
    """Return the value of a configuration field or budget for what a file holds.

    Raises:
        AblateError: without a line; see `located`.
    """
    if name in BUDGETS:
        value = number(name, raw)
        if not 0 < value <= LARGEST_BUDGET[name]:
            raise AblateError(
                f"{name} = {written(raw):.80}: a budget must be above 0 and at most"
                f" {LARGEST_BUDGET[name]:g}"
            )
        return value
    row = CATALOGUE[name]
    if name in UNLIMITED and raw == UNLIMITED[name]:
        return 0
    if name == "corpus" and isinstance(raw, dict):
        return _parts(raw)
    if row.choice:
        return row.canonical(raw)
    kind = field_info(name).annotation
    if kind in (int, float):
        raw = number(name, raw)
    try:
        return _adapter(name, row.field).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        message = (
            "too few entries"
            if first["type"] == "missing"
            else first["msg"][0].lower() + first["msg"][1:]
        )
        raise AblateError(f"{name} = {written(raw):.80}: {message}") from None


def _parts(raw: dict[str, Any]) -> str:
    """Return the value of `corpus` for a table of its parts."""
    for key, value in raw.items():
        if key not in PARTS:
            raise unknown("key of corpus", key, PARTS)
        if not isinstance(value, str) or not value.strip():
            raise AblateError(f"corpus.{key} = {written(value):.80}: a file, a folder or a glob")
    if "train" not in raw:
        raise AblateError(f"corpus.train is missing: {PARTS['train']}")
    return spec(raw["train"], raw.get("held_out", ""))


@cache
def _adapter(name: str, own: Field | None) -> TypeAdapter[Any]:
    """Return what checks a field; `own` distinguishes own fields of one name, of other code."""
    field = field_info(name)
    annotated: Any = Annotated[field.annotation, *field.metadata, None]
    return TypeAdapter(annotated)


def label(raw: object) -> str:
    """Return the label of a level as a file writes it (1e6, not 1000000.0), lists in brackets.

    Text has no quotation marks, unless it is blank: sentences need a name.
    """
    if isinstance(raw, dict):
        return " + ".join(map(label, raw.values()))
    if isinstance(raw, list | tuple):
        return "[" + ", ".join(label(part) for part in raw) + "]"
    if (
        isinstance(raw, float)
        and abs(raw) >= 1e4
        and (short := _EXPONENT.fullmatch(str(Decimal(repr(raw)).normalize())))
    ):
        return f"{short[1]}e{short[2]}"
    if isinstance(raw, str):
        return raw if raw.strip() else f'"{raw}"'
    return written(raw)
