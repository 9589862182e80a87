"""Scores of popular, recent and Markov, each worked by hand on four small sessions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.baselines import BASELINES, baseline
from offrec.baselines.sparse import TIE
from offrec.catalogue import reference
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError
from offrec.policy import Policy

# Item 4 stands only in the last two sessions, which are not for training.
SESSIONS = [[0, 1, 2], [1, 2], [2, 3], [0, 0, 3], [4], [4]]
SHARE = [0.3, 0.2, 0.3, 0.2, 0.0]
COUNTS_EVENTS = [name for name in BASELINES if BASELINES[name].needs_only_events]


def scores(policy: Policy, *history: int) -> list[float]:
    """Return the scores without popularity; 0 for an item without a score."""
    head = policy.head(batch_from_histories([list(history)], policy.n_items, policy.history, policy.device))
    beyond = reference.logits(head)[0] - TIE * torch.tensor(SHARE, dtype=torch.double)
    return [float(value) - TIE if value > TIE / 2 else 0.0 for value in beyond]


@pytest.fixture
def dataset(make_dataset: Any, tmp_path: Path) -> Any:
    return make_dataset(tmp_path, SESSIONS)


def test_popular_ranks_by_training_events(dataset: Any) -> None:
    policy = baseline("popular", dataset)
    head = policy.head(batch_from_histories([[], [3]], 5, 50, policy.device))
    assert (reference.logits(head) / TIE).tolist() == [pytest.approx(SHARE)] * 2
    assert policy.recommend([103], k=5).items == [100, 102, 101, 103, 104]


def test_recent_ranks_by_the_latest_position(dataset: Any) -> None:
    policy = baseline("recent", dataset)
    assert scores(policy, 3, 1, 3, 2, 2) == pytest.approx([0, 1 / 4, 1, 1 / 3, 0])
    assert scores(policy) == [0] * 5
    assert policy.recommend([103, 101, 103, 102, 102], k=5).items == [102, 103, 101, 100, 104]


def test_recent_reads_only_its_history(dataset: Any) -> None:
    assert scores(baseline("recent", dataset, history=2), 0, 1, 2) == pytest.approx([0, 1 / 2, 1, 0, 0])


def test_markov_counts_direct_successors(dataset: Any) -> None:
    policy = baseline("markov", dataset)
    # 0 → 1, 0, 3 once each; 1 → 2 twice; 2 → 3 once; 3 ends its sessions; 4 is not in training
    assert scores(policy, 2, 0) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert scores(policy, 1) == pytest.approx([0, 0, 1, 0, 0])
    assert scores(policy, 2) == pytest.approx([0, 0, 0, 1, 0])
    assert scores(policy, 3) == scores(policy, 4) == scores(policy) == [0] * 5


def test_markov_weights_successors_by_count(make_dataset: Any, tmp_path: Path) -> None:
    policy = baseline("markov", make_dataset(tmp_path, [[0, 1, 0, 1, 0, 2, 0, 0], [2, 0, 1, 2], [2], [0]]))
    head = policy.head(batch_from_histories([[2, 0]], 3, 50, policy.device))
    # after 0: 0 once, 1 three times, 2 once; shares of the twelve events: 6, 3, 3
    expected = [1 / 5 + TIE * 1.5, 3 / 5 + TIE * 1.25, 1 / 5 + TIE * 1.25]
    assert reference.logits(head)[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", COUNTS_EVENTS)
def test_every_baseline_is_a_policy(dataset: Any, name: str) -> None:
    policy = baseline(name, dataset)
    assert policy.name == name
    histories: list[list[int]] = [[], [4], [0, 1, 2], [3] * 60]
    head = policy.head(batch_from_histories(histories, 5, policy.history, policy.device))
    z = reference.logits(head)
    assert z.shape == (4, 5)
    assert (head.state.shape, head.table.shape) == ((4, 0), (5, 0))
    if name not in ("mean-reward", "total-reward"):  # without a history, popularity orders the items
        assert torch.allclose(z[0], TIE * torch.tensor(SHARE, dtype=torch.double), atol=0)
    one_by_one = [
        policy.head(batch_from_histories([history], 5, policy.history, policy.device)) for history in histories
    ]
    torch.testing.assert_close(z, torch.cat([reference.logits(single) for single in one_by_one]))


@pytest.mark.parametrize("name", COUNTS_EVENTS)
def test_a_baseline_does_not_depend_on_validation_and_test_sessions(
    make_dataset: Any, tmp_path: Path, name: str
) -> None:
    """Other sessions outside the training split, with transitions that training lacks, change no score.

    Item neighbours choose their options on validation sessions; their scores must not depend on test sessions.
    """
    train, histories = SESSIONS[:4], [[], [0], [1, 2], [4], [3, 4, 0]]
    outside = ([[4], [4]], [[0, 4, 0, 4], [2, 4, 1, 0, 4]], [[3, 0, 2, 4], [0, 4, 3, 0, 4]])
    scores_by_log = []
    for validation, test in outside[1:], outside[::2], outside[:2]:
        dataset = make_dataset(tmp_path, [*train, *validation, *test], splits=(4, len(validation), len(test)), items=5)
        policy = baseline(name, dataset)
        head = policy.head(batch_from_histories(histories, 5, policy.history, policy.device))
        scores_by_log.append(reference.logits(head))
    assert torch.equal(scores_by_log[1], scores_by_log[2])  # the same validation sessions, other test sessions
    if name != "item-neighbours":
        assert torch.equal(scores_by_log[0], scores_by_log[1])


def test_an_unknown_baseline_is_refused_with_the_known_ones(dataset: Any) -> None:
    with pytest.raises(InputError, match=r"the known ones are popular, .*, vsknn"):
        baseline("random", dataset)
