"""What a person sees while a study runs."""

import json
from pathlib import Path

import pytest
from made_studies import made_log, made_study

from offrec.console import Console
from offrec.studies.plan import Study
from offrec.studies.progress import Progress, spoken


def half_done(folder: Path) -> Study:
    study = made_study(folder / "study", [made_log("shop")], {"sl": 0.4, "dc": 0.6, "recent": 0.3}, seeds=2)
    study.path("results", "shop.sl.gru.1.json").unlink()
    study.path("failed", "shop.sl.gru.1.json").write_text(json.dumps({"reason": "no room"}))
    study.path("results", "shop.dc.gru.1.json").unlink()
    return study


def test_runs_done_time_left_and_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = half_done(tmp_path)
    with Progress(study, Console()) as progress:
        assert len(progress.ended) == 4
        assert progress.note().startswith("about 2 s left; best so far on shop: dc/gru, NDCG@10 0.")
        progress.say("epoch 3")
        assert "shop.sl.gru.1 failed: no room" in capsys.readouterr().err
        progress.show()
        assert capsys.readouterr().err == "", "away from a terminal, nothing is said where nothing is new"


def test_no_time_is_promised_before_any_is_known(tmp_path: Path) -> None:
    study = half_done(tmp_path)
    for path in study.path("results").glob("*gru*.json"):
        path.unlink()
    with Progress(study, Console(quiet=True)) as progress:
        assert progress.note().startswith("best so far on shop: recent")


def test_spans_of_time() -> None:
    assert [spoken(seconds) for seconds in (5, 89, 200, 5000, 9000)] == ["5 s", "89 s", "3 min", "83 min", "2.5 h"]
