"""Titles and new items in the server, in `recommend` and in exported models."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_server import open_client

import offrec
from offrec.commands.recommend import Recommend
from offrec.console import Console
from offrec.runs.train import train
from offrec.serving.export import export_onnx
from offrec.serving.item_search import ItemSearch
from offrec.serving.served_policy import load_policy
from small_datasets import small_properties, write_dataset

ITEMS = 12
TITLES = ["Red cup", "Red-hot pan", "Blue cup", "Cupboard, red", "", *[f"Other {n}" for n in range(7)]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("titles")
    random = np.random.default_rng(0)
    sessions = [random.integers(0, ITEMS - 1, 4).tolist() for _ in range(30)]
    properties = type(small_properties(ITEMS))(**{**vars(small_properties(ITEMS)), "titles": TITLES})
    dataset = write_dataset(folder, sessions, items=ITEMS, properties=properties)
    settings = {"network.width": 8, "network.history": 5, "training.epochs": 1, "algorithm.neighbours": 0}
    train(dataset, folder / "run", algorithm="sl", settings=settings, device="cpu", console=Console(quiet=True))
    frame = {"id": [900], "title": ["Red moon"], "category": ["x"], "image": [[0.0, 1.0, 2.0, 3.0]]}
    pl.DataFrame(frame).write_parquet(folder / "new.parquet")
    return folder / "run"


@pytest.fixture
def client(run: Path) -> Any:
    with open_client({"run": run}, new_items=(str(run.parent / "new.parquet"),), seed=0) as client:
        yield client


def test_items_are_found_by_words_of_their_title(run: Path) -> None:
    search = ItemSearch(offrec.load(run, device="cpu"))
    assert set(search.find("red", 20)) == {100, 101, 103}
    assert set(search.find("CUP red", 20)) == {100, 103}  # each word begins a word of the title, in any order
    assert search.find("board", 20) == []
    assert set(search.find("hot", 20)) == {101}
    assert search.find("10", 2) == search.find("10", 20)[:2]
    assert search.find("104", 20) == [104]  # ids come first
    assert search.find("\0", 20) == []


def test_the_server_names_items_and_recommends_new_ones(client: Any) -> None:
    answer = client.post("/v1/recommend", json={"history": [101, 900], "k": 13}).json()
    titles = {row["item"]: row["title"] for row in answer["items"]}
    assert len(titles) == 13
    assert titles[900] == "Red moon"
    assert titles[104] is None
    assert answer["unknown_items"] == 0
    found = client.get("/v1/items", params={"query": "moon"}).json()
    assert found == {"items": [900], "titles": ["Red moon"]}


def test_new_items_change_the_fingerprint(run: Path) -> None:
    new_items = (str(run.parent / "new.parquet"),)
    prints = {load_policy("run", run, "cpu", 0, files).fingerprint for files in ((), new_items)}
    assert len(prints) == 2


def test_recommend_prints_titles_and_new_items(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_items = (str(run.parent / "new.parquet"),)
    Recommend(run, history="101", k=13, new_items=new_items, device="cpu").run()
    printed = capsys.readouterr().out
    assert "Red moon" in printed
    assert "title" in printed
    Recommend(run, history="101", k=2, json=True, device="cpu").run()
    assert '"title": ' in capsys.readouterr().out


def test_an_exported_model_scores_as_the_policy(run: Path, tmp_path: Path) -> None:
    """The export compares the model with torch, and fails if they rank differently."""
    pytest.importorskip("onnxruntime")
    assert export_onnx(run, tmp_path / "model.onnx")["agreement"]


def test_recommend_warns_about_absent_columns_of_new_items(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("item,brand\n900,b\n")
    Recommend(run, history="101", k=2, new_items=(str(tmp_path / "new.csv"),), device="cpu").run()
    assert "Warning: --new-items new.csv has no values of category, image, price" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_tables_of_recommendations_have_titles(run: Path, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "log.csv").write_text("session,item\na,101\nb,103\n")
    out = tmp_path / f"lists{suffix}"
    Recommend(run, input=(str(tmp_path / "log.csv"),), out=out, k=ITEMS, device="cpu").run()
    readers: dict[str, Any] = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}
    table = readers[suffix](out)
    assert table.columns == ["session", "rank", "item", "score", "probability", "title"]
    titles = dict(zip(table["item"], table["title"], strict=True))
    assert titles[100] == "Red cup"
    assert titles[104] is None
    assert table["title"].null_count() == 2  # of item 104, in both sessions
