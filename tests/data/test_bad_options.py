"""Impossible options are refused before any file is read."""

from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, error_message

from offrec.data.prepare import PrepareOptions, prepare
from offrec.errors import InputError

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"split": "tiem"}, "--split must be one of random, time, hash; got 'tiem'."),
        ({"unseen": "no"}, "--unseen must be one of keep, drop; got 'no'."),
        (
            {"format": "cvs"},
            "There is no format 'cvs'; the known ones are retailrocket, yoochoose, events, decisions, served, "
            "open-bandit.",
        ),
        ({"protocol": "papr"}, "--protocol must be one of plain, paper; got 'papr'."),
        ({"sessions": "x"}, "--sessions must be one of auto, column, user, gap; got 'x'."),
        ({"gap_minutes": NAN}, "--gap-minutes must be positive and finite; got nan."),
        ({"gap_minutes": INFINITE}, "--gap-minutes must be positive and finite; got inf."),
        ({"gap_minutes": 0.0}, "--gap-minutes must be positive and finite; got 0."),
        ({"score_last": 0}, "--score-last must be at least 1; got 0."),
        ({"sample_first": 0}, "--sample-first must be at least 1; got 0."),
    ],
)
def test_the_message_names_the_option_and_its_choices(
    prepare_log: Prepare, choices: dict[str, Any], expected: str
) -> None:
    assert error_message(prepare_log, ("log.csv", "never read"), **choices) == expected


@pytest.mark.parametrize(
    "parts", [(NAN, 1, 1), (1, NAN, 1), (INFINITE, 1, 1), (1e308, 1e308, 1e308), (1, 1), (1, 1, -1)]
)
def test_split_parts_must_be_three_finite_numbers(prepare_log: Prepare, parts: tuple[float, ...]) -> None:
    message = error_message(prepare_log, ("log.csv", "never read"), split_parts=parts)
    assert message.startswith("--split-parts must be three positive numbers, such as 8 1 1; got ")


def test_options_cannot_be_given_both_ways(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Give options either as `options` or by name, not both; got filter by name"):
        prepare(tmp_path / "log.csv", out=tmp_path / "dataset", options=PrepareOptions(), filter=("item=3",))
