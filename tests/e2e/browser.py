# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A headless Chromium for the pages of a dump, driven by the DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = (
    "runtime/dump's pages need Chromium: apt-get install chromium, as .ci/run does"
)

# The Windows virtual key code of a key, and the text that it types.
KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


class Browser:
    """A Chromium process with an empty profile; use it in a with statement."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-background-networking", "--no-first-run"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-port=0"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*command, "about:blank"],
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        where = profile / "DevToolsActivePort"  # written once the port is open
        deadline = time.monotonic() + 60
        while not where.exists() or len(where.read_text().split()) < 2:
            assert self.process.poll() is None, "Chromium ended"
            assert time.monotonic() < deadline, "Chromium opened no port in 60 s"
            time.sleep(0.05)
        port, path = where.read_text().split()
        self.open_socket = ExitStack()
        address = f"ws://127.0.0.1:{port}{path}"
        self.socket = self.open_socket.enter_context(connect(address, max_size=None))
        self.number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.open_socket.close()
        os.killpg(self.process.pid, signal.SIGKILL)  # its children too
        self.process.wait()

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Calls a method of the protocol; stores the events that arrive meanwhile."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while (answer := self.receive()).get("id") != self.number:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def receive(self) -> dict[str, Any]:
        message = json.loads(self.socket.recv(timeout=60))
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> Page:
        """Opens a page in a new tab and waits until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, attached["sessionId"], path)


class Page:
    """One tab of 1600 x 900 pixels, and its events."""

    def __init__(self, browser: Browser, session: str, path: Path) -> None:
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=1600,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.happened("Page.loadEventFired"):
            browser.receive()

    def call(self, method: str, **params: Any) -> Any:
        return self.browser.call(method, self.session, **params)

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of all events so far with one of these methods."""
        events = (e for e in self.browser.events if e.get("sessionId") == self.session)
        return [e["params"] for e in events if e["method"] in methods]

    def eval(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in result, (expression, result)
        return result["result"].get("value")

    def press(self, *keys: str) -> None:
        """Presses keys one after the other: names as in KEYS, or characters."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key[0].upper()), key))
            what = {"key": key, "windowsVirtualKeyCode": code}
            kind = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=kind, text=text, **what)
            self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def click(self, element: str, at: float = 0.5) -> None:
        """Clicks on the element of a JavaScript expression; at: 0 left end, 1 right."""
        self.eval(f"({element}).scrollIntoView({{block: 'nearest'}})")
        x, y = self.eval(
            f"(() => {{ const r = ({element}).getBoundingClientRect();"
            f" return [r.x + 1 + (r.width - 2) * {at}, r.y + r.height / 2] }})()"
        )
        what = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **what)

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def requests(self) -> list[str]:
        """The URLs that the page has requested, without its own and data: URLs."""
        all_of_them = self.happened("Network.requestWillBeSent")
        urls = [params["request"]["url"] for params in all_of_them]
        return [url for url in urls[1:] if not url.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Errors and warnings of the console, and exceptions."""
        consoles = self.happened("Runtime.consoleAPICalled")
        logged = [p for p in consoles if p["type"] in ("error", "warning", "assert")]
        return logged + self.happened("Runtime.exceptionThrown", "Log.entryAdded")
