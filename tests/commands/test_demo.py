"""The demo, with fewer visitors than the command simulates."""

from pathlib import Path

import pytest

from offrec.commands import demo_study
from offrec.console import Console
from offrec.errors import InputError


def test_the_demo_writes_a_report_and_replaces_only_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_study, "LOG_SESSIONS", 600)
    monkeypatch.setattr(demo_study, "VISITORS", 150)
    monkeypatch.setattr(demo_study, "INFORMED_VISITORS", 10)
    assert "diagnostics=some" in demo_study.SETTINGS, "otherwise π̂_b is fitted, which takes longer"
    monkeypatch.setattr(demo_study, "SETTINGS", ("network.width=8", "training.epochs=1", "diagnostics=some"))
    monkeypatch.setattr(demo_study, "JOBS", 1)
    printed: list[list[str]] = []
    monkeypatch.setattr(demo_study, "print_table", lambda title, columns, rows: printed.extend(rows))
    page = demo_study.run_demo(tmp_path / "demo", 0, Console(quiet=True))
    assert [row[0] for row in printed] == [
        "Random lists",
        "Logging policy",
        "Greedy (knows all preferences)",
        "Informed (knows the items; first 10 visitors)",
        "Oracle (knows everything)",
        "Popular items",
        "Mean reward per item",
        "Excess reward per show",
        "Most recent items",
        "Item neighbours",
        "SL",
        "SL, sampled",
        "User model",
        "User model, horizon = 0",
    ]
    by_label = {row[0]: dict(zip(demo_study.COLUMNS, row, strict=True)) for row in printed}
    assert by_label["Informed (knows the items; first 10 visitors)"]["share of Informed"] == "100 %"
    assert by_label["User model"]["share of Informed"].endswith(" %")
    assert by_label["User model"]["ranks by"] == "plan"
    earned = {entry.group.policy: entry.values("", "reward")[0] for entry in page.results.policies}
    assert earned["oracle"] > 2 * earned["logging"]
    report = (tmp_path / "demo/report.md").read_text()
    assert "Is the RL doing anything here?" in report
    assert "the best simple policy" in report
    assert report.count("| ") > 60
    html = (tmp_path / "demo/report.html").read_text()
    assert html.count("<svg role") >= 4
    demo_study.run_demo(tmp_path / "demo", 0, Console(quiet=True))  # replaces the earlier one
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/log").write_text("not a demo")
    with pytest.raises(InputError, match="does not contain a demo"):
        demo_study.run_demo(tmp_path / "mine", 0, Console(quiet=True))
