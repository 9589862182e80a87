"""The world `tiny` with lists of two items, as tables: exact values, simulated logs and a fitted Q.

A state is the visitor's memory, an action one of 30 ordered lists, a reaction a pick or none. See
`estimators_tiny_lists.py`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from estimators_tiny import Table, Tiny
from offrec.estimation.cluster_ratios import expected_of_cluster, list_cluster_log_prob
from offrec.estimation.list_ratios import inclusion
from offrec.shop.items import make_items
from offrec.shop.solve import state_index
from offrec.shop.visitors import Dynamics, Visitors
from offrec.shop.worlds import WORLDS

ITEMS, K, NONE_UTILITY = 6, 2, 1.0
LISTS = np.array(list(permutations(range(ITEMS), K)))
ROUNDS, RIDGE = 60, 2.0  # backups of the fitted Q; decisions by which it is shrunk towards the mean target
MAX_STEPS = 400
Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Log:
    """Decisions as flat arrays, in the order of sessions and steps."""

    offsets: Longs
    state: Longs
    shown: Longs  # number of the list
    place: Longs  # of the pick; K for none
    reward: NDArray[np.float64]


@dataclass(frozen=True)
class Lists:
    """The exact probabilities of a policy that samples lists from softmax(z)."""

    z: Table  # [states, items]

    @cached_property
    def places(self) -> Table:
        """[states, lists, K] log-probability of each place given the places before it."""
        p = np.exp(self.z - np.logaddexp.reduce(self.z, 1, keepdims=True))
        first, second = p[:, LISTS[:, 0]], p[:, LISTS[:, 1]]
        return np.stack([np.log(first), np.log(second / (1 - first))], 2)

    @cached_property
    def probability(self) -> Table:
        """[states, lists]"""
        return np.exp(self.places.sum(2))

    @cached_property
    def sets(self) -> Table:
        """[states, lists] log-probability in any order."""
        reverse = [int(np.flatnonzero((pair[::-1] == LISTS).all(1))[0]) for pair in LISTS]
        return np.log(self.probability + self.probability[:, reverse])

    @cached_property
    def included(self) -> Table:
        """[states, items] the library's inclusion probabilities."""
        return inclusion(torch.from_numpy(self.z), K).numpy()

    def clusters(self, cluster: Longs) -> tuple[Table, Table]:
        """Return the log-probability of a list's clusters [states, lists], and log N of each place's […, K]."""
        of_lists, expected = [], []
        for z, included in zip(torch.from_numpy(self.z), torch.from_numpy(self.included), strict=True):
            shown, code = torch.from_numpy(LISTS), torch.from_numpy(cluster)
            of_lists.append(list_cluster_log_prob(z.expand(len(LISTS), -1), shown, code).numpy())
            expected.append(expected_of_cluster(included.expand(len(LISTS), -1), shown, code).log().numpy())
        return np.stack(of_lists), np.stack(expected)


@dataclass(frozen=True)
class ListWorld:
    """The world as tables over states, lists and reactions; reaction j is a pick at place j, the last one is none."""

    chance: Table  # [states, lists, K + 1]
    reward: Table  # [states, lists, K + 1] expected
    following: Longs  # [states, lists, K + 1]
    stay: Table  # [states, lists, K + 1]
    outcomes: Table  # [states, items, behaviours]
    amounts: NDArray[np.float64]  # [behaviours]
    cluster: Longs  # [items]
    tiny: Tiny

    @staticmethod
    def open(seed: int = 0) -> "ListWorld":
        tiny = Tiny.open(seed)
        world = replace(WORLDS["tiny"], k=K, none_utility=NONE_UTILITY)
        dynamics = Dynamics(world, make_items(world, seed, torch.device("cpu"), torch.double))
        memory, states = tiny.mdp.memory, len(tiny.mdp.memory)
        new = dynamics.arrive(states, seed=0)
        visitors = Visitors(new.taste, new.haste, memory)
        outcomes = dynamics.behaviours(visitors, torch.arange(ITEMS).expand(states, -1))
        expected = (outcomes @ dynamics.rewards().to(outcomes)).numpy()
        shape = (states, len(LISTS), K + 1)
        chance, reward, stay = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        following = np.zeros(shape, np.int64)
        for number, items in enumerate(torch.from_numpy(LISTS)):
            odds = dynamics.choices(visitors, items.expand(states, -1)).numpy()
            chance[:, number] = np.roll(odds, -1, 1)  # the library has "none" first
            for reaction in range(K + 1):
                picked = reaction < K
                item = items[reaction] if picked else torch.tensor(ITEMS)
                after = dynamics.remember(memory, item.expand(states))
                gone = dynamics.leaving(Visitors(new.taste, new.haste, after), torch.full((states,), picked))
                following[:, number, reaction] = state_index(after, ITEMS).numpy()
                stay[:, number, reaction] = 1 - gone.numpy()
                if picked:
                    reward[:, number, reaction] = expected[:, int(item)]
        amounts = dynamics.rewards().numpy().astype(float)
        return ListWorld(chance, reward, following, stay, outcomes.numpy(), amounts, tiny.category, tiny)

    def logging(self) -> Lists:
        return Lists(np.log(np.zeros((len(self.chance), ITEMS)) + self.tiny.mdp.logging().numpy()))

    def policy(self, temperature: float) -> Lists:
        return Lists(np.log(self.tiny.policy(temperature)))

    def value(self, policy: Lists, gamma: float = 1.0) -> float:
        """Return the exact value of a new visitor."""
        weight = policy.probability[:, :, None] * self.chance
        onward, states = np.zeros((len(weight), len(weight))), np.arange(len(weight))[:, None, None]
        np.add.at(onward, (states, self.following), gamma * weight * self.stay)
        values = np.linalg.solve(np.eye(len(weight)) - onward, (weight * self.reward).sum((1, 2)))
        return float(values[0])

    def log(self, sessions: int, seed: int) -> Log:
        """Simulate sessions under the logging policy."""
        random, b = np.random.default_rng(seed), self.logging().probability.cumsum(1)
        rows, state, parts = np.arange(sessions), np.zeros(sessions, np.int64), []
        for step in range(MAX_STEPS):
            if not len(rows):
                break
            list_draw, reaction_draw, outcome_draw, stay_draw = random.random((4, len(rows)))
            shown = (b[state] < list_draw[:, None]).sum(1).clip(max=len(LISTS) - 1)
            place = (self.chance[state, shown].cumsum(1) < reaction_draw[:, None]).sum(1).clip(max=K)
            item = LISTS[shown, place.clip(max=K - 1)]
            kind = (self.outcomes[state, item].cumsum(1) < outcome_draw[:, None]).sum(1)
            reward = np.where(place < K, self.amounts[kind.clip(max=len(self.amounts) - 1)], 0.0)
            parts.append((rows, np.full(len(rows), step), state, shown, place, reward))
            stays = stay_draw < self.stay[state, shown, place]
            rows, state = rows[stays], self.following[state, shown, place][stays]
        session, number, state, shown, place, reward = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((number, session))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(session, minlength=sessions))])
        return Log(offsets, state[order], shown[order], place[order], reward[order])

    def fitted(self, log: Log, policy: Lists, gamma: float) -> tuple[Table, Table]:
        """Return q [states, items] and V [states]: least squares over lists that are worth the mean of their items."""
        items, share = LISTS[log.shown], exact_inclusion(policy) / K
        mean = mean_rewards(log)[1]
        design = np.zeros((len(share), ITEMS, ITEMS))
        for one in range(K):
            for other in range(K):
                np.add.at(design, (log.state, items[:, one], items[:, other]), 1 / K**2)
        inverse = np.linalg.inv(design + RIDGE / K**2 * np.eye(ITEMS))
        following = self.following[log.state, log.shown, log.place]
        running = np.ones(len(log.state))
        running[log.offsets[1:][np.diff(log.offsets) > 0] - 1] = 0.0
        q = np.broadcast_to(mean, share.shape)
        for _ in range(ROUNDS):
            target = log.reward + gamma * running * (share * q).sum(1)[following]
            level = float(target.mean())
            moment = np.zeros(share.shape) + RIDGE / K**2 * level
            for place in range(K):
                np.add.at(moment, (log.state, items[:, place]), target / K)
            q = (inverse @ moment[:, :, None])[:, :, 0]
        return q, (share * q).sum(1)


def exact_inclusion(policy: Lists) -> Table:
    """[states, items] exact inclusion probabilities."""
    result = np.zeros(policy.z.shape)
    for place in range(K):
        np.add.at(result, (slice(None), LISTS[:, place]), policy.probability)
    return result


def mean_rewards(log: Log) -> tuple[float, NDArray[np.float64]]:
    """Return the mean reward of a decision, and that of an item's lists times K."""
    often = np.bincount(LISTS[log.shown].ravel(), minlength=ITEMS)
    total = np.bincount(LISTS[log.shown].ravel(), np.repeat(log.reward, K), minlength=ITEMS)
    return float(log.reward.mean()), total / np.maximum(often, 1)
