"""The reward of each event and session of a server's decision log."""

from collections.abc import Mapping

import polars as pl

from offrec.data.dataset_checks import MAX_REWARD
from offrec.data.rewards import REWARDS
from offrec.errors import InputError


def reward_events(
    events: pl.DataFrame, by_behaviour: Mapping[str, float], event_rewards: bool, notes: list[str]
) -> pl.DataFrame:
    """Return the events with `reward`, what each of them earns, and `value`, which ranks the behaviours of a pick.

    Args:
        events: Their `reward` is the one that the event was sent with, or null.
        by_behaviour: Rewards by behaviour; `REWARDS` contains the defaults.
        event_rewards: Whether an event that was sent with a reward earns this reward.
        notes: Gets a note if events were sent with rewards that are not used.

    Raises:
        InputError: If a behaviour has no reward, or a reward is impossible or for an unknown behaviour.
    """
    has_own = events["reward"].is_not_null()
    if event_rewards:
        _check(events["reward"])
    elif has_own.any():
        sent = count_text(int(has_own.sum()), "event")
        notes.append(f"{sent} sent with a reward, which is not used; --event-rewards uses it.")
        events = events.with_columns(reward=pl.lit(None, pl.Float64))
    known = {**REWARDS, **by_behaviour}
    names = [name for name in events["behaviour"].unique().sort().to_list() if name is not None]
    needed = events.filter(pl.col("reward").is_null())["behaviour"].unique().sort().to_list()
    if missing := [name for name in needed if name is not None and name not in known]:
        raise InputError(f"The behaviour {missing[0]!r} has no reward; set one with --reward {missing[0]}=NUMBER.")
    if unused := [name for name in by_behaviour if name not in names]:
        raise InputError(f"--reward names {unused[0]!r}, but the behaviours of the log are {', '.join(names)}.")
    value = pl.col("behaviour").replace_strict(known, return_dtype=pl.Float64, default=None)
    return events.with_columns(value=pl.coalesce(value, "reward", 0.0), reward=pl.coalesce("reward", value, 0.0))


def _check(rewards: pl.Series) -> None:
    if rewards.is_null().all():
        raise InputError(
            "--event-rewards was given, but no event of the log has a reward; send it with POST /v1/events, or omit "
            "the option."
        )
    largest = float(rewards.abs().max())  # type: ignore[arg-type]
    if not (largest <= MAX_REWARD and rewards.drop_nulls().is_finite().all()):
        raise InputError(
            f"The log has a reward of {largest:g}; expected numbers from {-MAX_REWARD:g} to {MAX_REWARD:g}."
        )


def add_rewards(sessions: pl.DataFrame, events: pl.DataFrame, window: int) -> pl.DataFrame:
    """Add the column `reward`. Per list and item, the last event of the most valuable behaviour counts.

    Args:
        sessions: The columns `session` and `start`.
        events: What `reward_events` returned.
        window: Milliseconds after its start in which a session earns its reward.
    """
    events = events.join(sessions.select("session", "start"), on="session", maintain_order="left")
    within = events.filter(pl.col("time") < pl.col("start") + window)
    earned = within.group_by("session", "request", "item").agg(pl.col("reward").sort_by("value", "time").last())
    totals = earned.group_by("session").agg(pl.col("reward").sum())
    return sessions.join(totals, on="session", how="left", maintain_order="left").with_columns(
        pl.col("reward").fill_null(0.0)
    )


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: "1 session", "2 sessions"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
