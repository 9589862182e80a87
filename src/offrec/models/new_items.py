"""Turn feature maps into plain item tables, and append items that a trained agent has never seen."""

import torch
from torch import Tensor, nn

from offrec.models.agent import Agent
from offrec.models.item_features import FeatureMap, ItemFeatures, add_features
from offrec.models.neighbours import NeighbourTerm
from offrec.models.network import ItemHead, Network


@torch.no_grad()
def fold_features(agent: Agent, features: ItemFeatures | None = None) -> None:
    """Replace the free vectors and feature maps of a trained agent by plain item tables, which scores do not change.

    Scoring is then as fast as without features, and exported models need no features.

    Args:
        agent: The agent. It cannot be trained further.
        features: The features of the agent's items, followed by those of new items; None if there are no new items.
    """
    features = features or agent.features
    if features is None:
        return
    agent.eval()
    items = len(features.seen) - 1
    for module in [*agent.modules()]:
        if isinstance(module, Network):
            _fold_network(module, features, items)
        elif isinstance(module, NeighbourTerm):
            module.append_items(items - module.n_items)
    if agent.needs.ranks == "actor" and agent.actor is not None:
        agent.actor.bias.add_(agent.options.new_item_bonus * features.unseen)
    agent.n_items, agent.features = items, None


def _fold_network(network: Network, features: ItemFeatures, items: int) -> None:
    inputs, bias = _fold(network.map_in, features, network.items_in, network.bias)
    if network.items_out is not None:
        outputs, bias = _fold(network.map_out, features, network.items_out, network.bias)
        network.items_out = _parameter(outputs, network.items_out)
    network.items_in, network.bias = _parameter(inputs, network.items_in), _parameter(bias, network.bias)
    network.map_in, network.map_out, network.n_items = None, None, items
    if isinstance(second := network.second, ItemHead):
        outputs, bias = _fold(second.map_out, features, second.items_out, second.bias)
        second.items_out, second.bias = _parameter(outputs, second.items_out), _parameter(bias, second.bias)
        second.map_out = None


def _fold(map_: FeatureMap | None, features: ItemFeatures, free: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    assert map_ is not None
    new = len(features.seen) - 1 - len(bias)
    free = torch.cat([free[: len(bias)], free.new_zeros(new, free.shape[1]), free[len(bias) :]])
    map_.features = features.to(free.device)
    return add_features(map_, free, torch.cat([bias, bias.new_zeros(new)]))


def _parameter(tensor: Tensor, before: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(tensor.contiguous(), requires_grad=before.requires_grad)
