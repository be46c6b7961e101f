"""Mutated study files: each is a plan or one clear error, and no other exception."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from study_mutations import mutated, originals

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.plan import plan
from ablate.plan.price import price
from ablate.plan.tiny import tiny
from ablate.study import load
from ablate.study.design import MAX_RUNS

STUDIES = Path(__file__).parent.parent / "studies"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with valid and invalid neighbours of a study and a cache outside."""
    folder = tmp_path / "place"
    (folder / "text").mkdir(parents=True)
    (folder / "words.txt").write_text("some words and more of them\n" * 3000)
    (folder / "text" / "a.txt").write_text("a document\n" * 9000)
    (folder / "binary.gz").write_bytes(b"\x1f\x8b" + bytes(range(256)))
    (folder / "tokenizer.json").write_text('{"model": 1}')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "loop").symlink_to("loop")
    (folder / "loops").mkdir()
    (folder / "loops" / "again").symlink_to(folder)
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as there:
        monkeypatch.chdir(folder)
        there.bind("socket")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    return folder


def tried(file: Path, data: bytes) -> str:
    """Return "plan" or a file's error line; other exceptions are raised."""
    file.write_bytes(data)
    outcome = "plan"
    try:
        study = load(str(file))
        made = plan(study)
        runs = (*made.runs, *made.later)
        assert 0 < price(made).runs <= len(runs) <= 2 * MAX_RUNS
        for config in {cell.label: cell.config for cell in made.cells}.values():
            if config is None:  # of a script
                continue
            assert max(numbers(config)) < 1 << 63, "a column of the database holds it"
        tiny(study)
    except AblateError as error:
        outcome = str(error)
        assert str(file) in outcome and len(outcome) < 2000 + 2 * len(str(file))
    return outcome


def numbers(config: RunConfig) -> list[int]:
    """The whole numbers that the database keeps of a run."""
    fields = [value for value in config.model_dump().values() if isinstance(value, int)]
    return [*fields, config.tokens, sizes.count(config).params]


SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("chunk", "number"), [(0, 300), *(pytest.param(k, 800, marks=SLOW) for k in range(1, 26))]
)
def test_mutated_files_are_plans_or_errors(place: Path, chunk: int, number: int) -> None:
    file = place / "small.toml"
    file.touch()
    before, plans = sorted(place.rglob("*")), []

    @seed(chunk)
    @settings(max_examples=number, deadline=None, database=None)
    @given(data=mutated(originals(STUDIES)))
    def fuzz(data: bytes) -> None:
        plans.append(tried(file, data) == "plan")

    fuzz()
    assert number / 15 < sum(plans) < number / 1.1
    assert sorted(place.rglob("*")) == before, "nothing is written"


# -- what would explode ----------------------------------------------------------------------------

PLAIN = """\
name = "p"
question = "?"
seeds = 2
[base]
d_model = 64
tokens = "1M"
[factors]
topology = [1, 5]
"""
MANY = list(range(1, 1001))
TUNED = '[tune]\nlr = [1e-9, 100]\nper = "cell"\n'
EXPLOSIONS = {
    "a grid of 10^9": (
        PLAIN + f"n_layer = {MANY}\nlr = {MANY}\nweight_decay = {MANY}\n",
        "2,000,000,000 cells × 2 seeds are",
    ),
    "strata of 10^6": (
        "within = ['lr', 'd_mlp']\n" + PLAIN + f"lr = {MANY}\nd_mlp = {MANY}\n",
        "2,000,000 cells",
    ),
    "seeds = 10^9": (
        PLAIN.replace("seeds = 2", "seeds = 1000000000"),
        "seeds = 1000000000: between 1 and",
    ),
    "seeds.max = 10^9": (
        PLAIN.replace("= 2", "= { pilot = 2, resolution = 1, max = 1000000000 }"),
        "seeds.max = 1000",
    ),
    "a list of seeds": (
        PLAIN.replace("seeds = 2", f'design = "grid"\nseeds = {[*range(30_000)]}')
        + 'norm = ["pre", "post", "peri", "none"]\n',
        "8 cells × 30,000 seeds",
    ),
    "a list of levels": (PLAIN + f"lr = {[*range(1, 20_000)]}", "more than 4,096 cells"),
    "a file of 10^7 levels": (PLAIN + "lr = [" + "1," * 10**7 + "]", "too large for a study file"),
    "points = 10^9": (PLAIN + "[eval]\npoints = 1000000000", "line 10: eval.points = 1000000000"),
    "tokens = 10^29": (PLAIN + "[eval]\ntokens = 1e29", "line 10: eval.tokens = "),
    "lengths": (PLAIN + f"[eval]\nlengths = {[k / 64 for k in MANY]}", "line 10: eval.lengths"),
    "tune.points": (PLAIN + TUNED + "points = 1000000000", "line 12: tune.points = 1000000000"),
    "tune.seeds": (
        PLAIN + TUNED + "points = 100\nseeds = 1000",
        "2 groups × 100 rates × 1,000 seeds to tune; more than",
    ),
    "nested tables": (PLAIN + "[eval]\npoints" + ".a" * 2000 + " = 1", "line 9: eval.points = "),
    "many numbers": (PLAIN + "lr = [\n" + "1.5e-3, " * 200 + "2]", "is listed twice"),
    "more nested lists": (PLAIN + "lr = " + "[" * 90_000, "not valid TOML"),
    "a number of 30,000 digits": (PLAIN + "lr = [1, 0x" + "f" * 30_000 + "]", "line 9: lr = "),
    "a wide model": (
        PLAIN.replace("d_model = 64", "d_model = 64\nd_mlp = 1e29"),
        "line 6: d_mlp = ",
    ),
    "a long run": (
        PLAIN.replace('"1M"', "1e15").replace("64", "64\nbatch_tokens = 256"),
        "too many for a run",
    ),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_what_would_explode_is_refused(place: Path, name: str) -> None:
    text, words = EXPLOSIONS[name]
    assert words in tried(place / "small.toml", text.encode())


# -- what a study file names -----------------------------------------------------------------------

PATHS = {
    "fifo": "it is not a regular file",
    "socket": "it is not a regular file",
    "/dev/zero": "it is not a regular file",
    "loop": "path",
    "dangling": "no such file",
    "loops/**/*.doc": "no such file",
    "a**b": "can only be an entire path component",
    "~nobody-has-this-home/x": "path",
    "a" * 5000: "cannot be read: file name too long",
    "a\\u0000b": "path: it holds a NUL character",
}


@pytest.mark.parametrize("key", ["corpus", "tokenizer"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:20])
def test_an_unreadable_path_is_reported_with_its_line(place: Path, key: str, path: str) -> None:
    outcome = tried(
        place / "small.toml", PLAIN.replace("[base]", f'[base]\n{key} = "{path}"').encode()
    )
    assert "line 5: " in outcome
    assert key == "tokenizer" or PATHS[path] in outcome


def test_links_in_circles_are_not_followed(place: Path) -> None:
    """Two links back multiply with every level: followed, they would lead to 2^40 files."""
    (place / "loops" / "once more").symlink_to(place)
    for corpus in ("**/*.txt", "loops/../text"):
        text = PLAIN.replace("[base]", f'[base]\ncorpus = "{corpus}"').replace('"1M"', '"10K"')
        assert tried(place / "small.toml", text.encode()) == "plan"
