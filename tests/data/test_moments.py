"""Dates and times in stored files."""

import pytest

from offrec.data.schema import Moment


@pytest.mark.parametrize("value", ["null", "", "2026-02-30T00:00:00", 7, None])
def test_other_values_are_refused(value: object) -> None:
    problem = Moment().problem(value, "finished_at")
    assert problem is not None
    assert problem.startswith("finished_at must be a date and time such as")


def test_dates_and_times_are_accepted() -> None:
    assert Moment().problem("2026-11-16T21:59:00+00:00", "finished_at") is None
