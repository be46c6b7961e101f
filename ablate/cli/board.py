"""`ablate board`: a page that shows studies while they train."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from ablate.cli import complete
from ablate.cli.output import echo
from ablate.cli.render import Db


def board(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY…",
            help="Studies by name or file; without any, all in the database.",
            show_default=False,
            autocompletion=complete.stored,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            show_default=False,
            help="Port to listen on, on this machine only; by default 8002, or the next free one.",
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Show studies while they train, on a page in the browser. Ctrl-C ends it.

    It reads only, and answers on this machine alone, to a browser that opened the printed address.
    """
    import sys

    from ablate import store
    from ablate.board.server import Server
    from ablate.board.watch import Watch
    from ablate.cli.stored import name_of, notes
    from ablate.store.names import require_study

    with store.open(db) as database:
        path = database.path.absolute()
        names = [name_of(study, database) for study in studies or ()]
        for name, given in zip(names, studies or (), strict=True):
            require_study(database, name)
            for note in notes(name, database, given) if given != name else ():
                echo(note)
    server = Server(Watch(path, names), port)
    echo(f"Open {server.address}")
    sys.stdout.flush()
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
