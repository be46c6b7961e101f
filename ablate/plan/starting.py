"""Runs that start from given weights: the fields of the given model, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.components import CATALOGUE
from ablate.components.starting import blocks_of
from ablate.config import RunConfig
from ablate.errors import AblateError, written
from ablate.study import Fields, Study
from ablate.study.source import Source, located
from ablate.text import sources
from ablate.units import listed


@dataclass
class Starts:
    """The models that the runs of a study start from.

    Attributes:
        study: The study, with a table [start].
        locations: SHA-256 of given weights → their location.
    """

    study: Study
    locations: dict[str, str] = field(default_factory=dict)
    _found: dict[str, Any] = field(default_factory=dict)
    _by_hash: dict[str, Any] = field(default_factory=dict)
    # what is said of a model, and of the cells that take from it alike
    _lines: dict[str, None] = field(default_factory=dict)
    _fits: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    _drawn: dict[bool, list[str]] = field(default_factory=dict)

    def fields(self, named: Fields) -> Fields:
        """Return the fields of a run for those that its study sets: below them the given model's.

        Raises:
            AblateError: There is no such model.
        """
        given = self._source(named["start_from"])
        of_model = {**given.fields, **named}
        encodes = CATALOGUE["architecture"][of_model["architecture"]].encodes
        layers = {"n_layer": given.fields["n_layer"]}
        if encodes and (n := given.run.config.n_layer_encoder):
            layers = {"n_layer_encoder": n, **layers}
        for name, n in layers.items():
            if named.get(name, n) != n:
                raise AblateError(
                    f"{name} = {named[name]}: the given weights have {name} = {n}; remove it, and"
                    " leave blocks out with drop_blocks"
                )
        dropped = named.get("drop_blocks", ())
        stacks = dict(zip(("encoder", "decoder")[-len(layers) :], layers, strict=True))
        counts = {stack: layers[name] for stack, name in stacks.items()}
        for part in blocks_of("drop_blocks", dropped, counts):
            name = stacks[part.stack]
            layers[name] -= 1
            if not layers[name]:
                of = f" of the {part.stack}" if len(stacks) > 1 else ""
                raise AblateError(
                    f"drop_blocks = {list(dropped)}: the given weights have {name} ="
                    f" {counts[part.stack]}, and at least one block{of} has to be left"
                )
        n_ctx = of_model["n_ctx"]
        default = RunConfig.model_fields["batch_tokens"].default
        return {
            **given.fields,
            "tokenizer": given.tokenizer,
            "batch_tokens": max(1, default // n_ctx) * n_ctx,
            "start_hash": given.hash,
            **named,
            "start_from": given.path.name,
            **layers,
        }

    def n_vocab(self, named: Fields, n_tokenizer: int) -> int:
        """Return the vocabulary of a run, with the token of a mask.

        Raises:
            AblateError: The tokenizer has more tokens than the given model.
        """
        given = self._by_hash[named["start_hash"]]
        n: int = given.run.config.n_vocab
        # the tokenizer of a folder may have the objective's tokens, too
        own = named["tokenizer"] == given.tokenizer
        if not own and not given.run.config.part("corruption_tokens").added:
            raise AblateError(
                f"tokenizer = {written(named['tokenizer'])}: the given weights have tokens for"
                " hidden text in the tokenizer of their folder; remove it"
            )
        if n_tokenizer > n and not own:
            raise AblateError(
                f"tokenizer = {written(named['tokenizer'])}: it has {n_tokenizer:,} tokens, and"
                f" the given weights {n:,}"
            )
        return n

    def check(self, chosen: Mapping[str, str], config: Any) -> bool:
        """Check that given weights fit a run, and note what is said of them.

        Args:
            chosen: Factor → label of its level.
            config: The run.

        Returns:
            Whether the run depends on its seed: something is trained or drawn.

        Raises:
            AblateError: They do not; the message names the field.
        """
        from ablate.train import start  # a later module: `tests/test_structure.py` allows it

        if not config.part("start").given:
            return True
        objective = config.part("objective")
        if objective.corrupts:
            objective.check_given(config)
        fit = start.fit(self._by_hash[config.start_hash].run.config, config)
        label = ", ".join(f"{factor}={level}" for factor, level in chosen.items())
        said = (
            *([f"new, of random weights: {listed(fit.new, most=6)}"] if fit.new else []),
            *([f"not used of the given weights: {listed(fit.unused, most=6)}"] * bool(fit.unused)),
        )
        if said:
            self._fits.setdefault(said, []).append(label)
        drawn = bool(fit.new or 0 < config.prune_share < 1 or config.shuffle_heads)
        self._drawn.setdefault(bool(config.steps) or drawn, []).append(label)
        return bool(config.steps) or drawn

    def about(self) -> Iterator[str]:
        """Yield lines on what the runs start from, for the reader of the plan."""
        yield from self._lines
        for said, cells in self._fits.items():
            yield f"In {listed([repr(cell) for cell in cells], most=3)}: {'; '.join(said)}"
        if (same := self._drawn.get(False)) and len(self.study.seeds) > 1:
            yield (
                f"Every seed gives the same numbers in {listed([repr(c) for c in same], most=3)}:"
                " nothing is trained or drawn there. One seed is enough: differences are exact on"
                " the held-out text, and the report's intervals are for new text"
            )

    def _source(self, name: str) -> Any:
        if name not in self._found:
            from ablate.train import start  # a later module: `tests/test_structure.py` allows it

            table = "start" if "start_from" in self.study.base else "factors"
            key = "from" if table == "start" else "start_from"
            with located(Source(self.study.path, self.study.toml), table, key):
                path = sources.absolute(name, self.study.path.parent)
                self._found[name] = found = start.source(path)
            self.locations[found.hash] = str(path)
            self._by_hash[found.hash] = found
            self._lines[f"Runs start from the weights of {name} (SHA-256 {found.hash[:12]})"] = None
        return self._found[name]
