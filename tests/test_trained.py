"""Models of runs whose weights are kept: what they compute, write and become in `transformers`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import torch
import torch.nn.functional as F
import trained_study
from cli_helpers import Run, measure

import ablate
from ablate import __version__, outside, store, text
from ablate.components.block import Parallel
from ablate.config import NUMERICS
from ablate.data.batches import gather, held_out_starts
from ablate.data.objectives import Masked
from ablate.errors import AblateError
from ablate.kinds.transformer import Transformer
from ablate.plan import plan
from ablate.results import database
from ablate.store import register
from ablate.study import load
from ablate.train import weights
from ablate.trained import hugging_face
from ablate.trained.load import load_model
from ablate.trained.sample import sample

os.environ["HF_HUB_OFFLINE"] = "1"
SAVED = {"gpt2": "GPT-2", "neox": "GPT-NeoX", "llama": "Llama", "bert": "BERT"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a database of two studies, whose file of parts is gone."""
    made = tmp_path_factory.mktemp("trained")
    trained_study.trained(made, trained_study.STUDY, trained_study.MASKED)
    (made / "parts.py").unlink()
    yield made
    outside.use(())


@pytest.fixture
def db(folder: Path) -> str:
    """The database of `folder`, as the default one; nothing from outside is loaded."""
    outside.use(())
    return str(folder / "ablate.db")


def run_of(db: str, level: str, study: str = "kept") -> int:
    with database(db).read() as connection:
        return int(
            connection.exec_driver_sql(
                "SELECT run FROM runs WHERE study = ? AND cell = ?", (study, f"model={level}")
            ).scalar_one()
        )


def final(db: str, run: int, name: str) -> float:
    with database(db).read() as connection:
        return float(
            connection.exec_driver_sql(
                "SELECT value FROM final WHERE run_id = ? AND name = ?", (run, name)
            ).scalar_one()
        )


def key_of(db: str, level: str, study: str = "kept") -> str:
    with database(db).read() as connection:
        return str(
            connection.exec_driver_sql(
                "SELECT key FROM run WHERE id = ?", (run_of(db, level, study),)
            ).scalar_one()
        )


def file_of(db: str, level: str, study: str = "kept") -> Path:
    (file,) = Path(db.replace(".db", ".weights")).glob(f"{key_of(db, level, study)[:12]}*")
    return file


@pytest.mark.parametrize("level", ["gpt2", "llama", "own", "whole"])
def test_a_loaded_model_has_the_held_out_loss_of_its_run(db: str, level: str) -> None:
    run = run_of(db, level)
    model = ablate.load_model(run, db)
    assert not model.training and model.config.n_ctx == 16
    tokens = text.load(model.config, plan(load("quickstart")).sources)
    starts = held_out_starts(len(tokens.held_out), 16, 512)
    windows = gather(tokens.held_out, starts, 17).long()
    with torch.inference_mode():
        logits = model(windows[:, :-1])
    assert logits.shape == (*windows[:, :-1].shape, model.config.n_vocab)
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert float(loss) == pytest.approx(final(db, run, "loss"), abs=1e-5)
    assert model.about.loss == pytest.approx(float(loss), abs=1e-5)  # both of 512 tokens


@pytest.mark.parametrize("level", ["bert", "pieces"])
def test_a_loaded_masked_model_has_the_held_out_loss_of_its_evaluation(db: str, level: str) -> None:
    model = ablate.load_model(run_of(db, level, "masked"), db)
    file = Path(db).with_name("study1.toml")
    tokens = text.load(model.config, plan(load(str(file))).sources)
    starts = held_out_starts(len(tokens.held_out), 16, 512)
    windows = gather(tokens.held_out, starts, 17)
    example = Masked([model.config], tokens, "cpu").test(windows)
    with torch.inference_mode():
        logits = model(example.inputs[0])
    losses = F.cross_entropy(logits.mT, example.targets[0], reduction="none")
    loss = float((losses * example.weights[0]).sum() / example.weights.sum())
    with database(db).read() as connection:
        curve = connection.exec_driver_sql(
            "SELECT min(value) FROM metric JOIN series ON series.id = series_id WHERE run_id = ?"
            " AND name = 'loss'",
            (run_of(db, level, "masked"),),
        ).scalar_one()
    assert loss == pytest.approx(curve, abs=1e-5) and model.about.loss == curve


def test_a_tokenizer_of_the_users_own_comes_with_the_weights(db: str) -> None:
    model = ablate.load_model(run_of(db, "backwards"), db)
    assert model.tokenizer.encode("Emma") == [255 - byte for byte in b"Emma"]
    assert model.tokenizer.decode(model.tokenizer.encode("Emma")) == "Emma"
    assert sample(model, "Emma", tokens=3).startswith("Emma")


def test_a_document_mask_holds_in_a_loaded_model(db: str) -> None:
    """What stands before the end of a document has no influence on what follows."""
    model = ablate.load_model(run_of(db, "pieces"), db)
    (separator,) = model.tokenizer.separator
    after = model.tokenizer.encode("and so")
    one, other = ([*model.tokenizer.encode(first), separator, *after] for first in ("It", "Of"))
    with torch.inference_mode():
        both = model(torch.tensor([one, other]))
        alone = model(torch.tensor([after]))
    of = len(after)
    torch.testing.assert_close(both[0, -of:], both[1, -of:])
    torch.testing.assert_close(both[0, -of:], alone[0])
    assert not torch.allclose(both[0, 0], both[1, 0])


def test_a_file_of_weights_needs_neither_database_nor_parts(db: str, tmp_path: Path) -> None:
    run = run_of(db, "own")
    model = ablate.load_model(run, db)
    moved = tmp_path / "mine.safetensors"
    shutil.copy(file_of(db, "own"), moved)
    outside.use(())
    again = ablate.load_model(moved)
    other = ablate.load_model(run_of(db, "whole"), db)
    outside.use(())  # as a study that is planned meanwhile does
    given = torch.tensor([model.tokenizer.encode("It is a truth")])
    with torch.inference_mode():
        torch.testing.assert_close(again(given), model(given), rtol=0, atol=0)
        assert other(given).shape == (1, 13, 256)
    assert again.tokenizer.decode(given[0]) == "It is a truth"
    assert again.about.run.seed == 0 and again.about.keep == "final" and again.about.step == 12
    assert [code.file for code in again.about.use] == [None]  # no folder of a user


def test_changed_code_in_a_file_of_weights_is_refused(db: str, tmp_path: Path) -> None:
    kept, about = weights.read(file_of(db, "own"))
    edited = tuple(replace(code, text=f"{code.text}\n#") for code in about.use)
    path = tmp_path / "edited.safetensors"
    weights.write(path, kept, replace(about, use=edited))
    with pytest.raises(AblateError, match=r"parts\.py .* not the code"):
        ablate.load_model(path)


@pytest.mark.parametrize("what", ["numerics", "revision"])
def test_weights_of_other_mathematics_are_refused(
    ablate: Run, db: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A later version of ablate, in which such a run has another key."""
    if what == "numerics":
        monkeypatch.setattr(Transformer, "numerics", NUMERICS + 1)
    else:
        monkeypatch.setattr(Parallel, "revision", lambda *_: 1)
    code, out, err = ablate("sample", str(run_of(db, "neox")), "It is", "--db", db)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"by ablate {__version__}" in err and "train the run again" in err


# -- text ------------------------------------------------------------------------------------------


def test_a_greedy_continuation_is_that_of_a_plain_loop_beyond_the_context(db: str) -> None:
    model = ablate.load_model(run_of(db, "gpt2"), db)  # its positions end at n_ctx
    tokens = list(b"It is a truth universally")
    with torch.inference_mode():
        for _ in range(20):
            logits = model.transformer(torch.tensor([[tokens[-16:]]]))[0, 0, -1]
            tokens.append(int(logits.argmax()))
    made = sample(model, "It is a truth universally", tokens=20, temperature=0)
    assert made == bytes(tokens).decode(errors="replace")


def test_samples_follow_seed_temperature_and_top_k(db: str) -> None:
    model = ablate.load_model(run_of(db, "pieces"), db)
    one = sample(model, "It is", tokens=30, seed=1)
    assert one == sample(model, "It is", tokens=30, seed=1) != sample(model, "It is", seed=2)
    assert one.startswith("It is")
    assert sample(model, "It is", tokens=9, top_k=1, seed=1) == sample(
        model, "It is", tokens=9, temperature=0
    )
    assert sample(model, "", tokens=5)  # a document begins


def test_shares_of_samples_are_the_models(db: str) -> None:
    model = ablate.load_model(run_of(db, "whole"), db)
    with torch.inference_mode():
        shares = (model(torch.tensor([[101]]))[0, -1] / 0.5).softmax(-1)
    drawn = [sample(model, "e", tokens=1, temperature=0.5, seed=seed) for seed in range(400)]
    best = int(shares.argmax())
    share = sum(one == "e" + chr(best) for one in drawn) / len(drawn)
    assert share == pytest.approx(float(shares[best]), abs=0.08)


@pytest.mark.parametrize("level", ["bert", "pieces"])
def test_masks_are_filled_by_the_likeliest_token(db: str, level: str) -> None:
    model = ablate.load_model(run_of(db, level, "masked"), db)
    given = model.tokenizer.encode("It [MASK]s")
    (hidden,) = [index for index, token in enumerate(given) if token == model.config.n_vocab - 1]
    with torch.inference_mode():
        likeliest = int(model(torch.tensor([given]))[0, hidden, :-1].argmax())
    expected = [*given[:hidden], likeliest, *given[hidden + 1 :]]
    assert sample(model, "It [MASK]s") == model.tokenizer.decode(expected)
    assert "[MASK]" not in sample(model, "[MASK][MASK] is [MASK]", temperature=1)
    assert model.tokenizer.decode(given) == "It [MASK]s"


def test_bytes_that_are_no_utf8_are_read_and_shown(db: str) -> None:
    model = ablate.load_model(run_of(db, "neox"), db)
    assert model.tokenizer.encode("é\udcff") == [0xC3, 0xA9, 0xFF]
    assert model.tokenizer.decode([0xC3, 0xA9, 0xFF]) == "é\ufffd"


@pytest.mark.parametrize(
    ("level", "study", "given", "words"),
    [
        ("gpt2", "kept", "It [MASK]", ["causal", "continues a text"]),
        ("bert", "masked", "It is", ["masked", "no [MASK]"]),
        ("bert", "masked", "[MASK] is a truth universally", ["n_ctx = 16"]),
    ],
)
def test_sample_says_what_a_text_lacks(
    ablate: Run, db: str, level: str, study: str, given: str, words: list[str]
) -> None:
    code, out, err = ablate("sample", str(run_of(db, level, study)), given, "--db", db)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words), err


def test_sample_prints_text_alone(ablate: Run, db: str) -> None:
    run = str(run_of(db, "neox"))
    options = ("--tokens", "5", "--temperature", "0", "--db", db)
    code, out, err = ablate("sample", run, "It is", *options)
    assert code == 0 and out.startswith("It is") and out.endswith("\n") and not err


# -- transformers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", SAVED)
def test_a_saved_model_is_the_same_in_transformers(db: str, tmp_path: Path, level: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = ablate.load_model(run_of(db, level, "masked" if level == "bert" else "kept"), db)
    assert hugging_face.save(model, tmp_path / "out") == SAVED[level]
    auto = transformers.AutoModelForMaskedLM if level == "bert" else None
    theirs = (auto or transformers.AutoModelForCausalLM).from_pretrained(tmp_path / "out").eval()
    tokens = torch.randint(model.config.n_vocab, (3, 16), generator=torch.Generator())
    with torch.inference_mode():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    given = "It is [MASK] é!" if level == "bert" else "It is é!"
    assert tokenizer(given).input_ids == model.tokenizer.encode(given)
    assert tokenizer.decode(tokenizer(given).input_ids) == given
    with pytest.raises(AblateError, match="not an empty folder"):
        hugging_face.save(model, tmp_path / "out")


@pytest.mark.parametrize("exists", [False, True])
def test_a_model_that_cannot_be_saved_leaves_nothing(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    model, out = ablate.load_model(run_of(db, "llama"), db), tmp_path / "out"
    if exists:
        out.mkdir()

    def full(*arguments: object, **options: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", full)
        with pytest.raises(OSError, match="no space"):
            hugging_face.save(model, out)
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if exists else [])
    assert hugging_face.save(model, out) == "Llama" and (out / "config.json").exists()


def test_the_command_saves_a_run(ablate: Run, db: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    to = ("--to", "transformers", "--db", db)
    code, out, _ = ablate("export", str(run_of(db, "llama")), str(tmp_path / "out"), *to)
    assert code == 0 and "Llama" in out and out.count("\n") == 1
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").model_type == "llama"
    code, _, err = ablate("export", str(run_of(db, "own")), str(tmp_path / "other"), *to)
    assert code == 2 and "activation = 'squared-relu'" in err and err.count("\n") == 1
    code, _, err = ablate("export", "kept", str(tmp_path / "other"), *to)
    assert code == 2 and "no run 'kept'" in err and not (tmp_path / "other").exists()


def test_a_model_with_a_tokenizer_of_ones_own_is_saved_without_it(
    ablate: Run, db: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    run, folder = run_of(db, "backwards"), tmp_path / "out"
    to = ("--to", "transformers", "--db", db)
    code, out, _ = ablate("export", str(run), str(folder), *to)
    assert code == 0 and "without a tokenizer" in out and "'backwards'" in out
    assert not list(folder.glob("tokenizer*"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ours = load_model(run, db)
    tokens = torch.tensor([ours.tokenizer.encode("It is")])
    assert torch.allclose(theirs(tokens).logits, ours(tokens), atol=1e-5)


@pytest.mark.parametrize("study", ["kept", "masked"])
def test_a_saved_tokenizer_of_pieces_gives_the_same_tokens(db: str, study: str) -> None:
    pytest.importorskip("transformers")
    model = ablate.load_model(run_of(db, "pieces", study), db)
    theirs = hugging_face.tokenizer_for(model.tokenizer, model.config)
    given = "It is a truth, universally [MASK]ed é" if study == "masked" else "It is a truth é"
    assert theirs(given).input_ids == model.tokenizer.encode(given)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("own", ["activation = 'squared-relu'", "'gelu'", "gelu-tanh (GPT-2, BERT, GPT-NeoX, "]),
        ("whole", ["architecture = 'parts.py:Bigram'", "'transformer'"]),
        ("pieces", ["document_mask = 'attention'", "'none'"]),
    ],
)
def test_what_transformers_lacks_is_refused_by_name(
    db: str, tmp_path: Path, level: str, words: list[str]
) -> None:
    pytest.importorskip("transformers")
    model = ablate.load_model(run_of(db, level), db)
    with pytest.raises(AblateError) as error:
        hugging_face.save(model, tmp_path / "out")
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "out").exists()


# -- the database ----------------------------------------------------------------------------------


def test_a_file_is_one_of_safetensors(db: str) -> None:
    """Its own reader shows weights and configuration."""
    with safetensors.safe_open(file_of(db, "llama"), "pt") as opened:
        told = json.loads(opened.metadata()["ablate"])
        embedding = opened.get_tensor("embedding.weight")
    assert told["key"] == key_of(db, "llama") and told["run"]["fields"]["norm_kind"] == "rmsnorm"
    assert embedding.shape == (256, 16)


def test_weights_that_are_asked_for_later_are_trained_once(
    ablate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = tmp_path / "later.toml", str(tmp_path / "ablate.db")
    monkeypatch.setenv("ABLATE_DB", path)
    sizes = trained_study.SIZES.format(tokens=256)
    file.write_text(
        'name = "later"\nquestion = "Twice?"\nseeds = 1\n'
        f"[base]\n{sizes}[eval]\ntokens = 64\n[factors]\ntopology = [1, 5]\n"
    )
    trained_study.train(file, path)
    code, _, err = ablate("sample", "1")
    assert code == 2 and 'keep = "final" under [run]' in err and "'later'" in err
    before = numbers(path)
    assert not Path(path.replace(".db", ".weights")).exists()

    file.write_text(f'{file.read_text()}[run]\nkeep = "final"\n')
    again = "2 complete runs have no weights"
    planned = ablate("plan", str(file))[1]
    assert (
        again in planned
        and "Weights of 2 runs are kept" in planned
        and "Next: ablate run" in planned
    )
    assert again in trained_study.train(file, path)
    with database(path).read() as connection:
        rows = connection.exec_driver_sql("SELECT run_id, kind FROM artifact ORDER BY 1").all()
    assert [tuple(row) for row in rows] == [(1, "final-weights"), (2, "final-weights")]
    assert numbers(path) == before, "the same numbers, and no new runs"
    assert ablate("sample", "1", "--tokens", "3")[0] == 0
    assert "final.safetensors" in ablate("show", "1")[1]

    assert again not in ablate("plan", str(file))[1]
    assert again not in trained_study.train(file, path)
    with database(path).read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM attempt").scalar() == 4

    one, _ = Path(path.replace(".db", ".weights")).iterdir()
    one.unlink()
    again = "1 complete run has no weights"
    assert again in ablate("plan", str(file))[1]
    assert again in trained_study.train(file, path)
    assert one.is_file() and numbers(path) == before
    with database(path).read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM attempt").scalar() == 5


def numbers(path: str) -> list[tuple]:
    with database(path).read() as connection:
        return [
            tuple(row)
            for row in connection.exec_driver_sql(
                "SELECT key, status, name, at, value FROM run JOIN final ON run.id = run_id WHERE"
                " name <> 'train_seconds' ORDER BY key, name, at"
            )
        ]


def test_tuning_runs_keep_no_weights(tmp_path: Path) -> None:
    file, path = tmp_path / "tuned.toml", str(tmp_path / "ablate.db")
    sizes = trained_study.SIZES.format(tokens=256).replace("lr = 1e-2\n", "")
    file.write_text(
        'name = "tuned"\nquestion = "?"\nseeds = 1\n'
        f"[base]\n{sizes}[eval]\ntokens = 64\npoints = 1\n[factors]\ntopology = [1, 5]\n"
        '[tune]\nlr = [1e-3, 1e-2]\npoints = 3\nseeds = 1\nper = "study"\n'
        '[run]\nkeep = "final"\n'
    )
    trained_study.train(file, path)
    trained_study.train(file, path)  # and are not trained again for that
    with database(path).read() as connection:
        roles = connection.exec_driver_sql(
            "SELECT role, count(*), count(artifact.run_id), sum((SELECT count(*) FROM attempt WHERE"
            " attempt.run_id = member.run_id)) FROM member LEFT JOIN artifact USING (run_id) GROUP"
            " BY role ORDER BY role"
        ).all()
    assert [row[0] for row in roles] == ["compare", "tune"]
    assert roles[0][1:] == (2, 2, 2)
    assert roles[1][1] >= 3 and roles[1][2] == 0 and roles[1][1] == roles[1][3]
    assert len(list((tmp_path / "ablate.weights").iterdir())) == 2


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> str:
    """A copy of the database and its weights."""
    shutil.copytree(folder, tmp_path / "copy")
    return str(tmp_path / "copy" / "ablate.db")


def test_check_names_missing_cut_and_stray_files(ablate: Run, copy: str) -> None:
    assert ablate("db", "check", "--db", copy)[0] == 0
    missing, stray = file_of(copy, "neox"), file_of(copy, "own").with_name("notes.txt")
    missing.unlink()
    stray.touch()
    cut = file_of(copy, "llama")
    cut.write_bytes(cut.read_bytes()[:-1])
    code, out, _ = ablate("db", "check", "--db", copy)
    assert code == 1 and str(stray) in out
    for level in ("neox", "llama"):
        run = run_of(copy, level)
        assert f"weights of run {run} are missing or cut short" in out
        code, _, err = ablate("sample", str(run), "--db", copy)
        assert code == 2 and f"the weights of run {run} " in err and "`ablate run` trains it" in err
    out = ablate("db", "check", "--repair", "--db", copy)[1]
    assert stray.exists() and file_of(copy, "own").exists()
    stray.unlink()
    assert str(cut) in ablate("db", "check", "--db", copy)[1], "of no run"
    cut.unlink()
    assert ablate("db", "check", "--db", copy)[0] == 0


def test_forget_deletes_the_weights_of_its_study_alone(ablate: Run, copy: str) -> None:
    kept, gone = file_of(copy, "bert", "masked"), file_of(copy, "own")
    outside_folder = Path(copy).parent / "precious-final.safetensors"
    outside_folder.touch()
    with store.open(copy, create=True) as opened, opened.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO artifact VALUES (?, 'final-weights', '../precious-final.safetensors')",
            (run_of(copy, "own"),),
        )
    assert str(gone) in ablate("db", "forget", "kept", "--db", copy)[1] and gone.exists()
    assert ablate("db", "forget", "kept", "--yes", "--db", copy)[0] == 0
    assert not gone.exists() and kept.exists() and outside_folder.exists()
    assert len(list(kept.parent.iterdir())) == 2


def test_merge_copies_weights_and_names_none_that_are_not_there(
    ablate: Run, copy: str, tmp_path: Path
) -> None:
    file_of(copy, "neox").unlink()
    target = str(tmp_path / "target.db")
    code, out, _ = ablate("db", "merge", copy, "--db", target)
    assert code == 0 and "copied files of weights: 8" in out
    assert file_of(target, "own").read_bytes() == file_of(copy, "own").read_bytes()
    assert ablate("db", "check", "--db", target)[0] == 0
    code, _, err = ablate("sample", str(run_of(target, "neox")), "--db", target)
    assert code == 2 and "has no weights" in err
    assert "copied" not in ablate("db", "merge", copy, "--db", target)[1]


@pytest.mark.parametrize("what", ["imported", "command"])
def test_runs_of_kinds_without_weights_get_no_advice_to_keep_them(
    ablate: Run, tmp_path: Path, what: str
) -> None:
    """Neither an imported run nor that of a script can be trained again for its weights."""
    path = str(tmp_path / "ablate.db")
    if what == "imported":
        Path("a.csv").write_text("x,seed,m\n1,0,2.5\n2,0,2.0\n")
        named = ("--metric", "m", "--factor", "x", "--seed", "seed", "--db", path)
        assert ablate("import", "a.csv", "--study", "a", *named, "--goal", "lower")[0] == 0
    else:
        Path("a.toml").write_text(
            'name = "a"\nquestion = "?"\nmetric = "m"\ngoal = "lower"\nseeds = 1\n'
            '[factors]\nx = [1, 2]\n[command]\nrun = "true {x} {seed}"\n'
        )
        made = plan(load("a.toml"))
        with store.open(path, create=True) as opened:
            register.register(opened, made)
            measure(opened, made.runs, lambda run: 0.1)
    for command in (("sample", "1"), ("export", "1", "out", "--to", "transformers")):
        code, out, err = ablate(*command, "--db", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert ("imported" if what == "imported" else "script") in err and "trains" not in err
    with pytest.raises(AblateError, match="run 1 has no weights"):
        load_model(1, path)
    assert not Path("out").exists()


def test_a_key_of_run_that_is_wrong_is_one_line(ablate: Run, tmp_path: Path) -> None:
    text = trained_study.MASKED.replace('keep = "best"', 'keep = "last"')
    (tmp_path / "a.toml").write_text(text)
    code, _, err = ablate("plan", "a.toml")
    assert code == 2 and "run.keep = 'last'" in err and "'best'" in err


def test_keep_does_not_apply_to_scripts(ablate: Run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'name = "a"\nquestion = "?"\nmetric = "m"\ngoal = "lower"\nseeds = 1\n'
        "[factors]\nx = [1, 2]\n"
        '[command]\nrun = "true {x} {seed}"\n[run]\nkeep = "final"\n'
    )
    code, _, err = ablate("plan", "a.toml")
    assert code == 2 and "[run] has no effect beside [command]" in err and err.count("\n") == 1


def test_keep_is_no_part_of_a_runs_key(tmp_path: Path) -> None:
    keys = []
    for keep in ("none", "final", "best"):
        file = tmp_path / "a.toml"
        file.write_text(trained_study.MASKED.replace('"best"', f'"{keep}"'))
        made = plan(load(str(file)))
        assert made.study.keep == keep
        keys.append([one.run.key for one in made.runs])
    assert keys[0] == keys[1] == keys[2]
