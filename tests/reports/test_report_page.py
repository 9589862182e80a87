"""The report as a person opens it: in a real Chromium."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from chromium import Browser, missing_browser, open_browser
from made_studies import BASELINES, LEARNERS, OWN, made_log, made_study
from offrec.reports import html as page
from offrec.reports.report import build_report

HITS = {name: 0.25 + 0.03 * n for n, name in enumerate((*LEARNERS, *BASELINES))}
EARNED = {name: 0.8 + 0.1 * n for n, name in enumerate((*LEARNERS, *OWN))}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    shop = made_study(folder / "shop", [made_log("shop")], HITS, earned=EARNED)
    logs = [made_log("yoochoose <64>"), made_log("retailrocket")]
    study = made_study(folder / "study", logs, HITS, backbones=("gru", "sasrec"))
    path = folder / "report.html"
    path.write_text(page.html(build_report([shop.folder, study.folder], reference="paper")))
    return path


def test_pictures_are_whole(written: Path) -> None:
    text = written.read_text()
    pictures = ["<svg role" + part.split("</svg>")[0] + "</svg>" for part in text.split("<svg role")[1:]]
    assert len(pictures) == 1 + 3 * 1 + 4 * 2 + 5 + 5 * 2, "earned, trade-offs, curves, over-estimation and support"
    for picture in pictures:
        found = ElementTree.fromstring(picture)
        assert found.find("{*}title") is not None
        described = found.find("{*}desc")
        assert described is not None
        assert described.text
        assert "nan" not in picture


def test_nothing_from_outside(written: Path) -> None:
    text = written.read_text()
    assert "http://" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert "yoochoose &lt;64&gt;" in text
    assert "yoochoose <64>" not in text


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_in_a_real_browser(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        for width, dark in ((375, True), (820, False), (1440, True)):
            chrome.window(width, 900, dark)
            chrome.open(written.as_uri())
            sideways = chrome.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert sideways <= 0, f"the page itself does not scroll sideways at {width}"
            hidden = chrome.run(
                "return [...document.querySelectorAll('figure svg')].filter(one => {"
                " const box = one.getBoundingClientRect(); return box.width < 200 || box.height < 100; }).length"
            )
            assert hidden == 0, f"every picture is there at {width}"
            paper = chrome.run("return getComputedStyle(document.body).backgroundColor")
            assert (int(paper.split("(")[1].split(",")[0]) < 60) is dark, f"{paper} at {width}"
        assert chrome.run("return document.querySelectorAll('figure svg').length") == 27
        outside = chrome.run(
            "return [...document.querySelectorAll('figure svg')].flatMap(one => [...one.querySelectorAll('text')]"
            ".filter(text => { const a = text.getBoundingClientRect(), b = one.getBoundingClientRect();"
            " return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1; })"
            ".map(text => text.textContent))"
        )
        assert outside == [], "no label is cut off"
        _shaded(chrome)
        _sorts(chrome)
        assert chrome.console_messages() == []
        asked = chrome.requests()
        assert asked, "requests are seen"
        assert [address for address in asked if not address.startswith(("file:", "data:"))] == []


def _shaded(chrome: Browser) -> None:
    """A cover that scrolls with the table lies over a shade that does not, and no cell hides them; names stay."""
    chrome.window(375, 900, False)
    found = chrome.run(
        "const wide = [...document.querySelectorAll('.wide')].find(one => one.scrollWidth > one.clientWidth);"
        "const look = getComputedStyle(wide), cell = getComputedStyle(wide.querySelector('tbody td'));"
        "wide.scrollLeft = 50; const name = wide.querySelector('tbody th[scope=row]');"
        "const moved = name.getBoundingClientRect().left - wide.getBoundingClientRect().left;"
        "return [look.backgroundAttachment, look.backgroundPosition, cell.backgroundColor, moved < 2]"
    )
    assert found == ["local, scroll", "100% 50%, 100% 50%", "rgba(0, 0, 0, 0)", True]


def _sorts(chrome: Browser) -> None:
    """A click on a head sorts rows within their kind, largest first."""
    found = chrome.run(
        "const table = document.querySelector('table.sortable'), button = table.querySelector('thead button');"
        "button.click();"
        "return [...table.tBodies].map(body => [...body.rows].filter(row => row.cells.length > 2)"
        ".map(row => Number(row.cells[1].dataset.sort)))"
    )
    assert all(rows == sorted(rows, reverse=True) for rows in found)
    assert [len(rows) for rows in found] == [5, 11]


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_it_can_be_read_without_scripts(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        chrome.devtools("Emulation.setScriptExecutionDisabled", value=True)
        chrome.window(820, 900, False)
        chrome.open(written.as_uri())
        chrome.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
        chrome.devtools("Emulation.setScriptExecutionDisabled", value=False)
        assert chrome.run("return document.querySelectorAll('thead button').length") == 0
        assert chrome.run("return document.querySelectorAll('tbody td').length") > 500


def test_few_answers_in_full_and_many_folded(tmp_path: Path) -> None:
    """SL is above all, whatever the backbone: said once where there are five."""
    hits = {"sl": 0.6, "dc": 0.4}
    five = ["gru", "cfn", "caser", "nextitnet", "sasrec"]
    many = page.html(build_report([made_study(tmp_path / "many", [made_log()], hits, backbones=five).folder]))
    answers = many.split('<section class="answers">')[1].split("</section>")[0]
    assert answers.count("<article><h3>5 of 5, named below</h3>") == 1
    assert answers.count("<details><summary>Why: yoochoose, ") == 5
    few = page.html(build_report([made_study(tmp_path / "few", [made_log()], hits, backbones=five[:2]).folder]))
    assert few.count("<article>") == 2
    assert "<details>" not in few
    assert "Clearly: p ≤ .05" in few


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_what_is_folded_is_opened_and_printed(written: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        chrome.open(written.as_uri())
        seen = "return document.querySelector('details ul').checkVisibility()"
        assert not chrome.run(seen)
        chrome.run("document.querySelector('summary').click(); return 0")
        assert chrome.run(seen)
        chrome.run("dispatchEvent(new Event('beforeprint')); return 0")
        assert chrome.run("return [...document.querySelectorAll('details')].every((one) => one.open)")
