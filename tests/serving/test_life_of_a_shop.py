"""The life of a shop over two days, with one server that is never stopped.

Day 1: a log, and a policy trained on it. The policy serves sampled lists, also with items that are new on day 2. Day 2:
the decision log becomes a dataset, the next policy starts from the first one, and replaces it in the running server.
"""

import shutil
import threading
from dataclasses import replace
from typing import Any

import httpx
import polars as pl
import pytest
from small_server import open_client, read_records, wait_until

import offrec
from offrec.console import Console
from offrec.data.files import publish_folder
from offrec.estimation.estimate import EstimateOptions
from offrec.runs.folder import read_run
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.shop_client import RemotePlayer
from offrec.shop import WORLDS, Shop
from offrec.shop.log import write_log

QUIET = Console(quiet=True)
SMALL: dict[str, Any] = {"network.width": 8, "training.learning_rate": 0.02, "training.batch_size": 256}
ITEMS, VISITORS = 60, 300
NEW = list(range(0, ITEMS, 20))  # 5 % of the items


class Requests(threading.Thread):
    """Sends requests one after the other until it is stopped, and collects status codes and policies' fingerprints."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.done, self.answers = address, threading.Event(), []  # type: ignore[var-annotated]

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=30) as client:
            while not self.done.is_set():
                response = client.post("/v1/recommend", json={"k": 3})
                self.answers.append((response.status_code, response.json().get("fingerprint")))


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("life")
    shop = Shop(replace(WORLDS["demo"], items=ITEMS, k=3, categories=6), 1)

    # Day 1. Some items do not exist yet.
    write_log(shop, 600, folder / "log", seed=1)
    events, items = (pl.read_parquet(folder / f"log/{name}.parquet") for name in ("events", "items"))
    events.filter(~pl.col("item").is_in(NEW)).write_parquet(folder / "day-1.parquet")
    items.filter(~pl.col("item").is_in(NEW)).write_parquet(folder / "items-1.parquet")
    items.filter(pl.col("item").is_in(NEW)).write_parquet(folder / "new-items.parquet")
    first_data = offrec.prepare(folder / "day-1.parquet", out=folder / "data-1", items=str(folder / "items-1.parquet"))
    first = offrec.train(first_data, folder / "run-1", settings={**SMALL, "training.epochs": 3}, console=QUIET)
    shutil.copytree(folder / "run-1", folder / "live")

    served: dict[str, Any] = {"live": folder / "live"}
    options = {"new_items": (str(folder / "new-items.parquet"),), "seed": 3}
    log = {"log": folder / "decisions", "log_options": DecisionLogOptions(flush_seconds=0.1)}
    with open_client(served, **options, **log) as client:
        address = str(client.base_url)
        shop.rollout(RemotePlayer(shop.dynamics, address, connections=1), VISITORS, seed=5)

        # Day 2, while the server runs.
        second_data = offrec.prepare(
            folder / "decisions",
            out=folder / "data-2",
            format="served",
            items=str(folder / "log/items.parquet"),
            split_parts=(6, 1, 3),
        )
        second = offrec.train(second_data, folder / "run-2", start_from=folder / "run-1", console=QUIET)
        requests = Requests(address)
        requests.start()
        wait_until(lambda: len(requests.answers) > 2)
        before = client.get("/v1/policies").json()
        with publish_folder(folder / "live", replace=True) as temporary:
            shutil.copytree(folder / "run-2", temporary, dirs_exist_ok=True)
        reload = client.post("/v1/reload", json={})
        reloaded_at = len(requests.answers)
        wait_until(lambda: len(requests.answers) > reloaded_at + 2)
        requests.done.set()
        requests.join()
        after = client.get("/v1/policies").json()
    return locals()


def test_new_items_are_served_before_any_training_knows_them(life: dict[str, Any]) -> None:
    records, _ = read_records(life["folder"] / "decisions")
    shown = {item for record in records if record["kind"] == "list" for item in record["items"]}
    assert shown & set(NEW)


def test_the_next_policy_starts_from_the_first_and_knows_new_items(life: dict[str, Any]) -> None:
    start = read_run(life["folder"] / "run-2")["start"]
    second = life["second_data"]
    known_before = set(life["first_data"].vocabulary.ids.tolist())
    new = [item for item in second.vocabulary.ids.tolist() if item not in known_before]
    assert set(new) <= set(NEW)
    assert new
    assert start["items"]["new"] == len(new)
    assert start["items"]["matched"] == second.n_items - len(new)


def test_both_policies_are_evaluated_on_the_second_day(life: dict[str, Any]) -> None:
    first, second = (offrec.evaluate(life[name], life["second_data"]) for name in ("first", "second"))
    assert second.unknown == 0
    assert offrec.evaluate(life["first"], life["second_data"], "all").unknown > 0
    assert first.metrics["all"].events == second.metrics["all"].events


def test_the_served_log_estimates_the_next_policy(life: dict[str, Any]) -> None:
    options = EstimateOptions(estimators=("importance", "self_normalised"), refits=0)
    (estimate,) = offrec.estimate({"next": life["second"]}, life["second_data"], options, QUIET).policies
    assert set(estimate.assessments) == {"importance", "self_normalised"}
    assert all(assessment.interval.estimate > 0 for assessment in estimate.assessments.values())


def test_no_request_fails_while_the_policy_is_replaced(life: dict[str, Any]) -> None:
    assert life["reload"].status_code == 200, life["reload"].text
    assert {status for status, _ in life["requests"].answers} == {200}
    assert len({fingerprint for _, fingerprint in life["requests"].answers}) == 2
    assert life["before"] != life["after"]
