"""Runs with item features: stored policies, and items that were never seen in training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_runs import trained

import offrec
from offrec.data.item_properties import CategoryColumn, ItemProperties, VectorColumn
from small_datasets import small_properties, write_dataset

ITEMS = 12
UNSEEN = 11  # the item that occurs in no training session


def log(folder: Path) -> Any:
    random = np.random.default_rng(0)
    sessions = [random.integers(0, ITEMS - 1, 4).tolist() for _ in range(30)]
    return write_dataset(folder, [*sessions, [1, UNSEEN, 2]], items=ITEMS, properties=small_properties(ITEMS))


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("sl", {}),
        ("sl", {"network.tied": False, "network.backbone": "caser"}),
        ("sl+dqn", {"network.backbone": "sasrec"}),
        ("dc", {}),
        ("sl", {"network.features": "off"}),
        ("user-model", {"algorithm.choice": "logit"}),
    ],
)
def test_a_stored_run_scores_as_the_trained_policy(tmp_path: Path, algorithm: str, settings: dict[str, Any]) -> None:
    dataset = log(tmp_path)
    policy = trained(dataset, tmp_path / "run", algorithm=algorithm, settings=settings)
    for path in dataset.path.iterdir():
        path.unlink() if path.is_file() else None
    loaded = offrec.load(tmp_path / "run", device="cpu")
    one, other = (each.recommend([101, 102], k=ITEMS) for each in (policy, loaded))
    assert one.items == other.items
    assert one.scores == pytest.approx(other.scores, rel=1e-5, abs=1e-5)
    assert other.titles is not None
    assert other.titles[0] == f"title {int(other.items[0]) - 100}"
    assert other.as_json()["recommendations"][0]["title"] == other.titles[0]


def write_items(path: Path, rows: dict[int, int]) -> Path:
    """Write a table with the properties of items: id → index of the item whose properties it gets."""
    known = small_properties(ITEMS)
    index = list(rows.values())
    columns: dict[str, Any] = {"item": list(rows), "title": [f"new {item}" for item in rows]}
    for number, column in enumerate(known.categories):
        codes = known.codes[index, number]
        columns[column.name] = [None if code == 0 else column.values[code - 1] for code in codes]
    columns["price"] = known.numbers[index, 0]
    columns["image"] = known.vectors[index].tolist()
    pl.DataFrame(columns).write_parquet(path)
    return path


@pytest.mark.parametrize(("algorithm", "tied"), [("sl", True), ("sl", False), ("dc", True)])
def test_new_items_are_scored_by_their_features(tmp_path: Path, algorithm: str, tied: bool) -> None:
    settings = {"network.tied": tied}
    if algorithm == "sl":
        settings["algorithm.neighbours"] = 0  # their share is relative to the mass of all items, new ones included
    trained(log(tmp_path), tmp_path / "run", algorithm=algorithm, settings=settings)
    files = write_items(tmp_path / "new.parquet", {900: UNSEEN, 901: 2, 101: 4})
    before = offrec.load(tmp_path / "run", device="cpu")
    after = offrec.load(tmp_path / "run", device="cpu", new_items=files)
    assert after.n_items == ITEMS + 2  # the run knows 101
    old, new = before.recommend([101, 102, 900], k=ITEMS), after.recommend([101, 102], k=ITEMS + 2)
    scores = dict(zip(new.items, new.scores, strict=True))
    assert old.unknown == 1
    for item, score in zip(old.items, old.scores, strict=True):
        assert scores[item] == pytest.approx(score, abs=1e-5)
    assert scores[900] == pytest.approx(scores[100 + UNSEEN], abs=1e-5)  # equal features, both unseen
    assert scores[901] != pytest.approx(scores[102], abs=1e-3)  # 102 has a free vector too
    assert after.recommend([900, 901], k=3).unknown == 0
    assert after.recommend([101], k=1, candidates=[900]).titles == ["new 900"]


def test_new_items_without_some_columns_are_reported(tmp_path: Path) -> None:
    trained(log(tmp_path), tmp_path / "run")
    path = tmp_path / "new.csv"
    path.write_text("item,brand\n900,b\n")
    policy = offrec.load(tmp_path / "run", device="cpu", new_items=path)
    assert "--new-items new.csv has no values of category, image, price" in policy.warnings[-1]
    path.write_text("item,colour\n900,b\n")
    with pytest.raises(offrec.InputError, match="which the run was trained with; add at least one"):
        offrec.load(tmp_path / "run", device="cpu", new_items=path)


def test_new_items_need_a_run_with_features(tmp_path: Path) -> None:
    trained(log(tmp_path), tmp_path / "run", settings={"network.features": "off"})
    files = write_items(tmp_path / "new.parquet", {900: 1})
    with pytest.raises(offrec.InputError, match="trained without item features"):
        offrec.load(tmp_path / "run", device="cpu", new_items=files)


def test_new_items_that_a_run_already_knows_change_nothing(tmp_path: Path) -> None:
    policy = trained(log(tmp_path), tmp_path / "run")
    files = write_items(tmp_path / "new.parquet", {101: 1})
    assert offrec.load(tmp_path / "run", device="cpu", new_items=files).n_items == policy.n_items


def test_a_warm_start_matches_categories_by_name(tmp_path: Path) -> None:
    """The new catalogue has other categories in another order; those of the first run keep their vectors."""
    trained(log(tmp_path), tmp_path / "first", settings={"algorithm.neighbours": 0})
    known = small_properties(ITEMS)
    brand = replace(known.categories[1], values=("a", *known.categories[1].values[::-1]))
    codes = known.codes.copy()
    codes[:, 1] = np.array([0, 4, 3, 2])[known.codes[:, 1]]  # b, c, d are now 4, 3, 2
    changed = replace(known, categories=(known.categories[0], brand), codes=codes)
    random = np.random.default_rng(0)
    sessions = [random.integers(0, ITEMS - 1, 4).tolist() for _ in range(30)]
    dataset = write_dataset(tmp_path, [*sessions, [1, UNSEEN, 2]], items=ITEMS, properties=changed)
    settings = {"training.learning_rate": 1e-9}
    trained(dataset, tmp_path / "second", settings=settings, start_from=tmp_path / "first")
    first, second = (offrec.load(tmp_path / name, device="cpu") for name in ("first", "second"))
    one, other = (each.recommend([101, 102], k=ITEMS) for each in (first, second))
    assert one.items == other.items
    assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.usefixtures("quick_logging_policy")
@pytest.mark.parametrize("algorithm", ["sl", "dc"])
def test_a_warm_start_standardises_numbers_as_the_earlier_run(tmp_path: Path, algorithm: str) -> None:
    """Three new items have extreme numbers, which would change the mean and spread of the others."""
    settings = {} if algorithm == "dc" else {"algorithm.neighbours": 0}
    trained(log(tmp_path), tmp_path / "first", algorithm=algorithm, settings=settings)
    known, more = small_properties(ITEMS), small_properties(3)
    further = replace(more, numbers=more.numbers + 50, vectors=more.vectors - 20)
    random = np.random.default_rng(0)
    sessions = [random.integers(0, ITEMS - 1, 4).tolist() for _ in range(30)]
    dataset = write_dataset(tmp_path, [*sessions, [1, UNSEEN, 2]], items=ITEMS + 3, properties=known.append(further))
    settings = {"training.learning_rate": 1e-9}
    options: dict[str, Any] = {"algorithm": algorithm, "settings": settings}
    trained(dataset, tmp_path / "second", start_from=tmp_path / "first", **options)
    first, second = (offrec.load(tmp_path / name, device="cpu") for name in ("first", "second"))
    vectors = [each.agent.actor.items_in[:ITEMS] for each in (first, second)]
    torch.testing.assert_close(*vectors, atol=1e-4, rtol=0)
    trained(dataset, tmp_path / "third", start_from=tmp_path / "second", **options)
    third = offrec.load(tmp_path / "third", device="cpu")
    torch.testing.assert_close(third.agent.actor.items_in[:ITEMS], vectors[0], atol=1e-4, rtol=0)
    if algorithm == "dc":
        trained(dataset, tmp_path / "sl")
        files = {"start_from": tmp_path / "first", "logging_policy": tmp_path / "sl"}
        with pytest.raises(offrec.InputError, match="standardises item features in another way than this run"):
            trained(dataset, tmp_path / "x", **files, **options)


@pytest.mark.usefixtures("quick_logging_policy")
@pytest.mark.parametrize("algorithm", ["sl", "dc"])
def test_a_warm_start_needs_the_same_columns(tmp_path: Path, algorithm: str) -> None:
    """π̂_b of dc is transferred before the other networks."""
    trained(log(tmp_path), tmp_path / "first", algorithm=algorithm)
    known = small_properties(ITEMS)
    brand = known.codes[:, 1:].astype(np.float32)
    other_kind = replace(
        known,
        categories=known.categories[:1],
        codes=known.codes[:, :1],
        number_names=("brand", *known.number_names),
        numbers=np.concatenate([brand, known.numbers], 1),
    )
    vectors = np.concatenate([known.vectors] * 2, 1)
    wider = replace(known, vector_columns=(VectorColumn("image", 8),), vectors=vectors)
    for properties, found in [
        (None, "none"),
        (other_kind, r".*brand \(number\)"),
        (wider, r".*image \(embedding of width 8\)"),
    ]:
        dataset = write_dataset(tmp_path, [[0, 1, 2]] * 10, items=ITEMS, properties=properties)
        expected = rf"item features category \(category\), brand \(category\), image .*, but .* has {found}"
        with pytest.raises(offrec.InputError, match=expected):
            trained(dataset, tmp_path / "second", algorithm=algorithm, start_from=tmp_path / "first")
        assert not (tmp_path / "second").exists()


@pytest.mark.usefixtures("quick_logging_policy")
def test_a_run_without_features_starts_a_run_on_a_log_with_items_only_with_features_off(tmp_path: Path) -> None:
    trained(write_dataset(tmp_path, [[0, 1, 2]] * 10, items=ITEMS), tmp_path / "first", algorithm="dc")
    options: dict[str, Any] = {"algorithm": "dc", "start_from": tmp_path / "first"}
    with pytest.raises(offrec.InputError, match=r"without item features, but .* add --set network.features=off"):
        trained(log(tmp_path), tmp_path / "second", **options)
    trained(log(tmp_path), tmp_path / "second", settings={"network.features": "off"}, **options)


def test_a_user_model_starts_new_items_at_their_prior_mean(tmp_path: Path) -> None:
    settings = {"algorithm.choice": "logit", "algorithm.types": 2, "algorithm.width": 3}
    policy = trained(log(tmp_path), tmp_path / "run", algorithm="user-model", settings=settings)
    files = write_items(tmp_path / "new.parquet", {900: 4})
    after = offrec.load(tmp_path / "run", device="cpu", new_items=files)
    mean = policy.agent.prior_mean()[0][4]
    assert mean.abs().sum() > 0  # the map is trained
    torch.testing.assert_close(after.agent.vectors()[ITEMS], mean[:3])
    torch.testing.assert_close(after.agent.leave_effect[ITEMS], mean[5:])
    torch.testing.assert_close(after.agent.vectors()[:ITEMS], policy.agent.vectors())
    torch.testing.assert_close(after.agent.interest()[:ITEMS], policy.agent.interest())
    torch.testing.assert_close(after.agent.worth()[:ITEMS], policy.agent.worth())
    assert len(after.recommend([101, 900], k=ITEMS + 1).items) == ITEMS + 1


def test_an_unseen_item_is_recommended_to_visitors_of_its_category(tmp_path: Path) -> None:
    """Sessions stay within one of two categories. The last item of each category occurs in no training session."""
    random = np.random.default_rng(0)
    sessions = [(6 * (n % 2) + random.integers(0, 5, 5)).tolist() for n in range(200)]
    columns = (CategoryColumn("category", ("x", "y")),)
    codes = (1 + np.arange(ITEMS) // 6).astype(np.int32)[:, None]
    nothing = np.zeros((ITEMS, 0), np.float32)
    two = ItemProperties(None, columns, codes, (), nothing, (), nothing)
    dataset = write_dataset(tmp_path, sessions, items=ITEMS, properties=two)
    settings = {"training.epochs": 12, "training.learning_rate": 0.02, "network.new_item_bonus": 0.0}
    policy = trained(dataset, tmp_path / "run", settings={**settings, "network.repeat": "off"})
    for history, unseen, others in (([100, 101], 105, range(106, 112)), ([106, 107], 111, range(100, 106))):
        ranked = policy.recommend(history, k=ITEMS).items
        assert ranked.index(unseen) < min(ranked.index(other) for other in others)
