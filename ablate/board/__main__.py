"""The process of a board beside a run, see `ablate.board.beside`: it ends when its input does."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from ablate.board.server import Server
from ablate.board.watch import Watch

LINGER = 5.0  # seconds in which an open page learns that the run has ended


def main(database: str, study: str) -> None:
    """Serve until standard input ends, and print the address first."""
    watch = Watch(Path(database), [study])
    server = Server(watch)
    print(server.address, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    watch.end()
    if time.monotonic() - watch.asked < LINGER:
        time.sleep(LINGER)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main(*sys.argv[1:])
