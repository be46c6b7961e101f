"""Metrics and tokenizers of a user's own, from the file to the report; references are by hand."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import train_helpers
from cli_helpers import Run
from report_study import svg_only  # noqa: F401

from ablate import findings, load_model, metrics, outside, text
from ablate.analysis.records import LossyTokenizer
from ablate.code import of_text
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.plan import plan
from ablate.study import load
from ablate.study.parse import parse
from ablate.text import corpora, tokenizers
from ablate.text.tokenizers import Library
from ablate.train.evaluate import Evaluator
from ablate.train.meter import SERIES
from ablate.train.own import OwnMetric, random_tokens
from ablate.train.step import Step
from ablate.trying import tried, tried_metric

ROOT = Path(__file__).parent.parent
TEXTS = ("README.md", "CONTRIBUTING.md", "docs/study-files.md", "docs/own-parts.md")
METRICS = """
import torch
from ablate import metric

@metric("top3", goal="higher", unit="share", meaning="targets among the three likeliest tokens")
def top3(logits, targets):
    return (logits.topk(3).indices == targets[..., None]).any(-1).float()

@metric("repeat_loss", goal="lower", unit="nats per token", meaning="loss on earlier tokens again")
def repeat_loss(losses, inputs, targets):
    seen = (inputs[:, None] == targets[..., None]).tril().any(-1)
    return losses.where(seen, torch.nan)

@metric("even_loss", goal="lower", meaning="loss on tokens of which the first byte is even")
class EvenLoss:
    def __init__(self, spelling):
        self.even = torch.tensor([token[0] % 2 == 0 for token in spelling])
    def tokens(self, losses, targets):
        return losses.where(self.even[targets], torch.nan)

@metric("calibration", goal="lower", meaning="expected calibration error in 10 bins")
class Calibration:
    def tokens(self, logits, targets):
        sure, guess = logits.softmax(-1).max(-1)
        bins = torch.nn.functional.one_hot((10 * sure).long().clamp(max=9), 10)
        return bins * (sure - (guess == targets).float())[..., None]
    def value(self, means):
        return means.abs().sum()
"""
NAMES = ("top3", "repeat_loss", "even_loss", "calibration")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    outside.use(())
    assert "top3" not in metrics.METRICS and not CATALOGUE["tokenizer"].names


def trained(configs: list[RunConfig], final_tokens: int = 0) -> tuple[Step, Evaluator]:
    tokens = train_helpers.text()
    outside.use([of_text("own.py", METRICS)])
    step = Step(configs, tokens, "cpu")
    step.run(20, lambda: False)
    asked = Evaluation(tokens=192, own=outside.measured(), final_tokens=final_tokens or None)
    return step, Evaluator(step, configs, asked, tokens)


def by_hand(logits: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The metrics of logits [W, T, V], token by token."""
    p = torch.from_numpy(logits).double().softmax(-1).numpy()
    nats, top, repeated, even, bins = [], [], [], [], np.zeros(10)
    for w, t in np.ndindex(*targets.shape):
        target, row = targets[w, t], p[w, t]
        nats.append(-math.log(row[target]))
        top.append((row > row[target]).sum() < 3)
        repeated.append(target in inputs[w, : t + 1])
        even.append((65 + target) % 2 == 0)
        bins[min(9, int(10 * row.max()))] += row.max() - (row.argmax() == target)
    loss = np.array(nats)
    return {
        "top3": float(np.mean(top)),
        "repeat_loss": float(loss[np.array(repeated)].mean()),
        "even_loss": float(loss[np.array(even)].mean()),
        "calibration": float(np.abs(bins).sum() / loss.size),
    }


@pytest.mark.parametrize(
    ("n_ctx", "n_vocab", "length"), [(64, 256, 64), (4096, 50_000, 111), (1 << 17, 128_000, 43)]
)
def test_a_metric_is_tried_with_little_memory(n_ctx: int, n_vocab: int, length: int) -> None:
    given = random_tokens(
        train_helpers.config(n_ctx=n_ctx, n_vocab=n_vocab, batch_tokens=n_ctx), 3, "cpu"
    )
    assert given["logits"].shape == (3, length, n_vocab)
    assert given["logits"].nbytes <= 64 << 20
    assert given["targets"].shape == given["losses"].shape == given["inputs"].shape == (3, length)


def test_values_are_those_worked_token_by_token_for_each_member_of_a_pack() -> None:
    configs = [train_helpers.config(seed=seed, lr=lr) for seed, lr in ((1, 1e-3), (2, 2e-2))]
    step, evaluator = trained(configs)
    score = evaluator.held_out()
    finals = {name: values for name, at, values in evaluator.finals() if at == 0}
    windows = evaluator.windows
    with torch.no_grad():
        logits = step.model(windows[None, :, :-1].expand(2, -1, -1)).numpy()
    inputs, targets = windows[:, :-1].numpy(), windows[:, 1:].numpy()
    for k in range(2):
        for name, value in by_hand(logits[k], inputs, targets).items():
            assert score.own[name][k] == pytest.approx(value, rel=1e-5), name
            assert finals[name][k] == score.own[name][k]
    assert finals["top3"][0] != finals["top3"][1]


def test_finals_read_the_tokens_of_the_final_loss() -> None:
    _, evaluator = trained([train_helpers.config()], final_tokens=384)
    point = evaluator.held_out()
    finals = {name: values[0] for name, at, values in evaluator.finals() if at == 0}
    assert finals["repeat_loss"] != point.own["repeat_loss"][0]
    other = Evaluation(tokens=384, own=evaluator.evaluation.own)
    tokens = train_helpers.text()
    again = Evaluator(evaluator.step, [train_helpers.config()], other, tokens).held_out()
    assert finals["repeat_loss"] == pytest.approx(again.own["repeat_loss"][0], rel=1e-6)


def test_only_hidden_tokens_count_for_a_masked_model() -> None:
    config = train_helpers.config(objective="masked", mask_ratio=0.25)
    step, evaluator = trained([config])
    score = evaluator.held_out()
    inputs, targets, weights, *_ = evaluator.example
    with torch.no_grad():
        logits = step.model(inputs)[0].double()
    nats = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none"
    )
    counts = (weights.flatten() > 0) & ((65 + targets.flatten()) % 2 == 0)
    assert score.own["even_loss"][0] == pytest.approx(nats[counts].mean().item(), rel=1e-5)


def test_a_member_that_diverges_takes_no_other_with_it() -> None:
    configs = [train_helpers.config(seed=seed) for seed in (1, 2)]
    step, evaluator = trained(configs)
    with torch.no_grad():
        for parameter in step.model.parameters():
            parameter[1] = torch.nan
    own = evaluator.held_out().own
    assert all(math.isfinite(own[name][0]) and math.isnan(own[name][1]) for name in NAMES)


def test_a_metric_for_which_no_token_counts_is_named() -> None:
    tokens = dataclasses.replace(train_helpers.text(), held_out=np.zeros(400, np.uint8))
    _, evaluator = trained([train_helpers.config()])
    asked = evaluator.evaluation
    with pytest.raises(AblateError, match="'even_loss': every scored token"):
        Evaluator(evaluator.step, [train_helpers.config()], asked, tokens).held_out()


def test_what_runs_record_has_no_second_meaning() -> None:
    assert set(SERIES) <= set(metrics.RECORDED)


# -- a study ---------------------------------------------------------------------------------------

STUDY = """
name = "mine"
question = "Which norm copies better?"
metric = "repeat_loss"
use = ["my_metrics.py"]
seeds = 2
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 32
batch_tokens = 256
tokens = "5K"
lr = 1e-2
[factors]
norm_kind = ["layernorm", "rmsnorm"]
[eval]
points = 2
tokens = "1K"
"""


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(300)
def test_a_metric_decides_a_study(ablate: Run, tmp_path: Path) -> None:
    file = tmp_path / "my_metrics.py"
    file.write_text(METRICS)
    (tmp_path / "mine.toml").write_text(beside(tmp_path, STUDY))
    assert ablate("check", "my_metrics.py")[0] == 0
    assert "mine: 4 complete" in ablate("run", "mine.toml")[1]
    with sqlite3.connect("results/ablate.db") as connection:
        rows = connection.execute(
            "SELECT final.run_id, final.value, metric.value FROM final JOIN metric ON metric.run_id"
            " = final.run_id JOIN series ON series.id = series_id AND series.name = final.name"
            " WHERE final.name = 'repeat_loss' ORDER BY 1, step"
        ).fetchall()
        ((goal, kept),) = connection.execute("SELECT goal, text FROM study, code")
        keys = connection.execute("SELECT key FROM run ORDER BY key").fetchall()
    assert len(rows) == 8 and all(final == last for _, final, last in rows[1::2])  # curve and final
    assert goal == "min" and kept == METRICS

    # an edited metric measures again; the runs are the same ones
    file.write_text(
        METRICS.replace("losses.where(seen, torch.nan)", "2 * losses.where(seen, torch.nan)")
    )
    for command in ("status", "plan"):
        out = " ".join(ablate(command, "mine.toml")[1].split())
        assert "my_metrics.py is another version now" in out and "4 runs of" in out, command
    assert "mine: 4 complete" in ablate("run", "mine.toml")[1]
    with sqlite3.connect("results/ablate.db") as connection:
        again = dict(
            connection.execute("SELECT run_id, value FROM final WHERE name = 'repeat_loss'")
        )
        assert connection.execute("SELECT key FROM run ORDER BY key").fetchall() == keys
    assert [again[run] for run, *_ in rows[::2]] == pytest.approx([2 * row[1] for row in rows[::2]])
    assert "another version" not in ablate("status", "mine.toml")[1]

    # readers need no file
    file.unlink()
    outside.use(())
    code, out, _ = ablate("report", "mine")
    page = (tmp_path / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert code == 0 and "repeat loss (nats per token) (loss on earlier tokens again)" in page
    shutil.copy("results/ablate.db", "other.db")
    for command in (("db", "merge", "other.db"), ("db", "check"), ("analyse", "mine")):
        assert ablate(*command)[0] == 0, command
    assert "repeat_loss" not in metrics.METRICS


def beside(folder: Path, study: str) -> str:
    """A study that reads a text of 100 kB, which tokenizers of one's own encode in no time."""
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in TEXTS)
    (folder / "small.txt").write_text(text, encoding="utf-8")
    return study.replace("[base]", '[base]\ncorpus = "small.txt"')


def of_study(folder: Path, study: str = STUDY) -> Any:
    return plan(parse(beside(folder, study), folder / "mine.toml"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("losses.where(seen, torch.nan)", "losses.mean()", ["'repeat_loss'", "[]", "[W, T]"]),
        ("losses.where(seen, torch.nan)", "losses / 0 + 1 / 0", ["line 12", "ZeroDivisionError"]),
        ("(losses, inputs, targets)", "(loss, targets)", ["'loss'", "did you mean 'losses'"]),
        ('goal="lower", unit', 'goal="min", unit', ["'min'", "lower, higher"]),
        ('"repeat_loss"', '"accuracy"', ["my_metrics.py: metric 'accuracy'", "ablate", "rename"]),
        ('"repeat_loss"', '"train_loss"', ["'train_loss'", "rename"]),
        ('"top3"', '"n_params"', ["my_metrics.py: metric 'n_params'", "column", "rename"]),
        ('"top3"', '"Tokens"', ["metric 'Tokens'", "column 'tokens'", "rename"]),
        ('"repeat_loss"', '"repeat loss"', ["letters, digits and underscores"]),
        ('"top3"', '"repeat_loss"', ["'repeat_loss'", "my_metrics.py", "rename"]),
        ('meaning="loss on earlier tokens again"', 'meaning=""', ["meaning is missing"]),
        ("def tokens(self, losses", "def token(self, losses", ["'even_loss'", "no method tokens"]),
        ("(self, spelling)", "(self, words)", ["'words'", "config, spelling"]),
        ("for token in spelling", "for token in speling", ["'even_loss'", "NameError"]),
        ('"repeat_loss"', '"repeats"', ["unknown metric 'repeat_loss'", "mean 'repeats'"]),
    ],
)
def test_a_metric_that_does_not_serve_is_one_line(
    old: str, new: str, said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "my_metrics.py").write_text(METRICS.replace(old, new))
    with pytest.raises(AblateError) as error:
        of_study(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'mine.toml'}, line ")
    assert all(word in str(error.value) for word in said), str(error.value)
    assert "\n" not in str(error.value)


def test_a_metric_of_tokens_does_not_compare_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "my_metrics.py").write_text(METRICS)
    study = STUDY.replace('norm_kind = ["layernorm", "rmsnorm"]', 'tokenizer = ["byte", "bpe:300"]')
    with pytest.raises(AblateError, match="'repeat_loss' cannot be compared where tokenizer"):
        of_study(tmp_path, study)


@pytest.mark.parametrize(
    ("returned", "failed"),
    [
        ("losses", set()),
        ("losses - losses.mean()", {"windows"}),
        ("losses * torch.rand(())", {"determinism", "windows"}),
        ("losses * KEPT.setdefault(0, torch.rand(()))", {"determinism"}),
        ("losses[0]", {"shapes"}),
    ],
)
def test_trials_of_a_metric(returned: str, failed: set[str]) -> None:
    code = "import torch\nfrom ablate import metric\nKEPT = {}\n"
    code += '@metric("own", goal="lower", meaning="x")\n'
    outside.use([of_text("own.py", f"{code}def own(losses):\n    return {returned}\n")])
    found = tried_metric(metrics.METRICS["own"])
    assert {one.what for one in found if one.verdict == "FAILED"} == failed


# -- tokenizers ------------------------------------------------------------------------------------

TOKENIZERS = """
from ablate import level

@level("tokenizer", "own_bytes", meaning="bytes")
class Bytes:
    n_vocab = 256
    def encode(self, text):
        return list(text.encode())
    def decode(self, tokens):
        return bytes(tokens)

@level("tokenizer", "words", meaning="frequent words, else bytes")
class Words:
    words = [" the", " and", " to", " of"]
    n_vocab = 257 + len(words)
    end = 256
    def encode(self, text):
        for number, word in enumerate(self.words):
            text = text.replace(word, chr(0xE000 + number))
        found = []
        for letter in text:
            private = 0 <= ord(letter) - 0xE000 < len(self.words)
            found += [257 + ord(letter) - 0xE000] if private else letter.encode()
        return found
    def decode(self, tokens):
        spelled = [bytes([k]) for k in range(256)] + [b"", *(w.encode() for w in self.words)]
        return b"".join(spelled[token] for token in tokens)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_tokens_are_those_of_encode(cache: Path) -> None:
    outside.use([of_text("own.py", TOKENIZERS)])
    (cache / "a.txt").write_text("The cat and the dog of the house went to the end. " * 40)
    corpus = corpora.find("a.txt", cache)
    byte, own, words = (
        text.of(corpus, tokenizers.describe(name, corpus, cache))
        for name in ("byte", "own_bytes", "words")
    )
    np.testing.assert_array_equal(own.train, byte.train)
    assert own.separator == byte.separator == (12,) and words.separator == (256,)
    assert own.spelling == byte.spelling and words.spelling is not None
    spelled = b"".join(words.spelling[token] for token in words.train)
    assert spelled == bytes(byte.train[:-1]) and len(words.train) < 0.8 * len(byte.train)
    assert words.train.dtype == np.uint16 and words.train[-1] == 256

    # an edited file has other tokens: another hash, in the cache and in the key of a run
    before = tokenizers.describe("words", corpus, cache)
    outside.use([of_text("own.py", TOKENIZERS.replace('" to", " of"', '" to", " do"'))])
    after = tokenizers.describe("words", corpus, cache)
    assert before.hash != after.hash
    assert not np.array_equal(text.of(corpus, after).train, words.train)
    with pytest.raises(AblateError, match="'words' has changed"):
        tokenizers.open("words", before.hash, iter(()), 0)


def test_a_tokenizer_of_the_library_behind_the_hook_makes_its_tokens(cache: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    words = "the cat and the dog went to the house"
    made.train_from_iterator(
        [words],
        BpeTrainer(vocab_size=300, initial_alphabet=ByteLevel.alphabet(), show_progress=False),
    )
    made.save(str(cache / "tokenizer.json"))
    hook = f"""
from ablate import level
from tokenizers import Tokenizer

@level("tokenizer", "library", meaning="of the library")
class Own:
    def __init__(self):
        self.made = Tokenizer.from_file({str(cache / "tokenizer.json")!r})
        self.n_vocab = self.made.get_vocab_size()
    def encode(self, text):
        return self.made.encode(text).ids
    def decode(self, tokens):
        return self.made.decode(tokens)
"""
    outside.use([of_text("own.py", hook)])
    own = tokenizers.Own("library")
    pieces = [b"the house", b" went and went"]
    assert own.encode(pieces) == Library("own", (cache / "tokenizer.json").read_bytes()).encode(
        pieces
    )


WITH_TOKENIZERS = (
    STUDY.replace("my_metrics.py", "my_tokenizers.py")
    .replace("repeat_loss", "bits_per_byte")
    .replace('norm_kind = ["layernorm", "rmsnorm"]', 'tokenizer = ["byte", "own_bytes", "words"]')
)


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(300)
def test_a_tokenizer_is_a_level_of_a_study(ablate: Run, tmp_path: Path) -> None:
    file = tmp_path / "my_tokenizers.py"
    file.write_text(TOKENIZERS)
    (tmp_path / "mine.toml").write_text(beside(tmp_path, WITH_TOKENIZERS))
    assert ablate("check", "my_tokenizers.py")[0] == 0
    _, out, error = ablate("run", "mine.toml")
    assert "mine: 6 complete" in out, error
    with sqlite3.connect("results/ablate.db") as connection:
        rows = connection.execute(
            "SELECT cell, seed, key, loss, bits_per_byte, code FROM runs ORDER BY cell, seed"
        ).fetchall()
    byte, own, words = rows[:2], rows[2:4], rows[4:]
    assert [row[3:5] for row in byte] == [row[3:5] for row in own]  # the same tokens
    assert not {row[2] for row in byte} & {row[2] for row in own}
    assert all("my_tokenizers.py@" in row[5] for row in (*own, *words))
    assert [json.loads(row[5]) for row in byte] == [[], []]
    file.unlink()
    outside.use(())
    assert ablate("report", "mine")[0] == 0
    page = (tmp_path / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "frequent words, else bytes" in page


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("list(text.encode())", "text + 1", ["line 8", "TypeError"]),
        ("list(text.encode())", "[300]", ["300", "n_vocab - 1 = 255"]),
        ("list(text.encode())", "[text]", ["whole number"]),
        ("    n_vocab = 256\n", "", ["'own_bytes' has no n_vocab", "encode, decode, n_vocab"]),
        ("n_vocab = 256", "n_vocab = 1", ["n_vocab = 1"]),
        ("return bytes(tokens)", "return tokens", ["decode returns list"]),
        (
            "def decode(self, tokens):\n        return bytes",
            "def x(self, t):\n        return t",
            [],
        ),
        ("def encode(self, text):\n        return list", "def x(self, t):\n        return t", []),
        ('"own_bytes"', '"byte"', ["byte, bpe, tokens"]),
        ('"own_bytes"', '"own-bytes"', ["letters, digits and underscores"]),
        ('"own_bytes"', '"own"', ["unknown tokenizer 'own_bytes'", "words"]),
        ("n_vocab = 256\n", "def __init__(self, d_model): ...\n", ["'d_model'", "given nothing"]),
        ("n_vocab = 256\n", "fields = (1,)\n", ["my_tokenizers.py, line 4"]),
    ],
)
def test_a_tokenizer_that_does_not_serve_is_one_line(
    old: str, new: str, said: list[str], cache: Path
) -> None:
    (cache / "my_tokenizers.py").write_text(TOKENIZERS.replace(old, new, 1))
    with pytest.raises(AblateError) as error:
        of_study(cache, WITH_TOKENIZERS)
    assert str(error.value).startswith(f"{cache / 'mine.toml'}, line ")
    assert all(word in str(error.value) for word in said), str(error.value)
    assert "\n" not in str(error.value)


def test_trials_of_a_tokenizer() -> None:
    lossy = TOKENIZERS.replace("list(text.encode())", "list(text.lower().encode())")
    drawn = """
import random
ORDER = []

@level("tokenizer", "drawn", meaning="bytes in an order that the first call draws")
class Drawn(Bytes):
    def order(self):
        ORDER or ORDER.extend(random.sample(range(256), 256))
        return ORDER
    def encode(self, text):
        return [self.order()[one] for one in text.encode()]
    def decode(self, tokens):
        return bytes(map(self.order().index, tokens))
"""
    outside.use([of_text("own.py", lossy + drawn)])
    verdicts = {
        name: {one.what for one in tried(CATALOGUE["tokenizer"][name]) if one.verdict != "ok"}
        for name in ("own_bytes", "words", "drawn")
    }
    assert verdicts == {"own_bytes": {"round trip"}, "words": set(), "drawn": {"determinism"}}


CHANGED = {  # of as many bytes as the text, or nearly
    "lower": "text.lower()",
    "digits": "''.join('0' if c in '123456789' else c for c in text)",
    "accents": "text.replace('é', 'e').replace('ü', 'u')",
}


@pytest.mark.parametrize("name", ["", *CHANGED])
def test_tokens_know_how_much_of_the_text_they_hold(cache: Path, name: str) -> None:
    documents = [f"In {n} Müller {hashlib.sha256(bytes([n])).hexdigest()} café." for n in range(90)]
    (cache / "a.txt").write_text("\f".join(documents))
    changed = f"list({CHANGED[name]}.encode())" if name else "list(text.encode())"
    outside.use([of_text("own.py", TOKENIZERS.replace("list(text.encode())", changed, 1))])
    corpus = corpora.find("a.txt", cache)
    own, byte = (
        text.of(corpus, tokenizers.describe(one, corpus, cache)) for one in ("own_bytes", "byte")
    )
    held_out = bytes(byte.held_out).decode().split("\f")[:-1]
    parts = [part for one in held_out for part in re.findall(r"\w+|\W", one)]
    wrong = {"lower": r".*[A-Z]", "digits": r".*[1-9]", "accents": r".*[éü]"}.get(name, r"$^")
    n = sum(bool(re.match(wrong, part)) for part in parts)
    assert own.text_kept == pytest.approx(1 - n / len(parts))
    assert set(own.lost) - {"byte_coverage"} == ({"text_kept"} if name else set())
    assert byte.lost == {}


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
def test_plan_and_report_name_a_tokenizer_that_changes_the_text(
    ablate: Run, tmp_path: Path
) -> None:
    lossy = TOKENIZERS.replace("list(text.encode())", "list(text.lower().encode())", 1)
    (tmp_path / "my_tokenizers.py").write_text(lossy)
    (tmp_path / "mine.toml").write_text(beside(tmp_path, WITH_TOKENIZERS))
    (note,) = (one for one in plan(load("mine.toml")).notes if "bits_per_byte" in one)
    assert note.startswith("tokenizer = 'own_bytes' ") and "not comparable" in note
    _, out, error = ablate("run", "mine.toml")
    assert "mine: 6 complete" in out, error
    (found,) = findings("mine", "results/ablate.db").of(LossyTokenizer)
    assert (found.tokenizer, found.byte_coverage) == ("own_bytes", 1)
    assert 0.8 < found.text_kept < 0.99
    assert ablate("report", "mine")[0] == 0
    page = (tmp_path / "results" / "mine" / "report.md").read_text().replace("\\", "")
    assert "Warning: the tokenizer own_bytes loses text" in " ".join(page.split())


def test_documents_are_told_apart_by_a_token_of_ones_own(cache: Path) -> None:
    (cache / "my_tokenizers.py").write_text(TOKENIZERS.replace("    end = 256\n", ""))
    study = WITH_TOKENIZERS.replace("lr = 1e-2", 'lr = 1e-2\ndocument_mask = "attention"')
    assert of_study(cache, study).cells  # U+000C is one token
    (cache / "my_tokenizers.py").write_text(
        TOKENIZERS.replace("list(text.encode())", "[b for b in text.encode() for _ in (1, 2)]")
    )
    with pytest.raises(AblateError, match="'own_bytes' ends a document with 2 tokens; give it"):
        of_study(cache, study)


# -- hyper-parameters ------------------------------------------------------------------------------

FIELDS = """
from ablate import Field, level, metric

TOP = Field("top_k", int, 2, "tokens that are looked at")

@metric("top", goal="higher", meaning="among the likeliest", fields=(TOP,))
def top(logits, targets, top_k):
    return (logits.topk(top_k).indices == targets[..., None]).any(-1).float()

@metric("cut", goal="lower", meaning="loss, cut off")
class Cut:
    fields = (Field("most", float, 2, "largest loss that counts"), TOP)
    def __init__(self, most):
        self.most = most
    def tokens(self, losses):
        return losses.clamp(max=self.most)

@level("tokenizer", "words", meaning="frequent words, else bytes")
class Words:
    fields = (Field("n_words", int, 2, "words that have a token"),)
    def __init__(self, n_words):
        self.words = [" the", " and", " to", " of"][:n_words]
        self.n_vocab = 256 + len(self.words)
    def encode(self, text):
        for number, word in enumerate(self.words):
            text = text.replace(word, chr(0xE000 + number))
        return [k for c in text for k in ([ord(c) - 0xDF00] if c >= chr(0xE000) else c.encode())]
    def decode(self, tokens):
        return b"".join(bytes([k]) if k < 256 else self.words[k - 256].encode() for k in tokens)
"""
WITH_FIELDS = (
    STUDY.replace("my_metrics.py", "my_fields.py")
    .replace("repeat_loss", "bits_per_byte")
    .replace('norm_kind = ["layernorm", "rmsnorm"]', "n_words = [0, 3]")
    .replace("lr = 1e-2", 'lr = 1e-2\ntokenizer = "words"\ntop_k = 3')
)


@pytest.mark.usefixtures("svg_only")
@pytest.mark.usefixtures("in_process")
@pytest.mark.timeout(300)
def test_hyper_parameters_are_fields_of_a_study(ablate: Run, tmp_path: Path) -> None:
    file = tmp_path / "my_fields.py"
    file.write_text(FIELDS)
    study = beside(tmp_path, WITH_FIELDS)
    (tmp_path / "mine.toml").write_text(f'{study}[run]\nkeep = "final"\n')
    out = ablate("check", "my_fields.py")[1]
    assert "top_k = 2: tokens that are looked at" in out and "n_words = 2" in out
    out = " ".join(ablate("factors", "n_words", "--use", "my_fields.py")[1].split())
    assert "words that have a token" in out and "tokenizer = words" in out
    assert "most" in ablate("factors", "--use", "my_fields.py")[1]
    outside.use(())
    assert "n_words" not in CATALOGUE and "top_k" not in CATALOGUE
    assert "mine: 4 complete" in ablate("run", "mine.toml")[1]
    with sqlite3.connect("results/ablate.db") as connection:
        rows = connection.execute(
            "SELECT n_words, n_vocab, top_k, most, json_array_length(code), run FROM runs"
            " ORDER BY n_words"
        ).fetchall()
    assert [row[:5] for row in rows] == [(0, 256, 3, 2.0, 1)] * 2 + [(3, 259, 3, 2.0, 1)] * 2

    # readers and models need no file
    file.unlink()
    outside.use(())
    out = ablate("show", "1")[1]
    assert "n_words" in out and "top_k" in out
    for n_words, model in ((row[0], load_model(row[5])) for row in rows[::2]):
        assert model.config.n_words == n_words
        assert len(model.tokenizer.encode("x and y")) == (7 if n_words == 0 else 4)
        assert model.tokenizer.decode(model.tokenizer.encode("x and y")) == "x and y"
    assert ablate("report", "mine")[0] == 0


def test_values_of_hyper_parameters_decide_the_key(cache: Path) -> None:
    (cache / "my_fields.py").write_text(FIELDS)

    def keys(old: str = "", new: str = "") -> set[str]:
        return {run.run.key for run in of_study(cache, WITH_FIELDS.replace(old, new)).runs}

    given, default = keys(), keys("top_k = 3\n")
    assert default == keys("top_k = 3", "top_k = 2") and not default & given
    assert not given & keys("top_k = 3", "top_k = 3\nmost = 5")
    assert len(given & keys("[0, 3]", "[0, 4]")) == 2  # those of the baseline
    (cache / "my_fields.py").write_text(FIELDS + "# edited\n")
    assert not given & keys()

    # a run that no such metric measures keeps its key, beside them too
    plain = RunConfig(tokenizer="byte", code=()).identity
    assert "code" not in plain and "top_k" not in plain


def test_a_metric_computes_with_its_hyper_parameters() -> None:
    outside.use([of_text("my_fields.py", FIELDS)])
    given = random_tokens(RunConfig(n_vocab=19, n_ctx=16), 3, "cpu")
    scored = torch.ones_like(given["targets"], dtype=torch.bool)
    ranks = (given["logits"] > given["logits"].gather(-1, given["targets"][..., None])).sum(-1)
    for k, most in ((1, 0.5), (4, 3.0)):
        config = RunConfig(n_vocab=19, n_ctx=16, top_k=k, most=most)
        found = {
            row.name: OwnMetric(row, config, None).value(
                *OwnMetric(row, config, None).sums(given, scored)
            )
            for row in metrics.with_fields(None)
        }
        assert found["top"] == pytest.approx((ranks < k).double().mean().item())
        assert found["cut"] == pytest.approx(given["losses"].clamp(max=most).mean().item())


@pytest.mark.parametrize(
    ("code", "study", "said"),
    [
        (("int, 2, ", "int, 4, "), ("", ""), None),  # a default may change
        (
            ("(TOP,)", "(Field('top_k', int, 9, 'other'),)"),
            ("", ""),
            ["'cut'", "'top_k'", "Rename"],
        ),
        (("(TOP,)", "(TOP, Field('lr', float, 1.0, 'x'))"), ("", ""), ["'top'", "'lr'", "Rename"]),
        (("(TOP,)", "TOP"), ("", ""), ["fields is a tuple"]),
        (("(TOP,)", "(1,)"), ("", ""), ["fields is a tuple"]),
        (("(TOP,)", "(TOP, TOP)"), ("", ""), ["'top'", "two", "'top_k'"]),
        (("(TOP,)", "(Field('inputs', int, 1, 'x'),)"), ("", ""), ["'inputs'", "rename"]),
        (("targets, top_k", "targets, top_n"), ("", ""), ["'top_n'", "did you mean 'top_k'"]),
        (("(self, n_words)", "(self, words)"), ("", ""), ["'words'", "own `fields`, n_words"]),
        (("", ""), ('use = ["my_fields.py"]\n', ""), ["top_k"]),
        (("", ""), ("top_k = 3", "top_k = 'x'"), ["top_k = 'x'"]),
        (("", ""), ("top_k = 3", "top_k = 400"), ["'top'", "my_fields.py, line"]),
        (("", ""), ('tokenizer = "words"', "n_words = 1"), ["n_words"]),
        (
            ("", ""),
            (
                'tokenizer = "words"\n',
                "n_words = 1\n",
                "n_words = [0, 3]",
                'norm_kind = ["layernorm", "rmsnorm"]',
            ),
            ["n_words has no effect in any cell: it needs tokenizer = 'words'"],
        ),
        (
            ("", ""),
            ('"bits_per_byte"', '"top"', "n_words = [0, 3]", "top_k = [1, 2]", "top_k = 3\n", ""),
            ["'top' cannot be compared where top_k varies", "within"],
        ),
        (
            ("", ""),
            (
                "n_words = [0, 3]",
                'norm_kind = ["layernorm", "rmsnorm"]',
                "[eval]",
                "[tune]\nn_words = [1, 4]\n[eval]",
            ),
            ["[tune] cannot find n_words", "make n_words a factor"],
        ),
        (
            ("", ""),
            ("top_k = 3\n", "", "[eval]", "[tune]\ntop_k = [1, 4]\n[eval]"),
            ["[tune] cannot find top_k"],
        ),
    ],
)
def test_hyper_parameters_that_do_not_serve_are_one_line(
    code: tuple[str, str], study: tuple[str, ...], said: list[str] | None, cache: Path
) -> None:
    assert code[0] in FIELDS
    (cache / "my_fields.py").write_text(FIELDS.replace(*code, 1) if code[0] else FIELDS)
    text = WITH_FIELDS
    for old, new in zip(study[::2], study[1::2], strict=True):
        assert old in text
        text = text.replace(old, new) if old else text
    if said is None:
        assert of_study(cache, text).cells
        return
    with pytest.raises(AblateError) as error:
        of_study(cache, text)
    assert all(word in str(error.value) for word in said), str(error.value)
    assert str(error.value).startswith(f"{cache / 'mine.toml'}, line ")
    assert "\n" not in str(error.value)


def test_a_metric_is_compared_within_the_values_of_its_hyper_parameter(cache: Path) -> None:
    (cache / "my_fields.py").write_text(FIELDS)
    study = WITH_FIELDS.replace('"bits_per_byte"', '"top"').replace("top_k = 3\n", "")
    study = study.replace(
        "n_words = [0, 3]", 'norm_kind = ["layernorm", "rmsnorm"]\ntop_k = [1, 4]'
    )
    found = of_study(cache, study.replace("seeds = 2", 'seeds = 2\nwithin = ["top_k"]'))
    assert len(found.cells) == 4 and len({run.run.pack_key for run in found.runs}) == 4
