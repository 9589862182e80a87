"""The page about reliability names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/reliability.md"


def test_tests_that_the_page_names_exist() -> None:
    names = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(names) >= 20
    for file, test in names:
        path = ROOT / file if "/" in file else ROOT / "tests/serving" / file
        assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), f"{file}::{test} does not exist"


def test_every_promise_and_every_limit_of_an_attacker_names_a_test() -> None:
    lines = PAGE.read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for number, line in enumerate(lines) if line.startswith("| ") and number not in heads]
    assert len(rows) >= 60
    assert [row for row in rows if "::test_" not in row] == []
