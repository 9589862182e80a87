"""Marginal weights of served lists and doubly robust forms: by hand, and against sums over all lists in plain numpy.

obp and SCOPE-RL have no clusters of sampled lists and no ratios of picks, and the cascade's doubly robust form of obp
has a model per place. The sums here are independent of the library: they enumerate every list of a catalogue of five
items. `test_estimators.py` compares OffCEM for lists of one item with obp.
"""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from offrec.data.item_properties import CategoryColumn, ItemProperties
from offrec.estimation.assumption import assumption_bias
from offrec.estimation.cluster_ratios import expected_of_cluster, list_cluster_log_prob
from offrec.estimation.control_variates import control_variate
from offrec.estimation.estimators import estimate_value
from offrec.estimation.item_clusters import item_clusters
from offrec.estimation.trajectories import Trajectories
from small_datasets import write_dataset

ITEMS, K = 5, 2
LISTS = list(permutations(range(ITEMS), K))
CLUSTER = np.array([0, 0, 1, 1, 1])
B = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
PI = np.array([0.3, 0.2, 0.1, 0.1, 0.3])


def place_probabilities(p: np.ndarray) -> np.ndarray:
    """[lists, K] probability of each place given the places before it."""
    return np.array([[p[i], p[j] / (1 - p[i])] for i, j in LISTS])


def cluster_probabilities(p: np.ndarray) -> np.ndarray:
    """[lists] Π_j p(c(l_j) | l_1 … l_{j−1})."""
    result = []
    for i, j in LISTS:
        inside = sum(p[a] for a in range(ITEMS) if CLUSTER[a] == CLUSTER[j] and a != i)
        result.append(p[CLUSTER[i] == CLUSTER].sum() * inside / (1 - p[i]))
    return np.array(result)


def inclusion(p: np.ndarray) -> np.ndarray:
    """[A] probability of each item to be in a list."""
    lists = place_probabilities(p).prod(1)
    return np.bincount(np.array(LISTS).ravel(), np.repeat(lists, K))


def log_prob(p: np.ndarray) -> np.ndarray:
    shown = torch.tensor(LISTS)
    z = torch.from_numpy(np.log(p)).expand(len(LISTS), -1)
    return list_cluster_log_prob(z, shown, torch.from_numpy(CLUSTER)).exp().numpy()


def test_probability_of_clusters_by_hand() -> None:
    """The list (1, 2): cluster 0 has .3; without item 1, cluster 1 has .7 of .8."""
    assert log_prob(B)[LISTS.index((1, 2))] == pytest.approx(0.3 * 0.7 / 0.8)
    np.testing.assert_allclose(log_prob(PI), cluster_probabilities(PI))


def test_probability_of_clusters_is_exact_if_one_item_has_almost_all_of_it() -> None:
    """Logits 0, −40 and −41, item 0 in a cluster of its own: it surely comes first, then the cluster of both others."""
    z = torch.tensor([[0.0, -40.0, -41.0]], dtype=torch.double)
    found = list_cluster_log_prob(z, torch.tensor([[0, 1]]), torch.tensor([0, 1, 2])).item()
    assert found == pytest.approx(-np.log(1 + np.exp(-1)), abs=1e-12)


def test_ratios_of_clusters_estimate_the_policy_that_chooses_items_like_the_log() -> None:
    """π̃(l) = Π_j π(c(l_j) | l_<j) b(l_j | c(l_j), l_<j), which sums to 1; the sum of b ρ f equals that of π̃ f."""
    b, ratio = place_probabilities(B).prod(1), log_prob(PI) / log_prob(B)
    coarse = cluster_probabilities(PI) * b / cluster_probabilities(B)
    assert coarse.sum() == pytest.approx(1.0)
    reward = np.random.default_rng(0).normal(size=len(LISTS))
    assert (b * ratio * reward).sum() == pytest.approx((coarse * reward).sum())


def test_expected_items_of_a_cluster_by_hand() -> None:
    """Inclusion .4, .3, .5, .6 and .2: .7 of cluster 0 and 1.3 of cluster 1."""
    included = torch.tensor([[0.4, 0.3, 0.5, 0.6, 0.2]])
    found = expected_of_cluster(included, torch.tensor([[4, 0]]), torch.from_numpy(CLUSTER))
    assert found[0].tolist() == pytest.approx([1.3, 0.7])


def test_the_control_variate_by_hand() -> None:
    """Ratios 2 and ½ with q = 3 and 4: (6 + 2) / 2."""
    assert control_variate(np.log([[2.0, 0.5]]), np.array([[3.0, 4.0]])).tolist() == pytest.approx([4.0])


@pytest.mark.parametrize("weighting", ["prefixes", "picks", "pick_clusters"])
def test_the_control_variate_has_the_mean_of_the_values(weighting: str) -> None:
    """V is the mean over π of the mean q of a list. For clusters q must be the same for all items of a cluster."""
    q = np.array([2.0, 2.0, -1.0, -1.0, -1.0]) if weighting == "pick_clusters" else np.array([2.0, 1.0, 0.5, -1.0, 3.0])
    pi, b, lists = place_probabilities(PI), place_probabilities(B), np.array(LISTS)
    ratio = {
        "prefixes": (pi / b).cumprod(1),
        "picks": (inclusion(PI) / inclusion(B))[lists],
        "pick_clusters": (np.bincount(CLUSTER, inclusion(PI)) / np.bincount(CLUSTER, inclusion(B)))[CLUSTER[lists]],
    }[weighting]
    control = control_variate(np.log(ratio), q[lists])
    assert b.prod(1) @ control == pytest.approx(pi.prod(1) @ q[lists].mean(1))
    assert abs(b.prod(1) @ q[lists].mean(1) - pi.prod(1) @ q[lists].mean(1)) > 0.05


def one_item_log() -> tuple[Trajectories, np.ndarray]:
    """A log in which each of 20 shares of b is a session with that item; rewards are 2 · item + 5 · cluster."""
    shown = np.repeat(np.arange(ITEMS), np.rint(20 * B).astype(int))
    reward = 2.0 * np.arange(ITEMS) + 5.0 * CLUSTER
    ratio = np.bincount(CLUSTER, PI) / np.bincount(CLUSTER, B)
    steps = Trajectories(
        np.arange(21), reward[shown], np.log(PI)[shown], np.log(B)[shown],
        log_ratios={"clusters": np.log(ratio)[CLUSTER[shown]]},
    )  # fmt: skip
    return steps, shown


def test_offcem_is_exact_if_q_has_the_differences_within_clusters() -> None:
    """Q may be wrong by another constant in each cluster (local correctness); weights of clusters alone are biased."""
    steps, shown = one_item_log()
    truth = float(PI @ (2.0 * np.arange(ITEMS) + 5.0 * CLUSTER))
    q = 2.0 * np.arange(ITEMS) + np.array([7.0, -3.0])[CLUSTER]
    with_q = Trajectories(
        steps.offsets, steps.reward, steps.log_pi, steps.log_b, q=q[shown], v=np.full(20, PI @ q),
        log_ratios=steps.log_ratios,
    )  # fmt: skip
    assert estimate_value("marginal_doubly_robust", with_q) == pytest.approx(truth)
    assert abs(estimate_value("marginal", steps) - truth) > 0.1
    assert abs(estimate_value("direct", with_q) - truth) > 0.1


def test_the_interval_of_clusters_includes_the_difference_from_ratios_of_items() -> None:
    """With one decision per session the bias is the difference from self-normalised ratios of items."""
    steps, _ = one_item_log()
    found = assumption_bias("marginal", steps, 1.0)
    assert found.bias == pytest.approx(estimate_value("marginal", steps) - estimate_value("self_normalised", steps))
    assert found.standard_error > 0


def test_the_bias_of_a_doubly_robust_form_is_worked_by_hand() -> None:
    """Ratios ρ = (1.5, .5), ρ* = (1, 1), r = (1, 0), Q = (.8, .4), V = .6.

    A running session is worth (1.5 · 1) / 2 = .75, so d = .15 and y = (.85, −.15). The mean of (ρ − ρ*)(y − Q) is
    (.5 · .05 + .5 · .55) / 2 = .15. The estimates are .6 + (1.5 · .2 − .5 · .4) / 2 = .65 and .6 + (.2 − .4) / 2 = .5.
    """
    ratio, q = np.array([1.5, 0.5]), np.array([0.8, 0.4])
    steps = Trajectories(
        np.arange(3), np.array([1.0, 0.0]), np.zeros(2), np.zeros(2), q=q, v=np.full(2, 0.6),
        log_ratios={"sets": np.log(ratio), "picks": np.log(ratio)}, controls={"picks": ratio * q},
    )  # fmt: skip
    for name in ("order_free_doubly_robust", "pick_doubly_robust"):
        assert assumption_bias(name, steps, 1.0).bias == pytest.approx(0.15)
        assert estimate_value(name, steps) == pytest.approx(0.65)
    assert estimate_value("weighted_doubly_robust", steps) == pytest.approx(0.5)


def test_clusters_are_the_category_of_the_items(tmp_path: Path) -> None:
    codes = np.array([[1, 2], [2, 1], [1, 0], [1, 1]], np.int32)
    columns = (CategoryColumn("brand", ("x", "y")), CategoryColumn("category", ("a", "b")))
    nothing = np.zeros((4, 0), np.float32)
    properties = ItemProperties(None, columns, codes, (), nothing, (), nothing)
    dataset = write_dataset(tmp_path, [[0, 1], [2, 3], [0, 3]], properties=properties)
    found = item_clusters(dataset)
    assert found.cluster.tolist() == [2, 1, 0, 1]
    assert found.source == "Item clusters: the column category of the items."


def test_clusters_are_learned_from_items_of_the_same_sessions(tmp_path: Path) -> None:
    """Items 0 to 2 and 3 to 5 are picked together, item 6 never."""
    random = np.random.default_rng(0)
    sessions = [(3 * (number % 2) + random.permutation(3)).tolist() for number in range(40)]
    dataset = write_dataset(tmp_path, sessions, items=7)
    cluster = item_clusters(dataset, 3).cluster.tolist()
    assert cluster[0] == cluster[1] == cluster[2] != cluster[3] == cluster[4] == cluster[5]
    assert cluster[6] not in cluster[:6]
    assert item_clusters(dataset, 3).cluster.tolist() == cluster
