"""What `offrec compare` prints at its end."""

from pathlib import Path

import pytest

from made_studies import made_log, made_study
from offrec.commands.studies import _show


def test_rows_stand_under_their_backbone_and_marks_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = {"sl": 0.5, "dqn": 0.3, "recent": 0.4}
    _show(made_study(tmp_path, [made_log()], hits, backbones=("gru", "caser")))
    printed = capsys.readouterr().out
    purchases = printed.split("Purchases, every backbone")[1]
    labels = [line.strip("│").split("│")[0].strip() for line in purchases.splitlines() if line.startswith("│")]
    assert labels == ["Without training", "Most recent items", "GRU", "SL", "DQN", "Caser", "SL", "DQN"]
    assert printed.count("▾: below SL at p ≤ .05; ±: standard deviation over seeds\n") == 1
    assert "* and **" not in printed, "nothing is above, so there is no star to explain"
    assert "[ … ]" not in printed
