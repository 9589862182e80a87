"""Hyper-parameters are checked once, where a learner is made."""

from typing import Any

from offrec.errors import InputError


def above(low: float, learner: Any, *names: str) -> None:
    for name in names:
        if not getattr(learner, name) > low:
            raise InputError(f"algorithm.{name} is {getattr(learner, name)}; it must be above {low:g}.")


def at_least(low: float, learner: Any, *names: str) -> None:
    for name in names:
        if not getattr(learner, name) >= low:
            raise InputError(f"algorithm.{name} is {getattr(learner, name)}; it must be at least {low:g}.")
