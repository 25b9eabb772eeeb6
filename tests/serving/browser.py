"""A headless Chromium, driven over two pipes by the DevTools protocol: messages are JSON that ends with a NUL."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. ``js`` evaluates an expression in it."""

    def __init__(self, profile: Path, url: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
        command = [str(PROGRAM), *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # It reads from descriptor 3 and writes to 4; bash, and not every sh, can move ones of two digits there.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._numbers, self._session = b"", itertools.count(1), ""
        target = self._ask("Target.createTarget", url=url)["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                part = os.read(self._in, 65536)
                assert part, "the browser has ended"
                self._rest += part
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.js(expression):
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds:g} s: {expression}; the page: {self.js('document.body.innerText')}")

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
