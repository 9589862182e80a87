import numpy as np
import pytest

from offrec.evaluation import compute_metrics
from offrec.evaluation.metrics import hit_rate, ndcg, reciprocal_rank

RANK = np.array([1, 2, 3, 5, 6, 20, 21])


def test_hit_rate_by_hand() -> None:
    assert hit_rate(RANK, 5).tolist() == [1, 1, 1, 1, 0, 0, 0]


def test_ndcg_by_hand() -> None:
    # 1 / log2(2), log2(3) = 1.58496, log2(4), log2(6) = 2.58496
    assert ndcg(RANK, 5).tolist() == pytest.approx([1, 0.63093, 0.5, 0.38685, 0, 0, 0], abs=1e-5)


def test_reciprocal_rank_by_hand() -> None:
    assert reciprocal_rank(RANK, 5).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 5, 0, 0, 0])


def test_metrics_are_means_over_events() -> None:
    found = compute_metrics(RANK, (1, 20))
    assert found.events == 7
    assert found["HR@1"] == pytest.approx(1 / 7)
    assert found["HR@20"] == pytest.approx(6 / 7)
    # log2(7) = 2.80735, log2(21) = 4.39232
    gains = 1 + 0.63093 + 0.5 + 0.38685 + 0.35621 + 0.22767
    assert found["NDCG@20"] == pytest.approx(gains / 7, abs=1e-5)
    assert found["MRR@20"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 5 + 1 / 6 + 1 / 20) / 7)
    assert list(found.values) == ["HR@1", "HR@20", "NDCG@1", "NDCG@20", "MRR@1", "MRR@20"]


def test_there_are_no_metrics_without_events() -> None:
    found = compute_metrics(np.array([], dtype=np.int64), (5,), {"coverage@5": 0.0})
    assert (found.events, found.values) == (0, {})


@pytest.mark.parametrize("k", [1, 5, 10, 20])
def test_an_independent_library_agrees(k: int) -> None:
    library = pytest.importorskip("ir_measures", reason="the independent metrics library is not installed")
    random = np.random.default_rng(k)
    events, items = 60, 40
    scores = random.normal(size=(events, items))
    target = random.integers(0, items, events)
    rank = 1 + (scores > scores[np.arange(events), target][:, None]).sum(1)
    qrels = [library.Qrel(str(event), str(item), 1) for event, item in enumerate(target)]
    run = [
        library.ScoredDoc(str(event), str(item), scores[event, item])
        for event in range(events)
        for item in range(items)
    ]
    theirs = library.calc_aggregate([library.Success @ k, library.nDCG @ k, library.RR @ k], qrels, run)
    ours = compute_metrics(rank, (k,))
    assert ours[f"HR@{k}"] == pytest.approx(theirs[library.Success @ k])
    assert ours[f"NDCG@{k}"] == pytest.approx(theirs[library.nDCG @ k])
    assert ours[f"MRR@{k}"] == pytest.approx(theirs[library.RR @ k])
