"""Runs that start from an encoder-decoder: a T5 or BART of `transformers`, or the file of a run."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from finetune_study import refused, table, texts, train
from test_prune import encoder_decoder
from test_start import models, planned
from torch import Tensor

import ablate as library
from ablate.components import places
from ablate.components.places import Part
from ablate.errors import AblateError
from ablate.plan import Plan
from ablate.train import start
from ablate.trained import hugging_face, prune
from ablate.trained.sample import sample

pytest.importorskip("transformers")

KINDS = ["t5", "bart"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and both models, each of two blocks and three with weights of their own."""
    path = tmp_path_factory.mktemp("given")
    rng = random.Random(0)
    documents = ("".join(rng.choices("abcdefuvwxyz ", k=300)) for _ in range(40))
    (path / "corpus.txt").write_text("\n\n\n".join(documents))
    for kind in KINDS:
        encoder_decoder(path / kind, kind)
    return path


def of(folder: Path, kind: str, factors: str, **given: Any) -> Plan:
    """The plan of a study that starts from one of the models."""
    base = given.pop("base", "tokens = 0")
    return planned(folder, factors, given=kind, base=base, batch=256, **given)


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens, source = (torch.randint(3, 250, (3, n), generator=generator) for n in (20, 17))
    return tokens, source


def stack(theirs: Any, name: str) -> Any:
    """The blocks of a stack of the library."""
    return getattr(theirs, name).block if hasattr(theirs, "lm_head") and hasattr(
        theirs, "shared") else getattr(theirs.model, name).layers  # fmt: skip


def arranged(theirs: Any, name: str, order: list[int]) -> None:
    """Leave the blocks of a stack in an order; in T5 the first one has the biases of all."""
    blocks = stack(theirs, name)
    kept = list(blocks)
    if hasattr(theirs, "shared"):
        first, now = (kept[number].layer[0].SelfAttention for number in (0, order[0]))
        biases = first.relative_attention_bias
        first.has_relative_attention_bias, now.has_relative_attention_bias = False, True
        now.relative_attention_bias = biases
        getattr(theirs, name).block = torch.nn.ModuleList(kept[number] for number in order)
    else:
        getattr(theirs.model, name).layers = torch.nn.ModuleList(kept[number] for number in order)


def output(theirs: Any, kind: str, layer: int) -> Tensor:
    """The matrix that combines the heads of an attention, columns by head."""
    block = stack(theirs, "encoder" if kind == "encoder" else "decoder")[layer]
    if hasattr(theirs, "shared"):
        at = block.layer[1].EncDecAttention if kind == "cross" else block.layer[0].SelfAttention
        return at.o.weight
    return (block.encoder_attn if kind == "cross" else block.self_attn).out_proj.weight


EDITS: dict[str, Callable[[Any], object]] = {
    "drop_blocks = []": lambda theirs: None,
    'drop_blocks = ["encoder.0"]': lambda theirs: arranged(theirs, "encoder", [1]),
    'drop_blocks = ["decoder.0", "encoder.1", "decoder.2"]': lambda theirs: (
        arranged(theirs, "encoder", [0]),
        arranged(theirs, "decoder", [1]),
    ),
    'swap_blocks = ["decoder.2", "decoder.0", "encoder.0", "encoder.1"]': lambda theirs: (
        arranged(theirs, "encoder", [1, 0]),
        arranged(theirs, "decoder", [2, 1, 0]),
    ),
    'prune_heads = ["encoder.1.2"]': lambda theirs: without(theirs, ("encoder", 1, 2)),
    'prune_heads = ["decoder.0.3", "cross.2.1"]': lambda theirs: without(
        theirs, ("decoder", 0, 3), ("cross", 2, 1)
    ),
}


def without(theirs: Any, *heads: tuple[str, int, int]) -> None:
    """Leave out heads, as their columns of the matrix that combines them."""
    for kind, layer, head in heads:
        matrix = output(theirs, kind, layer)
        width = matrix.shape[1] // 4
        with torch.no_grad():
            matrix[:, width * head : width * (head + 1)] = 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_start_has_the_logits_of_the_librarys_model_that_is_changed_alike(
    kind: str, folder: Path
) -> None:
    levels = "\n".join(f"n{k} = {{ {edit} }}" for k, edit in enumerate(EDITS))
    cells = models(of(folder, kind, f"[factors.edit]\n{levels}"))
    seen: list[Tensor] = []
    for (model, _), change in zip(cells.values(), EDITS.values(), strict=True):
        theirs = hugging_face.library().AutoModelForSeq2SeqLM.from_pretrained(folder / kind).eval()
        change(theirs)
        expected = hugging_face.logits(theirs, *drawn())
        with torch.inference_mode():
            tokens, source = drawn()
            found = model(tokens[None], None, source[None])[0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert not any(torch.allclose(found, other, atol=1e-3) for other in seen)
        seen.append(found)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_are_evaluated_at_once_as_the_folder_is_pruned_and_learn_after_that(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    """`tests/test_prune.py` compares these losses with the library's, by lists written by hand."""
    edits = 'drop_blocks = [[], ["encoder.1"], ["decoder.2"]]'
    base, keep = "lr = 1e-2\nprecision = 'float32'", '[run]\nkeep = "final"'
    made = of(folder, kind, f"{edits}\ntokens = [0, 1024]", base=base, more=keep)
    assert [cell.seeded for cell in made.cells] == [False, True] * 3
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    found = library.load("started", db=str(tmp_path / "ablate.db"))
    losses = {cell.partition(", ")[0][12:] + f" {tokens}": loss
              for cell, tokens, loss in found[["cell", "tokens", "metric"]].to_numpy()}  # fmt: skip
    corpus = str(folder / "corpus.txt")
    given = library.load_model(folder / kind)
    whole = prune.prune(given, "blocks", corpus=corpus, tokens=512)
    worth = {one.part: one.effect.mean for one in whole.parts}
    assert losses["[] 0"] == pytest.approx(whole.loss, abs=1e-5)
    for name, part in (("encoder.1", Part("encoder", 1)), ("decoder.2", Part("decoder", 2))):
        assert losses[f"[{name}] 0"] == pytest.approx(whole.loss + worth[part], abs=1e-5)
        assert losses[f"[{name}] 1024"] < losses[f"[{name}] 0"] - 0.2
    key = found.set_index("cell").loc["drop_blocks=[decoder.2], tokens=1024", "key"]
    kept = library.load_model(key[:12], tmp_path / "ablate.db")
    hugging_face.save(kept, tmp_path / "out")
    again = library.load_model(tmp_path / "out")
    assert (again.config.n_layer_encoder, again.config.n_layer) == (2, 2)
    for name in ("corruption_tokens", "source_token", "target_token", "end_token", "hidden_tokens"):
        assert getattr(again.config, name) == getattr(given.config, name), name
    saved = prune.prune(again, "blocks", corpus=corpus, tokens=512).loss
    assert saved == pytest.approx(losses["[decoder.2] 1024"], abs=1e-5)
    assert sample(again, "abc def", tokens=9) == sample(kept, "abc def", tokens=9)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_all_attentions_stay_pruned_and_a_changed_ratio_and_position_are_trained(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    heads = ["encoder.0.1", "decoder.2.0", "cross.1.3"]
    levels = f"""[factors.edit]
heads = {{ prune_heads = {heads} }}
position = {{ position = "rotary" }}
ratio = {{ mask_ratio = 0.4 }}
"""
    keep = '[run]\nkeep = "final"'
    made = of(
        folder,
        kind,
        levels,
        base="tokens = 512\nlr = 1e-2",
        more=keep,
        name="edited",
        metric="corrupted_loss@0.15",
    )
    assert any("position.table" in line and "encoder.position.table" in line for line in made.about)
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    key = next(one.run.key for one in made.runs if one.cell == "edit=heads")
    model = library.load_model(key[:12], tmp_path / "ablate.db")
    blocks, encoder = model.transformer.blocks, model.transformer.encoder.blocks
    width = model.config.d_head
    for attention, head in (
        (encoder[0].attention, 1),
        (blocks[2].attention, 0),
        (blocks[1].cross, 3),
    ):
        own = slice(head * width, (head + 1) * width)
        assert (attention.output.weight[0][:, own] == 0).all()
        assert (attention.value.weight[0, own] == 0).all()
        zeros = (attention.output.weight[0] == 0).all(0).sum()
        assert zeros == width, "no other head is left out"


def test_shares_count_the_heads_of_all_attentions(folder: Path) -> None:
    made = of(folder, "t5", "prune_share = [0, 0.25, 0.5, 1]", seeds=2)
    drawn = {(one.cell, one.run.seed): start.left_out(one.config) for one in made.runs}
    few, half, every = ({*drawn[f"prune_share={n}", 1]} for n in ("0.25", "0.5", "1"))
    assert few < half < every and [len(few), len(half), len(every)] == [8, 16, 32]
    assert {places.named(one, True).partition(".")[0] for one in half} == {
        *("encoder", "decoder", "cross")
    }
    assert drawn["prune_share=0.5", 0] != drawn["prune_share=0.5", 1]


def test_shuffled_heads_exchange_columns_in_a_share_of_the_blocks_of_both_stacks(
    folder: Path,
) -> None:
    cells = models(of(folder, "bart", "shuffle_heads = [0, 0.4, 1]"))
    plain, some, every = (model for model, _ in cells.values())
    changed = []
    for model in (some, every):
        found = set()
        for part in places.attentions(cells["shuffle_heads=1"][1]):
            ours, theirs = (
                start.attention_of(one, part).output.weight[0].unflatten(1, (4, 4))
                for one in (model, plain)
            )
            columns = [{one[:, k].sum().item() for k in range(4)} for one in (ours, theirs)]
            assert columns[0] == columns[1]
            if not torch.equal(ours, theirs):
                found.add((part.stack, part.layer))
        changed.append(found)
    assert len(changed[0]) == 2 and len(changed[1]) == 5


def test_a_folder_is_fine_tuned_without_a_block_of_the_encoder(
    folder: Path, tmp_path: Path
) -> None:
    table(folder / "task.csv", texts())
    task = '[finetune]\ntask = "task.csv"\nfinetune_steps = 4\nfinetune_batch = 8'
    made = of(
        folder,
        "t5",
        'method = ["full", "head"]',
        start='drop_blocks = ["encoder.0"]',
        more=task,
        metric="task_accuracy",
        name="tuned",
    )
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    with sqlite3.connect(tmp_path / "ablate.db") as connection:
        ((loss,),) = connection.execute(
            "SELECT value FROM final JOIN runs ON run = run_id"
            " WHERE name = 'pretraining_loss' AND cell = 'method=head'"
        )
    whole = prune.prune(
        library.load_model(folder / "t5"), "blocks", corpus=str(folder / "corpus.txt"), tokens=512
    )
    assert loss == pytest.approx(whole.loss + whole.parts[0].effect.mean, abs=1e-5)


def test_the_file_of_a_run_is_a_start_without_some_of_its_blocks(folder: Path) -> None:
    kept = library.load_model(folder / "bart")
    given = folder / "saved-bart"
    hugging_face.save(kept, given)
    (model, config), *_ = models(
        of(folder, "saved-bart", 'drop_blocks = [["decoder.1"], []]')
    ).values()
    assert (config.n_layer_encoder, config.n_layer) == (2, 2)
    tokens, source = drawn()
    with torch.inference_mode(), prune.without(kept, Part("decoder", 1)):
        expected = kept(tokens, source)
        found = model(tokens[None], None, source[None])[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_decoder_alone_takes_what_it_has_in_common_with_an_encoder_decoder(folder: Path) -> None:
    alone = 'tokens = 0\narchitecture = "transformer"\nobjective = "causal"'
    made = of(folder, "t5", "swap_blocks = [[], [0, 2]]", base=alone)
    (model, config), (swapped, _) = models(made).values()
    assert (config.n_layer, config.n_vocab, config.corruption_tokens) == (3, 290, "last")
    whole = library.load_model(folder / "t5")
    unused = start.fit(whole.config, config).unused
    assert {"blocks.*.cross.query.weight", "encoder.blocks.*.mlp.hidden.weight"} < {*unused}
    given = whole.transformer
    for one, numbers in ((model, (0, 1, 2)), (swapped, (2, 1, 0))):
        for block, number in zip(one.blocks, numbers, strict=True):
            theirs = given.blocks[number].attention.query.weight
            assert torch.equal(block.attention.query.weight, theirs)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number": (
        {"factors": "drop_blocks = [[], [0]]"},
        "drop_blocks = .0.: give different blocks, from encoder.0 to encoder.1 or from decoder.0 to"
        " decoder.2",
    ),
    "no block": ({"factors": 'drop_blocks = [[], ["encoder.2"]]'}, "from encoder.0 to encoder.1"),
    "two stacks": (
        {"factors": 'swap_blocks = [[], ["encoder.0", "decoder.0"]]'},
        "exchange blocks of the same stack",
    ),
    "no head": (
        {"factors": 'prune_heads = [[], ["0.1"]]'},
        "'0.1' is no head of the model. Choices: from encoder.0.0 to encoder.1.3, from decoder.0.0"
        " to decoder.2.3 or from cross.0.0 to cross.2.3",
    ),
    "dropped head": (
        {"factors": 'prune_heads = [[], ["cross.1.0"]]', "start": 'drop_blocks = ["decoder.1"]'},
        "'cross.1.0' is in block decoder.1, which drop_blocks leaves out",
    ),
    "no encoder left": (
        {"factors": 'drop_blocks = [[], ["encoder.0", "encoder.1"]]'},
        "n_layer_encoder = 2, and at least one block of the encoder has to be left",
    ),
    "layers": (
        {"base": "tokens = 0\nn_layer_encoder = 3"},
        "n_layer_encoder = 3: the given weights have n_layer_encoder = 2; remove it",
    ),
    "distances": (
        {"base": "tokens = 0\nn_ctx = 32"},
        "n_ctx = 32: .*biases up to distance 64, and this n_ctx has them up to 32; give n_ctx from",
    ),
    "tokenizer": (
        {"base": 'tokens = 0\ntokenizer = "byte"'},
        "tokenizer = 'byte': the given weights have tokens for hidden text",
    ),
    "sentinels": (
        {"base": "tokens = 0\nmask_ratio = 0.5\nmean_span = 1.0"},
        "mask_ratio = 0.5.*makes 32 spans, and objective = 'span' can write 20",
    ),
    "other tokens": (
        {"base": "tokens = 0\ntarget_token = 3"},
        "target_token follows from the folder that `from` of .start. names",
    ),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_an_encoder_decoder_has_not_is_refused_in_one_line(
    folder: Path, given: dict[str, Any], said: str
) -> None:
    factors = given.get("factors", 'drop_blocks = [[], ["encoder.0"]]')
    with refused(folder / "started.toml", said):
        of(folder, "t5", factors, **{key: one for key, one in given.items() if key != "factors"})


def test_a_folder_without_the_tokens_of_corrupted_text_is_refused(folder: Path) -> None:
    for name, kind, said in (
        ("mute", "t5", "no decoder_start_token_id"),
        ("bare", "bart", "no token for hidden text"),
    ):
        encoder_decoder(folder / name, kind)
        file, tokenizer = folder / name / "config.json", folder / name / "tokenizer.json"
        settings = json.loads(file.read_text())
        if name == "mute":
            del settings["decoder_start_token_id"]
        else:
            tokenizer.write_text(tokenizer.read_text().replace("<mask>", "<none>"))
        file.write_text(json.dumps(settings))
        with pytest.raises(AblateError, match=said):
            of(folder, name, 'drop_blocks = [[], ["encoder.0"]]')
