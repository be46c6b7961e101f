"""`ablate query` and `ablate browse`: named queries and SQL, here or in a browser."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import complete
from ablate.cli.output import deliver, echo
from ablate.cli.render import Db, console, table
from ablate.formats import FORMATS

if TYPE_CHECKING:
    from ablate.store import Database

Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="|".join(FORMATS), help="How to print.", autocompletion=complete.formats
    ),
]


def query(
    asked: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|SQL",
            help="A named query, or one SELECT; - reads the SELECT from standard input.",
            show_default=False,
            autocompletion=complete.questions,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE",
            help="Values of the query's parameters, such as a study.",
            show_default=False,
            autocompletion=complete.stored,
        ),
    ] = None,
    format: Format = "table",
    listed: Annotated[
        bool,
        typer.Option(
            "--list", help="List the named queries, with what each answers and the values it needs."
        ),
    ] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="List tables and views with their columns.")
    ] = False,
    db: Db = None,
) -> None:
    """Query the database by name or in SQL, read-only.

    ablate query best-lr topology
    """
    from ablate import formats, store
    from ablate.errors import AblateError
    from ablate.store import query as queries
    from ablate.store import questions
    from ablate.store.names import require_series, require_study

    if (asked is not None) + listed + tables != 1:
        raise AblateError(
            'give a named query of --list, or one SELECT, such as "SELECT cell, avg(loss) FROM runs'
            ' GROUP BY cell", or --tables'
        )
    if listed:
        _list(format)
        return
    with store.open(db) as database:
        if asked is None:
            _tables(database, format)
            return
        sql, values = _statement(_sql() if asked == "-" else asked, words or [])
        if study := values.get("study"):
            require_study(database, study)
        if series := values.get("series"):
            require_series(database, [str(series)])
        columns, rows = queries.run(database, sql, values)
        if asked in questions.QUESTIONS:
            columns = questions.headings(database, asked, str(values.get("study", "")), columns)
    deliver(formats.render(columns, rows, format))
    if not rows and format == "table":
        echo("no rows", error=True)


def _sql() -> str:
    """Return what standard input holds."""
    from ablate.errors import AblateError

    try:
        text = sys.stdin.read()
        text.encode()  # in some locales Python reads any bytes
    except UnicodeError:
        raise AblateError("query -: standard input is not text in UTF-8") from None
    if not text.strip():
        raise AblateError("query -: standard input has no SELECT")
    return text


def _statement(asked: str, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The SQL of a named query, or the SQL itself, and the values of its parameters.

    A value that reads as a number is one.
    """
    from ablate.errors import AblateError
    from ablate.store import questions

    if asked.upper() in ("SELECT", "WITH"):
        raise AblateError(f'put the whole {asked.upper()} in quotes: ablate query "{asked} …"')
    if re.fullmatch(r"[\w-]+", asked):
        question = questions.find(asked)
        return question.sql, question.bind(words)
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise AblateError(
                f"{word!r}: the parameters of SQL are given as NAME=VALUE; put the whole SELECT in"
                " quotes"
            )
        values[name] = _literal(value)
    return asked, values


def _literal(text: str) -> int | float | str:
    """A number if the text is an SQL number, else the text: SQLite compares the two by type."""
    number = re.fullmatch(r"[+-]?(?:\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text)
    return text if not number else float(text) if "." in text or number[2] else int(text)


def _list(format: str) -> None:
    from ablate import formats
    from ablate.store.questions import QUESTIONS, page

    if format == "md":
        deliver(page())
    elif format == "table":
        rows = [
            (question.name, question.usage, question.answers) for question in QUESTIONS.values()
        ]
        console().print(table(["named query", "values", "what it answers"], rows))
        console().print(
            "Run one: ablate query means STUDY. Their SQL: ablate query --list --format md",
            markup=False,
        )
    else:
        every = [
            (question.name, question.usage, question.answers, question.sql)
            for question in QUESTIONS.values()
        ]
        deliver(formats.render(["name", "values", "answers", "sql"], every, format))


def _tables(database: Database, format: str) -> None:
    from ablate import formats
    from ablate.store import query

    rows = [(name, kind, ", ".join(columns)) for name, kind, columns in query.tables(database)]
    if format != "table":
        deliver(formats.render(["name", "kind", "columns"], rows, format))
        return
    for name, kind, columns in rows:  # columns are too many for one line
        echo(
            f"{name} ({kind})",
            *textwrap.wrap(columns, 76, initial_indent="    ", subsequent_indent="    "),
        )


def browse(
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            help="Port to listen on, on this machine only.",
        ),
    ] = 8001,
    db: Db = None,
) -> None:
    """Browse the database and the named queries in Datasette, read-only. Ctrl-C ends it.

    It answers on this machine alone, to a browser that opened the printed address.
    """
    import json
    import os
    import secrets
    from importlib.util import find_spec

    from ablate import store
    from ablate.cli.guard import TOKEN
    from ablate.errors import missing

    with store.open(db) as database:
        path = database.path
    if find_spec("datasette") is None:
        raise missing("Datasette", "browse")
    command = [
        sys.executable,
        "-m",
        "datasette",
        "serve",
        str(path),
        "--metadata",
        "-",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--plugins-dir",
        str(Path(__file__).parent / "datasette_plugins"),
    ]
    token = secrets.token_urlsafe()
    echo(f"Open http://127.0.0.1:{port}/?token={token}")
    sys.stdout.flush()
    os.environ[TOKEN] = token
    read, write = os.pipe()
    os.write(write, json.dumps(_metadata(path)).encode())  # a pipe holds 64 KiB
    os.close(write)
    os.dup2(read, 0)
    os.execv(sys.executable, [*command, "--setting", "sql_time_limit_ms", "10000"])


def _metadata(path: Path) -> dict[str, Any]:
    """Datasette's metadata: the named queries, and the table to hide."""
    from ablate.store.questions import QUESTIONS
    from ablate.store.schema import VERSION_TABLE

    queries = {
        question.name: {
            "sql": question.sql,
            "title": question.name,
            "description": question.answers,
        }
        for question in QUESTIONS.values()
    }
    about = {"queries": queries, "tables": {VERSION_TABLE: {"hidden": True}}}
    return {"title": f"ablate: {path}", "databases": {path.stem: about}}
