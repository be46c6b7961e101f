"""Who may read what this machine serves: its own browser, with the printed address.

A page of another site can make a browser ask 127.0.0.1, under a name that resolves to it (DNS
rebinding) or without reading the answer. So requests under other names are refused, and so are
those without the token, which is in the printed address and then in a cookie. The port may be any:
`ssh -L` brings its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Refusal:
    """What a request gets instead of the page.

    Attributes:
        status: The HTTP status.
        text: For the reader.
        headers: Names in lower case, and values.
    """

    status: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()


def refusal(
    command: str, token: str, path: str, query: str, hosts: Sequence[str], cookies: Sequence[str]
) -> Refusal | None:
    """Return what a request gets instead of the page; None for one that may read it.

    Args:
        command: The command that serves, such as "ablate board".
        token: Secret text that a request must bring: once as the parameter `token`, then as a
            cookie.
        path: The path that is asked for, decoded.
        query: What follows its question mark.
        hosts: All `Host` headers.
        cookies: All `Cookie` headers.
    """
    host, _, port = hosts[0].partition(":") if len(hosts) == 1 else ("", "", "")
    if host.lower() not in HOSTS:
        return Refusal(403, f"This address is not one of `{command}`.")
    cookie = f"ablate_{port}"  # cookies themselves do not distinguish ports
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(name == "token" and _same(value, token) for name, value in pairs):
        left = urlencode([pair for pair in pairs if pair[0] != "token"])
        address = "/" + quote(path.lstrip("/"))  # // would begin another host's address
        secret = f"{cookie}={token}; Path=/; HttpOnly; SameSite=Strict"
        where = f"{address}{f'?{left}' if left else ''}"
        return Refusal(303, "", (("location", where), ("set-cookie", secret)))
    if any(_same(_value(text, cookie), token) for text in cookies):
        return None
    return Refusal(403, f"Open the address that `{command}` printed.")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _value(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
