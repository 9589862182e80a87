"""The session explorer in Chromium: what a person sees is what the API says, by mouse and by keyboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import open_client, read_records, wait_until

from chromium import Browser, browser, missing
from offrec.serving.decision_log import DecisionLogOptions

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LONG = "a-very-long-id-without-a-place-to-break-it-" * 4
WORDS = [f"sku/{n:02d}" for n in range(38)] + [LONG, 'quo"ted <b>& odd</b>, 100%']
LARGE = [2**60 + n for n in range(40)]  # no two of which a browser's numbers could tell apart
TOKEN = "a-token-for-this-test"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def server(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("served")
    runs = {
        "first": write_run(home / "one", WORDS, seed=1),
        "second": write_run(home / "two", WORDS, seed=2, algorithm_name="dc", algorithm_alpha=1.0),
        "values": write_run(home / "three", WORDS, seed=3, algorithm_name="dqn"),
        LONG[:80]: write_run(home / "four", WORDS, seed=4),
    }
    with open_client(runs, log=log, log_options=DecisionLogOptions(flush_seconds=0.01)) as client:
        yield client


@pytest.fixture
def explorer(page: Browser, server: httpx.Client) -> Iterator[Browser]:
    """The page, just opened; whatever was done there, nothing was complained of and nobody else was asked."""
    page.window(1440, 900, dark=False)
    page.open("about:blank")
    page.complaints(), page.requests()
    page.open(str(server.base_url))
    settled(page)
    yield page
    assert page.complaints() == []
    asked = page.requests()
    assert asked
    assert [url for url in asked if not url.startswith((str(server.base_url), "about:"))] == []


def settled(page: Browser) -> None:
    idle = "return document.querySelector('.column') !== null && document.querySelector('[aria-busy]') === null"
    page.until(lambda: page.run(idle))


def search(page: Browser, text: str) -> None:
    page.run("document.activeElement.blur()")
    page.type("/", text)
    page.until(lambda: page.shown("#found") and any(text in one for one in page.text("#found li")))


def shown(page: Browser, policy: str) -> list[str]:
    return page.attribute(f"[data-policy={policy}] .row", "data-item")


def best(server: httpx.Client, policy: str, history: list[Any], k: int = 10) -> list[dict[str, Any]]:
    answer = server.post("/v1/recommend", json={"policy": policy, "history": history, "k": k, "log": False})
    return answer.raise_for_status().json()["items"]  # type: ignore[no-any-return]


def test_a_session_by_keyboard_and_two_policies_beside_each_other(explorer: Browser, server: httpx.Client) -> None:
    assert explorer.attribute(".column", "data-policy") == ["first", "second", "values"]
    for policy in ("first", "second", "values"):
        assert shown(explorer, policy) == [row["item"] for row in best(server, policy, [])]
    search(explorer, "sku/0")
    explorer.type("Down", "Down", "Up", "Enter")
    settled(explorer)
    search(explorer, "sku/17")
    explorer.type("Enter")
    settled(explorer)
    session = explorer.text("#session .id")
    assert session[1] == "sku/17"
    explorer.click("#policies input[value=values]")
    assert explorer.attribute(".column", "data-policy") == ["first", "second"]
    for policy in ("first", "second"):
        rows = best(server, policy, session)
        assert shown(explorer, policy) == [row["item"] for row in rows]
        percents = [float(text.strip("%<")) for text in explorer.text(f"[data-policy={policy}] .share")]
        assert percents == pytest.approx([100 * row["probability"] for row in rows], rel=0.06)
    explorer.run("document.activeElement.blur()")
    explorer.type("/", "Backspace")
    settled(explorer)
    assert explorer.text("#session .id") == session[:1]
    assert shown(explorer, "first") == [row["item"] for row in best(server, "first", session[:1])]


def test_what_the_last_click_changed(explorer: Browser, server: httpx.Client) -> None:
    explorer.click("[data-policy=second] li:nth-child(7) .row")
    settled(explorer)
    (clicked,) = explorer.text("#session .id")
    before = [row["item"] for row in best(server, "first", [], len(WORDS))]
    now = [row["item"] for row in best(server, "first", [clicked])]
    wanted = []
    for place, item in enumerate(now):
        by = before.index(item) - place
        wanted.append("–" if by == 0 else f"{'▲' if by > 0 else '▼'} {abs(by)}")
    assert explorer.text("[data-policy=first] .move") == wanted
    assert len(set(wanted)) > 2
    left = [item for item in before[:10] if item not in now]
    assert explorer.text("[data-policy=first] footer li .id") == left[:4]
    assert "clicked before" in explorer.attribute(f'[data-policy=second] [data-item="{clicked}"]', "aria-label")[0]


def test_the_policy_against_the_logging_policy(explorer: Browser, server: httpx.Client) -> None:
    asked = {"policy": "second", "k": 10, "logging_probability": True, "log": False}
    rows = server.post("/v1/recommend", json=asked).json()["items"]
    found = explorer.text("[data-policy=second] .log span:last-child")
    ratios = [row["probability"] / row["logging_probability"] for row in rows]
    assert [float(text.rstrip("×")) for text in found] == pytest.approx(ratios, rel=0.06, abs=0.051)
    assert explorer.text("[data-policy=first] .log") == []
    widths = "return [...document.querySelectorAll('[data-policy=second] .bar')].map(e => [e.clientWidth, " \
             "e.querySelector('.fill').offsetWidth, e.querySelector('.tick').offsetLeft])"  # fmt: skip
    bars = explorer.run(widths)
    every = [*best(server, "first", []), *rows]
    scale = max(row.get(name) or 0.0 for row in every for name in ("probability", "logging_probability"))
    for (whole, fill, tick), row in zip(bars, rows, strict=True):
        assert fill == pytest.approx(max(2, whole * row["probability"] / scale), abs=1.5)
        assert tick == pytest.approx(whole * row["logging_probability"] / scale, abs=4)


def test_a_drawn_list_and_its_probability(explorer: Browser) -> None:
    explorer.click("input[value=drawn]")
    settled(explorer)
    figures = " ".join(explorer.text("[data-policy=first] .log"))
    places = [float(text) / 100 for text in re.findall(r"this place ([\d.]+)%", figures)]
    assert len(places) == 10
    told = explorer.text("[data-policy=first] .drawn b")[0]
    digits, power = re.fullmatch(r"(\d\.\d) × 10(\S+)", told).groups()  # type: ignore[union-attr]
    power = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    product = 1.0
    for place in places:
        product *= place
    assert float(f"{digits}e{power}") == pytest.approx(product, rel=0.1)
    assert "no list can be drawn" in explorer.text("[data-policy=values] .body")[0]
    lists = {tuple(shown(explorer, "first"))}
    for _ in range(3):
        explorer.click("#again")
        settled(explorer)
        lists.add(tuple(shown(explorer, "first")))
    assert len(lists) > 1
    explorer.click("input[value=best]")
    settled(explorer)
    assert not explorer.shown("#drawing")


def test_keys_move_among_lists_and_clicks(explorer: Browser) -> None:
    explorer.run("document.querySelector('.row').focus()")
    explorer.type("Down", "Down", "Up", "Right")
    at = "return [document.activeElement.closest('.column').dataset.policy, document.activeElement.dataset.item]"
    assert explorer.run(at) == ["second", shown(explorer, "second")[1]]
    explorer.type("Enter")
    settled(explorer)
    explorer.type("Up", "Up", "Enter")
    settled(explorer)
    assert len(explorer.text("#session li")) == 2
    explorer.run("document.querySelector('#session button').focus()")
    last = explorer.text("#session .id")[1]
    explorer.type("Delete")
    settled(explorer)
    assert explorer.text("#session .id") == [last]
    assert explorer.run("return document.activeElement.textContent").startswith(last)
    explorer.type("Delete")
    assert explorer.run("return document.activeElement.id") == "search"
    assert explorer.shown("#session-empty")


def test_choices_last_and_odd_ids_do_no_harm(explorer: Browser, server: httpx.Client) -> None:
    for word in (LONG[:20], "<b>"):
        search(explorer, word)
        explorer.type("Enter")
        settled(explorer)
    assert explorer.text("#session .id") == WORDS[-2:]
    explorer.run("const s = document.getElementById('length'); s.value = 20; s.dispatchEvent(new Event('change'))")
    explorer.click("#unseen")
    settled(explorer)
    explorer.run("location.reload()")
    settled(explorer)
    assert explorer.text("#session .id") == WORDS[-2:]
    assert len(shown(explorer, "first")) == 20
    assert not set(WORDS[-2:]) & set(shown(explorer, "first"))
    explorer.click("#unseen")
    settled(explorer)
    for width in (320, 375, 820, 1440):
        explorer.window(width, 800, dark=True)
        assert explorer.run("return document.documentElement.scrollWidth") <= width
    search(explorer, "sku/3")
    explorer.type("xx")
    explorer.until(lambda: "No item has “sku/3xx” in its id." in explorer.text("#search-said"))
    explorer.type("Escape", "Escape")
    assert explorer.run("return document.getElementById('search').value") == ""


def test_what_people_look_at_stays_out_of_the_decision_log(explorer: Browser, server: httpx.Client, log: Path) -> None:
    explorer.click(".row")
    explorer.click("input[value=drawn]")
    settled(explorer)
    server.post("/v1/recommend", json={"request_id": "a visitor's"}).raise_for_status()
    wait_until(lambda: read_records(log)[0])
    assert [record["request_id"] for record in read_records(log)[0]] == ["a visitor's"]


def test_everything_has_a_name_and_can_be_read(explorer: Browser) -> None:
    explorer.click(".row")
    settled(explorer)
    nodes = explorer.tool("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "checkbox", "combobox", "radio", "link", "textbox", "spinbutton", "article"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in wanted]
    assert len(controls) > 30
    assert [node["role"]["value"] for node in controls if not node.get("name", {}).get("value")] == []
    for dark in (False, True):
        explorer.window(1440, 900, dark)
        colours = explorer.run(
            "const read = getComputedStyle(document.documentElement); return Object.fromEntries(['ink', 'soft', "
            "'accent', 'up', 'down', 'sheet', 'paper', 'same', 'press', 'warn', 'on-accent'].map(n => "
            "[n, read.getPropertyValue('--' + n).trim()]))"
        )
        pairs = [(ink, on) for ink in ("ink", "soft") for on in ("sheet", "paper", "same", "press", "warn")]
        pairs += [(ink, on) for ink in ("accent", "up", "down") for on in ("sheet", "paper", "same")]
        for ink, on in [*pairs, ("on-accent", "accent")]:
            assert contrast(colours[ink], colours[on]) >= 4.5, f"{ink} on {on}, {'dark' if dark else 'light'}"


def contrast(one: str, other: str) -> float:
    """WCAG 2's."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_token_long_numbers_and_a_server_that_is_gone(page: Browser, tmp_path: Path) -> None:
    with open_client({"numbers": write_run(tmp_path / "run", LARGE)}, TOKEN) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        page.open(str(client.base_url))
        page.until(lambda: page.shown("#token-form"))
        page.type("something-else", "Enter")
        page.until(lambda: "does not take this token" in page.text("#token-said")[0])
        page.type(TOKEN, "Enter")
        settled(page)
        assert not page.shown("#token-form")
        assert not page.shown("#policies")
        page.click("li:nth-child(3) .row")
        settled(page)
        (clicked,) = page.text("#session .id")
        assert int(clicked) in LARGE
        asked = client.post("/v1/recommend", json={"history": [int(clicked)]})
        items = [str(row["item"]) for row in json.loads(asked.text)["items"]]
        assert shown(page, "numbers") == items
    page.click(".row")
    page.until(lambda: page.text(".failed") == ["The server cannot be reached."])
    page.complaints()  # of the token that was missing, then wrong, and of the server that was gone
