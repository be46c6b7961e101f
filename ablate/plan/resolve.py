"""One combination of levels → its transformer: text, size ladder, budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ablate import images, text
from ablate.code import Code
from ablate.components import CATALOGUE
from ablate.config import RunConfig, implied, meaningful
from ablate.errors import AblateError
from ablate.kinds import Run, kind
from ablate.plan.ladder import solve
from ablate.plan.match import matched_d_mlp, matched_steps, measure
from ablate.plan.model import Resolved, Text
from ablate.plan.starting import Starts
from ablate.study import Fields, Study
from ablate.study.source import Source, located
from ablate.study.values import BUDGETS, LARGEST_BUDGET
from ablate.text import corpora, describe, pairs, tokenizers
from ablate.units import listed

# of English with a vocabulary of some thousand pieces; for estimates
BYTES_PER_TOKEN = 4.0
_TRIED = 1 << 26  # bytes of text up to which a tokenizer from a file is tried on all of it


@dataclass
class TransformerResolver:
    """Resolves the cells of one study; texts and steps of the ladder are looked up once."""

    study: Study
    # content hash → location
    sources: dict[str, str] = field(default_factory=dict)
    # hashes of corpus and tokenizer → held-out tokens, estimated
    held_out: dict[tuple[str, str], float] = field(default_factory=dict)
    # hash of a tokenizer from a file → bytes that its tokens spell per byte of text
    byte_coverage: dict[str, float] = field(default_factory=dict)
    # name of the corpus, tokenizer with its hyper-parameters → what was read
    texts: dict[tuple[str, str], Text] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    starts: Starts = field(init=False)
    kind = "transformer"  # of its runs
    _geometries: dict[tuple[Any, ...], Fields] = field(default_factory=dict)
    # hashes of corpus and tokenizer, n_ctx: pairs that were checked
    _pairs: set[tuple[str, str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.starts = Starts(self.study, self.sources)

    @property
    def about(self) -> tuple[str, ...]:
        """Lines on how the runs are made."""
        return tuple(self.starts.about())

    @property
    def code(self) -> tuple[Code, ...]:
        """The files and packages that levels from outside come from."""
        return self.study.use

    def levels(self, chosen: dict[str, str]) -> dict[str, str]:
        """Return `chosen` without the factors that have no effect with the other levels.

        An empty level is as in [base].
        """
        fields = self.fields(chosen)
        fields |= implied(fields)
        tables = self.study.factors
        return {
            factor: level
            for factor, level in chosen.items()
            if any(
                meaningful(name, fields)
                for name in tables[factor][level] or set().union(*tables[factor].values())
            )
        }

    def fields(self, chosen: dict[str, str]) -> Fields:
        """Return what [base] and the chosen levels set, budgets and ladder steps unresolved."""
        fields = dict(self.study.base)
        for factor, level in chosen.items():
            fields |= self.study.factors[factor][level]
        return self.starts.fields(fields) if self.study.starts else fields

    def resolve(self, chosen: dict[str, str], baseline: Run | None) -> Resolved:
        """Resolve a combination.

        Args:
            chosen: Factor → label of its level.
            baseline: What [match] matches it to; None for a baseline itself.

        Returns:
            The run with seed 0, and what its text is to it.

        Raises:
            AblateError: Fields contradict each other, or the text is too short.
        """
        fields = self.fields(chosen)
        budgets = {name: fields.pop(name) for name in BUDGETS if name in fields}
        if len(budgets) != 1:
            found = " and ".join(budgets) or "none"
            raise AblateError(
                f"a run has exactly one budget of {', '.join(BUDGETS)}; here: {found}"
            )
        fields |= self.of_data(fields)
        if "params" in fields:
            fields |= self._geometry(fields)
        run = Run(self.kind, kind(self.kind).check(fields))
        match = self.study.match if baseline else None
        if match and baseline and match.by == "d_mlp":
            run = run.with_(d_mlp=matched_d_mlp(run.config, baseline.config, match.quantity))
        run = run.with_(steps=_steps(run.config, *budgets.popitem()))
        if match and baseline and match.by == "steps":
            run = run.with_(steps=matched_steps(run.config, baseline.config))
        self._check_tuned(run)
        seeded = not self.study.starts or self.starts.check(chosen, run.config)
        return replace(self.resolved(run), seeded=seeded)

    def of_data(self, fields: Fields) -> Fields:
        """Return the fields that follow from the text that others name."""
        read = self._text(fields)
        return {
            "corpus": read.corpus.name,
            "corpus_hash": read.corpus.hash,
            "split": describe.split_phrase(read.corpus, describe.describe(read.corpus)),
            "tokenizer": read.tokenizer.name,
            "tokenizer_hash": read.tokenizer.hash,
            "n_vocab": self._n_vocab(fields, read),
        }

    def of_shape(self, fields: Fields) -> Fields:
        """Return what a size of the ladder needs to know besides [base]."""
        return {}

    def resolved(self, run: Run) -> Resolved:
        """Return a run with what its text is to it.

        Raises:
            AblateError: The text is too short.
        """
        config = run.config
        read = next(one for one in self.texts.values() if one.is_of(config))
        if config.part("objective").pairs:
            return self._of_pairs(run, read)
        longest = max(self.study.evaluation.lengths) * config.n_ctx
        text.check(read.corpus, read.tokenizer, config.n_ctx, round(longest))
        if config.part("document_mask").within:
            tokenizers.check_separator(read.tokenizer)
        held_out = self.held_out[config.corpus_hash, config.tokenizer_hash]
        coverage = self.byte_coverage.get(config.tokenizer_hash, 1.0)
        epochs = config.tokens / read.train_tokens
        return Resolved(run, epochs, held_out, coverage, estimated=read.estimated)

    def _n_vocab(self, fields: Fields, read: Text) -> int:
        """Return the vocabulary of a run: its tokenizer's, and [MASK], which is the last one."""
        n: int = read.tokenizer.n_vocab + objective_of(fields).special_tokens
        return self.starts.n_vocab(fields, n) if self.study.starts else n

    def _of_pairs(self, run: Run, read: Text) -> Resolved:
        """Return a run on pairs, each of which takes a row of n_ctx tokens."""
        config, corpus = run.config, read.corpus
        checked = (corpus.hash, read.tokenizer.hash, config.n_ctx)
        if checked not in self._pairs:  # once for all cells
            pairs.check(text.of(corpus, read.tokenizer), corpus.name, config.n_ctx)
            self._pairs.add(checked)
        n = config.steps * config.batch_size
        held_out = corpus.n_held_out_documents * config.n_ctx
        return Resolved(run, n / corpus.n_train_documents, held_out)

    def _check_tuned(self, run: Run) -> None:
        """Try a tuned field that a component declares at all values of its ladder.

        Raises:
            AblateError: The component refuses one of them, or its size depends on the field.
        """
        tune = self.study.tune
        if not tune or tune.field not in run.fields or not CATALOGUE[tune.field].field:
            return
        made = [
            Run(run.kind, kind(run.kind).check({**run.fields, tune.field: value}))
            for value in tune.ladder
        ]
        if len({one.cost.params for one in made}) > 1:
            location = Source(self.study.path, self.study.toml).where("tune", tune.field)
            raise AblateError(
                f"{location}: {tune.field} decides the number of parameters, and [tune] compares"
                f" runs of one size; make {tune.field} a factor"
            )

    def _text(self, fields: Fields) -> Text:
        """Return the text that fields name; its tokens are counted where max_epochs is set."""
        corpus, tokenizer = (
            fields.get(name) or RunConfig.model_fields[name].default
            for name in ("corpus", "tokenizer")
        )
        named = corpus, tokenizers.located(tokenizer, fields)
        if named not in self.texts:
            source, root = Source(self.study.path, self.study.toml), self.study.path.parent
            with located(source, "base" if "corpus" in self.study.base else "factors", "corpus"):
                _check_no_images(corpus, fields)
                found = corpora.find(corpus, root, self.study.reading)
            with located(
                source, "base" if "tokenizer" in self.study.base else "factors", "tokenizer"
            ):
                info = tokenizers.describe(tokenizer, found, root, fields)
            self.sources |= {found.hash: found.location, info.hash: info.location}
            given = info.location in ("byte", "tokens")
            tried = (
                not given
                and not info.location.startswith("bpe:")
                and not found.holds_tokens
                and found.n_bytes <= _TRIED
            )
            if tried:
                self.byte_coverage[info.hash] = text.byte_coverage(found, info)
            per_token = (
                found.token_bytes
                if found.holds_tokens
                else 1
                if info.location == "byte"
                else BYTES_PER_TOKEN
            )
            self.held_out[found.hash, info.hash] = found.n_held_out_bytes / per_token
            known = self.study.max_epochs is not None or given or text.counted(found, info)
            train_tokens = found.n_train_bytes / BYTES_PER_TOKEN
            held_out = self.held_out[found.hash, info.hash]
            if known:
                train_tokens, held_out = text.n_train(found, info), text.n_held_out(found, info)
            self.texts[named] = Text(found, info, train_tokens, held_out, not known)
        return self.texts[named]

    def _geometry(self, fields: Fields) -> Fields:
        """Take a step of the size ladder out of `fields` and return the shape that it stands for.

        The shape is the same for all levels of other factors but the activation, which decides the
        default width of the MLP.
        """
        params, aspect, d_head = (fields.pop(name) for name in ("params", "aspect", "d_head"))
        reference = dict(self.study.base) | self.of_shape(fields)
        if "activation" in fields:
            reference["activation"] = fields["activation"]
        step = (params, aspect, d_head, reference.get("activation"))
        if step not in self._geometries:
            self._geometries[step] = solve(
                params, aspect, d_head, {k: v for k, v in reference.items() if k not in BUDGETS}
            )
        return self._geometries[step]


def _check_no_images(corpus: str, fields: Fields) -> None:
    """Refuse a set of images as a text."""
    if corpus in images.NAMED or corpus.endswith(".npz"):
        row = CATALOGUE["objective"]
        those = listed([name for name in row.names if row[name].images], "or")
        raise AblateError(
            f"corpus = {corpus!r} is a set of images, and objective = {objective_of(fields).name!r}"
            f" reads text: models of images have objective = {those}"
        )


def objective_of(fields: Fields) -> Any:
    """Return the objective that fields name, or the default."""
    default = RunConfig.model_fields["objective"].default
    return CATALOGUE["objective"][fields.get("objective", default)]


def _steps(config: RunConfig, budget: str, amount: float) -> int:
    """Return the optimiser steps that come nearest to the budget.

    Raises:
        AblateError: The budget is less than one step, or far too large.
    """
    tokens = {
        "tokens": lambda: amount,
        "tokens_per_param": lambda: amount * measure(config, "total"),
        "flops": lambda: amount / (3 * measure(config, "flops")),
    }[budget]()
    steps = round(tokens / config.batch_tokens)
    if amount == 0 and not config.part("start").given:
        raise AblateError(
            f"{budget} = 0: start = {config.start!r} has random weights, which are trained first;"
            f" give {budget} above 0"
        )
    if steps < 1 and not (amount == 0 and config.part("start").given):
        raise AblateError(
            f"{budget} = {amount:g} is less than one step of batch_tokens = {config.batch_tokens};"
            " raise one or lower the other"
        )
    if steps >= 1 << 38 or steps * config.batch_tokens > LARGEST_BUDGET["tokens"]:
        raise AblateError(
            f"{budget} = {amount:g} would take {steps:.3g} steps, which is too many for a run"
        )
    return steps
