"""Messages and progress on standard error."""

import re
import sys
from pathlib import Path

import pytest

from offrec import console
from offrec.commands.printing import print_table
from offrec.console import Console
from offrec.errors import plain_text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_message_that_cannot_be_written_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open("/dev/full", "w", buffering=1)  # noqa: SIM115 — closing it writes again and fails
    monkeypatch.setattr(sys, "stderr", stream)
    Console().line("half way")
    with pytest.raises(OSError, match="No space left"):
        stream.close()


def test_control_characters_are_escaped() -> None:
    assert plain_text("a\x1b[2Jb\tc\rd é\n") == "a\\x1b[2Jb\\tc\\rd é\n"


@pytest.mark.parametrize("name", ["[sku1]", "[/sku1]", "[red]", "a\x1b[31m"])
def test_a_table_prints_brackets_and_control_characters_as_text(capsys: pytest.CaptureFixture[str], name: str) -> None:
    print_table(f"title {name}", ["", name], [[f"events: {name}", "1"]])
    printed = capsys.readouterr().out
    assert printed.count(plain_text(name)) == 3
    assert "\x1b" not in printed


def test_progress_lines_show_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 20.0, 20.0, 60.0, 60.0, 90.0])  # of the start and of each line
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with Console().steps("ranking", 1000) as advance:
        advance(50)  # too early for a line
        advance(150, "loss 0.5")
        advance(400)
        advance(400)
    assert capsys.readouterr().err.splitlines() == [
        "ranking: 200 of 1,000  about 80 s left  loss 0.5",
        "ranking: 600 of 1,000  about 40 s left",
    ]


def test_progress_bars_show_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    with console._progress() as progress:
        task = progress.add_task("ranking", total=1000, note="")
        for _ in range(3):
            progress.advance(task, 100)
        columns = [type(column).__name__ for column in progress.columns]
        text = str(progress.columns[columns.index("TimeRemainingColumn")].render(progress.tasks[0]))
    assert re.fullmatch(r"\d:\d\d:\d\d", text)


@pytest.mark.parametrize(("seconds", "text"), [(89, "89 s"), (90, "2 min"), (5000, "83 min"), (9000, "2.5 h")])
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert console.format_duration(seconds) == text
