"""Drive Chromium through chromedriver with plain HTTP requests; no Python package is needed."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id in the WebDriver protocol
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Up": "\ue013", "Left": "\ue012", "Right": "\ue014",
        "Delete": "\ue017", "Backspace": "\ue003", "Tab": "\ue004"}  # fmt: skip
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def missing_browser() -> str | None:
    """Return what must be installed, or None if Chromium and chromedriver are available."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"needs {name}: apt-get install chromium chromium-driver"
    return None


class Browser:
    """A browser window."""

    def __init__(self, address: str, session: str) -> None:
        self.address = f"{address}/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript and return its result."""
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> list[str]:
        """Return the text of every element that matches a CSS selector."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector)  # type: ignore[no-any-return]

    def attribute(self, selector: str, name: str) -> list[str]:
        """Return an attribute of every element that matches a CSS selector."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute(arguments[1]))"
        return self.run(script, selector, name)  # type: ignore[no-any-return]

    def is_visible(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def click(self, selector: str) -> None:
        element = self._post("element", {"using": "css selector", "value": selector})
        self._post(f"element/{element[ELEMENT]}/click", {})

    def type(self, *keys: str) -> None:
        """Send text, or keys named in KEYS, to the focused element."""
        pressed = [letter for key in keys for letter in ([KEYS[key]] if key in KEYS else key)]
        actions = [{"type": kind, "value": letter} for letter in pressed for kind in ("keyDown", "keyUp")]
        self._post("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait_until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                text = self.run("return document.body.innerText")
                raise AssertionError(f"the condition was not met within {seconds} s; the page shows:\n{text[:2000]}")
            time.sleep(0.03)

    def window(self, width: int, height: int, dark: bool) -> None:
        """Set the size of the window and the colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, whole_page: bool = True) -> None:
        data = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)["data"]
        path.write_bytes(base64.b64decode(data))

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the Chrome DevTools protocol."""
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def console_messages(self) -> list[str]:
        """Return the messages in the console since the last call."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the URLs requested since the last call."""
        entries = (json.loads(entry["message"])["message"] for entry in self._post("se/log", {"type": "performance"}))
        return [
            entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"
        ]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _send(f"{self.address}/{path}", body)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Open a headless browser.

    Args:
        folder: An empty folder for the browser's profile.

    Yields:
        The browser.
    """
    with (folder / "chromedriver.log").open("w") as log:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if "successfully on port" in line)
        address = f"http://127.0.0.1:{ready.strip().rstrip('.').rpartition(' ')[2]}"
        capabilities = {"alwaysMatch": _capabilities(folder / "profile")}
        session = _send(f"{address}/session", {"capabilities": capabilities})["sessionId"]
        try:
            browser = Browser(address, session)
            browser.open("about:blank")
            browser.requests()  # discards those of the new tab
            yield browser
        finally:
            _send(f"{address}/session/{session}", None, "DELETE")  # ends Chromium too
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


def _capabilities(profile: Path) -> dict[str, Any]:
    return {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }


def _send(url: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()[:500]}") from error
