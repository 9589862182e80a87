"""`offrec ab`: compare the policies of a traffic split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from offrec.commands.printing import parse_rewards, print_json, print_table, significant, unset
from offrec.console import Console
from offrec.errors import InputError


@dataclass(frozen=True)
class Ab:
    """Compare the policies of `offrec serve --split` by their reward per session, at any time and as often as you like.

    Example: offrec ab decisions --reward click=0.2 --reward buy=1 --picture course.svg
    """

    decisions: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DECISIONS")] = ()
    """Folders of decision logs that `offrec serve` wrote, or their files."""
    reward: tuple[str, ...] = ()
    """Reward of a behaviour, for example --reward buy=5. May be repeated. Defaults: view, click 0.2; cart, buy 1."""
    event_rewards: bool = False
    """An event that was sent with a reward (POST /v1/events) earns this reward, not that of its behaviour."""
    window_hours: float = 24.0
    """A session earns its reward in this many hours after its first list, and is counted after that."""
    confidence: float = 0.95
    """Probability that all intervals contain the true values, at all times together."""
    planned: int = 10_000
    """Number of sessions at which the intervals are narrowest. Choose it before the test."""
    picture: Annotated[Path | None, unset("FILE")] = None
    """Draw how the difference developed (.png, .svg or .pdf)."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Print the reward per session of each policy, and the differences."""
        from offrec.estimation.ab_picture import draw_course
        from offrec.estimation.ab_test import AbOptions, compare_split

        if not self.decisions:
            raise InputError("DECISIONS is missing; name the folder that offrec serve --log writes.")
        if self.picture is not None and self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--picture must end in .png, .svg or .pdf; got {self.picture}.")
        options = AbOptions(
            parse_rewards(self.reward), self.window_hours, self.confidence, self.planned, self.event_rewards
        )
        result = compare_split(self.decisions, options)
        if self.picture is not None:
            draw_course(result, self.picture)
        if self.json:
            print_json(result.as_json())
            return
        rows = [
            [arm.policy, f"{arm.sessions:,}", significant(arm.reward), _interval(arm.low, arm.high)]
            for arm in result.arms
        ]
        columns = ["policy", "sessions", "reward per session", f"{self.confidence:.0%} interval"]
        print_table("Reward per session", columns, rows)
        rows = [
            [f"{one.policy} − {one.control}", significant(one.difference), _interval(one.low, one.high), one.verdict]
            for one in result.differences
        ]
        if rows:
            print_table("Differences", ["", "difference", f"{self.confidence:.0%} interval", "verdict"], rows)
        for note in result.notes:
            Console().line(f"Note: {note}")


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{significant(low)} … {significant(high)}"
