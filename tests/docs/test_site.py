"""The documentation site builds without warnings, works offline and is complete."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chromium import missing_browser, open_browser
from offrec.cli import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(out / ".doctrees")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*build, str(DOCS), str(out / "html")], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    outside = re.compile(r"<(?:script|link|img|iframe|source)[^>]+(?:src|href)=\"(?:https?:)?//")
    for page in site.rglob("*.html"):
        assert not outside.search(page.read_text()), page.relative_to(site)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet.relative_to(site)


def test_math_is_rendered_at_build_time(site: Path) -> None:
    page = (site / "explanation/equations.html").read_text()
    assert page.count("<math ") > 40
    assert not re.search(r"<script[^>]*mathjax", page, re.IGNORECASE)
    for path in site.rglob("*.html"):  # what the converter does not know stays as LaTeX
        assert not re.search(r"<m[io]>(\\|&(?!#x?\w+;))", path.read_text()), path.relative_to(site)


def test_search_index_knows_pages_and_objects(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    tree = json.loads(index[index.index("{") : index.rindex("}") + 1])
    assert {"index", "glossary", "reference/options"} <= set(tree["docnames"])
    assert "ground" in tree["terms"]
    assert any("offrec" in name for name in tree["objects"])


def test_reference_lists_every_command(site: Path) -> None:
    page = (site / "reference/commands.html").read_text()
    assert [name for name in commands() if f"offrec {name}<" not in page] == []


def test_every_page_has_a_title() -> None:
    for page in DOCS.glob("*/**/*.md"):
        text = page.read_text()
        assert text.startswith("# "), page


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_search_and_phone_width_in_a_browser(site: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as chrome:
        chrome.open(f"file://{site}/search.html?q=grounding")
        chrome.wait_until(
            lambda: any("glossary" in (link or "") for link in chrome.attribute("#search-results a", "href"))
        )
        chrome.window(400, 800, dark=False)
        for page in ("index", "explanation/equations", "evidence/public-logs", "reference/options", "how-to/retrain"):
            chrome.open(f"file://{site}/{page}.html")
            assert chrome.run("return document.documentElement.scrollWidth - window.innerWidth") <= 0, page
        assert [address for address in chrome.requests() if address.startswith("http")] == []
