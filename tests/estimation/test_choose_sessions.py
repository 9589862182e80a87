"""Which sessions an estimate uses, and the sentence that says why."""

from pathlib import Path
from typing import Any

import pytest

from offrec.estimation.estimate import choose_sessions
from offrec.estimation.options import EstimateOptions
from small_datasets import write_dataset


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"split": "test"}, ("test", "--split test was given.")),
        ({"split": "validation"}, ("validation", "--split validation was given.")),
        ({"split": "test", "split_reason": "It was seen."}, ("test", "It was seen.")),
        ({}, ("test", "The propensities are fitted to the training sessions, so only the test sessions are used.")),
    ],
)
def test_the_sentence_says_why_the_sessions_are_used(
    options: dict[str, Any], expected: tuple[str, str], tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path, [[0, 1], [1]] * 3, splits=(2, 2, 2))
    assert choose_sessions({}, dataset, EstimateOptions(**options)) == expected
