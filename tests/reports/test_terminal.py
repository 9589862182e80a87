"""The tables that `offrec compare` prints."""

from pathlib import Path

import pytest

from made_studies import made_log, made_study
from offrec.commands.studies import _show


def test_rows_are_grouped_by_backbone_and_marks_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = {"sl": 0.5, "dqn": 0.3, "recent": 0.4}
    _show(made_study(tmp_path, [made_log()], hits, backbones=("gru", "caser")))
    printed = capsys.readouterr().out
    purchases = printed.split("Cart")[1]
    rows = [line.strip("│").split("│")[0].strip() for line in purchases.splitlines() if line.startswith("│")]
    assert [row for row in rows if not row.startswith("Baselines")] == [
        "Most recent items", "GRU", "SL", "DQN", "Caser", "SL", "DQN"
    ]  # fmt: skip
    assert (
        printed.count("▾: worse than the policy it is compared with, p ≤ .05; ±: standard deviation over seeds\n") == 1
    )
    assert "* and **" not in printed, "no policy is better, so stars are not explained"
    assert "[ … ]" not in printed


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_answer_from_one_seed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: int) -> None:
    _show(made_study(tmp_path, [made_log()], {"sl": 0.5, "dqn": 0.3, "recent": 0.4}, seeds=seeds))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("yoochoose, GRU: ")]
    assert line.endswith("One seed: the tests cover test sessions and visitors, not the variation over seeds.") == (
        seeds == 1
    )
