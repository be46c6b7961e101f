"""Folders of the library `transformers`: models that are saved in one, and read from one.

`ablate.trained.architectures` says which models these are.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from ablate.config import RunConfig
from ablate.errors import AblateError, unknown, written
from ablate.kinds import Run, kind
from ablate.model.transformer import model_of
from ablate.text.pairs import MARK, marks
from ablate.text.tokenizers import Bytes, byte_level, is_own
from ablate.train.weights import About
from ablate.trained.architectures import ARCHITECTURES, Architecture, architecture_of, library
from ablate.trained.model import Model
from ablate.trained.tokens import MASK, TextTokenizer

CLOSE = 1e-4  # largest allowed difference of logits, relative to the largest logit
_AROUND = ("bos", "decoder_start", "eos")  # tokens around source and target
_SENTINEL = "<extra_id_{}>"  # how T5's tokenizer writes the token of a hidden span, from 0
_MASKS = (MASK, "<mask>")  # how tokenizers write the mask where no file says it
CONFIGURATION, TOKENIZER = "config.json", "tokenizer.json"


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
    library()
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
    if found.shares(model.config):
        theirs.tie_weights()
    _compare(model.transformer, model.config, theirs, model.config.n_ctx, "nothing was saved")
    of = model.tokenizer
    known = of.inner is not None and not is_own(of.name)
    tokenizer = tokenizer_for(of, model.config) if known else None
    if model.config.part("architecture").encodes:
        _start(model, theirs)
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


def _start(model: Model, theirs: Any) -> None:
    """Tell the library which tokens begin source and target, and which ends them."""
    config = model.config
    special = config.part("corruption_tokens")
    start, (before, end) = special.start(config), special.around(config)
    if config.part("objective").pairs and model.tokenizer.inner is not None:
        start, end = marks(model.tokenizer.inner)
    for settings in (theirs.config, theirs.generation_config):
        settings.decoder_start_token_id = start
        settings.bos_token_id, settings.eos_token_id = before, end


def load(folder: Path) -> Model:
    """Return the model in a folder of the library, with the logits that the library computes.

    It is compared with the library's own model on some tokens.

    Args:
        folder: Has config.json, weights as safetensors, and tokenizer.json if text is to be read.

    Raises:
        AblateError: The library is not installed, a file is missing or damaged, or the model asks
            for something that ablate does not have.
    """
    of = _architecture(folder)
    made = getattr(library(), of.model)
    with _readable(folder):
        theirs, info = made.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    _check_weights(folder, info)
    theirs.eval()
    text = _text(folder, theirs.config)
    if text.n_vocab > theirs.config.vocab_size:
        raise AblateError(
            f"{folder}: {TOKENIZER} has {text.n_vocab:,} tokens, but the model only"
            f" {theirs.config.vocab_size:,}"
        )
    run = _run(of, theirs.config, folder, text)
    transformer = model_of(run.config)
    shapes = {name: one.shape[1:] for name, one in transformer.named_parameters()}
    kept = of.parameters(run.config, shapes, theirs)
    about = About(run, run.key, "given", 0, math.nan, text.content, ())
    model = Model(kept, about, text.mask)
    length = min(run.config.n_ctx, of.compared(run.config))
    _compare(model.transformer, run.config, theirs, length, f"{folder} cannot be read")
    return model


def described(folder: Path) -> tuple[Run, int | None]:
    """Return the run that the model in a folder stands for, and its token for a hidden one.

    Raises:
        AblateError: As `load`, but of the weights only the shapes are read; or an encoder-decoder
            names no token that begins a target.
    """
    of = _architecture(folder)
    made = getattr(library(), of.model)
    with _readable(folder):
        theirs = made.config_class.from_pretrained(folder, local_files_only=True)
        unlike = _unlike(folder, made, theirs)
    _check_weights(folder, {"mismatched_keys": unlike, "missing_keys": ()})
    text = _text(folder, theirs)
    if theirs.is_encoder_decoder and text.target is None:
        raise AblateError(
            f"{folder}: {CONFIGURATION} names no decoder_start_token_id, with which the decoder"
            " begins"
        )
    return _run(of, theirs, folder, text), text.mask


def _token(theirs: Any, name: str) -> int | None:
    """Return a token that a configuration names, the first of several."""
    found = getattr(theirs, name, None)
    token: int | None = found[0] if isinstance(found, list) else found
    return token


def _unlike(folder: Path, made: Any, theirs: Any) -> list[tuple[str, list[int], list[int]]]:
    """Return the weights in the files of a folder whose shapes are not those of its model.

    Args:
        folder: The folder.
        made: Class of the model.
        theirs: Its configuration.
    """
    with torch.device("meta"):
        model = made(theirs)
    shapes = {name: list(one.shape) for name, one in model.state_dict().items()}
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                # a model without its head has names without what they begin with in the whole one
                whole = name if name in shapes else f"{made.base_model_prefix}.{name}"
                shape = list(file.get_slice(name).get_shape())
                if shape != shapes.get(whole, shape):
                    found.append((name, shape, shapes[whole]))
    return found


def _check_weights(folder: Path, info: dict[str, Any]) -> None:
    """Refuse weights that the library left random, for they are missing or have another shape."""
    wrong = []
    for one in sorted(info["mismatched_keys"]):
        # versions of the library before 5 name no shapes
        name, *shapes = (one,) if isinstance(one, str) else one
        of = (
            " has the shape {}, not {}".format(*map(list, shapes))
            if shapes
            else " has another shape"
        )
        wrong.append(f"{name}{of}")
    wrong += [f"{name} is missing" for name in sorted(info["missing_keys"])]
    if wrong:
        more = f", and {len(wrong) - 1} more" if wrong[1:] else ""
        raise AblateError(
            f"{folder}: weights do not fit the model of {CONFIGURATION}: {wrong[0]}{more}"
        )


def _architecture(folder: Path) -> Architecture:
    path = folder / CONFIGURATION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except FileNotFoundError:
        raise AblateError(
            f"{folder} has no {CONFIGURATION}: it is not the folder of a model"
        ) from None
    except (OSError, ValueError, LookupError, TypeError):
        raise AblateError(f"{path} names no model_type of transformers") from None
    kinds = {one.kind: one for one in ARCHITECTURES}
    if found not in kinds:
        raise unknown("model_type", found, kinds, str(path))
    return kinds[found]


def _run(of: Architecture, theirs: Any, folder: Path, text: _Text) -> Run:
    """Return the run that a configuration of the library stands for."""
    for name, value in of.only.items():
        if getattr(theirs, name, value) != value:
            raise AblateError(
                f"{folder}: {name} = {written(getattr(theirs, name))}, and ablate's {of.name}"
                f" supports only {written(value)}"
            )
    try:
        fixed = {name: levels[0] for name, levels in of.fields.items() if len(levels) == 1}
        fields = fixed | {"init": "normal-0.02", "n_vocab": theirs.vocab_size} | of.read(theirs)
        if text.objective:
            fields["objective"] = text.objective
        of_text = {"tokenizer": TOKENIZER if text.content else "tokens", "corpus": ""}
        if text.content:
            of_text["tokenizer_hash"] = hashlib.sha256(text.content).hexdigest()
        # no code from outside: metrics that a study has loaded do not concern it
        given = fields | of_text | {"batch_tokens": fields["n_ctx"], "code": ()}
        run = Run("transformer", kind("transformer").check(given))
        if not run.config.part("objective").corrupts or text.target is None:
            return run
        spans = run.config.part("objective").name == "span"
        hidden = text.sentinels if spans else (text.mask,)
        return _with_tokens(run, text, tuple(token for token in hidden if token is not None))
    except AblateError as error:
        raise AblateError(f"{folder}: {error}") from None


def _with_tokens(run: Run, text: _Text, hidden: tuple[int, ...]) -> Run:
    """Return a run on corrupted text with the tokens of a folder, where these are not a run's."""
    of_a_run = run.config.part("corruption_tokens")
    own = (of_a_run.start(run.config), of_a_run.hidden(run.config), None, None)
    if (text.target, hidden, text.source, text.end) == own:
        return run
    source, end = (-1 if token is None else token for token in (text.source, text.end))
    tokens = {
        "corruption_tokens": "folder",
        "source_token": source,
        "target_token": text.target,
        "end_token": end,
        "hidden_tokens": hidden,
    }
    return Run(run.kind, kind(run.kind).check({**run.fields, **tokens}))


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Say in one line what the library cannot read, and nothing else."""
    logs = library().utils.logging
    before = logs.get_verbosity()
    logs.set_verbosity_error()
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise AblateError(f"{folder} cannot be read by transformers: {said}") from error
    finally:
        logs.set_verbosity(before)


class _Text(NamedTuple):
    """What a folder says of the text that its model reads and writes; None where it says nothing.

    The tokens around source and target are those of an encoder-decoder.
    """

    content: bytes = b""  # of its tokenizer
    n_vocab: int = 0  # tokens of its tokenizer
    mask: int | None = None  # stands for a hidden token
    sentinels: tuple[int, ...] = ()  # stand for the first, the second, … hidden span
    source: int | None = None  # begins what an encoder reads
    target: int | None = None  # begins what a decoder writes
    end: int | None = None  # ends source and target
    objective: str = ""  # of an encoder-decoder whose tokens say it


def _text(folder: Path, theirs: Any) -> _Text:
    """Return what a folder says of the text that its model, with a configuration, reads."""
    import tokenizers

    path, found = folder / TOKENIZER, _Text()
    if theirs.is_encoder_decoder:
        source, target, end = (_token(theirs, f"{name}_token_id") for name in _AROUND)
        found = found._replace(source=source, target=target, end=end)
    if not path.is_file():
        return found
    with _readable(path):
        content = path.read_bytes()
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        about = folder / "tokenizer_config.json"
        told = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
        mark = told.get("mask_token")
        masks = (mark["content"] if isinstance(mark, dict) else mark,) if mark else _MASKS
    vocabulary = tokenizer.get_vocab()
    mask = next((vocabulary[one] for one in masks if one in vocabulary), None)
    n_vocab = max(vocabulary.values(), default=-1) + 1
    found = found._replace(content=content, n_vocab=n_vocab, mask=mask)
    if not theirs.is_encoder_decoder:
        return found
    sentinels: list[int] = []
    while (name := _SENTINEL.format(len(sentinels))) in vocabulary:
        sentinels.append(vocabulary[name])
    objective = "span" if sentinels else "" if mask is None else "denoise"
    if found.target is not None and tokenizer.decode([found.target]) == MARK.decode():
        objective = "pairs"  # which a run's decoder begins with the mark between source and target
    return found._replace(sentinels=tuple(sentinels), objective=objective)


@torch.inference_mode()
def logits(theirs: Any, tokens: Tensor, source: Tensor | None = None) -> Tensor:
    """Return the logits of a model of the library.

    Args:
        theirs: The model.
        tokens: [B, T].
        source: What an encoder reads, [B, S].

    Returns:
        [B, T, V].
    """
    read: dict[str, Any] = {"input_ids": tokens}
    if source is not None:
        # without a cache, which some versions size by the blocks of the encoder
        read = {"input_ids": source, "decoder_input_ids": tokens, "use_cache": False}
    found: Tensor = theirs(**read).logits
    return found


@torch.inference_mode()
def _compare(ours: Any, config: RunConfig, theirs: Any, length: int, outcome: str) -> None:
    """Refuse a model whose logits differ from ours: another version of the library may differ."""
    device = next(ours.parameters()).device
    generator = torch.Generator().manual_seed(0)
    encodes = config.part("architecture").encodes
    # a source that is not as long as the target
    drawn = torch.randint(config.n_vocab, (2, length), generator=generator).chunk(2)
    tokens, source = drawn[0], drawn[1][:, : max(2, length // 2)] if encodes else None
    beside = None if source is None else source[None].to(device)
    # without autocast: what is saved computes in the precision of the weights
    expected = ours(tokens[None].to(device), None, beside)[0].float().cpu()
    found = logits(theirs, tokens, source)
    worst = float((found - expected).abs().max() / expected.abs().max())
    if not worst < CLOSE:
        # weights that amplify rounding errors do so in the model of the library, too
        exact = logits(copy.deepcopy(theirs).double(), tokens, source)
        rounding = float((found - exact).abs().max() / expected.abs().max())
        if worst < 10 * rounding < 1000 * CLOSE:
            return
        raise AblateError(
            f"transformers {library().__version__} computes different logits for this model, by up"
            f" to {worst:.2g} of the largest logit: {outcome}"
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
        inner = _of_bytes()
    else:
        inner = tokenizers.Tokenizer.from_str(of.inner.content.decode())
    special: dict[str, Any] = {}
    if len(of.separator) == 1 and not isinstance(of.inner, Bytes):
        special["eos_token"] = inner.id_to_token(of.separator[0])
    corruption = config.part("corruption_tokens")
    if not corruption.added and config.part("objective").name == "denoise":
        special["mask_token"] = inner.id_to_token(corruption.hidden(config)[0])
    added = _added(config)
    if added:
        first, n = config.n_vocab - config.part("objective").special_tokens, inner.get_vocab_size()
        inner.add_tokens([f"<unused{number}>" for number in range(n, first)])
    for number, name in added.items():
        mark = name if inner.token_to_id(name) is None else f"<|{name.strip('<[]>').lower()}|>"
        inner.add_special_tokens([mark])
        if inner.token_to_id(mark) != number:
            raise AblateError(
                f"tokenizer {of.name!r} leaves numbers unused, and transformers gives {mark} one"
                f" of them: {inner.token_to_id(mark)}, not {number}"
            )
        if name == MASK:
            special["mask_token"] = mark
    made: Any = library().PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=config.n_ctx, **special
    )
    return made


def _added(config: RunConfig) -> dict[int, str]:
    """Return the tokens that the objective of a run adds to its tokenizer's, with their names.

    What begins a target is the last token, and has none.
    """
    objective, n = config.part("objective"), config.n_vocab
    if not config.part("corruption_tokens").added:
        return {}
    if objective.name == "span":
        spans = objective.special_tokens - 1
        return {n - 1 - spans + k: _SENTINEL.format(spans - 1 - k) for k in range(spans)}
    return {n - objective.special_tokens: MASK} if objective.masks or objective.corrupts else {}


def _of_bytes() -> Any:
    """Return a tokenizer whose tokens are the bytes of UTF-8 text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(
        models.BPE(vocab={letter: value for value, letter in byte_level().items()}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made
