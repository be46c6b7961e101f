"""Checks of all transformers of a study: keys without effect, metrics that do not compare."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ablate import metrics
from ablate.components import CATALOGUE
from ablate.config import meaningful
from ablate.errors import AblateError, written
from ablate.evaluation import LABELLED, PROBE_SPAN, Evaluation, copied, n_scored
from ablate.plan.model import Cell, Contrast, Text
from ablate.plan.where import where
from ablate.study import Study
from ablate.study.names import OF_TABLE
from ablate.study.source import Source
from ablate.text import counted, labels, of, share_read, sources
from ablate.text.readers import TABLES

_MASKING = ("objective", "mask_ratio", "mask_mix", "mask_kind", "mean_span", "corruption")
_TOKENS = ("tokenizer_hash",)
_TASK = ("task", "task_hash")
COMPARABLE = {  # metric → fields that two cells must share for the comparison to mean anything
    "loss": (*_MASKING, *_TOKENS),
    "bits_per_byte": _MASKING,
    "accuracy": (*_MASKING, *_TOKENS),
    "loss_at_length": (*_MASKING, *_TOKENS, "n_ctx"),
    "corrupted_loss": _TOKENS,
    "corrupted_accuracy": _TOKENS,
    "reconstruction_loss": ("patch",),
    "probe_loss": _TOKENS,
    "probe_accuracy": _TOKENS,
    "pseudo_perplexity": _TOKENS,
    "unigram_loss": (*_MASKING, *_TOKENS),
    "copy_loss": (*_TOKENS, "n_ctx"),
    "copy_loss_first": (*_TOKENS, "n_ctx"),
    "task_loss": _TASK,
    "task_accuracy": _TASK,
    "task_f1": _TASK,
    "task_chance": _TASK,
    "pretraining_loss": (*_MASKING, *_TOKENS),
    "forgetting": (*_MASKING, *_TOKENS),
}
# shares of the bytes of labelled texts, below which a tokenizer has few tokens for them, and none
LITTLE, NOTHING = 0.5, 0.01


def complaints(
    study: Study, cells: tuple[Cell, ...], compared: tuple[Contrast, ...], texts: Sequence[Text]
) -> Iterator[str]:
    """Yield what in a study has no effect, or would be misleading, with its line in the file."""
    source = Source(study.path, study.toml)
    yield from _idle(study, cells, source)
    yield from _lengths(study, cells, source)
    for metric, location in asked(study, source):
        for cell in cells:
            for why in _lacks(study, cell, metric):
                yield f"{location}: metric {metric!r} is not measured in cell {cell.label!r}: {why}"
    yield from _unmasked(study, cells, source)
    yield from _unprobed(study, cells, source)
    yield from _incomparable(study, cells, compared, source)
    yield from _broken(study, cells, texts, source)
    yield from _unread(study, texts, source)
    yield from _unencoded(study, texts, source)


def _unencoded(study: Study, texts: Sequence[Text], source: Source) -> Iterator[str]:
    """Yield complaints about tokenizers that encode next to nothing of `probe_csv`."""
    if not (named := study.evaluation.probe_csv):
        return
    found = labels.read(sources.absolute(named, study.path.parent))
    for one in texts:
        if (share := share_read(found.texts, one.tokenizer)) < NOTHING:
            yield (
                f"{source.where('eval', 'probe_csv')}: probe_csv = {named!r}: tokenizer"
                f" {one.tokenizer.name!r} encodes {share:.1%} of the bytes of its texts; give a"
                " tokenizer for this text"
            )


def _unread(study: Study, texts: Sequence[Text], source: Source) -> Iterator[str]:
    """Yield complaints about keys of [data] that concern none of the texts."""
    formats = {name for text in texts for name in text.corpus.formats}
    needed = {"dtype": {"tokens"}, "field": TABLES, "rows": TABLES, "pairs": TABLES}
    for key in study.reading.model_fields_set:
        needs = needed.get(key, formats - {"tokens"} if key != "format" else formats)
        if not formats & needs:
            what = " or ".join(sorted(needs)) or "text of your own"
            yield (
                f"{source.where('data', key)}: {key} has no effect: no corpus of this study is read"
                f" as {what}"
            )


def _idle(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about keys that change no run."""
    for name in study.base:
        if not any(meaningful(name, dict(cell.config)) for cell in cells):
            tables = {group: table for table, group in OF_TABLE.items()}
            table = tables.get(CATALOGUE[name].group, "base")
            yield (
                f"{source.where(table, name)}: {name} has no effect in any cell: it needs"
                f" {CATALOGUE[name].needed}"
            )
    yield from _replaced(study, cells, source)
    yield from _idle_evaluation(study, cells, source)


def _replaced(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about levels that no cell has, because another level implies a third one.

    A preset may bring more fields than the file has: these are no complaint.
    """
    tables = tomllib.loads(study.toml)
    base = tables.get("base", {})
    given = [("base", name, name, value, cells) for name, value in study.base.items()]
    given = [one for one in given if one[1] in base]
    for factor, levels in study.factors.items():
        in_file = tables.get("factors", {}).get(factor)
        for label, fields in levels.items():
            of_level = tuple(cell for cell in cells if cell.levels.get(factor) == label)
            own = in_file.get(label) if isinstance(in_file, dict) else None
            names = own if isinstance(own, dict) else (factor,)
            given += [
                ("factors", factor, name, value, of_level)
                for name, value in fields.items()
                if name in names
            ]
    for table, key, name, value, concerned in given:
        if name not in CATALOGUE or not CATALOGUE[name].choice:
            continue
        level = CATALOGUE[name].canonical(value)
        found = [_implied(cell.config, name, level) for cell in concerned]
        if found and all(found):
            yield (
                f"{source.where(table, key)}: {name} = {written(value)} has no effect: {found[0]};"
                " remove it"
            )


def _implied(config: Any, name: str, level: str) -> str:
    """Return which level of a run implies another one in the place of `level`, "" for none."""
    if getattr(config, name, level) == level:
        return ""
    for other, row in CATALOGUE.items():
        implied = config.part(other).implies.get(name, level) if row.choice else level
        if implied != level:
            return f"{other} = {config.part(other).name!r} implies {name} = {implied!r}"
    return ""


def _idle_evaluation(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about keys of [eval] by which the objective of no cell measures."""
    # --size tiny sets keys too, which the file may not have
    written_keys = tomllib.loads(study.toml).get("eval", {})
    objectives = [cell.config.part("objective") for cell in cells]
    without_source = {one.name for one in objectives if not one.has_source}
    masked = {one.name for one in objectives if one.masks}
    corrupted = {one.name for one in objectives if one.corrupts or one.regresses}
    pairs = {one.name for one in objectives if one.pairs}
    for key, concerned, needed in (
        ("lengths", without_source, "'causal' or 'masked'"),
        ("probe.ratio", masked | corrupted, "'masked', 'span', 'denoise' or 'mae'"),
        ("probe.mix", masked, "'masked'"),
        ("probe.kind", masked, "'masked'"),
        ("decoded", pairs, "'pairs'"),
        ("beams", pairs, "'pairs'"),
    ):
        asked = (study.evaluation, Evaluation())
        value, default = (functools.reduce(getattr, key.split("."), one) for one in asked)
        if value != default and not concerned and key.partition(".")[0] in written_keys:
            shown = list(value) if isinstance(value, tuple) else value
            yield (
                f"{source.where('eval', *key.split('.'))}: {key} = {written(shown)} has no effect:"
                f" no cell has objective = {needed}; remove it"
            )


def _lengths(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about contexts that are too short for what is scored."""
    location = source.where("eval", "lengths")
    for cell in cells:
        n_ctx = cell.config.n_ctx
        for factor in study.evaluation.lengths:
            context, scored = factor * n_ctx, n_scored(n_ctx)
            if abs(context - round(context)) > 1e-9 or context < 2:
                yield f"{location}: {factor:g} × n_ctx ({n_ctx}) is {context:g}, no valid length"
            if context < scored:
                yield (
                    f"{location}: {factor:g} × n_ctx ({n_ctx}) is shorter than the {scored}"
                    " tokens (a quarter of n_ctx) that are scored at every length"
                )


def asked(study: Study, source: Source) -> list[tuple[str, str]]:
    """Return the metrics that a study names, each with the line of its key."""
    named = [(study.metric, source.where("metric") or str(study.path))]
    if study.tune and study.tune.metric != study.metric:
        named.append((study.tune.metric, source.where("tune", "metric")))
    return named


def _unmasked(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about what cannot be masked or corrupted in a cell."""
    for cell in cells:
        config, objective = cell.config, cell.config.part("objective")
        if objective.name == "span":
            for ratio in study.evaluation.probe.ratio:
                try:
                    objective.check_spans(config, ratio, PROBE_SPAN, "probe.ratio", "its mean span")
                except AblateError as error:
                    yield f"{source.where('eval', 'probe', 'ratio')}: cell {cell.label!r}: {error}"
        if config.tokenizer != "tokens":
            continue
        if objective.corrupts and CATALOGUE["corruption"][config.corruption].permutes:
            key = f"corruption = {config.corruption!r}"
            yield (
                f"{where(study, cell.levels, key)}: cell {cell.label!r}: {key}: it is"
                f" unknown where sentences end in corpus {config.corpus!r}; give the tokenizer.json"
                " that made its tokens"
            )
        for key, kind, line in (
            ("mask_kind", config.mask_kind, where(study, cell.levels, "mask_kind = ")),
            ("probe.kind", study.evaluation.probe.kind, source.where("eval", "probe", "kind")),
        ):
            if objective.masks and CATALOGUE["mask_kind"][kind].needs_words:
                yield (
                    f"{line}: cell {cell.label!r}: {key} = {kind!r}: it is unknown where"
                    f" words begin in corpus {config.corpus!r}; give the tokenizer.json that made"
                    " its tokens"
                )


def _unprobed(study: Study, cells: tuple[Cell, ...], source: Source) -> Iterator[str]:
    """Yield complaints about linear probes that a cell's model cannot have."""
    for probe in study.evaluation.downstream:
        key = "probe_csv" if probe == LABELLED else "downstream"
        line = source.where("eval", key) or source.where("metric") or str(study.path)
        for cell in cells:
            model = cell.config.part("architecture")
            if cell.config.part("objective").pairs:
                yield (
                    f"{line}: cell {cell.label!r}: {probe} reads running text, and objective ="
                    " 'pairs' is trained on pairs; leave the probe out"
                )
            elif not model.probed:
                yield (
                    f"{line}: cell {cell.label!r}: {probe} is a linear probe on hidden states, and"
                    f" architecture = {model.name!r} gives logits alone; give its class a method"
                    " features, from tokens [B, T] to [B, T, width], or leave the probe out"
                )
            elif probe == LABELLED and not (
                model.of_blocks or cell.config.part("attention").causal
            ):
                yield (
                    f"{line}: cell {cell.label!r}: texts of different lengths are filled up, and"
                    f" architecture = {model.name!r} with attention = {cell.config.attention!r}"
                    " sees what fills them; leave probe_csv out"
                )
            if cell.config.tokenizer == "tokens":
                yield (
                    f"{line}: cell {cell.label!r}: tokenizer = 'tokens' cannot encode the texts"
                    f" of {probe}; give the tokenizer.json that made the tokens"
                )


def _lacks(study: Study, cell: Cell, text: str) -> Iterator[str]:
    """Yield why a metric is not measured in a cell."""
    metric, at = metrics.parse(text)
    config, objective = cell.config, cell.config.part("objective")
    if metric.task and cell.run.kind != "finetune":
        yield "it is of fine-tuned runs, and the study has no table [finetune]"
    if metric.name in ("probe_loss", "probe_accuracy", "pseudo_perplexity") and not objective.masks:
        yield "its objective is not 'masked'"
    if metric.name.startswith("corrupted_") and not objective.corrupts:
        yield "its objective is neither 'span' nor 'denoise'"
    if metric.name in ("exact_match", "error_rate") and not objective.pairs:
        yield "its objective is not 'pairs'"
    if metric.name.startswith("copy_loss") and not copied(config):
        short = objective.name == "causal"
        yield (
            f"n_ctx = {config.n_ctx} is too short"
            if short
            else f"its objective is {objective.name!r}"
        )
    if metric.name == "loss_at_length" and at != 1 and at not in study.evaluation.contexts(config):
        yield f"position = {config.position!r} is not defined beyond n_ctx = {config.n_ctx}"
    if metric.name == "bits_per_byte" and config.tokenizer == "tokens":
        yield "the text of its tokens is not known; give the tokenizer.json that made them"


def _incomparable(
    study: Study, cells: tuple[Cell, ...], compared: tuple[Contrast, ...], source: Source
) -> Iterator[str]:
    """Yield complaints about metrics that do not compare between cells."""
    location = source.where("metric") or str(study.path)
    by_label = {cell.label: cell for cell in cells}
    if study.tune and study.tune.field in _measured_with(study.tune.metric):
        yield (
            f"{source.where('tune', study.tune.field)}: {study.tune.field} decides what metric"
            f" {study.tune.metric!r} measures, which cannot choose it; {_instead(study.tune.field)}"
        )
    for contrast in compared:
        one, other = by_label[contrast.cell].config, by_label[contrast.baseline].config
        objectives = {getattr(each, "objective", "") for each in (one, other)}
        fields = (*_measured_with(study.metric), *comparable(study.metric, objectives))
        for field in dict.fromkeys(fields):
            if getattr(one, field, None) != getattr(other, field, None):
                varied = field.removesuffix("_hash")
                yield (
                    f"{location}: metric {study.metric!r} cannot be compared where {varied} varies"
                    f" ({contrast.cell!r} against {contrast.baseline!r});"
                    f" {_instead(varied, study.metric)}, or put the factor in within"
                )


def comparable(metric: str, objectives: Collection[str]) -> tuple[str, ...]:
    """Return the fields that runs must share for a metric to compare.

    Args:
        metric: Its name, perhaps with "@" and a number.
        objectives: Those of the runs. Where tokens are hidden, bits per byte are those of hidden
            bytes, and to hide bytes is another problem than to hide pieces of words.
    """
    name, _ = metrics.final(metric)
    fields: tuple[str, ...] = COMPARABLE.get(name, ())
    row = CATALOGUE["objective"]
    known = [row[one] for one in objectives if one in row.names]
    if name == "bits_per_byte" and any(one.masks or one.corrupts for one in known):
        fields = (*fields, *_TOKENS)
    return fields


def _measured_with(metric: str) -> tuple[str, ...]:
    """Return the fields that decide what a metric measures."""
    row, _ = metrics.parse(metric)
    # a metric of a user's own is a mean over the tokens that the loss is of
    fields = COMPARABLE["loss"] if row.made else COMPARABLE.get(row.name, ())
    return (*fields, *(own.name for own in row.fields))


def _broken(
    study: Study, cells: tuple[Cell, ...], texts: Sequence[Text], source: Source
) -> Iterator[str]:
    """Yield complaints about metrics of the user's own that do not work.

    They are tried with random logits, where a text's tokens are known without much work.
    """
    if not study.evaluation.own:
        return
    from ablate.train import own  # a later module: `tests/test_structure.py` allows it

    known = {text.tokenizer.hash: text for text in texts}
    tried = set()
    for cell in cells:
        config, text = cell.config, known[cell.config.tokenizer_hash]
        fields = [own.name for row in metrics.with_fields(None) for own in row.fields]
        given = tuple(getattr(config, name) for name in fields)
        kind = config.tokenizer_hash, config.n_ctx, config.precision, config.n_vocab, given
        if kind in tried or not counted(text.corpus, text.tokenizer):
            continue
        tried.add(kind)
        try:
            own.own_metrics(
                study.evaluation.own_names, config, of(text.corpus, text.tokenizer).spelling, "cpu"
            )
        except AblateError as error:
            yield f"{source.where('use')}: {error}"
            return


def _instead(varied: str, metric: str = "") -> str:
    if varied == "tokenizer" and metric == "bits_per_byte":
        return "name a downstream metric, such as 'era_accuracy'"
    if varied == "tokenizer":
        return "use metric = 'bits_per_byte'"
    if varied in ("mask_ratio", "mask_mix", "mask_kind"):
        return "name a probe or a downstream metric, such as 'probe_loss@0.15' or 'era_accuracy'"
    return "choose a metric that is measured in the same way in both"
