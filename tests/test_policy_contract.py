"""One contract for every registered policy: learners and baselines alike."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.algorithms import LEARNERS
from offrec.algorithms.user_model import UserModel
from offrec.baselines import BASELINES, baseline
from offrec.catalogue import reference
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError
from offrec.models.agent import Agent
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.network_policy import NetworkPolicy
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.policy import Policy, SkipRecent
from offrec.training import checkpoint
from offrec.training.module_state import load_module
from small_datasets import small_properties

CPU = torch.device("cpu")
ITEMS, HISTORY = 12, 4
IDS = [f"item-{number}" for number in range(ITEMS)]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Dataset:
    sessions = [[(start + 3 * step) % ITEMS for step in range(2 + start % 4)] for start in range(30)]
    lists = [[(0, [session[0], (session[0] + 1) % ITEMS], 0.5, 0)] for session in sessions]
    properties = small_properties(ITEMS)
    made: Dataset = make_dataset(
        tmp_path, sessions, splits=(24, 3, 3), items=ITEMS, ids=IDS, decisions=lists, properties=properties
    )
    return made


def learner(name: str, dataset: Dataset, seed: int = 0) -> NetworkPolicy:
    """An untrained policy: its weights are random, its interface is that of a trained one."""
    torch.manual_seed(seed)
    options = NetworkOptions(width=8, history=HISTORY)
    made = LEARNERS[name].learner()
    if isinstance(made, UserModel):
        agent: Agent | UserModelAgent = build_user_agent(ITEMS, made, options, LogShape.of(dataset))
    else:
        agent = Agent(ITEMS, made, options, restored=True)
    return NetworkPolicy(name, agent, dataset.vocabulary, CPU, dataset.meta["data_hash"])


@pytest.fixture(
    params=[*(("learner", name) for name in LEARNERS), *(("baseline", name) for name in BASELINES)], ids=str
)
def policy(request: pytest.FixtureRequest, dataset: Dataset) -> Policy:
    kind, name = request.param
    return learner(name, dataset) if kind == "learner" else baseline(name, dataset, HISTORY, CPU)


def test_the_head_scores_every_item_for_every_history(policy: Policy) -> None:
    histories = [[], [3], [1, 2, 1, 5, 6, 7]]
    head = policy.head(batch_from_histories(histories, ITEMS, HISTORY, CPU))
    scores = reference.logits(head)
    assert scores.shape == (3, ITEMS)
    assert not scores.isnan().any()


def test_recommend_returns_k_distinct_items_in_the_order_of_their_scores(policy: Policy) -> None:
    for history in ([], ["item-1"], ["item-1", "item-4", "item-1"]):
        for k in (1, 5, ITEMS):
            answer = policy.recommend(history, k)
            assert len(set(answer.items)) == len(answer.items) == len(answer.scores) == k
            assert set(answer.items) <= set(IDS)
            assert answer.scores == sorted(answer.scores, reverse=True)


def test_probabilities_sum_to_one_if_the_policy_is_stochastic(policy: Policy) -> None:
    answer = policy.recommend(["item-2"], ITEMS)
    if not policy.stochastic:
        assert answer.probabilities is None
        return
    assert answer.probabilities is not None
    assert sum(answer.probabilities) == pytest.approx(1.0, abs=1e-5)
    assert answer.probabilities == sorted(answer.probabilities, reverse=True)


def test_excluded_items_are_not_recommended(policy: Policy) -> None:
    history, excluded = ["item-0", "item-3"], ["item-5", "item-6"]
    answer = policy.recommend(history, ITEMS, exclude_seen=True, exclude=excluded)
    assert set(answer.items) == set(IDS) - {*history, *excluded}
    assert set(policy.recommend(history, 5, candidates=["item-1", "item-2"]).items) == {"item-1", "item-2"}
    with pytest.raises(InputError, match="No item is left"):
        policy.recommend(history, 1, exclude=IDS)


@pytest.mark.parametrize("picks", [0, 1, 2, 3, HISTORY, 9])
def test_skipping_recent_picks_moves_them_behind_all_other_items(policy: Policy, picks: int) -> None:
    skipping = SkipRecent(policy, picks)
    for history in ([], ["item-3"], ["item-1", "item-4", "item-4", "item-1"], ["item-9", "item-2", "item-2", "item-5"]):
        plain = policy.recommend(history, ITEMS).items
        recent = set(history[len(history) - min(picks, len(history)) :])
        expected = [item for item in plain if item not in recent] + [item for item in plain if item in recent]
        assert skipping.recommend(history, ITEMS).items == expected
        assert policy.recommend(history, ITEMS, skip_recent=picks).items == expected


def test_skipped_picks_have_no_probability_unless_nothing_else_is_left(policy: Policy) -> None:
    if not policy.stochastic:
        return
    answer = policy.recommend(["item-1", "item-4", "item-1"], ITEMS, skip_recent=2)
    assert answer.probabilities is not None
    assert answer.items[-2:] in (["item-1", "item-4"], ["item-4", "item-1"])
    assert answer.probabilities[-2:] == [0.0, 0.0]
    assert sum(answer.probabilities) == pytest.approx(1.0, abs=1e-5)


def test_a_negative_number_of_skipped_picks_is_refused(policy: Policy) -> None:
    with pytest.raises(InputError, match="skip_recent must be at least 0; got -1"):
        policy.recommend([], 1, skip_recent=-1)
    with pytest.raises(InputError, match="skip_recent must be at least 0; got -1"):
        SkipRecent(policy, -1)


@pytest.mark.parametrize("k", [0, -1, ITEMS + 1])
def test_k_outside_the_catalogue_is_refused(policy: Policy, k: int) -> None:
    with pytest.raises(InputError, match=f"between 1 and {ITEMS}"):
        policy.recommend([], k)


def test_unknown_items_are_skipped_and_counted(policy: Policy) -> None:
    known, mixed = policy.recommend(["item-1"], 5), policy.recommend(["nowhere", "item-1", "nothing"], 5)
    assert (known.unknown, mixed.unknown) == (0, 2)
    assert (known.items, known.scores) == (mixed.items, mixed.scores)


def test_a_history_longer_than_the_policy_reads_changes_nothing(policy: Policy) -> None:
    last = ["item-7", "item-2", "item-9", "item-4"]
    assert policy.recommend(["item-1", "item-3", *last], 5) == policy.recommend(last, 5)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_depends_only_on_its_seed(name: str, dataset: Dataset) -> None:
    first, again, other = (learner(name, dataset, seed).recommend(["item-1"], ITEMS) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", LEARNERS)
def test_a_saved_learner_is_loaded_unchanged(name: str, dataset: Dataset, tmp_path: Path) -> None:
    saved, loaded = learner(name, dataset, 0), learner(name, dataset, 1)
    tensors = {f"module.{key}": value for key, value in saved.agent.state_dict().items()}
    checkpoint.save(tmp_path / "best.safetensors", tensors, {"epoch": 3})
    assert load_module(loaded.agent, tmp_path / "best.safetensors") == {"epoch": 3}
    assert saved.recommend(["item-1", "item-8"], ITEMS) == loaded.recommend(["item-1", "item-8"], ITEMS)
