"""The frequencies of sampled lists agree with the recorded propensities."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from offrec.shop import Shop, write_log
from offrec.shop.worlds import WORLDS


def test_ordered_lists_have_the_recorded_propensity(tmp_path: Path) -> None:
    """Six items, lists of three, first steps of identical visitors: 120 ordered lists."""
    shop = Shop(replace(WORLDS["tiny"], name="three", k=3), 0)
    write_log(shop, 20_000, tmp_path / "log", seed=5)
    first = pl.read_parquet(tmp_path / "log/full.parquet").filter(pl.col("step") == 0)
    lists = np.stack(first["offered"].to_numpy())
    chance = {
        int(item): p for item, p in zip(lists[:, 0], np.stack(first["propensities"].to_numpy())[:, 0], strict=True)
    }
    assert abs(sum(chance.values()) - 1) < 1e-5
    counts, exact, without = [], [], []
    for a, b, c in np.unique(lists, axis=0).tolist():
        mine = (lists == (a, b, c)).all(1)
        p, q, r = chance[a], chance[b], chance[c]
        counts.append(mine.sum())
        exact.append(p * q / (1 - p) * r / (1 - p - q))
        without.append(p * q * r)
        np.testing.assert_allclose(first["propensity"].to_numpy()[mine], exact[-1], rtol=1e-4)
    assert len(counts) == 120
    observed = np.array(counts)
    expected, wrong = (len(lists) * np.array(ps) / sum(ps) for ps in (exact, without))
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    assert stats.chisquare(observed, wrong).pvalue < 1e-6, "the test must be able to fail"
