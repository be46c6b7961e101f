"""Presets: published models as fields of a run. One row a model; no torch.

`preset = "gpt2"` in a study file stands for the fields of its row; every field that the study sets
itself replaces that of the preset. A row names a field only where its source does, or where the
published code shows it: a learning rate that a paper does not state stays ablate's default. Fields
that follow from others, such as d_mlp = 4·d_model, are left out, so that they follow from an
overridden width, too.

ablate's model of a preset has the parameters of the published model except those that `differs`
names. Three published numbers are not exact: BERT's 340M is 336M with all heads, and the 65M and
213M of Vaswani et al. are 63M and 214M with their 37,000 tokens.
`tests/test_presets.py` compares both with the models of the library `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.components.catalogue import CATALOGUE
from ablate.errors import unknown

PRESET = "preset"  # the key of a study file


@dataclass(frozen=True)
class Preset:
    """A published model.

    Attributes:
        fields: Fields of a run.
        n_vocab: Size of the published vocabulary, its special tokens included, or number of
            classes. A run has the vocabulary of its tokenizer, or the classes of its images,
            instead.
        published: Its parameters in millions, as the source rounds them.
        source: Paper, and code or model card where the paper does not say it.
        differs: How ablate's model, or what the preset sets, differs from the published model.
        side: Height and width of its images, in colour; 0 for a model of text.
    """

    fields: Mapping[str, Any]
    n_vocab: int
    published: float
    source: str
    differs: str = ""
    side: int = 0

    @property
    def whole(self) -> dict[str, Any]:
        """The fields of the published model, with those that follow from its data."""
        made = {**self.fields, "n_vocab": self.n_vocab}
        if self.side:
            sides = dict.fromkeys(("image_height", "image_width"), self.side)
            made |= {**sides, "image_channels": 3, "n_ctx": (self.side // made["patch"]) ** 2}
        return made

    @property
    def n_tokenizer(self) -> int:
        """Size of the tokenizer that gives the published vocabulary.

        Special tokens of the objective, such as [MASK], are added to those of the tokenizer.
        """
        objective = CATALOGUE["objective"]
        n: int = self.n_vocab - objective[self.fields["objective"]].special_tokens
        return n


GPT_1 = "GPT, Radford et al. 2018"
GPT_2 = "GPT-2, Radford et al. 2019, with sizes of its code base's README"
BERT = "Devlin et al. 2019, arXiv:1810.04805, §3 and A.2"
T5 = "Raffel et al. 2020, arXiv:1910.10683, §3.1 and §3.7"
BART = "Lewis et al. 2020, arXiv:1910.13461, with sizes of its code base's README"
VASWANI = "Vaswani et al. 2017, arXiv:1706.03762, Table 3 and §5"
LLAMA = "LLaMA, Touvron et al. 2023, arXiv:2302.13971, Table 2 and §2"
VIT = "ViT, Dosovitskiy et al. 2020, arXiv:2010.11929, Tables 1 and 3"
VIT_22B = "ViT-22B, Dehghani et al. 2023, arXiv:2302.05442, §2 and Table 1"
TINY_LLAMA = "TinyLlama, Zhang et al. 2024, arXiv:2401.02385, Table 2"

_GPT_1 = {
    "objective": "causal",
    "norm": "post",
    "norm_kind": "layernorm",
    "activation": "gelu-tanh",
    "position": "learned",
    "bias": "all",
    "tie_embeddings": "tied",
    "init": "normal-0.02",
    "dropout": 0.1,
    "n_layer": 12,
    "d_model": 768,
    "n_head": 12,
    "n_ctx": 512,
    "lr": 2.5e-4,
    "weight_decay": 0.01,
    "batch_tokens": 64 * 512,
}
_GPT_2 = {
    "objective": "causal",
    "norm": "pre",
    "norm_kind": "layernorm",
    "activation": "gelu-tanh",
    "position": "learned",
    "bias": "all",
    "tie_embeddings": "tied",
    "init": "normal-0.02-scaled",
    "dropout": 0.1,
    "n_ctx": 1024,
    "batch_tokens": 512 * 1024,
}
_BERT = {
    "objective": "masked",
    "mask_ratio": 0.15,
    "norm": "post",
    "norm_kind": "layernorm",
    "norm_epsilon": 1e-12,
    "activation": "gelu",
    "position": "learned",
    "bias": "all",
    "embed_norm": "layernorm",
    "mlm_head_transform": "dense",
    "tie_embeddings": "tied",
    "init": "normal-0.02",
    "dropout": 0.1,
    "n_ctx": 512,
    "lr": 1e-4,
    "weight_decay": 0.01,
    "warmup": 0.01,  # 10,000 of 1,000,000 steps
    "schedule": "linear",
    "batch_tokens": 256 * 512,
}
_T5 = {
    "architecture": "encoder-decoder",
    "objective": "span",
    "mask_ratio": 0.15,
    "mean_span": 3.0,
    "norm": "pre",
    "norm_kind": "rmsnorm",
    "norm_epsilon": 1e-6,
    "activation": "relu",
    "position": "t5",
    "attention_scale": "none",
    "bias": "none",
    "tie_embeddings": "tied",
    "init": "fan-in",
    "dropout": 0.1,
    "n_ctx": 512,
    "batch_tokens": 128 * 512,
}
_BART = {
    "architecture": "encoder-decoder",
    "objective": "denoise",
    "corruption": "infill-permute",
    "mask_ratio": 0.3,
    "mean_span": 3.0,
    "norm": "post",
    "norm_kind": "layernorm",
    "activation": "gelu",
    "position": "learned",
    "bias": "all",
    "embed_norm": "layernorm",
    "tie_embeddings": "tied",
    "init": "normal-0.02",
    "dropout": 0.1,
    "n_ctx": 1024,
}
_VASWANI = {
    "architecture": "encoder-decoder",
    "objective": "pairs",
    "norm": "post",
    "norm_kind": "layernorm",
    "activation": "relu",
    "position": "sinusoidal",
    "bias": "all",
    "tie_embeddings": "tied",
    "init": "fan-in",
    "n_layer": 6,
    "warmup": 0.04,  # 4,000 of 100,000 steps
}
_LLAMA = {
    "objective": "causal",
    "norm": "pre",
    "norm_kind": "rmsnorm",
    "activation": "swiglu",
    "position": "rotary",
    "bias": "none",
    "tie_embeddings": "untied",
    "dropout": 0.0,
    "n_ctx": 2048,
    "weight_decay": 0.1,
    "grad_clip": 1.0,
    "schedule": "cosine",
}
_VIT = {
    "objective": "classify",
    "norm": "pre",
    "norm_kind": "layernorm",
    "norm_epsilon": 1e-6,
    "activation": "gelu",
    "position": "learned",
    "bias": "all",
    "class_token": "learned",
    "patch": 16,
    "dropout": 0.1,
    "lr": 3e-3,
    "weight_decay": 0.3,
    "grad_clip": 1.0,
    "warmup": 0.107,  # 10,000 steps of 300 epochs of ImageNet
    "schedule": "cosine",
    "batch_tokens": 4096 * 196,
}
_VIT_22B = {
    "objective": "classify",
    "topology": "parallel",
    "norm": "pre",
    "norm_kind": "rmsnorm",  # a layer norm without centring and bias
    "qk_norm": "layernorm",
    "activation": "gelu",
    "position": "learned",
    "bias": "none",
    "patch": 14,
}


def _size(n_layer: int, d_model: int, n_head: int, **more: Any) -> dict[str, Any]:
    return {"n_layer": n_layer, "d_model": d_model, "n_head": n_head, **more}


_OF_GPT_2 = "the paper's {}M is an error, as its authors say; its learning rate is not published"
_OF_BERT = "ablate has no segment embeddings, no next-sentence task and no pooler"
_OF_T5 = "ablate has no Adafactor with rate 1/√step; published queries start smaller, by √d_head"
_OF_BART = (
    "published position tables have two rows more, unused; learning rate and batch size of this"
    " model are not published"
)
_OF_VASWANI = "ablate has no learning rate of d^-½·step^-½, label smoothing or batches by length"
_OF_VIT = (
    "class token and its position are one vector; 86M is without the head; ablate has no stronger"
    " augmentation, Mixup or label smoothing"
)
_OF_VIT_22B = (
    "one of 48 blocks, with the embedding and a head of 1,000 classes: 453M is a 48th of 21,743M;"
    " ablate has a norm of its own before the MLP, no biases in the MLP, no attention pooling; the"
    " recipe is not set"
)
_OF_LLAMA = "its initialisation is not published"
# warm-up: 2,000 steps of 1T / 4M and of 3T / 2M
_LLAMA_TOLD = {"norm_epsilon": 1e-6, "lr": 3e-4, "warmup": 0.0084, "batch_tokens": 4 << 20}
_TINY_LLAMA_TOLD = {"lr": 4e-4, "warmup": 0.0014, "batch_tokens": 2 << 20}

PRESETS: dict[str, Preset] = {
    "gpt": Preset(_GPT_1, 40478, 117, GPT_1, "the published warm-up of 2,000 updates is not set"),
    "gpt2": Preset(_GPT_2 | _size(12, 768, 12), 50257, 124, GPT_2, _OF_GPT_2.format(117)),
    "gpt2-medium": Preset(_GPT_2 | _size(24, 1024, 16), 50257, 355, GPT_2, _OF_GPT_2.format(345)),
    "gpt2-large": Preset(_GPT_2 | _size(36, 1280, 20), 50257, 774, GPT_2, _OF_GPT_2.format(762)),
    "gpt2-xl": Preset(_GPT_2 | _size(48, 1600, 25), 50257, 1558, GPT_2, _OF_GPT_2.format(1542)),
    "bert-base": Preset(_BERT | _size(12, 768, 12), 30522, 110, BERT, _OF_BERT),
    "bert-large": Preset(_BERT | _size(24, 1024, 16), 30522, 340, BERT, _OF_BERT),
    "t5-small": Preset(_T5 | _size(6, 512, 8), 32128, 60, T5, _OF_T5),
    "t5-base": Preset(_T5 | _size(12, 768, 12), 32128, 220, T5, _OF_T5),
    "bart-base": Preset(_BART | _size(6, 768, 12), 50265, 140, BART, _OF_BART),
    "transformer-base": Preset(
        _VASWANI | _size(6, 512, 8, dropout=0.1), 37000, 65, VASWANI, _OF_VASWANI
    ),
    "transformer-big": Preset(
        _VASWANI | _size(6, 1024, 16, dropout=0.3, warmup=4 / 300), 37000, 213, VASWANI, _OF_VASWANI
    ),
    "vit-b16": Preset(_VIT | _size(12, 768, 12), 1000, 86, VIT, _OF_VIT, side=224),
    "vit-22b-layer": Preset(
        _VIT_22B | _size(1, 6144, 48), 1000, 453, VIT_22B, _OF_VIT_22B, side=224
    ),
    "tinyllama-1.1b": Preset(
        _LLAMA | _size(22, 2048, 32, n_kv_head=4, d_mlp=5632) | _TINY_LLAMA_TOLD,
        32000,
        1100,
        TINY_LLAMA,
        _OF_LLAMA,
    ),
    "llama-7b": Preset(
        _LLAMA | _size(32, 4096, 32, d_mlp=11008) | _LLAMA_TOLD, 32000, 6700, LLAMA, _OF_LLAMA
    ),
    "llama-13b": Preset(
        _LLAMA | _size(40, 5120, 40, d_mlp=13824) | _LLAMA_TOLD, 32000, 13000, LLAMA, _OF_LLAMA
    ),
}


def preset(name: object) -> Preset:
    """Return the row of a preset.

    Raises:
        AblateError: There is no such preset; the nearest name is given.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
