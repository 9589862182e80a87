"""benchmarks/ledger.py: one file per device, the pages are generated from it, and what moved is printed."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
MODULES = ("ledger", "ledger_pages", "ledger_tables", "evidence", "catalogue_cpu")
FIGURE = re.compile(r"\d (?:ms|µs|s|seconds|MB|GB|times)\b|requests/s")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("ledger")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def pages(ledger: ModuleType) -> ModuleType:
    return __import__("ledger_pages")


def in_this_process(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Run a script without starting a process, which would import torch again."""
    script, *words = command
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / script), *words])
    __import__(Path(script).stem).main()


def test_pages_show_the_figures_of_the_ledger(pages: ModuleType) -> None:
    for page, text in pages.render_pages(ROOT).items():
        assert page.read_text() == text, f"{page.name} differs from the ledger; run python benchmarks/ledger.py pages"


def test_every_table_is_on_one_page(pages: ModuleType) -> None:
    names = [name for page in pages.render_pages(ROOT) for _, name, _ in pages.BLOCK.findall(page.read_text())]
    assert sorted(names) == sorted(pages.TABLES)


def test_the_speed_page_quotes_no_figure_outside_its_tables(pages: ModuleType) -> None:
    prose = pages.BLOCK.sub("", (ROOT / "docs/evidence/speed.md").read_text())
    assert FIGURE.findall(prose) == []


def test_every_section_has_a_script_and_a_commit(ledger: ModuleType) -> None:
    for device, sections in ledger.DEVICES.items():
        stored = ledger.Ledger.read(ROOT / f"results/ledger-{device}.json")
        for name, section in sections.items():
            assert (BENCHMARKS / section.script).exists(), name
        for name in stored.sections:
            assert stored.stamps_of(name), name
            assert all(stamp["commit"] for stamp in stored.stamps_of(name)), name


def test_a_measured_section_replaces_the_earlier_one(
    ledger: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue_cpu = __import__("catalogue_cpu")
    monkeypatch.setattr(catalogue_cpu, "TASKS", {"target": "soft value, forward"})
    monkeypatch.setattr(catalogue_cpu, "peak_memory", lambda *given: 0.5)
    stored = ledger.Ledger(
        {"catalogue-cpu": [{"task": "soft value, forward", "tiled_seconds": 1e-9, "tiled_gb": 0.5}]},
        [{"section": "catalogue-cpu", "command": "old", "commit": "0000000", "hash": None, "options": {}}],
    )
    before = stored.figures()
    arguments = "--rows 4 --items 50 --width 8 --runs 2 --threads 1"
    sections = {"catalogue-cpu": ledger.Section("catalogue_cpu.py", arguments)}
    assert ledger.measure(stored, sections, {}, lambda command: in_this_process(monkeypatch, command)) == []
    stored.write(tmp_path / "ledger.json")
    again = ledger.Ledger.read(tmp_path / "ledger.json")
    (stamp,) = again.stamps_of("catalogue-cpu")
    assert stamp["command"] == f"python benchmarks/catalogue_cpu.py {arguments} --json FILE"
    assert stamp["commit"] != "0000000"
    assert stamp["machine"]["torch"]
    (line,) = ledger.moved(before, again.figures())
    assert "catalogue-cpu, soft value, forward: tiled_seconds: 1e-09" in line


def test_a_section_that_is_not_measured_keeps_its_figures(ledger: ModuleType) -> None:
    def fail(command: list[str]) -> None:
        raise subprocess.CalledProcessError(1, command)

    rows = [{"learner": "sl", "seconds": 0.5}]
    stored = ledger.Ledger({"epochs": rows, "scale": rows}, [])
    sections = {"epochs": ledger.GPU["epochs"], "scale": ledger.GPU["scale"]}
    problems = ledger.measure(stored, sections, {"dataset": None}, fail)
    assert problems[0] == "epochs: not measured; needs --dataset"
    assert problems[1].startswith("scale: not measured; Command")
    assert stored.sections == {"epochs": rows, "scale": rows}


@pytest.mark.parametrize(("figure", "lines"), [(104.0, 0), (96.0, 0), (106.0, 1), (94.0, 1)])
def test_changes_of_more_than_five_percent_are_printed(ledger: ModuleType, figure: float, lines: int) -> None:
    def figures(ms: float) -> Any:
        rows = [{"what": "offrec", "width": 64, "ms": ms, "updates": 3 * ms}, {"what": "plain", "width": 64, "ms": 7.0}]
        return ledger.Ledger({"update": rows}, []).figures()

    found = ledger.moved(figures(100.0), figures(figure))
    assert len(found) == lines
    assert all(f"update, offrec width 64: ms: 100 → {figure:.4g}" in line for line in found)


def test_unmeasured_columns_and_sections_are_shown_as_such(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    row = {"what": "offrec", "width": 64, "ms": 2.0}
    content = {"evidence": [], "sections": {"update": [{**row, "what": "plain", "ms": 9.0}, row]}}
    (tmp_path / "results/ledger-gpu.json").write_text(json.dumps(content))
    block = "<!-- ledger: {0} -->\nold\n<!-- end of ledger: {0} -->\n"
    page = tmp_path / "docs/speed.md"
    page.write_text("before\n" + block.format("update") + block.format("scale") + "after\n")
    assert pages.write_pages(tmp_path) == ["docs/speed.md"]
    text = page.read_text()
    assert "| 64 | offrec | 2.00 | 4.50 | – | – |" in text
    assert "Not measured yet." in text
    assert "old" not in text
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    assert pages.write_pages(tmp_path) == []
