"""What a training script reports: lines and files, as other projects write them."""

from __future__ import annotations

import base64
import json
import math
import struct
from pathlib import Path

import pytest
from cli_helpers import python

from ablate.readings import Curves, Files, Lines, Reading, read


def test_lines_of_json_have_the_step_that_they_name() -> None:
    lines = Lines()
    assert lines.read('{"step": 3, "loss": 1.5, "note": "x", "ok": true, "version": "2"}') == (
        3,
        {"loss": 1.5},
    )
    assert lines.read('{"accuracy": 0.5}') == (3, {"accuracy": 0.5})  # of the last step
    assert lines.read('{"epoch": 2, "global_step": 10, "loss": 1}') == (
        10,
        {"epoch": 2.0, "loss": 1.0},
    )
    for text in ("loss: 1.5", '{"loss": 1.5', "[1, 2]", '{"text": "a"}', "{}", ""):
        assert lines.read(text) is None
    # the database holds steps up to 2^63 - 1; a larger number is none
    assert lines.read('{"step": 1e20, "iter": 10, "loss": 1}') == (10, {"step": 1e20, "loss": 1.0})
    reading = lines.read('{"step": 11, "loss": NaN}')
    assert reading is not None and math.isnan(reading.values["loss"])


@pytest.mark.parametrize("digits", [400, 5000])  # Python makes no int of more than 4300
def test_a_whole_number_too_large_for_a_float_is_infinite(tmp_path: Path, digits: int) -> None:
    record = f'{{"step": 1, "loss": -1{"0" * digits}}}'
    assert Lines().read(record) == (1, {"loss": -math.inf})
    (tmp_path / "a.json").write_text(f"[{record}]")
    assert list(read(tmp_path / "a.json")) == [(1, {"loss": -math.inf})]


def test_records_without_any_step_are_counted() -> None:
    lines = Lines()
    found = [lines.read(json.dumps({"loss": loss})) for loss in (3.0, 2.0, 1.0)]
    assert [one and one.step for one in found] == [1, 2, 3]


def test_a_line_may_name_the_step_of_those_after_it() -> None:
    lines = Lines([r"\| time/total_timesteps +\| (?P<step>\d+)", r"\| eval/loss +\| (?P<loss>\S+)"])
    for step, loss in ((800, 1.25), (1600, 0.75)):
        assert lines.read("| eval/       |      |") is None
        assert lines.read(f"| time/total_timesteps | {step} |") is None
        assert lines.read(f"| eval/loss | {loss} |") == (step, {"loss": loss})
    lines = Lines()
    assert lines.read('{"step": 5, "note": "x"}') is None
    assert lines.read('{"loss": 1}') == (5, {"loss": 1.0})


def test_records_whose_step_is_not_whole_are_counted() -> None:
    """As Hugging Face prints them: every point has a step of its own, in order."""
    lines = Lines()
    found = [lines.read(json.dumps({"epoch": k / 4, "loss": 9 - k})) for k in range(1, 9)]
    assert found == [(k, {"epoch": k / 4, "loss": 9.0 - k}) for k in range(1, 9)]
    # whole ones before them are what they say, and records of one step stay together
    lines = Lines()
    texts = [
        *('{"epoch": 1, "loss": 3}', '{"epoch": 1.5, "loss": 2}', '{"epoch": 1.5, "acc": 0.5}'),
        *('{"lr": 0.1}', '{"epoch": 2, "loss": 1}', '{"epoch": 7, "loss": 0}'),
    ]
    assert [one.step for one in map(lines.read, texts) if one] == [1, 2, 2, 2, 3, 4]
    # two records that are rounded to one step are two
    lines = Lines()
    texts = [
        '{"epoch": 0.01, "loss": 3}',
        '{"epoch": 0.01, "loss": 2}',
        '{"epoch": 0.02, "loss": 1}',
    ]
    assert [one.step for one in map(lines.read, texts) if one] == [1, 2, 3]
    # an evaluation by epochs belongs to the step before it
    lines = Lines()
    texts = [
        *('{"step": 100, "loss": 3}', '{"epoch": 0.5, "val": 2}', '{"step": 200, "loss": 2}'),
        *('{"epoch": 1.0, "val": 1}', '{"epoch": 1.5, "val": 0.5}'),
    ]
    assert [one.step for one in map(lines.read, texts) if one] == [100, 100, 200, 200, 201]


def steps(*records: str) -> tuple[list[int], tuple[int, int] | None]:
    """The steps of lines of JSON, each written as in `step=1 loss=2`, and where they went back."""
    lines = Lines()
    found = []
    for one in records:
        pairs = (pair.split("=") for pair in one.split())
        reading = lines.read(json.dumps({name: float(value) for name, value in pairs}))
        found += [reading.step] if reading else []
    return found, lines.back


def test_a_step_is_what_a_record_names_whatever_was_before_it() -> None:
    # fine-tuning after pre-training, a return to a checkpoint, steps within epochs
    phases = [f"step={k} loss=1" for k in (10, 20, 1, 2)]
    assert steps(*phases) == ([10, 20, 1, 2], (20, 1))
    assert steps(*(f"step={k} a=1" for k in (1, 2, 3, 2, 3, 4))) == ([1, 2, 3, 2, 3, 4], (3, 2))
    within = [f"epoch={e} step={k} loss=1" for e in (1, 2) for k in (2, 4)]
    assert steps(*within) == ([2, 4, 2, 4], (4, 2))
    # the step is named in a line of its own, and counted from 0
    assert steps("step=0", "a=1", "step=1", "a=1") == ([0, 1], None)
    # nothing goes back where each series goes on: batches and epochs, an evaluation before step 0
    mixed = ["step=0 a=1", "step=100 a=1", "step=1 b=1", "step=200 a=1", "step=2 b=1"]
    assert steps(*mixed) == ([0, 100, 1, 200, 2], None)
    assert steps("a=1", "step=0 a=1", "step=100 a=1") == ([1, 0, 100], None)
    together = ["epoch=0 step=9 a=1", "epoch=1 step=9 a=1", "epoch=1 step=9 c=1"]
    assert steps(*together) == ([9, 9, 9], None)
    largest = (1 << 63) - 1025  # the database has none above 2^63 - 1
    assert steps(f"step={largest} a=1", "step=9000 a=1")[0] == [int(float(largest)), 9000]


def test_settings_in_a_line_of_text_name_no_step_of_what_follows() -> None:
    lines = Lines()
    texts = ['args: {"lr": 0.1, "epoch": 10}', '{"loss": 3}', '{"loss": 2}']
    assert [one.step for one in map(lines.read, texts) if one] == [10, 1, 2]
    texts = ['INFO {"step": 4, "a": 1}', 'INFO {"step": 8, "a": 1}', 'INFO {"b": 1}']
    assert [one.step for one in map(lines.read, texts) if one] == [4, 8, 8]


def test_curves_end_with_what_was_reported_last() -> None:
    curves = Curves()
    for step, value in ((1, 5.0), (2, 1.0), (3, 2.0), (2, 4.0)):
        curves.add(Reading(step, {"a": value}), "one")
    curves.add(Reading(1, {"a": 3.0}), "two")
    assert (curves.end("a"), curves.extent("a")) == (4.0, (1.0, 5.0))
    curves.add(Reading(3, {"a": 3.5}), "two")  # the newest source of the largest step
    assert curves.end("a") == 3.5


def test_counted_records_keep_their_order_if_they_have_other_numbers() -> None:
    lines = Lines()
    texts = ['{"loss": 3}', '{"loss": 2}', '{"loss": 1, "acc": 0.5}', '{"acc": 0.75}']
    assert [one.step for one in map(lines.read, texts) if one] == [1, 2, 3, 4]


def test_an_object_may_end_a_line_and_have_colours() -> None:
    lines = Lines([r"epoch (?P<epoch>\d+)"])
    for text in (
        'INFO:root: {"step": 4, "loss": 1.5}',
        '\x1b[32m{"step": 4, "loss": 1.5}\x1b[0m',
        ' 10%|█ | 4/40 [00:01<00:03]{"step": 4, "loss": 1.5}',
        '{\'lr\': 1} {"step": 4, "loss": 1.5} ',
    ):
        assert lines.read(text) == (4, {"loss": 1.5})
    assert lines.read('epoch 5 {"loss": 1.5}') == (5, {"loss": 1.5})
    for text in ('{"step": 4, "loss": 1.5} {', "loss {1.5}", "{" * 40_000 + "}", '{"a":' * 9999):
        assert lines.read(text) is None
    assert Lines([r"loss (?P<loss>\S+)"]).read("loss \x1b[1m2.5\x1b[0m") == (1, {"loss": 2.5})


def test_patterns_are_found_within_lines() -> None:
    lines = Lines(
        [
            r"step (?P<step>\d+): train loss (?P<train_loss>[\d.]+), val loss (?P<val_loss>\S+)",
            r"iter (?P<iter>\d+): loss (?P<loss>[\d.]+)",
        ]
    )
    assert lines.read("step 20: train loss 3.31, val loss 3.36") == (
        20,
        {"train_loss": 3.31, "val_loss": 3.36},
    )
    assert lines.read("iter 21: loss 3.2, time 5.00ms") == (21, {"loss": 3.2})
    found = lines.read("step 40: train loss 3.31, val loss nan")
    assert found is not None and math.isnan(found.values["val_loss"])


def test_a_number_is_not_cut_but_by_a_pattern_that_needs_the_rest() -> None:
    lines = Lines([r"(?P<step>\d+): a (?P<a>[\d.]+).*b (?P<b>[\d.]+)( c (?P<c>\d))?"])
    for text, values in (
        ("a 2.49e-05 b 3E+2", {"a": 2.49e-05, "b": 300.0}),
        ("a 2.5e-3. b 1 c 45.5", {"a": 2.5e-3, "b": 1.0, "c": 45.5}),
        ("a 2.5em, b 1-2", {"a": 2.5, "b": 1.0}),
    ):
        assert lines.read(f"7: {text}") == (7, values)
    loose = Lines([r"loss (?P<loss>\S+)( lr (?P<lr>\S+))?"])
    assert loose.read("loss 2.45, time 20ms") == (1, {"loss": 2.45})
    divided = Lines([r"epoch (?P<epoch>\d+)\.\d+ loss (?P<loss>\d+)", r"(?P<iter>\d{2})(?P<d>\d)"])
    assert divided.read("epoch 3.25 loss 1e2") == (3, {"loss": 100.0})
    assert divided.read("123") == (12, {"d": 3.0})


def test_all_patterns_of_a_line_make_one_record() -> None:
    train, val = r"step (?P<step>\d+): train (?P<train>[\d.]+)", r"val (?P<val>[\d.]+)"
    for patterns in ([train, val], [val, train]):
        lines = Lines([*patterns, r"(?P<val>\d+) s"])
        for step in (10, 20):
            assert lines.read(f"step {step}: train 1.5, val 2.5, 7 s") == (
                step,
                {"train": 1.5, "val": 2.5},  # the first pattern that has a name counts
            )
        assert lines.read("val 3.5") == (20, {"val": 3.5})


def test_groups_of_three_digits_are_thousands() -> None:
    lines = Lines([r"step (?P<step>[\d,]+): loss (?P<loss>\S+)( \| (?P<tokens>[\d,.]+) tok)?"])
    assert lines.read("step 500: loss 3.5") == (500, {"loss": 3.5})
    assert lines.read("step 1,000: loss 2.5") == (1000, {"loss": 2.5})
    assert lines.read("step 1,234,500: loss 1,234.5 | 12,000 tok") == (
        1_234_500,
        {"loss": 1234.5, "tokens": 12_000.0},
    )
    # a decimal comma, or two numbers: neither is a number
    assert lines.read("step 2,000,000: loss 0,345 | 1,00 tok") is None
    assert lines.read("step 3,000: loss 1,345") is None


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    # as Lightning's CSVLogger writes them: a row has some of the columns
    (tmp_path / "metrics.csv").write_text(
        "epoch,step,train_loss,val_loss\n0,4,1.5,\n0,9,,1.25\n1,9,1.0,"
    )
    assert list(read(tmp_path / "metrics.csv")) == [
        (4, {"epoch": 0.0, "train_loss": 1.5}),
        (9, {"epoch": 0.0, "val_loss": 1.25}),  # the last row is not yet whole
    ]
    state = {"epoch": 2.0, "log_history": [{"step": 5, "loss": 2.5, "epoch": 1.0}, {"step": 9}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert list(read(tmp_path / "trainer_state.json")) == [(5, {"loss": 2.5, "epoch": 1.0})]
    (tmp_path / "half.json").write_text(json.dumps(state)[:-5])
    assert list(read(tmp_path / "half.json")) == []
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo')
    assert list(read(tmp_path / "log.jsonl")) == [(1, {"loss": 2.0})]


# written by tensorboard 2.21: simple_value, tensors of float32 and float64, and a text
EVENTS = (
    "SAAAAAAAAAD+kkidCf7ORILcwtpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVy"
    "LmV2ZW50X2ZpbGVfd3JpdGVyTijE5yoAAAAAAAAAro2R9QkAAAAAAAD4PxABKh0KDwoIdmFsL2xvc3MVAAAgQAoK"
    "CgNhY2MVAACAPnS3KL8mAAAAAAAAAHNP4wAJAAAAAAAABEAQrAIqGAoWCgh2YWwvbG9zc0IKCAESACoEAACgP4Gy"
    "FPgqAAAAAAAAAK6NkfUJAAAAAAAABEAQrQIqHAoaCgh2YWwvbG9zc0IOCAISADIIAAAAAAAA6D+sYglMIwAAAAAA"
    "AACwn3dDCQAAAAAAAARAEK4CKhUKEwoEdGV4dEILCAcSBBICCAFCAWHHJx3X"
)


def test_events_of_tensorboard_are_read_up_to_a_torn_record(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(base64.b64decode(EVENTS))
    expected = [
        (1, {"val/loss": 2.5, "acc": 0.25}),
        (300, {"val/loss": 1.25}),
        (301, {"val/loss": 0.75}),
    ]
    assert list(read(path)) == expected
    path.write_bytes(base64.b64decode(EVENTS)[:-70])
    assert list(read(path)) == expected[:2]


def test_steps_of_tensorboard_are_signed(tmp_path: Path) -> None:
    step = b"\x10" + b"\xff" * 9 + b"\x01"  # field 2, an int64: -1
    value = b"\x0a\x01a\x15" + struct.pack("<f", 0.5)  # tag, simple_value
    event = step + b"\x2a\x0a\x0a\x08" + value
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(struct.pack("<Q4x", len(event)) + event + bytes(4))
    assert list(read(path)) == [(-1, {"a": 0.5})]


def test_files_that_appear_and_grow_are_read_again(tmp_path: Path) -> None:
    files = Files(tmp_path, ["**/*.jsonl"])
    assert list(files.read()) == []
    log = tmp_path / "version_0" / "log.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 2}\n')
    assert list(files.read()) == [(1, {"loss": 2.0})]
    assert list(files.read()) == []
    with log.open("a") as file:
        file.write('{"step": 2, "loss": 1}\n')
    assert [one.step for one in files.read()] == [1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffstep,val_loss\n10,2.5\n20,1.25\n"),
        ("a.csv", "\ufeffval_loss,step\n2.5,10\n1.25,20\n"),
        ("a.csv", "step, val_loss\r\n10, 2.5\r\n20, 1.25\r\n"),
        ("a.csv", 'step, "val_loss"\n 10 , 2.5 \n 20 , 1.25 \n'),
        ("a.csv", "step;val_loss\n10;2.5\n20;1.25\n"),
        ("a.csv", "step;val_loss\n10;2,5\n20;1,25\n"),
        ("a.csv", "step\tval_loss\n10\t2.5\n20\t1.25\n"),
        ("a.tsv", "step\tval_loss\n10\t2.5\n20\t1.25\n"),
        ("a.csv", "Step,val_loss\n10,2.5\n20,1.25\n"),
        ("a.csv", "\nStep,val_loss\n10,2.5\nStep,val_loss\n20,1.25\n"),
        ("a.jsonl", '\ufeff{"Step": 10, "val_loss": 2.5}\n{"STEP": 20, "val_loss": 1.25}\n'),
    ],
)
def test_tables_are_read_as_programs_write_them(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, newline="")
    assert list(read(tmp_path / name)) == [(10, {"val_loss": 2.5}), (20, {"val_loss": 1.25})]


def test_a_table_of_one_column_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("val loss\n2.5\n1.25\n")
    assert list(read(tmp_path / "a.csv")) == [(1, {"val loss": 2.5}), (2, {"val loss": 1.25})]


def test_a_last_line_without_a_line_feed_counts_once_the_file_is_whole(tmp_path: Path) -> None:
    files = Files(tmp_path, ["*.csv", "*.jsonl"])
    for name, text in (
        ("a.csv", "step,loss\n1,2.5\n2,1.25"),
        ("b.jsonl", '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}'),
        ("c.csv", "step,loss\n1,4\n"),
        ("d.jsonl", ""),
    ):
        (tmp_path / name).write_text(text)
    first, last = [*files.read()], [*files.read(ended=True)]
    assert [one.step for one in first] == [1, 1, 1] and [one.step for one in last] == [1, 2, 1, 2]
    assert [one.values["loss"] for one in last] == [2.5, 1.25, 2.0, 1.0]
    assert list(files.read()) == []


def test_curves_keep_the_last_value_of_a_step() -> None:
    curves = Curves()
    for reading in (
        Reading(1, {"a": 1.0}),
        Reading(2, {"a": 2.0, "b": 3.0}),
        Reading(1, {"a": 1.0}),
    ):
        curves.add(reading)
    assert sorted(curves.take()) == [([1, 2], {"a": [1.0, 2.0]}), ([2], {"b": [3.0]})]
    curves.add(Reading(2, {"a": 2.0}))
    assert list(curves.take()) == []
    curves.add(Reading(1, {"a": 5.0}))
    assert list(curves.take()) == [([1], {"a": [5.0]})] and curves.last == 2


def test_log_and_tables_take_steps_that_are_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    code = "import ablate\nfor k in range(1, 5):\n    ablate.log(k / 2, loss=9 - k)"
    assert python(code, cwd=tmp_path, ABLATE_METRICS=str(file)).returncode == 0
    assert [(one.step, one.values["loss"]) for one in read(file)] == [
        (1, 8),
        (2, 7),
        (3, 6),
        (4, 5),
    ]
    file = tmp_path / "log.csv"
    file.write_text("epoch,loss\n0.5,8\n1.0,7\n1.5,6\n2.0,5\n")
    assert [(one.step, one.values["loss"]) for one in read(file)] == [
        (1, 8),
        (2, 7),
        (3, 6),
        (4, 5),
    ]


def test_log_writes_only_within_a_run(tmp_path: Path) -> None:
    code = "import ablate\nablate.log(3, loss=0.5, acc=1)\nablate.log(4, loss=float('nan'))"
    file = tmp_path / "log.jsonl"
    assert python(code, cwd=tmp_path).returncode == 0 and list(tmp_path.iterdir()) == []
    assert python(code, cwd=tmp_path, ABLATE_METRICS=str(file)).returncode == 0
    first, second = read(file)
    assert first == (3, {"loss": 0.5, "acc": 1.0}) and math.isnan(second.values["loss"])
