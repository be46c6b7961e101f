"""Parts of a user's own: plain modules equal what they replace, in packs too; what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import small, tokens
from test_train_step import STEPS, go, members
from train_helpers import config, run, text

import ablate
from ablate import outside, sizes
from ablate.code import of_text
from ablate.components import CATALOGUE, catalogue
from ablate.components.base import Component
from ablate.components.mlp import Activation
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Job
from ablate.kinds.transformer import run_of
from ablate.launch import messages
from ablate.launch.devices import Device
from ablate.launch.packs import capacity
from ablate.model import trial
from ablate.model.transformer import model_of
from ablate.model.trial import built
from ablate.plan import Plan, plan
from ablate.study.parse import parse
from ablate.train import compiled
from ablate.trying import tried

HEAD = """
import torch
from torch import nn
from ablate import Field, level
"""
PARTS = f"""{HEAD}
@level("activation", "squared", meaning="relu(x)²")
class Squared(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** 2

@level("activation", "squared-function", meaning="relu(x)²")
def squared(x):
    return torch.relu(x) ** 2

@level("norm_kind", "power", meaning="a norm with a power and a gain")
class Power(nn.Module):
    fields = (Field("power", float, 2.0, "Power of the norm."),)
    def __init__(self, width, power):
        super().__init__()
        self.gain, self.power = nn.Parameter(torch.ones(width)), power
    def forward(self, x):
        size = x.abs().pow(self.power).mean(-1, keepdim=True) + 1e-5
        return self.gain * x / size ** (1 / self.power)

@level("mlp", "paired", meaning="W_2 (sigmoid(a) · b), [a; b] = W_1 x")
class Paired(nn.Module):
    def __init__(self, config, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * config.d_mlp)
        self.down = nn.Linear(config.d_mlp, config.d_model)
    def forward(self, x):
        a, b = self.up(x).chunk(2, -1)
        return self.down(a.sigmoid() * b)

@level("mixer", "pool", meaning="the mean of the past")
class Pool(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)
    def forward(self, x):
        n = torch.arange(1, x.shape[-2] + 1, device=x.device)[:, None]
        return self.out(x.cumsum(-2) / n)

@level("score", "scaled", meaning="qᵀk with a learned scale")
class Scaled(nn.Module):
    def __init__(self, d_head):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(d_head ** -0.5))
    def forward(self, query, key):
        return query @ key.mT * self.scale

@level("position", "table", meaning="one vector a position")
class Table(nn.Module):
    def __init__(self, n_ctx, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(n_ctx, width) / 10)
    def embed(self, x):
        return x + self.table[: x.shape[-2]]

@level("position", "slopes", meaning="scores lowered by a learned slope · distance")
class Slopes(nn.Module):
    def __init__(self, n_head):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(n_head) / 4)
    def bias(self, distance):
        return -self.slope[:, None, None] * distance.abs()

@level("norm_kind", "of-torch", meaning="torch's layer norm")
class OfTorch(nn.LayerNorm):
    def __init__(self, width):
        super().__init__(width)

@level("topology", "sum", meaning="y = P2(x + A(x) + M(x))")
def both(x, A, M, P1, P2):
    return P2(x + A(x) + M(x))

@level("topology", "rezero", meaning="branches that start at 0")
class ReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.zeros(2))
    def forward(self, x, A, M, P1, P2):
        h = P1(x + self.share[0] * A(x))
        return P2(h + self.share[1] * M(h))

@level("schedule", "square", meaning="(1 − step/steps)²")
def square(step, steps, warmup):
    return (1 - step / steps) ** 2

@level("embedding", "factored", meaning="a narrow vector a token, and a matrix")
class Factored(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.narrow, self.wide = nn.Embedding(n_vocab, 4), nn.Linear(4, d_model, bias=False)
    def forward(self, tokens):
        return self.wide(self.narrow(tokens))

@level("optimiser", "torch-adamw", meaning="torch's AdamW")
class TorchAdamW(torch.optim.AdamW):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay)

@level("init", "half", meaning="half of 1/√fan_in")
def half(config, fan_in, ends_branch):
    return 0.5 * fan_in ** -0.5

class Model(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.embed = nn.Embedding(n_vocab, d_model)
        self.mix, self.head = nn.Linear(d_model, d_model), nn.Linear(d_model, n_vocab)
    def forward(self, tokens):
        x = self.embed(tokens)
        n = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.head(x + self.mix(x.cumsum(1) / n).tanh())

def bigrams(config):
    return nn.Sequential(nn.Embedding(config.n_vocab, 8), nn.Linear(8, config.n_vocab))
"""
MODELS = ["parts.py:Model", "parts.py:bigrams"]
CASES: list[dict[str, Any]] = [
    {"activation": "squared"},
    {"activation": "squared-function"},
    {"norm_kind": "power", "power": 3.0, "qk_norm": "rmsnorm"},
    {"mlp": "paired"},
    {"mixer": "pool"},
    {"score": "scaled"},
    {"position": "table"},
    {"position": "slopes", "dropout": 0.1},
    {"topology": "sum"},
    {"schedule": "square"},
    {"embedding": "factored"},
    {"init": "half"},
    {"architecture": MODELS[0]},
    {"architecture": MODELS[1]},
]


@pytest.fixture(autouse=True)
def parts(tmp_path: Path) -> Iterator[Path]:
    """A folder with the file, which is loaded; without it afterwards."""
    (tmp_path / "parts.py").write_text(PARTS)
    outside.find(["parts.py"], tmp_path, MODELS)
    yield tmp_path
    outside.use(())
    assert "squared" not in CATALOGUE["activation"].names and "power" not in CATALOGUE


# -- what a plain module computes ------------------------------------------------------------------


class BuiltIn(Activation):
    """relu(x)², as ablate's own levels are written."""

    def apply(self, x: Any) -> Any:
        return F.relu(x) ** 2


def test_a_plain_activation_equals_a_built_in_one_and_a_hand_written_mlp() -> None:
    found: list[Component] = []
    with catalogue.collecting(found.append):
        ablate.level("activation", "built-in", meaning="relu(x)²")(BuiltIn)
    catalogue.add(found[0])
    try:
        names = ("squared", "squared-function", "built-in")
        of = [built(small(activation=name, precision="float64"), 3, 5) for name in names]
        given = tokens(small(), 2)
        logits = [model(given) for model in of]
        torch.testing.assert_close(logits[0], logits[2], rtol=0, atol=1e-12)
        torch.testing.assert_close(logits[1], logits[2], rtol=0, atol=1e-12)
        mlp, x = of[0].blocks[0].mlp, torch.randn(2, 3, 4, 16, dtype=torch.float64)
        for k in range(2):
            hidden = x[k] @ mlp.hidden.weight[k].T + mlp.hidden.bias[k]
            by_hand = hidden.clamp(min=0).square() @ mlp.output.weight[k].T + mlp.output.bias[k]
            torch.testing.assert_close(mlp(x)[k], by_hand, rtol=0, atol=1e-12)
    finally:
        catalogue.remove(found[0])


def test_a_plain_score_of_products_is_dot_attention() -> None:
    plain, dot = (built(small(score=name, precision="float64")) for name in ("scaled", "dot"))
    assert plain.n_params == dot.n_params + plain.config.n_layer
    torch.testing.assert_close(plain(tokens(small())), dot(tokens(small())), rtol=0, atol=1e-6)


def test_a_norm_of_torch_is_layernorm() -> None:
    plain, ours = (built(small(norm_kind=name), 3, 5) for name in ("of-torch", "layernorm"))
    given = tokens(small(), 2)
    torch.testing.assert_close(plain(given), ours(given), rtol=0, atol=1e-5)
    assert plain.n_params == ours.n_params


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_packed_equals_solo_over_20_steps_in_float64(case: dict[str, Any]) -> None:
    own = [{"seed": 3, "lr": 3e-3}, {"seed": 4, "lr": 1e-2, "weight_decay": 0.5}]
    configs = [config(precision="float64", steps=20, **case, **one) for one in own]
    together = go(configs, 20)
    assert together.read(20)[0][-1, 0].max() < together.read(20)[0][0, 0].min()  # it learns
    for k, alone in enumerate(configs):
        solo = go([alone], 20)
        assert abs(together.read(20)[0][:, :, k] - solo.read(20)[0][:, :, 0]).max() < 1e-9
        for name, parameter in members(solo)[0].items():
            torch.testing.assert_close(members(together)[k][name], parameter, rtol=0, atol=1e-9)


def test_initial_values_are_the_modules_own_from_seed_and_name() -> None:
    of = small(mlp="paired")
    packed, solo = built(of, 3, 7), built(of, 7)
    one, other = (dict(model.named_parameters()) for model in (packed, solo))
    assert all(torch.equal(one[name][1], other[name][0]) for name in one)
    up = [one[f"blocks.{i}.mlp.member.up.weight"] for i in range(2)]
    assert not torch.equal(up[0], up[1]) and not torch.equal(up[0][0], up[0][1])
    assert up[0].abs().max() <= 16**-0.5  # uniform within 1/√fan_in: torch's own for nn.Linear
    state = torch.random.get_rng_state()
    built(of, 1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_matrices_of_a_plain_module_decay_and_vectors_do_not() -> None:
    step = go([config(mlp="paired")], 1)
    decayed = {name for name, p in step.model.named_parameters() if ".member." in name and p.decays}
    assert {name.rpartition(".")[2] for name in decayed} == {"weight"}
    before = step.optimiser.n_decayed
    assert before > sum(
        p[0].numel() for name, p in step.model.named_parameters() if name in decayed
    )


# -- planning: sizes, packs, keys ------------------------------------------------------------------

STUDY = """
name = "mine"
question = "Does it matter?"
use = ["parts.py"]
seeds = 2
design = "one-factor"
[base]
n_layer = 2
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 64
tokens = 640
[factors]
activation = ["gelu", "squared"]
mlp = ["dense", "paired"]
"""


def planned(folder: Path, text: str = STUDY) -> Plan:
    return plan(parse(text, folder / "mine.toml"))


def keys(made: Plan) -> dict[tuple[str, int], str]:
    return {(run.cell, run.run.seed): run.run.key for run in made.runs}


def test_keys_change_exactly_for_runs_of_an_edited_file(parts: Path) -> None:
    first = keys(planned(parts))
    (parts / "parts.py").rename(parts / "renamed.py")
    assert keys(planned(parts, STUDY.replace("parts.py", "renamed.py"))) == first
    (parts / "parts.py").write_text(f"{PARTS}# edited\n")
    edited = keys(planned(parts))
    assert edited.keys() == first.keys()
    assert {cell for cell, seed in first if first[cell, seed] == edited[cell, seed]} == {"baseline"}
    (parts / "parts.py").write_text(PARTS)
    assert keys(planned(parts)) == first
    plain = keys(
        planned(
            parts,
            STUDY.replace('use = ["parts.py"]\n', "")
            .replace('"squared"', '"relu"')
            .replace(', "paired"', "")
            .replace('mlp = ["dense"]\n', ""),
        )
    )
    assert plain["activation=gelu", 0] == first["baseline", 0]


def test_an_own_field_of_a_plain_module_is_varied_within_strata(parts: Path) -> None:
    factors = 'norm_kind = ["layernorm", "power"]\npower = [2, 4]\n'
    text = STUDY[: STUDY.index("activation")] + factors
    made = planned(parts, text.replace("seeds = 2", 'seeds = 2\nwithin = ["norm_kind"]'))
    assert [cell.config.model_dump().get("power") for cell in made.cells] == [None, 2.0, 4.0]


def test_sizes_are_those_of_the_modules(parts: Path) -> None:
    for cell in planned(parts).cells:
        assert cell.cost.params == model_of(cell.config).n_params
    plain, paired = small(), small(mlp="paired")
    own = 2 * 64 * 16 + 2 * 64 + 64 * 16 + 16
    assert sizes.count(paired).body - sizes.count(plain).body == 2 * (own - 2 * 64 * 16 - 64 - 16)
    flops = sizes.count(paired).flops_per_token - sizes.count(plain).flops_per_token
    assert flops == 2 * 2 * 16 * 64  # a third matrix in each of two blocks


ASKING = f"""{HEAD}
@level("mlp", "asking", meaning="an MLP with the run's activation")
class Asking(nn.Module):
    def __init__(self, width, d_mlp, activation, dropout):
        super().__init__()
        # of config
        self.up, self.down = nn.Linear(width, d_mlp), nn.Linear(d_mlp, width)
        self.given = activation, dropout
    def later(self):
# at the left edge
        return self.config.activation, self.config.d_mlp, self.config.dropout
    def forward(self, x):
        return self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self, n_vocab, d_model, rope_theta, dropout):
        super().__init__()
        self.embed, self.head = nn.Embedding(n_vocab, d_model), nn.Linear(d_model, n_vocab)
        self.given, self.drop = (rope_theta, dropout), nn.Dropout(dropout)
    def forward(self, tokens):
        return self.head(self.drop(self.embed(tokens)))
"""


OF_CONFIG = {  # two ways to read two fields, beside asking for them by name
    "d_mlp, activation, dropout": "",
    "d_mlp, config": "activation, dropout = config.activation, config.dropout",
    "config": "self.config = config; activation, d_mlp, dropout = self.later()",
}


@pytest.mark.parametrize("arguments", OF_CONFIG)
def test_a_constructor_gets_the_fields_that_it_asks_for_as_the_study_sets_them(
    parts: Path, arguments: str
) -> None:
    asking = ASKING.replace("d_mlp, activation, dropout", arguments)
    (parts / "parts.py").write_text(asking.replace("# of config", OF_CONFIG[arguments]))
    text = STUDY.replace("n_ctx", "dropout = 0.2\nrope_theta = 500\nn_ctx")
    text = text.replace('["gelu", "squared"]', '["relu", "gelu-tanh"]').replace("paired", "asking")
    crossed = planned(parts, text.replace('"one-factor"', '"grid"'))
    asking = [model_of(one.config) for one in crossed.cells if one.levels["mlp"] == "asking"]
    given = [model.blocks[0].mlp.member.given for model in asking]  # type: ignore[index, union-attr]
    assert given == [("relu", 0.2), ("gelu-tanh", 0.2)]
    whole = text.replace('mlp = ["dense", "asking"]', "").replace("dropout = 0.2", "dropout = 0.0")
    whole = whole.replace(
        "[factors]", '[factors]\narchitecture = ["transformer", "parts.py:Model"]'
    )
    cells = planned(parts, whole.replace('"one-factor"', '"grid"')).cells
    (cell,) = (one for one in cells if one.levels["architecture"] == "parts.py:Model")
    assert "activation" not in cell.levels  # it does not ask for it
    assert model_of(cell.config).model.member.given == (500, 0.0)
    with pytest.raises(AblateError, match=r"architecture = 'parts.py:Model'.*d_mlp.*steps"):
        planned(parts, f'{whole}[match]\nparams = "total"\n')
    with pytest.raises(AblateError, match="random"):  # its own dropout
        planned(parts, whole.replace("dropout = 0.0", "dropout = 0.2"))


FOREIGN = f"""{HEAD}
@torch.library.custom_op("ablate_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2

halved.register_fake(torch.empty_like)
halved.register_autograd(lambda ctx, grad: grad / 2)

@level("activation", "foreign", meaning="x/2 by an operation of its own")
def foreign(x):
    return halved(x)
"""


def test_what_no_counter_knows_is_unknown(parts: Path) -> None:
    (parts / "foreign.py").write_text(FOREIGN)
    text = STUDY.replace("parts.py", "foreign.py").replace("squared", "foreign")
    text = text.replace('mlp = ["dense", "paired"]\n', "")
    made = planned(parts, text)
    cell = made.cells[1]
    assert cell.cost.params == made.cells[0].cost.params
    assert cell.cost.flops is None and cell.cost.bytes is None
    with pytest.raises(AblateError, match="FLOPs of this model are unknown"):
        planned(parts, f"{text}[match]\nflops = true\n")
    assert planned(parts, f'{text}[match]\nparams = "body"\n').cells[1].cost == cell.cost
    assert capacity(cell.config, Device("cuda:0", 1 << 36, 1)) == 1


def test_a_module_that_vmap_cannot_call_trains_alone_and_the_plan_says_so(parts: Path) -> None:
    text = STUDY.replace('mlp = ["dense", "paired"]', 'topology = ["serial", "rezero"]')
    made = planned(parts, text)
    (note,) = [note for note in made.notes if "alone" in note]
    assert "topology=rezero" in note and "squared" not in note
    gpu = Device("cuda:0", 1 << 36, 1)
    assert [capacity(cell.config, gpu) > 1 for cell in made.cells] == [True, True, False]


def test_a_job_carries_the_text_that_was_planned(parts: Path) -> None:
    study = planned(parts).study
    job = Job((run_of(small(activation="squared")),), Evaluation(), use=study.use)
    _, received, _ = messages.decode(messages.encode(1, job, []))
    assert received == job
    (parts / "parts.py").write_text("raise SystemExit")
    outside._loaded.clear()
    outside.use(received.use)
    assert received.runs[0].key == job.runs[0].key
    assert CATALOGUE["activation"]["squared"].origin == (of_text("parts.py", PARTS).label,)


def test_a_run_by_another_version_of_its_code_is_refused() -> None:
    fields = small(activation="squared").model_dump(mode="json")
    assert RunConfig(**fields).code == (of_text("parts.py", PARTS).label,)
    with pytest.raises(AblateError, match=r"parts.py@0000"):
        RunConfig(**fields | {"code": [f"parts.py@{'0' * 64}"]})


# -- what is refused -------------------------------------------------------------------------------

MODULE = f"""{HEAD}
@level("activation", "other", meaning="x")
class Other(nn.Module):
    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, ["mine.py", "cannot be read"]),
        ("x = 1\n", ["mine.py", "registers no level", "@level"]),
        ("import torch\nx = (\n", ["mine.py, line 2"]),
        ("import torch\nimport not_there\n", ["mine.py, line 2", "not_there"]),
        (f"{MODULE}1 / 0\n", ["mine.py, line 10", "ZeroDivisionError"]),
        ("raise SystemExit(3)\n", ["mine.py, line 1", "SystemExit"]),
        (MODULE.replace("forward", "backward"), ["mine.py, line", "'other'", "forward"]),
        (MODULE.replace('"activation"', '"position"'), ["embed or rotate or bias"]),
        (MODULE.replace('"other"', '"gelu"'), ["'gelu'", "rename one"]),
        (MODULE.replace('"other"', '"squared"'), ["'squared'", "mine.py", "parts.py"]),
        (MODULE.replace('"activation"', '"d_model"'), ["d_model has no levels"]),
        (MODULE.replace('"activation"', '"activaton"'), ["did you mean 'activation'"]),
        (MODULE.replace('"activation"', '"objective"'), ["objective", "components.objective"]),
        (MODULE.replace("def forward", "def __init__(self, dim): ...\n    def forward"), ["'dim'"]),
        (MODULE.replace("(nn.Module)", ""), ["'other'", "torch.nn.Module"]),
        (
            MODULE.replace("    def f", "    def __init__(self, bias=True): ...\n    def f"),
            ["bias as true or false", "all, none"],
        ),
        (
            MODULE.replace("    def f", "    def __init__(self, dropout: bool): ...\n    def f"),
            ["dropout as true or false", "a number"],
        ),
        ("import beside\n" + MODULE, ["imports beside.py"]),
        (MODULE.replace('"activation"', '"norm"'), ["a level of norm", "did you mean norm_kind"]),
        (MODULE.replace(', meaning="x"', ""), ["'other' (Other)", "meaning"]),
        (
            MODULE.replace(
                "    def forward", "    fields = Field('p', float, 1.0, 'P')\n    def forward"
            ),
            ["fields is a tuple"],
        ),
        (
            MODULE.replace("    def f", "    fields = (Field('p', 'float', 1.0, 'P'),)\n    def f"),
            ["type"],
        ),
        (
            MODULE.replace("    def f", "    fields = (Field('p', list, [1], 'P'),)\n    def f"),
            ("'p'", "list", "tuple[int, ...]"),
        ),
        (
            MODULE.replace("    def f", "    fields = (Field('p', int, 1.5, 'P'),)\n    def f"),
            ["1.5", "int"],
        ),
    ],
)
def test_a_file_that_does_not_serve_is_one_line(
    text: str | None, said: list[str], parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(parts))
    (parts / "beside.py").write_text("")
    if text is not None:
        (parts / "mine.py").write_text(text)
    with pytest.raises(AblateError) as error:
        planned(parts, STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]'))
    assert str(error.value).startswith(f"{parts / 'mine.toml'}, line 4: ")
    assert all(word in str(error.value) for word in said), str(error.value)
    assert "\n" not in str(error.value)
    planned(parts)  # nothing is left behind


BY_PATH = """
import importlib.util, os
spec = importlib.util.spec_from_file_location("ops", os.path.dirname(__file__) + "/lab/ops.py")
ops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ops)
"""


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        f"from lab.ops import gate\n{MODULE}",
        f"import importlib\nimportlib.import_module('lab.ops')\n{MODULE}",
        MODULE.replace("return x", "from lab import ops; return ops.gate(x)"),
        BY_PATH + MODULE,
    ],
    ids=["statement", "importlib", "in a function", "by path"],
)
def test_a_file_that_imports_a_package_which_is_not_installed_is_refused(
    text: str, regular: bool, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(parts))
    monkeypatch.delitem(sys.modules, "lab", raising=False)
    (parts / "lab").mkdir()
    if regular:
        (parts / "lab" / "__init__.py").touch()
    (parts / "lab" / "ops.py").write_text("def gate(x): return x\n")
    (parts / "mine.py").write_text(text)
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    with pytest.raises(AblateError, match=r"mine.py imports lab/") as error:
        planned(parts, study.replace('"squared"]', '"squared", "other"]'))
    assert "\n" not in str(error.value)


def test_a_file_may_import_a_copy_of_a_package_and_no_editable_one(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, source = parts / "target", parts / "source"
    for folder, name in ((site, "copied"), (source, "edited")):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("import colorsys\n")
        (site / f"{name}-1.0.dist-info").mkdir()  # an editable install has this alone there
        monkeypatch.syspath_prepend(str(folder))
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    (parts / "mine.py").write_text(f"import copied, ablate.draws, colorsys\n{MODULE}")
    planned(parts, study)
    (parts / "mine.py").write_text(f"import edited\n{MODULE}")
    with pytest.raises(AblateError, match=r"mine.py imports .*edited"):
        planned(parts, study)


def test_a_file_finds_what_is_beside_it_from_any_folder(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parts / "size.txt").write_text("3")
    text = f"from pathlib import Path\nsize = Path(__file__).parent / 'size.txt'\n{MODULE}"
    (parts / "mine.py").write_text(text.replace("return x", "return x * int(size.read_text())"))
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    study = study.replace('"squared"]', '"squared", "other"]')
    made = planned(parts, study).study
    job = Job((run_of(small(activation="other")),), Evaluation(), use=made.use)
    _, received, _ = messages.decode(messages.encode(1, job, []))
    outside._loaded.clear()
    (parts / "elsewhere").mkdir()
    monkeypatch.chdir(parts / "elsewhere")
    outside.use(received.use)  # as a worker does
    config = received.runs[0].config
    assert built(config)(tokens(config)).isfinite().all()


INIT = "    def __init__(self):"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    def f",
            f"{INIT} self.g = nn.Parameter(torch.ones(1))\n    def f",
            ["constructor fails"],
        ),
        (
            "    def f",
            f"{INIT} 1 / 0\n    def f",
            ["'other' (mine.py, line 8)", "ZeroDivisionError"],
        ),
        ("return x", "x", ["'other' returns NoneType", "a tensor"]),
        ("return x", "return x, None", ["returns tuple of Tensor, NoneType", "return it alone"]),
        ("return x", "return x[0]", ["'other' returns", "is expected"]),
        ("return x", "return x @ torch.ones(3)", ["'other' (mine.py, line 9)", "RuntimeError"]),
    ],
)
def test_a_part_that_fails_in_a_model_is_one_line(
    old: str, new: str, said: list[str], parts: Path
) -> None:
    (parts / "mine.py").write_text(MODULE.replace(old, new))
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    with pytest.raises(AblateError) as error:
        made = planned(parts, study.replace('"squared"', '"other"'))
        assert made.cells[1].cost
    assert all(word in str(error.value) for word in said), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_activation_checkpoints_are_refused_and_hide_no_other_error(
    reentrant: bool, fails: bool
) -> None:
    own_mixer(
        f"""class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model{" + 1" * fails}, d_model)
    def forward(self, x):
        return checkpoint(self.out, x, use_reentrant={reentrant})
""",
        "from torch.utils.checkpoint import checkpoint",
    )
    said = "RuntimeError" if fails else "torch.utils.checkpoint .* call the function itself"
    with pytest.raises(AblateError, match=f"^mixer = 'own'.*: {said}"):
        sizes.alone(small(mixer="own"))


def test_a_part_that_prints_does_not_print_into_a_plan(
    parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MODULE.replace("return x", "print('shape', x.shape)\n        return x")
    (parts / "mine.py").write_text(text)
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]').replace("squared", "other")
    made = planned(parts, study)
    assert made.cells[1].cost and made.notes is not None and not capsys.readouterr().out


def test_trials_say_nothing_of_how_torch_calls_a_part_for_a_pack(
    recwarn: pytest.WarningsRecorder,
) -> None:
    own_mixer("""class X(nn.Module):
    def forward(self, x):
        x = x[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]
""")
    assert not sizes.alone(small(mixer="own")) and "FAILED" not in verdicts("mixer", "own").values()
    assert not [str(one.message) for one in recwarn]


BOUNDED = """
    fields = (Field("bound", float, 1.0, "Largest value."),)
    def __init__(self, bound):
        super().__init__()
        self.bound = bound
        assert bound < 4, "so large"
"""


@pytest.mark.parametrize(
    ("value", "said"), [(4.0, "constructor fails: AssertionError: so large"), (2.0, "RuntimeError")]
)
def test_an_error_of_a_part_names_the_cell_and_the_value_of_its_field(
    value: float, said: str, parts: Path
) -> None:
    text = MODULE.replace("    def f", f"{BOUNDED}    def f")
    text = text.replace("return x", "return x if self.bound < 2 else x @ torch.ones(3)")
    (parts / "mine.py").write_text(text)
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    study = study.replace("[factors]", f"bound = {value}\n[factors]").replace("squared", "other")
    with pytest.raises(AblateError) as error:
        planned(parts, study.replace('mlp = ["dense", "paired"]', ""))
    cell = f"{parts / 'mine.toml'}, line 16: cell 'activation=other': activation = 'other', "
    assert str(error.value).startswith(f"{cell}bound = {value} (mine.py, line "), str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ('["not-installed"]', ["no package 'not-installed'"]),
        ('["pytest"]', ["'pytest'", "ablate imports"]),
        ('["parts.py", "parts.py"]', ["twice"]),
    ],
)
def test_a_name_that_does_not_serve_is_one_line(use: str, said: list[str], parts: Path) -> None:
    with pytest.raises(AblateError) as error:
        planned(parts, STUDY.replace('["parts.py"]', use))
    assert all(word in str(error.value) for word in said) and "line 4" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("n_layer = 2", "n_layer = 2\npower = 3.0", 9),
        ('"relu"', '"squared"', 15),
        ("[base]", 'metric = "letters"\n[base]', 7),
    ],
)
@pytest.mark.parametrize("other", [(), ("tokens.py",)])
def test_a_word_of_a_file_that_use_does_not_name_is_told_of_its_file(
    old: str, new: str, line: int, other: tuple[str, ...], parts: Path
) -> None:
    (parts / "parts.py").rename(parts / "mine.py")
    with (parts / "mine.py").open("a") as file:
        file.write('\n@metric("letters", goal="min", meaning="m")\ndef letters(): ...\n')
    for name in other:
        (parts / name).write_text(MODULE)
    use = 'use = ["tokens.py"]' if other else ""
    text = STUDY.replace('use = ["parts.py"]', use).replace("squared", "relu").replace(old, new)
    with pytest.raises(AblateError) as error:
        planned(parts, text.replace('mlp = ["dense", "paired"]', ""))
    assert str(error.value).startswith(f"{parts / 'mine.toml'}, line {line}: unknown")
    names = ", ".join(f'"{name}"' for name in (*other, "mine.py"))
    assert str(error.value).endswith(f"add use = [{names}]")


def test_an_argument_that_is_no_field_is_told_how_to_become_one(parts: Path) -> None:
    text = MODULE.replace("    def f", "    def __init__(self, depth=3): ...\n    def f")
    (parts / "mine.py").write_text(text)
    study = STUDY.replace('["parts.py"]', '["parts.py", "mine.py"]')
    with pytest.raises(AblateError) as error:
        planned(parts, study.replace("n_layer = 2", "n_layer = 2\ndepth = 4"))
    assert "line 9" in str(error.value) and 'Field("depth", int, 3' in str(error.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("parts.py:Modell", ["'Modell'", "did you mean 'Model'"]),
        ("absent.py:Model", ["absent.py", "cannot be read"]),
        ("parts.py:HEAD", ["HEAD"]),
    ],
)
def test_a_whole_model_that_is_not_there_is_one_line(
    value: str, said: list[str], parts: Path
) -> None:
    text = STUDY.replace('mlp = ["dense", "paired"]', f'architecture = ["transformer", "{value}"]')
    with pytest.raises(AblateError) as error:
        planned(parts, text)
    assert all(word in str(error.value) for word in said) and "\n" not in str(error.value)
    assert "Field" not in str(error.value)  # which the file imports


def test_a_mixer_of_ones_own_has_no_use_for_positions_of_scores() -> None:
    assert small(mixer="pool").position == "none"
    assert small(mixer="pool", position="table").position == "table"
    with pytest.raises(AblateError, match="no scores for position = 'rotary'"):
        small(mixer="pool", position="rotary")
    assert small(mixer="pool", qkv="mlp", score="additive") == small(mixer="pool")


# -- trials ----------------------------------------------------------------------------------------

WRONG = {
    "causality": "class X(nn.Module):\n    def forward(self, x):\n        return x.flip(-2)",
    "gradients": (
        "class X(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.unused = nn.Parameter(torch.ones(2))\n"
        "    def forward(self, x):\n        return x"
    ),
    "determinism": (
        "class X(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('calls', torch.zeros(()))\n"
        "    def forward(self, x):\n        self.calls += 1\n        return x"
    ),
    "shapes": "class X(nn.Module):\n    def forward(self, x):\n        return x[..., :3]",
}
WRONG["determinism, dropout"] = (
    "class X(nn.Module):\n    def forward(self, x):\n"
    "        return nn.functional.dropout(x, 0.5, self.training)"
)
CONV = """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))
        self.conv = nn.Conv1d(d_model, d_model, 3, padding=1)
        nn.init.zeros_(self.conv.weight)
    def forward(self, x):
        return self.scale * self.conv(x.mT).mT
"""
LINEAR = """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.out({})
"""
CHUNKS = """class X(nn.Module):
    def forward(self, x):
        later = [c.mean(1, keepdim=True) + c for c in x[:, 24:].split(24, 1)]
        return torch.cat((x[:, :24], *later), 1)
"""
TAIL = """class X(nn.Module):
    def forward(self, x):
        n = x.shape[1] // 32 * 32
        tail = x[:, n:]
        return torch.cat((x[:, :n], tail + tail.mean(1, keepdim=True)), 1) if n else x
"""
GRU = """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.gru = nn.GRU(d_model, d_model)
    def forward(self, x):
        return self.gru(x)[0]
"""
HELD = """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.held = {}
    def forward(self, x):
        return x
"""
LEAKS = {
    "a branch that starts at 0": CONV,
    "the first sequence": LINEAR.format("x.cumsum(0)"),
    "the last sequence": LINEAR.format("x.flip(0).cumsum(0)"),
    "sequences in place of time": GRU,
    "chunks": CHUNKS,
    "a last chunk that is cut off": TAIL,
    "a prefix": LINEAR.format(
        "torch.cat([x[:, :8].mean(1, keepdim=True).expand_as(x[:, :8]), x[:, 8:]], 1)"
    ),
    "evaluation": LINEAR.format("x if self.training else x + x.roll(-1, 1)"),
}
WRONG |= {f"causality, {name}": text for name, text in LEAKS.items()}
HOLDS = {
    "list": "[nn.Linear(d_model, d_model)]",
    "dict": '{"a": (nn.Parameter(torch.ones(d_model)),)}',
    "tensor": "torch.randn(d_model, requires_grad=True)",
    "product": "nn.Parameter(torch.randn(d_model)) * 0.02",
}
WRONG |= {f"gradients, {name}": HELD.format(held) for name, held in HOLDS.items()}
WRONG["gradients, an object"] = """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.expert = type("Expert", (), {})()
        self.expert.map = nn.Linear(d_model, d_model)
    def forward(self, x):
        return x + self.expert.map(x)
"""
WRONG["determinism, a cache in evaluation"] = """class X(nn.Module):
    last = None
    def forward(self, x):
        if not self.training:
            x, self.last = x if self.last is None else x + self.last.mean(), x.detach()
        return x
"""
WRONG["determinism, a branch that starts at 0"] = (
    "class X(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.scale = nn.Parameter(torch.zeros(1))\n    def forward(self, x):\n"
    "        return self.scale * nn.functional.dropout(x, 0.5)"
)
RIGHT = {
    "fft": LINEAR.format(
        "torch.fft.irfft(torch.fft.rfft(x, 512, dim=1)"
        " * torch.fft.rfft(torch.arange(1.0, 257, device=x.device)[:, None] ** -1, 512, dim=0),"
        " 512, dim=1)[:, : x.shape[1]]"
    ),
    "positive": """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.size = nn.Parameter(torch.full((d_model,), 1e-2))
    def forward(self, x):
        return self.size.log() * x
""",
    "decay": """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.decay = nn.Parameter(torch.full((d_model,), 0.99))
    def forward(self, x):
        n = torch.arange(x.shape[1], device=x.device)
        distance = (n[:, None] - n)[..., None]
        share = self.decay ** distance.clamp(min=0) * (distance >= 0)
        return torch.einsum("tsc,bsc->btc", share, x)
""",
    "previous chunk": """class X(nn.Module):
    def forward(self, x):
        chunks = x.split(8, 1)
        before = [torch.zeros_like(x[:, :1]), *(c.mean(1, keepdim=True) for c in chunks)]
        return torch.cat([b + c for b, c in zip(before, chunks)], 1)
""",
    "experts with a capacity in each sequence": """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(3))
        self.route, self.shapes = nn.Linear(d_model, 3), [nn.GELU(), nn.ReLU()]
        self.first = [self.experts[0]]
    def forward(self, x):
        share = self.route(x).softmax(-1)
        chosen = share == share.amax(-1, keepdim=True)
        share = share * (chosen & (chosen.cumsum(1) <= x.shape[1] // 3))
        return sum(share[..., i, None] * one(x) for i, one in enumerate(self.experts))
""",
    "norms of weights": """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        one, other = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.one = torch.nn.utils.weight_norm(one)
        self.other = torch.nn.utils.parametrizations.weight_norm(other)
    def forward(self, x):
        return self.other(self.one(x))
""",
}


def verdicts(factor: str, name: str) -> dict[str, str]:
    return {one.what: one.verdict for one in tried(CATALOGUE[factor][name])}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_part_fails_the_trial_of_what_is_wrong(what: str) -> None:
    text = f'{HEAD}\n@level("mixer", "wrong", meaning="wrong")\n{WRONG[what]}\n'
    outside.use([of_text("wrong.py", text)])
    found = verdicts("mixer", "wrong")
    assert [one for one, verdict in found.items() if verdict == "FAILED"] == [what.split(",")[0]]


def own_mixer(text: str, before: str = "") -> None:
    text = f'{HEAD}\n{before}\n@level("mixer", "own", meaning="x")\n{text}\n'
    outside.use([of_text("own.py", text)])


@pytest.mark.parametrize("what", [*LEAKS, *HOLDS])
@pytest.mark.parametrize("more", [{}, {"architecture": "encoder-decoder"}], ids=["", "encoder"])
def test_planning_refuses_what_would_see_the_future_or_stay_untrained(
    what: str, more: dict[str, Any]
) -> None:
    own_mixer(LEAKS.get(what) or HELD.format(HOLDS[what]))
    with pytest.raises(AblateError, match=r"^mixer = 'own': .*") as error:
        sizes.alone(small(mixer="own", n_ctx=200 if "last" in what else 49, **more))
    assert what in LEAKS or "'held' of X" in str(error.value)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("what", RIGHT)
@pytest.mark.parametrize("n_ctx", [16, 200])
def test_planning_accepts_what_sees_the_past_alone(what: str, n_ctx: int) -> None:
    own_mixer(RIGHT[what])
    assert not sizes.alone(small(mixer="own", n_ctx=n_ctx))


@pytest.mark.parametrize("what", ["a branch that starts at 0", "chunks"])
def test_a_masked_model_may_see_later_tokens(what: str) -> None:
    own_mixer(LEAKS[what])
    assert not sizes.alone(small(mixer="own", n_ctx=49, objective="masked"))


TWO_WAYS = """
class Model(nn.Module):
    def __init__(self, n_vocab):
        super().__init__()
        self.embed, self.head = nn.Embedding(n_vocab, 8), nn.Linear(16, n_vocab)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])
"""
COMPONENT = f"""{HEAD}
from ablate.components.attention import Mixer
@level("mixer", "component", meaning="the future")
class Component(Mixer):
    def build(self, config, pack, width):
        return Turned()
class Turned(nn.Module):
    def forward(self, x, bias=None):
        return x.flip(-2)
"""


@pytest.mark.parametrize(
    ("text", "use", "base", "factor"),
    [
        (HEAD + TWO_WAYS, "", "", 'architecture = ["transformer", "mine.py:Model"]'),
        (COMPONENT, "mine.py", "", 'mixer = ["attention", "component"]'),
        (
            f'{HEAD}\n@level("mixer", "own", meaning="x")\n{CONV}',
            'parts.py", "mine.py',
            'optimiser = "torch-adamw"\n',
            'mixer = ["attention", "own"]',
        ),
    ],
    ids=["whole model", "component", "beside an optimiser"],
)
def test_a_cell_that_sees_the_future_is_one_line(
    text: str, use: str, base: str, factor: str, parts: Path
) -> None:
    (parts / "mine.py").write_text(text)
    study = STUDY[: STUDY.index("[factors]")] + f"{base}[factors]\n{factor}\n"
    study = study.replace('use = ["parts.py"]', f'use = ["{use}"]' if use else "")
    with pytest.raises(AblateError) as error:
        assert planned(parts, study).notes
    name, _, other = factor.partition(" = ")
    level = other.split('"')[3]
    assert f": cell '{name}={level}': " in str(error.value)
    assert f"{name} = {level!r}" in str(error.value) and "\n" not in str(error.value)


def test_packs_are_compared_where_no_branch_is_multiplied_by_0() -> None:
    own_mixer("""class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.zeros(1)), nn.Linear(d_model, d_model)
        nn.init.zeros_(self.out.weight)
    def forward(self, x):
        return self.scale * self.out(Other.apply(x))

class Other(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1
    @staticmethod
    def setup_context(context, given, output):
        pass
    @staticmethod
    def backward(context, gradient):
        return gradient
    @staticmethod
    def vmap(info, dims, x):
        return x * 2, dims[0]
""")
    assert "differ from those of a run alone" in sizes.alone(small(mixer="own"))


def test_a_buffer_that_the_first_call_fills_is_no_failure() -> None:
    own_mixer("""class X(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("share", None, persistent=False)
    def forward(self, x):
        if self.share is None:
            share = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device))
            self.share = share / share.sum(1, keepdim=True)
        return self.share @ x
""")
    assert not sizes.alone(small(mixer="own"))
    model, given = built(small(mixer="own"), 3, 7), trial.tokens(small(mixer="own"), 2)
    logits = model(given)
    model.initialise((3, 7))
    assert torch.equal(model(given), logits)
    assert model.state_dict().keys() == built(small(mixer="own")).state_dict().keys()


DRAWN = {
    "tensor": ("torch.randn(d_model)", "draws attribute 'held' of X"),
    "number": ("torch.rand(()).item()", "draws attribute 'held' of X"),
    "list": ("[torch.randn(2), 3]", "draws attribute 'held' of X"),
    "function": ("(lambda at: lambda: at)(torch.randn(2))", "draws attribute 'held' of X"),
    "partial": (
        "functools.partial(torch.mul, torch.rand(1).item())",
        "draws attribute 'held' of X",
    ),
    "seed": ("random.Random(torch.randint(1000, ()).item())", "draws attribute 'held' of X"),
    "slot": ("Slot(torch.rand(()).item())", "draws attribute 'held' of X"),
    "array": ("torch.rand(2).numpy().T", "draws attribute 'held' of X"),
    "another generator": ("random.random()", "from one construction to the next"),
    "count": ("next(COUNT)", "from one construction to the next"),
}


@pytest.mark.parametrize("what", DRAWN)
def test_a_constructor_draws_nothing_but_parameters_and_buffers(what: str) -> None:
    """All members and layers would share what else it draws."""
    made, said = DRAWN[what]
    before = """import functools, itertools, random
COUNT = itertools.count()
class Slot:
    __slots__ = ("held",)
    def __init__(self, held):
        self.held = held
"""
    own_mixer(HELD.format(made), before)
    with pytest.raises(AblateError, match=f"^mixer = 'own': .*{said}"):
        sizes.alone(small(mixer="own"))
    with pytest.raises(AblateError, match=said):  # untried, as a large model
        built(small(mixer="own"))


def test_what_a_constructor_makes_may_be_of_any_kind() -> None:
    """Also a chain, a cycle, and what nothing can read."""
    before = """import functools, random, threading
class Link:
    pass
def chain(n):
    first = one = Link()
    for _ in range(n):
        one.first, one.next = first, Link()
        one = one.next
    return first
"""
    made = "[chain(5000), random.Random(1), threading.Lock(), random, torch.zeros(()), {1, 2}]"
    own_mixer(HELD.format(made), before)
    assert not sizes.alone(small(mixer="own"))


def test_a_buffer_that_is_drawn_belongs_to_its_seed_and_layer() -> None:
    own_mixer(HELD.replace("self.held = {}", "self.register_buffer('held', torch.randn(d_model))"))
    assert not sizes.alone(small(mixer="own"))
    buffers = built(small(mixer="own"), 3, 7).named_buffers()
    held = [row.tolist() for name, of in buffers if name.endswith(".held") for row in of]
    assert len(set(map(tuple, held))) == 4


CALLS = """class X(nn.Module):
    n = 0
    def __init__(self, d_model):
        super().__init__()
        self.n, self.seen = 0, []
    def forward(self, x):
        if self.training:
            {}
        return x.clamp(-1, 1) if {} > 60 else x
"""
KEPT = {
    "an attribute": ("self.n += 1", "self.n", "attribute 'n' of X"),
    "a list": ("self.seen.append(x.shape)", "len(self.seen)", "attribute 'seen' of X"),
    "a class attribute": ("X.n += 1", "X.n", "class attribute 'n' of X"),
    "a name of the file": ("SEEN.append(1)", "len(SEEN)", "the name 'SEEN' of its file"),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_part_that_counts_its_calls_is_refused(what: str) -> None:
    change, read, said = KEPT[what]
    own_mixer(CALLS.format(change, read), "SEEN = []")
    with pytest.raises(AblateError, match=f"^mixer = 'own': calls change {said}"):
        sizes.alone(small(mixer="own"))


MADE = "def __init__(self, d_model):\n        super().__init__()\n        "
OF_A_STEP = {
    "an attribute": (
        f"{MADE}self.n = 0\n"
        "    def forward(self, x):\n        self.n += self.training and torch.is_grad_enabled()\n"
        "        return x.clamp(-1, 1) if self.n > 60 else x\n",
        "calls change attribute 'n'",
    ),
    "a hook": (
        f"{MADE}self.n, self.w = 0, nn.Parameter(torch.ones(d_model))\n"
        "        self.register_full_backward_hook(self.count)\n"
        "    def count(self, *_):\n        self.n += 1\n"
        "    def forward(self, x):\n        return self.w * (x if self.n < 60 else 2 * x)\n",
        "calls change attribute 'n'",
    ),
    "a buffer": (
        f"{MADE}self.register_buffer('n', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        if torch.is_grad_enabled():\n            self.n += 1\n"
        "        return x\n",
        "a call changes .*n",
    ),
    "a buffer that is assigned": (
        f"{MADE}self.register_buffer('n', torch.zeros(()))\n"
        "    def forward(self, x):\n"
        "        if torch.is_grad_enabled():\n            self.n = self.n + 1\n"
        "        return x\n",
        "a call changes .*n",
    ),
    "a running mean": (
        f"{MADE}self.register_buffer('mean', torch.zeros(d_model))\n"
        "    def forward(self, x):\n        y = x - self.mean\n"
        "        if self.training:\n"
        "            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))\n"
        "        return y\n",
        "a call changes .*mean",
    ),
    "frozen weights": (
        f"{MADE}self.mean = nn.Parameter(torch.zeros(d_model), requires_grad=False)\n"
        "    def forward(self, x):\n        if torch.is_grad_enabled():\n"
        "            self.mean.data.lerp_(x.detach().mean((0, 1)), 0.1)\n"
        "        return x\n",
        "a call changes .*mean",
    ),
    "weights that it constrains": (
        f"{MADE}self.w = nn.Parameter(torch.randn(d_model, d_model))\n"
        "    def forward(self, x):\n"
        "        self.w.data = nn.functional.normalize(self.w.data)\n"
        "        return x @ self.w\n",
        "a call changes .*w",
    ),
    "a buffer that it registers": (
        f"{MADE}self.register_buffer('mask', None)\n"
        "    def forward(self, x):\n        if self.mask is None:\n"
        "            self.mask = torch.ones(x.shape[-2], x.shape[-2]).tril()\n"
        "        return x\n",
        "a call registers .*mask",
    ),
    **{
        f"a table that is drawn in {place}": (
            f"tables = {{}}\n    def forward(self, x, tables={{}}):\n        n = x.shape[-1]\n"
            f"        return x * {table}\n",
            "another process would compute other numbers",
        )
        for place, table in {
            "a cache": "drawn(n)",
            "a cache of a class": "Calls.drawn(n)",
            "a name of the file": "TABLES.setdefault(n, torch.randn(n))",
            "a class attribute": "self.tables.setdefault(n, torch.randn(n))",
            "a default": "tables.setdefault(n, torch.randn(n))",
            "a closure": "filled(n)",
            "a tensor of the file": "in_place(n)",
        }.items()
    },
    "what it computed of weights": (
        f"{MADE}self.w, self.sign = nn.Parameter(torch.randn(d_model, d_model)), None\n"
        "    def forward(self, x):\n        if self.sign is None:\n"
        "            self.sign = self.w.detach().sign()\n"
        "        return x @ (self.sign + self.w)\n",
        "an earlier one has computed",
    ),
    "what it computed of a buffer": (
        f"{MADE}self.register_buffer('w', torch.randn(d_model))\n        self.sign = None\n"
        "    def forward(self, x):\n        if self.sign is None:\n"
        "            self.sign = self.w.sign()\n"
        "        return x * self.sign\n",
        "an earlier one has computed",
    ),
    "a default": (
        "def forward(self, x, seen=[]):\n        seen.append(1)\n"
        "        return x if len(seen) < 60 else 2 * x\n",
        "calls change class attribute 'forward'",
    ),
    "a closure": (
        "def forward(self, x):\n        return count(x)\n",
        "calls change the name 'count'",
    ),
    "an object": (
        "def forward(self, x):\n        CALLS.n += 1\n"
        "        return x if CALLS.n < 60 else 2 * x\n",
        "calls change the name 'CALLS'",
    ),
}


@pytest.mark.parametrize("what", OF_A_STEP)
def test_what_a_step_leaves_behind_is_refused(what: str) -> None:
    body, said = OF_A_STEP[what]
    before = """import functools
@functools.lru_cache
def drawn(n):
    return torch.randn(n)
class Calls:
    n = 0
    drawn = staticmethod(functools.lru_cache(lambda n: torch.randn(n)))
CALLS = Calls()
TABLES, TABLE = {}, torch.zeros(64)
def filling():
    held = []
    return lambda n: (held or held.append(torch.randn(n)) or held)[0]
filled = filling()
def in_place(n):
    return TABLE[:n] if TABLE.any() else TABLE.normal_()[:n]
def counting():
    n = 0
    def count(x):
        nonlocal n
        n += 1
        return x if n < 60 else 2 * x
    return count
count = counting()
"""
    own_mixer(f"class X(nn.Module):\n    {body}", before)
    with pytest.raises(AblateError, match=said):
        sizes.alone(small(mixer="own"))


HARMLESS = {
    "a table that grows": (
        f"{MADE}self.register_buffer('cos', torch.ones(4, 1), persistent=False)\n"
        "    def forward(self, x):\n        if len(self.cos) < x.shape[-2]:\n"
        "            self.cos = torch.arange(x.shape[-2])[:, None].cos()\n"
        "        return x * self.cos[: x.shape[-2]]\n"
    ),
    "frozen weights": (
        f"{MADE}self.mix = nn.Linear(d_model, d_model).requires_grad_(False)\n"
        "    def forward(self, x):\n        return self.mix(x)\n"
    ),
    "a compiled function": ("def forward(self, x):\n        return compiled(x)\n"),
    "a compiled method": (
        f"{MADE}self.mix = nn.Linear(d_model, d_model)\n"
        "        self.f = torch.compile(self.inner)\n"
        "    def inner(self, x):\n        return self.mix(x).relu()\n"
        "    def forward(self, x):\n        return self.f(x)\n"
    ),
    "a compiled module": (
        f"{MADE}self.mix = torch.compile(nn.Linear(d_model, d_model))\n"
        "    def forward(self, x):\n        return self.mix(x)\n"
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_a_part_that_leaves_nothing_behind_trains(what: str) -> None:
    before = "@torch.compile\ndef compiled(x):\n    return x * x.sigmoid()\n"
    own_mixer(f"class X(nn.Module):\n    {HARMLESS[what]}", before)
    assert sizes.count(small(mixer="own")).flops_per_token
    assert not sizes.alone(small(mixer="own"))
    assert {one.verdict for one in tried(CATALOGUE["mixer"]["own"])} == {"ok"}


def test_a_module_that_layers_share_is_one_line() -> None:
    own_mixer(
        f"class X(nn.Module):\n    {MADE}self.f = SHARED\n"
        "    def forward(self, x):\n        return self.f(x)\n",
        "SHARED = nn.Linear(16, 16)",
    )
    with pytest.raises(AblateError, match=r"mixer = 'own': .*another layer or model"):
        built(small(mixer="own", d_model=16, n_layer=1))


def test_a_module_whose_first_call_decides_its_shape_is_one_line() -> None:
    own_mixer(
        f"class X(nn.Module):\n    {MADE}self.f = nn.LazyLinear(d_model)\n"
        "    def forward(self, x):\n        return self.f(x)\n"
    )
    with pytest.raises(AblateError, match=r"mixer = 'own': .*f\.weight"):
        built(small(mixer="own"))


def test_what_the_first_text_leaves_behind_is_refused() -> None:
    own_mixer("""class X(nn.Module):
    size = None
    def forward(self, x):
        self.size = x.detach().std() if self.size is None else self.size
        return x / self.size
""")
    with pytest.raises(AblateError, match="an earlier call may have stored something"):
        sizes.alone(small(mixer="own"))


def test_a_loss_that_a_part_notes_and_a_table_that_it_keeps_are_no_failure() -> None:
    own_mixer("""class X(nn.Module):
    tables = {}
    def forward(self, x):
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(len(x))
        self.size = x.square().mean()
        return x
""")
    sizes.alone(small(mixer="own"))


def test_a_run_does_not_depend_on_the_run_before_it() -> None:
    """Even where a part keeps state that the trial does not see."""
    compiled.step_cache.clear()
    own_mixer(CALLS.format("self.n += 1", "self.n"))

    def losses(seed: int) -> Any:
        cached = compiled.cached_step([config(mixer="own", steps=50, seed=seed)], text(), "cpu")
        cached.step.run(50, lambda: False)
        return cached.step.read(50)[0]

    losses(0)
    after_another = losses(1)
    compiled.step_cache.clear()
    assert (after_another == losses(1)).all()


KEEPS = {
    "a table": """
        if self.kept is None:
            self.kept = torch.arange(x.shape[1])
        return x * self.scale * self.kept[:, None].cos()
""",
    "a number of the input": """
        self.kept = x.square().mean()
        return x * self.scale
""",
    "a number of the weights in training": """
        if self.training:
            self.kept = self.scale.detach().sum()
        return x * self.scale
""",
}


@pytest.mark.parametrize("what", KEEPS)
def test_a_step_serves_again_where_a_part_keeps_what_may_be_kept(what: str) -> None:
    """Otherwise every job on a GPU would compile and capture it again."""
    compiled.step_cache.clear()
    own_mixer(f"""class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.scale, self.kept = nn.Parameter(torch.ones(d_model)), None
    def forward(self, x):{KEEPS[what]}""")
    run(config(mixer="own", dropout=0.1))
    (first,) = compiled.step_cache.values()
    (after_another,) = run(config(mixer="own", dropout=0.1, seed=1))
    assert list(compiled.step_cache.values()) == [first]
    compiled.step_cache.clear()
    (alone,) = run(config(mixer="own", dropout=0.1, seed=1))
    assert after_another.series("train_loss") == alone.series("train_loss")


ZEROS = {
    "factor 0": """class X(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))
    def forward(self, x):
        return x + 0 * self.unused.sum()
""",
    "bias of keys": """class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ x
""",
}


@pytest.mark.parametrize("what", ZEROS)
def test_a_gradient_of_0_is_noted_and_refused_by_nothing(what: str) -> None:
    own_mixer(ZEROS[what])
    assert not sizes.alone(small(mixer="own"))
    found = verdicts("mixer", "own")
    assert found.pop("zeros") == "note" and set(found.values()) == {"ok"}


def test_a_constraint_that_moved_weights_break_is_no_failure() -> None:
    own_mixer("""class X(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.utils.parametrizations.orthogonal(nn.Linear(4 * d_model, d_model))
    def forward(self, x):
        return self.out(x.repeat(1, 1, 4))
""")
    assert verdicts("mixer", "own")["zeros"] == "ok"


def test_moved_weights_keep_their_sign_and_members_move_as_alone() -> None:
    config = small(norm_kind="power")
    pack, first = trial.moved(config, 3, 7), built(config, 3, 7)
    for (name, one), other in zip(pack.named_parameters(), first.parameters(), strict=True):
        assert ((one != other) & (one.sign() * other.sign() >= 0)).all(), name
    for mine, alone in zip(pack.parameters(), trial.moved(config, 7).parameters(), strict=True):
        assert torch.equal(mine[1:], alone)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_right_part_passes_every_trial(case: dict[str, Any]) -> None:
    factor, name = next(iter(case.items()))
    found = verdicts(factor, name)
    assert set(found.values()) == {"ok"} and len(found) == (1 if factor == "schedule" else 8)


@pytest.mark.parametrize(
    ("schedule", "holds"),
    [
        ("return 1 - step / steps", True),
        ("return 0 * step", False),
        ("return 1 / (steps - 1 - step)", False),
        ("return (1 - step / steps) * KEPT.setdefault(0, torch.rand(()))", False),
    ],
)
def test_a_schedule_is_tried_by_training(schedule: str, holds: bool) -> None:
    text = f'{HEAD}\nKEPT = {{}}\n@level("schedule", "own", meaning="x")\n'
    text += "def own(step, steps, warmup):\n"
    outside.use([of_text("own.py", f"{text}    {schedule}\n")])
    assert verdicts("schedule", "own") == {"training": "ok" if holds else "FAILED"}


@pytest.mark.parametrize("factor", ["norm_kind", "architecture"])
def test_a_part_is_tried_whatever_the_size_of_the_vocabulary(factor: str) -> None:
    norm = f"@level('norm_kind', 'own', meaning='x')\n{WRONG['causality']}"
    whole = """
@level("architecture", "own", meaning="x")
class Whole(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.embed, self.head = nn.Embedding(n_vocab, d_model), nn.Linear(d_model, n_vocab)
    def forward(self, tokens):
        return self.head(self.embed(tokens).flip(1))
"""
    outside.use([of_text("own.py", f"{HEAD}\n{norm if factor == 'norm_kind' else whole}")])
    large = {"n_vocab": 1 << 20, "d_model": 64, "n_head": 2, "n_ctx": 16, "batch_tokens": 32}
    with pytest.raises(AblateError, match="future"):
        sizes.alone(RunConfig(**large | {factor: "own"}))


OPTIMISERS = {
    "goes on from a checkpoint": (
        "self.kept = {}",
        "m = self.kept.setdefault(id(p), torch.zeros_like(p)).mul_(0.9).add_(p.grad)",
        "p.add_(m, alpha=-group['lr'])",
    ),
    "schedule has no effect": (
        "self.rate = lr",
        "m = p.grad.sign()",
        "p.add_(m, alpha=-self.rate)",
    ),
    "not change in training": (
        "",
        "m = p.grad.sign()",
        "p.add_(m * (p.dim() > 1), alpha=-group['lr'])",
    ),
    "": (
        "",
        "m = self.state[p].setdefault('m', torch.zeros_like(p)).mul_(0.9).add_(p.grad)",
        "p.add_(m, alpha=-group['lr'])",
    ),
}


@pytest.mark.parametrize("wrong", OPTIMISERS)
def test_an_optimiser_is_tried_from_a_checkpoint_at_other_rates_and_on_all_weights(
    wrong: str,
) -> None:
    begins, moment, moves = OPTIMISERS[wrong]
    text = f"""{HEAD}
@level("optimiser", "own", meaning="x")
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))
        {begins}
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                {moment}
                {moves}
"""
    outside.use([of_text("own.py", text)])
    (one,) = tried(CATALOGUE["optimiser"]["own"])
    assert one.verdict == ("FAILED" if wrong else "ok") and wrong in one.text, one.text


@pytest.mark.parametrize(
    ("factor", "given"), [("schedule", "t, T"), ("init", "fan_in"), ("topology", "x, attend, mlp")]
)
def test_a_function_that_cannot_be_called_is_refused_when_its_file_is_loaded(
    factor: str, given: str
) -> None:
    text = f'{HEAD}\n@level("{factor}", "own", meaning="x")\ndef own({given}): return 1.0\n'
    with pytest.raises(AblateError, match=f"own.py, line .*{factor} level 'own'.*in this order"):
        outside.use([of_text("own.py", text)])


def test_an_optimiser_of_torch_is_the_same_as_ours_and_resumes() -> None:
    of = [
        config(precision="float64", steps=STEPS, optimiser=name, grad_clip=0.5)
        for name in ("adamw", "torch-adamw")
    ]
    ours, theirs = (go([one]) for one in of)
    torch.testing.assert_close(
        members(theirs)[0]["embedding.weight"],
        members(ours)[0]["embedding.weight"],
        rtol=0,
        atol=1e-9,
    )
    assert abs(ours.read(STEPS)[0] - theirs.read(STEPS)[0]).max() < 1e-9
    begun = go([of[1]], 20)
    rest = go([of[1]], 3)
    rest.load_state(begun.state(), torch.tensor([0]))
    rest.run(STEPS - 20, lambda: False)
    assert torch.equal(rest.optimiser.weights, theirs.optimiser.weights)
    assert sizes.alone(of[1]) and not sizes.alone(of[0])
    assert verdicts("optimiser", "torch-adamw") == {"training": "ok"}


def test_an_embedding_without_a_matrix_cannot_be_shared_with_the_head() -> None:
    with pytest.raises(AblateError, match="embedding = 'factored' has no matrix"):
        small(embedding="factored", tie_embeddings="tied")


def test_a_part_that_packs_do_not_serve_is_no_failure() -> None:
    assert verdicts("topology", "rezero") == dict.fromkeys(
        ("shapes", "determinism", "causality", "gradients", "zeros", "sizes", "learning"), "ok"
    ) | {"packs": "alone"}


CACHED = """
import functools
import torch
from torch import nn
from ablate import level


def kept(function, tables={{}}):
    return lambda n: tables[n] if n in tables else tables.setdefault(n, function(n))


@{}
def causal(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


@level("mixer", "cached-mask", meaning="a causal mean, whose mask is kept by its length")
class Mean(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, x):
        mask = causal(x.shape[-2]).to(x.device, x.dtype)
        return self.out(mask @ x / mask.sum(-1, keepdim=True))
"""


@pytest.mark.parametrize(
    "cache", ["functools.lru_cache", "kept", "functools.lru_cache  # torch.library"]
)
def test_a_table_in_a_cache_of_the_file_is_no_tensor_without_data(
    cache: str, tmp_path: Path
) -> None:
    """Sizes are counted on a device without data, before the part is tried.

    A file that may register operations is loaded once.
    """
    (tmp_path / "masks.py").write_text(CACHED.format(cache))
    head, _, _ = STUDY.replace("parts.py", "masks.py").partition("[factors]")
    text = head + '[factors]\nmixer = ["attention", "cached-mask"]\n'
    cells = planned(tmp_path, text).cells
    assert len(cells) == 2 and cells[1].cost.flops
