"""Logged probabilities equal the frequencies of sampled lists, counted over many requests to a service."""

import asyncio
import math
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from random_runs import write_run
from scipy import stats
from small_server import open_service, read_records

from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.schemas import RecommendRequest

REQUESTS = 3000


@pytest.mark.parametrize("fields", [{}, {"temperature": 2.5}, {"exclude": [3]}, {"candidates": [1, 2, 4, 5]}])
def test_frequencies_match_the_logged_probabilities(tmp_path: Path, fields: dict[str, object]) -> None:
    """Six items, lists of two. The probability of every list comes from the log; the test computes none."""
    run = write_run(tmp_path / "run", list(range(6)), network_repeat="off")  # repeats would crowd out other items
    options = DecisionLogOptions(flush_seconds=0.05)
    with open_service({"run": run}, seed=7, log=tmp_path / "log", log_options=options) as service:

        async def send_requests() -> None:
            request = RecommendRequest.model_validate({"history": [2, 0], "k": 2, "sample": True, **fields})
            for _ in range(REQUESTS // 600):
                await asyncio.gather(*(service.recommend(request) for _ in range(600)))

        asyncio.run(send_requests())
    records, torn = read_records(tmp_path / "log")
    assert len(records) == REQUESTS
    assert torn == 0
    counts = Counter(tuple(record["items"]) for record in records)
    probabilities = {tuple(record["items"]): math.exp(record["log_probability"]) for record in records}
    for record in records:
        product = math.prod(record["position_probabilities"])
        assert product == pytest.approx(probabilities[tuple(record["items"])], rel=1e-6)
    assert all(record["restricted"] == bool({"exclude", "candidates"} & fields.keys()) for record in records)
    allowed = [item for item in fields.get("candidates", range(6)) if item not in fields.get("exclude", [])]  # type: ignore
    assert set(counts) == set(permutations(allowed, 2)), "every list occurred"
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    observed = [counts[items] for items in probabilities]
    expected = [REQUESTS * probability / sum(probabilities.values()) for probability in probabilities.values()]
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    uniform = [REQUESTS / len(probabilities)] * len(probabilities)
    assert stats.chisquare(observed, uniform).pvalue < 1e-6, "the test can fail"
