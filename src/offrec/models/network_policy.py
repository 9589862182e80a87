"""NetworkPolicy: a trained agent behind the `Policy` interface."""

import torch

from offrec.catalogue import Head
from offrec.data.vocabulary import Vocabulary
from offrec.models.agent import Agent
from offrec.models.network import evaluating
from offrec.policy import Policy
from offrec.types import Batch


class NetworkPolicy(Policy):
    """What a trained agent ranks by: its actor's softmax or, for some learners, its critic."""

    def __init__(
        self,
        name: str,
        agent: Agent,
        vocabulary: Vocabulary,
        device: torch.device,
        data_hash: str | None = None,
    ) -> None:
        super().__init__(vocabulary, agent.options.history, device, data_hash)
        self.name, self.agent, self.stochastic = name, agent.to(device), agent.stochastic

    def head(self, batch: Batch) -> Head:
        with evaluating(self.agent):
            head: Head = self.agent(batch)
        return head
