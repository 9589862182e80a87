"""Tables on a terminal."""

import pytest

from offrec.commands.printing import print_table


def test_a_figure_that_is_too_long_for_its_column_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [f"0.{column:02d}123456789012345" for column in range(12)]
    print_table("narrow", ["policy", *figures], [["sl", *figures]])
    printed = capsys.readouterr().out
    assert "…" not in printed
    body = [line.split("│")[2:-1] for line in printed.splitlines() if line.startswith("│")]
    assert len(body) > 1, "folded"
    assert ["".join(cells[n].strip() for cells in body) for n in range(12)] == figures
