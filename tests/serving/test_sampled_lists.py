"""The logged probabilities are those by which lists come: counted over many requests, through the whole server."""

import asyncio
import math
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from random_runs import write_run
from scipy import stats
from small_server import records, service_of

from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.schemas import Recommend

DRAWS = 3000


@pytest.mark.parametrize("asked", [{}, {"temperature": 2.5}, {"exclude": [3]}, {"candidates": [1, 2, 4, 5]}])
def test_frequencies_match_the_logged_probabilities(tmp_path: Path, asked: dict[str, object]) -> None:
    """Six items, lists of two; the chance of every list is taken from the log, none is worked out here."""
    run = write_run(tmp_path / "run", list(range(6)), network_repeat="off")  # else those seen would crowd out the rest
    log = DecisionLogOptions(flush_seconds=0.05)
    with service_of({"run": run}, seed=7, log=tmp_path / "log", log_options=log) as service:

        async def ask_all() -> None:
            message = Recommend.model_validate({"history": [2, 0], "k": 2, "sample": True, **asked})
            for _ in range(DRAWS // 600):
                await asyncio.gather(*(service.recommend(message) for _ in range(600)))

        asyncio.run(ask_all())
    found, torn = records(tmp_path / "log")
    assert len(found) == DRAWS
    assert torn == 0
    counts = Counter(tuple(record["items"]) for record in found)
    chances = {tuple(record["items"]): math.exp(record["log_probability"]) for record in found}
    for record in found:
        assert math.prod(record["position_probabilities"]) == pytest.approx(chances[tuple(record["items"])], rel=1e-6)
    assert all(record["restricted"] == bool({"exclude", "candidates"} & asked.keys()) for record in found)
    allowed = [item for item in asked.get("candidates", range(6)) if item not in asked.get("exclude", [])]  # type: ignore
    assert set(counts) == set(permutations(allowed, 2)), "every list came"
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-5)
    observed = [counts[items] for items in chances]
    expected = [DRAWS * chance / sum(chances.values()) for chance in chances.values()]
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    independent = [DRAWS / len(chances)] * len(chances)
    assert stats.chisquare(observed, independent).pvalue < 1e-6, "the test must be able to fail"
