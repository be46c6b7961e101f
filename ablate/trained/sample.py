"""Text from a trained model: a causal model continues a text, a masked model fills its masks, and
one of corrupted text restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ablate.data.objectives import Example
from ablate.data.pairs import Pairs
from ablate.errors import AblateError
from ablate.evaluation import WIDEST_BEAM
from ablate.model import decoding
from ablate.train.decode import targets
from ablate.trained.model import Model
from ablate.trained.tokens import MASK


@torch.inference_mode()
def sample(
    model: Model,
    text: str,
    *,
    tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    beam: int | None = None,
) -> str:
    """Return a text continued by a causal model, with its masks filled by a masked one, restored by
    one that was trained on corrupted text, or the target that a model of pairs, or an
    encoder-decoder of `transformers`, decodes for it.

    A causal model reads the last n_ctx tokens at most, and stops where its document ends; the
    separator is left out. A masked model first fills the mask whose likeliest token has the highest
    probability, then reads the text again.

    Args:
        model: The model.
        text: The text to continue, or a text with `MASK` for each token that is hidden; "" begins a
            document.
        tokens: Largest number of tokens to add, by default 100; a masked model adds none, and a
            target of a pair is as long as its row allows.
        temperature: Divides the logits; 0 takes the likeliest token. By default 1 for a causal
            model, 0 for a masked one.
        top_k: Number of likeliest tokens to choose among; None for all.
        seed: Seed of the random choices, by default 0: equal arguments give equal text.
        beam: For a target, the number of hypotheses that are kept; by default 1, which is greedy.

    Raises:
        AblateError: A causal model gets a mask, a masked one gets none or more text than n_ctx
            tokens, the model was trained on images, an argument has no effect with the model, the
            beam is wider than 64, or the tokenizer cannot encode the text.
    """
    asked: dict[str, float | None] = {"tokens": tokens, "temperature": temperature, "top_k": top_k}
    check_options(model, asked | {"seed": seed, "beam": beam})
    tokens, beam = 100 if tokens is None else tokens, 1 if beam is None else beam
    if not 1 <= beam <= WIDEST_BEAM:
        raise AblateError(f"beam = {beam:g}: a number from 1 to {WIDEST_BEAM} is wanted")
    objective = model.config.part("objective")
    if _as_its_folder(model):
        return _of_folder(model, text, beam, tokens)
    if objective.has_source:
        decoded = _restored if objective.corrupts else _target
        return decoded(model, text, beam)
    masked = model.tokenizer.mask is not None
    if temperature is None:
        temperature = 0.0 if masked else 1.0
    if not 0 <= temperature < float("inf"):
        raise AblateError(f"temperature = {temperature:g}: a number of at least 0 is wanted")
    choice = _Choice(temperature, top_k, torch.Generator().manual_seed(seed or 0))
    if not masked and MASK in text:
        raise AblateError(
            f"this model is causal: remove {MASK}; a causal model only continues a text"
        )
    given = model.tokenizer.encode(text)
    made = _fill(model, given, choice) if masked else _continue(model, given, tokens, choice)
    return model.tokenizer.decode(made)


def check_options(model: Model, given: Mapping[str, float | None]) -> None:
    """Refuse options that have no effect with a model.

    Args:
        model: The model.
        given: An argument of `sample`, or its option on the command line → its value; None is not
            given.

    Raises:
        AblateError: The first of them, or the model reads images.
    """
    model.check_reads_text("sample")
    of_folder = _as_its_folder(model)
    if model.config.part("objective").has_source:
        what, read = "decodes a target without random choices", ["beam"]
        read += ["tokens"] * of_folder
    elif model.tokenizer.mask is not None:
        what, read = f"is masked, and fills each {MASK}", ["temperature", "top_k", "seed"]
    else:
        what, read = "is causal, and continues a text", ["tokens", "temperature", "top_k", "seed"]
    for name, value in given.items():
        if value is not None and name.removeprefix("--").replace("-", "_") not in read:
            dashes = "--" if name.startswith("--") else ""
            known = [f"{dashes}{one.replace('_', '-') if dashes else one}" for one in read]
            raise AblateError(
                f"{name} = {value:g} has no effect: this model {what}. Choices: {', '.join(known)}."
            )


class _Choice:
    """Chooses a token by its logit."""

    def __init__(self, temperature: float, top_k: int | None, generator: torch.Generator):
        self._temperature, self._top_k, self._generator = temperature, top_k, generator

    def __call__(self, logits: Tensor) -> int:
        """Return a token for logits [V]."""
        logits = logits.double().cpu()
        if self._temperature == 0:
            return int(logits.argmax())
        if self._top_k is not None and self._top_k < len(logits):
            least = logits.topk(self._top_k).values[-1]
            logits = logits.masked_fill(logits < least, -torch.inf)
        # the largest is subtracted first: divided by a small temperature it would overflow
        shares = ((logits - logits.max()) / self._temperature).softmax(-1)
        return int(torch.multinomial(shares, 1, generator=self._generator))


def _continue(model: Model, given: list[int], n: int, choice: _Choice) -> list[int]:
    ends = model.tokenizer.separator
    made: list[int] = []
    read = given or list(ends)  # a document begins after the end of another
    if not read:
        raise AblateError("the text is empty: give the model a text to continue")

    def ended() -> bool:
        return bool(made and ends) and tuple(made[-len(ends) :]) == ends

    def write(newest: Callable[[list[int]], Tensor], most: int) -> None:
        while len(made) < n and not ended() and len(read) + len(made) <= most:
            made.append(choice(newest([*read, *made])))

    n_ctx = model.config.n_ctx
    if decoding.keeps(model.transformer):
        device = next(model.parameters()).device
        with model.computing(), decoding.decoder(model.transformer) as text:
            write(lambda tokens: text.next(torch.tensor([[tokens]], device=device))[0, 0], n_ctx)
    # the window moves now, and with it the positions of all tokens
    write(lambda tokens: _logits(model, tokens[-n_ctx:])[-1], len(read) + n)
    if ended():
        del made[-len(ends) :]
    return [*given, *made]


def _fill(model: Model, given: list[int], choice: _Choice) -> list[int]:
    mask, n_ctx = model.tokenizer.mask, model.config.n_ctx
    if mask not in given:
        raise AblateError(
            f"the text has no {MASK}, and this model is masked: it only fills each {MASK} of a text"
        )
    if len(given) > n_ctx:
        raise AblateError(
            f"the text has {len(given):,} tokens, and this masked model reads n_ctx = {n_ctx:,}"
        )
    text = list(given)
    while hidden := [index for index, token in enumerate(text) if token == mask]:
        logits = _logits(model, text)[hidden]
        logits[:, mask] = -torch.inf
        surest = int(logits.softmax(-1).amax(-1).argmax())
        text[hidden[surest]] = choice(logits[surest])
    return text


def _target(model: Model, text: str, beam: int) -> str:
    tokenizer, n_ctx = model.tokenizer, model.config.n_ctx
    source = tokenizer.encode(text)
    if len(source) + 2 > n_ctx:
        raise AblateError(
            f"the text has {len(source):,} tokens, and a row of n_ctx = {n_ctx:,} has no space for"
            " a target after it"
        )
    assert tokenizer.inner is not None
    device = next(model.parameters()).device
    objective = Pairs([model.config], tokenizer.inner, device)
    row = [*source, objective.mark]
    row += [objective.end] * (n_ctx + 1 - len(row))
    example = objective.test(torch.tensor([row], device=device))
    with model.computing():
        written = targets(model.transformer, example, beam, objective.end)[0, 0].tolist()
    cut = written.index(objective.end) if objective.end in written else len(written)
    return tokenizer.decode(written[:cut])


def _restored(model: Model, text: str, beam: int) -> str:
    """Return a text that a model of corrupted text makes of one with `MASK` for each hidden span.

    The decoder writes until the end of a document, which is put after the text.
    """
    tokenizer, config, objective = model.tokenizer, model.config, model.config.part("objective")
    corruption = config.part("corruption")
    parts = [tokenizer.encode(part) for part in text.split(MASK)]
    start, spans = config.n_vocab - 1, len(parts) - 1
    if objective.name == "span":
        # the sentinels of the spans, and the one that ends what the decoder writes
        marks = [start - number for number in range(1, spans + 2)]
        most = config.part("corruption_tokens").most_spans(config)
        if not 0 < spans <= most:
            raise AblateError(f"the text has {spans} {MASK}, and this model fills in 1 to {most}")
        end = marks[-1]
    else:
        marks, end = [start - 1] * spans, tokenizer.separator[0]
        if spans and (corruption.continues or not corruption.reads):
            raise AblateError(
                f"this model has corruption = {corruption.name!r} and only continues a text: remove"
                f" {MASK}"
            )
    read = [*parts[0]]
    for mark, part in zip(marks, parts[1:], strict=False):
        read += [mark, *part]
    if end == tokenizer.separator[0] and corruption.reads and not corruption.continues:
        read += tokenizer.separator
    given = [] if corruption.reads else read  # a language model begins with the text
    if len(read) > config.n_ctx - bool(given) or not read:
        raise AblateError(
            f"the text has {len(read):,} tokens; this model reads 1 to n_ctx = {config.n_ctx:,}"
        )
    device = next(model.parameters()).device
    source = torch.tensor([[read if corruption.reads else [start]]], device=device)
    inputs = torch.full((1, 1, config.n_ctx), end, device=device)
    inputs[0, 0, : 1 + len(given)] = torch.tensor([start, *given])
    counts = (torch.arange(config.n_ctx, device=device) >= len(given)).float().expand_as(inputs)
    example = Example(inputs, inputs, counts, None, source)
    with model.computing():
        written = targets(model.transformer, example, beam, end)[0, 0].tolist()
    written = written[: written.index(end)] if end in written else written
    if objective.name == "span":
        made = _filled(read, written, marks)
    else:
        made = [*(read if corruption.continues else given), *written]
    n_text = config.n_vocab - objective.n_added(config)
    return tokenizer.decode(token for token in made if token < n_text)


def _filled(read: list[int], written: list[int], marks: list[int]) -> list[int]:
    """Put what follows each sentinel in the written tokens in its place in those that were read."""
    hidden: dict[int, list[int]] = {}
    now: list[int] = []
    for token in written:
        if token >= marks[-1]:
            now = hidden.setdefault(token, [])
        else:
            now.append(token)
    return [one for token in read for one in (hidden.get(token, []) if token in marks else [token])]


def _as_its_folder(model: Model) -> bool:
    """Return whether a model decodes a target with the tokens of a folder of `transformers`."""
    return not model.config.part("corruption_tokens").added


def _of_folder(model: Model, text: str, beam: int, most: int) -> str:
    """Decode the target of an encoder-decoder of `transformers`, of at most `most` tokens."""
    special, device = model.config.part("corruption_tokens"), next(model.parameters()).device
    start, (before, behind) = special.start(model.config), special.around(model.config)
    around = [[token] if token is not None else [] for token in (before, behind)]
    read = torch.tensor([[[*around[0], *model.tokenizer.encode(text), *around[1]]]], device=device)
    # without an end of its own, what begins a target ends it
    end = start if behind is None else behind
    inputs = torch.full((1, 1, min(model.config.n_ctx, most + 1)), end, device=device)
    inputs[..., 0] = start
    example = Example(inputs, inputs, torch.ones_like(inputs).float(), None, read)
    with model.computing():
        written = targets(model.transformer, example, beam, end)[0, 0].tolist()
    cut = written.index(end) if end in written else len(written)
    kept = [token for token in written[:cut] if token not in (before, start)]
    return model.tokenizer.decode(kept)


def _logits(model: Model, tokens: list[int]) -> Tensor:
    """Return logits [T, V] of T tokens."""
    device = next(model.parameters()).device
    logits: Tensor = model(torch.tensor([tokens], device=device))[0]
    return logits
