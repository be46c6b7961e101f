"""Plans: cells, strata, contrasts, budgets, matching and identity, against cases worked by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.kinds import Cost, Fields
from ablate.kinds.transformer import Transformer
from ablate.plan import Decision, Plan, decide, plan
from ablate.plan.ladder import solve
from ablate.plan.match import mismatch
from ablate.plan.price import price
from ablate.plan.tiny import tiny
from ablate.study import Study, load

STUDIES = [  # of transformers
    file
    for file in sorted(Path(__file__).parent.parent.glob("studies/*.toml"))
    if not load(str(file)).command
]
HEAD = 'name = "t"\nquestion = "?"\n'


@pytest.fixture
def study(tmp_path: Path):
    """Text below the two first lines of a study file → the study."""

    def read(text: str) -> Study:
        file = tmp_path / "t.toml"
        file.write_text(HEAD + text)
        return load(str(file))

    return read


@pytest.fixture
def planned(study):
    """Lines below [factors], of [base] and above it → the plan; the budget is `tokens`."""

    def read(factors: str, base: str = "", top: str = "", tokens: str = '"1M"') -> Plan:
        return plan(
            study(f"seeds = 1\n{top}\n[base]\n{base}\ntokens = {tokens}\n[factors]\n{factors}\n")
        )

    return read


def confounds_of(made: Plan) -> list[tuple[str, str, str, str]]:
    """(family, level, cell, baseline) of each contrast."""
    return [(one.family, one.level, one.cell, one.baseline) for one in made.contrasts]


# -- designs, strata, contrasts --------------------------------------------------------------------


def test_a_grid_has_a_baseline_in_each_stratum_and_families_by_what_differs(planned) -> None:
    made = planned(
        'topology = [1, 5]\nn_layer = [2, 4]\nnorm = ["pre", "post"]', top='within = ["n_layer"]'
    )
    assert [(cell.label, cell.stratum) for cell in made.cells] == [
        (f"topology={topology}, n_layer={n_layer}, norm={norm}", f"n_layer={n_layer}")
        for n_layer in (2, 4)
        for topology in ("serial", "parallel")
        for norm in ("pre", "post")
    ]
    two, four = "topology=serial, n_layer=2, norm=pre", "topology=serial, n_layer=4, norm=pre"
    assert confounds_of(made) == [
        ("norm | n_layer=2", "post", "topology=serial, n_layer=2, norm=post", two),
        ("topology | n_layer=2", "parallel", "topology=parallel, n_layer=2, norm=pre", two),
        (
            "topology × norm | n_layer=2",
            "parallel × post",
            "topology=parallel, n_layer=2, norm=post",
            two,
        ),
        ("norm | n_layer=4", "post", "topology=serial, n_layer=4, norm=post", four),
        ("topology | n_layer=4", "parallel", "topology=parallel, n_layer=4, norm=pre", four),
        (
            "topology × norm | n_layer=4",
            "parallel × post",
            "topology=parallel, n_layer=4, norm=post",
            four,
        ),
    ]
    cell = made.cells[5]
    assert cell.levels == {"topology": "serial", "n_layer": "4", "norm": "post"}
    assert (cell.config.topology, cell.config.n_layer, cell.config.norm) == ("serial", 4, "post")


@pytest.mark.parametrize(
    ("design", "baseline"), [("leave-one-out", "rotary"), ("add-one-in", "rotary")]
)
def test_parts_are_taken_away_or_added_one_at_a_time(study, design: str, baseline: str) -> None:
    made = plan(
        study(
            f'seeds = 1\ndesign = "{design}"\n[base]\ntokens = "1M"\n[factors]\nposition ='
            ' ["rotary", "learned"]\nqk_norm = ["rmsnorm", "none"]\nbias = ["none", "all"]\n'
        )
    )
    first = made.cells[0].config
    assert first.position == baseline
    differing = [
        {
            name
            for name in type(first).model_fields
            if getattr(cell.config, name) != getattr(first, name)
        }
        for cell in made.cells[1:]
    ]
    assert differing == [{"position"}, {"qk_norm"}, {"bias"}]
    # one question: which part matters
    assert [one.family for one in made.contrasts] == ["parts"] * 3
    assert [one.factor for one in made.contrasts] == ["position", "qk_norm", "bias"]
    assert price(made).largest_family == 3
    assert {one.baseline for one in made.contrasts} == {"baseline"}


def test_interactions_are_families_of_their_own(planned) -> None:
    made = planned(
        'topology = [1, 2, 5]\nnorm = ["pre", "post"]\nbias = ["all", "none"]',
        top='design = "one-factor"\ninteractions = [["topology", "norm"]]',
    )
    assert Counter(one.family for one in made.contrasts) == {
        "topology": 2,
        "norm": 1,
        "bias": 1,
        "topology × norm": 2,
    }
    assert [cell.label for cell in made.cells][-2:] == [
        "topology=no-attention-skip, norm=post",
        "topology=parallel, norm=post",
    ]


def test_a_factor_without_meaning_at_a_level_multiplies_no_cells(planned) -> None:
    made = planned(
        (
            'objective = ["causal", "masked"]\nmask_ratio = [0.15, 0.4]\n'
            'mask_kind = ["token", "span"]'
        ),
        base='corpus = "sotu"',
        top='metric = "era_accuracy"',
    )
    assert [cell.levels for cell in made.cells] == [
        {"objective": "causal"},
        *(
            {"objective": "masked", "mask_ratio": r, "mask_kind": k}
            for r in ("0.15", "0.4")
            for k in ("token", "span")
        ),
    ]
    assert [(one.factor, one.level) for one in made.contrasts] == [
        ("objective", "masked"),
        ("objective × mask_kind", "masked × span"),
        ("objective × mask_ratio", "masked × 0.4"),
        ("objective × mask_ratio × mask_kind", "masked × 0.4 × span"),
    ]


def test_excluded_cells_are_named_and_not_trained(study) -> None:
    text = (
        'seeds = 1\nwithin = ["n_layer"]\n[base]\ntokens = "1M"\n[factors]\ntopology = [1,'
        ' "no-skip"]\nn_layer = [2, 4]\n[[exclude]]\ntopology = {topology}\nn_layer = 4\n'
    )
    made = plan(study(text.replace("{topology}", '"no-skip"')))
    assert [cell.label for cell in made.cells] == [
        "topology=serial, n_layer=2",
        "topology=no-skip, n_layer=2",
        "topology=serial, n_layer=4",
    ]
    assert made.excluded == ("topology=no-skip, n_layer=4",)
    with pytest.raises(AblateError, match=r"line 10: .* n_layer=4 without"):
        plan(study(text.replace("{topology}", "1")))


def test_arms_scored_on_other_held_out_tokens_are_named(study, planned) -> None:
    made = planned("n_ctx = [256, 512, 384]", base="batch_tokens = 3072")
    assert [one.cell for one in made.confounds if one.kind == "held-out text"] == ["n_ctx=384"]
    text = (
        'seeds = 1\nmetric = "bits_per_byte"\n[base]\ntokens = "1M"\n[factors]\ntokenizer ='
        ' ["byte", "bpe:512"]\n'
    )
    assert [one.cell for one in plan(study(text)).confounds if one.kind == "held-out text"] == [
        "tokenizer=bpe:512"
    ]


def test_runs_come_seed_after_seed_with_whole_pairs_early(study) -> None:
    made = plan(study('seeds = [7, 3]\n[base]\ntokens = "1M"\n[factors]\ntopology = [1, 2, 5]\n'))
    cells = [cell.label for cell in made.cells]
    assert [(run.config.seed, run.cell) for run in made.runs] == [
        (seed, cell) for seed in (7, 3) for cell in cells
    ]
    assert {run.role for run in made.runs} == {"compare"}
    assert all(cell.config.seed == 0 for cell in made.cells)


def test_levels_that_are_one_configuration_share_their_runs(study) -> None:
    made = plan(
        study(
            'seeds = 3\n[base]\ntokens = "1M"\n[factors.heads]\na = { n_head = 4 }\n"a again" = {'
            " n_head = 4, n_kv_head = 4 }\n"
        )
    )
    assert len(made.runs) == 6
    assert price(made).runs == len({run.run.key for run in made.runs}) == 3
    assert [one.cell for one in made.confounds if one.kind == "same configuration"] == [
        "heads=a again"
    ]


# -- budgets ---------------------------------------------------------------------------------------


def test_tokens_become_steps(study) -> None:
    made = plan(
        study(
            'seeds = 2\n[base]\nbatch_tokens = 1024\nn_ctx = 64\n[factors]\ntokens = ["0.2M",'
            ' "1M"]\n'
        )
    )
    assert [cell.config.steps for cell in made.cells] == [195, 977]  # 195.3 and 976.6
    assert price(made).tokens == 2 * (195 + 977) * 1024


def test_an_unknown_cost_enters_no_sum(study, monkeypatch: pytest.MonkeyPatch) -> None:
    stated, known = Transformer.cost, {"attention", "rnn"}

    def cost(self: Transformer, fields: Fields) -> Cost:
        return stated(self, fields) if fields["mixer"] in known else Cost()

    monkeypatch.setattr(Transformer, "cost", cost)

    def made() -> Plan:
        factor = 'mixer = ["attention", "rnn"]'
        return plan(study(f'seeds = 3\n[base]\ntokens = "1M"\n[factors]\n{factor}\n'))

    assert any(one.kind == "parameters" for one in made().confounds)
    known.remove("rnn")
    some = price(made())
    first, second = made().cells
    assert (some.runs, some.unknown, some.tokens) == (6, 3, 3 * first.config.tokens)
    assert some.flops == 3 * sizes.train_flops(first.config)
    assert second.cost.params is None and first.cost.params
    assert not any(one.kind == "parameters" for one in made().confounds)
    known.clear()
    nothing = price(made())
    assert (nothing.runs, nothing.unknown) == (6, 6)
    assert (nothing.tokens, nothing.flops, nothing.memory) == (None, None, None)


def test_what_the_factors_themselves_set_is_no_confound(study) -> None:
    head = 'seeds = 1\n[base]\ntokens = "1M"\n[factors]\n'
    own = plan(
        study(head.replace('tokens = "1M"\n', "") + 'n_layer = [1, 2]\ntokens = ["1M", "2M"]\n')
    )
    assert {one.kind for one in own.confounds} == {"learning rate"}
    made = plan(study(head + 'n_layer = [1, 2]\nmixer = ["attention", "rnn"]\n'))
    larger = {one.cell for one in made.confounds if one.kind == "parameters"}
    assert larger == {"n_layer=1, mixer=rnn"}


def test_a_plan_says_which_factor_no_contrast_is_about(study) -> None:
    nested = 'mixer = ["attention", "rnn", "rnn-attention"]\nrnn_cell = ["gru", "lstm"]\n'
    head = 'seeds = 1\n{}[base]\ntokens = "1M"\n[factors]\n'
    (note,) = (one for one in plan(study(head.format("") + nested)).notes if "No contrast" in one)
    assert "levels of rnn_cell" in note
    first = nested.replace('"attention", "rnn",', '"rnn", "attention",')
    within = head.format('within = ["mixer"]\n') + nested.replace('"attention", ', "")
    for text in (head.format("") + first, within):
        assert not [one for one in plan(study(text)).notes if "No contrast" in one]


def test_tokens_per_param_count_all_parameters(study) -> None:
    made = plan(study("seeds = 1\n[base]\ntokens_per_param = 20\n[factors]\nn_layer = [1, 2]\n"))
    for cell in made.cells:
        assert (
            abs(cell.config.tokens - 20 * sizes.count(cell.config).params)
            <= cell.config.batch_tokens / 2
        )


def test_flops_are_three_forward_passes_a_token(study) -> None:
    # serial, one layer, d 64, 2 heads, 256 bytes: 4·64² + 2·64·256 weights, scores and values
    # 2·64·64, head 64·256
    made = plan(
        study(
            "seeds = 1\n[base]\nn_layer = 1\nd_model = 64\nn_head = 2\nn_ctx = 64\nflops ="
            ' "1e12"\n[factors]\nlr = [1e-3, 1e-2]\n'
        )
    )
    forward = 2 * (4 * 64**2 + 2 * 64 * 256 + 2 * 64 * 64 + 64 * 256)
    assert [cell.config.steps for cell in made.cells] == [round(1e12 / (3 * forward) / 8192)] * 2
    assert price(made).flops == pytest.approx(2e12, rel=0.05)


def test_named_levels_may_hold_different_budgets_but_one_each(study) -> None:
    text = 'seeds = 1\n[factors.budget]\nshort = { tokens = "1M" }\nlarge = { flops = "1e13" }\n'
    assert plan(study(text)).cells[0].config.steps == 122
    with pytest.raises(AblateError, match=r"'budget=large'.*tokens and flops"):
        plan(study(text.replace('flops = "1e13"', 'tokens = "1M", flops = "1e13"')))
    with pytest.raises(AblateError, match=r"cell 'budget=large'.*exactly one budget.*none"):
        plan(study(text.replace('flops = "1e13"', "n_layer = 2")))


def test_epochs_are_limited(study) -> None:
    text = (
        'seeds = 1\n[base]\ncorpus = "austen"\ntokens = "{}"\nmax_epochs = 1\n[factors]\nlr ='
        " [1e-3, 1e-2]\n"
    )
    made = plan(study(text.format("3M")))
    assert 0.8 < made.cells[0].epochs < 0.9  # nine tenths of 4.02 MB are trained on
    with pytest.raises(AblateError, match=r"line 7: .*max_epochs = 1 .* 1.11"):
        plan(study(text.format("4M")))


# -- the size ladder and [match] -------------------------------------------------------------------


@pytest.mark.parametrize("params", [1e5, 2.5e5, 6e5, 1.3e6, 2.8e6, 6e6, 1e8])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_the_ladder_reaches_its_sizes_near_its_aspect(params: float, activation: str) -> None:
    from ablate.config import RunConfig

    fields = solve(params, 32, 32, {"activation": activation})
    config = RunConfig(**fields, activation=activation)
    assert sizes.count(config).body == pytest.approx(params, rel=0.01)
    assert config.d_model == 32 * config.n_head and config.d_head == 32
    assert 32 / 1.5 < config.d_model / config.n_layer < 32 * 1.5


def test_a_size_has_one_shape_with_all_other_factors(planned) -> None:
    made = planned(
        ('topology = [1, "concat"]\nsize = { params = ["0.1M", "1M"], aspect = 32, d_head = 32 }'),
        top='within = ["size"]',
    )
    shapes = [
        (c.config.n_layer, c.config.d_model, c.config.n_head, c.config.d_mlp) for c in made.cells
    ]
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3]
    assert [one.cell for one in made.confounds if one.kind == "parameters"] == [
        "topology=concat, size=0.1M",
        "topology=concat, size=1M",
    ]


def test_a_size_stays_its_size_under_another_activation(planned) -> None:
    made = planned(
        'activation = ["gelu", "swiglu"]\n'
        'size = { params = ["0.1M", "1M"], aspect = 32, d_head = 32 }'
    )
    small, large, gated_small, gated_large = made.cells
    assert (small.config.n_layer, small.config.d_model) == (
        gated_small.config.n_layer,
        gated_small.config.d_model,
    )
    assert gated_small.cost.params_body == pytest.approx(small.cost.params_body, rel=0.01)
    assert gated_large.cost.params_body == pytest.approx(large.cost.params_body, rel=0.01)


@pytest.mark.parametrize("quantity", ["body", "total", "flops"])
def test_cells_are_matched_to_their_own_baseline(study, quantity: str) -> None:
    how = "flops = true" if quantity == "flops" else f'params = "{quantity}"'
    made = plan(
        study(
            'seeds = 1\nwithin = ["n_layer"]\n[base]\ntokens = "1M"\n[factors]\ntopology = [1,'
            f' "concat", 5]\nn_layer = [2, 4]\n[match]\n{how}\nby = "d_mlp"\n'
        )
    )

    def measure(label: str) -> int:
        counted = sizes.count(next(cell.config for cell in made.cells if cell.label == label))
        return {"body": counted.body, "total": counted.params, "flops": counted.flops_per_token}[
            quantity
        ]

    for contrast in made.contrasts:
        assert measure(contrast.cell) == pytest.approx(measure(contrast.baseline), rel=0.005)
    widths = {cell.label: cell.config.d_mlp for cell in made.cells}
    assert widths["topology=serial, n_layer=2"] == widths["topology=parallel, n_layer=2"] == 512
    assert widths["topology=concat, n_layer=2"] < 512
    assert widths["topology=concat, n_layer=2"] % 4 == 0
    assert not [one for one in made.confounds if one.kind == "parameters"]


def test_flops_are_matched_by_steps(planned) -> None:
    made = planned('topology = [1, "concat"]\n[match]\nflops = true\nby = "steps"', tokens='"4M"')
    serial, concat = (cell.config for cell in made.cells)
    assert concat.d_mlp == serial.d_mlp and concat.steps < serial.steps
    assert sizes.train_flops(concat) == pytest.approx(sizes.train_flops(serial), rel=0.002)


def test_the_mismatch_of_flops_is_that_of_the_whole_training(study) -> None:
    """At 20 tokens a parameter, a cell matched in FLOPs a token has other totals."""
    made = plan(
        study(
            'seeds = 1\n[base]\nd_mlp = 700\ntokens_per_param = 20\n[factors]\nnorm = ["pre",'
            ' "peri"]\nn_ctx = [256, 32]\n[match]\nflops = true\nby = "d_mlp"\n'
        )
    )
    configs = {cell.label: cell.config for cell in made.cells}
    off = {c.cell: mismatch(configs[c.cell], configs[c.baseline], "flops") for c in made.contrasts}
    for contrast in made.contrasts:
        ratio = sizes.train_flops(configs[contrast.cell]) / sizes.train_flops(
            configs[contrast.baseline]
        )
        assert off[contrast.cell] == pytest.approx(ratio - 1)
    assert off["norm=pre, n_ctx=32"] > 0.02, (
        "a shorter context costs less attention, and buys a wider MLP"
    )


# -- what cannot be compared, or does nothing ------------------------------------------------------


def test_a_masked_loss_may_be_compared_within_one_ratio(planned) -> None:
    made = planned(
        "mask_ratio = [0.15, 0.4]\ntopology = [1, 5]",
        base='objective = "masked"',
        top='within = ["mask_ratio"]',
    )
    assert len(made.contrasts) == 2


def test_confounds_name_unequal_parameters_and_a_shared_learning_rate(study) -> None:
    text = (
        'seeds = 1\n[base]\ntokens = "1M"\n{}[factors]\nactivation = ["gelu", "swiglu"]\nqk_norm ='
        ' ["none", "rmsnorm"]\n{}'
    )
    made = plan(study('design = "one-factor"\n' + text.format("d_mlp = 512\n", "")))
    assert [(one.kind, one.cell) for one in made.confounds] == [
        ("parameters", "activation=swiglu"),
        ("learning rate", ""),
    ]
    # a third matrix of d_model × d_mlp beside four of d_model² and two of those
    assert "+33." in made.confounds[0].text
    assert "lr = 0.001" in made.confounds[1].text
    made = plan(study('design = "one-factor"\n' + text.format("", "lr = [1e-3, 1e-2]\n")))
    assert made.confounds == ()


def test_flops_that_equal_parameters_hide_are_named(study) -> None:
    """Heads of twice the width double attention's FLOPs; the MLP gives up parameters."""
    text = (
        'seeds = 2\n[base]\ntokens = "1M"\nlr = 1e-3\n[factors]\nd_head = [32, 64]\n[match]\nparams'
        ' = "body"\nby = "d_mlp"\n'
    )
    made = plan(study(text))
    (found,) = [one for one in made.confounds if one.kind != "learning rate"]
    base, wide = (sizes.train_flops(cell.config) for cell in made.cells)
    assert (found.kind, found.cell) == (
        "FLOPs",
        "d_head=64",
    ) and f"{wide / base - 1:+.1%} training FLOPs" in found.text
    assert wide > 1.01 * base


# -- identity --------------------------------------------------------------------------------------


def test_text_and_vocabulary_are_part_of_a_run_and_paths_are_not(study, tmp_path: Path) -> None:
    text = (
        "seeds = 1\nwithin = ['objective']\n[base]\ncorpus = '{}'\ntokens = '1M'\n"
        "[factors]\nobjective = ['causal', 'masked']\ntopology = [1, 5]\n"
    )
    words = "It is a truth universally acknowledged. " * 1000
    (tmp_path / "words.txt").write_text(words)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "words.txt").write_text(words)
    made = plan(study(text.format("words.txt")))
    assert [cell.config.n_vocab for cell in made.cells] == [256, 256, 257, 257]
    assert {cell.config.corpus for cell in made.cells} == {"words"}
    config = made.cells[0].config
    assert set(made.sources) == {config.corpus_hash, config.tokenizer_hash}
    assert made.sources[config.corpus_hash] == str(tmp_path / "words.txt")
    elsewhere = plan(study(text.format("folder/words.txt")))
    assert [run.run.key for run in elsewhere.runs] == [run.run.key for run in made.runs]
    assert elsewhere.sources != made.sources
    (tmp_path / "words.txt").write_text(words + "And another.")
    assert {run.run.key for run in plan(study(text.format("words.txt"))).runs}.isdisjoint(
        run.run.key for run in made.runs
    )


TUNED = (
    'seeds = 2\nwithin = ["n_layer"]\n[base]\ntokens = "1M"\n[factors]\ntopology = [1, 2]\nn_layer'
    ' = [2, 4]\n[tune]\nlr = [1e-4, 1e-2]\npoints = 3\nseeds = 1\nper = ["topology"]\n'
)


def test_a_decision_on_a_rate_is_for_the_cells_of_its_group(study) -> None:
    given = study(TUNED)
    made = decide(plan(given), [Decision("topology=no-attention-skip, n_layer=2", "lr", 3e-3)], {})
    # 1e-3, the middle, is supposed until it is decided
    assert [cell.config.lr for cell in made.cells] == [1e-3, 3e-3] * 2
    compared = [run.config.lr for run in made.runs if run.role == "compare"]
    assert compared == [3e-3] * 4
    with pytest.raises(AblateError, match="'topology=parallel'"):
        decide(plan(given), [Decision("topology=parallel", "lr", 3e-3)], {})


def test_a_decision_on_seeds_is_for_the_cells_of_its_stratum(study) -> None:
    given = study(
        TUNED[: TUNED.index("[tune]")].replace(
            "seeds = 2", "seeds = { pilot = 2, resolution = 0.1, max = 9 }"
        )
    )
    made = decide(plan(given), [Decision("topology=serial, n_layer=4", "seeds", 4)], {})
    assert [(run.config.n_layer, run.config.seed) for run in made.runs] == [
        *((n_layer, seed) for seed in (0, 1) for n_layer in (2, 2, 4, 4)),
        *((4, seed) for seed in (2, 3) for _ in range(2)),
    ]
    assert price(made).pairs == 2


def test_crossed_seeds_pair_and_share_the_runs_of_plain_ones(study) -> None:
    plain = TUNED[: TUNED.index("[tune]")]
    made = plan(study(plain.replace("seeds = 2", "seeds = { init = 2, data = 3 }")))
    by_cell: dict[str, list[RunConfig]] = {}
    for run in made.runs:
        by_cell.setdefault(run.cell, []).append(run.config)
    labels = [[config.seed for config in configs] for configs in by_cell.values()]
    assert len(labels) == 4 and all(one == labels[0] for one in labels)
    for configs in by_cell.values():
        pairs = [(config.weights_seed, config.batches_seed) for config in configs]
        assert sorted(pairs) == [(init, data) for init in (0, 1) for data in (0, 1, 2)]
    assert len({run.run.key for run in made.runs}) == 24
    keys = {run.run.key for run in plan(study(plain)).runs}  # of seeds 0 and 1
    assert len(keys) == 8 and keys < {run.run.key for run in made.runs}
    assert price(made).pairs == 6
    small = tiny(study(plain.replace("seeds = 2", "seeds = { init = 3, data = 5 }")))
    assert len(plan(small).runs) == 4 * 4


def test_runs_that_tune_come_first_and_are_named_so(study) -> None:
    made = decide(
        plan(study(TUNED)), [], {"topology=serial, n_layer=2": [1e-4, 1e-3, 3.16e-3, 1e-2]}
    )
    assert [(run.cell[:15], run.config.lr, run.role) for run in made.runs] == [
        *(("topology=serial", lr, "tune") for lr in (1e-4, 1e-3, 3.16e-3, 1e-2)),
        *(("topology=no-att", lr, "tune") for lr in (1e-4, 1e-3, 1e-2)),
    ]
    # serial is refined already, the other is not
    assert [run.role for run in made.later] == ["tune"] * 2 + ["compare"] * 8


# -- tiny ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_tiny_study_asks_the_same_question_of_small_models(file: Path) -> None:
    given = load(str(file))
    small = tiny(given)
    assert tiny(given) == small
    assert small.name == f"{given.name}-tiny"
    shipped = {"corpus": "austen"} if given.base.get("corpus") == "debian-docs" else {}
    made, full = (
        plan(small),
        plan(dataclasses.replace(given, base=given.base | shipped, max_epochs=None)),
    )
    assert [(one.factor, one.stratum.count("=")) for one in made.contrasts] == [
        (one.factor, one.stratum.count("=")) for one in full.contrasts
    ]
    assert len({cell.run.key for cell in made.cells}) == len({cell.run.key for cell in full.cells})
    assert len(small.seeds) == min(2, len(given.seeds))
    assert max(cell.cost.params for cell in made.cells) < 500_000
    assert price(made).flops < 5e12  # minutes on two cores


def test_tiny_keeps_ratios_and_exclusions(study) -> None:
    small = tiny(
        study(
            "seeds = 3\n[base]\nn_head = 12\n[factors]\nd_model = [768, 384]\nn_layer = [12, 4,"
            ' 1]\ntokens = ["10M", "40M"]\n[[exclude]]\nn_layer = 1\nd_model = 384\n'
        )
    )
    # both still multiples of 24, so that heads of 12 turn pairs
    assert list(small.factors["d_model"]) == ["48", "24"]
    assert list(small.factors["n_layer"]) == ["4", "3", "1"]
    assert list(small.factors["tokens"]) == ["10200", "41000"]
    assert small.exclude == ({"n_layer": "1", "d_model": "24"},)
    made = plan(small)
    assert [cell.config.steps for cell in made.cells[:2]] == [20, 80]


def test_a_level_may_leave_everything_as_it_is(study):
    made = plan(
        study(
            "design = 'one-factor'\nseeds = 1\n[base]\ntokens = '1M'\nd_model ="
            " 64\n[factors.heads]\nh4 = { n_head = 4 }\nh1 = { n_head = 1 }\n[factors.keys]\nall ="
            " {}\none = { n_kv_head = 1 }\n"
        )
    )
    found = {cell.label: (cell.config.n_head, cell.config.n_kv_head) for cell in made.cells}
    assert found == {"baseline": (4, 4), "heads=h1": (1, 1), "keys=one": (4, 1)}


# -- held-out tokens of the final loss -------------------------------------------------------------


def _final(made: Plan) -> int | None:
    return made.study.evaluation.final_tokens


def test_the_final_loss_is_measured_on_what_three_percent_of_training_pays_for(study) -> None:
    """A forward pass is a third of a training token's time: a million takes 11.7M of training."""
    text = 'seeds = 1\n[base]\nn_layer = 1\ncorpus = "sotu"\ntokens = "{}"\n{}[factors]\n{}'
    two = "topology = [1, 5]\n"
    assert _final(plan(study(text.format("11.5M", "", two)))) is None
    assert _final(plan(study(text.format("11.8M", "", two)))) == 1 << 20
    # the mean of the cells, by FLOPs, whichever of them is short
    both = (
        'seeds = 1\nwithin = ["tokens"]\ndesign = "grid"\n[base]\nn_layer = 1\ncorpus = "sotu"\n'
        '[factors]\ntopology = [1, 5]\ntokens = ["{}", "23M"]\n'
    )
    assert _final(plan(study(both.format("1M")))) == 1 << 20
    assert _final(plan(study(both.format("0.1M")))) is None
    # masked models read it again for each probe ratio
    masked = 'objective = "masked"\n'
    assert _final(plan(study(text.format("11.8M", masked, two)))) is None
    assert _final(plan(study(text.format("23.6M", masked, two)))) == 1 << 20
    # a precision for GPUs
    assert _final(plan(study(text.format("1M", 'precision = "bfloat16"\n', two)))) == 1 << 20
    # what the file says
    said = text.format("20M", "", two) + "[eval]\nfinal_tokens = '100K'\n"
    assert _final(plan(study(said))) == 100_000
    assert _final(plan(tiny(study(said)))) == 2048
    # `tokens` are never more
    said = text.format("20M", "", two) + "[eval]\ntokens = '2M'\n"
    assert _final(plan(study(said))) is None


def test_a_text_that_is_read_whole_costs_no_more_than_it_has(study) -> None:
    """405,761 held-out bytes: 4.6M tokens of training pay for them."""
    text = (
        'seeds = 1\n[base]\nn_layer = 1\ncorpus = "austen"\ntokens = "{}"\n'
        '[factors]\nnorm = ["pre", "post"]\n'
    )
    assert _final(plan(study(text.format("4.4M")))) is None
    assert _final(plan(study(text.format("4.6M")))) == 1 << 20
    assert _final(plan(study(text.format("400M")))) == 1 << 20


def test_the_default_is_that_of_the_plan_before_any_decision(study) -> None:
    made = plan(
        study(
            'seeds = 2\n[base]\nn_layer = 1\ncorpus = "sotu"\ntokens = "20M"\n'
            '[factors]\ntopology = [1, 5]\n[tune]\nlr = [1e-3, 1e-2]\npoints = 3\nper = "cell"\n'
        )
    )
    assert _final(decide(made, [], {})) == _final(made) == 1 << 22
    assert "final_tokens" not in made.study.evaluation.model_fields_set
