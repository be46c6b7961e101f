"""A study as a value, by names and keys instead of ids, to read, combine and write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from ablate.evaluation import Evaluation
from ablate.store import schema

_HEADER = (
    "revision",
    "plan_hash",
    "toml",
    "question",
    "metric",
    "goal",
    "evaluation",
)  # the first decide which is later
_TOML, _EVALUATION = _HEADER.index("toml"), _HEADER.index("evaluation")
_CODE = tuple(column.name for column in schema.code.columns if column.name != "study_id")
_FINDING = tuple(column.name for column in schema.finding.columns if column.name != "study_id")
_EFFECT = tuple(
    column.name
    for column in schema.effect.columns
    if column.name not in ("contrast_id", "metric", "method")
)

ContrastKey = tuple[
    str, str, str, str, str, str
]  # family, stratum, factor, level, labels of cell and baseline


@dataclass
class CellContent:
    """A cell with its levels, members and decisions."""

    stratum: str
    active: bool
    levels: dict[str, tuple[int, str]] = field(default_factory=dict)  # factor → ordinal, level
    members: dict[tuple[str, str], int] = field(default_factory=dict)  # run's key, role → ordinal
    decisions: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → value, evidence


@dataclass
class StudyContent:
    """A study with its cells, contrasts, effects and findings."""

    header: tuple[Any, ...]  # values of `_HEADER`
    cells: dict[str, CellContent] = field(default_factory=dict)
    contrasts: dict[ContrastKey, dict[tuple[str, str], tuple[Any, ...]]] = field(
        default_factory=dict
    )  # → effects
    findings: list[tuple[Any, ...]] = field(default_factory=list)  # values of `_FINDING`
    # (name, version) of code → whether it is active, text and about
    code: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)

    @property
    def toml(self) -> str:
        """The text of its file."""
        return str(self.header[_TOML])

    @property
    def evaluation(self) -> Evaluation:
        """What its runs are measured by."""
        return Evaluation.model_validate_json(self.header[_EVALUATION])

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the code that its plan has, by name."""
        return {name: version for (name, version), (active, *_) in self.code.items() if active}

    def is_later(self, other: StudyContent) -> bool:
        """Whether this one holds when both are one study, as it does where they are equal."""
        return rank(self.header) >= rank(other.header)


def rank(values: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    """Return a sort key for tuples in which some values may be None."""
    return tuple((value is not None, value) for value in values)


def read(connection: Connection) -> dict[str, StudyContent]:
    """Return every study by its name."""
    studies: dict[int, StudyContent] = {}
    names: dict[int, str] = {}
    for study_id, name, *header in connection.exec_driver_sql(
        f"SELECT id, name, {', '.join(_HEADER)} FROM study ORDER BY id"
    ):
        studies[study_id], names[study_id] = StudyContent(tuple(header)), name
    cells: dict[int, CellContent] = {}
    labels: dict[int, str] = {}
    for cell_id, study_id, label, stratum, active in connection.exec_driver_sql(
        "SELECT id, study_id, label, stratum, active FROM cell ORDER BY id"
    ):
        cells[cell_id] = studies[study_id].cells[label] = CellContent(stratum, bool(active))
        labels[cell_id] = label
    for cell_id, factor, level, ordinal in connection.exec_driver_sql(
        "SELECT cell_id, factor, level, ordinal FROM cell_level"
    ):
        cells[cell_id].levels[factor] = (ordinal, level)
    for cell_id, key, role, ordinal in connection.exec_driver_sql(
        "SELECT cell_id, key, role, ordinal FROM member JOIN run ON run.id = run_id"
    ):
        cells[cell_id].members[key, role] = ordinal
    for cell_id, name, value, evidence in connection.exec_driver_sql(
        "SELECT cell_id, name, value, evidence FROM decision"
    ):
        cells[cell_id].decisions[name] = (value, evidence)
    effects: dict[int, dict[tuple[str, str], tuple[Any, ...]]] = {}
    for contrast_id, study_id, cell_id, baseline_id, *names_of in connection.exec_driver_sql(
        "SELECT id, study_id, cell_id, baseline_id, family, stratum, factor, level FROM contrast"
        " ORDER BY id"
    ):
        key = (*names_of, labels[cell_id], labels[baseline_id])
        effects[contrast_id] = studies[study_id].contrasts[key] = {}
    for contrast_id, metric, method, *values in connection.exec_driver_sql(
        f"SELECT contrast_id, metric, method, {', '.join(_EFFECT)} FROM effect"
    ):
        effects[contrast_id][metric, method] = tuple(values)
    for study_id, *row in connection.exec_driver_sql(
        f"SELECT study_id, {', '.join(_FINDING)} FROM finding ORDER BY study_id, ordinal"
    ):
        studies[study_id].findings.append(tuple(row))
    for study_id, name, version, *rest in connection.exec_driver_sql(
        f"SELECT study_id, {', '.join(_CODE)} FROM code ORDER BY rowid"
    ):
        studies[study_id].code[name, version] = tuple(rest)
    return {names[study_id]: content for study_id, content in studies.items()}


def combine(a: StudyContent, b: StudyContent) -> StudyContent:
    """Return the later revision of two, with the cells that only the earlier has, inactive.

    Commutative.
    """
    late, early = (a, b) if a.is_later(b) else (b, a)
    same = late.header == early.header
    result = StudyContent(late.header)
    for label in dict.fromkeys([*late.cells, *early.cells]):
        sides = [side.cells[label] for side in (late, early) if label in side.cells]
        if label in late.cells and late.cells[label].active:
            first = sides[0]
            result.cells[label] = CellContent(first.stratum, True, first.levels, first.members)
            decided = sides if same else sides[:1]  # what the other decided belongs to another plan
        else:
            decided = sides
            result.cells[label] = CellContent(
                max(side.stratum for side in sides),
                False,
                _latest(*(side.levels for side in sides)),
                _latest(*(side.members for side in sides)),
            )
        result.cells[label].decisions = _latest(*(side.decisions for side in decided))
    for key, effects in late.contrasts.items():
        result.contrasts[key] = _latest(effects, early.contrasts.get(key, {})) if same else effects
    # findings are of one analysis: those of the other are about other results
    told = [late.findings, early.findings] if same else [late.findings]
    result.findings = max(told, key=lambda rows: [rank(row) for row in rows])
    # what the earlier study alone has made runs that the later one no longer has
    former = {known: (False, *rest) for known, (_, *rest) in early.code.items()}
    result.code = _latest(former, late.code)
    return result


def united(early: StudyContent, late: StudyContent, toml: str) -> StudyContent:
    """Return a study whose seeds were split between two, with the runs of both. Commutative.

    Args:
        early: One of the two.
        late: The other one, which is later or equal.
        toml: Their file with the seeds of both.
    """
    result = combine(early, late)
    header = dict(zip(_HEADER, late.header, strict=True)) | {"toml": toml, "plan_hash": ""}
    result.header = tuple(header.values())
    for label, cell in result.cells.items():
        if label in early.cells:
            cell.members = _latest(cell.members, early.cells[label].members)
            cell.decisions = _latest(cell.decisions, early.cells[label].decisions)
    result.findings = []  # of one of the two
    result.contrasts = {key: {} for key in result.contrasts}
    return result


def _latest(*sides: dict[Any, Any]) -> dict[Any, Any]:
    """All keys of the sides, each with its highest value."""
    result: dict[Any, Any] = {}
    for side in sides:
        for key, value in side.items():
            result[key] = max(
                result.get(key, value), value, key=lambda v: rank(v) if isinstance(v, tuple) else v
            )
    return result


def write(connection: Connection, name: str, content: StudyContent, runs: dict[str, int]) -> None:
    """Write a study; one of that name is replaced and keeps its id.

    Args:
        connection: A connection in a transaction.
        name: Name of the study.
        content: What to write.
        runs: Key → id of the runs in this database.
    """
    header = dict(zip(_HEADER, content.header, strict=True))
    study_id = connection.exec_driver_sql(
        "SELECT id FROM study WHERE name = ?", (name,)
    ).scalar_one_or_none()
    if study_id is None:
        insert = schema.study.insert().values(name=name, **header).returning(schema.study.c.id)
        study_id = connection.execute(insert).scalar_one()
    else:
        connection.execute(
            schema.study.update().where(schema.study.c.id == study_id).values(**header)
        )
        # by cascade also what belongs to the cells
        for table in ("cell", "finding", "code"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE study_id = ?", (study_id,))
    ids = {}
    for label, cell in content.cells.items():
        values = {
            "study_id": study_id,
            "label": label,
            "stratum": cell.stratum,
            "active": cell.active,
        }
        ids[label] = connection.execute(
            schema.cell.insert().values(values).returning(schema.cell.c.id)
        ).scalar_one()
    _insert(
        connection,
        schema.cell_level,
        [
            (ids[label], factor, level, ordinal)
            for label, cell in content.cells.items()
            for factor, (ordinal, level) in cell.levels.items()
        ],
    )
    _insert(
        connection,
        schema.member,
        [
            (ids[label], runs[key], role, ordinal)
            for label, cell in content.cells.items()
            for (key, role), ordinal in cell.members.items()
        ],
    )
    _insert(
        connection,
        schema.decision,
        [
            (study_id, ids[label], decision, *rest)
            for label, cell in content.cells.items()
            for decision, rest in cell.decisions.items()
        ],
    )
    _insert(connection, schema.finding, [(study_id, *row) for row in content.findings])
    _insert(
        connection, schema.code, [(study_id, *known, *rest) for known, rest in content.code.items()]
    )
    for (*names_of, cell_label, baseline), effects in content.contrasts.items():
        contrast_id = connection.exec_driver_sql(
            "INSERT INTO contrast (study_id, family, stratum, factor, level, cell_id, baseline_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (study_id, *names_of, ids[cell_label], ids[baseline]),
        ).scalar_one()
        _insert(
            connection,
            schema.effect,
            [(contrast_id, *names, *values) for names, values in effects.items()],
        )


def _insert(connection: Connection, table: Any, rows: list[tuple[Any, ...]]) -> None:
    """Insert whole rows, in the order of the table's columns."""
    if rows:
        marks = ", ".join("?" * len(table.columns))
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", rows)
