"""The logs of a shop: frequencies, metadata, and preparation."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import chi2

from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.shop import Shop, read_shop, write_log
from offrec.shop.solve import build_mdp, state_index
from offrec.shop.worlds import WORLDS

SESSIONS = 6000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("logs")
    for world, sessions in (("tiny", SESSIONS), ("demo", SESSIONS), ("medium", 2000)):
        write_log(Shop.open(world, 1), sessions, folder / world, seed=2)
    return {world: folder / world for world in ("tiny", "demo", "medium")}


def full(logs: dict[str, Path], world: str) -> pl.DataFrame:
    return pl.read_parquet(logs[world] / "full.parquet")


def p_value(drawn: np.ndarray, chances: np.ndarray) -> float:
    """Draws [N, n] of one among n, each by chances [N, n] of its own: a chi-square over the n places.

    The variance is that of the sum of different draws, so it is exact where Pearson's, for equal chances, is not.
    """
    difference = (drawn - chances).sum(0)[:-1]
    covariance = np.diag(chances.sum(0)) - chances.T @ chances
    statistic = difference @ np.linalg.solve(covariance[:-1, :-1], difference)
    return float(chi2.sf(statistic, len(difference)))


def test_frequencies_match_the_recorded_propensities(logs: dict[str, Path]) -> None:
    """In the world `tiny`, the probabilities of all six items follow exactly from the earlier picks."""
    log = full(logs, "tiny")
    mdp = build_mdp(WORLDS["tiny"], 1)
    item, session = log["item"].to_numpy(), log["session"].to_numpy()
    before = np.full((len(item), 2), 6)
    before[1:, 0] = np.where(session[1:] == session[:-1], item[:-1], 6)
    before[2:, 1] = np.where(session[2:] == session[:-2], item[:-2], 6)
    import torch

    chances = mdp.logging()[state_index(torch.tensor(before), 6)].numpy()
    offered = log["offered"].to_numpy()[:, 0]
    written = log["propensity"].to_numpy()
    np.testing.assert_allclose(written, chances[np.arange(len(item)), offered], rtol=1e-5)
    drawn = np.eye(6)[offered]
    assert p_value(drawn, chances) > 0.001
    shuffled = np.random.default_rng(0).permutation(6)
    assert p_value(drawn, chances[:, shuffled]) < 1e-9  # the test can fail
    assert p_value(drawn, chances * 0.98 + 0.02 * np.eye(6)[0]) < 0.001  # also where one item's chance is 2 % off


def test_propensities_are_those_of_sampling_without_replacement(logs: dict[str, Path]) -> None:
    """E[1[item in G] / p] = |G| for any set G of items. Here G contains the popular items."""
    popularity = Shop.open("demo", 1).dynamics.items.popularity.numpy()
    popular = popularity >= np.sort(popularity)[-100]
    log = full(logs, "demo").filter(pl.col("step") == 0)
    places = log["propensities"].to_numpy()
    np.testing.assert_allclose(log["propensity"].to_numpy(), places.prod(1))
    weight = 1 / places[:, 0]
    assert abs(weight.mean() - 1000) < 4 * weight.std() / len(weight) ** 0.5
    first, second = (popular[log["offered"].to_numpy()[:, place]] for place in (0, 1))
    assert abs((weight * first).mean() - 100) < 4 * (weight * first).std() / len(weight) ** 0.5
    left = np.where(first, 99, 100)  # of those not on the list yet
    gap = second / places[:, 1] - left
    assert abs(gap.mean()) < 4 * gap.std() / len(gap) ** 0.5
    wrong = second / np.random.default_rng(0).permutation(places[:, 1]) - left
    assert abs(wrong.mean()) > 4 * wrong.std() / len(wrong) ** 0.5


def test_the_columns_of_both_logs(logs: dict[str, Path]) -> None:
    log, events = full(logs, "demo"), pl.read_parquet(logs["demo"] / "events.parquet")
    assert events.columns == ["session", "item", "time", "behaviour"]
    assert set(events["behaviour"].unique()) == {"view", "cart", "buy"}
    picks = log.filter(pl.col("item").is_not_null())
    assert picks.select("session", "item", "time", "behaviour").equals(events)
    nothing = log.filter(pl.col("item").is_null())
    assert set(nothing["behaviour"]) == {"none"}
    assert nothing["reward"].sum() == 0
    reward = {"view": 0.2, "cart": 1.0, "buy": 1.0}
    assert picks["reward"].to_list() == [reward[name] for name in picks["behaviour"]]
    assert picks.select(pl.col("offered").arr.contains(pl.col("item")).all()).item()
    offered = np.sort(log["offered"].to_numpy(), 1)
    assert (np.diff(offered, axis=1) > 0).all()  # nothing twice on a list
    later = log.with_columns(pl.col("time").diff().over("session").alias("gap"))["gap"].drop_nulls()
    assert later.min() >= 5
    assert later.max() < 90
    first = log.group_by("session", maintain_order=True).first()
    assert first["session"].to_list() == list(range(SESSIONS))
    assert first["step"].max() == 0
    assert full(logs, "tiny")["item"].null_count() == 0


def test_the_metadata_describes_the_shop(logs: dict[str, Path], tmp_path: Path) -> None:
    for path in (logs["demo"], logs["demo"] / "events.parquet", logs["demo"] / "full.parquet"):
        meta = read_shop(path)
        assert meta is not None
        assert {key: meta[key] for key in ("world", "seed", "k", "sessions", "log_seed")} == {
            "world": "demo", "seed": 1, "k": 5, "sessions": SESSIONS, "log_seed": 2,
        }  # fmt: skip
        json.dumps(meta, allow_nan=False)
    assert meta is not None
    home = Shop.from_meta(meta)
    assert home.world == WORLDS["demo"]
    assert home.seed == 1
    home.check_source_shop(meta)
    Shop.open("demo", 1, k=7).check_source_shop(meta)
    other = tmp_path / "other.parquet"
    pl.DataFrame({"session": [1]}).write_parquet(other)
    assert read_shop(other) is None
    assert read_shop(tmp_path / "missing.parquet") is None
    assert read_shop(tmp_path) is None


def test_a_log_of_another_shop_is_refused(logs: dict[str, Path]) -> None:
    meta = read_shop(logs["demo"])
    assert meta is not None
    with pytest.raises(InputError, match="from the shop 'demo' with seed 1, this is 'demo' with seed 2"):
        Shop.open("demo", 2).check_source_shop(meta)
    with pytest.raises(InputError, match="this is 'tiny' with seed 1"):
        Shop.open("tiny", 1).check_source_shop(meta)
    with pytest.raises(InputError, match="No simulated shop wrote the log"):
        Shop.open("tiny", 1).check_source_shop(None)
    with pytest.raises(InputError, match="another version of offrec"):
        Shop.from_meta({**meta, "knobs": {"charm": 1}})


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_log(Shop.open("demo", 0), 200, tmp_path / name, seed=seed)
    for file in ("events.parquet", "full.parquet"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b != c


def test_folders_are_not_overwritten(tmp_path: Path) -> None:
    shop = Shop.open("tiny")
    write_log(shop, 5, tmp_path / "log")
    with pytest.raises(InputError, match="exists already"):
        write_log(shop, 5, tmp_path / "log")
    write_log(shop, 6, tmp_path / "log", force=True)
    assert read_shop(tmp_path / "log")["sessions"] == 6  # type: ignore[index]
    (tmp_path / "log" / "thesis.tex").touch()
    with pytest.raises(InputError, match="contains other files than a shop's log"):
        write_log(shop, 5, tmp_path / "log", force=True)
    with pytest.raises(InputError, match="at least 1"):
        write_log(shop, 0, tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not a folder"):
        write_log(shop, 5, tmp_path / "file", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log"]


def test_prepare_reads_the_events(logs: dict[str, Path], tmp_path: Path) -> None:
    dataset = prepare(logs["demo"] / "events.parquet", out=tmp_path / "dataset", split="time")
    events = pl.read_parquet(logs["demo"] / "events.parquet")
    assert dataset.meta["counts"]["events"] == len(events)
    assert dataset.vocabulary.is_numeric
    assert dataset.meta["time_format"] == "seconds"


@pytest.mark.parametrize("world", ["demo", "medium"])
def test_sessions_look_like_real_ones(logs: dict[str, Path], world: str) -> None:
    """RetailRocket's view sessions: median 4, 90 % 9, 99 % 27; 31 % of the events repeat an item."""
    events = pl.read_parquet(logs[world] / "events.parquet")
    length = events.group_by("session").len()["len"].to_numpy()
    assert 3 <= np.quantile(length, 0.5) <= 5
    assert 8 <= np.quantile(length, 0.9) <= 13
    assert 20 <= np.quantile(length, 0.99) <= 38
    distinct = events.select("session", "item").unique().height
    assert 0.25 < 1 - distinct / len(events) < 0.40
    share = dict(events["behaviour"].value_counts(normalize=True).iter_rows())
    assert 0.88 < share["view"] < 0.97
    assert share["cart"] > 0.02
    assert share["buy"] > 0.015


def test_the_log_reflects_the_quality_of_items(logs: dict[str, Path]) -> None:
    """Sessions end sooner after poor items, and carts and purchases increase with quality."""
    log = full(logs, "demo").with_columns(
        (pl.col("session") != pl.col("session").shift(-1)).fill_null(True).alias("end")
    )
    picks = log.filter(pl.col("item").is_not_null())
    items = Shop.open("demo", 1).dynamics.items
    worth, quality = (table.numpy()[picks["item"].to_numpy()] for table in (items.worth, items.quality))
    ended, bought = picks["end"].to_numpy(), picks["behaviour"].to_numpy() != "view"
    poor, fine = worth < np.quantile(worth, 0.25), worth > np.quantile(worth, 0.75)
    assert ended[poor].mean() > 1.2 * ended[fine].mean()
    assert bought[quality > 0.3].mean() > 1.5 * bought[quality < -0.7].mean()


def test_the_catalogue_table_contains_only_what_a_shop_knows(logs: dict[str, Path]) -> None:
    """Category and taste with noise; nothing else of the items, and the same table for every log of a shop."""
    items = pl.read_parquet(logs["demo"] / "items.parquet")
    known = Shop.open("demo", 1).dynamics.items
    assert items.columns == ["item", "title", "category", "taste"]
    assert items["item"].to_list() == list(range(1000))
    numbers = items["category"].str.strip_prefix("category ").cast(pl.Int64).to_numpy()
    np.testing.assert_array_equal(numbers, known.category[:-1].numpy())
    taste = items["taste"].to_numpy()
    cosine = (taste * known.taste[:-1].numpy()).sum(1)
    assert 0.85 < cosine.mean() < 0.95
    assert cosine.max() < 1
    residual = taste - cosine[:, None] * known.taste[:-1].numpy()
    for hidden in (known.quality, known.attractiveness, known.worth):
        correlation = np.corrcoef(residual.T, hidden[:-1].numpy())[-1, :-1]
        assert np.abs(correlation).max() < 0.15  # 0 up to chance: 1 / √1000 is .03


def test_a_shop_log_is_prepared_with_its_items(logs: dict[str, Path], tmp_path: Path) -> None:
    items = (str(logs["demo"] / "items.parquet"),)
    dataset = prepare(logs["demo"] / "events.parquet", items=items, out=tmp_path / "dataset")
    assert dataset.item_properties is not None
    assert [one.name for one in dataset.item_properties.feature_columns] == ["category", "taste"]
    assert len(dataset.item_properties.categories[0].values) == 20
    assert dataset.meta["shop"]["world"] == "demo"
