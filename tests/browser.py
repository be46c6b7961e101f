"""Chromium for tests, driven through its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 60.0  # seconds for one answer of a browser on a busy machine
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
    "--proxy-server=127.0.0.1:9",  # a page that asks the network for something gets an error
)
# the browser reads its file 3 and writes its file 4; either number may be one of the pipes here
_AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " ")}


class Browser:
    """A running browser; `page` opens a tab."""

    def __init__(self, profile: Path):
        assert PROGRAM
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        ends = (str(to_browser), str(from_browser))
        command = [sys.executable, "-c", _AS_3_AND_4, *ends, PROGRAM, *_OPTIONS]
        command.append(f"--user-data-dir={profile}")
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._received = b""
        self._idle: list[str] = []  # tabs whose processes have compiled earlier scripts
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._out)  # a browser without its driver ends
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Return the result of one method of the protocol; keep the events before it."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._received:
            left = until - time.monotonic()
            assert left > 0 and select.select([self._in], [], [], left)[0], "no answer in time"
            found = os.read(self._in, 1 << 20)
            assert found, "the browser has ended"
            self._received += found
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    @contextmanager
    def page(
        self,
        file: Path | str,
        *,
        width: int = 1280,
        dark: bool = False,
        script: bool = True,
        fragment: str = "",
    ) -> Iterator[Page]:
        """Open a file, or an address, in a tab; what is set for it ends with its session."""
        if self._idle:
            target = self._idle.pop()
        else:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        page.size(width)
        page.media(prefers_color_scheme="dark" if dark else "light")
        page.open((file if isinstance(file, str) else file.as_uri()) + fragment)
        try:
            yield page
        finally:
            page.call("Page.navigate", url="about:blank")
            self.call("Target.detachFromTarget", sessionId=session)
            self.events = [event for event in self.events if event.get("sessionId") != session]
            self._idle.append(target)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str):
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def size(self, width: int, height: int = 1500) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, kind: str = "", **features: str) -> None:
        """Emulate "print", or features such as prefers_color_scheme="dark"."""
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", media=kind, features=named)

    def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        until = time.monotonic() + PATIENCE
        while not any(
            event.get("method") == "Page.loadEventFired" and event.get("sessionId") == self._session
            for event in self._browser.events
        ):
            assert time.monotonic() < until
            self._browser.events.append(self._browser._next())

    def value(self, expression: str) -> Any:
        """Return the value of an expression, or what a promise gives."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """Return what this tab has complained of so far: exceptions, errors and warnings."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(params["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(json.dumps(params["entry"]))
        return found

    def faults(self) -> list[str]:
        """Return what axe-core finds: breaches of WCAG 2, levels A and AA, and of good practice."""
        source = resources.files("axe_core_python") / "axe.min.js"
        self.value(f"{source.read_text(encoding='utf-8')}; 0")
        rules = json.dumps(["wcag2a", "wcag2aa", "best-practice"])
        found: list[str] = self.value(
            f"axe.run(document, {{runOnly: {rules}}}).then((found) => found.violations.map((one) =>"
            " `${one.id}: ${one.nodes[0].html.slice(0, 200)}`))"
        )
        return found

    def requests(self) -> list[str]:
        """Return the addresses that this tab has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        ]

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element, wait until it rests and return where its middle is."""
        x, y = self.value(
            f"(async () => {{ const one = document.querySelector({json.dumps(selector)});"
            " const place = () => one.getBoundingClientRect();"
            " for (let rests = 0, before; rests < 3; before = place().y) {"
            " one.scrollIntoView({block: 'center', behavior: 'instant'});"
            " await new Promise(requestAnimationFrame);"
            " rests = place().y === before ? rests + 1 : 0; }"
            " const box = place();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def click(self, selector: str) -> None:
        self.click_at(*self.middle(selector))

    def click_at(self, x: float, y: float, *, shift: bool = False) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, modifiers=8 if shift else 0)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        button = {} if kind == "mouseWheel" else {"button": "left", "clickCount": 1}
        if kind == "mouseMoved":
            button = {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **more)

    def press(self, key: str) -> None:
        """Press a key, as Enter, Escape, Tab or a letter."""
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        more = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def type(self, selector: str, text: str) -> None:
        """Replace what stands in a field."""
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        if text:
            self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose the option of a list, or set a slider, as a reader does."""
        self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            f" one.value = {json.dumps(value)};"
            " one.dispatchEvent(new Event('input', {bubbles: true}));"
            " one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
