"""Study files: what they mean, and that whatever is wrong in one is told with its line."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from ablate import metrics
from ablate.errors import AblateError, unknown
from ablate.plan import plan
from ablate.scaling.held_out import HELD_OUT
from ablate.study import Crossed, Study, Tune, TwoStage, find, load, split_seed, tables
from ablate.study.design import combinations, count
from ablate.study.levels import without_shared_folders
from ablate.study.source import Source
from ablate.study.values import field_value, label, number
from ablate.study.write import value, write

STUDIES = sorted(Path(__file__).parent.parent.glob("studies/*.toml"))

PLAIN = """\
name = "plain"
question = "Which?"
seeds = 2

[base]
d_model = 64
n_head = 2
tokens = "1M"

[factors]
topology = [
    1,
    "parallel",
]
n_layer = [2, 4]  # depth
"""


def read(tmp_path: Path, text: str) -> Study:
    file = tmp_path / "a.toml"
    file.write_text(text, encoding="utf-8")
    return load(str(file))


def test_a_plain_study_is_read_as_written(tmp_path: Path) -> None:
    study = read(tmp_path, PLAIN)
    assert (study.name, study.metric, study.goal, study.design, study.seeds) == (
        "plain",
        "loss",
        "min",
        "grid",
        (0, 1),
    )
    assert study.base == {"d_model": 64, "n_head": 2, "tokens": 1_000_000}
    assert study.factors == {
        "topology": {"serial": {"topology": "serial"}, "parallel": {"topology": "parallel"}},
        "n_layer": {"2": {"n_layer": 2}, "4": {"n_layer": 4}},
    }


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_of_the_project_loads_by_its_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent.parent)
    assert load(file.stem) == load(str(file.relative_to(Path.cwd())))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("20M", 20_000_000),
        ("40k", 40_000),
        ("0.2M", 200_000),
        ("4.02K", 4_020),  # 4.02 × 10³ is not a whole number in binary
        ("3e14", 300_000_000_000_000),
        (2e7, 20_000_000),
        ("1_000", 1000),
        ("0.5", 0.5),
        (".5K", 500),
        ("1.5T", 1_500_000_000_000),
        ("2G", 2_000_000_000),
        (3, 3),
        (0.25, 0.25),
    ],
)
def test_numbers(written: object, meant: float) -> None:
    found = number("n", written)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(("name", "word"), [("labels", "all"), ("grad_clip", "none")])
def test_fields_without_limit_have_a_word_for_it(name: str, word: str) -> None:
    assert field_value(name, word) == field_value(name, 0) == 0
    with pytest.raises(AblateError, match=f'or "{word}"'):
        field_value(name, "every")
    with pytest.raises(AblateError, match="lr = None"):
        field_value("lr", None)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "M",
        ".",
        "20 M M",
        "20m",
        "twenty",
        "1e9999",
        True,
        None,
        [1],
        float("nan"),
        float("inf"),
        10**400,
    ],
)
def test_no_numbers(written: object) -> None:
    with pytest.raises(AblateError, match=r"^n = "):
        number("n", written)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (1e6, "1e6"),
        (2.5e6, "2.5e6"),
        (1234560.0, "1.23456e6"),
        (1e20, "1e20"),
        (-2e5, "-2e5"),
        (12345.0, "12345.0"),
        (12345.5, "12345.5"),
        (3e-4, "0.0003"),
        (4.0, "4.0"),
        (20000000, "20000000"),
        ("1e6", "1e6"),
        ([1e6, 0.5], "[1e6, 0.5]"),
    ],
)
def test_labels_of_numbers_are_as_a_file_writes_them(written: object, shown: str) -> None:
    assert label(written) == shown
    assert not isinstance(written, float) or float(shown) == written


def test_named_levels_set_several_fields_and_a_ladder_waits_for_the_plan(tmp_path: Path) -> None:
    text = (
        PLAIN.replace("n_head = 2\n", "").replace("d_model = 64\n", "").split("[factors]")[0]
        + '[factors]\nsize = { params = ["0.1M", 1e6], aspect = 32, d_head = 32 }\n'
        '[factors.kv]\na = {}\n"b <i>" = { n_kv_head = 1 }\n'
    )
    assert read(tmp_path, text).factors == {
        "size": {
            "0.1M": {"params": 100_000, "aspect": 32, "d_head": 32},
            "1e6": {"params": 1_000_000, "aspect": 32, "d_head": 32},
        },
        "kv": {"a": {}, "b <i>": {"n_kv_head": 1}},
    }


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["/d/one/a", "/d/two/a", "/d/three/b"], ["one/a", "two/a", "three/b"]),
        (["~/x/a", "a.txt"], ["a", "a.txt"]),
        (["/x/a", "a"], None),
        (["/", "/b", "~/"], None),
        (["/p q/ x", "/b/(.*)/g/", "/d/e"], ["/p q/ x", "/b/(.*)/g/", "e"]),
    ],
)
def test_labels_of_paths(labels: list[str], short: list[str] | None) -> None:
    assert without_shared_folders(labels) == (short or labels)


def test_an_exclusion_means_the_label_first(tmp_path: Path) -> None:
    text = PLAIN.split("[factors]")[0] + "[factors.norm_of]\ndeep = { norm = 'pre' }\n"
    text += "pre = { norm = 'post' }\n[factors.depth]\na = {}\nb = { n_layer = 2 }\n"
    text += "[[exclude]]\nnorm_of = 'pre'\ndepth = 'b'\n"
    assert read(tmp_path, text).exclude == ({"norm_of": "pre", "depth": "b"},)


def test_levels_that_are_paths_have_the_shortest_ends_that_differ(tmp_path: Path) -> None:
    paths = ["/data/me/one/a.txt", "/data/me/two/a.txt", "austen"]
    text = PLAIN.split("[factors]")[0].replace('corpus = "austen"\n', "")
    text += f"[factors]\ncorpus = {paths}\nnorm = ['pre', 'post']\n"
    text += f"[[exclude]]\ncorpus = '{paths[1]}'\nnorm = 'post'\n"
    found = read(tmp_path, text)
    assert {name: one["corpus"] for name, one in found.factors["corpus"].items()} == {
        "one/a.txt": paths[0],
        "two/a.txt": paths[1],
        "austen": "austen",
    }
    assert found.exclude == ({"corpus": "two/a.txt", "norm": "post"},)


LEVELS = {"a": ["1", "2", "3"], "b": ["x", "y"], "c": ["p", "q"]}


@pytest.mark.parametrize(
    ("design", "within", "interactions", "expected"),
    [
        ("grid", [], [], "1xp 1xq 1yp 1yq 2xp 2xq 2yp 2yq 3xp 3xq 3yp 3yq"),
        ("grid", ["c"], [], "1xp 1yp 2xp 2yp 3xp 3yp 1xq 1yq 2xq 2yq 3xq 3yq"),
        ("one-factor", [], [], "1xp 2xp 3xp 1yp 1xq"),
        ("one-factor", ["b"], [], "1xp 2xp 3xp 1xq 1yp 2yp 3yp 1yq"),
        ("one-factor", [], [["a", "c"]], "1xp 2xp 3xp 1yp 1xq 2xq 3xq"),
        ("leave-one-out", ["a"], [], "1xp 1yp 1xq 2xp 2yp 2xq 3xp 3yp 3xq"),
    ],
)
def test_designs(
    design: str, within: list[str], interactions: list[list[str]], expected: str
) -> None:
    found = list(combinations(design, LEVELS, within, interactions))
    assert " ".join("".join(choice.values()) for choice in found) == expected
    assert count(design, LEVELS, within, interactions) == len(found)


def test_add_one_in_starts_from_the_model_without_any_part(tmp_path: Path) -> None:
    text = PLAIN.replace("seeds = 2", 'seeds = 2\ndesign = "add-one-in"')
    study = read(tmp_path, text)
    assert [list(levels) for levels in study.factors.values()] == [
        ["serial", "parallel"],
        ["2", "4"],
    ]
    assert [cell.label for cell in plan(study).cells] == [
        "baseline",
        "topology=parallel",
        "n_layer=4",
    ]


Wrong = tuple[str, str, int, list[str]]


def _seeds(keys: str, words: list[str], line: int = 3) -> Wrong:
    return "seeds = 2", f"seeds = {{ {keys} }}", line, words


def _size(keys: str, words: list[str], line: int = 15) -> Wrong:
    return "n_layer = [2, 4]", f"size = {{ {keys} }}", line, words


def _below(text: str, line: int, words: list[str]) -> Wrong:
    return "# depth", f"\n{text}", line, words


WRONG = [  # (what is replaced, by what, line, words of the message)
    ("seeds = 2", "sedes = 2", 3, ["'sedes'", "'seeds'"]),
    ("seeds = 2", "seeds = 0", 3, ["seeds = 0"]),
    ("seeds = 2", "seeds = [1, 1]", 3, ["seeds"]),
    ("seeds = 2", "seeds = [-1]", 3, ["2147483647"]),
    ("seeds = 2\n", "", 0, ["seeds is missing"]),
    _seeds("pilot = 5, resolution = 0.01", ["seeds.max is missing", "most seeds"]),
    _seeds("pilot = 5, resolutoin = 0.01, max = 30", ["key of seeds 'resolutoin'", "'resolution'"]),
    _seeds("pilot = 1, resolution = 0.01, max = 30", ["seeds.pilot = 1", "2"]),
    _seeds("pilot = 5, resolution = 0.01, max = 4", ["seeds.max = 4", "between pilot = 5"]),
    _seeds("pilot = 5, resolution = 0, max = 30", ["seeds.resolution = 0", "above 0"]),
    _seeds("pilot = 5, resolution = 'fine', max = 30", ["seeds.resolution = 'fine'", "number"]),
    _seeds("pilot = 2, resolution = 1, max = 90000", ["4 cells × 90,000 seeds"], line=10),
    _seeds("init = 8", ["seeds.data is missing", "batch order"]),
    _seeds("init = 1, data = 8", ["seeds.init = 1", "2"]),
    _seeds("init = 8, data = 1001", ["seeds.data = 1001", "1000"]),
    _seeds("init = 8, dta = 8", ["key of seeds 'dta'", "'data'"]),
    _seeds(
        "init = 8, data = 8, pilot = 5", ["seeds.pilot = 5", "cannot be split", "{ init, data }"]
    ),
    _seeds("init = 900, data = 90", ["4 cells × 81,000 seeds"], line=10),
    ("seeds = 2", 'seeds = 2\ndesign = "gird"', 4, ["'gird'", "'grid'", "one-factor"]),
    ("seeds = 2", 'seeds = 2\nwithin = ["n_layers"]', 4, ["'n_layers'", "'n_layer'"]),
    ("seeds = 2", 'seeds = 2\nwithin = ["n_layer", "topology"]', 4, ["nothing is left"]),
    ("seeds = 2", 'seeds = 2\ninteractions = [["n_layer", "topology"]]', 4, ["grid"]),
    ("seeds = 2", 'seeds = 2\nmetric = "los"', 4, ["'los'", "'loss'"]),
    ("seeds = 2", 'seeds = 2\nmetric = "loss@3"', 4, ["loss takes no number"]),
    ("seeds = 2", 'seeds = 2\nmetric = "probe_loss@0.4"', 4, ["probe.ratio", "probe_loss@0.15"]),
    ('name = "plain"', 'name = "../plain"', 1, ["name"]),
    ('"Which?"', '"\\u001b[2J"', 2, ["printable"]),
    ("d_model = 64", "d_modl = 64", 6, ["'d_modl'", "'d_model'"]),
    ("d_model = 64", 'd_model = "wide"', 6, ["d_model = 'wide'", "number"]),
    ("d_model = 64", "d_model = 0", 6, ["d_model = 0", "greater than or equal to 1"]),
    ("d_model = 64", "d_model = 1.5", 6, ["d_model = 1.5"]),
    ("d_model = 64", "lr = nan", 6, ["lr = nan", "a finite number", "1e30"]),
    ("d_model = 64", 'norm = "prey"', 6, ["norm level 'prey'", "'pre'", "peri"]),
    ("d_model = 64", "qk_norm = 2", 6, ["unknown qk_norm level '2'. Choices: "]),
    ("d_model = 64", "seed = 3", 6, ["seed", "`seeds`"]),
    ("d_model = 64", "steps = 100", 6, ["steps", "tokens_per_param"]),
    ("d_model = 64", "n_layer = 3", 6, ["n_layer", "both in [base] and in [factors]", "line 15"]),
    ("d_model = 64", "mask_mix = [0.8, 0.2]", 6, ["mask_mix"]),
    ("d_model = 64", "max_epochs = 0", 6, ["max_epochs = 0"]),
    ('tokens = "1M"\n', "", 5, ["no budget", "tokens", "flops"]),
    ('tokens = "1M"', 'tokens = "1M"\nflops = 3e14', 9, ["two budgets", "tokens and flops"]),
    ('tokens = "1M"', "tokens = -1", 8, ["above 0"]),
    ('"parallel"', '"paralel"', 13, ["topology level 'paralel'", "'parallel'"]),
    ('"parallel"', "true", 13, ["topology = true: name the level; choices: serial"]),
    ('"parallel"', '"serial"', 13, ["'serial' is listed twice"]),
    ('    "parallel",\n', "", 11, ["two levels"]),
    ("n_layer = [2, 4]", 'n_layer = [2, "2"]', 15, ["'2' is listed twice"]),
    ("n_layer = [2, 4]", "n_layers = [2, 4]", 15, ["'n_layers'", "'n_layer'"]),
    ("n_layer = [2, 4]", "n_layer = 4", 15, ["[base]"]),
    ("n_layer = [2, 4]", "n_layer = [2, false]", 15, ["n_layer = false"]),
    ("n_layer = [2, 4]", "n_layer = [2, 2000]", 15, ["n_layer = 2000", "1024"]),
    ("n_layer = [2, 4]", "heads = [2, 4]", 15, ["'heads'"]),
    ("n_layer = [2, 4]", "size = { params = [1e5, 1e6], aspect = 32 }", 15, ["without d_head"]),
    _size("params = [1e5, 1e6], aspect = 32, d_heads = 8", ["'d_heads'", "'d_head'"]),
    _size("params = [1e5, 1e6], aspect = 32, d_head = 8", ["d_model", "by size"], line=6),
    (
        "n_layer = [2, 4]",
        "[factors.norm]\na = { bias = 'all' }\nb = { bias = 'none' }",
        15,
        ["column"],
    ),
    (
        "n_layer = [2, 4]",
        "[factors.x]\na = { bias = 'all' }\nb = { bais = 'none' }",
        17,
        ["'bais'", "'bias'"],
    ),
    (
        "n_layer = [2, 4]",
        "[factors.x]\na = { bias = 'all' }\nb = { bias = 'some' }",
        17,
        ["bias level 'some'"],
    ),
    ("n_layer = [2, 4]", "[factors.x]\na = { bias = 'all' }\nb = 3", 17, ["table of fields"]),
    (
        "n_layer = [2, 4]",
        "[factors.x]\na = { topology = 1 }\nb = { topology = 2 }",
        15,
        ["two factors", "topology and x"],
    ),
    _below("[[exclude]]\nn_layr = 4", 17, ["'n_layr'", "'n_layer'"]),
    _below("[[exclude]]\nn_layer = 4\n\n[[exclude]]\ntopology = 7", 20, ["topology level '7'"]),
    _below("[[exclude]]", 16, ["everything"]),
    _below("[eval]\nlenghts = [1]", 17, ["'lenghts'", "'lengths'"]),
    _below("[eval]\nlengths = [0]", 17, ["lengths"]),
    _below("[eval]\nprobe = { ratio = [0, 2] }", 17, ["eval.probe.ratio = [0.0, 2.0]"]),
    _below("[eval]\nfinal_tokens = 0", 17, ["final_tokens", "greater than or equal to 1"]),
    _below("[eval]\ndownstream = ['era']", 17, ["'era'", "era_accuracy"]),
    _below("[eval]\nprobe = { mix = [1, 1, 0] }", 17, ["mix", "sum to 1"]),
    _below("[eval]\nprobe = { ratio = [0.1234567] }", 17, ["0.1234567", "six digits"]),
    _below("[match]\nby = 'd_mlp'", 16, ['params = "body"']),
    _below("[match]\nparams = 'body'\nby = 'steps'", 18, ["steps change no parameters"]),
    _below(
        "d_mlp = [8, 16]\n[match]\nparams = 'body'", 16, ["d_mlp varies d_mlp", "match by steps"]
    ),
    *(
        ("# depth", f"\n[tune]\n{keys}", line, words)
        for keys, line, words in [
            ("lr = [1e-4, 1e-2]\nper = 'cell'", 16, ["tune.points is missing", "log scale"]),
            ("lr = [1e-4, 1e-2]\npoints = 5", 16, ["tune.per is missing", "cells share"]),
            (
                "lr = [1e-4, 1e-2]\npoint = 5\nper = 'cell'",
                18,
                ["key of [tune] 'point'", "'points'"],
            ),
            ("lr = [1e-4, 1e-2]\npoints = 2\nper = 'cell'", 18, ["tune.points = 2", "3"]),
            (
                "lr = [1e-4, 1e-2]\npoints = 60\nper = 'cell'",
                18,
                ["tune.points = 60", "nearer than 10%"],
            ),
            (
                "lr = [1e-2, 1e-4]\npoints = 5\nper = 'cell'",
                17,
                ["tune.lr = [0.01, 0.0001]", "lower"],
            ),
            ("lr = [0, 1e-4]\npoints = 5\nper = 'cell'", 17, ["tune.lr = 0", "above 0"]),
            ("lr = [1e-4, 1e9]\npoints = 5\nper = 'cell'", 17, ["100"]),
            ("lr = [1e-4, 1e-2]\npoints = 5\nper = 'cel'", 19, ["'cel'", "'cell'", "study"]),
            (
                "lr = [1e-4, 1e-2]\npoints = 5\nper = ['topolgy']",
                19,
                ["factor in tune.per 'topolgy'", "'topology'"],
            ),
            ("lr = [1e-4, 1e-2]\npoints = 5\nper = []", 19, ["tune.per = []", '"study"']),
            (
                "lr = [1e-4, 1e-2]\npoints = 5\nper = 'cell'\nmetric = 'accuracy'\nseeds = 1",
                21,
                ["tune.seeds = 1", "2 or more"],
            ),
            (
                "lr = [1e-4, 1e-2]\npoints = 5\nper = 'cell'\nmetric = 'los'",
                20,
                ["metric 'los'", "'loss'"],
            ),
            (
                "lr = [1e-4, 1e-2]\npoints = 5\nper = 'cell'\nmetric = 'loss_at_length@8'",
                20,
                ["loss_at_length@8", "lengths measures"],
            ),
        ]
    ),
    _below("[fit]\ngroup = 'topolgy'", 17, ["factor in [fit] group 'topolgy'", "'topology'"]),
    _below(
        "[fit]\ngroup = 'topology'\nhold_out = 'biggest'",
        18,
        ["fit.hold_out = 'biggest'", "largest size"],
    ),
    _below("[report]\ndelta = -1", 17, ["report.delta = -1", "above 0"]),
    _below("[report]\ndelt = 1", 17, ["'delt'", "'delta'"]),
    _below("[report]\nsuccessive = ['topolgy']", 17, ["'topolgy'", "'topology'"]),
    _below("[report]\nsuccessive = ['topology']", 17, ["'topology'", "fewer than three"]),
    (
        "seeds = 2\n",
        "seeds = 2\nwithin = ['n_layer']\n[report]\nsuccessive = ['n_layer']\n",
        6,
        ["'n_layer'", "within"],
    ),
    _below(
        "[factors.size]\n0.1M = { d_model = 64 }\n1M = { d_model = 128 }",
        17,
        ["level '0' of size", '"0.1M"'],
    ),
    _below("[factors.size]\n0.1.5M = { d_model = 64 }\nb = {}", 16, ['"0.1.5M"']),
    _below("[factors.size]\ngpt2.small = { d_model = 64 }\nb = {}", 17, ['"gpt2.small"']),
    _below("[optimizer]\nlr = 3", 16, ["'optimizer'"]),
    _below("[parameters]\nlr = 3", 16, ["'parameters'", "[factors]"]),
    _below("[tune]\nlr = [1e-4, 1e-3, 1e-2]", 17, ["tune.lr = [0.0001, 0.001", "at most 2"]),
    _below("[factors.größe]\na = 1", 16, ["[factors.größe]", "quotation marks"]),
    ("[factors]", "[factors", 10, ["[factors:"]),
    ("n_layer = [2, 4]", "n_layer = [two, 4]", 15, ["n_layer = [two, 4]", "quotation marks"]),
    ("n_layer = [2, 4]", "n_embd = [32, 64]", 15, ["'n_embd'", "d_model", "Width"]),
    ("n_layer = [2, 4]", "epochs = [1, 2]", 15, ["'epochs'", "give tokens"]),
    ("n_layer = [2, 4]", "keep = ['none', 'final']", 15, ["'keep'", "belongs in [run]"]),
    _below("[eval]\nlr = 3", 17, ["'lr'", "[base]", "[tune]"]),
    _below("[eval]\nwithin = ['n_layer']", 17, ["'within'", "top of the file"]),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    WRONG,
    ids=[f"{old[:20]!r} → {new[:40]!r}" for old, new, *_ in WRONG],
)
def test_errors_name_their_line(
    tmp_path: Path, old: str, new: str, line: int, words: list[str]
) -> None:
    assert PLAIN.count(old) == 1
    with pytest.raises(AblateError) as error:
        read(tmp_path, PLAIN.replace(old, new))
    message = str(error.value)
    assert message.startswith(str(tmp_path / "a.toml") + (f", line {line}:" if line else ":"))
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_a_key_below_a_table_header_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """TOML reads what stands after [factors] as a part of it."""
    (line,) = (line for line in PLAIN.splitlines() if line.startswith("seeds"))
    with pytest.raises(AblateError, match=r"line \d+: seeds stands in \[factors\]"):
        read(tmp_path, PLAIN.replace(f"{line}\n", "").replace("[factors]", f"[factors]\n{line}"))


TUNE = "\n[tune]\nlr = [1e-4, 1e-2]\npoints = 5\nper = 'study'\n"


@pytest.mark.parametrize("by", ["d_mlp", "steps"])
def test_a_budget_that_match_would_undo_is_refused(tmp_path: Path, by: str) -> None:
    text = PLAIN.replace('tokens = "1M"\n', "").replace(
        "[2, 4]  # depth", f'[2, 4]\ntokens = ["1M", "2M"]\n[match]\nflops = true\nby = "{by}"'
    )
    with pytest.raises(AblateError, match=r"line 15: tokens .*flops"):
        read(tmp_path, text)
    assert read(tmp_path, 'within = ["tokens"]\n' + text).match
    assert read(
        tmp_path, text.replace("flops = true", 'params = "body"').replace("steps", "d_mlp")
    ).match


def test_a_rate_that_is_tuned_is_not_also_given(tmp_path: Path) -> None:
    with pytest.raises(AblateError, match=r"line 6: lr .*line 18"):
        read(tmp_path, PLAIN.replace("d_model = 64", "lr = 1e-3\nd_model = 64") + TUNE)
    with pytest.raises(AblateError, match=r"line 15: lr varies here, and is found by \[tune\]"):
        read(tmp_path, PLAIN.replace("n_layer = [2, 4]", "lr = [1e-3, 1e-2]") + TUNE)
    with pytest.raises(AblateError, match=r"line 15: speed sets lr"):
        read(
            tmp_path,
            PLAIN.replace(
                "n_layer = [2, 4]", "[factors.speed]\na = { lr = 1e-3 }\nb = { lr = 1e-2 }"
            )
            + TUNE,
        )


def test_crossed_seeds_are_every_pair_once(tmp_path: Path) -> None:
    study = read(tmp_path, PLAIN.replace("seeds = 2", "seeds = { init = 3, data = 1000 }"))
    assert study.crossed == Crossed(3, 1000) and study.two_stage is None
    pairs = list(product(range(3), range(1000)))
    assert [split_seed(seed) for seed in study.seeds] == pairs
    assert len(set(study.seeds)) == 3000 and max(study.seeds) < 1 << 31
    assert study.seed_fields(study.seeds[5]) == {"init_seed": 0, "data_seed": 5}
    assert study.seed_fields(2) == {}
    assert read(tmp_path, PLAIN).seed_fields(study.seeds[5]) == {}


def test_tune_fit_report_and_a_pilot_are_read(tmp_path: Path) -> None:
    tables = "\n[fit]\ngroup = 'topology'\nhold_out = 'largest size'\n[report]\ndelta = '1e-2'\n"
    study = read(
        tmp_path,
        PLAIN.replace("seeds = 2", "seeds = { pilot = 3, resolution = '5e-3', max = 9 }")
        + TUNE
        + tables,
    )
    assert (study.seeds, study.two_stage, study.reporting.delta) == (
        (0, 1, 2),
        TwoStage(0.005, 9),
        0.01,
    )
    assert study.tune == Tune(1e-4, 1e-2, 5, 3, ())
    assert study.fit and (study.fit.group, study.fit.hold_out) == ("topology", "largest size")
    for per, groups in (("'cell'", ("topology", "n_layer")), ("['n_layer']", ("n_layer",))):
        found = read(tmp_path, PLAIN + TUNE.replace("'study'", per)).tune
        assert found and found.per == groups


def test_a_study_may_hold_out_what_a_fit_accepts() -> None:
    assert set(get_args(tables.Held)) == set(HELD_OUT)


def test_designs_with_and_without_take_two_levels(tmp_path: Path) -> None:
    text = PLAIN.replace("seeds = 2", 'seeds = 2\ndesign = "leave-one-out"').replace(
        "[2, 4]", "[2, 4, 6]"
    )
    with pytest.raises(AblateError, match=r"line 16: n_layer has 3 levels"):
        read(tmp_path, text)


def test_a_line_is_found_in_arrays_tables_and_strings() -> None:
    text = (
        'a = 1\nb = [\n  [1],  # [x]\n  "two ] words",\n]\n[t."u v"]\nk = { n = 1, m = 2'
        " }\n[[e]]\nk = 1\n[[e]]\nk = 2\n"
    )
    source = Source(Path("s.toml"), text)
    lines = {
        1: [("a",)],
        2: [("b",)],
        3: [("b", 1)],
        4: [("b", "two")],
        6: [("t", "u v")],
        7: [("t", "u v", "k"), ("t", "u v", "k", "m")],
        9: [("e", 0, "k")],
        10: [("e", 1)],
        11: [("e", 1, "k")],
        0: [("nowhere",)],
    }
    for line, paths in lines.items():
        assert [source.line(*path) for path in paths] == [line] * len(paths)


def test_metrics_are_parsed_to_the_final_they_name(tmp_path: Path) -> None:
    assert metrics.final("probe_loss@0.4") == ("probe_loss", 0.4)
    assert metrics.final("loss") == ("loss", 0.0)
    masked = PLAIN.replace("n_head = 2", 'n_head = 2\nobjective = "masked"')
    study = read(tmp_path, masked.replace("seeds = 2", 'seeds = 2\nmetric = "era_accuracy"'))
    assert (study.goal, study.evaluation.downstream) == ("max", ("era_accuracy",))
    assert (
        read(tmp_path, masked.replace("seeds = 2", 'seeds = 2\nmetric = "probe_accuracy"')).metric
        == "probe_accuracy@0.15"
    )


def test_a_question_may_have_several_lines(tmp_path: Path) -> None:
    assert (
        read(tmp_path, PLAIN.replace('"Which?"', '"""\nWhich\n  one?"""')).question == "Which one?"
    )


def test_a_missing_study_names_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AblateError, match=r"no study file 'quickstrat'.*ablate new"):
        load("quickstrat")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "quickstart.toml").write_text(PLAIN)
    with pytest.raises(AblateError, match="did you mean 'quickstart'"):
        load("quickstrat")
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(AblateError, match="UTF-8"):
        load("bytes.toml")


def test_a_name_finds_the_file_in_studies_then_here_then_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find("quickstart")
    Path("quickstart.toml").touch()
    assert shipped.is_file() and find("quickstart") == Path("quickstart.toml")
    Path("studies").mkdir()
    Path("studies/quickstart.toml").touch()
    assert find("quickstart") == Path("studies/quickstart.toml")


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_written_study_reads_as_the_same(file: Path) -> None:
    import tomllib

    raw = tomllib.loads(file.read_text())
    assert tomllib.loads(write(raw)) == raw


def test_a_written_study_explains_its_small_tables() -> None:
    import tomllib

    raw = tomllib.loads(
        PLAIN.replace("seeds = 2", "seeds = { pilot = 3, resolution = 0.01, max = 9 }") + TUNE
    )
    text = write(raw)
    assert tomllib.loads(text) == raw
    assert "seeds = { pilot = 3, resolution = 0.01, max = 9 } # how many runs" in text
    assert re.search(
        r"# .* learning rates .*\n\[tune\]\nlr = .* # the lowest and the highest", text
    )


def test_hostile_names_and_values_are_written_as_they_are() -> None:
    import tomllib

    raw = {
        "name": "x",
        "question": 'a "b" \\ \x7f\x00\n é',
        "factors": {"t": {"a = [1]\n#": {"corpus": "'"}}},
        "exclude": [{"a b": 1e-9}],
    }
    assert tomllib.loads(write(raw)) == raw
    assert [value(text) for text in ("12", "1e-3", "20M", "serial", "[0.8, 0.1]", '"7"')] == [
        12,
        1e-3,
        "20M",
        "serial",
        [0.8, 0.1],
        "7",
    ]


def test_an_error_does_not_list_a_hundred_choices() -> None:
    """It names the nearest, and the command that lists all; few choices are listed."""
    many = [f"field_{k}" for k in range(100)] + ["d_model"]
    error = unknown("key", "dmodel", many, every="ablate factors")
    assert "d_model" in str(error) and "`ablate factors`" in str(error) and len(str(error)) < 200
    assert "a, b" in str(unknown("key", "dmodel", ["a", "b"], every="ablate factors"))
