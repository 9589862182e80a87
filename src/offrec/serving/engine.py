"""Many asks, one forward pass and one pass over the catalogue: what the server and the batch command both stand on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offrec.catalogue import Head, log_prob
from offrec.catalogue.head import ALL_MASKED
from offrec.catalogue.lists import ItemLists, position_log_probs, sample_lists, top_lists
from offrec.data.replay import batch_from_histories
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.types import Batch

FEW = 64  # exclusions of a row that are looked up together with those of others; more are looked up alone
LONG = 100  # a list, and
MANY = 1024  # exclusions, beyond which an ask is not answered with smaller ones: all rows are padded to the largest


@dataclass(frozen=True)
class Query:
    """Items by their index in the policy's catalogue."""

    history: Sequence[int]  # oldest first
    k: int
    barred: frozenset[int] = frozenset()
    allowed: Sequence[int] | None = None  # without those barred; None: the whole catalogue
    temperature: float | None = None  # of a list to be drawn; None: the best k
    logging: bool = False  # also π̂_b of each item


@dataclass(frozen=True)
class Answer:
    items: list[int]
    scores: list[float]
    probabilities: list[float] | None  # π(item | history), whatever was barred; None for a policy that is none
    places: list[float] | None = None  # of a drawn list: the probability of each place given those before
    log_probability: float | None = None  # of a drawn list, in its order
    logging: list[float] | None = None


class Engine:
    """Answers for a policy, in one thread at a time. `seed`: of what is drawn; None draws it from the system."""

    def __init__(self, policy: Policy, seed: int | None = None) -> None:
        self.policy = policy
        if isinstance(policy, NetworkPolicy):
            policy.agent.eval()
        self.generator = torch.Generator(policy.device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    @property
    def knows_logging(self) -> bool:
        agent = self.policy.agent if isinstance(self.policy, NetworkPolicy) else None
        return agent is not None and (agent.prior is not None or agent.needs.logging == "own")

    @torch.inference_mode()
    def answer(self, asks: Sequence[Query]) -> list[Answer]:
        """An answer for each ask, in their order."""
        order = sorted(
            range(len(asks)), key=lambda row: _kind(asks[row])
        )  # of one kind together: a head is cut in slices
        rows = [asks[row] for row in order]
        batch = batch_from_histories(
            [list(ask.history) for ask in rows], self.policy.n_items, self.policy.history, self.policy.device
        )
        head = self.policy.head(batch)
        found: list[Answer] = []
        while len(found) < len(rows):
            first, kind = len(found), _kind(rows[len(found)])
            last = next((row for row in range(first, len(rows)) if _kind(rows[row]) != kind), len(rows))
            found += self._alike(head.slice_rows(first, last), rows[first:last])
        if any(ask.logging for ask in rows):
            self._add_logging(batch, rows, found)
        return [answer for _, answer in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]

    def _alike(self, head: Head, asks: list[Query]) -> list[Answer]:
        k = min(max(ask.k for ask in asks), self.policy.n_items)
        if asks[0].allowed is not None:
            whole = top_lists(head, 1).lse
            return [self._among(head.slice_rows(row, row + 1), ask, whole[row]) for row, ask in enumerate(asks)]
        masked = _without(head, asks)
        if asks[0].temperature is None:
            lists = top_lists(masked, k)
        else:
            heat = torch.tensor([ask.temperature for ask in asks], dtype=torch.double, device=head.state.device)
            lists = sample_lists(masked, k, heat, self.generator)
        return self._answers(lists, _with_barred(lists.lse, head, asks), asks)

    def _among(self, head: Head, ask: Query, whole: Tensor) -> Answer:
        """One row, of whose candidates a few hundred are looked up rather than the catalogue searched."""
        assert ask.allowed is not None
        allowed = torch.tensor([sorted(ask.allowed)], device=head.state.device)
        values = head.at(allowed)
        if ask.temperature is None:
            order = values.sort(stable=True, dim=1, descending=True).indices
            places = None
        else:
            heated = values.double() / ask.temperature
            noise = torch.empty_like(heated).exponential_(generator=self.generator)
            order = (heated - noise.log_()).argsort(dim=1, descending=True)
            places = position_log_probs(heated.gather(1, order))
        lists = ItemLists(allowed.gather(1, order), values.gather(1, order), whole[None], places)
        return self._answers(lists, whole[None], [ask])[0]

    def _answers(self, lists: ItemLists, whole: Tensor, asks: list[Query]) -> list[Answer]:
        """`whole` [B]: the logsumexp over the catalogue, whatever may be shown."""
        shown = (lists.values > ALL_MASKED).sum(1).tolist()  # what is masked comes last
        items, scores = lists.items.tolist(), lists.values.tolist()
        own = (lists.values.double() - whole[:, None]).exp().tolist() if self.policy.stochastic else None
        places = None if lists.log_probs is None else lists.log_probs.tolist()
        answers = []
        for row, ask in enumerate(asks):
            n = min(ask.k, shown[row])
            logs = None if places is None else places[row][:n]
            answers.append(
                Answer(
                    items[row][:n],
                    scores[row][:n],
                    None if own is None else own[row][:n],
                    None if logs is None else [math.exp(log) for log in logs],
                    None if logs is None else math.fsum(logs),
                )
            )
        return answers

    def _add_logging(self, batch: Batch, asks: list[Query], found: list[Answer]) -> None:
        head = _logging_head(self.policy, batch)
        for row, ask in enumerate(asks):
            answer = found[row]
            if ask.logging and answer.items:
                items = torch.tensor([answer.items], device=self.policy.device)
                chances = log_prob(head.slice_rows(row, row + 1), items)[0].exp().tolist()
                found[row] = Answer(**{**vars(answer), "logging": chances})


def _kind(ask: Query) -> tuple[bool, ...]:
    if ask.allowed is not None:
        return (True,)  # answered one by one, so that none is padded
    return False, ask.temperature is not None, ask.k > LONG, len(ask.barred) > MANY


def _logging_head(policy: Policy, batch: Batch) -> Head:
    """π̂_b of a run that holds one: a network of its own, or a head on the policy's states."""
    assert isinstance(policy, NetworkPolicy)
    agent = policy.agent
    if agent.prior is not None:
        head: Head = agent.prior(batch)
        return head
    assert agent.actor is not None
    assert agent.actor.second is not None
    second: Head = agent.actor.second.head(agent.actor.states(batch), batch.recent)
    return second


def _without(head: Head, asks: list[Query]) -> Head:
    longest = max(len(ask.barred) for ask in asks)
    if not longest:
        return head
    rows = [[*ask.barred, *[head.n_items] * (longest - len(ask.barred))] for ask in asks]
    return head.mask(torch.tensor(rows, device=head.state.device))


def _with_barred(lse: Tensor, head: Head, asks: list[Query]) -> Tensor:
    """The logsumexp over what may be shown, and what may not added."""
    lse = lse.clone()
    few = [sorted(ask.barred) if len(ask.barred) <= FEW else [] for ask in asks]
    longest = max(map(len, few))
    if longest:
        padded = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in few], device=head.state.device)
        values = head.at(padded.clamp(min=0)).double().masked_fill(padded < 0, -math.inf)
        lse = torch.logaddexp(lse, values.logsumexp(1))
    for row, ask in enumerate(asks):
        if len(ask.barred) > FEW:
            items = torch.tensor([sorted(ask.barred)], device=head.state.device)
            gone = head.slice_rows(row, row + 1).at(items).double().logsumexp(1)
            lse[row] = torch.logaddexp(lse[row], gone[0])
    return lse
