"""Compare the policies of a traffic split by the reward per session in a server's decision log.

A session belongs to the policy that `offrec serve --split` assigned to it first, also if the split changes later:
whether a session returns after the change depends on its policy, so leaving such sessions out would be biased. Its
reward is what its events earned within a window after its first list. It is counted once the window has passed, so that
the sessions in their order of arrival do not depend on when somebody looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import chi2

from offrec.data import decision_log_files
from offrec.data.decision_log_files import RecordCounts
from offrec.data.rewards import REWARDS
from offrec.errors import InputError
from offrec.estimation.ab_rewards import add_rewards, count_text, reward_events
from offrec.estimation.confidence_sequence import asymptotic_confidence_sequence, difference_terms
from offrec.types import Doubles, Longs

HOUR = 3_600_000  # milliseconds
MIN_SESSIONS = 100  # per policy
MIN_EARNING = 50  # sessions with a reward per policy; from 20 on, up to 8 % of simulated 95 % intervals missed
WRONG_SHARES = 1e-4  # p-value below which the observed shares contradict the split
POINTS = 200  # of a picture


@dataclass(frozen=True)
class AbOptions:
    """Options of a comparison.

    Attributes:
        reward: Rewards by behaviour; `offrec.data.rewards.REWARDS` contains the defaults.
        window_hours: The time after its first list in which a session earns its reward.
        confidence: The probability that all intervals contain the true values at all times.
        planned: The number of sessions at which intervals are narrowest; choose it before the test.
        event_rewards: Whether an event that was sent with a reward earns this reward, not that of its behaviour.
    """

    reward: Mapping[str, float] = field(default_factory=dict)
    window_hours: float = 24.0
    confidence: float = 0.95
    planned: int = 10_000
    event_rewards: bool = False


@dataclass(frozen=True)
class Arm:
    """What one policy earned per session. Bounds are None while it has too few sessions."""

    policy: str
    sessions: int
    reward: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """Reward per session of a policy minus that of the first policy. Bounds are None if one has too few sessions."""

    policy: str
    control: str
    sessions: int
    difference: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if self.low is None or self.high is None:
            return "too few sessions"
        return "more" if self.low > 0 else "less" if self.high < 0 else "not decided"


@dataclass(frozen=True)
class Course:
    """How a difference and its interval developed; the interval is NaN while a policy has too few sessions."""

    policy: str
    time: Longs  # [n] milliseconds since 1970: start of the session
    sessions: Longs  # [n]
    difference: Doubles  # [n]
    low: Doubles  # [n]
    high: Doubles  # [n]


@dataclass(frozen=True)
class AbResult:
    """The comparison."""

    options: AbOptions
    arms: list[Arm]
    differences: list[Difference]
    courses: list[Course]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return all figures, without the courses."""
        options = asdict(self.options) | {"reward": {**REWARDS, **self.options.reward}}
        differences = [asdict(one) | {"verdict": one.verdict} for one in self.differences]
        policies = [asdict(arm) for arm in self.arms]
        return {"options": options, "policies": policies, "differences": differences, "notes": self.notes}


def compare_split(paths: Sequence[str | Path], options: AbOptions) -> AbResult:
    """Compare the policies of a traffic split.

    Args:
        paths: Folders or files of the decision log.
        options: Rewards, window and confidence.

    Returns:
        Rewards per session with intervals that are valid however often they are looked at.

    Raises:
        InputError: If an option is not valid, or the log contains no finished session of a split.
    """
    _check(options)
    notes: list[str] = []
    lists, events = _read(paths, notes)
    sessions, last = _sessions(lists, notes), int(max(lists["time"].max(), events["time"].max() or 0))  # type: ignore[type-var,arg-type]
    window = int(options.window_hours * HOUR)
    finished = sessions.filter(pl.col("start") + window <= last)
    unfinished = sessions.height - finished.height
    if unfinished:
        started = f"started less than {options.window_hours:g} h before the last record"
        notes.append(f"{count_text(unfinished, 'session')} not counted yet: {started}.")
    if not finished.height:
        raise InputError(
            f"No session is finished: all {sessions.height:,} began less than {options.window_hours:g} hours before "
            "the last record; wait, or choose a smaller --window-hours."
        )
    rewarded = reward_events(events, options.reward, options.event_rewards, notes)
    return _compare(add_rewards(finished, rewarded, window), options, notes)


def _check(options: AbOptions) -> None:
    if not 0 < options.window_hours < float("inf"):
        raise InputError(f"--window-hours must be positive; got {options.window_hours:g}.")
    if not 0.5 <= options.confidence < 1:
        raise InputError(f"--confidence must be at least 0.5 and below 1; got {options.confidence:g}.")
    if options.planned < MIN_SESSIONS:
        raise InputError(f"--planned must be at least {MIN_SESSIONS}; got {options.planned}.")


def _read(paths: Sequence[str | Path], notes: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return lists, and events with the session of their request if they have none."""
    frames: list[pl.DataFrame] = []
    for source in decision_log_files.find(paths):
        counts = RecordCounts()
        for frame in decision_log_files.read(source, counts):
            frames.append(frame.drop("items", "history"))
        notes += counts.notes(source.name)
    records = pl.concat(frames) if frames else pl.DataFrame()
    lost = int(records.filter(kind="lost")["count"].sum())
    if lost:
        notes.append(f"{count_text(lost, 'record')} lost by the server.")
    lists = records.filter(kind="list")
    if not lists.height:
        raise InputError(f"{paths[0]} contains no list; serve recommendations first.")
    by_request = lists.unique("request", keep="first").select("request", list_session="session")
    events = records.filter(kind="event").join(by_request, on="request", how="left", maintain_order="left")
    return lists, events.with_columns(session=pl.coalesce("session", "list_session"))


def _sessions(lists: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Return one row per session of the split, by its start: session, policy, split, start."""
    assigned = lists.filter(pl.col("split").is_not_null() & pl.col("session").is_not_null())
    if not assigned.height:
        raise InputError("The log contains no session of a traffic split; serve with --split, and send session ids.")
    if other := lists.height - assigned.height:
        notes.append(
            f"{count_text(other, 'list')} left out: requested by the name of a policy, or without a session id."
        )
    sessions = assigned.sort("time", maintain_order=True).group_by("session", maintain_order=True)
    rows = sessions.agg(
        pl.col("policy").first(),
        pl.col("split").first(),
        start=pl.col("time").first(),
        arms=pl.col("policy").n_unique(),
    )
    if mixed := rows.filter(pl.col("arms") > 1).height:
        sessions_text = count_text(mixed, "session")
        notes.append(f"{sessions_text} served by several policies, because the split changed: counted for the first.")
    return rows.drop("arms").sort("start", maintain_order=True)


def _compare(sessions: pl.DataFrame, options: AbOptions, notes: list[str]) -> AbResult:
    shares = {text: _parse_shares(text) for text in sessions["split"].unique(maintain_order=True).to_list()}
    names = list(dict.fromkeys(name for split in shares.values() for name in split))
    present = set(sessions["policy"].to_list())
    names = [name for name in names if name in present]
    _check_shares(sessions, shares, notes)
    # All intervals hold together with the given confidence: one per policy, and one per difference.
    alpha = (1 - options.confidence) / max(1, 2 * len(names) - 1)
    arms = [_arm(sessions, name, alpha, options.planned / len(names)) for name in names]
    courses = [_course(sessions, shares, names[0], name, alpha, options.planned) for name in names[1:]]
    return AbResult(options, arms, [_last(course, names[0]) for course in courses], courses, notes)


def _arm(sessions: pl.DataFrame, name: str, alpha: float, planned: float) -> Arm:
    rewards = sessions.filter(policy=name)["reward"].to_numpy()
    sequence = asymptotic_confidence_sequence(rewards, alpha, planned)
    mean, radius = float(sequence.mean[-1]), float(sequence.radius[-1])
    if len(rewards) < MIN_SESSIONS or np.count_nonzero(rewards) < MIN_EARNING:
        return Arm(name, len(rewards), mean, None, None)
    return Arm(name, len(rewards), mean, mean - radius, mean + radius)


def _course(
    sessions: pl.DataFrame, shares: dict[str, dict[str, float]], control: str, name: str, alpha: float, planned: int
) -> Course:
    rows = sessions.filter(pl.col("policy").is_in([control, name]))
    rows = rows.filter(pl.col("split").is_in([text for text, one in shares.items() if control in one and name in one]))
    treated = (rows["policy"] == name).to_numpy().astype(np.int64)
    share = np.array([shares[text][name] / (shares[text][name] + shares[text][control]) for text in rows["split"]])
    rewards = rows["reward"].to_numpy()
    terms = difference_terms(rewards, treated, share)
    sequence = asymptotic_confidence_sequence(terms, alpha, planned)
    radius = np.where(has_enough_sessions(rewards, treated), sequence.radius, np.nan)
    low, high = sequence.mean - radius, sequence.mean + radius
    return Course(name, rows["start"].to_numpy(), np.arange(1, len(terms) + 1), sequence.mean, low, high)


def has_enough_sessions(rewards: Doubles, treated: Longs) -> NDArray[np.bool_]:
    """[..., n] whether both policies have enough sessions for an interval, after each session.

    With few rewards, the variance is underestimated, and the interval is too short.

    Args:
        rewards: [..., n] rewards of the sessions, by their start.
        treated: [..., n] 1 for the second policy, 0 for the first.
    """
    enough: NDArray[np.bool_] = np.ones(rewards.shape, np.bool_)
    for is_in_arm in (treated, 1 - treated):
        enough &= np.cumsum(is_in_arm, -1) >= MIN_SESSIONS
        enough &= np.cumsum(is_in_arm * (rewards != 0), -1) >= MIN_EARNING
    return enough


def _last(course: Course, control: str) -> Difference:
    if not len(course.sessions):
        return Difference(course.policy, control, 0, 0.0, None, None)
    low, high = (None if np.isnan(bound[-1]) else float(bound[-1]) for bound in (course.low, course.high))
    return Difference(course.policy, control, int(course.sessions[-1]), float(course.difference[-1]), low, high)


def _parse_shares(text: str) -> dict[str, float]:
    try:
        shares = {name: float(value) for name, _, value in (part.rpartition("=") for part in text.split(","))}
    except ValueError:
        shares = {}
    if not shares or not all(name and 0 < share < 1 for name, share in shares.items()):
        raise InputError(
            f"The log contains the split {text[:60]!r}; expected shares as offrec serve --split writes them."
        )
    return shares


def _check_shares(sessions: pl.DataFrame, shares: dict[str, dict[str, float]], notes: list[str]) -> None:
    """Note if the numbers of sessions contradict the split: then sessions are missing, and the rewards are biased."""
    for text, expected in shares.items():
        rows = sessions.filter(split=text)
        unknown = rows.filter(~pl.col("policy").is_in(list(expected)))
        if unknown.height:
            raise InputError(
                f"The log contains lists of {unknown['policy'][0]!r}, which is not in their split {text!r}."
            )
        counts = np.array([rows.filter(policy=name).height for name in expected])
        wanted = rows.height * np.array(list(expected.values()))
        statistic = float(((counts - wanted) ** 2 / wanted).sum())
        if chi2.sf(statistic, len(counts) - 1) < WRONG_SHARES:
            found = ", ".join(f"{name} {count / rows.height:.1%}" for name, count in zip(expected, counts, strict=True))
            notes.append(
                f"The observed shares ({found}) contradict the split {text}: sessions of one policy are missing, so "
                "the difference may be biased."
            )
