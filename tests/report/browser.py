"""A real browser for tests: chromium without a window, spoken to over two pipes (DevTools protocol, no library)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
    "--disable-background-networking --remote-debugging-pipe"
).split()
PATIENCE = 60.0


class Browser:
    """One tab; `complaints` are console errors, warnings of the security policy and uncaught exceptions."""

    def __init__(self, width: int = 1400, height: int = 1000) -> None:
        assert PROGRAM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (to_child, self._out), (self._in, from_child) = os.pipe(), os.pipe()
        command = [
            PROGRAM,
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_child} 4>&{from_child}', "bash", *command],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._numbers, self._heard, self._session = itertools.count(1), b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer; what is heard meanwhile is searched for complaints."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]
            self._listen(heard)

    def open(self, address: str) -> None:
        """Go there, and wait until the document is whole."""
        told = self.call("Page.navigate", url=address)
        assert "errorText" not in told, told
        self.wait_for("document.documentElement && document.readyState === 'complete'")

    def look(self, width: int, *, height: int = 1000, dark: bool = False) -> None:
        """The size of the window, and light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of some JavaScript in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, expression: str, *, patience: float = PATIENCE) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if found := self.evaluate(expression):
                return found
            time.sleep(0.1)
        raise AssertionError(f"never true: {expression}; {self.complaints}")

    def photograph(self, path: Path, *, whole: bool = False) -> None:
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            content = os.read(self._in, 1 << 20)
            assert content, "the browser has gone"
            self._heard += content
        message, _, self._heard = self._heard.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _listen(self, heard: dict[str, Any]) -> None:
        method, told = heard.get("method"), heard.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}"[:500])
