"""Keeps `ablate browse` for those who may read it: see `ablate.board.access`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ablate.board.access import refusal

TOKEN = "ABLATE_BROWSE_TOKEN"  # environment variable; arguments of a process are public

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Send], Awaitable[None]]


def guarded(app: App, token: str) -> App:
    """Return an ASGI application that answers as `app` does, to those who may read it.

    Args:
        app: The application.
        token: Secret text that a request must bring.
    """

    async def guard(scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        refused = refusal(
            "ablate browse",
            token,
            scope["path"],
            scope["query_string"].decode("latin-1"),
            [value for name, value in headers if name == b"host"],
            [value for name, value in headers if name == b"cookie"],
        )
        if refused is None:
            await app(scope, receive, send)
            return
        sent = [("content-type", "text/plain; charset=utf-8"), *refused.headers]
        lines = [(name.encode(), value.encode()) for name, value in sent]
        await send({"type": "http.response.start", "status": refused.status, "headers": lines})
        await send({"type": "http.response.body", "body": refused.text.encode()})

    return guard
