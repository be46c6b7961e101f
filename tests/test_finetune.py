"""Fine-tuned models against independent computations; tasks, keys and plans of fine-tuning."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from finetune_study import BASE, METHODS, folder_of, planned, refused, table, texts
from torch import Tensor
from train_helpers import Events, text

from ablate import sizes
from ablate.config import RunConfig
from ablate.data.passages import Passages
from ablate.data.tasks import chosen
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, Run, kind
from ablate.kinds.transformer import run_of
from ablate.model.finetuned import Classifier, merge
from ablate.model.transformer import beside, model_of
from ablate.plan import Plan, plan
from ablate.plan.price import price
from ablate.study import load
from ablate.text import tasks
from ablate.train.finetune import Finetuning
from ablate.train.on_task import Parts
from ablate.train.step import Step

SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "cls": {"objective": "masked", "pooling": "cls"},
    "tied": {"norm": "peri", "bias": "none", "tie_embeddings": "tied", "pooling": "last"},
    "bert": {"objective": "masked", "mlm_head_transform": "dense", "norm": "post"},
    "grouped": {"n_kv_head": 1, "norm_kind": "rmsnorm", "position": "learned"},
    "gpt": {"text_format": "gpt", "special_ids": (-1, -1, -1), "n_texts": 2},
    "pair": {
        "text_format": "bert",
        "special_ids": (-1, 3),
        "objective": "masked",
        "tie_embeddings": "tied",
        "n_texts": 2,
    },
}
ENCODES = {"architecture": "encoder-decoder", "objective": "denoise", "position": "t5"}
ENCODERS: dict[str, dict[str, Any]] = {
    "encoder": ENCODES,
    "language model": ENCODES | {"corruption": "causal", "tie_embeddings": "tied"},
}
OF_SHAPES = [
    (shape, method)
    for shape, fields in (SHAPES | ENCODERS).items()
    for method in ("scratch", "full", "head", "adapter", "lora")
    if "architecture" not in fields or method not in ("adapter", "lora")
]
STARTING = ("scratch", "full", "head", "adapter", "lora")


def config(**fields: Any) -> RunConfig:
    given = {"d_model": 16, "n_layer": 2, "n_head": 2, "n_ctx": 12, "batch_tokens": 24}
    objective = fields.get("objective", "causal")
    special = {"masked": 1, "denoise": 2}.get(objective, 0)
    given |= {"n_vocab": 32 + special, "n_class": 3}
    return RunConfig(**given | fields)


def classifier(config: RunConfig) -> Classifier:
    """A model whose classifier and additions are random, so that each of them matters."""
    model = model_of(config)
    model.initialise([3])
    made = Classifier(model, config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.trained.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made


@pytest.fixture
def tokens() -> tuple[Tensor, Tensor]:
    inputs = torch.randint(32, (4, 11), generator=torch.Generator().manual_seed(0))
    return inputs, torch.tensor([11, 7, 3, 1])


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "method"), OF_SHAPES)
def test_a_model_starts_as_its_parent_and_trains_as_much_as_is_stated(
    shape: str, method: str, tokens: tuple[Tensor, Tensor]
) -> None:
    of = config(method=method, **(SHAPES | ENCODERS)[shape])
    model = model_of(of)
    model.initialise([3])
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    read = (tokens[0][None], *beside(of, tokens[0][None]))
    with torch.no_grad():  # whether a bias is learned decides the kernel, and so the last bit
        logits = model(*read)
        made = Classifier(model, of)
        assert torch.equal(model(*read), logits)
    assert torch.equal(made(*tokens), torch.zeros(4, 3))
    after = {name.replace(".inner.", "."): p for name, p in model.named_parameters()}
    after |= {name.replace("parametrizations.weight.original", "weight"): p
              for name, p in after.items()}  # fmt: skip
    assert all(torch.equal(after[name], parameter) for name, parameter in before.items())
    stated = sizes.finetuned(of)
    assert sum(p.numel() for p in made.parameters()) == stated.params
    assert sum(p.numel() for p in made.trained.values()) == stated.trained
    with torch.no_grad():
        made.classifier.weight.normal_()
    made(*tokens).square().sum().backward()
    # all that is trained decides the classes; a LoRA's first factor starts without a gradient
    assert all(p.grad is not None for p in made.trained.values())


def test_the_trained_parameters_of_adapters_and_low_rank_changes_are_those_of_the_papers() -> None:
    """By hand: C = 16, 2 blocks, 3 classes, 5 norms with gain and bias."""
    head = 3 * 16 + 3
    adapters = 4 * (2 * 16 * 5 + 5 + 16) + 5 * 2 * 16 + head
    assert sizes.finetuned(config(method="adapter", adapter_size=5)).trained == adapters
    low_rank = 2 * 2 * (3 * 16 + 16 * 3) + head
    assert sizes.finetuned(config(method="lora", lora_rank=3)).trained == low_rank
    assert sizes.finetuned(config(method="head")).trained == head


@pytest.mark.parametrize(("shape", "method"), OF_SHAPES)
def test_what_fills_a_text_up_changes_nothing(
    shape: str, method: str, tokens: tuple[Tensor, Tensor]
) -> None:
    made = classifier(config(method=method, **(SHAPES | ENCODERS)[shape]))
    together = made(*tokens)
    for row, length in enumerate(tokens[1].tolist()):
        alone = made(tokens[0][row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_the_classifier_reads_the_features_that_pooling_names(
    pooling: str, tokens: tuple[Tensor, Tensor]
) -> None:
    objective = "masked" if pooling == "cls" else "causal"
    made = classifier(config(method="head", pooling=pooling, objective=objective))
    given = tokens[0][:1]
    if pooling == "cls":  # [MASK] is token 32
        given = torch.cat([torch.tensor([[32]]), given], 1)
    features = made.model.features(given[None])[0, 0]  # type: ignore[operator]
    pooled = {"mean": features.mean(0), "last": features[-1], "cls": features[0]}[pooling]
    weight, bias = made.classifier.weight[0], made.classifier.bias[0]  # type: ignore[index]
    torch.testing.assert_close(made(tokens[0][:1], torch.tensor([11]))[0], weight @ pooled + bias)


def test_low_rank_changes_are_products_and_can_be_merged(tokens: tuple[Tensor, Tensor]) -> None:
    of = config(method="lora", lora_rank=2)
    made = classifier(of)
    logits = made(*tokens)
    plain = model_of(of)
    plain.initialise([3])
    for block, changed in zip(plain.blocks, made.model.blocks, strict=True):  # type: ignore[arg-type]
        for name in ("query", "value"):
            change = getattr(changed.attention, name).parametrizations.weight[0]
            product = change.b.weight[0].detach() @ change.a.weight[0].detach()
            assert torch.linalg.matrix_rank(product) == 2
            getattr(block.attention, name).weight.data += product
    expected = plain.features(tokens[0][:1][None])
    torch.testing.assert_close(made.model.features(tokens[0][:1][None]), expected)  # type: ignore[operator]
    merge(made.model)
    assert made.model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(made(*tokens), logits)


def test_an_adapter_acts_on_the_output_of_its_sublayer() -> None:
    made = classifier(config(method="adapter", adapter_size=3))
    block: Any = made.model.blocks[1]  # type: ignore[index]
    x = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(2))
    for adapted, read in ((block.attention, (x, None)), (block.mlp, (x,))):
        y = adapted.inner(*read)
        one = adapted.adapter
        down = F.linear(y[0], one.down.weight[0], one.down.bias[0])
        expected = y[0] + F.linear(F.gelu(down), one.up.weight[0], one.up.bias[0])
        assert not torch.allclose(expected, y[0])
        torch.testing.assert_close(adapted(*read)[0], expected)


# -- training --------------------------------------------------------------------------------------


def passages(n: int = 40) -> Passages:
    """Texts of two classes, told apart by their tokens; the last eight are held out."""
    generator = torch.Generator().manual_seed(0)
    classes = np.arange(n) % 2
    inputs = torch.randint(16, (n, 10), generator=generator) + 16 * torch.tensor(classes)[:, None]
    return Passages(inputs.int(), classes, np.arange(n) < n - 8, np.full(n, 10))


def finetuned(of: RunConfig, **changes: Any) -> tuple[Finetuning, Events]:
    """Train a run from the weights of seed 0, without a parent's file."""
    step = Step([of], text(), "cpu")
    events = Events()
    run = Run("finetune", of.model_dump(mode="json", exclude={"seed"}), of.seed)
    job = Job((run,), Evaluation(points=2), **changes)
    training = Finetuning(Parts(step, passages(), None), job, Context("cpu", [events]), 0.0)
    training.run()
    return training, events


@pytest.mark.parametrize("method", STARTING)
def test_training_changes_what_its_method_trains_and_no_bit_else(method: str) -> None:
    of = config(method=method, n_class=2, finetune_steps=8, finetune_lr=1e-2, finetune_batch=8)
    start = Classifier(Step([of], text(), "cpu").model, of).state_dict()
    training, events = finetuned(of)
    assert events.end["status"] == "complete"
    changed = {
        name
        for name, tensor in training.model.state_dict().items()
        if (tensor != start[name]).any()
    }
    assert changed == set(training.model.trained)
    frozen = {name for name in start if "unembedding" in name}
    assert not frozen & changed
    losses = events.series("task_loss")
    assert losses[8] < losses[4] < np.log(2)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    *(("full", {"method": method}) for method in STARTING if method not in ("full", "scratch")),
    *(("full", {"pooling": "last"}), ("full", {"labels": 20}), ("full", {"seed": 1})),
    *(("full", {"finetune_steps": 5}), ("full", {"finetune_lr": 1e-2})),
    *(("full", {"finetune_batch": 4}), ("full", {"warmup": 0.5}), ("full", {"weight_decay": 0.9})),
    *(("adapter", {"adapter_size": 3}), ("lora", {"lora_rank": 1})),
]


@pytest.mark.parametrize(("method", "change"), CHANGES, ids=str)
def test_every_field_of_a_task_changes_the_numbers(method: str, change: dict[str, Any]) -> None:
    of = {"method": method, "n_class": 2, "finetune_steps": 4, "finetune_batch": 8}
    plain, changed = (finetuned(config(**fields))[1].series("task_loss")
                      for fields in (of, of | change))  # fmt: skip
    assert list(plain.values()) != list(changed.values())


def test_micro_batches_train_as_a_whole_batch_does() -> None:
    of = config(method="full", n_class=2, finetune_steps=4, finetune_batch=8, batch_tokens=48)
    whole, parts = (finetuned(of, micro_batch=n)[1] for n in (0, 3))
    curve = whole.series("train_loss")
    assert curve.keys() == {1, 2, 3, 4}
    assert list(parts.series("train_loss").values()) == pytest.approx(list(curve.values()))


def test_an_epoch_reads_each_text_once_in_an_order_of_the_seed() -> None:
    def order(seed: int, method: str) -> list[int]:
        given = {"n_class": 2, "finetune_steps": 4, "finetune_batch": 10, "labels": 20}
        training, _ = finetuned(config(method=method, seed=seed, **given))
        return [int(row) for step in range(4) for row in training._batch(step)]

    first = order(0, "full")
    assert Counter(first[:20]) == Counter(first[20:])
    assert set(Counter(first[:20]).values()) == {1}
    assert first[:20] != first[20:]
    assert order(0, "head") == first
    assert sorted(order(1, "full")) != sorted(first), "another seed draws other labels"


def test_a_loss_that_is_not_finite_ends_a_run_as_diverged() -> None:
    of = config(method="full", n_class=2, finetune_steps=9, finetune_lr=1e30, warmup=0.0)
    _, events = finetuned(of)
    assert events.end["status"] == "diverged" and events.end["step"] < 9
    assert np.isnan(events.finals()["task_accuracy", 0])


@pytest.mark.parametrize(("lr", "status"), [(1e-3, "complete"), (3.0, "diverged")])
def test_a_last_update_that_ruins_a_finite_loss_ends_a_run_as_diverged(
    lr: float, status: str
) -> None:
    given = {"n_class": 2, "finetune_steps": 1, "finetune_batch": 8}
    of = config(method="full", finetune_lr=lr, warmup=0.0, grad_clip=0.0, **given)
    training, events = finetuned(of)
    with torch.no_grad():
        after = training._losses(training._batch(0)).mean().item()
    before = events.series("train_loss")[1]
    assert np.isfinite(after) and bool(after - before > np.log(2)) is (status == "diverged")
    assert events.end["status"] == status and events.end["step"] == 1
    assert bool(np.isnan(events.finals()["task_loss", 0])) is (status == "diverged")


# -- tasks -----------------------------------------------------------------------------------------


def test_fewer_labels_are_among_more_and_each_class_has_its_share() -> None:
    classes = np.repeat([0, 1, 2], [60, 30, 10])
    asked = Passages(torch.zeros(100, 1), classes, np.arange(100) % 10 > 0)
    few, many, every = (set(chosen(asked, n, 5).tolist()) for n in (9, 45, 0))
    assert few < many < every == set(np.flatnonzero(asked.fitted).tolist())
    counts = [Counter(classes[list(rows)].tolist()) for rows in (few, many)]
    assert all(abs(counts[0][k] - share) <= 1 for k, share in enumerate((5.4, 2.7, 0.9)))
    assert all(abs(counts[1][k] - share) <= 1 for k, share in enumerate((27, 13.5, 4.5)))
    assert few != set(chosen(asked, 9, 6).tolist())


@pytest.mark.parametrize("words", [False, True])
def test_a_table_is_read_alike_in_any_form(words: bool, tmp_path: Path) -> None:
    """Packed, in another encoding, and as Parquet, whose labels may be whole numbers."""
    first = "word" if words else "text"
    known = ["café", "déjà", "fenêtre", "garçon", "école", "forêt"]
    rows = [(f"{known[n % 6]}{' le' * (not words)}{'e' * (n // 6)}", n % 2) for n in range(60)]
    plain = table(tmp_path / "t.csv", [(one, str(n)) for one, n in rows], (first, "label"))
    content = plain.read_text(encoding="utf-8")
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "latin.csv").write_bytes(content.encode("cp1252"))
    frame = pd.DataFrame(rows, columns=[first, "label"])
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_json(tmp_path / "t.jsonl.gz", orient="records", lines=True)
    expected = tasks.read(plain)
    for name in ("packed.csv.gz", "latin.csv", "t.parquet", "t.jsonl.gz"):
        found = tasks.read(tmp_path / name)
        assert found.mended == (("encoding cp1252",) if name == "latin.csv" else ())
        if isinstance(found, tasks.WordList):
            assert isinstance(expected, tasks.WordList) and found.words == expected.words
        else:
            assert isinstance(expected, tasks.LabelledTexts) and found.texts == expected.texts
            assert (found.classes == expected.classes).all()
            assert (found.fitted == expected.fitted).all()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a", "label": 0.13}, "label = 0.13 is neither text nor a whole number"),
        ({"text": "a", "label": None}, "there is no label"),
        ({"text": ["a"], "label": 1}, "text = ['a'] is neither"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        json.dumps({"text": "b", "label": 1}) + f"\n{json.dumps(row)}"
    )
    with pytest.raises(AblateError) as error:
        tasks.read(tmp_path / "t.jsonl")
    assert f"line 2: {said}" in str(error.value)


def test_a_document_lies_on_one_side(tmp_path: Path) -> None:
    rows = [(f"line {k}", "ab"[k % 50 // 25], f"book {k // 5}") for k in range(100)]
    found = tasks.task(table(tmp_path / "t.csv", rows, ("text", "label", "document")))
    sides = {(name, bool(side)) for (_, _, name), side in zip(rows, found.fitted, strict=True)}
    assert len(sides) == 20, "each document once"
    held_out = found.classes[~found.fitted]
    assert np.bincount(held_out).tolist() == [10, 10]


def test_a_column_says_what_is_held_out(tmp_path: Path) -> None:
    rows = [(f"line {k}", "ab"[k % 2], ["train", "Test", "val"][k // 2 % 3]) for k in range(24)]
    found = tasks.task(table(tmp_path / "t.csv", rows, ("text", "label", "split")))
    assert found.fitted.tolist() == [row[2] == "train" for row in rows]


def test_a_validation_part_is_apart_where_there_is_a_test_part(tmp_path: Path) -> None:
    rows = [(f"line {k}", "ab"[k % 2], ["train", "test", "val"][k // 2 % 3]) for k in range(24)]
    sides = [row[2] for row in rows]
    found = tasks.task(table(tmp_path / "t.csv", rows, ("text", "label", "split")))
    assert found.validation.tolist() == [side == "val" for side in sides]
    assert found.counts.tolist() == [[4, 4], [4, 4]]
    alone = [(*row[:2], row[2].replace("test", "train")) for row in rows]
    found = tasks.task(table(tmp_path / "t.csv", alone, ("text", "label", "split")))
    assert not found.validation.any() and found.counts.tolist() == [[4, 4], [8, 8]]


@pytest.mark.parametrize("columns", [("split",), ("document",), ()], ids=str)
def test_a_text_that_is_held_out_is_not_trained_on(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    """Every text stands twice, under one label and another, in another part and document."""
    parts = ["train", "validation", "test"]
    rows = [
        (f"line {k // 2}" + " " * (k % 4 == 3), "ab"[k // 2 * k % 2], part, f"book {k}")
        for k in range(240)
        for part in [parts[k // (3 if k % 2 else 1) % 3]]
    ]
    kept = ["text", "label", *columns]
    where = [("text", "label", "split", "document").index(name) for name in kept]
    found = tasks.task(table(tmp_path / "t.csv", [[row[k] for k in where] for row in rows], kept))
    tested = ~found.fitted & ~found.validation
    texts = [{one.strip() for one, on in zip(found.texts, side, strict=True) if on}
             for side in (found.fitted, found.validation, tested)]  # fmt: skip
    assert not texts[0] & texts[1] and not (texts[0] | texts[1]) & texts[2]
    assert set().union(*texts) == {f"line {k}" for k in range(120)}
    pairs = list(zip(found.texts, found.classes.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert found.n_left_out
    if "split" in columns:
        of_test = {row[0].strip() for row in rows if row[2] == "test"}
        assert texts[2] == of_test, "what is held out is as the file says"


def test_a_text_with_two_labels_lies_on_one_side(tmp_path: Path) -> None:
    rows = [(f"line {k}", label) for k in range(30) for label in "ab"]
    rows += [(f"own {k}", "b") for k in range(10)]
    found = tasks.task(table(tmp_path / "t.csv", rows))
    sides = {(one, bool(side)) for one, side in zip(found.texts, found.fitted, strict=True)}
    assert len(sides) == 40


# -- plans -----------------------------------------------------------------------------------------


def test_parents_are_runs_of_ordinary_studies_before_their_children(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    made = planned(folder, f"{METHODS}\ntopology = [1, 5]", seeds=2)
    seen: set[str] = set()
    for one in made.runs:
        parent = one.run.parent_run
        assert one.run.parent == (parent.key if parent else "")
        assert parent is None or parent.key in seen
        assert (parent is None) == (one.role == "pretrain" or "scratch" in one.cell)
        seen.add(one.run.key)
    pretrained = {one.run.key for one in made.runs if one.role == "pretrain"}
    assert len(pretrained) == 4, "two topologies, two seeds"
    ordinary = planned(folder, 'topology = [1, 5]\nmethod = ["full", "head"]', seeds=2)
    of_text = {
        run_of(RunConfig(**{**dict(one.run.fields), "seed": one.run.seed})).key
        for one in ordinary.runs
        if one.role == "pretrain"
    }
    assert of_text == pretrained
    cost = price(made)
    assert (cost.runs, cost.pretraining, cost.weights[0]) == (24, 4, 4)


def test_a_parent_follows_the_fields_and_the_seed_of_its_child(tmp_path: Path) -> None:
    made = planned(folder_of(tmp_path))
    child = next(cell.run for cell in made.cells if cell.label == "method=lora")
    assert child.with_(seed=7).parent_run == child.parent_run.with_(seed=7)  # type: ignore[union-attr]
    assert child.with_(lr=0.5).parent == child.parent_run.with_(lr=0.5).key  # type: ignore[union-attr]
    assert child.with_(finetune_lr=0.5).parent == child.parent
    assert child.with_(finetune_lr=0.5).key != child.key
    assert kind("transformer").parent(child.parent_run) is None  # type: ignore[arg-type]


def test_a_run_from_random_weights_does_not_depend_on_the_pre_training(tmp_path: Path) -> None:
    made = planned(folder_of(tmp_path))
    runs = {one.cell: one.run for one in made.runs if one.role == "compare"}
    scratch, full = runs["method=scratch"], runs["method=full"]
    assert scratch.with_(steps=99, lr=0.5).key == scratch.key
    assert full.with_(steps=99).key != full.key
    assert scratch.with_(n_layer=3).key != scratch.key


def test_the_content_of_a_task_and_not_its_name_is_part_of_a_key(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    keys = {one.run.key for one in planned(folder).runs}
    table(folder / "moved.csv", texts())
    file = folder / "tuned.toml"
    file.write_text(file.read_text().replace("task.csv", "moved.csv"))
    assert {one.run.key for one in plan(load(str(file))).runs} == keys
    table(folder / "task.csv", texts()[:-1])
    runs = planned(folder).runs
    assert keys.isdisjoint(one.run.key for one in runs if one.role == "compare")
    assert keys >= {one.run.key for one in runs if one.role == "pretrain"}


def test_a_search_for_the_rate_of_the_task_tunes_children_from_parents_of_its_seeds(
    tmp_path: Path,
) -> None:
    methods = 'method = ["scratch", "full"]\n[tune]\nfinetune_lr = [1e-3, 1e-1]\npoints = 3'
    made = planned(folder_of(tmp_path), f'{methods}\nseeds = 1\nper = "cell"')
    tune = made.study.tune
    assert tune and tune.up and tune.down, "the search may leave the range"
    roles = Counter(one.role for one in made.runs)
    assert roles == {"tune": 6, "pretrain": 1}
    (parent,) = (one.run for one in made.runs if one.role == "pretrain")
    assert {one.run.parent for one in made.runs if one.cell == "method=full"} == {parent.key, ""}
    assert not [one for one in made.confounds if "share finetune_lr" in one.text]


def warnings(made: Plan) -> list[str]:
    return [line for line in made.about if line.startswith("Warning")]


def test_a_plan_warns_of_labels_that_contradict_and_of_few_held_out_texts(tmp_path: Path) -> None:
    rows = texts(110)
    twice = [*rows, (rows[0][0], "early" if rows[0][1] == "late" else "late")]
    assert warnings(planned(folder_of(tmp_path, rows))) == []
    (line,) = warnings(planned(folder_of(tmp_path, twice)))
    assert "task.csv: 1 text has more than one label" in line
    (line,) = warnings(planned(folder_of(tmp_path, rows[:60])))
    assert "12 held-out texts are few: one of them is 8% of the accuracy" in line


def test_a_plan_tells_class_counts_chance_and_how_many_texts_are_cut(tmp_path: Path) -> None:
    rows = [(f"{n:03}" + "x" * (30 if n < 7 else 2), "rare" if n % 10 == 0 else "often")
            for n in range(100)]  # fmt: skip
    folder = folder_of(tmp_path, rows)
    (sides,) = (line for line in planned(folder).about if line.startswith("Task "))
    assert "'often' 72 + 18 and 'rare' 8 + 2; chance 90.0%" in sides
    (cut,) = (line for line in planned(folder).about if "cuts" in line)
    assert "n_ctx = 16 cuts 7 of the 100 texts of task task.csv" in cut
    assert not [line for line in planned(folder_of(tmp_path)).about if "n_ctx = 16 cuts 0" in line]


def test_a_tokenizer_without_tokens_for_labelled_texts_is_refused_or_warned_of(
    tmp_path: Path,
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = folder_of(tmp_path)
    known = ["[UNK]", "[SEP]", *(f"w{n}" for n in range(9)), "late", "soon"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(known)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "corpus.txt").write_text("\n\n\n".join("w1 w2 w3 w4 " * 40 for _ in range(30)))
    base = BASE + 'tokenizer = "tokenizer.json"\n'

    def told(n: int, **given: Any) -> list[str]:
        """Warnings for texts in which one word of four, or n of four, are known."""
        rows = [(" ".join(["late"] * n + ["rare"] * (4 - n) + [str(k)]), "ab"[k % 2])
                for k in range(120)]  # fmt: skip
        table(folder / "task.csv", rows)
        return warnings(planned(folder, 'method = ["full", "head"]', base=base, **given))

    assert told(4) == []
    (line,) = told(1)
    assert re.search(r"task.csv: tokenizer '.*' encodes \d\d% of the bytes of its texts", line)
    with refused(folder / "tuned.toml", r"task = 'task.csv': .* encodes 0.0% of the bytes"):
        told(0)
    file = folder / "probe.toml"
    study = 'name = "p"\nquestion = "?"\nseeds = 1\n[base]\n' + base + "[factors]\nlr = [1, 2]\n"
    file.write_text(study.replace("lr = 1e-2\n", "") + '[eval]\nprobe_csv = "task.csv"')
    with pytest.raises(AblateError, match=r"line 17: probe_csv = 'task.csv': .* encodes 0.0%"):
        plan(load(str(file)))


SOTU = BASE.replace("corpus.txt", "sotu")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({"task": ""}, "line 18: .*it is not a file"),
    "misspelt task": ({"task": "erra"}, "'erra'; did you mean 'era'.*novel, era"),
    "no file": ({"task": "none.csv"}, "line 18: .*none.csv: there is no such file"),
    "blocks of an encoder": (
        {
            "base": BASE + 'architecture = "encoder-decoder"\nobjective = "denoise"',
            "factors": 'method = ["full", "lora"]',
        },
        "method = 'lora' changes all blocks.*'encoder-decoder'",
    ),
    "more than full rank": (
        {"factors": 'method = ["full", "lora"]', "finetune": "lora_rank = 999"},
        "lora_rank = 999: .*d_model = ",
    ),
    "several devices": (
        {"finetune": "[run]\ndevices_per_run = 2"},
        "run.devices_per_run = 2: several devices train transformers only",
    ),
    "misspelt method": ({"factors": 'method = ["ful"]'}, "'ful'.*Choices: scratch, full"),
    "no method": (
        {"factors": "topology = [1, 5]"},
        "finetune.method is missing: [^.]*[.] Choices: scratch, full",
    ),
    "no fine-tuning": ({"factors": 'method = ["none", "full"]'}, "method = 'none'"),
    "too many labels": ({"finetune": "labels = 999"}, "labels = 999: the task has 48 texts"),
    "too few labels": ({"finetune": "labels = 1"}, "labels = 1: the task has 2 classes"),
    "too many passages": (
        {"finetune": "labels = 801", "task": "era", "base": SOTU},
        "labels = 801: the task has 800 texts",
    ),
    "too few passages": (
        {"finetune": "labels = 3", "task": "era", "base": SOTU},
        "labels = 3: the task has 4 classes",
    ),
    "pooling": ({"finetune": 'pooling = "cls"'}, "pooling = 'cls'.*objective = 'causal'"),
    "metric": ({"metric": "loss"}, "'loss' is not measured.*task_accuracy"),
    "tuned metric": (
        {
            "factors": f"{METHODS}\n[tune]\nfinetune_lr = [1e-4, 1e-2]\npoints = 3"
            '\nper = "cell"\nmetric = "loss"'
        },
        "'loss' is not measured.*task_accuracy",
    ),
    "forgetting": ({"metric": "forgetting"}, "'method=scratch'.*no pre-training"),
    "idle": (
        {"factors": 'method = ["full", "head"]', "finetune": "lora_rank = 2"},
        "lora_rank has no effect",
    ),
    "twice": ({"finetune": 'method = "full"'}, "method is set both here and by factor"),
    "no validation part": ({"metric": "validation_loss"}, "both a validation part and a test part"),
    "unknown": ({"finetune": "label = 3"}, "key of .finetune. 'label'.*labels"),
    "one example": (
        {"rows": [*texts(), ("odd", "rare")]},
        "label 'rare' has 1 text, and none to hold out",
    ),
    "one label": ({"rows": [(f"{k}", "a") for k in range(20)]}, "all texts have the label 'a'"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_has_no_meaning_is_refused_in_one_line(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    given = dict(given)
    folder = folder_of(tmp_path, given.pop("rows", ()))
    with refused(folder / "tuned.toml", said):
        planned(folder, **given)


def test_a_key_of_fine_tuning_needs_its_table(tmp_path: Path) -> None:
    planned(folder_of(tmp_path))
    file = tmp_path / "tuned.toml"
    file.write_text(re.sub(r"\[finetune\].*?(?=\[factors\])", "", file.read_text(), flags=re.S))
    with pytest.raises(AblateError, match=r"line 18: method .*\[finetune\]"):
        load(str(file))
