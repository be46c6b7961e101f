"""The cells of a study that fine-tunes: the task, its classes, and the pre-trained runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ablate import metrics, sizes
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.errors import AblateError, missing, unknown
from ablate.evaluation import VALIDATION
from ablate.kinds import Run, kind
from ablate.plan import check, held_out
from ablate.plan import notes as of_transformers
from ablate.plan.model import Cell, Confound, Contrast, Plan, Resolved, Text, before
from ablate.plan.resolve import TransformerResolver
from ablate.study import Fields, Study
from ablate.study.source import Source, located
from ablate.text import lengths, lexicon, share_read, sources, tasks, tokenizers
from ablate.text.labels import (
    FEW,
    FITTED,
    HELD_OUT,
    VALIDATED,
    LabelledTexts,
    as_read,
    few_held_out,
)
from ablate.text.tasks import WordList
from ablate.text.tokens import FIRST
from ablate.units import listed

_LOSSES = ("task_loss", "validation_loss")


@dataclass
class FinetuneResolver(TransformerResolver):
    """Resolves the cells of a study that fine-tunes; each file of a task is read once."""

    _tasks: dict[str, LabelledTexts | WordList] = field(default_factory=dict)
    # task, hash of a tokenizer → what is said of how much of its texts is encoded, or ""
    _read: dict[tuple[str, str], str] = field(default_factory=dict)
    _repeating: dict[str, None] = field(default_factory=dict)  # said of batches of few texts
    # task, hash of a tokenizer → tokens of the texts of its first examples, see `share_cut`
    _lengths: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    _cut: dict[str, None] = field(default_factory=dict)  # said of texts longer than n_ctx
    _shipped: dict[str, None] = field(default_factory=dict)  # said of shipped tasks
    # task, hash of a corpus → its name, the words, and how many of each side and class it has
    _in_text: dict[tuple[str, str], tuple[str, WordList, dict[int, Counter[int]]]] = field(
        default_factory=dict
    )

    @property
    def about(self) -> tuple[str, ...]:
        """How many texts the tasks have, and which batches are larger than what they train on."""
        files = [(Path(name).name, texts) for name, texts in self._tasks.items()]
        sides = (_sides(name, texts) for name, texts in files)
        doubts = (line for name, texts in files for line in _doubts(name, texts))
        found = (
            line
            for (name, _), counted in self._in_text.items()
            for line in _words_found(Path(name).name, *counted)
        )
        read = filter(None, self._read.values())
        said = (*doubts, *read, *self._cut, *self._repeating)
        return (*super().about, *self._shipped, *sides, *found, *said)

    def fields(self, chosen: dict[str, str]) -> Fields:
        """See `TransformerResolver.fields`; a task's file is known by its hash."""
        fields = super().fields(chosen)
        name: str = fields["task"]
        if name in tasks.TASKS:
            shipped = tasks.TASKS[name]
            if shipped.unit == "text":  # equally many of each class
                n = len(shipped.names)
                self._shipped[f"Task {name}: {n} classes of equal size; chance {1 / n:.1%}"] = None
            return fields | {
                "n_class": len(shipped.names),
                "n_texts": shipped.n_texts,
                "unit": shipped.unit,
                **_numbers(*shipped.numbers),
            }
        texts = self._task_of(name)
        if isinstance(texts, WordList):
            return fields | {
                "task_hash": texts.hash,
                "n_class": len(texts.names),
                "n_validation": texts.count(VALIDATED),
                "unit": "word",
                **_numbers(*tasks.TASKS["syllables"].numbers),
            }
        return fields | {
            "task_hash": texts.hash,
            "n_class": len(texts.names),
            "n_validation": int(texts.validation.sum()),
            "n_texts": 2 if texts.seconds or texts.choices else 1,
            "unit": "choice" if texts.choices else "text",
            **_numbers(int(texts.fitted.sum()), int((~texts.fitted).sum())),
        }

    def of_data(self, fields: Fields) -> Fields:
        """See `TransformerResolver.of_data`: also which special tokens the tokenizer has."""
        of_text = super().of_data(fields)
        row = CATALOGUE["text_format"]
        form = row[row.canonical(fields.get("text_format", row.names[0]))]
        if not form.special:
            return of_text
        location = self.sources[of_text["tokenizer_hash"]]
        ids = [tokenizers.special(location, form.spellings.get(one, ())) for one in form.special]
        return of_text | {"special_ids": ids}

    def resolve(self, chosen: dict[str, str], baseline: Run | None) -> Resolved:
        """See `TransformerResolver.resolve`.

        Raises:
            AblateError: There are too few labelled texts, or the tokenizer cannot encode them.
        """
        resolved = super().resolve(chosen, baseline)
        config: Any = resolved.run.config
        if not config.part("method").finetunes:
            raise AblateError(
                f"method = {config.method!r} trains nothing on the task of [finetune]; remove it"
            )
        if not config.part("method").by_steps and find_spec("sklearn") is None:
            raise missing("scikit-learn", "sklearn")
        there = config.n_fitted
        of_words = config.unit == "word"
        if of_words:
            self._check_words(config)
        elif config.task_hash:
            self._check_texts(config)
        tasks.check_number(config.labels, there, 1 if of_words else config.n_class)
        if of_words and config.pooling != RunConfig.model_fields["pooling"].default:
            raise AblateError(
                f"pooling = {config.pooling!r} has no effect: task {config.task!r} labels words,"
                " and the classifier reads the hidden state of one token of each; remove it"
            )
        if config.part("method").by_steps and config.finetune_batch > (n := config.labels or there):
            text = f"A step of finetune_batch = {config.finetune_batch:,} texts reads some of the"
            self._repeating[f"{text} {n:,} that it trains on more than once"] = None
        if config.tokenizer == "tokens":
            raise AblateError(
                "tokenizer = 'tokens' cannot encode the texts of a task; give the tokenizer.json"
                " that made the tokens"
            )
        run = Run("finetune", resolved.run.fields).of_parent()
        return replace(resolved, run=run, seeded=True)

    def _check_words(self, config: Any) -> None:
        """Count the words of a task in the corpus of a run, once for all cells.

        Raises:
            AblateError: None of those to train on, or none of those held out, are in the text.
        """
        corpus = next(
            one.corpus for one in self.texts.values() if one.corpus.hash == config.corpus_hash
        )
        if corpus.holds_tokens or (config.task, corpus.hash) in self._in_text:
            return
        words = self._tasks.get(config.task, None) if config.task_hash else tasks.syllables()
        assert isinstance(words, WordList)
        train, held_out = lexicon.words_of(corpus)
        counts: dict[int, Counter[int]] = {}
        for side, there, what in (
            (FITTED, train, "to train on stands in the training"),
            (VALIDATED, held_out, "of the validation part stands in the held-out"),
            (HELD_OUT, held_out, "that are held out stands in the held-out"),
        ):
            of = {word: number for word, (number, its) in words.words.items() if its == side}
            counts[side] = Counter(number for word, number in of.items() if word in there)
            if of and not counts[side]:
                raise AblateError(
                    f"task = {config.task!r}: none of its {len(of):,} words {what} part of corpus"
                    f" {corpus.name!r}, which has {len(there):,} words; give words of this text, or"
                    " another corpus"
                )
        self._in_text[config.task, corpus.hash] = (corpus.name, words, counts)

    def _check_texts(self, config: Any) -> None:
        """Try how much of a task's texts a tokenizer encodes, once for all cells.

        Raises:
            AblateError: It is next to nothing.
        """
        key = config.task, config.tokenizer_hash
        one = next(one for one in self.texts.values() if one.is_of(config))
        found = self._tasks[config.task]
        assert isinstance(found, LabelledTexts)
        if key not in self._lengths:
            others = zip(*found.choices, strict=True) if found.choices else [found.seconds]
            columns = [column[:FIRST] for column in (found.texts, *filter(None, others))]
            counted = [lengths(column, one.corpus, one.tokenizer) for column in columns]
            self._lengths[key] = [column for column in counted if column]
        if self._lengths[key]:
            self._say_cut(config, len(found.texts), self._lengths[key])
        if key in self._read:
            return
        info = one.tokenizer
        chosen = (choice for choices in found.choices for choice in choices)
        share = share_read((*found.texts, *found.seconds, *chosen), info)
        if share < check.NOTHING:
            raise AblateError(
                f"task = {config.task!r}: tokenizer {config.tokenizer!r} encodes {share:.1%} of the"
                " bytes of its texts; give a tokenizer for this text"
            )
        self._read[key] = (
            f"Warning: task {Path(config.task).name}: tokenizer {config.tokenizer!r} encodes"
            f" {share:.0%} of the bytes of its texts"
            if share < check.LITTLE
            else ""
        )

    def _say_cut(self, config: Any, n: int, counted: list[list[int]]) -> None:
        """Note how many of the n texts of a task have more tokens than a model reads."""
        of = len(counted[0])
        if cut := round(of * config.part("text_format").share_cut(config, counted)):
            which = f"the {of:,}" if of == n else f"the first {of:,}"
            self._cut[
                f"n_ctx = {config.n_ctx} cuts {cut:,} of {which} texts of task"
                f" {Path(config.task).name} (tokenizer {config.tokenizer!r}): a model reads their"
                " first tokens only"
            ] = None

    def _task_of(self, name: str) -> LabelledTexts | WordList:
        if name not in self._tasks:
            with located(Source(self.study.path, self.study.toml), "finetune", "task"):
                path = sources.absolute(name, self.study.path.parent)
                if not path.exists() and not path.suffix:
                    raise unknown("task or file", name, tasks.TASKS)
                self._tasks[name] = found = tasks.read(path)
            self.sources[found.hash] = str(path)
        return self._tasks[name]


def _numbers(fitted: int, tested: int) -> Fields:
    """Return the fields that say how many examples there are to train on and to test on."""
    return {"n_fitted": fitted, "n_tested": tested}


def _sides(name: str, texts: LabelledTexts | WordList) -> str:
    """Return how many texts of a task there are to train on, to decide on, and to test on."""
    if isinstance(texts, WordList):
        text = f"Task {name}: {texts.count(FITTED):,} words to train on, {texts.count(HELD_OUT):,}"
        text += " held out"
        if n := texts.n_contradictory:
            text += f"; {n:,} words are left out, because they have several labels"
        of_class = Counter(texts.words.values())
        text += as_read(texts.mended)
        return f"{text}. By class (to train on + held out): {_by_class(texts.names, of_class)}"
    tested, fitted = texts.counts.sum(1).tolist()
    text = f"Task {name}: {fitted:,} texts to train on, {tested:,} held out"
    if n := int(texts.validation.sum()):
        text += f", {n:,} of a validation part, on which [tune] decides"
    if n := texts.n_left_out:
        text += f"; {n:,} rows are left out, because their text is held out"
    text += as_read(texts.mended)
    counts = {
        (number, side): n
        for side, of in zip((HELD_OUT, FITTED), texts.counts.tolist(), strict=True)
        for number, n in enumerate(of)
    }
    classes = _by_class(texts.names, counts)
    return f"{text}. By class (to train on + held out): {classes}; chance {texts.chance:.1%}"


def _by_class(names: Sequence[str], counts: Mapping[tuple[int, int], int]) -> str:
    """Return how many examples each class has to train on, and how many that are tested.

    Args:
        names: Of the classes.
        counts: Number of the class and side → examples.
    """
    return listed(
        f"{name!r:.40} {counts.get((number, FITTED), 0):,} + {counts.get((number, HELD_OUT), 0):,}"
        for number, name in enumerate(names)
    )


def _words_found(
    name: str, corpus: str, words: WordList, counts: dict[int, Counter[int]]
) -> Iterator[str]:
    """Yield how many of a task's words are in a text, and what of it makes results doubtful.

    Args:
        name: Of the task.
        corpus: Name of the text.
        words: The task.
        counts: Side → how many words of each class are in that part of the text.
    """
    n = {side: counts[side].total() for side in (FITTED, HELD_OUT)}
    yield (
        f"Of the words of task {name}, {n[FITTED]:,} of {words.count(FITTED):,} to train on are in"
        f" the training part of corpus {corpus!r}, and {n[HELD_OUT]:,} of"
        f" {words.count(HELD_OUT):,} held out are in its held-out part"
    )
    if n[FITTED] < FEW:
        yield f"Warning: task {name}: {n[FITTED]} words of corpus {corpus!r} to train on are few"
    # where the table itself has few, `_doubts` says it
    if n[HELD_OUT] < FEW <= words.count(HELD_OUT):
        yield f"Warning: task {name}: in corpus {corpus!r} {few_held_out(n[HELD_OUT], 'words')}"
    for side, what in ((FITTED, "to train on"), (HELD_OUT, "held out")):
        if absent := [label for k, label in enumerate(words.names) if not counts[side][k]]:
            yield (
                f"Warning: task {name}: no word {what} is in corpus {corpus!r} of"
                f" {listed([repr(label) for label in absent], most=3)}"
            )


def _doubts(name: str, texts: LabelledTexts | WordList) -> Iterator[str]:
    """Yield what makes the results on a task doubtful."""
    if isinstance(texts, WordList):
        tested, what = texts.count(HELD_OUT), "words"
    else:
        tested, what = int(texts.counts[0].sum()), "texts"
        if n := texts.n_contradictory:
            yield (
                f"Warning: task {name}: {n:,} text{'s have' if n > 1 else ' has'} more than one"
                " label; no model can predict all their labels"
            )
    if few := few_held_out(tested, what):
        yield f"Warning: task {name}: {few}"


def complaints(
    study: Study, cells: tuple[Cell, ...], compared: tuple[Contrast, ...], texts: Sequence[Text]
) -> Iterator[str]:
    """Yield what in a study has no effect, or would be misleading, with its line in the file."""
    source = Source(study.path, study.toml)
    for metric, location in check.asked(study, source):
        row, _ = metrics.parse(metric)
        if not row.task:
            names = ", ".join(name for name, one in metrics.METRICS.items() if one.task)
            yield (
                f"{location}: metric {metric!r} is not measured in fine-tuned runs; choose one of"
                f" {names}"
            )
        for cell in cells:
            if row.name in [name for name, _ in cell_finals(study, cell)]:
                continue
            why = "which has no pre-training"
            if row.name in _LOSSES:
                why = f"whose method = {cell.config.method!r} gives classes no probabilities"
            if row.name in VALIDATION.values():
                why = "whose task does not have both a validation part and a test part"
            yield f"{location}: metric {metric!r} is not measured in cell {cell.label!r}, {why}"
    yield from check.complaints(study, cells, compared, texts)


def cell_finals(study: Study, cell: Cell) -> list[tuple[str, float]]:
    """Return the finals of the runs of a cell."""
    return kind(cell.run.kind).finals(cell.run.fields, study.evaluation)


def shared_rate(cells: Sequence[Cell]) -> Iterator[Confound]:
    """Yield that all cells share a learning rate on the task, where they do."""
    rates = {cell.config.finetune_lr for cell in cells if cell.config.part("method").by_steps}
    if len(rates) == 1:
        text = (
            f"all cells share finetune_lr = {rates.pop():g}: a disadvantage for cells that need"
            " another learning rate"
        )
        yield Confound("learning rate", "", text)


def notes(study: Study, cells: Sequence[Cell], texts: Sequence[Text]) -> tuple[str, ...]:
    """Return sentences about the pre-trained runs, and how many parameters are trained."""
    pretrained = parents(cells)
    alike: dict[int, list[str]] = {}
    for cell in cells:
        if (n := sizes.finetuned(cell.config).trained) is not None:
            alike.setdefault(n, []).append(cell.label)
    each = [
        f"{n:,} in {found[0]!r}" + (f" and {len(found) - 1} more" if found[1:] else "")
        for n, found in alike.items()
    ]
    trained = [f"Parameters trained on the task: {listed(each)}"] if each else []
    return (*trained, *of_transformers.notes(study, pretrained, texts))


def parents(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return cells with the pre-trained run of each, without those that start from none."""
    return tuple(first for cell in cells if (first := before(cell)))


def with_final_tokens(plan: Plan) -> Plan:
    """Return a plan with the default of `[eval] final_tokens` that its pre-trained runs alone have,
    so that other studies can share them.
    """
    pretrained = parents(plan.cells)
    if not pretrained:
        return plan
    evaluation = plan.study.evaluation
    return held_out.measured(plan, held_out.final_tokens(pretrained, evaluation))
