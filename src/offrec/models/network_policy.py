"""NetworkPolicy: a trained agent behind the `Policy` interface."""

import torch
from torch import Tensor

from offrec.catalogue import Head
from offrec.data.vocabulary import Vocabulary
from offrec.models.agent import Agent
from offrec.models.neighbours import NeighbourTerm
from offrec.models.network import eval_mode
from offrec.models.user_agent import UserModelAgent
from offrec.policy import Policy, SessionStates
from offrec.types import Batch


class NetworkPolicy(Policy):
    """The policy of a trained agent: the softmax of its actor or, for some learners, its critic.

    Args:
        name: Name in reports: "dc/gru".
        agent: The trained agent.
        vocabulary: The catalogue's items.
        device: The device to compute on.
        data_hash: Hash of the training dataset.

    Attributes:
        warnings: What is wrong with the policy, such as a collapse in training (see docs/explanation/collapse.md) or
            absent columns of new items.
    """

    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        agent: Agent | UserModelAgent,
        vocabulary: Vocabulary,
        device: torch.device,
        data_hash: str | None = None,
    ) -> None:
        super().__init__(vocabulary, agent.options.history, device, data_hash)
        self.name, self.agent, self.stochastic = name, agent.to(device), agent.stochastic
        self.learns_from_lists = isinstance(agent, UserModelAgent)

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> SessionStates:
        """Return the state of sessions. A user model also learns from lists that were shown and ignored."""
        if isinstance(self.agent, UserModelAgent):
            self.agent.eval()
            return self.agent.start_sessions(rows, recent)
        return super().start_sessions(rows, recent)

    @property
    def neighbours(self) -> NeighbourTerm | None:
        """The neighbours that are added to the policy last, if any; see `head_before_neighbours`."""
        if isinstance(self.agent, UserModelAgent) or self.agent.prior is not None:
            return None
        return self.agent.neighbours

    def head_before_neighbours(self, batch: Batch) -> Head:
        """Return the scores to which `neighbours.mix` adds the neighbours."""
        with eval_mode(self.agent):
            head: Head = self.agent(batch, add_neighbours=False)
        return head

    def head(self, batch: Batch) -> Head:
        """Return the scores of all items for each row of a batch."""
        with eval_mode(self.agent):
            head: Head = self.agent(batch)
        return head
