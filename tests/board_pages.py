"""A board in a thread, as a browser with its token sees it, and runs that seem to train."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from pathlib import Path
from typing import Any

from ablate.board.server import Server
from ablate.board.watch import Watch
from ablate.journal import Journal
from ablate.store import records


class Pages:
    """A server in a thread, and a browser that has its token."""

    def __init__(self, path: Path, *studies: str):
        self.server = Server(Watch(path, studies), 0)
        self.port = self.server.server_port
        self.cookie = f"ablate_{self.port}={self.server.token}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def ask(
        self, path: str, *headers: tuple[str, str], method: str = "GET"
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and body; without headers given, with those of the browser."""
        given = headers or (("Host", f"127.0.0.1:{self.port}"), ("Cookie", self.cookie))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            for name, value in given:
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

    def live(self, study: str = "wiring") -> dict[str, Any]:
        status, _, body = self.ask(f"/live?study={study}")
        assert status == 200
        found: dict[str, Any] = json.loads(body)
        return found

    def growth(self, since: int, study: str = "wiring") -> dict[str, Any] | None:
        status, _, body = self.ask(f"/growth?study={study}&since={since}")
        assert status in (200, 204), body
        return json.loads(body) if body else None


def begin(claim: records.Claim, steps: list[int]) -> None:
    """Write the journal of a run that trains."""
    with Journal(claim.journal) as journal:
        start = {"step": 0, "time": 1.7e9, "host": "lab", "device": "cuda:3", "threads": 1}
        journal.append("start", **start, versions={}, dirty=False)
        series = {"loss": [9 / step for step in steps], "tokens_per_second": [64.0] * len(steps)}
        journal.append("metrics", steps=steps, series=series)


def finish(claim: records.Claim, status: str, error: str = "") -> None:
    """Write the end of its journal."""
    with Journal(claim.journal) as journal:
        if status == "complete":
            journal.append("final", values=[["loss", 0, 0.5]])
        end = {"status": status, "step": 100, "error": error, "time": 1.7e9 + 9}
        journal.append("end", **end, device_seconds=9.0, peak_bytes=3 << 30)
