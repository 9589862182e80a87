"""The demo, on fewer visitors than a person gets."""

import json
from pathlib import Path

import pytest

from offrec import demo
from offrec.console import Console
from offrec.errors import InputError


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LOG_SESSIONS", 600)
    monkeypatch.setattr(demo, "VISITORS", 150)
    assert demo.LEARNERS["sr"]["diagnostics"] == "some", "or π̂_b would be fitted, and the demo take longer"
    small = {"network.width": 8, "training.epochs": 1}
    monkeypatch.setattr(demo, "LEARNERS", {name: {**known, **small} for name, known in demo.LEARNERS.items()})
    printed: list[list[str]] = []
    judged = demo.demo(tmp_path / "demo", 0, Console(quiet=True), lambda title, columns, rows: printed.extend(rows))
    names = [row[0] for row in printed]
    assert names == [
        "random",
        "logging",
        "greedy",
        "oracle",
        "popular",
        "recent",
        "markov",
        "sknn",
        "vsknn",
        "sl/gru",
        "sr/gru",
    ]
    earned = {one.rollout.policy: one.rollout.reward.mean for one in judged}
    assert earned["oracle"] > 2 * earned["logging"]
    report = (tmp_path / "demo/report.md").read_text()
    assert report.count("| ") > 60
    assert (tmp_path / "demo/report.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "demo/report.json").read_text())) == 11
    demo.demo(
        tmp_path / "demo", 0, Console(quiet=True), lambda title, columns, rows: None
    )  # an earlier demo is replaced
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/log").write_text("a person's own")
    with pytest.raises(InputError, match="is not a demo's folder"):
        demo.demo(tmp_path / "mine", 0, Console(quiet=True), lambda title, columns, rows: None)
