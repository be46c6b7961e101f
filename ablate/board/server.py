"""Serves a board on 127.0.0.1, to those who have its token. It only answers GET and HEAD."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import mimetypes
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ablate.board import page
from ablate.board.access import refusal
from ablate.board.reports import Reports
from ablate.board.watch import Watch
from ablate.errors import AblateError

ADDRESS = "127.0.0.1"
PORT = 8002
TRIED = 20  # ports after that one, if none is asked for
SMALL = 1024  # bytes that are not worth compressing
FOLDER = "/report/files/"
HTML = "text/html; charset=utf-8"
JSON = "application/json"
# Nothing is loaded from, or sent to, another address, whatever a text of the database says. Vega
# compiles the expressions of a chart.
POLICY = (
    "default-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self'"
    " 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Server(ThreadingHTTPServer):
    """The server of one board.

    Args:
        watch: What it shows.
        port: Port to listen on; None for `PORT`, or the next that is free.

    Raises:
        AblateError: The port is not free.
    """

    def __init__(self, watch: Watch, port: int | None = None):
        self.watch, self.token = watch, secrets.token_urlsafe()
        super().__init__((ADDRESS, _free(port)), Handler)
        self.reports = Reports(watch.path)
        threading.Thread(target=_preload, daemon=True).start()

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def server_bind(self) -> None:
        """Bind without asking for the name of this host, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over browsers that left before they had the answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_close(self) -> None:
        """Close the socket and remove the reports."""
        super().server_close()
        self.reports.close()


def _preload() -> None:
    """Import what the first page needs, which takes seconds, before it is asked for."""
    import ablate.board.growth  # noqa: F401


def _free(port: int | None) -> int:
    """Return a port that can be listened on."""
    for each in [port] if port is not None else [*range(PORT, PORT + TRIED), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, each))
            except OSError as error:
                if port is None and error.errno == errno.EADDRINUSE:
                    continue
                raise AblateError(f"port {each} cannot be used: {error.strerror}") from None
            return int(probe.getsockname()[1])
    raise AssertionError


class Handler(BaseHTTPRequestHandler):
    """Answers one request after another of a connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ablate", ""
    timeout = 60  # seconds after which an idle connection is closed

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page asks every few seconds."""

    def do_HEAD(self) -> None:
        """See `do_GET`."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a page, what changed on it, or a file of a report."""
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        hosts = self.headers.get_all("host", [])
        cookies = self.headers.get_all("cookie", [])
        refused = refusal("ablate board", self.server.token, path, parts.query, hosts, cookies)
        if refused:
            self._send(refused.status, "text/plain; charset=utf-8", refused.text, refused.headers)
            return
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        study = asked.get("study", "")
        if path == "/":
            self._page(study)
        elif path == "/live":
            self._live(study)
        elif path == "/growth":
            self._growth(study, asked.get("since", ""))
        elif path == "/vega.js":
            from ablate.report import bundle

            self._send(200, "text/javascript; charset=utf-8", bundle.script(), kept=True)
        elif path == "/report/" and study:
            self._report(study, asked.get("job", ""))
        elif path.startswith(FOLDER) and (file := self.server.reports.file(path[len(FOLDER) :])):
            kind = mimetypes.guess_type(file.name)[0] or "text/plain"
            text = kind.startswith("text/") or kind == "image/svg+xml"
            self._send(200, f"{kind}; charset=utf-8" if text else kind, file.read_bytes())
        else:
            self._send(404, "text/plain; charset=utf-8", "There is no such page.")

    def _page(self, study: str) -> None:
        watch = self.server.watch
        if not study:
            names: Sequence[str] = watch.studies
            with contextlib.suppress(AblateError):  # the page says what is wrong
                names = names or watch.names()
            study = names[0] if len(names) == 1 else ""
        self._send(200, HTML, page.whole(study, watch.live(study).shown))

    def _live(self, study: str) -> None:
        live = self.server.watch.live(study)
        if self.headers.get("if-none-match") == live.tag:
            self._send(304, JSON, "")
        else:
            self._send(200, JSON, live.body, [("etag", live.tag)])

    def _growth(self, study: str, since: str) -> None:
        known = int(since) if since.isdecimal() else 0
        found = None
        with contextlib.suppress(AblateError):  # which `_live` says
            found = self.server.watch.growth(study, known)
        if found is None:
            self._send(204, JSON, "")
        else:
            self._send(200, JSON, json.dumps(found, separators=(",", ":")))

    def _report(self, study: str, number: str) -> None:
        reports = self.server.reports
        begun = reports.begun(study, int(number)) if number.isdecimal() else None
        job = begun or reports.job(study)
        if job.done and not job.error:
            self._send(303, HTML, "", [("location", f"{FOLDER}{quote(reports.page(study))}")])
        elif begun is None:
            again = f"/report/?study={quote(study, safe='')}&job={job.number}"
            self._send(303, HTML, "", [("location", again)])
        else:
            self._send(200, HTML, page.waiting(study, job.error))

    def _send(
        self, status: int, kind: str, body: str | bytes, headers: object = (), *, kept: bool = False
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        if len(content) > SMALL and "gzip" in self.headers.get("accept-encoding", ""):
            content = gzip.compress(content, 1)
            self.send_header("content-encoding", "gzip")
        for name, value in headers:  # type: ignore[attr-defined]
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
        self.send_header("cache-control", "private, max-age=86400" if kept else "no-store")
        self.send_header("content-security-policy", POLICY)
        self.send_header("referrer-policy", "no-referrer")
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(content)
