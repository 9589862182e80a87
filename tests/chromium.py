"""A Chromium to look at pages with, driven through chromedriver by plain HTTP: no package is needed for it."""

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

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Up": "\ue013", "Left": "\ue012", "Right": "\ue014",
        "Delete": "\ue017", "Backspace": "\ue003", "Tab": "\ue004"}  # fmt: skip
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def missing() -> str | None:
    """Why there is no browser here, if there is none."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"needs {name}: apt-get install chromium chromium-driver"
    return None


class Browser:
    def __init__(self, address: str, session: str) -> None:
        self.address = f"{address}/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._post("execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> list[str]:
        """What is read at every element of a selector."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())", selector)  # type: ignore[no-any-return]

    def attribute(self, selector: str, name: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute(arguments[1]))"
        return self.run(script, selector, name)  # type: ignore[no-any-return]

    def shown(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def click(self, selector: str) -> None:
        found = self._post("element", {"using": "css selector", "value": selector})
        self._post(f"element/{found[ELEMENT]}/click", {})

    def type(self, *keys: str) -> None:
        """To whatever has the focus: text, or the names of KEYS."""
        pressed = [letter for key in keys for letter in ([KEYS[key]] if key in KEYS else key)]
        actions = [{"type": kind, "value": letter} for letter in pressed for kind in ("keyDown", "keyUp")]
        self._post("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def until(self, met: Callable[[], Any], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not met():
            if time.monotonic() > end:
                said = self.run("return document.body.innerText")
                raise AssertionError(f"waited {seconds} s in vain; the page says:\n{said[:2000]}")
            time.sleep(0.03)

    def window(self, width: int, height: int, dark: bool) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tool("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tool("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, whole: bool = True) -> None:
        data = self.tool("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def tool(self, command: str, **parameters: Any) -> Any:
        """A command of the browser's own protocol."""
        return self._post("goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """What the console has said since this was last asked."""
        return [entry["message"] for entry in self._post("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The addresses asked for since this was last asked."""
        entries = (json.loads(entry["message"])["message"] for entry in self._post("se/log", {"type": "performance"}))
        return [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _ask(f"{self.address}/{path}", body)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """`folder`: an empty one for its profile."""
    with (folder / "chromedriver.log").open("w") as log:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if "successfully on port" in line)
        address = f"http://127.0.0.1:{ready.strip().rstrip('.').rpartition(' ')[2]}"
        session = _ask(f"{address}/session", {"capabilities": {"alwaysMatch": _wanted(folder / "profile")}})[
            "sessionId"
        ]
        try:
            opened = Browser(address, session)
            opened.open("about:blank")
            opened.requests()  # the new tab's own
            yield opened
        finally:
            _ask(f"{address}/session/{session}", None, "DELETE")  # ends Chromium: the driver's end alone would not
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def _wanted(profile: Path) -> dict[str, Any]:
    return {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }


def _ask(url: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()[:500]}") from error
