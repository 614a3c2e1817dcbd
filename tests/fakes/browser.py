"""A real Chromium without a window, driven through chromedriver by the WebDriver protocol (https://www.w3.org/TR/webdriver2)."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

NEEDED = ("chromium", "chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server")
_KEYS = {"Tab": "\ue004", "Enter": "\ue007", "ArrowRight": "\ue014", "Escape": "\ue00c"}


class Browser:
    """One window of Chromium."""

    def __init__(self, port: int, width: int, dark: bool) -> None:
        self._port = port
        arguments = [*_ARGUMENTS, f"--window-size={width},900", *(["--force-dark-mode"] if dark else [])]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = self._send("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def visit(self, url: str) -> None:
        self._call("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; return what it returns."""
        return self._call("execute/sync", {"script": script, "args": arguments})

    def text(self, selector: str = "body") -> str:
        """Return what a person reads there; "" where there is no such element."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def count(self, selector: str) -> int:
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def click(self, selector: str) -> None:
        self._call(f"element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._call(f"element/{self._find(selector)}/value", {"text": _KEYS.get(text, text)})

    def wait(self, holds: Callable[[], Any], what: str, within_s: float = 30.0) -> Any:
        """Wait until this returns something true, and return that."""
        deadline = time.monotonic() + within_s
        while not (found := holds()):
            assert time.monotonic() < deadline, (
                f"not within {within_s:g} s: {what}\n{self.text()[:3000]}\n{self.said()}"
            )
            time.sleep(0.05)
        return found

    def wait_for(self, text: str, selector: str = "body", within_s: float = 30.0) -> None:
        self.wait(lambda: text in self.text(selector), f"{text!r} in {selector}", within_s)

    def said(self) -> list[str]:
        """Return what the console said since the last time, such as what the page's policy forbade."""
        return [one["message"] for one in self._call("se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        path.write_bytes(b64decode(self._call("screenshot", None)))

    def end(self) -> None:
        self._send("DELETE", f"/{self._session}")

    def _find(self, selector: str) -> str:
        return self._call("element", {"using": "css selector", "value": selector})[_ELEMENT]

    def _call(self, command: str, body: Any) -> Any:
        return self._send("GET" if body is None else "POST", f"/{self._session}/{command}", body)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.request(method, f"/session{path}", None if body is None else json.dumps(body))
        answer = connection.getresponse()
        value = json.loads(answer.read())["value"]
        connection.close()
        assert answer.status == 200, value
        return value


@contextmanager
def a_browser(width: int = 1200, dark: bool = False) -> Iterator[Browser]:
    """Yield a browser with a profile of its own. The test is skipped where Debian's packages are not installed."""
    for program in NEEDED:
        if not shutil.which(program):
            pytest.skip(f"{program} is not on this machine: scripts/browser installs it")
    port = free_port()
    with subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL) as driver:
        try:
            _wait_for_driver(port)
            browser = Browser(port, width, dark)
            try:
                yield browser
            finally:
                browser.end()
        finally:
            driver.terminate()


def _wait_for_driver(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/status")
            if json.loads(connection.getresponse().read())["value"]["ready"]:
                return
        except OSError:
            assert time.monotonic() < deadline, "chromedriver does not answer"
        finally:
            connection.close()
        time.sleep(0.1)
