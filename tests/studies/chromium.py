"""A real browser, driven by what comes with it: chromedriver speaks JSON over HTTP."""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def missing() -> str:
    """What is not installed; nothing, if all is."""
    found = shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome"))
    return "" if found else "no Chromium here: apt-get install -y chromium chromium-driver"


class Browser:
    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(self, width: int, height: int, dark: bool) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        self.ask("/url", {"url": url})

    def script(self, text: str) -> Any:
        return self.ask("/execute/sync", {"script": text, "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/se/log", {"type": kind})
        return found

    def picture(self) -> bytes:
        """Of the whole page."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(found["data"])


@contextmanager
def browser() -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield _session(f"http://127.0.0.1:{port}", profile)
        finally:
            driver.terminate()
            driver.wait()


def _session(address: str, profile: str) -> Browser:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    logs = {"browser": "ALL", "performance": "ALL"}
    wanted = {"browserName": "chrome", "goog:chromeOptions": {"binary": program, "args": flags}}
    capabilities = {"capabilities": {"alwaysMatch": {**wanted, "goog:loggingPrefs": logs}}}
    start = Browser(address)
    for _ in range(100):
        try:
            found = start.ask("/session", capabilities)
            return Browser(f"{address}/session/{found['sessionId']}")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("chromedriver did not answer")
