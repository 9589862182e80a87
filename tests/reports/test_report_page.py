"""The HTML page, opened in Chromium."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from chromium import Browser, missing_browser, open_browser
from made_studies import BASELINES, LEARNERS, OWN, made_log, made_study
from offrec.reports.html import html
from offrec.reports.report import build_report

HITS = {name: 0.25 + 0.03 * n for n, name in enumerate((*LEARNERS, *BASELINES))}
FIGURES = 1 + 1 + 2 * 1 + 4 * 2 + 5 + 5 * 2  # overview, earnings, trade-offs, learning and diagnostic curves
EARNED = {name: 0.8 + 0.1 * n for n, name in enumerate((*LEARNERS, *OWN))}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    shop = made_study(folder / "shop", [made_log("shop")], HITS, earned=EARNED)
    logs = [made_log("yoochoose <64>"), made_log("retailrocket")]
    study = made_study(folder / "study", logs, HITS, backbones=("gru", "sasrec"))
    path = folder / "report.html"
    path.write_text(html(build_report([shop.folder, study.folder], reference="paper")))
    return path


def test_figures_are_complete(written: Path) -> None:
    text = written.read_text()
    figures = ["<svg role" + part.split("</svg>")[0] + "</svg>" for part in text.split("<svg role")[1:]]
    assert len(figures) == FIGURES
    for figure in figures:
        element = ElementTree.fromstring(figure)
        assert element.find("{*}title") is not None
        description = element.find("{*}desc")
        assert description is not None
        assert description.text
        assert "nan" not in figure


def test_the_page_loads_nothing_from_outside(written: Path) -> None:
    text = written.read_text()
    assert "http://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert "yoochoose &lt;64&gt;" in text
    assert "yoochoose <64>" not in text


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_page_in_a_browser(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        for width, dark in ((375, True), (820, False), (1440, True)):
            chrome.window(width, 900, dark)
            chrome.open(written.as_uri())
            overflow = chrome.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"the page scrolls horizontally at {width}"
            hidden = chrome.run(
                "return [...document.querySelectorAll('figure svg')].filter(one => {"
                " const box = one.getBoundingClientRect(); return box.width < 200 || box.height < 100; }).length"
            )
            assert hidden == 0, f"a figure is too small at {width}"
            paper = chrome.run("return getComputedStyle(document.body).backgroundColor")
            assert (int(paper.split("(")[1].split(",")[0]) < 60) is dark, f"{paper} at {width}"
        assert chrome.run("return document.querySelectorAll('figure svg').length") == FIGURES
        outside = chrome.run(
            "return [...document.querySelectorAll('figure svg')].flatMap(one => [...one.querySelectorAll('text')]"
            ".filter(text => { const a = text.getBoundingClientRect(), b = one.getBoundingClientRect();"
            " return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1; })"
            ".map(text => text.textContent))"
        )
        assert outside == [], "no label is cut off"
        _check_shadow(chrome)
        _check_sorting(chrome)
        assert chrome.console_messages() == []
        requests = chrome.requests()
        assert requests, "requests are recorded"
        assert [address for address in requests if not address.startswith(("file:", "data:"))] == []


def _check_shadow(chrome: Browser) -> None:
    """A wide table has a shadow at its right edge, and its row labels stay in place while it scrolls."""
    chrome.window(375, 900, False)
    style = chrome.run(
        "const wide = [...document.querySelectorAll('.wide')].find(one => one.scrollWidth > one.clientWidth);"
        "const look = getComputedStyle(wide), cell = getComputedStyle(wide.querySelector('tbody td'));"
        "wide.scrollLeft = 50; const name = wide.querySelector('tbody th[scope=row]');"
        "const moved = name.getBoundingClientRect().left - wide.getBoundingClientRect().left;"
        "return [look.backgroundAttachment, look.backgroundPosition, cell.backgroundColor, moved < 2]"
    )
    assert style == ["local, scroll", "100% 50%, 100% 50%", "rgba(0, 0, 0, 0)", True]


def _check_sorting(chrome: Browser) -> None:
    """A click on a heading sorts the rows of each section, largest first."""
    sections = chrome.run(
        "const table = document.querySelector('section[id] table.sortable');"
        "table.querySelector('thead button').click();"
        "return [...table.tBodies].map(body => [...body.rows].filter(row => row.cells.length > 2)"
        ".map(row => Number(row.cells[1].dataset.sort)))"
    )
    assert all(rows == sorted(rows, reverse=True) for rows in sections)
    assert [len(rows) for rows in sections] == [len(BASELINES), len(LEARNERS)]


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_page_without_scripts(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        chrome.devtools("Emulation.setScriptExecutionDisabled", value=True)
        chrome.window(820, 900, False)
        chrome.open(written.as_uri())
        chrome.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
        chrome.devtools("Emulation.setScriptExecutionDisabled", value=False)
        assert chrome.run("return document.querySelectorAll('thead button').length") == 0
        assert chrome.run("return document.querySelectorAll('tbody td').length") > 500


def test_many_answers_are_grouped_and_folded(tmp_path: Path) -> None:
    """Five backbones with the same answer share one article."""
    hits = {"sl": 0.6, "dc": 0.4}
    five = ["gru", "cfn", "caser", "nextitnet", "sasrec"]
    many = html(build_report([made_study(tmp_path / "many", [made_log()], hits, backbones=five).folder]))
    answers = many.split('<section class="answers">')[1].split("</section>")[0]
    assert answers.count("<article><h3>5 of 5, listed below</h3>") == 1
    assert answers.count("<details><summary>yoochoose, ") == 5
    few = html(build_report([made_study(tmp_path / "few", [made_log()], hits, backbones=five[:2]).folder]))
    assert few.count("<article>") == 2
    assert "<details>" not in few


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_folded_answers_can_be_opened_and_are_printed(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        chrome.open(written.as_uri())
        visible = "return document.querySelector('details table').checkVisibility()"
        assert not chrome.run(visible)
        chrome.run("document.querySelector('summary').click(); return 0")
        assert chrome.run(visible)
        chrome.run("dispatchEvent(new Event('beforeprint')); return 0")
        assert chrome.run("return [...document.querySelectorAll('details')].every((one) => one.open)")
