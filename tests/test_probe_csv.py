"""The linear probe on a study's own texts: what is read, split, measured, said and refused."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_helpers import Run
from train_helpers import run as train

from ablate import outside, text
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.passages import Passages, fit, labelled
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.plan import Plan, plan
from ablate.store import Database
from ablate.store.evaluated import differing
from ablate.store.register import as_measured, register
from ablate.study.parse import parse
from ablate.text import labels
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step

Rows = Sequence[tuple[str, str]]


def rows_of(**sizes: int) -> list[tuple[str, str]]:
    """Texts of classes, which repeat a letter of their own, mixed as in a shuffled file."""
    made = [
        (f"{name[0] * (3 + number % 7)} number {number}", name)
        for name, size in sizes.items()
        for number in range(size)
    ]
    return [made[i] for i in np.random.default_rng(0).permutation(len(made))]


def write(path: Path, rows: Rows, columns: Sequence[str] = ("text", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


# -- the file --------------------------------------------------------------------------------------


def test_a_fifth_of_each_class_is_tested_and_the_rest_fitted(tmp_path: Path) -> None:
    rows = rows_of(alpha=50, beta=23, gamma=10)
    found = labels.read(write(tmp_path / "a.csv", rows))
    assert found.names == ("alpha", "beta", "gamma")
    assert [(one, found.names[k]) for one, k in zip(found.texts, found.classes, strict=True)] == (
        rows
    )
    assert found.counts.tolist() == [[10, 4, 2], [40, 19, 8]]
    assert found.chance == 10 / 16
    assert found.hash == hashlib.sha256((tmp_path / "a.csv").read_bytes()).hexdigest()


def held_back(path: Path) -> set[str]:
    found = labels.read(path)
    return {one for one, fitted in zip(found.texts, found.fitted, strict=True) if not fitted}


def test_the_split_follows_from_the_texts_of_a_class_alone(tmp_path: Path) -> None:
    rows = rows_of(alpha=40, beta=30)
    expected = held_back(write(tmp_path / "a.csv", rows))
    assert held_back(write(tmp_path / "b.csv", rows[::-1])) == expected
    # rows that stand several times, another class, another column
    more = [*rows, *rows[:20], *((f"new {n}", "other") for n in range(10))]
    path = tmp_path / "c.csv"
    write(path, [(label, one, "x") for one, label in more], ("label", "text", "source"))
    of_old = {one for one in held_back(path) if not one.startswith("new")}
    assert of_old == expected and len(labels.read(path).texts) == 80


@pytest.mark.parametrize(
    "written",
    [
        lambda content: content,
        lambda content: "\ufeff" + content,
        lambda content: content.replace("\r\n", "\n"),
        lambda content: content + "\r\n\r\n",
    ],
    ids=["as Python writes it", "byte order mark", "line feeds", "blank lines"],
)
def test_quotes_commas_and_line_ends_inside_a_text_are_kept(
    tmp_path: Path, written: Callable[[str], str]
) -> None:
    rows = [(f'{n}: "so", she said\nand left', "ab"[n % 2]) for n in range(30)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("text", "label"), *rows])
    (tmp_path / "a.csv").write_bytes(written(buffer.getvalue()).encode())
    assert labels.read(tmp_path / "a.csv").texts == tuple(one for one, _ in rows)


def test_a_semicolon_may_separate_the_columns(tmp_path: Path) -> None:
    rows = rows_of(alpha=20, beta=20)
    with (tmp_path / "b.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("text", "label"), *rows])
    expected = labels.read(write(tmp_path / "a.csv", rows))
    assert labels.read(tmp_path / "b.csv").texts == expected.texts


def test_a_tsv_file_and_a_text_beyond_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    rows = [("x" * 200_000 + str(n), "ab"[n % 2]) for n in range(20)]
    lines = ["\t".join(row) for row in [("text", "label"), *rows]]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    assert [len(one) for one in labels.read(tmp_path / "a.tsv").texts[:2]] == [200_001] * 2


STUDY = """
name = "probed"
question = "Do features differ?"
metric = "{metric}"
seeds = 1
[base]
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 64
tokens = 640
corpus = "{corpus}"
tokenizer = "{tokenizer}"
{base}
[factors]
norm = ["pre", "post"]
[eval]
points = 1
tokens = 64
{evaluation}
"""
PROBED = 'probe_csv = "labels.csv"'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and labels.csv, which is also the working directory."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("\n".join(f"some words, {n} times" for n in range(300)))
    (tmp_path / "bins").mkdir()
    for name in ("train.bin", "val.bin"):
        (np.arange(2000) % 50).astype("<u2").tofile(tmp_path / "bins" / name)
    write(tmp_path / "labels.csv", rows_of(alpha=40, beta=20))
    return tmp_path


def planned(
    folder: Path,
    evaluation: str = PROBED,
    metric: str = "label_accuracy",
    base: str = "",
    corpus: str = "words.txt",
    tokenizer: str = "byte",
) -> Plan:
    """The plan of a study file in the folder."""
    written = STUDY.format(
        metric=metric, evaluation=evaluation, base=base, corpus=corpus, tokenizer=tokenizer
    )
    (folder / "probed.toml").write_text(written)
    return plan(parse(written, folder / "probed.toml"))


REFUSED: list[tuple[str | None, str]] = [
    (None, "there is no such file"),
    ("", "text and label, once each; it has nothing"),
    ("text,class\na,b\n", "text and label, once each; it has 'text', 'class'"),
    ("text,label,text\na,b,c\n", "text and label, once each"),
    ("text,label\n", "it has no rows"),
    ("text,label\n" + "".join(f"{n},a\n" for n in range(40)), "all texts have the label 'a'"),
    (
        "text,label\n" + "".join(f"{n},{'ab'[n > 30]}\n" for n in range(40)),
        "label 'b' has 9 different texts; a probe needs 10 or more",
    ),
    ("text,label\n" + "same,a\n" * 20 + "other,b\n" * 20, "label 'a' has 1 different texts"),
    ("text,label\nx,a\n,b\n", "line 3: there is no text"),
    ("text,label\nx,a\ny, \n", "line 3: there is no label"),
    ("text,label\nx,a\ny\n", "line 3: 1 fields, but the first line names 2"),
    ('text,label\nx,a\n"y,b\n', "line 3: unexpected end of data"),
    ("text,label\nx\0,a\n", "NUL bytes"),
]


@pytest.mark.parametrize(("content", "complaint"), REFUSED, ids=[said for _, said in REFUSED])
def test_a_file_that_does_not_serve_is_refused_with_its_line_in_the_study(
    folder: Path, content: str | None, complaint: str
) -> None:
    path = folder / "labels.csv"
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(AblateError) as error:
        planned(folder)
    assert "probed.toml, line 21: " in str(error.value) and complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"evaluation": ""}, "line 4: label_accuracy needs .* probe_csv"),
        ({"evaluation": "", "metric": "label_chance"}, "needs .* probe_csv"),
        (
            {"evaluation": 'downstream = ["label_accuracy"]', "metric": "loss"},
            "line 21: label_accuracy needs .* probe_csv",
        ),
        ({"evaluation": 'probe_csv_hash = "0"', "metric": "loss"}, "key of .* 'probe_csv_hash'"),
        ({"evaluation": 'probe_csv = "."'}, "it is not a file"),
        ({"corpus": "bins", "tokenizer": "tokens"}, "line 21: cell .* 'tokens' cannot encode"),
    ],
)
def test_a_study_that_cannot_be_probed_is_refused(
    folder: Path, changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(AblateError, match=complaint):
        planned(folder, **changed)


def test_plan_shows_texts_a_class_and_chance(folder: Path, ablate: Run) -> None:
    planned(folder, metric="loss")
    code, out, _ = ablate("plan", "probed.toml")
    words = " ".join(out.split())
    assert code == 0
    assert "60 texts of labels.csv, fitted + tested: alpha 32 + 8 and beta 16 + 4" in words
    assert "chance 66.7%" in words


def test_plan_counts_texts_with_more_than_one_label(folder: Path, ablate: Run) -> None:
    planned(folder, metric="loss")
    assert "more than one label" not in ablate("plan", "probed.toml")[1]
    rows = rows_of(alpha=40, beta=20)
    twice = [(rows[n][0], {"alpha": "beta", "beta": "alpha"}[rows[n][1]]) for n in range(3)]
    write(folder / "labels.csv", [*rows, *twice, rows[5]])
    words = " ".join(ablate("plan", "probed.toml")[1].split())
    assert "Warning: texts with more than one label in labels.csv: 3;" in words


def test_arms_that_read_texts_of_unequal_length_are_named(folder: Path) -> None:
    assert not [one for one in planned(folder).confounds if one.kind == "passages"]
    written = (folder / "probed.toml").read_text().replace('norm = ["pre", "post"]', "n_ctx = [8]")
    written = written.replace("n_ctx = [8]", "n_ctx = [16, 8]").replace("n_ctx = 16\n", "")
    (found,) = [
        one
        for one in plan(parse(written, folder / "probed.toml")).confounds
        if one.kind == "passages"
    ]
    assert found.cell == "n_ctx=8" and "8 tokens, instead of 16" in found.text


# -- what is measured ------------------------------------------------------------------------------

POSITIONS = CATALOGUE["position"].names


def reference(step: Step, config: RunConfig, encoded: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Features of each text, read alone, averaged over its first n_ctx tokens; [K, C] each."""
    model = step.model.eval()
    with torch.no_grad():
        return [
            model.features(
                torch.tensor(list(tokens[: config.n_ctx])).expand(step.model.pack, 1, -1)
            )
            .mean((1, 2))
            .numpy()
            for tokens in encoded
        ]


@pytest.mark.parametrize(
    "fields",
    [
        *({"position": position} for position in POSITIONS),
        *({"position": position, "objective": "masked"} for position in POSITIONS),
        {"document_mask": "attention"},
    ],
    ids=str,
)
def test_features_and_accuracy_are_those_of_texts_read_alone(
    folder: Path, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned(folder, base="\n".join(f'{k} = "{v}"' for k, v in fields.items()))
    configs = [made.cells[0].config.model_copy(update={"seed": seed}) for seed in range(2)]
    tokens = text.load(configs[0], made.sources)
    step = Step(configs, tokens, "cpu")
    evaluator = Evaluator(step, configs, made.study.evaluation, tokens, made.sources)
    probed: list[torch.Tensor] = []
    accuracy_of = Passages.accuracy

    def accuracy(self: Passages, features: torch.Tensor) -> float:
        probed.append(features)
        return accuracy_of(self, features)

    monkeypatch.setattr(Passages, "accuracy", accuracy)
    finals = {name: values for name, _, values in evaluator.finals()}
    found = labels.read(folder / "labels.csv")
    features = np.stack(reference(step, configs[0], [one.encode() for one in found.texts]), 1)
    assert {len(one) > 16 for one in found.texts} == {True, False}
    np.testing.assert_allclose(np.stack([one.numpy() for one in probed]), features, atol=1e-5)
    for member, share in zip(features.astype(float), finals["label_accuracy"], strict=True):
        probe = fit(member[found.fitted], found.classes[found.fitted])
        predicted = probe.predict(member[~found.fitted])
        assert share == (predicted == found.classes[~found.fitted]).mean()
    commonest = Counter(found.classes[~found.fitted].tolist()).most_common(1)[0][1]
    assert finals["label_chance"] == [commonest / (~found.fitted).sum()] * 2


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n_vocab, d_model):
        super().__init__()
        self.embed, self.head = nn.Embedding(n_vocab, 24), nn.Linear(24, n_vocab)
    def features(self, tokens):
        x = self.embed(tokens)
        n = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return x + x.cumsum(1) / n
    def forward(self, tokens):
        return self.head(self.features(tokens))
"""


def of_model(folder: Path, model: str = MODEL, more: str = "", evaluation: str = PROBED) -> Plan:
    (folder / "model.py").write_text(model)
    written = STUDY.format(
        metric="loss",
        evaluation=evaluation,
        base=f'architecture = "model.py:Model"\n{more}',
        corpus="words.txt",
        tokenizer="byte",
    ).replace('norm = ["pre", "post"]', "lr = [1e-3, 2e-3]")
    return plan(parse(written, folder / "probed.toml"))


def test_a_whole_model_is_probed_by_its_features(folder: Path) -> None:
    made = of_model(folder)
    configs = [made.cells[0].config.model_copy(update={"seed": seed}) for seed in range(2)]
    tokens = text.load(configs[0], made.sources)
    step = Step(configs, tokens, "cpu")
    evaluator = Evaluator(step, configs, made.study.evaluation, tokens, made.sources)
    finals = {name: values for name, _, values in evaluator.finals()}
    found = labels.read(folder / "labels.csv")
    plain = step.model.model.member
    for k in range(2):
        table = plain.embed.weight[k].detach().double().numpy()
        rows = []
        for one in found.texts:
            x = table[list(one.encode()[:16])]
            rows.append((x + x.cumsum(0) / np.arange(1, len(x) + 1)[:, None]).mean(0))
        features = np.array(rows)
        predicted = fit(features[found.fitted], found.classes[found.fitted]).predict(features)
        right = (predicted == found.classes)[~found.fitted].mean()
        assert finals["label_accuracy"][k] == pytest.approx(right, abs=1e-9)
    outside.use(())


@pytest.mark.parametrize(
    ("model", "more", "evaluation", "complaint"),
    [
        (MODEL.replace("features", "states"), "", PROBED, "line 2.: .*give its class a method fea"),
        (
            MODEL.replace("features", "states"),
            "",
            'downstream = ["novel_accuracy"]',
            "line 2.: .*novel_accuracy is a linear probe on hidden states",
        ),
        (MODEL, 'objective = "masked"', PROBED, "line 2.: .*sees what fills them"),
    ],
)
def test_a_whole_model_that_cannot_be_probed_is_refused(
    folder: Path, model: str, more: str, evaluation: str, complaint: str
) -> None:
    with pytest.raises(AblateError, match=complaint) as error:
        of_model(folder, model, more, evaluation)
    assert "\n" not in str(error.value)
    outside.use(())


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:300"])
def test_texts_are_encoded_by_the_tokenizer_of_the_run(folder: Path, tokenizer: str) -> None:
    made = planned(folder, tokenizer=tokenizer)
    config = made.cells[0].config
    found = labelled(made.study.evaluation, config, made.sources)
    spelling = text.load(config, made.sources).spelling
    assert spelling and found.lengths is not None
    for row, length, whole in zip(
        found.inputs, found.lengths, labels.read(folder / "labels.csv").texts, strict=True
    ):
        read = b"".join(spelling[token] for token in row[:length].tolist()).decode()
        assert whole.startswith(read) and (read == whole or length == config.n_ctx)


def test_a_run_reports_the_accuracy_as_a_final(folder: Path) -> None:
    made = planned(folder)
    config = made.cells[0].config
    (events,) = train(
        config,
        evaluation=made.study.evaluation,
        tokens=text.load(config, made.sources),
        sources=made.sources,
    )
    assert set(made.study.evaluation.finals(config)) <= set(events.finals())
    assert events.finals()["label_chance", 0] == 8 / 12
    # each class repeats a letter of its own
    assert events.finals()["label_accuracy", 0] > 8 / 12


# -- identity --------------------------------------------------------------------------------------


def test_the_content_of_the_file_decides_whether_results_are_comparable(folder: Path) -> None:
    first = planned(folder).study.evaluation
    (folder / "labels.csv").rename(folder / "other.csv")
    moved = planned(folder, evaluation='probe_csv = "other.csv"').study.evaluation
    assert moved.probe_csv_hash == first.probe_csv_hash and not differing(moved, [first])
    write(folder / "other.csv", rows_of(alpha=41, beta=20))
    changed = planned(folder, evaluation='probe_csv = "other.csv"').study.evaluation
    assert differing(changed, [first]) == ["label_accuracy", "label_chance"]
    without = Evaluation(points=1, tokens=64)
    assert not differing(changed, [without]) and not differing(without, [changed])


def test_a_changed_file_is_a_changed_study_and_no_file_is_none(folder: Path, db: Database) -> None:
    def revision() -> int:
        made = planned(folder)
        study_id = register(db, as_measured(db, made))
        with db.read() as connection:
            (found,) = connection.exec_driver_sql(
                "SELECT revision FROM study WHERE id = ?", (study_id,)
            ).scalars()
        return int(found)

    assert [revision(), revision()] == [1, 1]
    write(folder / "labels.csv", rows_of(alpha=41, beta=20))
    assert revision() == 2
    assert "probe_csv" not in Evaluation().model_dump(exclude_none=True)


def test_a_file_that_changes_between_plan_and_run_is_not_measured(folder: Path) -> None:
    made = planned(folder)
    write(folder / "labels.csv", rows_of(alpha=41, beta=20))
    for sources in (made.sources, {}):
        with pytest.raises(AblateError, match=r"'labels.csv' has changed since"):
            labelled(made.study.evaluation, made.cells[0].config, sources)
