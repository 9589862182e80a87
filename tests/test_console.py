"""Messages and progress on standard error."""

import sys
from pathlib import Path

import pytest

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
