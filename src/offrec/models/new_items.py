"""Turn feature maps into plain item tables, and append items that a trained agent has never seen."""

import torch
from torch import Tensor, nn

from offrec.models.agent import Agent
from offrec.models.item_features import FeatureMap, ItemFeatures, add_features
from offrec.models.neighbours import NeighbourTerm
from offrec.models.network import ItemHead, Network
from offrec.models.user_agent import UserModelAgent


@torch.no_grad()
def fold_features(agent: Agent | UserModelAgent, features: ItemFeatures | None) -> None:
    """Replace the free vectors and feature maps of a trained agent by plain item tables, which scores do not change.

    Scoring is then as fast as without features, and exported models need no features.

    Args:
        agent: The agent. It cannot be trained further.
        features: The features of the agent's items, followed by those of new items; None if the agent reads none.
    """
    if features is None:
        return
    agent.eval()
    items = len(features.seen) - 1
    if isinstance(agent, UserModelAgent):
        _fold_user_model(agent, features, items)
        return
    for module in [*agent.modules()]:
        if isinstance(module, Network):
            _fold_network(module, features, items)
        elif isinstance(module, NeighbourTerm):
            module.append_items(items - module.n_items)
    if agent.needs.ranks == "actor" and agent.actor is not None:
        agent.actor.bias.add_(agent.options.new_item_bonus * features.unseen)
    agent.n_items, agent.features = items, None


def _fold_user_model(agent: UserModelAgent, features: ItemFeatures, items: int) -> None:
    """Add the prior means to the item effects. New items have the prior means, mean exposure and mean rewards."""
    assert agent.prior_mean is not None
    new, width = items - agent.n_items, agent.x.shape[1]
    agent.prior_mean.features = features.to(agent.x.device)
    means = agent.prior_mean()[0][:items]
    parts = {
        "x": means[:, :width],
        "attractiveness": means[:, width],
        "conversion_effect": means[:, width + 1],
        "leave_effect": means[:, width + 2 :],
    }
    for name, mean in parts.items():
        free = getattr(agent, name)
        setattr(agent, name, _parameter(torch.cat([free, free.new_zeros(new, *free.shape[1:])]) + mean, free))
    agent.exposed = _parameter(torch.cat([agent.exposed, agent.exposed.mean().expand(new)]), agent.exposed)
    agent.shown = torch.cat([agent.shown, agent.shown.mean().expand(new)])
    agent.item_reward = torch.cat([agent.item_reward, agent.item_reward.new_zeros(new, len(agent.reward))])
    agent.n_items, agent.prior_mean = items, None


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
