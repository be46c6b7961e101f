"""Runs that start from given weights: a folder of `transformers`, or the file of another run."""

from __future__ import annotations

import os
import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import scipy.stats
import torch
from cli_helpers import Run as Cli
from finetune_study import refused, table, texts, train
from test_folders import BOTH, made, own

import ablate as library
from ablate import report, results, store, text
from ablate.analysis.records import Best, Contrast, Multiplicity, NoFailures
from ablate.data.batches import gather, held_out_starts
from ablate.errors import AblateError
from ablate.kinds import Context, Job
from ablate.kinds.transformer import Transformer
from ablate.model.transformer import model_of
from ablate.plan import Plan, plan
from ablate.plan.tiny import tiny
from ablate.report import method, overview
from ablate.study import load
from ablate.train import start
from ablate.trained import hugging_face, prune

transformers = pytest.importorskip("transformers")

STUDY = """
name = "{name}"
question = "What do the given weights need?"
metric = "{metric}"
seeds = {seeds}
[base]
corpus = "corpus.txt"
batch_tokens = {batch}
{base}
[start]
from = "{given}"
{start}
[factors]
{factors}
[eval]
tokens = 512
final_tokens = 512
points = 2
{more}
"""
DROPS = "drop_blocks = [[], [0]]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and models of which the blocks have weights of their own."""
    path = tmp_path_factory.mktemp("given")
    rng = random.Random(0)
    documents = ("".join(rng.choices("abcdefuvwxyz ", k=300)) for _ in range(40))
    (path / "corpus.txt").write_text("\n\n\n".join(documents))
    tokenizer = hugging_face._of_bytes()
    for case, changed in {
        "gpt2": {"n_layer": 3},
        "bert": {},
        "llama, groups": {},
        "neox": {},
    }.items():
        where = path / case.partition(",")[0]
        made(case, vocab_size=260, **changed).save_pretrained(where)
        tokenizer.add_special_tokens(["[MASK]"])
        tokenizer.save(str(where / "tokenizer.json"))
    return path


def planned(
    folder: Path,
    factors: str = DROPS,
    *,
    name: str = "started",
    seeds: int = 1,
    given: str = "gpt2",
    start: str = "",
    base: str = "tokens = 0",
    more: str = "",
    metric: str = "loss",
    batch: int = 80,
) -> Plan:
    """The plan of a study in the folder."""
    file = folder / f"{name}.toml"
    fields = {
        "metric": metric,
        "name": name,
        "seeds": seeds,
        "given": given,
        "start": start,
        "base": base,
        "batch": batch,
    }
    file.write_text(STUDY.format(factors=factors, more=more, **fields))
    return plan(load(str(file)))


def models(made: Plan) -> dict[str, tuple[Any, Any]]:
    """Return cell → the model with its given weights, and its configuration, of the first seed."""
    found: dict[str, tuple[Any, Any]] = {}
    for one in made.runs:
        if one.cell in found:
            continue
        model = model_of(one.config)
        model.initialise([one.config.weights_seed])
        start.give(model, [one.config], made.sources)
        found[one.cell] = model.eval(), one.config
    return found


def tokens(n: int = 260) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(5, n, (2, 20), generator=generator)


@torch.inference_mode()
def logits(model: Any, given: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(given[None])[0]
    return found


@pytest.mark.parametrize("given", ["gpt2", "bert", "llama", "neox"])
def test_an_unchanged_start_and_a_dropped_block_have_the_librarys_logits(
    given: str, folder: Path
) -> None:
    cells = models(planned(folder, given=given))
    for cell, dropped in (("drop_blocks=[]", False), ("drop_blocks=[0]", True)):
        auto = getattr(transformers, f"AutoModelFor{'Masked' if given == 'bert' else 'Causal'}LM")
        theirs = auto.from_pretrained(folder / given, dtype=torch.float32).eval()
        if dropped:
            inner = theirs.base_model
            blocks = getattr(inner, "encoder", inner)
            name = {"gpt2": "h", "bert": "layer"}.get(given, "layers")
            left = list(getattr(blocks, name))[1:]
            for number, block in enumerate(left):
                if given == "gpt2":
                    block.attn.layer_idx = number
            setattr(blocks, name, torch.nn.ModuleList(left))
        found = logits(cells[cell][0], tokens())
        expected = hugging_face.logits(theirs, tokens())
        torch.testing.assert_close(found[..., :260], expected, atol=1e-4, rtol=1e-4)
        if given == "bert":  # its own token of the mask, which nothing predicts
            assert found.shape[-1] == 261
            hidden, own = tokens().clone(), tokens().clone()
            hidden[:, 4], own[:, 4] = 260, 256
            torch.testing.assert_close(
                logits(cells[cell][0], hidden)[..., :260],
                hugging_face.logits(theirs, own),
                atol=1e-4,
                rtol=1e-4,
            )
            assert (found[..., 260] < -1000).all()


def test_swapped_blocks_shuffled_heads_and_pruned_ones_are_those_of_the_given_model(
    folder: Path,
) -> None:
    factors = {
        "swap_blocks": "[[], [0, 2]]",
        "prune_heads": '[[], ["1.2", "2.0"]]',
        "shuffle_heads": "[0, 1]",
    }
    whole = library.load_model(folder / "gpt2")
    for name, levels in factors.items():
        cells = models(planned(folder, f"{name} = {levels}"))
        model, config = list(cells.values())[-1]
        blocks = whole.transformer.blocks
        if name == "swap_blocks":
            order = [blocks[number] for number in (2, 1, 0)]
            whole.transformer.blocks = torch.nn.ModuleList(order)
            expected = logits(whole.transformer, tokens())
            whole.transformer.blocks = blocks
        elif name == "prune_heads":
            with (
                prune.without(whole, prune.Part("decoder", 1, "self", 2)),
                prune.without(whole, prune.Part("decoder", 2, "self", 0)),
            ):
                expected = logits(whole.transformer, tokens())
        else:
            plain = next(iter(cells.values()))[0]
            for ours, theirs in zip(model.blocks, plain.blocks, strict=True):
                heads = [one.attention.output.weight[0].unflatten(1, (4, 8)) for one in
                         (ours, theirs)]  # fmt: skip
                assert not torch.equal(*heads)
                columns = [{one[:, k].sum().item() for k in range(4)} for one in heads]
                assert columns[0] == columns[1]
            continue
        torch.testing.assert_close(logits(model, tokens()), expected, atol=1e-5, rtol=1e-5)
        assert config.n_layer == 3


def test_heads_are_drawn_by_the_seed_and_a_larger_share_has_those_of_a_smaller_one(
    folder: Path,
) -> None:
    made = planned(folder, "prune_share = [0, 0.25, 0.5, 1]", seeds=2)
    drawn = {(one.cell, one.run.seed): start.left_out(one.config) for one in made.runs}
    for seed in (0, 1):
        few, half, all_ = ({*drawn[f"prune_share={n}", seed]} for n in ("0.25", "0.5", "1"))
        assert few < half < all_ and [len(few), len(half), len(all_)] == [3, 6, 12]
    assert drawn["prune_share=0.5", 0] != drawn["prune_share=0.5", 1]


def test_pruned_heads_stay_pruned_in_training(folder: Path, tmp_path: Path) -> None:
    made = planned(
        folder,
        'prune_heads = [[], ["1.2"]]',
        base="tokens = 400\nlr = 1e-2\nweight_decay = 0.1",
        more='[run]\nkeep = "final"',
    )
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    for one in made.runs:
        model = library.load_model(one.run.key[:12], tmp_path / "ablate.db")
        attention = model.transformer.blocks[1].attention
        left = [attention.output.weight[0][:, 16:24], attention.value.weight[0, 16:24],
                attention.value.bias[0, 16:24]]  # fmt: skip
        assert all(bool((part == 0).all()) is ("1.2" in one.cell) for part in left)
        assert not torch.equal(
            attention.key.weight[0, :16],
            library.load_model(folder / "gpt2").transformer.blocks[1].attention.key.weight[0, :16],
        ), "it was trained"


@torch.inference_mode()
def librarys_loss(folder: Path) -> float:
    """The loss of the library's model on the held-out windows."""
    made = planned(folder, name="none")
    read = text.load(made.runs[0].config, made.sources).held_out
    windows = gather(read, held_out_starts(len(read), 20, 512), 21)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "gpt2").eval()
    given = theirs(input_ids=windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(given.flatten(0, 1), windows[:, 1:].flatten()).item()


def test_runs_of_no_steps_are_evaluated_and_runs_of_steps_learn(
    ablate: Cli, folder: Path, tmp_path: Path
) -> None:
    db = tmp_path / "ablate.db"
    outcome, said = train(planned(folder, name="none"), db)
    assert outcome.exit_code == 0, said
    base = "tokens = 1600\nlr = 1e-2"
    outcome, said = train(planned(folder, name="some", base=base, seeds=2), db)
    assert outcome.exit_code == 0, said
    with sqlite3.connect(db) as connection:
        losses: dict[tuple[str, str], float] = {
            (study, cell): loss
            for study, cell, loss in connection.execute(
                "SELECT study, cell, avg(loss) FROM runs GROUP BY study, cell"
            )
        }
    cells = {"drop_blocks=[]", "drop_blocks=[0]"}
    assert {cell for _, cell in losses} == cells
    assert all(losses["some", cell] < losses["none", cell] - 1 for cell in cells)
    assert losses["none", "drop_blocks=[]"] == pytest.approx(librarys_loss(folder), abs=1e-5)
    with store.open(str(db)) as opened:
        said = " ".join(" ".join(method.paragraphs(report.gather(opened, "none"))).split())
    assert "were evaluated, without training. They started from given weights" in said
    assert "Starts from the weights of gpt2" in ablate("show", "1", "--db", str(db))[1]


@pytest.mark.parametrize("seeds", [1, 2])
def test_without_noise_of_seeds_the_interval_is_for_new_text(
    folder: Path, tmp_path: Path, seeds: int
) -> None:
    long = "".join(random.Random(5).choices("abcdefuvwxyz ", k=120_000))
    (folder / "long.txt").write_text(
        "\n\n\n".join(long[k : k + 300] for k in range(0, 120_000, 300))
    )
    planned(folder, seeds=seeds)
    file = folder / "started.toml"
    text_ = (
        file.read_text().replace("corpus.txt", "long.txt").replace("tokens = 512", "tokens = 9999")
    )
    file.write_text(text_)
    made = plan(load(str(file)))
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    path = str(tmp_path / "ablate.db")
    (found,) = (one for one in library.findings("started", db=path) if isinstance(one, Contrast))
    windows = results.weighted_windows("started", path, "loss")
    difference = (windows["drop_blocks=[0]"] - windows["drop_blocks=[]"]).to_numpy()
    assert (difference[0] == difference[-1]).all() and len(difference[0]) > 5
    half = scipy.stats.sem(difference[0]) * scipy.stats.t.ppf(0.975, len(difference[0]) - 1)
    assert (found.text_hi - found.text_lo) / 2 == pytest.approx(half, rel=1e-6)
    assert found.text_lo < found.mean < found.text_hi and found.verdict == "unknown"


@pytest.mark.parametrize("seeds", [1, 2])
def test_arms_that_are_evaluated_at_once_are_ranked_exactly_whatever_the_number_of_seeds(
    folder: Path, tmp_path: Path, ablate: Cli, seeds: int
) -> None:
    made = planned(folder, "drop_blocks = [[], [0], [1]]", seeds=seeds, start="", name="exact")
    assert not any(cell.seeded for cell in made.cells)
    db = tmp_path / "ablate.db"
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    with store.open(str(db)) as opened:
        data = report.gather(opened, "exact")
    losses = data.good[data.good["seed"] == 0].set_index("cell")["metric"]
    (best,) = data.findings.of(Best)
    assert best.exact and best.means == (losses.min(),)
    assert best.arms == (losses.idxmin().removeprefix("drop_blocks="),) and len(best.excluded) == 2
    for one in data.findings.of(Contrast):
        assert one.exact and one.mean == losses[one.cell] - losses[one.baseline]
    assert not data.findings.of(NoFailures) and not data.findings.of(Multiplicity)
    first, reach = overview.headline(data)
    assert f"is {losses.idxmin()} (" in first and "drop_blocks=[]" in reach
    code, out, _ = ablate("plan", str(folder / "exact.toml"), "--db", str(db))
    assert code == 0 and "standard deviations" not in out and "With one seed no effect" not in out


def test_an_encoder_decoder_of_a_run_is_evaluated_as_it_was_and_trained_on(
    folder: Path, tmp_path: Path
) -> None:
    base = """tokens = 800
architecture = "encoder-decoder"
objective = "denoise"
n_layer = 1
d_model = 16
n_head = 2
n_ctx = 20"""
    file, db = folder / "two.toml", tmp_path / "ablate.db"
    written = STUDY.replace('[start]\nfrom = "{given}"\n{start}\n', "")
    given = {"metric": "corrupted_loss@0.15", "name": "two", "seeds": 1, "base": base}
    given |= {"batch": 80}
    more = '[run]\nkeep = "final"'
    file.write_text(written.format(factors="lr = [1e-2, 1e-3]", more=more, **given))
    outcome, said = train(plan(load(str(file))), db)
    assert outcome.exit_code == 0, said
    first = library.load("two", db=str(db)).set_index("lr").loc[1e-2]
    (path,) = (tmp_path / "ablate.weights").glob(f"{first['key'][:12]}*")
    made = planned(
        folder,
        "tokens = [0, 800]",
        name="again",
        given=str(path),
        base="",
        metric="corrupted_loss@0.15",
    )
    assert [cell.seeded for cell in made.cells] == [False, True]
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    found = library.load("again", db=str(db)).set_index("tokens")["metric"]
    assert found[0] == pytest.approx(first["metric"], abs=1e-6)
    assert found[800] < found[0]


@pytest.mark.parametrize("fault", ["another shape", "cut"])
def test_weights_that_do_not_fit_are_refused_by_the_plan(fault: str, folder: Path) -> None:
    made("gpt2", vocab_size=260).save_pretrained(folder / fault)
    if fault == "cut":
        file = folder / fault / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    else:
        file = folder / fault / "config.json"
        file.write_text(file.read_text().replace('"n_embd": 32', '"n_embd": 64'))
    said = (
        "not fully covered" if fault == "cut" else r"c_attn.bias has the shape \[96\], not \[192\]"
    )
    with pytest.raises(AblateError, match=rf"line \d+: .*{said}"):
        planned(folder, given=fault)


def test_the_folder_of_a_saved_run_with_two_stacks_is_a_start(folder: Path) -> None:
    levels = {"architecture": "encoder-decoder", "tokenizer": "byte", "n_ctx": 16}
    saved = own(**levels, **BOTH["BART"], n_vocab=258)
    hugging_face.save(saved, folder / "saved")
    made = planned(folder, "tokens = [0, 800]", given="saved", base="", metric="loss")
    (model, config), _ = models(made).values()
    assert (config.objective, config.n_vocab) == ("denoise", 258)
    with torch.inference_mode():
        target, source = tokens(258)[:, :16], tokens(256)[:, :16]
        found = model(target[None], None, source[None])[0]
        expected = saved(target, source)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_arms_that_draw_by_the_seed_are_not_exact(folder: Path, tmp_path: Path) -> None:
    made = planned(folder, "prune_share = [0, 0.5]", seeds=2, name="drawn")
    assert [cell.seeded for cell in made.cells] == [False, True]
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    with store.open(str(tmp_path / "ablate.db")) as opened:
        data = report.gather(opened, "drawn")
    assert data.exact == {"prune_share=0"}
    assert not any(one.exact for one in (*data.findings.of(Best), *data.findings.of(Contrast)))


def test_heads_that_are_all_shuffled_are_drawn_and_heads_that_are_all_left_out_are_not(
    folder: Path, tmp_path: Path
) -> None:
    for factor, exact in (
        ("shuffle_heads", {"shuffle_heads=0"}),
        ("prune_share", {"prune_share=0", "prune_share=1"}),
    ):
        made = planned(folder, f"{factor} = [0, 1]", name=factor)
        assert {cell.label for cell in made.cells if not cell.seeded} == exact
        outcome, said = train(made, tmp_path / "ablate.db")
        assert outcome.exit_code == 0, said
        with store.open(str(tmp_path / "ablate.db")) as opened:
            assert report.gather(opened, factor).exact == exact


def test_one_run_of_a_changed_model_is_not_taken_for_exact(folder: Path, tmp_path: Path) -> None:
    """The parameters of its positions are drawn by the seed."""
    made = planned(folder, 'position = ["learned", "rotary"]', seeds=1, name="moved")
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    with store.open(str(tmp_path / "ablate.db")) as opened:
        assert not report.gather(opened, "moved").exact


def test_a_stopped_run_continues_as_if_it_had_not_been(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned(folder, "prune_share = [0, 0.5]", base="tokens = 800")
    train(made, tmp_path / "whole.db")
    old, begun = Transformer.train, set[str]()

    def stopped(self: Transformer, job: Job, context: Context) -> None:
        key, asked = job.runs[0].key, iter(range(99))
        if key not in begun:
            begun.add(key)
            context = replace(context, stop=lambda: next(asked) > 3)
        else:
            assert job.resume and job.resume.exists()
        old(self, job, context)

    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "train", stopped)
        outcome, said = train(made, tmp_path / "parts.db")
    assert outcome.exit_code == 0, said
    sql = (
        "SELECT runs.key, name, value FROM final JOIN runs ON run = run_id"
        " WHERE name NOT LIKE '%seconds' ORDER BY 1, 2, at"
    )
    found = []
    for name in ("whole", "parts"):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            found.append(connection.execute(sql.replace("runs.key", "runs.cell")).fetchall())
    assert found[0] == found[1] != []


def test_the_file_of_a_run_is_a_start_and_random_weights_are_a_level(
    folder: Path, tmp_path: Path
) -> None:
    shape = "n_layer = 3\nd_model = 32\nn_ctx = 16\nobjective = 'masked'"
    (folder / "first.toml").write_text(
        f"""
name = "first"
question = "Which ratio is best?"
metric = "probe_loss@0.15"
seeds = 1
[base]
corpus = "corpus.txt"
batch_tokens = 80
tokens = 1600
lr = 1e-2
{shape}
[factors]
mask_ratio = [0.15, 0.4]
[run]
keep = "final"
[eval]
tokens = 512
final_tokens = 512
"""
    )
    first = plan(load(str(folder / "first.toml")))
    outcome, said = train(first, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    run = next(one.run for one in first.runs if one.cell == "mask_ratio=0.15")
    (file,) = (tmp_path / "ablate.weights").glob(f"{run.key[:12]}*")
    base = "tokens = 320\nlr = 1e-4"
    factors = 'start = ["given", "random"]'
    again = planned(folder, factors, name="again", base=base, given=str(file))
    assert again.cells[0].config.objective == "masked" and again.cells[0].config.n_ctx == 16
    assert len({len(dict(cell.run.fields)) for cell in again.cells}) == 2
    outcome, said = train(again, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    with sqlite3.connect(tmp_path / "ablate.db") as connection:
        losses = dict(connection.execute("SELECT cell, loss FROM runs WHERE study = 'again'"))
        (before,) = connection.execute(
            "SELECT loss FROM runs WHERE study = 'first' AND cell = 'mask_ratio=0.15'"
        ).fetchone()
    assert losses["start=given"] < before + 0.2 < losses["start=random"] - 0.5
    ratios = planned(
        folder, "mask_ratio = [0.15, 0.4]", name="ratios", given=str(file), metric="probe_loss@0.15"
    )
    model, _ = models(ratios)["mask_ratio=0.4"]
    kept = library.load_model(file)
    given = tokens(250)[:, :16]
    torch.testing.assert_close(logits(model, given), kept(given))


def test_given_weights_are_fine_tuned(folder: Path, tmp_path: Path) -> None:
    table(folder / "task.csv", texts())
    task = '[finetune]\ntask = "task.csv"\nfinetune_steps = 4\nfinetune_batch = 8'
    methods = 'method = ["full", "head", "scratch"]'
    made = planned(folder, methods, more=task, metric="task_accuracy", name="tuned")
    parents = {one.run.key: one.run for one in made.runs if one.role == "pretrain"}
    (parent,) = parents.values()
    assert parent.config.steps == 0 and parent.config.part("start").given
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    with sqlite3.connect(tmp_path / "ablate.db") as connection:
        finals = dict(
            connection.execute(
                "SELECT cell || name, value FROM final JOIN runs ON run = run_id"
                " WHERE name IN ('pretraining_loss', 'forgetting')"
            )
        )
    assert finals["method=headpretraining_loss"] == pytest.approx(librarys_loss(folder), abs=1e-5)
    assert finals["method=headforgetting"] == 0 != finals["method=fullforgetting"]
    assert "method=scratchforgetting" not in finals


def test_keys_follow_the_weights_and_not_the_name_of_their_folder(folder: Path) -> None:
    keys = {one.run.key for one in planned(folder).runs}
    (folder / "other").symlink_to(folder / "gpt2")
    assert {one.run.key for one in planned(folder, given="other").runs} == keys
    made("gpt2", vocab_size=260, n_layer=3).save_pretrained(folder / "changed")
    for name in ("tokenizer.json",):
        (folder / "changed" / name).write_bytes((folder / "gpt2" / name).read_bytes())
    assert {one.run.key for one in planned(folder, given="changed").runs} == keys
    theirs = made("gpt2", vocab_size=260, n_layer=3)
    theirs.transformer.wte.weight.data[3, 3] += 1
    before = planned(folder, given="changed")
    theirs.save_pretrained(folder / "changed")
    assert keys.isdisjoint(one.run.key for one in planned(folder, given="changed").runs)
    config = before.runs[0].config
    with pytest.raises(AblateError, match="have changed since the study was planned"):
        start.give(model_of(config), [config], before.sources)


def test_training_against_none_is_no_percentage(folder: Path) -> None:
    made = planned(folder, "tokens = [0, 1600]", base="lr = 1e-3")
    (found,) = (one for one in made.confounds if one.cell == "tokens=1600")
    assert found.text == "trains, and 'tokens=0' does not"


def test_the_plan_says_what_is_new_and_what_is_not_used(folder: Path) -> None:
    said = "\n".join(
        planned(folder, 'position = ["learned", "t5"]\nnorm_kind = ["layernorm", "rmsnorm"]').about
    )
    assert re.search("from the weights of gpt2 .SHA-256 [0-9a-f]{12}", said)
    new = re.search("position=t5, norm_kind=layernorm.*", said)
    assert new and "new, of random weights: position.table.weight" in new[0]
    assert "not used of the given weights: position.table.weight" in new[0]
    assert "blocks.*.n1.bias" in said
    fewer = planned(folder, "n_ctx = [20, 10]")
    model, _ = models(fewer)["n_ctx=10"]
    whole, given = library.load_model(folder / "gpt2"), tokens()[:, :10]
    torch.testing.assert_close(logits(model, given), whole(given))
    same = planned(folder, "drop_blocks = [[], [0]]\nprune_share = [0, 0.5]", seeds=2).about
    assert "Every seed gives the same numbers in 'drop_blocks=[], prune_share=0'" in same[-1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"given": "gpt3"}, "line 11: there is no folder or file .*gpt3"),
    "no model": ({"given": "."}, r"line 11: .* has no \*.safetensors"),
    "another width": (
        {"base": "tokens = 0\nd_model = 64"},
        "d_model = 64: the given weights have d_model = 32",
    ),
    "heads": ({"base": "tokens = 0\nn_kv_head = 2"}, "n_kv_head = 2: .*have n_kv_head = 4"),
    "longer": ({"base": "tokens = 0\nn_ctx = 40"}, "n_ctx = 40: the given weights have n_ctx = 20"),
    "layers": ({"base": "tokens = 0\nn_layer = 2"}, "n_layer = 2.*n_layer = 3.*drop_blocks"),
    "no block left": (
        {"factors": "drop_blocks = [[], [0, 1, 2]]"},
        "drop_blocks = .0, 1, 2.: .*n_layer = 3, and at least one",
    ),
    "no block": ({"factors": "drop_blocks = [[], [3]]"}, "drop_blocks = .3.: .*from 0 to 2"),
    "odd": ({"factors": "swap_blocks = [[], [1]]"}, "swap_blocks = .1.: give an even number"),
    "no head": (
        {"factors": 'prune_heads = [[], ["1.4"]]'},
        "'1.4' is no head of the model. Choices: from 0.0 to 2.3",
    ),
    "dropped head": (
        {"factors": 'prune_heads = [[], ["1.0"]]', "start": "drop_blocks = [1]"},
        "'1.0' is in block 1, which drop_blocks leaves out",
    ),
    "share": ({"factors": "prune_share = [0, 2]"}, "prune_share = 2: a share from 0 to 1"),
    "shared values": (
        {"factors": "prune_share = [0, 0.5]", "given": "llama", "base": "tokens = 400"},
        "n_kv_head = 2 of n_head = 4.*tokens = 0",
    ),
    "tokenizer": (
        {"base": 'tokens = 0\ntokenizer = "bpe:300"'},
        "'bpe:300': it has 300 tokens, and the given weights 260",
    ),
    "twice": ({"start": "drop_blocks = [1]"}, "drop_blocks is set both here and by factor"),
    "unknown": ({"start": "drop_block = [1]"}, "key of .start. 'drop_block'.*drop_blocks"),
    "match": ({"more": '[match]\nparams = "body"'}, r"\[match\] solves a width"),
    "no training": (
        {"factors": 'start = ["given", "random"]'},
        "tokens = 0: start = 'random' .* above 0",
    ),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_has_no_meaning_is_refused_in_one_line(
    folder: Path, given: dict[str, Any], said: str
) -> None:
    with refused(folder / "started.toml", said):
        planned(folder, **given)


def test_the_size_of_given_weights_cannot_shrink(folder: Path) -> None:
    with pytest.raises(AblateError, match=r"the weights of \[start\] decide their size"):
        tiny(planned(folder).study)


def test_a_run_from_given_weights_can_be_saved_again(folder: Path, tmp_path: Path) -> None:
    keep = '[run]\nkeep = "final"'
    made = planned(folder, more=keep)
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    run = next(one.run for one in made.runs if one.cell == "drop_blocks=[0]")
    model = library.load_model(run.key[:12], tmp_path / "ablate.db")
    hugging_face.save(model, tmp_path / "out")
    again = library.load_model(tmp_path / "out")
    assert again.config.n_layer == 2
    torch.testing.assert_close(again(tokens()), model(tokens()), atol=1e-5, rtol=1e-5)


def test_fields_of_a_start_need_the_table(folder: Path) -> None:
    file = folder / "plain.toml"
    planned(folder, name="plain", base="tokens = 400")
    for replaced, said in (
        ("", "drop_blocks is only for given weights; add a table .start."),
        ("[start]\ndrop_blocks = [0]", "start.from is missing: "),
    ):
        text_ = re.sub(r'\[start\]\nfrom = "gpt2"', replaced, file.read_text())
        if replaced:
            text_ = text_.replace(DROPS, "prune_share = [0, 0.5]")
        with pytest.raises(AblateError, match=said):
            load_text(folder, text_)


def load_text(folder: Path, text_: str) -> None:
    (folder / "written.toml").write_text(text_)
    load(str(folder / "written.toml"))
