"""Features of items in item tables: by hand, and in training."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from small_agents import ITEMS, batch

from offrec.data.item_properties import CategoryColumn, ItemProperties
from offrec.models.item_features import UNSEEN_LOGIT, FeatureMap, ItemFeatures, add_features
from offrec.models.network import Network, NetworkOptions, frozen_tables
from small_datasets import small_properties

UNSEEN = 11  # the item that occurs in no training session


def features() -> ItemFeatures:
    return ItemFeatures(small_properties(ITEMS), np.arange(ITEMS) != UNSEEN)


def test_a_row_is_the_free_vector_plus_the_mapped_features() -> None:
    one = ItemProperties(
        None,
        (CategoryColumn("category", ("x", "y")),),
        np.array([[1], [2], [0]], np.int32),
        ("price",),
        np.array([[1.0], [3.0], [np.nan]], np.float32),
        (),
        np.zeros((3, 0), np.float32),
    )
    map_ = FeatureMap(ItemFeatures(one, [True, True, False]), 1, 0.5).eval()
    with torch.no_grad():
        map_.categories.copy_(torch.tensor([[100.0], [10.0], [20.0]]))  # the first row, unknown, is never read
        map_.dense.fill_(5.0)
        map_.category_bias.copy_(torch.tensor([[100.0], [0.1], [0.2]]))
        map_.dense_bias.fill_(0.01)
    table, bias = add_features(map_, torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0]))
    # Prices 1 and 3 have mean 2 and standard deviation 1. Item 2 is unknown and unseen; row 3 is the start token.
    assert table[:, 0].tolist() == [1 + 10 - 5, 2 + 20 + 5, 0, 4]
    torch.testing.assert_close(bias, torch.tensor([1 + 0.1 - 0.01, 2 + 0.2 + 0.01, 0]))


def test_training_drops_free_vectors_of_some_items_but_never_the_start_token() -> None:
    map_ = FeatureMap(features(), 8, 0.5)
    free, bias = torch.randn(ITEMS + 1, 8), torch.zeros(ITEMS)
    mapped = map_()[0]
    torch.manual_seed(0)
    dropped = torch.stack([(add_features(map_, free, bias)[0] == mapped).all(1) for _ in range(50)])
    assert not dropped[:, ITEMS].any()
    assert dropped[:, UNSEEN].all()
    assert 0.3 < dropped[:, :UNSEEN].double().mean() < 0.7
    assert not (add_features(map_.eval(), free, bias)[0] == mapped).all(1)[:UNSEEN].any()


def test_training_a_policy_does_not_push_unseen_items_down() -> None:
    network = Network(ITEMS, NetworkOptions(width=8, history=8, free_dropout=0.0), features=features())
    head = network(batch())
    assert head.bias is not None
    assert head.bias[UNSEEN] < UNSEEN_LOGIT / 2
    head.at(torch.full((head.n_rows, 1), 3)).logsumexp(1).sum().backward()
    assert network.eval()(batch()).bias[UNSEEN].abs() < 1
    value = Network(ITEMS, NetworkOptions(width=8, history=8), value=True, features=features())
    assert value(batch()).bias[UNSEEN] == 0


@pytest.mark.parametrize("tied", [True, False])
def test_frozen_tables_score_as_the_network_does(tied: bool) -> None:
    network = Network(ITEMS, NetworkOptions(width=8, history=8, tied=tied), features=features()).eval()
    everything = torch.arange(ITEMS).expand(len(batch()), -1)
    expected = network(batch()).at(everything)
    with frozen_tables(network):
        torch.testing.assert_close(network(batch()).at(everything), expected)
        assert network.tables()[0] is network.tables()[0]
    assert network.tables()[0] is not network.tables()[0]


def test_copies_of_a_network_share_the_features_and_checkpoints_do_not_contain_them() -> None:
    network = Network(ITEMS, NetworkOptions(width=8, history=8), features=features())
    copied = deepcopy(network)
    assert network.map_in is not None
    assert copied.map_in is not None
    assert copied.map_in.features is network.map_in.features
    assert copied.map_in.dense is not network.map_in.dense
    assert not any("codes" in name or "seen" in name for name in network.state_dict())
