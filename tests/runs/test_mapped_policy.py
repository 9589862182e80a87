"""A policy in the item indices of a larger catalogue has the same probabilities, and does not show other items."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import trained

from offrec.catalogue import logsumexp
from offrec.data.vocabulary import Vocabulary
from offrec.models.mapped_policy import MappedPolicy
from offrec.policy import batch_from_histories

LARGER = Vocabulary(np.array([500, 103, 101, 501, 100, 102]))  # 100 to 103 are those of the policy
OUTER = torch.tensor([4, 2, 5, 1])  # their indices
SESSIONS = [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]] * 6
LISTS = [[(at, [item, (item + 2) % 4], 0.5, at) for at, item in enumerate(session)] for session in SESSIONS]


@pytest.mark.usefixtures("quick_logging_policy")
@pytest.mark.parametrize(("algorithm", "settings"), [("sl", {}), ("dqn", {"algorithm.delta": 0.1})])
def test_probabilities_stay_the_same(
    tmp_path: Path, make_dataset: Any, algorithm: str, settings: dict[str, Any]
) -> None:
    policy = trained(
        make_dataset(tmp_path, SESSIONS, splits=(16, 4, 4)), tmp_path / "run", algorithm=algorithm, settings=settings
    )
    mapped = MappedPolicy(policy, LARGER)
    own = policy.head(batch_from_histories([[0, 2], [], [3]], 4, policy.history, policy.device))
    # Item 500 is unknown to the policy, so the second history is empty for it.
    outer = mapped.head(batch_from_histories([[4, 0, 5], [0], [1]], 6, policy.history, policy.device))
    items = torch.arange(4).expand(3, -1)
    torch.testing.assert_close(outer.at(OUTER.expand(3, -1)), own.at(items))
    torch.testing.assert_close(logsumexp(outer), logsumexp(own))
    assert (outer.at(torch.tensor([[0, 3]] * 3)) < -1e29).all()


def test_sessions_of_a_user_model_plan_the_same_lists(tmp_path: Path, make_dataset: Any) -> None:
    dataset = make_dataset(tmp_path, SESSIONS, splits=(16, 4, 4), decisions=LISTS)
    policy = trained(dataset, tmp_path / "run", algorithm="user-model")
    mapped = MappedPolicy(policy, LARGER)
    own, outer = policy.start_sessions(2), mapped.start_sessions(2)
    rows = torch.tensor([0, 1])
    own.observe(rows, torch.tensor([[0, 1], [2, 3]]), torch.tensor([1, 4]))  # the second list is ignored
    outer.observe(rows, OUTER[torch.tensor([[0, 1], [2, 3]])], torch.tensor([2, 6]))
    outer.observe(rows[:1], torch.tensor([[4, 0]]), torch.tensor([0]))  # a pick of item 500 says nothing about others
    torch.testing.assert_close(
        outer.head(rows).at(OUTER.expand(2, -1)), own.head(rows).at(torch.arange(4).expand(2, -1))
    )
    with pytest.raises(ValueError, match="does not contain 103"):
        MappedPolicy(policy, Vocabulary(np.array([100, 101, 102])))
