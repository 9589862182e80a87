"""Tables on the terminal."""

import pytest

from offrec.commands.printing import breaks_words, print_table, significant


def test_a_figure_that_is_too_long_for_its_column_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [f"0.{column:02d}123456789012345" for column in range(12)]
    print_table("narrow", ["policy", *figures], [["sl", *figures]])
    printed = capsys.readouterr().out
    assert "…" not in printed
    body = [line.split("│")[2:-1] for line in printed.splitlines() if line.startswith("│")]
    assert len(body) > 1, "folded"
    assert ["".join(cells[n].strip() for cells in body) for n in range(12)] == figures


def test_lines_of_a_cell_end_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["effective_sessions 12,", "contribution_tail 1.1,", "mean_weight_high"] * 3
    row = ["a policy", *(f"{number:07} … 1.0" for number in range(6)), " ".join(words)]
    print_table("reasons", ["policy", *"abcdef", "reasons"], [row])
    cells = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in cells[0][1:-1]] == row[1:-1]
    lines = [line[-1] for line in cells]
    assert " ".join(" ".join(lines).split()) == " ".join(words)


def test_a_table_may_be_wider_in_a_file_if_words_would_be_broken(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"name-of-a-long-column-{number}" for number in range(6)]
    assert not breaks_words(names, [names])
    print_table("wide", names, [names])
    assert max(map(len, capsys.readouterr().out.splitlines())) > 140
    assert breaks_words(names * 3, [names * 3])


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


def test_wide_characters_need_two_cells(capsys: pytest.CaptureFixture[str]) -> None:
    title = "日本語のとても長いタイトル"
    print_table("items", ["rank", "title"], [["1", title]])
    assert title in capsys.readouterr().out
