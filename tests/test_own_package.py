"""Packages of a user's own: installed ones and folders, from plan to report and weights."""

from __future__ import annotations

import importlib
import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import Run, python
from in_process import local
from report_study import svg_only  # noqa: F401

from ablate import cache, metrics, outside, report, study, used
from ablate.cli import running
from ablate.code import Code
from ablate.components import CATALOGUE, catalogue
from ablate.errors import AblateError
from ablate.plan import plan

MODULE = """
import torch
from torch import nn
from ablate import level

@level("norm_kind", "max-norm", meaning="gain · x / max |x|", source="my notebook")
class MaxNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
    def forward(self, x):
        return self.gain * x / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
"""
ACTIVATIONS = """
import torch
from ablate import level

@level("activation", "squared", meaning="relu(x)²")
def squared(x):
    return torch.relu(x) ** 2
"""
ENTRIES = "[ablate.levels]\nnorms = my_levels.norms\nactivations = my_levels.activations\n"
STUDY = """
name = "mine"
question = "Does the norm of my package matter?"
use = ["my-levels"]
seeds = 2
design = "one-factor"
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 128
tokens = "2K"
[factors]
norm_kind = ["layernorm", "max-norm"]
activation = ["gelu", "squared"]
[eval]
points = 1
tokens = "1K"
"""


def wheel(folder: Path, version: str, entries: str = ENTRIES) -> Path:
    """A wheel of the package, as a build backend makes it."""
    path, about = folder / f"my_levels-{version}-py3-none-any.whl", f"my_levels-{version}.dist-info"
    files = {
        "my_levels/__init__.py": "",
        "my_levels/norms.py": MODULE,
        "my_levels/activations.py": ACTIVATIONS,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: my-levels\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": entries,
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def install(folder: Path, version: str, entries: str = ENTRIES) -> None:
    """Install it with pip into an empty folder; the next command is as in a new process."""
    shutil.rmtree(folder / "site", ignore_errors=True)
    pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--upgrade",
    ]
    made = wheel(folder, version, entries)
    subprocess.run([sys.executable, *pip, "--target", folder / "site", made], check=True)
    forget()


def forget() -> None:
    outside.use(())
    outside._loaded.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_levels"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to install into, on the path of this process and of workers."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    yield tmp_path
    forget()


@pytest.mark.usefixtures("svg_only")
@pytest.mark.timeout(120)
def test_levels_of_a_package_are_studied_and_its_content_is_part_of_the_key(
    ablate: Run, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "1.0")
    (site / "mine.toml").write_text(STUDY)
    assert ablate("plan", "mine.toml")[0] == 0
    code, out, error = ablate("run", "mine.toml")
    assert code == 0 and "mine: 6 complete" in out, error
    with sqlite3.connect("results/ablate.db") as connection:
        ((name, version, text),) = connection.execute("SELECT name, version, text FROM code")
        first = dict(connection.execute("SELECT cell || seed, key FROM runs"))
        codes = dict(connection.execute("SELECT cell, code FROM runs"))
    assert name == "my-levels" and json.loads(text) == {
        "my_levels/__init__.py": "",
        "my_levels/norms.py": MODULE,
        "my_levels/activations.py": ACTIVATIONS,
    }
    assert {cell: json.loads(code) for cell, code in codes.items()} == {
        "baseline": [],
        "norm_kind=max-norm": [f"my-levels@{version}"],
        "activation=squared": [f"my-levels@{version}"],
    }

    install(site, "1.1")  # another version of the same content
    assert "another version" not in ablate("status", "mine.toml")[1]
    with (site / "site" / "my_levels" / "norms.py").open("a") as file:  # the same version, edited
        file.write("# edited\n")
    for command in ("status", "report", "plan"):
        with monkeypatch.context() as patched:
            patched.setattr(report, "write", lambda data, folder, kinds: folder)  # draws no figures
            out = " ".join(ablate(command, "mine.toml")[1].split())
        assert "my-levels is another version now (" in out, (command, out)
        assert f"4 runs of norm_kind=max-norm and activation=squared ({version[:12]})" in out, out
    monkeypatch.setattr(running, "_local", local)  # a worker has trained by the package above
    assert "mine: 6 complete" in ablate("run", "mine.toml")[1]
    with sqlite3.connect("results/ablate.db") as connection:
        second = dict(connection.execute("SELECT cell || seed, key FROM runs"))
    same = {cell for cell in first if first[cell] == second[cell]}
    assert same == {"baseline0", "baseline1"}  # which no level of the package is in
    out = " ".join(ablate("status", "mine.toml")[1].split())
    assert (
        "another version" not in out and f"4 runs by an earlier my-levels ({version[:12]})" in out
    )

    # a package that is gone: readers go on
    sys.path.remove(str(site / "site"))
    forget()
    code, out, _ = ablate("report", "mine")
    assert code == 0 and "max-norm" in out
    page = (site / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "my-levels (SHA-256 " in page and "relu(x)²" in page
    code, _, error = ablate("plan", "mine.toml")
    assert code == 2 and "line 4: no package 'my-levels' is installed" in error


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            "[console_scripts]\nx = my_levels:x\n",
            ["my-levels registers no level", '"my_levels.activations"'],
        ),
        ("[ablate.levels]\nx = my_levels.absent\n", ["my-levels: ModuleNotFoundError"]),
        ("[ablate.levels]\nx = my_levels\n", ["my-levels registers no level"]),
    ],
)
def test_a_package_that_does_not_serve_is_one_line(
    entries: str, said: list[str], ablate: Run, site: Path
) -> None:
    with zipfile.ZipFile(wheel(site, "1.0", entries)) as packed:
        packed.extractall(site / "site")
    (site / "mine.toml").write_text(STUDY)
    code, _, error = ablate("plan", "mine.toml")
    assert code == 2 and error.count("\n") == 1 and "mine.toml, line 4" in error
    assert all(word in error for word in said), error


# -- a package in a folder, or installed as editable -----------------------------------------------

LAB = {
    "__init__.py": "",
    "helpers.py": "def scale(x):\n    return 2.0 * x\n",
    "consts.txt": "3",
    "table.bin": b"\xff\xfe\x00",
    "parts.py": """
from pathlib import Path
import torch
from torch import nn
from ablate import level
from mylab.helpers import scale
from .inner.deep import shift

SIZE = float((Path(__file__).parent / "consts.txt").read_text())
assert (Path(__file__).parent / "table.bin").read_bytes() == bytes([255, 254, 0])
DRAWN = torch.randn(3)

@level("activation", "lab", meaning="x")
class Lab(nn.Module):
    def forward(self, x):
        from . import later
        return later.same(shift(scale(x) * SIZE))
""",
    "inner/__init__.py": "",
    "inner/deep.py": "def shift(x):\n    return x + 1\n",
    "later.py": "import torch\nONE = torch.rand(1).ceil()\ndef same(x):\n    return x * ONE\n",
    "model.py": """
from torch import nn
from .helpers import scale

class Model(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.embedding, self.head = nn.Embedding(n_vocab, d_model), nn.Linear(d_model, n_vocab)
    def forward(self, tokens):
        return self.head(scale(self.embedding(tokens)))
""",
}
THIN = """
import torch
from torch import nn
from ablate import level
from mylab.helpers import scale

@level("activation", "thin", meaning="x")
class Thin(nn.Module):
    def forward(self, x):
        return scale(x)
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package src/mylab, which is not installed."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    for name, content in LAB.items():
        path = tmp_path / "src" / "mylab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    yield tmp_path
    outside.use(())
    outside._loaded.clear()


def edit(lab: Path, name: str, old: str, new: str) -> None:
    path = lab / "src" / "mylab" / name
    path.write_text(path.read_text().replace(old, new))


def applied(name: str = "lab") -> float:
    made: Any = CATALOGUE["activation"][name]
    value: float = made.plain()(torch.tensor(1.0)).item()
    return value


@pytest.mark.parametrize(
    ("name", "installed"),
    [
        ("src/mylab", False),
        ("./src/mylab/", False),
        ("src/mylab/parts.py", False),  # has relative imports
        ("mylab", True),
        ("mylab.parts", True),
    ],
)
def test_a_package_is_one_code_whatever_names_it(
    name: str, installed: bool, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(lab, "__init__.py", "", "from . import parts\n")
    if installed:
        monkeypatch.syspath_prepend(str(lab / "src"))
    (code,) = outside.find([name], lab)
    assert applied() == 7.0
    assert set(code.files) == {f"mylab/{one}" for one in LAB}
    assert code.version == outside.find(["src/mylab"], lab)[0].version
    ours = str(cache.folder() / "code" / code.version)
    assert sys.modules["mylab.helpers"].__file__.startswith(ours)  # type: ignore[union-attr]
    outside.use(())
    assert "mylab" not in sys.modules


def test_a_package_runs_as_it_was_planned_where_it_is_not_installed(lab: Path) -> None:
    edit(lab, "__init__.py", "", "from . import parts\n")
    (code,) = outside.find(["src/mylab"], lab)
    shutil.rmtree(lab / "src")
    shutil.rmtree(cache.folder())
    outside.use(())
    outside._loaded.clear()  # as in another process
    outside.use([code])
    assert applied() == 7.0
    copy = cache.folder() / "code" / code.version / "mylab" / "helpers.py"
    copy.chmod(0o644)
    copy.write_text("def scale(x):\n    return 0 * x\n")  # by a user who follows a traceback
    outside._loaded.clear()
    outside.use([code])
    assert applied() == 7.0


def test_what_a_package_writes_beside_itself_does_not_reach_the_next_process(lab: Path) -> None:
    text = """from pathlib import Path
HERE = Path(__file__).parent
FOUND = sorted(path.name for path in HERE.rglob("*"))
for folder in (HERE, HERE / "inner", HERE / "made" / "below"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "state.txt").write_text("1")
from . import parts
"""
    edit(lab, "__init__.py", "", text)
    (code,) = outside.find(["src/mylab"], lab)
    first = sys.modules["mylab"].FOUND
    outside.use(())
    outside._loaded.clear()  # as in another process
    outside.use([code])
    assert first == sys.modules["mylab"].FOUND and applied() == 7.0


def test_two_versions_of_a_package_each_import_their_own_modules(lab: Path) -> None:
    edit(lab, "__init__.py", "", "from . import parts\n")
    first = outside.find(["src/mylab"], lab)
    edit(lab, "later.py", "return x", "return 10 * x")  # which is imported as the part is called
    second = outside.find(["src/mylab"], lab)
    for sources, value in ((first, 7.0), (second, 70.0), (first, 7.0)):
        outside.use(sources)
        assert applied() == value


def test_a_users_own_import_of_a_package_is_left_alone(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(lab / "src"))
    mine = importlib.import_module("mylab")
    try:
        outside.find(["mylab.parts"], lab)
        assert sys.modules["mylab"] is not mine
        outside.use(())
        assert sys.modules["mylab"] is mine
        alone = THIN.replace("from mylab.helpers import scale", "scale = abs")
        (lab / "alone.py").write_text(alone)
        outside.find(["alone.py"], lab)
        for wrong in ('activation = ["gelu", "labb"]', "n_layr = [1, 2]"):  # used, then refused
            with pytest.raises(AblateError):
                keys(lab, '"mylab.parts"', wrong)
            assert sys.modules["mylab"] is mine
            names = {one.name for one in CATALOGUE["activation"].levels}
            assert names & {"thin", "lab"} == {"thin"}
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "module", "first"),
    [
        ("src/mylab/parts.py", "mylab.parts", "import"),
        *(("alone.py", of, first) for of in ("alone", "labs.alone") for first in ("import", "use")),
    ],
)
def test_code_that_a_program_imports_itself_can_be_used(
    name: str,
    module: str,
    first: str,
    lab: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """As in a notebook that imports a part of its own and loads a model with it."""
    monkeypatch.syspath_prepend(str(lab.parent))
    monkeypatch.syspath_prepend(str(lab / "src"))
    monkeypatch.syspath_prepend(str(lab))
    measured = "\nfrom ablate import metric\n@metric('mine', goal='lower', meaning='x')\n"
    measured += "def mine(losses):\n    return losses\n"
    (lab / "alone.py").write_text(THIN.replace("from mylab.helpers import scale", measured))
    level = "lab" if "/" in name else "thin"
    module = module.replace("labs", lab.name)
    (code,) = outside.find([name], lab)
    if first == "import":
        outside.use(())
    try:
        importlib.import_module(module)
        file = Path(sys.modules[module].__file__ or "")
        outside.use([code])
        assert CATALOGUE["activation"][level].origin == (code.label,) and not recwarn.list
        outside.use(())
        mine = CATALOGUE["activation"][level]
        assert not mine.origin
        file.write_text(file.read_text() + "# edited\n")
        outside.use([code])
        assert str(file) in str(recwarn.pop(UserWarning).message)
        text = THIN.replace('"thin"', f'"{level}"').replace("from mylab.helpers import scale", "")
        (lab / "other.py").write_text(text)
        with pytest.raises(AblateError, match="rename one of them"):
            outside.find([name, "other.py"], lab)
    finally:
        outside.use(())
        catalogue.remove(CATALOGUE["activation"][level])
        if level == "thin":
            metrics.remove(metrics.METRICS["mine"])
        for one in [one for one in sys.modules if one.endswith("alone") or one.startswith("mylab")]:
            del sys.modules[one]


def test_a_program_that_imports_another_version_of_used_code_is_told(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(lab))
    file = lab / "alone.py"
    file.write_text(THIN.replace("from mylab.helpers import scale", ""))
    outside.find(["alone.py"], lab)
    file.write_text(file.read_text() + "# edited\n")
    try:
        with pytest.warns(UserWarning, match=str(file)):
            importlib.import_module("alone")
    finally:
        outside.use(())
        catalogue.remove(CATALOGUE["activation"]["thin"])
        del sys.modules["alone"]


def keys(folder: Path, use: str, levels: str) -> dict[str, str]:
    text = STUDY.replace('"my-levels"', use).replace('activation = ["gelu", "squared"]', levels)
    (folder / "mine.toml").write_text(text.replace('norm_kind = ["layernorm", "max-norm"]', ""))
    made = plan(study.load(str(folder / "mine.toml")))
    return {one.cell: one.run.key for one in made.runs if one.run.seed == 0}


def test_an_edited_file_of_a_package_makes_new_runs_of_what_imports_it(lab: Path) -> None:
    (lab / "thin.py").write_text(THIN)
    alone = THIN.replace("from mylab.helpers import scale", "scale = torch.relu")
    (lab / "alone.py").write_text(alone.replace('"thin', '"al'))
    use = '"thin.py", "src/mylab/parts.py", "alone.py"'
    levels = 'activation = ["gelu", "thin", "lab", "al"]'
    levels += '\narchitecture = ["transformer", "src/mylab/model.py:Model"]'
    first = keys(lab, use, levels)
    assert len({*first.values()}) == 5
    edit(lab, "helpers.py", "2.0", "2.5")
    second = keys(lab, use, levels)
    same = {cell for cell in first if first[cell] == second[cell]}
    assert same == {"baseline", "activation=al"}
    for name in (
        *("parts.pyc", ".parts.py.swp", "__pycache__/parts.cpython-311.pyc"),
        *("README.md", "mine.db", "mine.journals/1.jsonl", "results/x.db", "results/mine/a.svg"),
    ):
        path = lab / "src" / "mylab" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"x")
    (lab / "src" / "mylab" / "mine.toml").write_text('question = "?"\n[factors]\n')
    assert keys(lab, use, levels) == second


FACTORY = """
import torch
from torch import nn
from ablate import level

SCALE = 2.0

def make(scale):
    class Scaled(nn.Module):
        def forward(self, x):
            return scale * torch.relu(x)
    return Scaled

def add(name, scale):
    level("activation", name, meaning="x")(make(scale))

class Whole(nn.Module):
    def forward(self, x):
        return SCALE * x

def squares(losses):
    return losses**2

level("activation", "lab", meaning="x")(Whole)
"""
REGISTERS = """
from ablate import level, metric
from mylab.factory import Whole, add, make, squares

level("activation", "made", meaning="x")(make(0.5))
add("added", 0.5)
level("activation", "whole", meaning="x")(Whole)
"""


def test_a_part_is_of_the_code_that_registers_it_and_of_the_package_of_its_class(lab: Path) -> None:
    (lab / "src" / "mylab" / "factory.py").write_text(FACTORY)
    (lab / "thin.py").write_text(REGISTERS)
    levels = 'activation = ["gelu", "made", "added", "whole", "lab"]'
    names = {f"activation={one}" for one in ("made", "added", "whole")}

    def changed(before: dict[str, str]) -> set[str]:
        after = keys(lab, '"thin.py", "src/mylab"', levels)
        return {cell for cell in after if after[cell] != before[cell]}

    first = keys(lab, '"thin.py", "src/mylab"', levels)
    (lab / "thin.py").write_text(REGISTERS.replace("0.5", "0.9"))
    assert changed(first) == names
    second = keys(lab, '"thin.py", "src/mylab"', levels)
    edit(lab, "factory.py", "2.0", "3.0")
    assert changed(second) == {*names, "activation=lab"}


@pytest.mark.parametrize(
    "registers",
    [
        'level("activation", "own", meaning="x")(make(0.5))',
        'add("own", 0.5)',
        'metric("own", goal="lower", meaning="x")(squares)',
    ],
)
def test_a_file_may_register_what_a_package_has(registers: str, lab: Path) -> None:
    (lab / "src" / "mylab" / "factory.py").write_text(FACTORY)
    (lab / "thin.py").write_text("\n".join([*REGISTERS.splitlines()[:3], registers]))
    file, package = outside.find(["thin.py", "src/mylab"], lab)
    (one,) = [*outside.levels(file), *outside.metrics(file)]
    assert one.name == "own" and one.origin == (file.label, package.label)


def test_a_package_may_register_what_another_package_has(lab: Path) -> None:
    (lab / "src" / "mylab" / "factory.py").write_text(FACTORY)
    other = lab / "src" / "other"
    other.mkdir()
    (other / "__init__.py").write_text(REGISTERS)
    found = outside.find(["src/other", "src/mylab"], lab)
    assert [one.name for one in outside.levels(found[0])] == ["made", "added", "whole"]


def test_a_class_that_other_code_collects_and_registers_is_of_its_own_file_too(lab: Path) -> None:
    edit(lab, "__init__.py", "", "PARTS = []\n")
    (lab / "thin.py").write_text(f"import mylab\n{THIN}\nmylab.PARTS.append(Thin)\n")
    last = 'from ablate import level\nimport mylab\nlevel("activation", "own", meaning="x")'
    (lab / "last.py").write_text(f"{last}(mylab.PARTS[0])\n")
    thin, package, file = outside.find(["thin.py", "src/mylab", "last.py"], lab)
    (one,) = outside.levels(file)
    assert one.origin == (file.label, package.label, thin.label)


def test_a_whole_model_of_a_package_is_named_by_its_module(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(lab / "src"))
    made = keys(lab, "", 'architecture = ["transformer", "mylab.model:Model"]')
    assert len(made) == 2
    with pytest.raises(AblateError, match="did you mean 'Model'"):
        keys(lab, "", 'architecture = ["transformer", "mylab.model:Modell"]')


def test_numbers_that_a_module_draws_follow_from_the_code_alone(lab: Path) -> None:
    """In whichever order modules are imported, and whatever was drawn before."""
    drawn = set()
    (lab / "mine.py").write_text(
        f"import random, numpy\nA, B = random.random(), numpy.random.rand()\n{THIN}".replace(
            "from mylab.helpers import scale", "scale = torch.randn(1).mul"
        )
    )
    edit(
        lab,
        "inner/deep.py",
        "def",
        "import torch\nOTHER = torch.randn(3)\ntorch.manual_seed(3)\n\ndef",
    )
    for names in (["mine.py", "src/mylab/parts.py"], ["src/mylab/parts.py", "mine.py"]):
        torch.manual_seed(len(drawn))
        state, other = torch.get_rng_state(), random.getstate()
        outside._loaded.clear()
        file = next(one for one in outside.find(names, lab) if not one.files)
        module = sys.modules[f"ablate_outside_{file.version[:16]}"]
        assert torch.equal(torch.get_rng_state(), state) and random.getstate() == other
        tensor = sys.modules["mylab.parts"].DRAWN.tolist()
        assert tensor != sys.modules["mylab.inner.deep"].OTHER.tolist()
        drawn.add((*tensor, module.A, module.B, applied("thin")))
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ("torch.set_default_dtype(torch.float64)", "default dtype"),
        ("torch.set_default_device('meta')", "default device"),
        ("torch.set_grad_enabled(False)", "grad mode"),
        ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark"),
        ("torch.set_float32_matmul_precision('medium')", "fp32_precision"),
        ("torch.use_deterministic_algorithms(True)", "use_deterministic_algorithms"),
        ("torch.backends.cuda.enable_flash_sdp(False)", "enable_flash_sdp"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "cuda.matmul"),
    ],
)
@pytest.mark.parametrize("use", ["mine.py", "src/mylab/parts.py"])
def test_code_whose_import_changes_other_runs_is_refused(
    change: str, setting: str, use: str, lab: Path
) -> None:
    (lab / "mine.py").write_text(
        f"{THIN.replace('from mylab.helpers import scale', 'scale = torch.relu')}\n{change}\n"
    )
    edit(lab, "inner/deep.py", "def", f"import torch\n{change}\n\ndef")
    with pytest.raises(AblateError, match=setting) as error:
        outside.find([use], lab)
    assert "\n" not in str(error.value)
    assert ("mine.py" if use == "mine.py" else "mylab/inner/deep.py changes") in str(error.value)
    assert torch.zeros(1, requires_grad=True).mul(2).requires_grad
    assert torch.zeros(1).dtype == torch.float32 and torch.zeros(1).device.type == "cpu"


LIBRARY = """
import importlib
def get(name):
    try:
        return importlib.import_module(name).scale
    except Exception as error:
        raise RuntimeError("not found") from error
"""


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    "wanted", ["from mylab.helpers import scale", 'import lib\nscale = lib.get("mylab.helpers")']
)
def test_an_import_of_what_the_key_does_not_name_is_refused(
    loaded: bool, wanted: str, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is imported already, or a library imports it."""
    library = lab / "site-packages"
    library.mkdir()
    (library / "lib.py").write_text(LIBRARY)
    for folder in (library, lab / "src"):
        monkeypatch.syspath_prepend(str(folder))
    (lab / "thin.py").write_text(THIN.replace("from mylab.helpers import scale", wanted))
    try:
        if loaded:
            importlib.import_module("mylab.helpers")
        refused = r"^thin.py(, line 5: thin.py)? imports src/mylab/.*`use`"
        with pytest.raises(AblateError, match=refused) as error:
            outside.find(["thin.py"], lab)
        assert "\n" not in str(error.value)
        outside.find(["thin.py", "mylab"], lab)  # without levels: it serves thin.py
        assert applied("thin") == 2.0
        assert len(CATALOGUE["activation"]["thin"].origin) == 2
        outside.use(())
        assert ("mylab.helpers" in sys.modules) == loaded
    finally:
        for name in [one for one in sys.modules if one.partition(".")[0] in ("mylab", "lib")]:
            del sys.modules[name]


PROJECT = '[project.entry-points."ablate.levels"]\nlab = "mylab.parts"\n'


@pytest.mark.parametrize("inner", ["src", "."])
def test_the_folder_of_a_project_has_the_modules_of_its_entry_points(inner: str, lab: Path) -> None:
    project = lab / "project"
    shutil.copytree(lab / "src", project / inner, dirs_exist_ok=True)
    (project / "pyproject.toml").write_text(PROJECT)
    (code,) = outside.find(["project"], lab)
    assert applied() == 7.0
    assert code.version == outside.find(["src/mylab/parts.py"], lab)[0].version
    assert used.version(code.name, lab) == code.version


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("src/absent", ["src/absent", "no such folder"]),
        ("src", ["no __init__.py", "did you mean './src/"]),
        ("open", ["no __init__.py", "open/parts.py"]),
        ("open/parts.py", ["open/parts.py imports from 'open'", "add an empty __init__.py"]),
        ("src/mylab/open/deep.py", ["imports from 'mylab'", "src/mylab/open"]),
        ("wrong.toml", ["wrong.toml/pyproject.toml", "'absent'"]),
        ("src/networkx", ["'networkx'", "ablate imports"]),  # torch needs it
        ("src/yaml", ["'yaml'", "ablate imports"]),  # of the distribution pyyaml
        ("src/mylab", ["src/mylab registers no level", "src/mylab/parts.py"]),
        ("torch", ["'torch'", "ablate imports"]),
        ("mylab", ["no package 'mylab'", "did you mean 'src/mylab'"]),
        ("src/big", ["'src/big'", "4 MiB", "big/weights.bin (5 MiB)"]),
        ("src/wrong", ["wrong/__init__.py, line 2: ZeroDivisionError"]),
        ("src/unwritten", ["unwritten/__init__.py, line 1", "never closed"]),
    ],
)
def test_a_package_that_cannot_be_used_is_one_line(use: str, said: list[str], lab: Path) -> None:
    for name, text in (("big", ""), ("wrong", "x = 1\n1 / 0\n"), ("unwritten", "x = (\n")):
        (lab / "src" / name).mkdir()
        (lab / "src" / name / "__init__.py").write_text(text)
    (lab / "src" / "big" / "weights.bin").write_bytes(bytes(5 << 20))
    for name in ("networkx", "yaml"):
        shutil.copytree(lab / "src" / "mylab", lab / "src" / name)
    for path, of in (("open/parts.py", "open"), ("src/mylab/open/deep.py", "mylab")):
        (lab / path).parent.mkdir()
        (lab / path).write_text(f"from {of}.helpers import scale\n")
    (lab / "wrong.toml").mkdir()
    (lab / "wrong.toml" / "pyproject.toml").write_text(PROJECT.replace("mylab", "absent"))
    with pytest.raises(AblateError) as error:
        outside.find([use], lab)
    assert all(word in str(error.value) for word in said) and "\n" not in str(error.value)
    assert not CATALOGUE["activation"].names[7:] and "mylab" not in sys.modules


def test_a_package_without_init_is_used_by_the_module_that_registers_levels(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds it in a folder of `PYTHONPATH`."""
    (lab / "elsewhere" / "spaced" / "deep").mkdir(parents=True)
    (lab / "elsewhere" / "bare" / "__pycache__").mkdir(parents=True)
    text = THIN.replace("from mylab.helpers import scale", "")
    (lab / "elsewhere" / "spaced" / "helpers.py").write_text("")
    (lab / "elsewhere" / "spaced" / "deep" / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(str(lab / "elsewhere"))
    for name in ("spaced", "spaced.deep"):
        with pytest.raises(AblateError, match=r'use = \["spaced.deep.mine"\]'):
            outside.find([name], lab)
    outside.find(["spaced.deep.mine"], lab)
    assert "thin" in CATALOGUE["activation"].names
    with pytest.raises(AblateError, match="'bare' has no files"):
        outside.find(["bare.parts"], lab)


def test_a_folder_and_an_installed_package_of_one_name_are_not_confused(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(lab, "__init__.py", "", "from . import parts\n")
    site = lab / "site-packages"
    shutil.copytree(lab / "src", site)
    shutil.copytree(lab / "src" / "mylab", lab / "mylab")
    (lab / "mylab" / "consts.txt").write_text("5")
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(AblateError, match=r"two packages 'mylab'.*\./mylab"):
        outside.find(["mylab"], lab)
    outside.find(["./mylab"], lab)
    assert applied() == 11.0


@pytest.mark.usefixtures("svg_only")
@pytest.mark.timeout(120)
def test_a_package_beside_a_study_is_trained_by_workers_and_loaded_elsewhere(
    ablate: Run, lab: Path
) -> None:
    text = STUDY.replace('"my-levels"', '"src/mylab/parts.py"').replace("squared", "lab")
    text = text.replace('norm_kind = ["layernorm", "max-norm"]', "")
    (lab / "mine.toml").write_text(f'{text}[run]\nkeep = "final"\n')
    code, out, error = ablate("run", "mine.toml")
    assert code == 0 and "mine: 4 complete" in out, error
    edit(lab, "helpers.py", "2.0", "2.5")
    out = " ".join(ablate("status", "mine.toml")[1].split())
    assert "src/mylab is another version now" in out, out
    load = "import torch, ablate; m = ablate.load_model(2); m(torch.zeros(1, 4, dtype=int))"
    load += "; print(m.about.run.fields['activation'])"
    notebook = "import sys; sys.path.insert(0, 'src'); import mylab.parts; "
    assert python(notebook + load, cwd=lab).stdout == "lab\n"
    (lab / "elsewhere").mkdir()
    shutil.move(lab / "results", lab / "elsewhere" / "results")
    shutil.rmtree(lab / "src")
    assert python(load, cwd=lab / "elsewhere").stdout == "lab\n"


def test_the_package_of_the_page_can_be_used(lab: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "own-parts.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"```\w+\n# (lab/[\w/.]+)\n(.*?)```", page, re.S):
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text(text)
    outside.find(["lab/src/mylab"], lab)
    assert "rms-gain" in CATALOGUE["norm_kind"].names
    about = tomllib.loads((lab / "lab" / "pyproject.toml").read_text())["project"]
    assert about["entry-points"][used.GROUP] == {"parts": "mylab.parts"}


def test_code_known_by_a_version_alone_is_no_code_to_run() -> None:
    with pytest.raises(AblateError, match=r"my-levels 1\.0"):
        outside.use([Code("my-levels", "1.0")])
