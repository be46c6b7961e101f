"""Who may read what `ablate browse` shows: this machine's browser, with the printed address.

A page of another site can make a browser ask 127.0.0.1, under a name that resolves to it (DNS
rebinding) or without reading the answer. So requests under other names are refused, and so are
those without the token, which is in the printed address and then in a cookie.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

HOSTS = ("127.0.0.1", "localhost")
TOKEN = "ABLATE_BROWSE_TOKEN"  # environment variable; arguments of a process are public

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Send], Awaitable[None]]


def guarded(app: App, token: str) -> App:
    """Return an ASGI application that answers as `app` does, to those who may read it.

    Args:
        app: The application.
        token: Secret text that a request must bring: once as the parameter `token`, then as a
            cookie.
    """

    async def guard(scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        named = [value for name, value in headers if name == b"host"]
        host, _, port = named[0].partition(":") if len(named) == 1 else ("", "", "")
        if host.lower() not in HOSTS:
            await _answer(send, 403, "This address is not one of `ablate browse`.")
            return
        cookie = f"ablate_{port}"  # cookies themselves do not distinguish ports
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and _same(value, token) for name, value in query):
            left = urlencode([pair for pair in query if pair[0] != "token"])
            path = "/" + quote(scope["path"].lstrip("/"))  # // would begin another host's address
            address = f"{path}{f'?{left}' if left else ''}".encode()
            secret = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict".encode()
            await _answer(send, 303, "", (b"location", address), (b"set-cookie", secret))
        elif any(
            _same(_cookie(text, cookie), token) for name, text in headers if name == b"cookie"
        ):
            await app(scope, receive, send)
        else:
            await _answer(send, 403, "Open the address that `ablate browse` printed.")

    return guard


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    kind = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *headers]})
    await send({"type": "http.response.body", "body": text.encode()})
