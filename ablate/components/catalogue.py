"""The catalogue of what can vary: factor → levels. One row a factor; no torch.

Every field of a run's configuration (`ablate.config.RunConfig`) has a row here. A factor with
levels is a choice among components, which register themselves by `level`; one without is a number,
a name or a path. Error texts, `ablate factors`, the documentation and the tests follow from this
table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ablate.components import plain
from ablate.components.base import Component, Field, check_name
from ablate.errors import AblateError, unknown

C = TypeVar("C", bound=Callable[..., Any])

OFF = ("none", "untied")  # levels that switch something off: what `false` means
OUTSIDE = "ablate_outside_"  # begins the names of modules of files that `use` names
VALUES = ("byte", "bpe", "tokens")  # of `tokenizer`, which are no levels
# groups of the factors that decide the modules of a model, and their parameters
OF_MODELS = ("block", "attention", "position", "embedding")


@dataclass(frozen=True)
class Factor:
    """One field of a run's configuration.

    Attributes:
        name: Name of the field.
        group: Heading under which it is listed.
        meaning: One sentence.
        source: Paper or code base.
        needs: Other factors → their levels; without any of them this one has no meaning.
        choice: Whether it is a choice among levels.
        open: Whether levels can be added to other values, such as names of files.
        field: Type and default of a component's own hyper-parameter; None for all others.
    """

    name: str
    group: str
    meaning: str
    source: str = ""
    needs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    choice: bool = False
    open: bool = False
    field: Field | None = None

    @property
    def levels(self) -> tuple[Any, ...]:
        """The components that are levels of this factor; empty if it has no levels."""
        return tuple(_LEVELS[self.name].values())

    @property
    def names(self) -> list[str]:
        """Names of the levels; the first is the baseline."""
        return list(_LEVELS[self.name])

    @property
    def offered(self) -> list[str]:
        """Names of the levels that a study may choose: of `method`, those that fine-tune."""
        return [one.name for one in self.levels if getattr(one, "finetunes", True)]

    @property
    def needed(self) -> str:
        """What `needs` says, as a study file writes it."""
        return ", or ".join(
            f"{other} = {' or '.join(map(repr, levels))}" for other, levels in self.needs.items()
        )

    def __getitem__(self, level: str) -> Any:
        """Return the component that is called `level`, a canonical name."""
        return _LEVELS[self.name][level]

    def canonical(self, value: object) -> str:
        """Return the level's name for a name or an alias of it.

        `False` is the level that switches something off, `True` the other one if there is one.

        Raises:
            AblateError: There is no such level.
        """
        if isinstance(value, str) and value in _LEVELS[self.name]:
            return value
        if isinstance(value, bool):
            return self._switched(value)
        for component in self.levels:
            if value in component.aliases:
                name: str = component.name
                return name
        raise unknown(f"{self.name} level", value, self.offered)

    def _switched(self, on: bool) -> str:
        off = [name for name in self.names if name in OFF]
        meant = [name for name in self.names if name not in OFF] if on else off
        if len(off) != 1 or len(meant) != 1:
            raise AblateError(
                f"{self.name} = {str(on).lower()}: name the level; choices: {', '.join(self.names)}"
            )
        return meant[0]


CROSSES = (
    *("rnn-cross-attention", "rnn-self-attention", "rnn-encoder"),
    *("causal-encoder-decoder", "encoder-decoder"),
)
IMAGES = ("vision-transformer", "masked-autoencoder")  # architectures that read images
# what the factors of a model's parts need
BLOCKS = {"architecture": ("transformer", "rnn-seq2seq", *CROSSES, *IMAGES)}
# what those of text do
TEXT = {"objective": ("causal", "masked", "pairs", "span", "denoise")}
# what factors of the scores need
ATTENDS = {"mixer": ("attention", "rnn-attention"), "architecture": CROSSES}
# what those of a task do
FINETUNES = {
    "method": (
        *("scratch", "full", "head", "adapter", "lora"),
        *("logistic", "svm", "random-forest"),
    )
}
DENSE = {"mlp": ("dense",)}  # what those of the MLP do
_ROWS = (
    # -- block -------------------------------------------------------------------------------------
    Factor("architecture", "block", "The whole model.", choice=True),
    Factor(
        "topology",
        "block",
        "Wiring of attention, MLP and residual connections.",
        choice=True,
        needs=BLOCKS,
    ),
    Factor("norm", "block", "Position of the norms in a block.", choice=True, needs=BLOCKS),
    Factor(
        "norm_kind",
        "block",
        "Function of a norm.",
        choice=True,
        needs={"norm": ("pre", "post", "peri")},
    ),
    Factor(
        "norm_epsilon",
        "block",
        "Number that every norm adds to the variance or mean of squares before the square root.",
        source="Ba et al. 2016, arXiv:1607.06450",
        needs={
            "norm_kind": ("layernorm", "rmsnorm", "layernorm-scalar"),
            "qk_norm": ("layernorm", "rmsnorm"),
            "embed_norm": ("layernorm", "rmsnorm"),
            "mlm_head_transform": ("dense",),
        },
    ),
    Factor(
        "mlp",
        "block",
        "The second sublayer of a block, a function of each token.",
        choice=True,
        needs=BLOCKS,
    ),
    Factor("n_layer", "block", "Number of blocks."),
    Factor(
        "n_layer_encoder",
        "block",
        "Number of blocks of the encoder; by default n_layer.",
        needs={"architecture": ("rnn-seq2seq", *CROSSES)},
    ),
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
        choice=True,
        needs={**DENSE, "mlm_head_transform": ("dense",)},
    ),
    Factor(
        "outer_activation",
        "block",
        "A second nonlinearity, on the MLP's output.",
        choice=True,
        needs=DENSE,
    ),
    Factor("bias", "block", "Which linear maps and norms carry a bias.", choice=True, needs=BLOCKS),
    Factor("init", "block", "Initial values of the weights.", choice=True, needs=BLOCKS),
    Factor(
        "dropout",
        "block",
        "Share of activations dropped: of the embeddings, A(x) and M(h).",
        source="Srivastava et al. 2014",
        needs=BLOCKS,
    ),
    # -- attention ---------------------------------------------------------------------------------
    Factor(
        "mixer", "attention", "What gives a token information of others.", choice=True, needs=BLOCKS
    ),
    Factor(
        "rnn_cell",
        "attention",
        "Cell of recurrent layers.",
        choice=True,
        needs={
            "mixer": ("rnn", "rnn-attention"),
            "architecture": (
                *("rnn-seq2seq", "rnn-cross-attention", "rnn-self-attention", "rnn-encoder"),
            ),
        },
    ),
    Factor("attention", "attention", "Positions that a position may attend to.", choice=True),
    Factor(
        "encoder_attention",
        "attention",
        "Positions of the source that a position of it may attend to.",
        choice=True,
        needs={"architecture": ("causal-encoder-decoder", "encoder-decoder")},
    ),
    Factor(
        "document_mask",
        "attention",
        "Whether documents in one window attend to each other.",
        choice=True,
        needs=BLOCKS,
    ),
    Factor(
        "n_head",
        "attention",
        "Number of query heads.",
        source="Vaswani et al. 2017, arXiv:1706.03762",
    ),
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
        "Combination of the heads into one output.",
        choice=True,
        needs=ATTENDS,
    ),
    Factor(
        "qkv",
        "attention",
        "Maps from the stream to queries, keys and values.",
        choice=True,
        needs=ATTENDS,
    ),
    Factor(
        "qk_norm",
        "attention",
        "Normalisation of queries and keys over d_head, before the scores.",
        choice=True,
        needs=ATTENDS,
    ),
    Factor(
        "attention_scale",
        "attention",
        "Factor on the scores before the softmax.",
        choice=True,
        needs={"score": ("dot",)},
    ),
    Factor("score", "attention", "Comparison of a query with a key.", choice=True, needs=ATTENDS),
    # -- position ----------------------------------------------------------------------------------
    Factor(
        "position", "position", "Encoding of the position of a token.", choice=True, needs=BLOCKS
    ),
    Factor(
        "rope_theta",
        "position",
        "Base of the wavelengths of rotary positions.",
        source="Su et al. 2021, arXiv:2104.09864",
        needs={"position": ("rotary",)},
    ),
    Factor(
        "rope_share",
        "position",
        "Share of each head's channels, counted from the first, that rotary positions rotate.",
        source="GPT-NeoX-20B, Black et al. 2022, arXiv:2204.06745",
        needs={"position": ("rotary",)},
    ),
    Factor(
        "n_ctx",
        "position",
        "Tokens in a training sequence; of images the patches, which follow from patch.",
    ),
    # -- embedding ---------------------------------------------------------------------------------
    Factor("embedding", "embedding", "From a token to a vector.", choice=True, needs=BLOCKS),
    Factor(
        "class_token",
        "embedding",
        "A token before the patches of an image.",
        choice=True,
        needs={"architecture": IMAGES},
    ),
    Factor(
        "tie_embeddings",
        "embedding",
        "Whether the output head is the embedding matrix.",
        choice=True,
        needs=BLOCKS,
    ),
    Factor(
        "embed_norm",
        "embedding",
        "A norm on the embeddings, before the first block.",
        choice=True,
        needs=BLOCKS,
    ),
    Factor(
        "mlm_head_transform",
        "embedding",
        "Layers before the head of a masked model.",
        choice=True,
        needs={"objective": ("masked",)},
    ),
    Factor(
        "n_vocab",
        "embedding",
        "Size of the vocabulary, which follows from the tokenizer (and [MASK]); of images the"
        " classes, or the numbers of a patch.",
    ),
    # -- objective ---------------------------------------------------------------------------------
    Factor("objective", "objective", "What is predicted, of text or of images.", choice=True),
    Factor(
        "mask_ratio",
        "objective",
        "Share of tokens that are masked or corrupted, or of patches that are hidden, 0.05 to"
        " 0.95.",
        source="Devlin et al. 2019, arXiv:1810.04805; Wettig et al. 2023, arXiv:2202.08005;"
        " He et al. 2021, arXiv:2111.06377",
        needs={"objective": ("masked", "span", "denoise", "mae")},
    ),
    Factor(
        "mask_mix",
        "objective",
        "Shares of the predicted tokens that are shown as [MASK], as a random token, unchanged.",
        source="Devlin et al. 2019, arXiv:1810.04805",
        needs={"objective": ("masked",)},
    ),
    Factor(
        "mask_kind", "objective", "Unit of masking.", choice=True, needs={"objective": ("masked",)}
    ),
    Factor(
        "mean_span",
        "objective",
        "Mean length of a corrupted span, in tokens.",
        source="Raffel et al. 2020, arXiv:1910.10683; Joshi et al. 2020, arXiv:1907.10529",
        needs={"objective": ("span", "denoise")},
    ),
    Factor(
        "corruption",
        "objective",
        "Noise of the text that an encoder reads.",
        choice=True,
        needs={"objective": ("denoise",)},
    ),
    Factor(
        "z_loss",
        "objective",
        "Weight of (log Σ exp logits)² in the training loss.",
        source="PaLM, arXiv:2204.02311",
        needs={"objective": (*TEXT["objective"], "classify")},
    ),
    # -- data --------------------------------------------------------------------------------------
    Factor(
        "corpus",
        "data",
        "Text: austen, sotu; cmudict, cmudict-long (pairs of word and phonemes); debian-docs "
        "(built by `python studies/corpora/debian_docs.py`); "
        "a file, folder or glob of text, JSON lines, CSV, Parquet, a Hugging Face data set on disk "
        "or token files; or { train = …, held_out = … }. "
        "For images: digits, an .npz file, or a folder with a folder of images for each class.",
    ),
    Factor(
        "tokenizer",
        "data",
        "byte; bpe:SIZE trained on the training part; a tokenizer.json; tokens, for token files; "
        "or one of your own.",
        open=True,
        needs=TEXT,
    ),
    Factor("corpus_hash", "data", "SHA-256 of the text; filled in."),
    Factor("split", "data", "How held-out text was chosen, for readers; filled in."),
    Factor("tokenizer_hash", "data", "SHA-256 of the tokenizer; filled in."),
    # -- start -------------------------------------------------------------------------------------
    Factor(
        "start", "start", "Weights that a run starts from; for studies with [start].", choice=True
    ),
    Factor(
        "corruption_tokens",
        "start",
        "Special tokens of corrupted text.",
        choice=True,
        needs={"objective": ("span", "denoise")},
    ),
    # -- training ----------------------------------------------------------------------------------
    Factor("steps", "training", "Optimiser steps; follows from tokens, tokens_per_param or flops."),
    Factor("batch_tokens", "training", "Tokens per optimiser step."),
    Factor("optimiser", "training", "From gradients to new weights.", choice=True),
    Factor(
        "lr", "training", "Peak learning rate.", source="Loshchilov & Hutter 2019, arXiv:1711.05101"
    ),
    Factor(
        "weight_decay",
        "training",
        "Decoupled weight decay, on matrices and embeddings.",
        source="Loshchilov & Hutter 2019, arXiv:1711.05101",
    ),
    Factor(
        "grad_clip",
        "training",
        'Largest norm of a run\'s gradient; 0, or "none", for no clipping.',
        source="Pascanu et al. 2013, arXiv:1211.5063",
    ),
    Factor("warmup", "training", "Share of the steps over which the learning rate rises from 0."),
    Factor("schedule", "training", "Decay of the learning rate after warm-up.", choice=True),
    Factor(
        "precision",
        "training",
        "Arithmetic of the matrix products; stream, norms, loss and weights stay float32.",
        choice=True,
    ),
    # -- fine-tuning -------------------------------------------------------------------------------
    Factor(
        "method",
        "fine-tuning",
        "What is trained on a task; for studies with [finetune].",
        choice=True,
    ),
    Factor(
        "pooling",
        "fine-tuning",
        "Features of a text that the classifier reads.",
        choice=True,
        needs=FINETUNES,
    ),
    Factor(
        "text_format",
        "fine-tuning",
        "How a text, or a pair of texts, of a task is written for the model.",
        choice=True,
        needs=FINETUNES,
    ),
    Factor(
        "code",
        "data",
        "Files and packages that the run's levels from outside come from, with their hash.",
    ),
    Factor(
        "seed",
        "training",
        "Seed of weights, batch order, masks and dropout; set by the study's `seeds`.",
    ),
    Factor(
        "init_seed",
        "training",
        "Seed of the initial weights, by default seed; set by `seeds = { init, data }`.",
    ),
    Factor(
        "data_seed",
        "training",
        "Seed of batch order, masks and dropout, by default seed; set by `seeds = { init, data }`.",
    ),
)

CATALOGUE: dict[str, Factor] = {row.name: row for row in _ROWS}
_LEVELS: dict[str, dict[str, Component]] = {name: {} for name in CATALOGUE}
# hyper-parameter → group and needs of each part that declares it
_PARTS: dict[str, list[tuple[str, dict[str, tuple[str, ...]]]]] = {}


def factor(name: str) -> Factor:
    """Return the catalogue's row for `name`.

    Args:
        name: Such as "norm".

    Raises:
        AblateError: There is no such factor; the nearest name is given.
    """
    if name not in CATALOGUE:
        raise unknown("factor", name, CATALOGUE, every="ablate factors")
    return CATALOGUE[name]


def level(
    factor_name: str,
    name: str,
    *,
    meaning: str = "",
    source: str = "",
    aliases: tuple[object, ...] = (),
) -> Callable[[C], C]:
    """Register the decorated class or function as a level of a factor.

    It is a component, or, where the factor takes them, a plain `torch.nn.Module` or function,
    written for one model: see docs/own-parts.md. One component class, with its own fields, may be
    several levels, of one factor or of several; a subclass shares the fields that it inherits.
    Nothing is registered where anything is refused.

    Args:
        factor_name: Name of the factor.
        name: Name of the level, as study files write it.
        meaning: What it does, in one line; by default the first paragraph of the class docstring.
        source: Paper, equation or code base.
        aliases: Other values of a study file that mean this level.

    Raises:
        AblateError: The factor is unknown or has no levels, the class is not for it or lacks the
            method that it calls, the name is taken, one of the class's own fields has a name that
            is taken, or there is no meaning.
    """

    def component(made: Any) -> Component:
        row = factor(factor_name)
        who = f"{factor_name} level {name!r} ({_named(made)})"
        of: Any = made
        if plain.is_component(made):
            if not (row.choice or row.open) or factor_name not in of.factors:
                choices = ", ".join(of.factors) or "none"
                raise AblateError(f"{who} cannot be a level of {factor_name}; its class: {choices}")
            plain.check_component(of, who, factor_name)
        elif row.choice or row.open:
            of = plain.component(made, factor_name, CATALOGUE, who)
        else:
            choices = ", ".join(
                name for name, other in CATALOGUE.items() if other.choice or other.open
            )
            raise AblateError(f"{who}: {factor_name} has no levels; factors that do: {choices}")
        text = meaning or _meaning(of)
        if not text:
            raise AblateError(
                f"{who} says nothing of what it does; give meaning = …, or a docstring"
            )
        found: Component = of(factor_name, name, text, source, aliases)
        return found

    def register(made: C) -> C:
        try:
            found = component(made)
        except AblateError as error:
            if _refuse is None:
                raise
            _refuse(error)
            return made
        (_take or add)(found)
        return made

    return register


_take: Callable[[Component], None] | None = None  # gets levels, while `collecting`
_refuse: Callable[[AblateError], None] | None = None  # gets errors of levels, while `collecting`


@contextmanager
def collecting(
    take: Callable[[Component], None], refuse: Callable[[AblateError], None] | None = None
) -> Iterator[None]:
    """Give the levels that are registered inside to a function, instead of the catalogue.

    The functions are called by the decorator, so that they can see what code registers the level.

    Args:
        take: Gets each level.
        refuse: Gets the error of each level that is refused; by default it is raised.
    """
    global _take, _refuse
    before = _take, _refuse
    _take, _refuse = take, refuse
    try:
        yield
    finally:
        _take, _refuse = before


def add(component: Component) -> None:
    """Put a level into the catalogue, and its own fields.

    Raises:
        AblateError: Its name, or the name of one of its fields, is taken.
    """
    row, made = CATALOGUE[component.factor], type(component)
    who = f"{component.factor} level {component.name!r} ({_named(made, component)})"
    for other in row.levels:
        if {component.name, *component.aliases} & {other.name, *other.aliases}:
            raise AblateError(
                f"{who} has the name of {component.factor} level {other.name!r}"
                f" ({_named(type(other), other)}); rename one of them"
            )
    if row.open and (not component.name.isidentifier() or component.name in VALUES):
        raise AblateError(
            f"{who}: a name is letters, digits and underscores, and none of {', '.join(VALUES)}"
        )
    declare(made.fields, who, row.group, {row.name: (component.name,)})
    _LEVELS[row.name][component.name] = component
    for other in map(CATALOGUE.__getitem__, sorted(made.asks)):
        if other.field:
            declare((other.field,), who, other.group, {row.name: (component.name,)})
        elif other.needs:
            levels = (*other.needs.get(row.name, ()), component.name)
            CATALOGUE[other.name] = dataclasses.replace(
                other, needs={**other.needs, row.name: levels}
            )


def declare(
    fields: Sequence[Field], who: str, group: str, needs: Mapping[str, tuple[str, ...]]
) -> None:
    """Put hyper-parameters of a part into the catalogue; equal ones of several parts are one.

    Args:
        fields: The hyper-parameters.
        who: The part, for errors.
        group: Heading under which they are listed.
        needs: Factor → levels with which they have a meaning; with any, if empty.

    Raises:
        AblateError: A name is taken, and nothing is declared.
    """
    new = [own for own in fields if own != _registered(own.name)]
    for own in new:
        if own.name in CATALOGUE:
            raise AblateError(
                f"{who} has a field {own.name!r}, but there is already a field of that name:"
                f" {CATALOGUE[own.name].meaning} Rename it"
            )
        try:
            check_name(own.name, [*CATALOGUE, *(other.name for other in new)])
        except AblateError as error:
            raise AblateError(f"{who}: {error}") from None
    for own in fields:
        _PARTS.setdefault(own.name, []).append((group, dict(needs)))
        _declared(own)


def exchange(component: Component) -> None:
    """Put a level in the place of one with the same name and fields."""
    _LEVELS[component.factor][component.name] = component


def remove(component: Component) -> None:
    """Take a level out of the catalogue, and the fields that no other level has."""
    row, made = CATALOGUE[component.factor], type(component)
    del _LEVELS[row.name][component.name]
    for other in map(CATALOGUE.__getitem__, sorted(made.asks)):
        if other.field:
            withdraw((other.field,), other.group, {row.name: (component.name,)})
        elif other.needs:
            levels = tuple(one for one in other.needs[row.name] if one != component.name)
            needs = {**other.needs, row.name: levels}
            CATALOGUE[other.name] = dataclasses.replace(
                other, needs={name: of for name, of in needs.items() if of}
            )
    withdraw(made.fields, row.group, {row.name: (component.name,)})


def withdraw(fields: Sequence[Field], group: str, needs: Mapping[str, tuple[str, ...]]) -> None:
    """Take back what `declare` did with the same arguments."""
    for own in fields:
        _PARTS[own.name].remove((group, dict(needs)))
        if _PARTS[own.name]:
            _declared(own)
        else:
            del _PARTS[own.name], CATALOGUE[own.name], _LEVELS[own.name]


def _declared(own: Field) -> None:
    """Make the row of a hyper-parameter, of all parts that declare it."""
    parts = _PARTS[own.name]
    needs: dict[str, tuple[str, ...]] = {}
    for _, its in parts if all(its for _, its in parts) else ():
        for name, levels in its.items():
            needs[name] = (*needs.get(name, ()), *levels)
    group = parts[0][0]
    CATALOGUE[own.name] = Factor(own.name, group, own.meaning, own.source, needs, field=own)
    _LEVELS.setdefault(own.name, {})


def _named(made: Any, component: Component | None = None) -> str:
    """A class or function, or the code that it comes from."""
    if component and component.origin:
        return component.origin[0].rpartition("@")[0]
    # a file of a user's own has a module of no name that a reader knows
    own = made.__module__.startswith(OUTSIDE)
    return made.__qualname__ if own else f"{made.__module__}.{made.__qualname__}"


def _registered(name: str) -> Field | None:
    return CATALOGUE[name].field if name in CATALOGUE else None


def _meaning(made: type) -> str:
    """Return a class's own docstring as a fragment: its first paragraph without the full stop."""
    text = " ".join((made.__dict__.get("__doc__") or "").strip().split("\n\n")[0].split())
    word = re.split(r"[ ,:;.]", text)[0]
    if word == "A" or (word.isalpha() and word[1:] and word[1:].islower()):  # no abbreviation
        text = text[0].lower() + text[1:]
    return text.removesuffix(".")
