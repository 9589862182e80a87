"""Progress messages of a study."""

from pathlib import Path

import pytest

from made_studies import made_log, made_study
from offrec.console import Console, format_duration
from offrec.studies import progress as progress_module
from offrec.studies import value
from offrec.studies.progress import RunConsole, StudyProgress
from offrec.studies.run import run_study
from offrec.studies.stored_results import write_failure
from offrec.studies.study import Study
from offrec.studies.worker import WorkerOptions
from small_studies import small_dataset, small_study


def half_done(folder: Path) -> Study:
    study = made_study(folder / "study", [made_log("shop")], {"sl": 0.4, "dc": 0.6, "recent": 0.3}, seeds=2)
    study.path("results", "shop.sl.gru.1.json").unlink()
    write_failure(study, study.runs[1], {"reason": "out of memory"})
    study.path("results", "shop.dc.gru.1.json").unlink()
    return study


def test_the_note_has_time_left_and_the_best_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = half_done(tmp_path)
    with StudyProgress(study, Console()) as progress:
        assert len(progress.ended) == 4
        assert progress.note().startswith("about 2 s left; best so far on shop: dc/gru, validation NDCG@10 0.")
        progress.report("epoch 3")
        assert "shop.sl.gru.1 failed: out of memory" in capsys.readouterr().err
        progress.update()
        assert capsys.readouterr().err == "", "without news, nothing is printed"


def test_no_time_left_without_a_finished_learner(tmp_path: Path) -> None:
    study = half_done(tmp_path)
    for path in study.path("results").glob("*gru*.json"):
        path.unlink()
    with StudyProgress(study, Console(quiet=True)) as progress:
        assert progress.note().startswith("best so far on shop: recent")


def test_without_a_terminal_the_current_run_is_reported_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = half_done(tmp_path)
    with StudyProgress(study, Console()) as progress:
        following = RunConsole(progress, [study.runs[-1]])
        capsys.readouterr()
        with following.steps("estimating its value: fitted Q", 1000) as advance:
            advance(100)
            assert capsys.readouterr().err == "", "not at every step"
            progress.last_message -= progress_module.PLAIN_SECONDS
            advance(100)
            advance(100)
    (line,) = capsys.readouterr().err.splitlines()
    now = f"now {study.runs[-1].name} estimating its value: fitted Q, 200 of 1,000"
    assert line == f"study  4 of 5 runs done; about 2 s left; {now}"
    with StudyProgress(study, Console(quiet=True)) as progress:
        progress.last_message -= progress_module.PLAIN_SECONDS
        progress.report("epoch 3")
    assert "epoch" not in capsys.readouterr().err


def test_on_a_terminal_the_current_run_has_its_own_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    study = half_done(tmp_path)
    with (
        StudyProgress(study, Console()) as progress,
        RunConsole(progress, [study.runs[-1]]).steps("its value", 9) as advance,
    ):
        advance(4)
        progress._board.progress.refresh()
        seen = capsys.readouterr().err
    assert f"{study.runs[-1].name}  its value" in seen
    assert "4/9" in seen
    assert "4/5" in seen, "the bar over all runs stays"


def test_each_part_of_a_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "UPDATES", 5)
    messages: list[str] = []
    monkeypatch.setattr(StudyProgress, "report", lambda progress, text: messages.append(text))
    study = small_study(small_dataset(tmp_path / "data"), tmp_path / "study", algorithms="sl", seeds="1", value=True)
    run_study(study, WorkerOptions(device="cpu"), Console(quiet=True))
    for name in ("small.sl.gru.0", "small.recent.0"):
        mine = [text for text in messages if text.startswith(name)]
        for part in ("ranking validation", "ranking test", "estimating its value: fitted Q, 5 of 5"):
            assert any(part in text for text in mine), f"{part} of {name}: {mine}"


def test_durations() -> None:
    assert [format_duration(seconds) for seconds in (5, 89, 200, 5000, 9000)] == [
        "5 s",
        "89 s",
        "3 min",
        "83 min",
        "2.5 h",
    ]
