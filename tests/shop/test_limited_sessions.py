"""Shops whose sessions end after a given number of lists, and logs of independent decisions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_served_logs import Scores

from offrec.commands.shop import WriteShop
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.shop import Shop, read_shop, write_log
from offrec.shop.environment import ShopEnvironment
from offrec.shop.exploration import Exploration
from offrec.shop.log import ServedPolicy
from offrec.shop.worlds import WORLDS

ONE = Shop(replace(WORLDS["tiny"], name="three", k=3), 0, max_steps=1)


def test_every_session_ends_after_the_limit(tmp_path: Path) -> None:
    for limit in (1, 3):
        shop = Shop.open("tiny", 0, max_steps=limit)
        write_log(shop, 400, tmp_path / str(limit), seed=1)
        steps = pl.read_parquet(tmp_path / str(limit) / "full.parquet").group_by("session").len()["len"]
        assert (len(steps), steps.max()) == (400, limit)
        rollout = shop.rollout("logging", 400, seed=1)
        assert (rollout.steps == np.minimum(Shop.open("tiny", 0).rollout("logging", 400, seed=1).steps, limit)).all()
        assert rollout.cut == 0, "these sessions have ended"
        assert shop.rollout("logging", 400, seed=1, max_steps=limit + 1).cut == 0
    assert Shop.open("tiny", 0, max_steps=3).rollout("logging", 400, seed=1, max_steps=2).cut > 0


def test_the_limit_is_part_of_the_description(tmp_path: Path) -> None:
    write_log(ONE, 50, tmp_path / "log", seed=1)
    dataset = prepare(tmp_path / "log/full.parquet", out=tmp_path / "data", format="decisions")
    assert dataset.meta["shop"]["max_steps"] == 1
    assert Shop.from_meta(dataset.meta["shop"]).max_steps == 1
    ONE.check_source_shop(dataset.meta["shop"])
    Shop(ONE.world, 0).check_source_shop(dataset.meta["shop"])  # sessions may have another length
    with pytest.raises(InputError, match="not possible"):
        Shop.from_meta({**read_shop(tmp_path / "log/full.parquet"), "max_steps": "many"})  # type: ignore[dict-item]
    assert "max_steps" not in Shop.open("tiny").as_json()


def test_the_command_limits_sessions(tmp_path: Path) -> None:
    WriteShop(out=tmp_path / "log", world="tiny", sessions=30, steps=2).run()
    assert pl.read_parquet(tmp_path / "log/full.parquet")["step"].max() == 1
    with pytest.raises(InputError, match="--steps must be at least 1; got 0"):
        WriteShop(out=tmp_path / "other", world="tiny", steps=0).run()
    with pytest.raises(InputError, match="The oracle plans sessions without a limit"):
        ONE.rollout("oracle", 2)


def test_an_episode_ends_after_the_limit() -> None:
    environment = ShopEnvironment(ONE)
    environment.reset(seed=1)
    assert environment.step(np.array([0, 1, 2]))[2]


def test_a_served_log_contains_the_probability_under_the_logging_policy(tmp_path: Path) -> None:
    """It equals the propensity in the log of the logging policy, and its ratio to the served propensity has mean 1."""
    write_log(ONE, 4000, tmp_path / "served", seed=5, served=ServedPolicy(Scores(True), Exploration("sample")))
    served = pl.read_parquet(tmp_path / "served/full.parquet")
    write_log(ONE, 4000, tmp_path / "logging", seed=6)
    logging = pl.read_parquet(tmp_path / "logging/full.parquet")
    assert "logging_propensity" not in logging.columns
    known = {tuple(row["offered"]): row["propensity"] for row in logging.iter_rows(named=True)}
    pairs = [(known[tuple(row["offered"])], row["logging_propensity"]) for row in served.iter_rows(named=True)
             if tuple(row["offered"]) in known]  # fmt: skip
    assert len(pairs) > 3000
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-5)
    ratio = (served["logging_propensity"] / served["propensity"]).to_numpy()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / len(ratio) ** 0.5
