"""A loaded policy is a snapshot of its run folder, and is checked before it is served."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_runs import write_run
from small_server import open_client, open_service

from offrec.errors import InputError
from offrec.models.network_policy import NetworkPolicy
from offrec.runs import loading
from offrec.serving import server
from offrec.serving.served_policy import Baseline, load_policy, parse_sources
from small_datasets import write_dataset


def test_item_ids_stay_when_the_folder_is_overwritten_in_place(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [100, 101, 102])
    policy = load_policy("run", run, "cpu").policy
    with (run / "item_ids.npy").open("r+b") as file:
        file.seek(-24, 2)
        file.write(np.array([7, 8, 9], np.int64).tobytes())
    assert [policy.vocabulary.id(index) for index in range(3)] == [100, 101, 102]


def test_a_link_that_changes_during_a_load_mixes_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (write_run(tmp_path / name, list(range(20)), seed=seed) for seed, name in enumerate("ab"))
    expected = load_policy("run", old, "cpu").fingerprint
    link, real = tmp_path / "live", loading.load
    link.symlink_to(old)

    def load_and_switch(run: Path, *rest: Any, **options: Any) -> NetworkPolicy:
        policy = real(run, *rest, **options)
        link.unlink()
        link.symlink_to(new)
        return policy

    monkeypatch.setattr(loading, "load", load_and_switch)
    assert load_policy("run", link, "cpu").fingerprint == expected
    monkeypatch.undo()
    assert load_policy("run", link, "cpu").fingerprint != expected


def test_products_are_measured_before_a_server_starts_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement changes the number of threads of products, which a thread that starts meanwhile would keep."""
    running = []
    monkeypatch.setattr(server, "has_fast_int8", lambda: running.append(set(threading.enumerate())))
    before = set(threading.enumerate())
    with open_service({"live": write_run(tmp_path / "run", list(range(20)))}):
        assert len(running) == 1
        assert running[0] <= before
        assert set(threading.enumerate()) - before


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", list(range(20)), spread=float("nan"))
    with pytest.raises(InputError, match="NaN or infinite weights"):
        load_policy("run", run, "cpu")


def test_policies_are_named_after_their_folder_or_as_given(tmp_path: Path) -> None:
    (tmp_path / "live").symlink_to(tmp_path)
    sources = parse_sources((f"{tmp_path}/live", "new=runs/dc"), ("recent",), tmp_path)
    assert sources == {"live": tmp_path / "live", "new": Path("runs/dc"), "recent": Baseline("recent", tmp_path)}
    with pytest.raises(InputError, match="'recent'"):
        parse_sources(("recent=runs/dc",), ("recent",), tmp_path)
    with pytest.raises(InputError, match="--dataset"):
        parse_sources((), ("recent",))


def test_baselines_are_served_like_runs(tmp_path: Path) -> None:
    ids = ["[a]", "b", "c", "d"]
    dataset = write_dataset(tmp_path, [[0, 1, 2], [1, 2], [2, 3], [3, 2, 1]] * 6, ids=ids, items=4)
    sources = parse_sources((), ("popular", "recent", "markov"), dataset.path)
    with open_client(sources) as client:
        policies = client.get("/v1/policies").json()["policies"]
        assert [policy["policy"] for policy in policies] == ["popular", "recent", "markov"]
        assert len({policy["fingerprint"] for policy in policies}) == 3
        response = client.post("/v1/recommend", json={"policy": "recent", "history": ["b", "[a]"], "k": 2})
        assert [row["item"] for row in response.json()["items"]] == ["[a]", "b"]
        assert client.post("/v1/reload", json={}).status_code == 200
