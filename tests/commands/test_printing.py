"""Tables on the terminal."""

import pytest

from offrec.commands.printing import print_table, significant


def test_a_figure_that_is_too_long_for_its_column_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [f"0.{column:02d}123456789012345" for column in range(12)]
    print_table("narrow", ["policy", *figures], [["sl", *figures]])
    printed = capsys.readouterr().out
    assert "…" not in printed
    body = [line.split("│")[2:-1] for line in printed.splitlines() if line.startswith("│")]
    assert len(body) > 1, "folded"
    assert ["".join(cells[n].strip() for cells in body) for n in range(12)] == figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0001234, "0.000123"), (1234.5, "1,234"), (0.0, "0.00"), (None, "–"), (-0.5, "-0.500"), (float("inf"), "∞")],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert significant(value) == text


def test_the_digits_of_a_number_follow_the_scale() -> None:
    """An interval of 12.345 ± 0.02 needs two digits of its width."""
    assert [significant(value, 2, scale=0.04) for value in (12.325, 12.345, -0.0)] == ["12.325", "12.345", "0.000"]
    assert significant(1.0, 2, scale=float("inf")) == "1.0"
