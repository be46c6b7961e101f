"""Plans refuse in one line what a worker could not do or measure, and note the undefined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from ablate import text
from ablate.errors import AblateError
from ablate.plan import Plan, plan
from ablate.plan.tiny import tiny
from ablate.study import load

SHORT = "a quick brown fox jumps over it. "
BASE = {"n_layer": 1, "d_model": 16, "n_head": 2, "n_ctx": 32, "batch_tokens": 256, "tokens": 25600}


@pytest.fixture
def made(tmp_path: Path):
    """Return the plan of a study with these keys; corpora and tokenizers of all kinds are near."""
    (tmp_path / "short.txt").write_text(SHORT * 40)  # 132 bytes are held out
    (tmp_path / "latin.txt").write_bytes("café au lait and other things. ".encode("latin-1") * 100)
    (tmp_path / "bins").mkdir()
    for name in ("train", "val"):
        (np.arange(4000, dtype="<u2") % 500).tofile(tmp_path / "bins" / f"{name}.bin")
    some = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "fox": 1, "?": 2}, unk_token="?")
    )
    some.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    some.save(str(tmp_path / "some.json"))
    letters = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({letter: n for n, letter in enumerate(sorted({*SHORT, "\f"}))})
    )
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.save(str(tmp_path / "letters.json"))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "quick": 1}))
    words.save(str(tmp_path / "words.json"))
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "nothing.json"))

    def read(
        base: dict[str, object],
        factors: str = "z_loss = [0, 1e-4]",
        evaluation: str = "",
        metric: str = "loss",
        top: str = 'design = "one-factor"',
    ) -> Plan:
        keys = "".join(
            f"{name} = {value!r}\n" for name, value in (BASE | base).items() if value is not None
        )
        file = tmp_path / "t.toml"
        file.write_text(
            f'name = "t"\nquestion = "?"\nseeds = 1\n{top}\nmetric = "{metric}"\n'
            f"[base]\n{keys}[factors]\n{factors}\n[eval]\n{evaluation}\n"
        )
        return plan(load(str(file)))

    return read


MASKED = {"objective": "masked"}


def test_a_run_that_cannot_copy_is_not_judged_by_it(made) -> None:
    assert made({}, metric="copy_loss").study.goal == "min"
    with pytest.raises(AblateError, match=r"'copy_loss' is not measured.*'masked'"):
        made(MASKED, "mask_ratio = [0.15, 0.4]", metric="copy_loss")
    with pytest.raises(AblateError, match=r"'copy_loss' is not measured.*n_ctx = 2 is too short"):
        made({"n_ctx": 2}, metric="copy_loss")


def test_a_shrunken_study_is_not_blamed_for_what_shrinking_sets(made) -> None:
    assert plan(tiny(made({}).study)).cells


TOKENS = {"corpus": "bins", "tokenizer": "tokens"}
PAIRS = {"objective": "pairs", "corpus": "cmudict", "n_ctx": 64}
SPAN = {"objective": "span", "architecture": "encoder-decoder"}
RATIOS = "mask_ratio = [0.15, 0.4]"
POSITIONS = 'position = ["rotary", "learned"]'
TUNED = '[tune]\nlr = [1e-4, 1e-2]\npoints = 3\nper = "cell"\n'
REFUSED: list[tuple[dict[str, object], dict[str, str], str]] = [
    ({}, {"evaluation": "lengths = [0.125, 1]"}, r"line \d+: 0.125 × n_ctx .32. .* 8 tokens"),
    ({}, {"evaluation": "lengths = [0.3]"}, r"line \d+: 0.3 × n_ctx .32. is 9.6"),
    (
        {"corpus": "short.txt"},
        {"evaluation": "lengths = [1, 8]"},
        r"'short' .*lengths: its held-out part has 132 tokens, .* 8 × n_ctx needs 257",
    ),
    (
        {},
        {"factors": POSITIONS, "evaluation": "lengths = [1, 2]", "metric": "loss_at_length@2"},
        r"line 5: metric 'loss_at_length@2' .*'position=learned': .* beyond n_ctx = 32",
    ),
    ({}, {"metric": "pseudo_perplexity"}, r"'pseudo_perplexity' .*'z_loss=0': .*not 'masked'"),
    (
        {},
        {"evaluation": TUNED + 'metric = "pseudo_perplexity"'},
        r"line \d\d: metric 'pseudo_perplexity' .*'z_loss=0': .*not 'masked'",
    ),
    (
        MASKED,
        {
            "evaluation": TUNED.replace("lr = [1e-4, 1e-2]", "mask_ratio = [0.1, 0.5]")
            + 'metric = "loss"',
            "metric": "probe_loss",
        },
        r"line \d+: mask_ratio decides what metric 'loss' measures, which cannot choose it",
    ),
    ({}, {"metric": "task_loss"}, r"line 5: metric 'task_loss' .*fine-tuned runs.*\[finetune\]"),
    ({}, {"metric": "forgetting"}, r"metric 'forgetting' .*fine-tuned runs"),
    (
        {},
        {"evaluation": TUNED + 'metric = "task_loss"'},
        r"line \d\d: metric 'task_loss' .*fine-tuned runs",
    ),
    (TOKENS, {"metric": "bits_per_byte"}, r"line 5: .*'bits_per_byte' .*: .*tokenizer.json"),
    (
        TOKENS | MASKED,
        {"factors": 'mask_kind = ["token", "whole-word"]', "metric": "probe_loss"},
        r"cell 'mask_kind=whole-word': mask_kind = 'whole-word': .* in corpus 'bins'",
    ),
    (
        TOKENS | MASKED,
        {"evaluation": 'probe = { kind = "whole-word" }'},
        r"cell 'z_loss=0': probe.kind = 'whole-word': it is unknown",
    ),
    (
        {"corpus": "latin.txt", "tokenizer": "bpe:300"},
        {"evaluation": '[data]\nencoding = "bytes"'},
        "'bpe:300': .*UTF-8 .*caf.xe9",
    ),
    (
        {"corpus": "short.txt"},
        {"evaluation": '[data]\ndtype = "uint32"'},
        "dtype has no effect: no corpus of this study is read as tokens",
    ),
    ({"corpus": "short.txt", "tokenizer": "words.json"}, {}, r"words.json cannot .*UNK"),
    ({"corpus": "short.txt", "tokenizer": "nothing.json"}, {}, "'nothing.json' has 0 tokens"),
    (MASKED, {"factors": RATIOS}, "'loss' cannot be compared where mask_ratio varies"),
    (
        {},
        {"factors": 'objective = ["causal", "masked"]', "metric": "bits_per_byte"},
        "where objective varies",
    ),
    (
        MASKED,
        {"factors": 'tokenizer = ["byte", "bpe:512"]', "metric": "bits_per_byte"},
        "'bits_per_byte' cannot be compared where tokenizer varies.*'era_accuracy'",
    ),
    ({}, {"factors": 'tokenizer = ["byte", "bpe:512"]'}, "'loss'.*tokenizer varies.*bits_per_byte"),
    ({}, {"metric": "probe_loss"}, "line 5: metric 'probe_loss@0.15' is not measured"),
    ({"mask_ratio": 0.3}, {}, "mask_ratio .*objective = 'masked'"),
    ({"norm": "none", "norm_kind": "rmsnorm"}, {}, "norm_kind .*norm = 'pre'"),
    (
        SPAN | {"architecture": "rnn-seq2seq", "mixer": "attention"},
        {},
        r"line \d+: mixer = 'attention' .*architecture = 'rnn-seq2seq' implies mixer = 'rnn'",
    ),
    (
        SPAN | {"architecture": "rnn-seq2seq"},
        {"factors": 'mixer = ["attention", "rnn-attention"]'},
        r"line \d+: mixer = 'attention' has no effect",
    ),
    (
        {},
        {"factors": f"z_loss = [0, 1e-4]\n{RATIOS}"},
        "level '0.15' of mask_ratio occurs in no cell: it needs objective = 'masked' or",
    ),
    ({}, {"evaluation": "probe = { ratio = [0.4] }"}, r"probe.ratio = \[0.4\] .* = 'masked'"),
    ({}, {"evaluation": "decoded = 9"}, r"line \d+: decoded = 9 has no effect.* = 'pairs'"),
    (MASKED, {"evaluation": "beams = [2]"}, r"line \d+: beams = \[2\] .* = 'pairs'"),
    (PAIRS, {"evaluation": "lengths = [1, 2]"}, r"lengths = \[1.0, 2.0\] .*'causal' or 'masked'"),
    (SPAN, {"evaluation": "lengths = [2]"}, r"lengths = \[2.0\] .*'causal' or 'masked'"),
    (SPAN, {"evaluation": "beams = [2]"}, r"beams = \[2\] .* = 'pairs'"),
    (SPAN, {"evaluation": "probe.kind = 'span'"}, r"line \d+: probe.kind = 'span' .* = 'masked'"),
    (SPAN, {"evaluation": "probe.mix = [0.8, 0.1, 0.1]"}, r"probe.mix = \[0.8, .* = 'masked'"),
    (SPAN, {"evaluation": "probe.ratio = [0.9]"}, r"line \d+: .*29 hidden tokens and 10 spans"),
    (
        {},
        {"factors": "z_loss = [0, 1]\n[[exclude]]\nz_loss = 0\n[[exclude]]\nz_loss = 1"},
        "leaves no cell",
    ),
    (
        {"n_layer": None},
        {
            "factors": "topology = [1, 2]\nn_layer = [2, 4, 6]\n[[exclude]]\nn_layer = 6\n"
            "[[exclude]]\ntopology = 2\nn_layer = 4"
        },
        r"\[\[exclude\]\] topology=no-attention-skip, n_layer=4 matches no cell",
    ),
    (
        {},
        {
            "factors": f'objective = ["masked", "causal"]\n{RATIOS}',
            "top": 'within = ["mask_ratio"]',
        },
        "cell 'objective=causal' is without its baseline.*within",
    ),
    ({"n_head": None}, {"factors": "n_head = [2, 3]"}, "n_head = 3 does not divide d_model = 16"),
    ({"tokens": 100}, {}, "tokens = 100 is less than one step of batch_tokens = 256"),
    (
        {"n_layer": None, "d_model": None, "n_head": None},
        {"factors": 'size = { params = ["100", "1M"], aspect = 32, d_head = 32 }'},
        "cell 'size=100': size: no model has about 100 body parameters.*d_head = 32",
    ),
    (
        {"d_mlp": 8},
        {"factors": 'qkv = ["linear", "mlp"]\n[match]\nparams = "body"'},
        r"cell 'qkv=mlp': \[match\].*d_mlp cannot match",
    ),
    ({"corpus": "austin"}, {}, r"line \d+: corpus 'austin'.*'austen'"),
    ({"tokenizer": "bite"}, {}, r"line \d+: unknown tokenizer 'bite'.*'byte'"),
    (
        {"corpus": "short.txt", "n_ctx": 256},
        {},
        r"cell 'z_loss=0': corpus 'short' .*n_ctx \+ 1 = 257.*short\.txt\)",
    ),
]


@pytest.mark.parametrize(
    ("base", "rest", "complaint"),
    REFUSED,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fails_misleads_or_does_nothing_is_refused(made, base, rest, complaint: str) -> None:
    with pytest.raises(AblateError, match=complaint) as refused:
        made(base, **rest)
    assert "\n" not in str(refused.value)


def test_lengths_that_can_be_measured_are_planned(made) -> None:
    made({"corpus": "short.txt"}, evaluation="lengths = [0.25, 1, 4]")
    # 0.7 × 10 is not 7 to the last bit
    made({"n_ctx": 10, "batch_tokens": 20}, evaluation="lengths = [0.7, 1]")
    made({"position": "learned"}, evaluation="lengths = [0.5, 1]", metric="loss_at_length@0.5")
    made(MASKED, factors="mask_ratio = [0.15, 0.5]", metric="pseudo_perplexity")
    made(TOKENS, evaluation="probe = { ratio = [0.15] }\nlengths = [1, 2]")


def test_contexts_beyond_a_table_are_left_out_and_the_plan_notes_it(made) -> None:
    planned = made({}, factors=POSITIONS, evaluation="lengths = [1, 2, 4]")
    rotary, learned = (
        [
            at
            for name, at in planned.study.evaluation.finals(cell.config)
            if name == "loss_at_length"
        ]
        for cell in planned.cells
    )
    assert (rotary, learned) == ([1, 2, 4], [1])
    assert planned.notes == (
        (
            "position = 'learned' is not defined beyond n_ctx = 32: 'position=learned' will have no"
            " loss_at_length@2 and loss_at_length@4"
        ),
    )
    several = made({"position": "learned"}, evaluation="lengths = [2]").notes
    assert several == (
        (
            "position = 'learned' is not defined beyond n_ctx = 32: 'z_loss=0' and 1 more will have"
            " no loss_at_length@2"
        ),
    )


def test_the_plan_warns_of_too_few_steps(made) -> None:
    (note,) = made({"tokens": None}, factors="tokens = [2560, 5120, 25600]").notes
    few = "steps = 10 in 'tokens=2560', and below 50 in 1 more"
    assert note.startswith(few) and "batch_tokens" in note
    assert made({}).notes == ()  # 100 steps


def test_the_plan_names_the_memory_of_additive_scores(made) -> None:
    (note,) = made(
        {"position": "none", "n_ctx": 512, "batch_tokens": 4096, "tokens": 409600},
        factors='score = ["dot", "additive"]',
    ).notes
    # heads × n_ctx² × (d_head, scores and softmax) × sequences
    numbers = 2 * 512 * 512 * (8 + 2) * 8
    assert f"{numbers * 4 / 2**20:.0f} MiB" in note and "'score=additive'" in note
    assert made({"position": "none"}).notes == ()


def test_the_plan_notes_fewer_held_out_tokens_than_requested(made) -> None:
    short = {"corpus": "short.txt"}
    (note,) = made(short, evaluation='tokens = "2G"').notes
    assert note.startswith(
        "[eval] tokens = 2B exceeds the held-out part of corpus = 'short', which has 132 tokens"
    )
    # the default asks for nothing
    assert made(short, evaluation="tokens = 132").notes == made(short).notes == ()
    (of_ids,) = made(TOKENS, evaluation="tokens = 4001").notes
    assert "4k tokens with tokenizer = 'tokens'" in of_ids
    assert not made(TOKENS, evaluation="tokens = 4000").notes


def test_epochs_and_held_out_tokens_are_those_of_the_tokens_where_these_are_known(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "empty"))
    given = {"corpus": "short.txt", "tokens": 25600}
    two = {"factors": 'tokenizer = ["byte", "bpe:300"]', "metric": "bits_per_byte"}
    before = made(given, **two, evaluation="tokens = 132")
    assert [cell.estimated for cell in before.cells] == [False, True]
    of_bpe = before.texts[1]
    tokens = text.of(of_bpe.corpus, of_bpe.tokenizer)
    train, held_out = len(tokens.train), len(tokens.held_out)
    after = made(given, **two, evaluation="tokens = 132")
    assert [cell.estimated for cell in after.cells] == [False, False]
    assert after.cells[1].epochs == pytest.approx(after.cells[1].config.tokens / train)
    assert after.texts[1].held_out_tokens == held_out < 132
    assert [f"has {held_out} tokens" in note for note in after.notes if "exceeds" in note] == [True]
    # what is measured by default does not depend on what the cache holds
    assert [cell.held_out for cell in after.cells] == [cell.held_out for cell in before.cells]
    (read,) = (one.text for one in after.confounds if one.kind == "text read")
    more = after.cells[1].epochs / after.cells[0].epochs - 1
    assert f"reads {more:+.0%} text" in read
    assert [one.kind for one in before.confounds].count("text read") == 1


def test_the_plan_says_that_a_mask_of_documents_changes_nothing_in_one_document(made) -> None:
    factors = 'document_mask = ["none", "attention"]'
    (note,) = made({"corpus": "short.txt"}, factors=factors).notes
    assert "is the same model on this text" in note and "'document_mask=attention'" in note


def test_max_epochs_that_leaves_nothing_to_compare_is_refused(made) -> None:
    base = {"corpus": "short.txt", "tokens": None, "max_epochs": 30}
    with pytest.raises(AblateError, match=r"line \d+: max_epochs = 30 leaves 'tokens=25600' of 2"):
        made(base, factors="tokens = [25600, 256000]")
    assert made(base, factors='tokens = [25600, 256000]\nbias = ["none", "all"]').too_long


def test_the_cache_is_no_fault_of_a_line(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        AblateError,
        match=rf"^cannot use the cache {tmp_path}/cache: .*; set ABLATE_CACHE to another folder$",
    ):
        made({"corpus": "austen"})


def test_the_plan_notes_a_tokenizer_that_loses_text(made) -> None:
    small = {"corpus": "short.txt", "n_ctx": 4, "batch_tokens": 8}
    (note,) = made(
        small, factors='tokenizer = ["letters.json", "some.json"]', metric="bits_per_byte"
    ).notes
    # Four sentences are held out, of which "a", "fox" and six signs for what is unknown are left:
    assert note.startswith(
        f"tokenizer = 'some.json' decodes to {4 * (1 + 3 + 6) / (4 * 33):.0%} of the bytes it reads"
    )


def test_passages_of_two_lengths_are_a_confound(made) -> None:
    notes = [
        [
            (one.cell, one.text)
            for one in made(
                {"n_ctx": None}, factors=f"n_ctx = [256, {n}]", metric="novel_accuracy"
            ).confounds
            if one.kind == "passages"
        ]
        for n in (128, 32)
    ]
    assert notes == [
        [],
        [
            (
                "n_ctx=32",
                "its linear probe reads passages of 32 tokens, instead of 128 as in 'n_ctx=256'",
            )
        ],
    ]
