"""Format the numbers of a report as text."""

import math
from collections.abc import Callable, Sequence

MISSING = "–"
MAX_DECIMALS = 8


def format_metric(value: float | None, digits: int = 4) -> str:
    """Format a ranking metric as the paper prints it, for example ".3174"."""
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def reward_decimals(*values: float | None) -> int:
    """Return how many decimals a column of rewards needs: two, or more if the largest value is below 0.1.

    Pass every value of a column, so that its cells line up and none is rounded to zero.
    """
    largest = max((abs(value) for value in values if value and math.isfinite(value)), default=1.0)
    return 2 if largest >= 0.1 else min(MAX_DECIMALS, 2 - math.floor(math.log10(largest)))


def format_reward(value: float | None, decimals: int | None = None) -> str:
    """Format a reward per session: two decimals, or more if the reward is small."""
    if value is None:
        return MISSING
    return f"{value:.{reward_decimals(value) if decimals is None else decimals}f}".replace("-", "−")


def format_gain(value: float, decimals: int | None = None) -> str:
    """Format a difference of rewards with its sign."""
    decimals = reward_decimals(value) if decimals is None else decimals
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text[1:] if round(value, decimals) == 0 else text


def format_spread(value: float, formatter: Callable[[float | None], str]) -> str:
    """Format a standard deviation; a value that would be rounded to zero becomes, for example, "< 0.01"."""
    text = formatter(value)
    return f"< {text[:-1]}1" if value > 0 and not text.strip("0.") else text


def format_interval(low: float | None, high: float | None, formatter: Callable[[float], str]) -> str:
    """Format an interval in square brackets; return an empty text if it is unknown."""
    return "" if low is None or high is None else f"[{formatter(low)} … {formatter(high)}]"


def format_share(value: float | None) -> str:
    """Format a relative difference as a percentage; a difference that is rounded to zero has no sign."""
    if value is None:
        return ""
    text = f"{100 * value:+.1f} %".replace("-", "−")
    return text[1:] if round(100 * value, 1) == 0 else text


def format_percent(value: float | None) -> str:
    """Format a share of a whole as a percentage."""
    return MISSING if value is None else f"{100 * value:.0f} %"


def format_p_value(p: float | None) -> str:
    """Format a p-value, for example "p = .031"."""
    if p is None:
        return "not tested"
    return "p < .001" if p < 0.001 else f"p = {format_metric(p, 3)}"


def format_setting(value: object) -> str:
    """Format the value of an option."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def join_names(names: Sequence[str]) -> str:
    """Join names as "A, B and C"."""
    if not names:
        return "none"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
