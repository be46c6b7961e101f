"""Components: what the catalogue refuses, fields of their own, and sizes that are counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from model_cases import ONE_FACTOR, ONE_FACTOR_IDS, small
from torch import Tensor, nn
from train_helpers import config, run

import ablate
from ablate import sizes
from ablate.components import CATALOGUE, Counts, Field, catalogue
from ablate.components.block import Serial
from ablate.components.mlp import Activation, Relu
from ablate.components.norm import Norm
from ablate.components.position import Position
from ablate.config import RunConfig, meaningful
from ablate.errors import AblateError
from ablate.kinds import kind
from ablate.kinds.transformer import run_of
from ablate.model import measure
from ablate.model.position import Position as PositionModule
from ablate.model.transformer import Transformer
from ablate.plan import plan
from ablate.study.parse import parse


class Slope(nn.Module):
    """A norm without a norm: one weight a channel and one matrix, which `Silent` does not state."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(pack, width))
        self.fan_in = width
        self.weight = nn.Parameter(torch.full((pack, width, width), torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        mixed = x.flatten(1, -2) @ self.weight.to(x.dtype).mT
        return mixed.view(x.shape) * self.gain.view(len(self.gain), *[1] * (x.ndim - 2), -1)


class Silent(Norm):
    """A norm that does not state its sizes."""

    module = f"{__name__}:Slope"


class Wrong(Norm):
    """A norm that states wrong sizes."""

    module = f"{__name__}:Slope"

    def sizes(self, config: Any, width: int) -> Counts:
        return Counts(params=width)


class Window(PositionModule):
    """A bias that hides keys further back than the run's `window`."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.window: int = config.window  # type: ignore[attr-defined]

    def bias(self, length: int) -> Tensor:
        index = torch.arange(length)
        far = (index[:, None] - index) >= self.window
        return torch.zeros(1, 1, length, length).masked_fill(far, -torch.inf)


class Windowed(Position):
    """A position encoding with a hyper-parameter of its own."""

    module = f"{__name__}:Window"
    fields = (Field("window", int, 8, "How far back a position attends."),)

    def check(self, config: Any) -> None:
        if config.window < 1:
            raise AblateError(f"window = {config.window} attends to nothing; give 1 or more")

    def sizes(self, config: Any, width: int) -> Counts:
        return Counts()


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Three levels, and what a test registers, for the time of a test."""
    rows = dict(CATALOGUE)
    before = {name: dict(levels) for name, levels in catalogue._LEVELS.items()}
    ablate.level("norm_kind", "silent", meaning="a norm", aliases=("quiet",))(Silent)
    ablate.level("norm_kind", "wrong", meaning="a norm")(Wrong)
    ablate.level("position", "windowed", meaning="a window")(Windowed)
    yield
    for registry, kept in ((CATALOGUE, rows), (catalogue._LEVELS, before)):
        registry.clear()
        registry.update(kept)  # type: ignore[arg-type]


# -- registering -----------------------------------------------------------------------------------


def clashing(*names: str) -> type[Activation]:
    fields = tuple(Field(name, float, 1.0, "A number.") for name in names)
    return type("Clashing", (Relu,), {"fields": fields})


@pytest.mark.parametrize(
    ("factor", "name", "made", "said"),
    [
        ("norm_kind", "silent", Silent, ["norm_kind", "'silent'", "test_components.Silent"]),
        ("norm_kind", "quiet", Silent, ["norm_kind", "'quiet'", "'silent'"]),
        ("topology", "5", Silent, ["topology", "norm_kind"]),
        ("activation", "relu", clashing("slope"), ["activation", "'relu'", "components.mlp.Relu"]),
        ("activation", "scaled", clashing("lr"), ["'scaled'", "'lr'", "Peak learning rate"]),
        ("activation", "scaled", clashing("window"), ["'window'", "How far back"]),
        ("activation", "scaled", clashing("Lr"), ["'scaled'", "'Lr'", "'lr'"]),
        ("activation", "scaled", clashing("Status"), ["'scaled'", "'Status'", "'status'"]),
        ("activation", "scaled", clashing("TOKENS"), ["'TOKENS'", "'tokens'"]),
        ("activation", "scaled", clashing("run_id"), ["'run_id'"]),
        ("activation", "scaled", clashing("a b"), ["'a b'", "letters"]),
        ("activation", "scaled", clashing("slope", "Slope"), ["'slope'", "'Slope'"]),
        ("activaton", "scaled", clashing("slope"), ["activaton", "activation"]),
        ("d_model", "wide", clashing("slope"), ["d_model", "activation"]),
    ],
)
def test_a_level_that_cannot_be_registered_is_refused(
    factor: str, name: str, made: Any, said: list[str]
) -> None:
    before = {name: row.names for name, row in CATALOGUE.items()}
    with pytest.raises(AblateError) as error:
        ablate.level(factor, name, meaning="a level")(made)
    assert all(word in str(error.value) for word in said) and "\n" not in str(error.value)
    assert {name: row.names for name, row in CATALOGUE.items()} == before


def test_a_registered_level_is_found_by_name_and_alias() -> None:
    assert ablate.factor("norm_kind").names[-2:] == ["silent", "wrong"]
    assert small(norm_kind="quiet").norm_kind == "silent"
    assert isinstance(small(norm_kind="quiet").part("norm_kind"), Silent)


def test_a_level_without_a_meaning_has_that_of_its_docstring() -> None:
    for doc, meaning in (
        ("A norm.", "a norm"),
        ("Divide by the\n    largest value.\n\n    Slow.", "divide by the largest value"),
        ("RMSNorm with a gain.", "RMSNorm with a gain"),
        ("y = x / |x|.", "y = x / |x|"),
    ):
        ablate.level("norm_kind", meaning, source="x")(type("Own", (Norm,), {"__doc__": doc}))
        assert CATALOGUE["norm_kind"][meaning].meaning == meaning
    with pytest.raises(AblateError, match="docstring"):
        ablate.level("norm_kind", "mute")(type("Mute", (Norm,), {}))


# -- fields of a component -------------------------------------------------------------------------


def test_a_components_own_field_is_a_field_of_runs_that_choose_it() -> None:
    plain, windowed = small(), small(position="windowed", window=5)
    assert small(window=5) == plain and "window" not in plain.model_dump()
    assert windowed.model_dump()["window"] == 5 and small(position="windowed").window == 8
    assert RunConfig(**windowed.model_dump(mode="json")) == windowed
    assert run_of(windowed).config == windowed


def test_a_components_own_field_enters_the_key_where_it_is_not_the_default() -> None:
    of = [run_of(small(position="windowed", **own)) for own in ({}, {"window": 8}, {"window": 5})]
    keys = [one.key for one in of]
    assert keys[0] == keys[1] != keys[2]
    assert "window" not in small(position="windowed").identity  # a later default changes no key
    assert of[2].with_(window=8).key == keys[0]


@pytest.mark.parametrize(("value", "said"), [("wide", "wide"), (0, "0 attends"), (2.5, "2.5")])
def test_a_wrong_value_of_an_own_field_is_refused(value: object, said: str) -> None:
    with pytest.raises(AblateError, match=said) as error:
        small(position="windowed", window=value)
    assert "window" in str(error.value)


def test_an_own_field_changes_what_is_trained() -> None:
    other_fields = {"position": "windowed", "steps": 5}
    (one,), (same,), (other,) = (
        run(config(**other_fields, **own)) for own in ({}, {"window": 8}, {"window": 1})
    )
    assert one.curve() == same.curve() != other.curve()


def test_a_study_may_vary_an_own_field(tmp_path: Path) -> None:
    study = """
        name = "windows"
        question = "How far back?"
        seeds = 1
        [base]
        position = "windowed"
        tokens = "16K"
        [factors]
        window = [8, "2K"]
    """
    made = plan(parse(study, tmp_path / "windows.toml"))
    assert [cell.label for cell in made.cells] == ["window=8", "window=2K"]
    assert [planned.run.fields["window"] for planned in made.runs] == [8, 2000]
    assert kind("transformer").fields["window"].default == 8
    with pytest.raises(AblateError, match="window"):
        plan(parse(study.replace("windowed", "rotary"), tmp_path / "windows.toml"))


class Wide(Silent):
    """A norm with as many parameters as a field of its own says."""

    fields = (Field("breadth", int, 1, "Parameters of a norm."),)

    def sizes(self, config: Any, width: int) -> Counts:
        return Counts(params=config.breadth)


@pytest.mark.parametrize(
    ("breadth", "said"),
    [(10**18, "parameters are too many"), (2**63, "breadth = 9223372036854775808: at most")],
)
def test_no_run_is_too_large_for_the_whole_numbers_of_the_database(
    tmp_path: Path, breadth: int, said: str
) -> None:
    ablate.level("norm_kind", "wide", meaning="a norm")(Wide)
    study = """
        name = "wide"
        question = "How wide?"
        seeds = 1
        [base]
        norm_kind = "wide"
        n_layer = 8
        tokens = "16K"
        [factors]
        breadth = [1, {}]
    """
    with pytest.raises(AblateError, match=f"cell 'breadth={breadth}': .*{said}"):
        plan(parse(study.format(breadth), tmp_path / "wide.toml"))


class Scaled(Norm):
    """A norm with a hyper-parameter of its own."""

    fields = (Field("alpha", int, 1, "What the stream is multiplied by."),)


class Fixed(Serial):
    """A topology that works with one norm alone."""

    implies: ClassVar = {"norm_kind": "scaled"}


class Plain(Serial):
    """A topology without norms."""

    implies: ClassVar = {"norm": "none"}


@pytest.mark.parametrize(
    ("one", "other", "alpha"),
    [
        # a level that another displaces leaves no field behind
        ({"topology": "plain", "norm_kind": "scaled", "alpha": 2}, {"topology": "plain"}, None),
        ({"alpha": 2, "norm_kind": "scaled", "norm": "none"}, {"norm": "none"}, None),
        # an implied level has its own fields
        ({"topology": "fixed"}, {"topology": "fixed", "norm_kind": "scaled", "alpha": 1}, 1),
        (
            {"topology": "fixed", "alpha": 3},
            {"topology": "fixed", "norm_kind": "scaled", "alpha": 3},
            3,
        ),
        # a level without meaning implies nothing
        ({"norm": "none", "norm_kind": "scaled"}, {"norm": "none", "norm_kind": "rmsnorm"}, None),
    ],
)
def test_implied_levels_decide_which_own_fields_a_run_has(
    one: dict[str, Any], other: dict[str, Any], alpha: int | None
) -> None:
    ablate.level("norm_kind", "scaled", meaning="a norm")(Scaled)
    ablate.level("topology", "fixed", meaning="a topology")(Fixed)
    ablate.level("topology", "plain", meaning="a topology")(Plain)
    a, b = RunConfig(**one), RunConfig(**other)
    assert a == b and run_of(a).key == run_of(b).key
    assert a.model_dump().get("alpha") == alpha
    assert RunConfig(**a.model_dump(mode="json")) == a


def test_levels_of_one_class_share_its_fields() -> None:
    class Doubled(Scaled):
        """Another norm with the same hyper-parameter."""

    ablate.level("norm_kind", "scaled", meaning="a norm")(Scaled)
    ablate.level("qk_norm", "scaled", meaning="a norm")(Scaled)
    ablate.level("norm_kind", "doubled", meaning="a norm")(Doubled)
    for chosen in ({"norm_kind": "scaled"}, {"qk_norm": "scaled"}, {"norm_kind": "doubled"}):
        assert RunConfig(**chosen, alpha=2).model_dump()["alpha"] == 2
        assert RunConfig(**chosen).model_dump()["alpha"] == 1
        assert meaningful("alpha", chosen)
    assert RunConfig(alpha=2) == RunConfig() and not meaningful("alpha", {})
    assert RunConfig(alpha=2, norm="none", norm_kind="doubled") == RunConfig(norm="none")


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [changed for _, _, _, changed in ONE_FACTOR], ids=ONE_FACTOR_IDS)
def test_what_is_counted_is_what_components_state(
    of: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and FLOPs of each part of a model."""
    # of bytes, which this test leaves out and which take two thirds of the time
    monkeypatch.setattr(measure, "_kept_per_token", lambda config: 0)
    stated, counted = sizes._stated(of), measure.parts(sizes._shape(of))
    for part in ("block", "body", "rest"):
        a, b = getattr(stated, part), getattr(counted, part)
        assert (a.params, a.flops) == (b.params, b.flops), part


def test_a_component_that_does_not_state_its_sizes_is_counted() -> None:
    of = small(norm_kind="silent", n_layer=3)
    model = Transformer(of)
    width = of.d_model
    assert sizes.count(of).params == model.n_params
    norms = 2 * of.n_layer + 1
    assert (
        model.n_params
        == Transformer(small(norm_kind="rmsnorm", n_layer=3)).n_params + norms * width**2
    )
    plain = sizes.count(small(norm_kind="rmsnorm", n_layer=3))
    assert sizes.count(of).flops_per_token == plain.flops_per_token + norms * 2 * width**2
    assert sizes.count(of).body - plain.body == norms * width**2
    wide = of.model_copy(update={"n_layer": 7, "n_vocab": 50, "d_mlp": 40})
    assert sizes.count(wide).params == Transformer(wide).n_params == sizes.params(wide)


def test_a_model_of_another_size_than_planned_is_refused() -> None:
    with pytest.raises(AblateError, match="were planned") as error:
        run(config(norm_kind="wrong"))
    said = str(error.value)
    of = config(norm_kind="wrong")
    assert f"{Transformer(of).n_params:,}" in said and f"{sizes.count(of).params:,}" in said
    assert "norm_kind = 'wrong'" in said
    (events,) = run(config(norm_kind="silent", steps=2))
    assert events.end["status"] == "complete"
