"""SharpeRatio@k by hand, and in the output of estimates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_policies import Fixed

from offrec.commands.estimate_output import print_result
from offrec.errors import InputError
from offrec.estimation.estimate import estimate
from offrec.estimation.options import EstimateOptions
from offrec.estimation.sharpe_ratio import sharpe_ratio, sharpe_ratios
from small_datasets import write_dataset


def test_ratios_by_hand() -> None:
    """By estimate: values 2, 4, 5. Top 2: best 4, deviation 1. Top 3: best 5, variance (25 + 1 + 16) / 9 / 3."""
    estimates, values = [3.0, 1.0, 2.0], [2.0, 5.0, 4.0]
    assert sharpe_ratio(estimates, values, 1.0, 2) == pytest.approx(3.0)
    assert sharpe_ratios(estimates, values, 1.0) == pytest.approx({2: 3.0, 3: 4 / (14 / 9) ** 0.5})
    assert sharpe_ratio(estimates, values, 6.0, 2) == pytest.approx(-2.0)
    assert sharpe_ratio([1.0, 2.0], [3.0, 3.0], 1.0, 2) is None
    assert sharpe_ratios([1.0], [1.0], 0.0) == {}


def test_a_k_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="k is 3 for 2 estimates and 2 values; k must be between 2 and their number"):
        sharpe_ratio([1.0, 2.0], [1.0, 2.0], 0.0, 3)
    with pytest.raises(InputError, match="k is 2 for 2 estimates and 3 values"):
        sharpe_ratio([1.0, 2.0], [1.0, 2.0, 3.0], 0.0, 2)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """Lists of one item, uniform; item i is bought with probability .2 + .2 i."""
    random = np.random.default_rng(0)
    shown = random.integers(3, size=600)
    bought = random.random(600) < 0.2 + 0.2 * shown
    sessions = [[int(item)] if is_bought else [] for item, is_bought in zip(shown, bought, strict=True)]
    decisions = [
        [(0, (int(item),), 1 / 3, 0 if is_bought else None)] for item, is_bought in zip(shown, bought, strict=True)
    ]
    words = [["buy"] * len(session) for session in sessions]
    return write_dataset(tmp_path, sessions, words, (400, 100, 100), items=3, decisions=decisions)


def test_estimates_of_several_policies_have_ratios(log: Any, capsys: pytest.CaptureFixture[str]) -> None:
    policies = {
        name: Fixed(log, logits) for name, logits in (("low", [1, 0, 0]), ("same", [0, 0, 0]), ("high", [0, 0, 1]))
    }
    for policy in policies.values():
        policy.data_hash = "another"
    result = estimate(policies, log)
    values = [one.assessments["self_normalised"].interval.estimate for one in result.policies]
    assert values[0] < values[1] < values[2]
    expected = (values[2] - result.logged.estimate) / np.std(values[1:])
    assert result.sharpe_ratios["self_normalised"][2] == pytest.approx(expected)
    assert result.as_json()["sharpe_ratio"]["self_normalised"].keys() == {"2", "3"}
    print_result(result)
    assert "\nSharpeRatio@3 by self normalised: " in capsys.readouterr().out


def test_estimates_of_one_policy_have_no_ratio(log: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = estimate(Fixed(log, [0.0, 0.0, 1.0]), log, EstimateOptions(estimators=("importance",)))
    assert result.as_json()["sharpe_ratio"] == {}
    print_result(result)
    assert "SharpeRatio" not in capsys.readouterr().out
