"""What leaves a study is read back by the other program's own reader: every number is there."""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_helpers import Run, measure, refused
from hostile_values import same
from report_study import NAN, Levels, Outcome, study

import ablate
from ablate import results, store
from ablate.plan import plan
from ablate.store import Database
from ablate.store.register import register
from ablate.study import Crossed, load

STUDY = "a/b: 50%?"
HOSTILE = {"curve": "a/b", "diverged": "../c", "bare": "日本語\n" + "x" * 300}
CASES = [*HOSTILE, "plain", "PLAIN", "failed", "stopped", "running", "planned"]
POINTS = {5: 0.1 + 0.2, 10: NAN, 15: math.inf, 20: -1e308, 25: 5e-324, 30: 1 / 3}
FINALS = [
    *(("stream_rms", 0, 1.25), ("stream_rms", 1, 0.1), ("probe_loss", 0.4, NAN)),
    *(("a@b\n/../c", 0, -math.inf), ("a@b\t/../c", 0, 1e308), ("x" * 300, 0, 2.0)),
]
ABOUT_MLFLOW = {math.inf: sys.float_info.max, -math.inf: -sys.float_info.max}


def outcome(levels: Levels, seed: int) -> Outcome | None:
    case = next(case for case in CASES if HOSTILE.get(case, case) == levels["model"])
    if case == "planned" and seed == 1:
        return None
    if case in ("bare", "failed", "stopped"):
        status = "complete" if case == "bare" else case
        return Outcome(1.5 + seed, status=status, error="no luck" if case == "failed" else "")
    if case == "diverged":
        return Outcome(status="diverged", step=7, points={5: 4.0, 7: NAN})
    return Outcome(2.0 + seed, points=POINTS, finals=FINALS if case == "curve" else ())


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A study with hostile names and every way for a run to end; a run of it has not begun."""
    cells = {HOSTILE.get(case, case): {"lr": 1e-4 * at} for at, case in enumerate(CASES, start=1)}
    folder = tmp_path_factory.mktemp("hostile")
    with study(folder, {"model": cells}, outcome, seeds=2, name=STUDY, rates=[0.3]) as db:
        with db.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE run SET status = 'running' WHERE id IN"
                " (SELECT run FROM all_runs WHERE cell = 'model=running')"
            )
        yield db


@pytest.fixture(autouse=True)
def default(db: Database, ablate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in an empty folder."""
    monkeypatch.setenv("ABLATE_DB", str(db.path))


Place = tuple[str, str, int]  # cell, role and seed


def places(frame: pd.DataFrame) -> Iterator[tuple[Place, dict[str, Any]]]:
    for row in frame.to_dict("records"):
        yield (row["cell"], row["role"], row["seed"]), row


def begun(db: Database, role: str = "compare") -> dict[Place, dict[str, Any]]:
    frame = ablate.load(STUDY, db, role=role)
    return dict(places(frame[frame["status"] != "planned"]))


def expected(db: Database, role: str = "compare") -> dict[Place, dict[str, list[Any]]]:
    """The numbers of each run that has begun by name: (step, value), a final at its last step."""
    found: dict[Place, dict[str, list[Any]]] = {place: {} for place in begun(db, role)}
    for place, row in places(ablate.curves(STUDY, db=db, role=role).sort_values("step")):
        found[place].setdefault(row["series"], []).append((row["step"], row["value"]))
    last = {
        place: max((step for points in of.values() for step, _ in points), default=0)
        for place, of in found.items()
    }
    for place, row in places(results.finals(STUDY, db=db, role=role)):
        at = f"@{row['at']:g}" if row["at"] else ""
        found[place][f"final/{row['name']}{at}"] = [(last[place], row["value"])]
    return found


def equal(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(
        step == at and same(value, number)
        for (step, value), (at, number) in zip(found, wanted, strict=True)
    )


# -- TensorBoard -----------------------------------------------------------------------------------


def rounded(points: list[Any]) -> list[Any]:
    with np.errstate(over="ignore"):
        return [(step, float(np.float32(value))) for step, value in points]


def test_tensorboard_reads_every_number(ablate: Run, db: Database) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        code, out, err = ablate("export", STUDY, "--to", "tensorboard", "--role", "all")
        assert (code, err) == (0, "") and "26 runs" in out and "1 have not begun" in out
    (folder,) = Path("runs").iterdir()
    wanted = expected(db, "all")
    assert len(list(folder.iterdir())) == len(wanted)  # none is nested, none there twice
    assert "model=plain, seed 1" in [path.name for path in folder.iterdir()]
    found = []
    for path in folder.iterdir():
        assert len(path.name.encode()) < 250 and path.name.isprintable()
        events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        found.append(
            {
                tag: [(event.step, event.value) for event in events.Scalars(tag)]
                for tag in events.Tags()["scalars"]
            }
        )
    for place, numbers in wanted.items():
        like = [
            one
            for one in found
            if one.keys() == numbers.keys()
            and all(equal(one[name], rounded(numbers[name])) for name in numbers)
        ]
        assert like, place
        found.remove(like[0])
    assert not found


def session_groups(folder: str) -> list[Any]:
    """The rows of the tab HParams, by TensorBoard's own backend."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = EventMultiplexer().AddRunsFromDirectory(folder)
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, folder)
    context = backend_context.Context(TBContext(data_provider=provider))
    columns = [api_pb2.ColParams(metric=api_pb2.MetricName(tag="final/loss"))]
    statuses = list(api_pb2.Status.values())
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, col_params=columns, allowed_statuses=statuses
    )
    answer = list_session_groups.Handler(RequestContext(), context, "", request).run()
    return list(answer.session_groups)


def test_tensorboards_hparams_show_cells_with_their_seeds(ablate: Run, db: Database) -> None:
    from tensorboard.plugins.hparams import api_pb2

    assert ablate("export", STUDY, "logs", "--to", "tensorboard")[0] == 0
    runs = begun(db)
    groups = {group.hparams["model"].string_value: group for group in session_groups("logs")}
    assert set(groups) == {cell.removeprefix("model=") for cell, _, _ in runs}
    for (cell, _, seed), run in runs.items():
        group = groups[cell.removeprefix("model=")]
        assert group.hparams["lr"].number_value == run["lr"]
        assert group.hparams["tie_embeddings"].string_value == run["tie_embeddings"]
        (session,) = [one for one in group.sessions if one.name.endswith(f"seed {seed}")]
        wanted = {"complete": "SUCCESS", "running": "UNKNOWN"}.get(run["status"], "FAILURE")
        assert api_pb2.Status.Name(session.status) == f"STATUS_{wanted}"
        values = [metric.value for metric in session.metric_values]
        if run["status"] == "complete":
            assert float(np.float32(run["loss"])) in values
    (mean,) = [one.value for one in groups["plain"].metric_values if one.name.tag == "final/loss"]
    assert mean == 2.5  # of 2.0 and 3.0


def test_seeds_of_weights_and_data_are_repetitions_in_tensorboard(
    ablate: Run, tmp_path: Path
) -> None:
    levels = {"topology": {"serial": {"topology": "serial"}}}
    way = lambda levels, seed: Outcome(2.0)  # noqa: E731
    with study(tmp_path, levels, way, seeds=Crossed(2, 2)) as one:
        assert ablate("export", "topology", "--to", "tensorboard", "--db", str(one.path))[0] == 0
    (group,) = session_groups("runs")
    assert len(group.sessions) == 4


def test_a_study_of_a_script_has_its_fields(ablate: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "own.toml").write_text(
        """
        name = "own"
        question = "Does depth help?"
        metric = "loss"
        goal = "lower"
        seeds = 1
        [command]
        run = "python train.py --depth {depth} --fast {fast} --seed {seed}"
        code = ["train.py"]
        [base]
        fast = true
        [factors]
        depth = { low = { depth = 1 }, high = { depth = 8 } }
        """
    )
    made = plan(load(str(tmp_path / "own.toml")))
    with store.open("own.db", create=True) as own:
        register(own, made)
        measure(own, made.runs, lambda run: 0.1)
    assert ablate("export", "own", "--to", "tensorboard", "--db", "own.db")[0] == 0
    events = EventAccumulator("runs/own/depth=high, seed 0").Reload()
    assert [one.value for one in events.Scalars("final/loss")] == [float(np.float32(0.1))]
    (content,) = [
        data
        for tag, data in events.summary_metadata.items()
        if tag == "_hparams_/session_start_info"
    ]
    fields = HParamsPluginData.FromString(content.plugin_data.content).session_start_info.hparams
    assert fields["depth"].number_value == 8 and fields["fast"].bool_value is True
    assert "code" in fields and "d_model" not in fields and "flops" not in fields


# -- MLflow ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose database of MLflow is made once, in ninety steps that wait for no disk."""
    from sqlalchemy import Engine, event

    def quick(connection: Any, record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", quick)
    yield tmp_path_factory.mktemp("mlflow")
    event.remove(Engine, "connect", quick)


def test_mlflow_reads_every_number_once(
    ablate: Run, db: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(folder)
    wanted, runs = expected(db), begun(db)
    numbers_of_runs = []
    for _ in range(2):
        code, out, err = ablate("export", STUDY, "--to", "mlflow")
        assert (code, err) == (0, "") and "17 runs" in out and "1 have not begun" in out
        client = MlflowClient()  # where MLflow looks by default
        experiment = client.get_experiment_by_name(STUDY)
        assert experiment.tags["metric"] == "loss" and experiment.tags["goal"] == "min"
        found = {
            (run.data.tags["cell"], run.data.tags["role"], int(run.data.params["seed"])): run
            for run in client.search_runs([experiment.experiment_id])
        }
        assert found.keys() == wanted.keys()
        numbers_of_runs.append({run.info.run_id for run in found.values()})
        for place, numbers in wanted.items():
            one, run = found[place], runs[place]
            status = {"complete": "FINISHED", "running": "RUNNING", "stopped": "KILLED"}
            assert one.info.status == status.get(run["status"], "FAILED")
            tags = {name: run[name] for name in ("stratum", "key", "status")}
            assert tags.items() <= one.data.tags.items()
            assert float(one.data.params["lr"]) == run["lr"]
            assert json.loads(one.data.params["mask_mix"]) == [0.8, 0.1, 0.1]
            assert one.data.params["tie_embeddings"] == run["tie_embeddings"]
            assert one.info.start_time == 1.7e12
            assert one.info.end_time == (None if run["status"] == "running" else 1.7e12 + 10_000)
            histories = {}
            for key in one.data.metrics:
                points = client.get_metric_history(one.info.run_id, key)
                histories[key] = sorted((each.step, each.value) for each in points)
            for name, points in numbers.items():
                stored = [(step, ABOUT_MLFLOW.get(value, value)) for step, value in points]
                key = name.replace("@", "_")
                if key in histories:
                    assert equal(histories.pop(key), stored), (place, name)
                else:
                    like = [k for k in histories if equal(histories[k], stored)]
                    assert (like and not name.replace("/", "").isalnum()) or len(name) > 200, name
                    histories.pop(like[0])
            assert not histories
    assert numbers_of_runs[0] == numbers_of_runs[1]


def test_a_run_that_has_changed_is_replaced_in_mlflow(
    ablate: Run, tmp_path: Path, folder: Path
) -> None:
    from mlflow import MlflowClient

    place = str(folder / "mlflow.db")

    def failed(levels: Levels, seed: int) -> Outcome:
        return Outcome(status="failed", points={1: 9.0}, error="no luck")

    def complete(levels: Levels, seed: int) -> Outcome:
        return Outcome(2.0, points={1: 3.0, 2: 2.0})

    levels = {"topology": {"serial": {"topology": "serial"}}}
    for at, way in enumerate((failed, complete)):
        (tmp_path / str(at)).mkdir()
        with study(tmp_path / str(at), levels, way, seeds=1) as one:
            arguments = ["export", "topology", place, "--to", "mlflow", "--db", str(one.path)]
            assert ablate(*arguments)[0] == 0
    client = MlflowClient(f"sqlite:///{place}")
    (run,) = client.search_runs([client.get_experiment_by_name("topology").experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "complete"
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(1, 3.0), (2, 2.0)]


# -- Weights & Biases ------------------------------------------------------------------------------


def records(path: Path) -> Iterator[Any]:
    """The records of a file of W&B: blocks as in LevelDB's log, W&B's own messages in them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        left = 32768 - at % 32768
        if left < 7 or kind == 0:
            at += left
            continue
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def name_of(item: Any) -> str:
    return str(item.key or "/".join(item.nested_key))


def test_wandb_reads_every_number(ablate: Run, db: Database) -> None:
    for _ in range(2):
        code, out, err = ablate("export", STUDY, "--to", "wandb-offline")
        assert (code, err) == (0, "") and "17 runs" in out and "1 have not begun" in out
    wanted, runs = expected(db), begun(db)
    groups = {}
    for path in Path("wandb").glob("offline-run-*/run-*.wandb"):
        made, (run,) = list(records(path)), [r.run for r in records(path) if r.HasField("run")]
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        place = (config["cell"], config["role"], config["seed"])
        numbers, row = wanted.pop(place), runs[place]
        history: dict[str, list[Any]] = {}
        for record in made:
            if record.HasField("history"):
                values = {
                    name_of(item): json.loads(item.value_json) for item in record.history.item
                }
                assert values["_timestamp"] == 1.7e9
                for name, value in values.items():
                    history.setdefault(name, []).append((record.history.step.num, float(value)))
        updates = [u for r in made if r.HasField("summary") for u in r.summary.update]
        summary = {name_of(item): json.loads(item.value_json) for item in updates}
        for name, points in numbers.items():
            if name.startswith("final/"):
                assert same(float(summary[name]), points[0][1]), name
            else:
                assert equal(history[name], points), (place, name)
        assert {name for name in history if not name.startswith("_")} == {
            name for name in numbers if not name.startswith("final/")
        }
        assert config["lr"] == row["lr"] and config["mask_mix"] == [0.8, 0.1, 0.1]
        assert (config["key"], config["status"]) == (row["key"], row["status"])
        assert run.project == "a-b- 50--" and not run.host
        assert run.display_name.startswith(row["cell"][:100]) and run.job_type == "compare"
        groups.setdefault(run.run_group, set()).add(row["cell"])
        (code,) = [record.exit.exit_code for record in made if record.HasField("exit")]
        assert code == (0 if row["status"] in ("complete", "running") else 1)
    assert not wanted
    assert all(len(cells) == 1 and len(group) <= 128 for group, cells in groups.items())


# -- failures --------------------------------------------------------------------------------------


def exported(ablate: Run, folder: Path, to: str, loss: float) -> int:
    """Export a study of two runs with this loss; return the exit code."""
    (folder / str(loss)).mkdir()
    levels = {"topology": {"serial": {"topology": "serial"}}}
    way = lambda levels, seed: Outcome(loss, points={1: loss})  # noqa: E731
    with study(folder / str(loss), levels, way, seeds=2) as one:
        return ablate("export", "topology", "--to", to, "--db", str(one.path))[0]


def content(folder: Path) -> dict[str, bytes]:
    """The files of numbers; W&B's service writes more into its logs."""
    found = [*folder.rglob("*.wandb"), *folder.rglob("*tfevents*")]
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("to", "module"), [("tensorboard", "tensorboard"), ("wandb-offline", "wandb")]
)
def test_an_export_that_fails_leaves_the_one_before(
    ablate: Run, tmp_path: Path, to: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("runs" if to == "tensorboard" else "wandb").absolute()
    assert exported(ablate, tmp_path, to, 3.0) == 0
    before = content(place)
    own = importlib.import_module(f"ablate.export.{module}")
    name = "_events" if to == "tensorboard" else "_write"
    write, calls = getattr(own, name), []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("no space left")
        return write(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(own, name, failing)
        assert exported(ablate, tmp_path, to, 2.0) == 2
    assert len(calls) == 2 and content(place) == before
    assert not list(place.glob(".*")) and not list(place.parent.glob(".ablate*"))
    assert exported(ablate, tmp_path, to, 1.0) == 0
    assert len(content(place)) == len(before) and content(place) != before


def test_an_export_to_mlflow_that_fails_keeps_the_run_before(
    ablate: Run, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    monkeypatch.chdir(folder)
    assert exported(ablate, tmp_path, "mlflow", 3.0) == 0

    def losses() -> list[float]:
        client = MlflowClient("sqlite:///mlflow.db")
        number = client.get_experiment_by_name("topology").experiment_id
        return [
            run.data.metrics.get("final/loss", math.nan) for run in client.search_runs([number])
        ]

    assert losses()[:2] == [3.0, 3.0]

    def failing(*arguments: Any) -> None:
        raise MlflowException("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", failing)
        assert exported(ablate, tmp_path, "mlflow", 2.0) == 2
    assert losses().count(3.0) == 2
    assert exported(ablate, tmp_path, "mlflow", 1.0) == 0
    assert losses() == [1.0, 1.0]


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "tensorbord"], ["'tensorbord'", "did you mean 'tensorboard'", "mlflow"]),
        (["tensorboard"], ["'tensorboard'", "did you mean '--to tensorboard'", ".csv"]),
        (["-", "--to", "mlflow"], ["mlflow", "standard output"]),
        (["--to", "tensorboard", "--what", "curves"], ["--what", "tensorboard"]),
        (["--to", "transformers", "--role", "compare"], ["--role", "transformers", "one run"]),
        (["folder", "--to", "mlflow"], ["folder is a folder", "folder/mlflow.db"]),
        (["none/mlflow.db", "--to", "mlflow"], ["none/mlflow.db", "no folder"]),
        (["text.db", "--to", "mlflow"], ["text.db", "no database of MLflow"]),
        (["text.db", "--to", "tensorboard"], ["text.db", "cannot be written"]),
        (["text.db", "--to", "wandb-offline"], ["text.db", "cannot be written"]),
        (["pipe.csv"], ["pipe.csv", "regular file"]),
    ],
    ids=lambda value: " ".join(value)[-40:],
)
def test_mistakes_are_one_line(ablate: Run, arguments: list[str], words: list[str]) -> None:
    Path("folder").mkdir()
    Path("text.db").write_text("This is a text and no database.")
    os.mkfifo("pipe.csv")
    refused(ablate, ["export", STUDY, *arguments], words)
    assert Path("text.db").read_text() == "This is a text and no database."
    assert Path("pipe.csv").is_fifo()


def test_a_link_stays_and_its_file_is_written(ablate: Run, db: Database) -> None:
    Path("link.csv").symlink_to("file.csv")
    assert ablate("export", STUDY, "link.csv")[0] == 0
    assert Path("link.csv").is_symlink() and STUDY in Path("file.csv").read_text()


def test_mlflow_does_not_write_into_the_database_of_results(ablate: Run, db: Database) -> None:
    before = db.path.read_bytes()
    refused(ablate, ["export", STUDY, str(db.path), "--to", "mlflow"], [db.path.name])
    assert db.path.read_bytes() == before


@pytest.mark.parametrize("to", ["tensorboard", "mlflow", "wandb-offline"])
def test_what_is_missing_is_named(
    ablate: Run, to: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    levels = {"topology": {"serial": {"topology": "serial"}}}
    study(tmp_path, levels, lambda levels, seed: None, seeds=1).close()
    arguments = ["export", "topology", "--to", to, "--db", str(tmp_path / "ablate.db")]
    refused(ablate, arguments, ["no run of study 'topology' has begun", "ablate run topology"])
    refused(ablate, [*arguments, "--role", "tune"], ["no tuning run of study 'topology'"])
    library = to.removesuffix("-offline")
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    refused(ablate, arguments, [f"pip install 'ablate-studies[{library}]'"])


def test_tables_of_a_script_have_all_columns_of_their_kind(ablate: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "own.toml").write_text(
        """
        name = "own"
        question = "Does depth help?"
        metric = "score"
        goal = "higher"
        seeds = 1
        [command]
        run = "python train.py --depth {depth} --seed {seed}"
        code = ["train.py"]
        [factors]
        depth = { low = { depth = 1 }, high = { depth = 8 } }
        """
    )
    made = plan(load(str(tmp_path / "own.toml")))
    with store.open("own.db", create=True) as own:
        register(own, made)
        measure(own, made.runs, lambda run: 0.1)
    for what, needed in (
        ("effects", {"level", "mean", "lo", "hi", "p", "p_holm", "sd"}),  # one seed: no interval
        ("pairs", {"level", "seed", "value", "difference"}),
        ("runs", {"depth", "seed", "status", "metric", "diverged_at"}),
        ("curves", {"depth", "cell", "series", "step", "value"}),
    ):
        assert ablate("export", "own", f"{what}.csv", "--what", what, "--db", "own.db")[0] == 0
        columns = set(pd.read_csv(f"{what}.csv").columns)
        assert needed <= columns, what
        assert "d_model" not in columns
