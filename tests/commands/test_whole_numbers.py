"""Whole numbers on the command line."""

import pytest
from typed_commands import offrec_here, sentence

from offrec.cli import parse_whole


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-1", -1), ("1_000", 1000), ("1e6", 10**6), ("1.5e3", 1500), ("2E+2", 200), ("-1e2", -100)],
)
def test_whole_numbers_may_have_an_exponent(text: str, number: int) -> None:
    assert parse_whole(text) == number


@pytest.mark.parametrize("text", ["1M", "1.5", "2.5e0", "1e-3", "1,000", "", "nan", "inf", "1e999999999"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number, such as 1000000 or 1e6; got "):
        parse_whole(text)


def test_commands_accept_an_exponent() -> None:
    assert "1,000,000 items" in offrec_here("size", "--items", "1e6").stdout
    done = offrec_here("size", "--items", "1M", code=2)
    assert sentence(done) == "offrec: --items: expected a whole number, such as 1000000 or 1e6; got '1M'."
