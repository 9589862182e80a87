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
MODULES = ("ledger", "ledger_pages", "ledger_tables", "evidence", "catalogue_cpu", "start_up")
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


def test_a_note_is_stored_and_paths_are_replaced(ledger: ModuleType, tmp_path: Path) -> None:
    source, dataset = tmp_path / "old/src", tmp_path / "old/src-data"

    def run(command: list[str]) -> None:
        stamp = {"command": "python " + " ".join(command), "commit": "1", "hash": None, "options": {}}
        Path(command[-1]).write_text(json.dumps({"evidence": [stamp], "rows": []}))

    stored = ledger.Ledger({}, [])
    given = {"dataset": tmp_path / "data", "before": source, "before_dataset": dataset}
    sections = {"updates-cpu": ledger.CPU["updates-cpu"]}
    assert ledger.measure(stored, sections, given, run, note="Other work used the machine.") == []
    (stamp,) = stored.stamps_of("updates-cpu")
    assert stamp["note"] == "Other work used the machine."
    assert stamp["command"] == "python updates_cpu.py DATASET --before BEFORE BEFORE_DATASET --json FILE"
    (problem,) = ledger.measure(stored, sections, given | {"before_dataset": None}, run)
    assert problem == "updates-cpu: not measured; needs --before-dataset"


def test_servers_are_compared_with_version_01_within_rounds(pages: ModuleType) -> None:
    row = {"items": 1_000_000, "connections": 64, "requests": "best", "least_cpu_ms": 1.0, "p50_ms": 2.0}
    more = {"mean_batch": 32.0, "requests_per_second": 10.0}
    rows = [
        {**row, **more, "server": "before", "of_offrec": {"requests_per_second": 0.5}},
        {**row, **more, "server": "offrec"},
        {**row, **more, "server": "network", "requests": "lists", "of_offrec": {"requests_per_second": 1.5}},
    ]
    _, rows_of, columns = pages.TABLES["serving-million"]
    (ratio,) = (cell for title, cell in columns if title == "times version 0.1")
    assert [ratio(one) for one in rows_of({"rows": rows})] == [1.0, 2.0, 3.0]


def test_the_start_of_a_run_is_the_median_of_the_rounds(ledger: ModuleType) -> None:
    start_up = __import__("start_up")
    rounds = [{"imported": (wall, cpu)} for wall, cpu in ((3.0, 1.0), (1.0, 0.9), (2.0, 1.1))]
    (row,) = start_up.summary(rounds)
    assert row == {"step": "imported", "seconds": 2.0, "least_seconds": 1.0, "cpu_seconds": 0.9}


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
