"""Cluster ratios by hand and streamed, and k-means on well-separated clusters."""

import numpy as np
import pytest
import torch

from offrec.catalogue import Head, use_backend
from offrec.catalogue.reference import logits
from offrec.errors import InputError
from offrec.estimation.marginal import cluster_items, log_cluster_ratio


def random_head(rows: int, items: int, seed: int) -> Head:
    random = torch.Generator().manual_seed(seed)
    state, table = (torch.randn(n, 5, generator=random) for n in (rows, items))
    corrected = torch.randint(items + 1, (rows, 3), generator=random)
    return Head(state, table, torch.randn(items, generator=random), corrected, torch.ones(rows, 3))


def test_cluster_ratios_by_hand() -> None:
    """Clusters {0, 2}, {1}, {3}: the first has probability .1 + .3 under π and .4 + .2 under b."""
    probabilities = [[0.1, 0.4, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]]
    pi, b = (Head(torch.zeros(3, 0), torch.zeros(4, 0), torch.tensor(p).log()) for p in probabilities)
    log_ratio = log_cluster_ratio(pi, b, torch.tensor([2, 1, 3]), torch.tensor([0, 1, 0, 2]))
    np.testing.assert_allclose(log_ratio.exp(), [0.4 / 0.6, 0.4 / 0.3, 2.0], rtol=1e-6)


@pytest.mark.parametrize("name", ["reference", "tiled"])
def test_streamed_masses_are_sums_over_the_cluster(name: str) -> None:
    rows, items = 7, 3000
    pi, b = random_head(rows, items, 0), random_head(rows, items, 1)
    random = torch.Generator().manual_seed(2)
    cluster = torch.randint(37, (items,), generator=random)
    action = torch.randint(items, (rows,), generator=random)
    inside = cluster[None, :] == cluster[action][:, None]
    expected = [(logits(head).double().softmax(1) * inside).sum(1).log() for head in (pi, b)]
    with use_backend(name):
        log_ratio = log_cluster_ratio(pi, b, action, cluster)
    torch.testing.assert_close(log_ratio, expected[0] - expected[1], rtol=0, atol=1e-5)


def test_clusters_of_one_item_give_the_ratio_of_items() -> None:
    pi, b = random_head(4, 50, 3), random_head(4, 50, 4)
    action = torch.tensor([0, 7, 7, 49])
    expected = [logits(head).double().log_softmax(1)[torch.arange(4), action] for head in (pi, b)]
    log_ratio = log_cluster_ratio(pi, b, action, torch.arange(50))
    torch.testing.assert_close(log_ratio, expected[0] - expected[1], rtol=0, atol=1e-5)
    single = log_cluster_ratio(pi, b, action, torch.zeros(50, dtype=torch.long))
    torch.testing.assert_close(single, torch.zeros(4, dtype=torch.double), rtol=0, atol=1e-6)


def test_well_separated_clusters_are_recovered() -> None:
    random = torch.Generator().manual_seed(0)
    centre = 20 * torch.randn(9, 4, generator=random)
    truth = torch.randint(9, (500,), generator=random)
    cluster = cluster_items(centre[truth] + torch.randn(500, 4, generator=random), count=9, seed=1)
    pairs = {(int(a), int(b)) for a, b in zip(truth, cluster, strict=True)}
    assert len(pairs) == 9


def test_the_same_seed_gives_the_same_clusters() -> None:
    table = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cluster_items(table, 12, seed=3), cluster_items(table, 12, seed=3))
    assert not torch.equal(cluster_items(table, 12, seed=3), cluster_items(table, 12, seed=4))
    assert sorted(cluster_items(table[:5], 5).tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="between 1 and the 300 items; got 301"):
        cluster_items(table, 301)
