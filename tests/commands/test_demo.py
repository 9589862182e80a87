"""The demo, on fewer visitors than a person gets."""

from pathlib import Path

import pytest

from offrec import demo
from offrec.console import Console
from offrec.errors import InputError


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LOG_SESSIONS", 600)
    monkeypatch.setattr(demo, "VISITORS", 150)
    assert "diagnostics=some" in demo.SETTINGS, "or π̂_b would be fitted, and the demo take longer"
    monkeypatch.setattr(demo, "SETTINGS", ("network.width=8", "training.epochs=1", "diagnostics=some"))
    monkeypatch.setattr(demo, "JOBS", 1)
    printed: list[list[str]] = []
    found = demo.demo(tmp_path / "demo", 0, Console(quiet=True), lambda title, columns, rows: printed.extend(rows))
    assert [row[0] for row in printed] == [
        "Random lists",
        "The logging policy",
        "Greedy, knowing tastes",
        "The oracle",
        "Popular items",
        "Most recent items",
        "Markov",
        "SKNN",
        "VSKNN",
        "SL",
        "SR",
    ]
    earned = {entry.group.policy: entry.values("", "reward")[0] for entry in found.reading.entries}
    assert earned["oracle"] > 2 * earned["logging"]
    report = (tmp_path / "demo/report.md").read_text()
    assert "Is the RL doing anything here?" in report
    assert report.count("| ") > 60
    page = (tmp_path / "demo/report.html").read_text()
    assert page.count("<svg role") >= 4
    demo.demo(tmp_path / "demo", 0, Console(quiet=True), lambda title, columns, rows: None)  # replaces the earlier
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/log").write_text("a person's own")
    with pytest.raises(InputError, match="is not a demo's folder"):
        demo.demo(tmp_path / "mine", 0, Console(quiet=True), lambda title, columns, rows: None)
