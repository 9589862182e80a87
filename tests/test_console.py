"""What is said to a person."""

import sys
from pathlib import Path

import pytest

from offrec.console import Console


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_where_nothing_can_be_written_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open("/dev/full", "w", buffering=1)  # noqa: SIM115 — closing it would write again, and fail
    monkeypatch.setattr(sys, "stderr", stream)
    Console().line("half way")
    with pytest.raises(OSError, match="No space left"):
        stream.close()
