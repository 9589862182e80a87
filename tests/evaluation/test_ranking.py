"""`evaluate` compared with a dense loop over sessions that shares no code with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.evaluation import ScoredEvents, evaluate, ranks, scored_events
from offrec.evaluation.metrics import METRICS
from offrec.policy import Policy
from offrec.types import Batch

HISTORY, ITEMS = 3, 30
KS = (1, 5, 10)


class Random(Policy):
    """A policy that depends on the last items. Its scores are coarse, so that many are equal."""

    name = "random"

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset.vocabulary, HISTORY, torch.device("cpu"))
        random = np.random.default_rng(0)
        self.inner = random.integers(-2, 3, (ITEMS + 1, 4)).astype(np.float64)
        self.inner[ITEMS] = 0
        self.table = random.integers(-2, 3, (ITEMS, 4)).astype(np.float64)
        self.bonus = np.array([8.0, 4.0, 2.0])
        self.rows = 0

    def head(self, batch: Batch) -> Head:
        self.rows += len(batch)
        assert len(batch.segment.unique()) == len(batch.tokens), "a piece is gathered for nothing"
        recent = batch.recent
        bonus = torch.tensor(self.bonus)[: recent.shape[1]].expand(recent.shape)
        return Head(torch.tensor(self.inner)[recent].sum(1), torch.tensor(self.table), None, recent, bonus)

    def dense(self, history: list[int]) -> np.ndarray:
        recent = history[::-1][:HISTORY]
        scores = self.table @ self.inner[recent].sum(0)
        for item, bonus in zip(recent, self.bonus, strict=False):
            scores[item] += bonus
        return scores


def sessions_and_names(seed: int = 0) -> tuple[list[list[int]], list[list[str]]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, 40)
    sessions = [random.integers(0, ITEMS, length).tolist() for length in lengths]
    sessions[:20] = [[item % 20 for item in session] for session in sessions[:20]]  # items 20 … 29 are not in training
    names = [["cart" if random.random() < 0.3 else "view" for _ in session] for session in sessions]
    return sessions, names


def expected(policy: Random, sessions: list[list[int]], names: list[list[str]], protocol: dict[str, Any]) -> Any:
    """(behaviour, rank, top items) of each scored event of the last ten sessions."""
    trained = {item for session in sessions[:20] for item in session}
    for session, behaviours in zip(sessions[30:], names[30:], strict=True):
        for t, item in enumerate(session):
            if t == 0 and not protocol.get("score_first", True):
                continue
            if protocol.get("unseen") == "drop" and item not in trained:
                continue
            if protocol.get("score_last") and t < len(session) - protocol["score_last"]:
                continue
            scores = policy.dense(session[:t])
            rank = 1 + sum(scores[other] >= scores[item] for other in range(ITEMS) if other != item)
            yield behaviours[t], rank, sorted(range(ITEMS), key=lambda a: (-scores[a], a))


PROTOCOLS = [
    {},
    {"score_first": False},
    {"unseen": "drop"},
    {"score_last": 1},
    {"score_last": 2},
    {"score_first": False, "unseen": "drop", "score_last": 3},
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_evaluate_equals_the_dense_loop(
    make_dataset: Any, tmp_path: Path, protocol: dict[str, Any], batch_size: int
) -> None:
    sessions, names = sessions_and_names()
    dataset = make_dataset(tmp_path, sessions, names, (20, 10, 10), items=ITEMS, **protocol)
    policy = Random(dataset)
    rows = list(expected(policy, sessions, names, protocol))
    found = evaluate(policy, dataset, "test", KS, batch_size=batch_size)
    assert policy.rows == len(rows)
    assert found.ranks.rank.tolist() == [rank for _, rank, _ in rows]
    assert [dataset.behaviours[index] for index in found.ranks.behaviour] == [name for name, _, _ in rows]
    for name in ("all", "view", "cart"):
        mine = [(rank, top) for behaviour, rank, top in rows if name in ("all", behaviour)]
        assert found.metrics[name].events == len(mine)
        for k in KS:
            for metric, record in METRICS.items():
                value = np.mean([record.compute(np.array([rank]), k)[0] for rank, _ in mine])
                assert found.metrics[name][f"{metric}@{k}"] == pytest.approx(value)
            shown = {item for _, top in mine for item in top[:k]}
            assert found.metrics[name][f"coverage@{k}"] == pytest.approx(len(shown) / ITEMS)


def test_ranks_without_metrics_are_the_same(make_dataset: Any, tmp_path: Path) -> None:
    sessions, names = sessions_and_names()
    dataset = make_dataset(tmp_path, sessions, names, (20, 10, 10), items=ITEMS)
    policy = Random(dataset)
    alone, full = ranks(policy, dataset, "validation"), evaluate(policy, dataset, "validation").ranks
    assert alone.rank.tolist() == full.rank.tolist()
    assert alone.event.tolist() == full.event.tolist() == list(range(dataset.split("train").events, full.event[-1] + 1))
    assert alone.metrics((5,))["HR@5"] == pytest.approx((alone.rank <= 5).mean())


def test_another_protocol_changes_the_scored_events_and_the_fingerprint(make_dataset: Any, tmp_path: Path) -> None:
    sessions, names = sessions_and_names()
    dataset = make_dataset(tmp_path, sessions, names, (20, 10, 10), items=ITEMS)
    changed = dataset.with_protocol(score_first=False)
    first, second = evaluate(Random(dataset), dataset), evaluate(Random(dataset), changed)
    assert second.metrics["all"].events == first.metrics["all"].events - 10
    assert first.fingerprint != second.fingerprint
    assert second.protocol["score_first"] is False


def test_json_contains_what_makes_metrics_comparable(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1, 2], [1, 2], [2, 0, 1]], items=ITEMS)
    stored = json.loads(json.dumps(evaluate(Random(dataset), dataset).as_json()))
    assert stored["policy"] == "random"
    assert stored["split"] == "test"
    assert stored["fingerprint"] == dataset.fingerprint
    assert stored["protocol"]["score_first"] is True
    assert stored["dataset"] == {"sessions": 3, "events": 8, "items": ITEMS}
    names = {f"{metric}@{k}" for metric in ("HR", "NDCG", "MRR", "reward", "coverage") for k in (5, 10, 20)}
    assert set(stored["metrics"]) == {"all", "view"}
    assert set(stored["metrics"]["all"]) == {"events", *names}


class Broken(Policy):
    name = "broken"

    def head(self, batch: Batch) -> Head:
        bias = torch.tensor([3.0, 2.0, 1.0, 0.0])
        bad = torch.full((len(batch), 1), torch.nan)
        return Head(torch.zeros(len(batch), 0), torch.zeros(4, 0), bias, torch.full((len(batch), 1), 3), bad)


def test_nan_scores_count_against_the_policy(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0], [0], [0, 3, 2]], items=4)
    found = evaluate(Broken(dataset.vocabulary, 5, torch.device("cpu")), dataset, ks=(1, 2))
    assert found.ranks.rank.tolist() == [2, 4, 4]
    assert found.metrics["all"]["coverage@1"] == 0.0  # the only item before the others has a NaN score
    assert found.metrics["all"]["coverage@2"] == 0.25


def test_progress_counts_scored_events(make_dataset: Any, tmp_path: Path) -> None:
    sessions, names = sessions_and_names()
    dataset = make_dataset(tmp_path, sessions, names, (20, 10, 10), items=ITEMS, score_last=1)
    steps: list[tuple[int, int]] = []
    evaluate(Random(dataset), dataset, batch_size=4, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(4, 10), (8, 10), (10, 10)]


def test_a_split_without_scored_events_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1], [1], [2]], items=ITEMS, score_first=False)
    with pytest.raises(InputError, match="The test split has no scored events"):
        evaluate(Random(dataset), dataset)


def test_lists_of_length_0_are_refused(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [[0, 1], [1], [2]], items=ITEMS)
    with pytest.raises(InputError, match="lengths of at least 1"):
        evaluate(Random(dataset), dataset, ks=(0, 5))


def test_batches_of_scored_events_can_be_cached(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, names = sessions_and_names()
    dataset = make_dataset(tmp_path, sessions, names, (20, 10, 10), items=ITEMS, score_first=False)
    policy = Random(dataset)
    fresh = ScoredEvents.for_policy(policy, dataset, "test", 7)
    kept = ScoredEvents.for_policy(policy, dataset, "test", 7).cache_batches()
    assert fresh.cached is None
    assert kept.cached is not None
    for batch in kept.batches():
        torch.testing.assert_close(batch.weight, torch.full((len(batch),), 1 / len(batch)))
    for _ in range(2):
        assert kept.ranks(policy).rank.tolist() == fresh.ranks(policy).rank.tolist()
    held = sum(batch.nbytes for batch in kept.cached)
    assert held <= kept.bytes - kept.replay.bytes
    monkeypatch.setattr(scored_events, "CACHE_BYTES", 10)
    assert ScoredEvents.for_policy(policy, dataset, "test", 7).cache_batches().cached is None, "too large for the cache"
