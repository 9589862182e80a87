"""`evaluate` on a log that the policy was not made from, and without items of the history, next to a plain loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offrec.catalogue import Head
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.evaluation import evaluate
from offrec.evaluation.ranks import MISS
from offrec.policy import Policy
from offrec.types import Batch

ITEMS, HISTORY = 12, 4


class LastItem(Policy):
    """Scores depend on the last item that the policy knows."""

    name = "last item"

    def __init__(self, ids: list[int], data_hash: str | None = None) -> None:
        super().__init__(Vocabulary(np.array(ids)), HISTORY, torch.device("cpu"), data_hash)
        self.scores = torch.from_numpy(np.random.default_rng(3).permutation((len(ids) + 1) * len(ids)).astype(float))
        self.scores = self.scores.reshape(len(ids) + 1, len(ids))

    def head(self, batch: Batch) -> Head:
        state = torch.nn.functional.one_hot(batch.recent[:, 0], self.n_items + 1).double()
        return Head(state, self.scores.T.contiguous())

    def rank(self, history: list[int], item: int, exclude_seen: bool, skip_recent: int) -> float:
        """The rank of an item id after a history of ids; ids that the policy does not know are skipped."""
        ids = np.asarray(self.vocabulary.ids).tolist()
        known = [one for one in history if one in ids]
        if item not in ids or (exclude_seen and item in known[-HISTORY:]):
            return MISS
        scores = dict(zip(ids, self.scores[ids.index(known[-1]) if known else len(ids)].tolist(), strict=True))
        for one in known[-skip_recent:] if skip_recent else []:
            scores[one] -= 1e6 if scores[one] > -1e5 else 0
        seen = known[-HISTORY:] if exclude_seen else []
        others = [score for one, score in scores.items() if one != item and one not in seen]
        return 1 + sum(score >= scores[item] for score in others)


def later(make_dataset: Any, tmp_path: Path) -> tuple[Any, list[list[int]]]:
    """A log of items 100 … 111, and its sessions as item ids."""
    random = np.random.default_rng(0)
    sessions = [random.integers(0, ITEMS, length).tolist() for length in random.integers(1, 9, 24)]
    dataset = make_dataset(tmp_path, sessions, splits=(8, 8, 8), items=ITEMS)
    return dataset, [[100 + item for item in session] for session in sessions]


RULES = [{}, {"exclude_seen": True}, {"skip_recent": 2}, {"exclude_seen": True, "skip_recent": 1}]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("split", ["test", "all"])
@pytest.mark.parametrize(
    "ids", [list(range(100, 112)), [7, 111, 105, 103, 104, 110, 8, 101, 100]], ids=["same", "other"]
)
def test_ranks_equal_those_of_a_plain_loop(
    make_dataset: Any, tmp_path: Path, rules: dict[str, Any], split: Any, ids: list[int]
) -> None:
    dataset, sessions = later(make_dataset, tmp_path)
    policy = LastItem(ids)
    found = evaluate(policy, dataset.with_protocol(**rules), split, batch_size=7)
    exclude, skip = rules.get("exclude_seen", False), rules.get("skip_recent", 0)
    chosen = sessions if split == "all" else sessions[16:]
    expected = [policy.rank(one[:t], item, exclude, skip) for one in chosen for t, item in enumerate(one)]
    assert found.ranks.rank.tolist() == expected
    unknown = sum(item not in ids for one in chosen for item in one)
    assert found.unknown == unknown
    assert (unknown > 0) == (ids[0] == 7)
    assert found.unknown_share == unknown / len(expected)
    assert found.metrics["all"]["HR@20"] == np.mean([rank <= 20 for rank in expected])  # 20 is more than all items
    assert (found.fingerprint != dataset.fingerprint) == bool(rules)


def test_unseen_drop_leaves_out_items_that_the_policy_does_not_know(make_dataset: Any, tmp_path: Path) -> None:
    dataset, sessions = later(make_dataset, tmp_path)
    policy = LastItem([105, 103, 104])
    found = evaluate(policy, dataset.with_protocol(unseen="drop"), "all")
    assert found.unknown == 0
    assert len(found.ranks.rank) == sum(item in (103, 104, 105) for one in sessions for item in one)


def test_unseen_drop_depends_on_where_a_policy_was_trained_and_not_on_equal_catalogues(
    make_dataset: Any, tmp_path: Path
) -> None:
    """Item 102 occurs in no training session of this log. Policies of another log know it from there."""
    dataset = make_dataset(tmp_path, [[0, 1], [1, 0], [0, 2, 1]], splits=(1, 1, 1), items=3)
    dataset, own = dataset.with_protocol(unseen="drop"), dataset.meta["data_hash"]
    policies = [LastItem([100, 101, 102], own), LastItem([100, 101, 102, 103], own)]
    policies += [LastItem([100, 101, 102], "other"), LastItem([102, 101, 100, 103], "other")]
    assert [len(evaluate(policy, dataset).ranks.rank) for policy in policies] == [2, 2, 3, 3]


def test_coverage_is_a_share_of_the_catalogue_of_the_policy(make_dataset: Any, tmp_path: Path) -> None:
    dataset, _ = later(make_dataset, tmp_path)
    assert evaluate(LastItem([105, 103, 104]), dataset, ks=(3,)).metrics["all"]["coverage@3"] == 1.0


def test_training_sessions_of_the_policy_are_refused(make_dataset: Any, tmp_path: Path) -> None:
    dataset, _ = later(make_dataset, tmp_path)
    policy = LastItem(list(range(100, 112)), dataset.meta["data_hash"])
    with pytest.raises(InputError, match="--split all would evaluate last item on its own training sessions"):
        evaluate(policy, dataset, "all")


def test_a_log_without_a_known_item_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    dataset, _ = later(make_dataset, tmp_path)
    with pytest.raises(InputError, match=r"knows no item of the scored events of .*; check"):
        evaluate(LastItem([1, 2, 3]), dataset)


def test_fingerprints_without_the_new_rules_are_unchanged(make_dataset: Any, tmp_path: Path) -> None:
    dataset, _ = later(make_dataset, tmp_path)
    assert dataset.with_protocol(exclude_seen=False, skip_recent=0).fingerprint == dataset.fingerprint
    assert "skip_recent" not in dataset.protocol.as_json()


def test_a_negative_number_of_skipped_items_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    dataset, _ = later(make_dataset, tmp_path)
    with pytest.raises(InputError, match="skip_recent must be at least 0; got -1"):
        evaluate(LastItem([100, 101]), dataset.with_protocol(skip_recent=-1))
