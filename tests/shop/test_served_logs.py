"""Logs that a trained policy writes: exact propensities, sessions that continue others, and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats

from offrec.catalogue import Head
from offrec.data.prepare import prepare
from offrec.data.shop_metadata import common_shop
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.shop import Shop, read_shop, write_log
from offrec.shop.exploration import Exploration, ExploringPlayer
from offrec.shop.log import ServedPolicy
from offrec.shop.worlds import WORLDS
from offrec.types import Batch

SHOP = Shop(replace(WORLDS["tiny"], name="three", k=3), 0)
SCORES = torch.tensor([0.3, -0.2, 0.9, 0.0, -0.5, 0.4])  # best items: 2, 5, 0


class Scores(Policy):
    """The same scores for every history, except that the last pick gains 1."""

    name = "scores"

    def __init__(self, stochastic: bool) -> None:
        super().__init__(Vocabulary(np.arange(6)), 2, torch.device("cpu"))
        self.stochastic = stochastic

    def head(self, batch: Batch) -> Head:
        rows = len(batch.recent)
        return Head(torch.zeros(rows, 0), torch.zeros(6, 0), SCORES, batch.recent[:, :1], torch.ones(rows, 1))


def log_of(folder: Path, exploration: Exploration, stochastic: bool = True, sessions: int = 3000) -> pl.DataFrame:
    served = ServedPolicy(Scores(stochastic), exploration)
    write_log(SHOP, sessions, folder / "log", seed=5, served=served)
    return pl.read_parquet(folder / "log/full.parquet")


@pytest.mark.parametrize(
    "exploration",
    [
        Exploration("sample", temperature=0.5),
        Exploration("topk", places=1),
        Exploration("topk", places=2, places_from="policy", temperature=2.0),
        Exploration("blend", share=0.4),
        Exploration("blend", share=0.4, places=1),
    ],
    ids=lambda one: f"{one.play}-{one.places}-{one.places_from}",
)
def test_frequencies_of_first_lists_agree_with_the_written_propensities(
    tmp_path: Path, exploration: Exploration
) -> None:
    first = log_of(tmp_path, exploration).filter(pl.col("step") == 0)
    np.testing.assert_allclose(first["propensities"].to_numpy().prod(1), first["propensity"].to_numpy())
    lists = first.group_by("offered").agg(pl.len(), pl.col("propensity").first(), low=pl.col("propensity").min())
    assert lists["propensity"].to_list() == pytest.approx(lists["low"].to_list())
    count, chance = lists["len"].to_numpy(), lists["propensity"].to_numpy()
    often = chance * len(first) >= 5
    observed = [*count[often], len(first) - count[often].sum()]
    expected = [*chance[often] * len(first), (1 - chance[often].sum()) * len(first)]
    keep = np.array(expected) > 1e-3
    observed, expected = np.array(observed)[keep], np.array(expected)[keep]
    assert stats.chisquare(observed, expected * len(first) / expected.sum()).pvalue > 1e-4


def test_top_k_lists_have_propensity_one(tmp_path: Path) -> None:
    log = log_of(tmp_path, Exploration(), stochastic=False, sessions=300)
    assert set(log["propensity"]) == {1.0}
    assert {tuple(row) for row in log.filter(pl.col("step") == 0)["offered"].to_list()} == {(2, 5, 0)}
    later = log.filter(pl.col("item").shift(1) == 0, pl.col("step") > 0)["offered"].to_list()
    assert {tuple(row) for row in later} == {(0, 2, 5)}  # the policy follows the picks


def test_prepare_reads_several_logs_of_one_shop(tmp_path: Path) -> None:
    write_log(SHOP, 200, tmp_path / "log-0", seed=0)
    served = ServedPolicy(Scores(False), Exploration("blend"))
    write_log(SHOP, 100, tmp_path / "log-1", seed=1, served=served, first_session=200)
    files = [tmp_path / f"log-{number}/full.parquet" for number in (0, 1)]
    dataset = prepare(files, format="decisions", out=tmp_path / "data")
    assert dataset.meta["counts"]["sessions"] == 300
    shop = dataset.meta["shop"]
    assert (shop["world"], shop["seed"], shop["k"]) == ("three", 0, 3)
    assert "log_seed" not in shop  # the logs have different visitors
    assert Shop.from_meta(shop).world == SHOP.world
    meta = read_shop(tmp_path / "log-1")
    assert meta is not None
    assert (meta["served"]["policy"], meta["served"]["play"], meta["served"]["share"]) == ("scores", "blend", 0.1)
    other = Shop(replace(SHOP.world, memory=3), 0)
    write_log(other, 10, tmp_path / "log-2", first_session=300)
    mixed = prepare([files[0], tmp_path / "log-2/full.parquet"], format="decisions", out=tmp_path / "mixed")
    assert "shop" not in mixed.meta


def test_the_description_of_several_logs_says_whether_trained_policies_wrote_all_of_them(tmp_path: Path) -> None:
    write_log(SHOP, 5, tmp_path / "logging", seed=0)
    for name, play in (("topk", "topk"), ("blend", "blend")):
        served = ServedPolicy(Scores(False), Exploration(play))  # type: ignore[arg-type]
        write_log(SHOP, 5, tmp_path / name, seed=1, served=served)

    def served_by(*names: str) -> object:
        shop = common_shop([tmp_path / name / "full.parquet" for name in names])
        assert shop is not None
        return shop.get("served", "not all")

    assert served_by("logging") == served_by("logging", "topk") == "not all"
    assert served_by("topk", "blend") == {}
    assert served_by("topk", "topk")["play"] == "topk"  # type: ignore[index]
    assert common_shop([tmp_path / "topk/full.parquet", tmp_path / "missing.parquet"]) is None
    assert common_shop([]) is None


def test_both_policies_of_a_blend_see_all_lists_and_picks(tmp_path: Path) -> None:
    """The previous policy is deterministic too: every list comes from one of the two, after the same picks."""
    new, previous = Scores(False), Scores(False)
    served = ServedPolicy(new, Exploration("blend", share=0.3), previous=previous)
    write_log(SHOP, 200, tmp_path / "log", seed=5, served=served)
    log = pl.read_parquet(tmp_path / "log/full.parquet")
    assert log["propensity"].to_list() == pytest.approx([1.0] * len(log))  # both make the same list
    sampled = ServedPolicy(new, Exploration("blend", share=0.3), previous=Scores(True))
    write_log(SHOP, 200, tmp_path / "log", seed=5, served=sampled, force=True)
    log = pl.read_parquet(tmp_path / "log/full.parquet")
    assert log["propensity"].max() < 1
    assert log["propensity"].min() > 0


def test_impossible_explorations_are_refused(tmp_path: Path) -> None:
    def refused(text: str, exploration: Exploration, stochastic: bool = False) -> None:
        with pytest.raises(InputError, match=text):
            log_of(tmp_path, exploration, stochastic, sessions=5)

    refused("scores only ranks items, so it has no probabilities to sample from", Exploration("sample"))
    refused("it has no probabilities to sample from", Exploration("topk", places=1, places_from="policy"))
    refused("must be at most 3, the length of lists; got 4", Exploration("topk", places=4))
    for text, values in {
        "--temperature must be positive and finite; got 0": {"temperature": 0.0},
        "--places must be at least 0; got -1": {"places": -1},
        "--places cannot be used with --play sample": {"play": "sample", "places": 1},
        "--share must be between 0 and 1, both excluded; got 1": {"share": 1.0},
        "--temperature has no effect with --play topk and --places 0; remove it": {"temperature": 2.0},
        "--places-from has no effect with --play blend and --places 0": {"play": "blend", "places_from": "policy"},
        "--share has no effect with --play sample; remove it": {"play": "sample", "share": 0.3},
        "--play must be one of topk, sample, blend; got 'greedy'": {"play": "greedy"},
        "--places-from must be one of catalogue, policy; got 'log'": {"places_from": "log"},
    }.items():
        with pytest.raises(InputError, match=text):
            Exploration(**values)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--first-session must be at least 0; got -1"):
        write_log(SHOP, 5, tmp_path / "log", first_session=-1)
    assert not (tmp_path / "log").exists()


def test_exploring_costs_what_the_log_says(tmp_path: Path) -> None:
    """A roll-out of the exploring player earns what its log contains, visitor by visitor."""
    player = ExploringPlayer(SHOP.dynamics, Scores(False), Exploration("blend"))
    rollout = SHOP.rollout(player, 300, seed=5)
    log = log_of(tmp_path, Exploration("blend"), stochastic=False, sessions=300)
    earned = log.group_by("session", maintain_order=True).agg(pl.col("reward").sum())["reward"]
    np.testing.assert_allclose(earned.to_numpy(), rollout.rewards, rtol=1e-5)
    assert rollout.play == "blend"
