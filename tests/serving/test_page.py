"""The session explorer in Chromium shows what the API returns, with the mouse and with the keyboard."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import open_client, read_records, wait_until

from chromium import Browser, missing_browser, open_browser
from offrec.serving.decision_log import DecisionLogOptions

pytestmark = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))

LONG = "a-very-long-id-without-a-place-to-break-it-" * 4
ODD = [LONG, 'quo"ted <b>& odd</b>, 100%', "[/sku1]", "bell\x07and\u202eright"]
IDS = [f"sku/{n:02d}" for n in range(36)] + ODD
LARGE = [2**60 + n for n in range(40)]  # JavaScript numbers cannot tell them apart
TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def server(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("served")
    runs = {
        "first": write_run(home / "one", IDS, seed=1),
        "second": write_run(home / "two", IDS, seed=2, algorithm_name="dc", algorithm_alpha=1.0),
        "values": write_run(home / "three", IDS, seed=3, algorithm_name="dqn"),
        LONG[:80]: write_run(home / "four", IDS, seed=4),
    }
    with open_client(runs, log=log, log_options=DecisionLogOptions(flush_seconds=0.01)) as client:
        yield client


@pytest.fixture
def explorer(page: Browser, server: httpx.Client) -> Iterator[Browser]:
    """The page, newly opened. After the test: no errors in the console, and no requests to other servers."""
    page.window(1440, 900, dark=False)
    page.open("about:blank")
    page.console_messages(), page.requests()
    page.open(str(server.base_url))
    wait_for_lists(page)
    yield page
    assert page.console_messages() == []
    urls = page.requests()
    assert urls
    assert [url for url in urls if not url.startswith((str(server.base_url), "about:"))] == []


def wait_for_lists(page: Browser) -> None:
    idle = "return document.querySelector('.column') !== null && document.querySelector('[aria-busy]') === null"
    page.wait_until(lambda: page.run(idle))


def search(page: Browser, text: str) -> None:
    page.run("document.activeElement.blur()")
    page.type("/", text)
    page.wait_until(lambda: page.is_visible("#matches") and any(text in match for match in page.text("#matches li")))


def listed_items(page: Browser, policy: str) -> list[str]:
    return page.attribute(f"[data-policy={policy}] .row", "data-item")


def best(server: httpx.Client, policy: str, history: list[Any], k: int = 10) -> list[dict[str, Any]]:
    response = server.post("/v1/recommend", json={"policy": policy, "history": history, "k": k, "log": False})
    return response.raise_for_status().json()["items"]  # type: ignore[no-any-return]


def printable(item: str) -> str:
    """An id as the page shows it."""
    return item.replace("\x07", "␇").replace("\u202e", "�")


def test_a_session_is_built_with_the_keyboard(explorer: Browser, server: httpx.Client) -> None:
    assert explorer.attribute(".column", "data-policy") == ["first", "second", "values"]
    for policy in ("first", "second", "values"):
        assert listed_items(explorer, policy) == [row["item"] for row in best(server, policy, [])]
    search(explorer, "sku/0")
    explorer.type("Down", "Down", "Up", "Enter")
    wait_for_lists(explorer)
    search(explorer, "sku/17")
    explorer.type("Enter")
    wait_for_lists(explorer)
    session = explorer.text("#session .id")
    assert session[1] == "sku/17"
    explorer.click("#policies input[value=values]")
    assert explorer.attribute(".column", "data-policy") == ["first", "second"]
    for policy in ("first", "second"):
        rows = best(server, policy, session)
        assert listed_items(explorer, policy) == [row["item"] for row in rows]
        percents = [float(text.strip("%<")) for text in explorer.text(f"[data-policy={policy}] .figure")]
        assert percents == pytest.approx([100 * row["probability"] for row in rows], rel=0.06)
    explorer.run("document.activeElement.blur()")
    explorer.type("/", "Backspace")
    wait_for_lists(explorer)
    assert explorer.text("#session .id") == session[:1]
    assert listed_items(explorer, "first") == [row["item"] for row in best(server, "first", session[:1])]


def test_the_page_shows_what_the_last_click_changed(explorer: Browser, server: httpx.Client) -> None:
    clicked = listed_items(explorer, "second")[6]
    explorer.click("[data-policy=second] li:nth-child(7) .row")
    wait_for_lists(explorer)
    assert explorer.text("#session .id") == [printable(clicked)]
    before = [row["item"] for row in best(server, "first", [], len(IDS))]
    now = [row["item"] for row in best(server, "first", [clicked])]
    changes = []
    for index, item in enumerate(now):
        by = before.index(item) - index
        changes.append("–" if by == 0 else f"{'▲' if by > 0 else '▼'} {abs(by)}")
    assert explorer.text("[data-policy=first] .change") == changes
    assert len(set(changes)) > 2
    leavers = [printable(item) for item in before[:10] if item not in now]
    assert explorer.text("[data-policy=first] footer li .id") == leavers[:4]
    assert "clicked before" in explorer.attribute(f'[data-policy=second] [data-item="{clicked}"]', "aria-label")[0]


def test_the_page_compares_the_policy_with_the_logging_policy(explorer: Browser, server: httpx.Client) -> None:
    request = {"policy": "second", "k": 10, "logging_probability": True, "log": False}
    rows = server.post("/v1/recommend", json=request).json()["items"]
    texts = explorer.text("[data-policy=second] .details span:last-child")
    ratios = [row["probability"] / row["logging_probability"] for row in rows]
    assert [float(text.rstrip("×")) for text in texts] == pytest.approx(ratios, rel=0.06, abs=0.051)
    assert explorer.text("[data-policy=first] .details") == []
    widths = "return [...document.querySelectorAll('[data-policy=second] .bar')].map(e => [e.clientWidth, " \
             "e.querySelector('.fill').offsetWidth, e.querySelector('.tick').offsetLeft])"  # fmt: skip
    bars = explorer.run(widths)
    all_rows = [*best(server, "first", []), *rows]
    scale = max(row.get(name) or 0.0 for row in all_rows for name in ("probability", "logging_probability"))
    for (width, fill, tick), row in zip(bars, rows, strict=True):
        assert fill == pytest.approx(max(2, width * row["probability"] / scale), abs=1.5)
        assert tick == pytest.approx(width * row["logging_probability"] / scale, abs=4)


def test_a_sampled_list_has_its_probability(explorer: Browser) -> None:
    explorer.click("input[value=sampled]")
    wait_for_lists(explorer)
    figures = " ".join(explorer.text("[data-policy=first] .details"))
    positions = [float(text) / 100 for text in re.findall(r"position ([\d.]+)%", figures)]
    assert len(positions) == 10
    text = explorer.text("[data-policy=first] .list-probability b")[0]
    digits, power = re.fullmatch(r"(\d\.\d) × 10(\S+)", text).groups()  # type: ignore[union-attr]
    power = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(f"{digits}e{power}") == pytest.approx(math.prod(positions), rel=0.1)
    overlap = "return [...document.querySelectorAll('.row')].some(row => row.scrollWidth > row.clientWidth)"
    assert not explorer.run(overlap)
    assert listed_items(explorer, "values") == [], "scores cannot be sampled"
    assert explorer.text("[data-policy=values] .body") != [""]
    lists = {tuple(listed_items(explorer, "first"))}
    for _ in range(3):
        explorer.click("#sample-again")
        wait_for_lists(explorer)
        lists.add(tuple(listed_items(explorer, "first")))
    assert len(lists) > 1
    explorer.click("input[value=best]")
    wait_for_lists(explorer)
    assert not explorer.is_visible("#sampling")


def test_arrow_keys_move_between_lists_and_clicks(explorer: Browser) -> None:
    explorer.run("document.querySelector('.row').focus()")
    explorer.type("Down", "Down", "Up", "Right")
    focused = "return [document.activeElement.closest('.column').dataset.policy, document.activeElement.dataset.item]"
    assert explorer.run(focused) == ["second", listed_items(explorer, "second")[1]]
    explorer.type("Enter")
    wait_for_lists(explorer)
    explorer.type("Up", "Up", "Enter")
    wait_for_lists(explorer)
    assert len(explorer.text("#session li")) == 2
    explorer.run("document.querySelector('#session button').focus()")
    last = explorer.text("#session .id")[1]
    explorer.type("Delete")
    wait_for_lists(explorer)
    assert explorer.text("#session .id") == [last]
    assert explorer.run("return document.activeElement.textContent").startswith(last)
    explorer.type("Delete")
    assert explorer.run("return document.activeElement.id") == "search"
    assert explorer.is_visible("#session-empty")


def test_choices_survive_a_reload_and_odd_ids_are_harmless(explorer: Browser, server: httpx.Client) -> None:
    for text in (LONG[:20], "<b>", "[/sku", "bell"):
        search(explorer, text)
        explorer.type("Enter")
        wait_for_lists(explorer)
    clicks = explorer.text("#session .id")
    assert clicks == [*ODD[:3], "bell␇and�right"]
    assert listed_items(explorer, "first") == [row["item"] for row in best(server, "first", ODD)]
    explorer.run("const s = document.getElementById('length'); s.value = 20; s.dispatchEvent(new Event('change'))")
    explorer.click("#exclude-seen")
    wait_for_lists(explorer)
    explorer.run("location.reload()")
    wait_for_lists(explorer)
    assert explorer.text("#session .id") == clicks
    assert len(listed_items(explorer, "first")) == 20
    assert not set(ODD) & set(listed_items(explorer, "first"))
    explorer.click("#exclude-seen")
    wait_for_lists(explorer)
    for width in (320, 400, 820, 1280):
        explorer.window(width, 800, dark=True)
        assert explorer.run("return document.documentElement.scrollWidth") <= width
    search(explorer, "sku/3")
    explorer.type("xx")
    explorer.wait_until(lambda: "sku/3xx" in explorer.text("#search-status")[0])
    explorer.type("Escape", "Escape")
    assert explorer.run("return document.getElementById('search').value") == ""


def test_the_explorer_writes_nothing_to_the_decision_log(explorer: Browser, server: httpx.Client, log: Path) -> None:
    explorer.click(".row")
    explorer.click("input[value=sampled]")
    wait_for_lists(explorer)
    server.post("/v1/recommend", json={"request_id": "from a visitor"}).raise_for_status()
    wait_until(lambda: read_records(log)[0])
    assert [record["request_id"] for record in read_records(log)[0]] == ["from a visitor"]


def test_controls_have_names_and_colours_have_contrast(explorer: Browser) -> None:
    explorer.click(".row")
    wait_for_lists(explorer)
    nodes = explorer.devtools("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "checkbox", "combobox", "radio", "link", "textbox", "spinbutton", "article"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(controls) > 30
    assert [node["role"]["value"] for node in controls if not node.get("name", {}).get("value")] == []
    for dark in (False, True):
        explorer.window(1440, 900, dark)
        colours = explorer.run(
            "const read = getComputedStyle(document.documentElement); return Object.fromEntries(['text', 'muted', "
            "'accent', 'rise', 'fall', 'surface', 'background', 'highlight', 'hover', 'notice', 'on-accent'].map(n => "
            "[n, read.getPropertyValue('--' + n).trim()]))"
        )
        backgrounds = ("surface", "background", "highlight", "hover", "notice")
        pairs = [(text, background) for text in ("text", "muted") for background in backgrounds]
        pairs += [(text, background) for text in ("accent", "rise", "fall") for background in backgrounds[:3]]
        for text, background in [*pairs, ("on-accent", "accent")]:
            ratio = contrast(colours[text], colours[background])
            assert ratio >= 4.5, f"{text} on {background}, {'dark' if dark else 'light'}"


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_token_large_integers_and_a_stopped_server(page: Browser, tmp_path: Path) -> None:
    with open_client({"numbers": write_run(tmp_path / "run", LARGE)}, token=TOKEN) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        page.open(str(client.base_url))
        page.wait_until(lambda: page.is_visible("#token-form"))
        page.type("something-else", "Enter")
        page.wait_until(lambda: page.text("#token-error") != [""])
        page.type(TOKEN, "Enter")
        wait_for_lists(page)
        assert not page.is_visible("#token-form")
        assert not page.is_visible("#policies")
        page.click("li:nth-child(3) .row")
        wait_for_lists(page)
        (clicked,) = page.text("#session .id")
        assert int(clicked) in LARGE
        response = client.post("/v1/recommend", json={"history": [int(clicked)]})
        items = [str(row["item"]) for row in response.json()["items"]]
        assert listed_items(page, "numbers") == items
    page.click(".row")
    page.wait_until(lambda: "cannot be reached" in page.text(".error")[0] if page.text(".error") else False)
    page.console_messages()  # about the missing token, the wrong token and the stopped server
