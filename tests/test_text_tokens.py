"""Tokens: every byte is used, tokenizers invert, a cache survives races and crashes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ablate import cache, text
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.text import Tokens, corpora, tokenizers
from ablate.text.corpora import Corpus
from ablate.text.documents import Document
from ablate.text.options import Reading
from ablate.text.tokenizers import TokenizerInfo


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def _load(
    corpus: Corpus, spec: str, n_ctx: int = 8, root: Path = Path()
) -> tuple[TokenizerInfo, Tokens]:
    info = tokenizers.describe(spec, corpus, root)
    config = RunConfig(
        corpus=corpus.name,
        corpus_hash=corpus.hash,
        tokenizer=info.name,
        tokenizer_hash=info.hash,
        n_vocab=info.n_vocab,
        n_ctx=n_ctx,
        batch_tokens=n_ctx,
    )
    return info, text.load(config, {corpus.hash: corpus.location, info.hash: info.location})


def _story(seed: int, sentences: int) -> str:
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat,",
        "and",
        "dog's",
        "naïve",
        "–",
        "(slowly)",
        "home.\n\nThen",
        "42",
        '"why?"',
    ]
    draw = random.Random(seed)
    return "\n".join(
        " ".join(draw.choices(words, k=9)) + f" No. {seed}/{n}" for n in range(sentences)
    )


def _corpus(folder: Path, documents: list[str], name: str = "story") -> Corpus:
    (folder / f"{name}.txt").write_text("\f".join(documents))
    return corpora.find(f"{name}.txt", folder)


PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")


def _spell(tokens: Tokens, stream: np.ndarray) -> bytes:
    assert tokens.spelling is not None
    return b"".join(tokens.spelling[token] for token in stream)


@pytest.mark.parametrize("spec", ["byte", "bpe:300"])
@pytest.mark.parametrize("n_documents", [3, 60])
def test_every_line_is_trained_on_or_held_out_never_both(
    folder: Path, spec: str, n_documents: int
) -> None:
    documents = [_story(seed, 40) for seed in range(n_documents)]
    corpus = _corpus(folder, documents)
    _, tokens = _load(corpus, spec)
    train, held_out = (_spell(tokens, part).decode() for part in (tokens.train, tokens.held_out))
    lines = [line for document in documents for line in document.split("\n")]
    marks = [line.rpartition(" No. ")[2] for line in lines if " No. " in line]
    trained, tested = (
        {
            line.rpartition(" No. ")[2]
            for line in part.replace("\f", "\n").split("\n")
            if " No. " in line
        }
        for part in (train, held_out)
    )
    assert trained | tested == set(marks)
    assert not trained & tested
    for number, document in enumerate(documents):
        of_document = [f"{number}/{n}" for n in range(40)]
        assert document.endswith(of_document[-1])
        cut = [mark in tested for mark in of_document]
        assert cut == sorted(cut)  # the end of a document, or all or nothing of it
        chosen = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8]) < 2**64 / 10
        assert sum(cut) == (40 if chosen else 0) if n_documents >= 50 else 2 <= sum(cut) <= 5
    assert len(held_out.encode()) == corpus.n_held_out_bytes
    assert len(train.encode()) == corpus.n_train_bytes


@pytest.mark.parametrize("spec", ["byte", "bpe:400"])
def test_streams_are_documents_with_a_form_feed_behind_each(folder: Path, spec: str) -> None:
    documents = [_story(seed, 30) for seed in range(52)]
    _, tokens = _load(_corpus(folder, documents), spec)
    for stream, bounds, numbers in (
        (tokens.train, tokens.train_bounds, tokens.train_documents),
        (tokens.held_out, tokens.held_out_bounds, tokens.held_out_documents),
    ):
        assert bounds[0] == 0 and bounds[-1] == len(stream)
        for start, end, number in zip(bounds[:-1], bounds[1:], numbers, strict=True):
            assert _spell(tokens, stream[start:end]).decode() == documents[number] + "\f"
    assert sorted([*tokens.train_documents, *tokens.held_out_documents]) == list(range(52))


def test_bpe_gives_the_tokens_of_the_library_whatever_the_pieces(folder: Path) -> None:
    from tokenizers import Tokenizer

    documents = [_story(1, 400), _story(2, 200)]
    corpus = _corpus(folder, documents)
    info, tokens = _load(corpus, "bpe:500")
    assert info.n_vocab == tokens.n_vocab == 500 and tokens.train.dtype == np.uint16
    path = next((folder / "cache" / "tokenizers").glob("*/tokenizer.json"))
    reference = Tokenizer.from_file(str(path))
    first = tokens.train[: tokens.train_bounds[1] - 1]
    whole = reference.decode(list(first))
    assert documents[0].startswith(whole) and len(whole) > 0.85 * len(documents[0])
    assert reference.encode(whole).ids == list(first)
    content = whole.encode()
    for size in (64, 1000):
        pieces = list(Document(content, 0, len(content)).pieces(size))
        assert [
            token
            for piece in tokenizers.Library(path.name, path.read_bytes()).encode(pieces)
            for token in piece
        ] == list(first)


def test_bpe_learns_from_the_training_part_alone_and_the_same_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = "\n".join("the cat sat on the mat" for _ in range(90))
    documents = [trained + "\n" + "\n".join("zyzzyva quokka axolotl" for _ in range(10))]
    corpus = _corpus(folder, documents)
    _, tokens = _load(corpus, "bpe:280")
    assert tokens.spelling is not None
    assert b" the" in tokens.spelling and not any(
        b"zy" in token or b"okk" in token for token in tokens.spelling
    )
    monkeypatch.setenv("ABLATE_CACHE", str(folder / "other"))
    _, again = _load(corpus, "bpe:280")
    assert again.spelling == tokens.spelling and np.array_equal(again.train, tokens.train)


def test_a_vocabulary_that_the_text_cannot_fill_is_padded(folder: Path) -> None:
    info, tokens = _load(_corpus(folder, [_story(1, 60)]), "bpe:5000")
    assert info.n_vocab == tokens.n_vocab == len(tokens.spelling or ()) == 5000
    assert max(tokens.train) < 1000 and tokens.spelling and tokens.spelling[-1] == b""


def test_a_tokenizer_is_described_without_training_and_identified_by_its_text(folder: Path) -> None:
    one, two = _corpus(folder, [_story(1, 50)], "one"), _corpus(folder, [_story(2, 50)], "two")
    begin = time.perf_counter()
    infos = [tokenizers.describe("bpe:8192", corpus, folder) for corpus in (one, two)] + [
        tokenizers.describe("bpe:8193", one, folder)
    ]
    assert time.perf_counter() - begin < 0.1
    assert len({info.hash for info in infos}) == 3
    assert (infos[0].name, infos[0].n_vocab, infos[0].location) == ("bpe:8192", 8192, "bpe:8192")
    assert tokenizers.describe("byte", one, folder) == tokenizers.describe("byte", two, folder)


def _files(folder: Path) -> dict[str, Path]:
    """Tokenizers as other projects train them: byte-level with an end of text, WordPiece, metaspace
    that falls back on bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = {}
    stories = [_story(seed, 50) for seed in range(4)]
    gpt = Tokenizer(models.BPE())
    gpt.pre_tokenizer, gpt.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    gpt.train_from_iterator(
        stories,
        trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=alphabet,
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        ),
    )
    made["gpt"] = gpt
    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer, bert.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    bert.decoder = decoders.WordPiece()
    bert.train_from_iterator(
        stories,
        trainers.WordPieceTrainer(
            vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False
        ),
    )
    made["bert"] = bert
    vocab = {
        "<unk>": 0,
        "</s>": 1,
        **{f"<0x{value:02X}>": value + 2 for value in range(256)},
        "▁": 258,
        "a": 259,
        "b": 260,
        "▁a": 261,
        "▁ab": 262,
    }
    llama = Tokenizer(
        models.BPE(
            vocab=vocab, merges=[("▁", "a"), ("▁a", "b")], unk_token="<unk>", byte_fallback=True
        )
    )
    llama.normalizer = normalizers.Replace(" ", "▁")
    llama.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    llama.add_special_tokens(["<unk>", "</s>"])
    made["llama"] = llama
    for name, tokenizer in made.items():
        tokenizer.save(str(folder / f"{name}.json"))
    return {name: folder / f"{name}.json" for name in made}


def test_a_tokenizer_json_gives_its_own_tokens_and_their_bytes(folder: Path) -> None:
    files = _files(folder)
    documents = ["ab ba abba é\n" * 30 + "ab", "ba ab\n" * 60 + "ba"]
    corpus = _corpus(folder, documents)
    for name, end in (("gpt", "<|endoftext|>"), ("llama", "</s>")):
        info, tokens = _load(corpus, f"{name}.json", root=folder)
        assert info.name == f"{name}.json" and info.location == str(files[name])
        assert info.hash == hashlib.sha256(files[name].read_bytes()).hexdigest()
        train = _spell(tokens, tokens.train).decode()
        first = train[: train.index("ba ab\nba ab")]
        assert documents[0].startswith(first) and len(first) > 0.8 * len(documents[0])
        vocabulary = json.loads(files[name].read_text())["model"]["vocab"]
        assert [tokens.train[bound - 1] for bound in tokens.train_bounds[1:]] == [
            vocabulary[end]
        ] * 2
    _, bert = _load(corpus, "bert.json", root=folder)
    assert (
        bert.spelling is not None
        and b" cat" in bert.spelling
        and not any(token.startswith(b"##") for token in bert.spelling)
    )


def test_words_begin_at_the_space_before_them_in_every_tokenizer(folder: Path) -> None:
    documents = [_story(1, 300)]
    corpus = _corpus(folder, documents)
    for spec in ("byte", "bpe:400"):
        _, tokens = _load(corpus, spec)
        assert tokens.word_edges is not None
        at, behind = tokens.word_edges
        stream = tokens.train[:400]
        words, spelled = [], [tokens.spelling[token] for token in stream]  # type: ignore[index]
        for n, (token, letters) in enumerate(zip(stream, spelled, strict=True)):
            if n == 0 or at[token] or behind[stream[n - 1]]:
                words.append(b"")
            words[-1] += letters
        shown = [word.decode() for word in words[:-1]]
        assert {" cat", " sat", ",", " naïve", " 42"} <= set(shown)
        assert all(
            word.strip().isalnum() or len(word.strip()) <= 2 or "–" in word for word in shown
        ), shown


def test_bytes_need_no_utf8_but_bpe_does(folder: Path) -> None:
    (folder / "latin.txt").write_bytes("caf\xe9 ".encode("latin-1") * 100)
    corpus = corpora.find("latin.txt", folder, Reading(encoding="bytes"))
    _, tokens = _load(corpus, "byte")
    assert 0xE9 in tokens.train
    with pytest.raises(AblateError, match=r"not UTF-8 around b'.*caf\\xe9.*tokenizer = 'byte'"):
        _load(corpus, "bpe:300")
    assert not list((folder / "cache").glob("tokens/*/tokens.json.partial"))


@pytest.mark.parametrize(
    ("n_ctx", "complaint"),
    [
        (500, "training part has"),
        (60, "held-out part has 60 tokens, but one window needs n_ctx \\+ 1 = 61"),
    ],
)
@pytest.mark.parametrize("spec", ["byte", "bpe:260"])
def test_a_corpus_shorter_than_a_window_is_refused(
    folder: Path, n_ctx: int, complaint: str, spec: str
) -> None:
    corpus = _corpus(folder, ["abcdefghi\n" * 51])
    info = tokenizers.describe(spec, corpus, folder)
    if spec == "byte":
        with pytest.raises(AblateError, match=complaint):
            text.check(corpus, info, n_ctx)
    with pytest.raises(AblateError, match=r"corpus 'story' is too short.*story.*\.txt\)"):
        text.check(corpus, info, n_ctx)
    with pytest.raises(AblateError, match="corpus 'story' is too short"):
        _load(corpus, spec, n_ctx)
    text.check(corpus, info, 2)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("bite", "unknown tokenizer 'bite'; did you mean 'byte'"),
        ("bpe:8k", "tokenizer = 'bpe:8k': 'bpe:' is followed by a whole number from 257"),
        ("bpe:256", "from 257 to 262144"),
        ("bpe:99999999999999999999", "from 257 to 262144"),
        ("my/tokenizer.json", "there is no file .*my/tokenizer.json"),
        ("story.txt", "story.txt is not a tokenizer.json of the tokenizers library"),
        ("panic.json", "is not a tokenizer.json of the tokenizers library"),
        ("sparse.json", "of 2 tokens has one with number 16,777,000"),
        ("tokens", "corpus 'story' holds text, not tokens"),
    ],
)
def test_a_wrong_tokenizer_is_one_line(folder: Path, spec: str, complaint: str) -> None:
    corpus = _corpus(folder, [_story(1, 20)])
    panic = {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}  # of the library
    sparse = {"type": "WordLevel", "vocab": {"a": 0, "b": 16_777_000}, "unk_token": "a"}
    for name, model in (("panic.json", panic), ("sparse.json", sparse)):
        whole = {"version": "1.0", "added_tokens": [], **dict.fromkeys(PARTS), "model": model}
        (folder / name).write_text(json.dumps(whole))
    with pytest.raises(AblateError, match=complaint) as caught:
        tokenizers.describe(spec, corpus, folder)
    assert "\n" not in str(caught.value)


def test_token_files_are_read_as_they_are(folder: Path) -> None:
    train, held_out = np.arange(1000, dtype="<u2") + 40000, np.arange(100, dtype="<u2")
    train.tofile(folder / "train.bin")
    held_out.tofile(folder / "val.bin")
    corpus = corpora.find(str(folder), Path())
    info, tokens = _load(corpus, "tokens")
    assert info.n_vocab == tokens.n_vocab == 41000
    assert np.array_equal(tokens.train, train) and np.array_equal(tokens.held_out, held_out)
    assert isinstance(tokens.train, np.memmap) and tokens.byte_lengths is None
    assert text.n_train(corpus, info) == 1000
    for spec, complaint in (
        ("byte", "holds tokens, not text; use 'tokens'"),
        ("bpe:512", "BPE is trained on text"),
    ):
        with pytest.raises(AblateError, match=complaint):
            tokenizers.describe(spec, corpus, folder)


def test_token_files_with_their_tokenizer_have_byte_lengths(folder: Path) -> None:
    _files(folder)
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(folder / "gpt.json")).encode(_story(9, 30)).ids
    for name in ("train", "val"):
        np.array(ids, "<u2").tofile(folder / f"{name}.bin")
    _, tokens = _load(corpora.find(str(folder), Path()), "gpt.json", root=folder)
    assert tokens.n_vocab == 330 and _spell(tokens, tokens.train).decode() == _story(9, 30)
    assert sum(tokens.byte_lengths[tokens.held_out]) == len(_story(9, 30).encode())
    np.array([330], "<u2").tofile(folder / "val.bin")
    with pytest.raises(AblateError, match=r"has 330 tokens, but corpus .* token 330"):
        _load(corpora.find(str(folder), Path()), "gpt.json", root=folder)


def test_tokens_are_mapped_and_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = _corpus(folder, [_story(1, 100)])
    _, tokens = _load(corpus, "bpe:300")
    assert isinstance(tokens.train, np.memmap) and isinstance(tokens.held_out, np.memmap)
    monkeypatch.setattr(tokenizers, "open", lambda *_: pytest.fail("made again"))
    _, again = _load(corpus, "bpe:300")
    assert np.array_equal(again.train, tokens.train)


def test_a_text_or_tokenizer_that_changed_since_the_plan_is_refused(folder: Path) -> None:
    corpus = _corpus(folder, [_story(1, 100)])
    files = _files(folder)
    info = tokenizers.describe("gpt.json", corpus, folder)
    config = RunConfig(
        corpus="story", corpus_hash=corpus.hash, tokenizer_hash=info.hash, n_ctx=8, batch_tokens=8
    )
    locations = {corpus.hash: corpus.location, info.hash: info.location}
    files["bert"].replace(files["gpt"])
    with pytest.raises(AblateError, match=r"tokenizer .*gpt.json has changed"):
        text.load(config, locations)
    _corpus(folder, [_story(2, 100)])
    with pytest.raises(AblateError, match=r"corpus .*story.txt has changed"):
        text.load(config, locations)


def test_a_damaged_cache_names_the_folder_to_delete(folder: Path) -> None:
    corpus = _corpus(folder, [_story(1, 100)])
    _load(corpus, "byte")
    stream = next((folder / "cache" / "tokens").glob("*/train.bin"))
    os.truncate(stream, 100)
    with pytest.raises(AblateError, match=r"train\.bin is damaged: delete .* and run again"):
        _load(corpus, "byte")


def _build_slowly(log: Path, sleep: float) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        (folder / "half").write_text("x")
        time.sleep(sleep)
        (folder / "whole").write_text("y")

    done = cache.built("kind", "key", build)
    assert sorted(path.name for path in done.iterdir()) == ["half", "whole"]


def _spawn(*arguments: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=_build_slowly, args=arguments)
    process.start()
    return process


def test_of_racing_processes_one_builds_and_all_see_the_whole(folder: Path) -> None:
    racers = [_spawn(folder / "log", 0.5) for _ in range(4)]
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert len((folder / "log").read_text().split()) == 1


def test_what_a_killed_builder_left_is_built_anew(folder: Path) -> None:
    killed = _spawn(folder / "log", 60)
    while not (folder / "cache" / "kind" / "key.partial" / "half").exists():
        time.sleep(0.02)
    assert killed.pid
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert not (folder / "cache" / "kind" / "key").exists()
    _build_slowly(folder / "log", 0)
    assert len((folder / "log").read_text().split()) == 2
