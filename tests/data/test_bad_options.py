"""Choices that cannot be are refused before anything is read, whoever made them: a flag or a caller in Python."""

from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, refused

from offrec.data.prepare import PrepareOptions, prepare
from offrec.errors import InputError

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"split": "tiem"}, "There is no choice 'tiem' for split; expected one of random, time."),
        ({"unseen": "no"}, "There is no choice 'no' for unseen; expected one of keep, drop."),
        (
            {"format": "cvs"},
            "There is no format 'cvs'; the known ones are retailrocket, yoochoose, events, decisions, served.",
        ),
        ({"protocol": "papr"}, "There is no choice 'papr' for protocol; expected one of plain, paper."),
        ({"sessions": "x"}, "There is no choice 'x' for sessions; expected one of auto, column, user, gap."),
        ({"gap_minutes": NAN}, "A gap of nan minutes cannot be; expected a finite number above 0, such as 30."),
        ({"gap_minutes": INFINITE}, "A gap of inf minutes cannot be; expected a finite number above 0, such as 30."),
        ({"gap_minutes": 0.0}, "A gap of 0 minutes cannot be; expected a finite number above 0, such as 30."),
        ({"score_last": 0}, "--score-last 0 cannot be; expected 1 or more."),
    ],
)
def test_the_sentence_says_what_can_be_chosen(prepared: Prepare, choices: dict[str, Any], expected: str) -> None:
    assert refused(prepared, ("log.csv", "never read"), **choices) == expected


@pytest.mark.parametrize(
    "parts", [(NAN, 1, 1), (1, NAN, 1), (INFINITE, 1, 1), (1e308, 1e308, 1e308), (1, 1), (1, 1, -1)]
)
def test_split_parts_are_three_finite_numbers(prepared: Prepare, parts: tuple[float, ...]) -> None:
    sentence = refused(prepared, ("log.csv", "never read"), split_parts=parts)
    assert sentence == f"The split parts {parts} cannot be; expected three finite numbers above 0, such as 8 1 1."


def test_options_are_given_one_way(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^Options came both as `chosen` and by name \(filter\); give all of them one"
    ):
        prepare(tmp_path / "log.csv", out=tmp_path / "dataset", options=PrepareOptions(), filter=("item=3",))
