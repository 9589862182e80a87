"""Compare the lists of ONNX Runtime with those of torch. Every export is checked before it is published."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offrec.catalogue import Head, top_k
from offrec.data.replay import batch_from_histories
from offrec.policy import Policy

TOLERANCE = 1e-4  # for scores; relative beyond ±1
LOG_TOLERANCE = 1e-5  # for log probabilities near the bound of the support
PADDING = -1


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison between two implementations.

    Attributes:
        histories: The number of histories.
        k: The length of the lists.
        largest_difference: The largest difference of a score, of the same item and of the same position in both lists.
            Relative for scores beyond ±1.
        largest_absolute_difference: The largest absolute difference, for all scores.
        swapped: Positions at which the lists have different items of equal score.
        undecided: Histories that were not compared, because rounding decides which items are in the support of π̂_b.
    """

    histories: int
    k: int
    largest_difference: float
    largest_absolute_difference: float
    swapped: int
    undecided: int

    @property
    def is_sound(self) -> bool:
        """Whether the lists agree."""
        return self.largest_difference <= TOLERANCE and self.undecided < max(2, self.histories // 10)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def pad_histories(histories: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return the input of the model: [B, length of the longest history], padded at the right."""
    padded = np.full((len(histories), max(map(len, histories), default=0)), PADDING, dtype=np.int64)
    for row, items in enumerate(histories):
        padded[row, : len(items)] = items
    return padded


def random_histories(n_items: int, history: int, rows: int, seed: int) -> list[list[int]]:
    """Return random histories with repeated items; some are empty, some are longer than a state reads.

    Args:
        n_items: The size of the catalogue.
        history: The number of items that a state reads.
        rows: The number of histories, at least 4.
        seed: The seed.

    Returns:
        The histories.
    """
    random = np.random.default_rng(seed)
    lengths = [0, 1, history, history + 3, *random.integers(1, history + 2, max(0, rows - 4))]
    catalogues = [random.integers(0, n_items, max(1, int(length) // 2 + 1)) for length in lengths]
    return [random.choice(few, int(length)).tolist() for few, length in zip(catalogues, lengths, strict=True)]


@torch.no_grad()
def compare(policy: Policy, session: Any, histories: Sequence[Sequence[int]], k: int, batch: int = 64) -> Agreement:
    """Compare the lists of a policy with those of its exported model.

    Args:
        policy: The policy in torch.
        session: An `onnxruntime.InferenceSession` of the exported model.
        histories: The histories.
        k: The length of the lists.
        batch: The number of histories per batch.

    Returns:
        How well they agree.
    """
    k = min(k, policy.n_items)
    relative, absolute, swapped, undecided = 0.0, 0.0, 0, 0
    for first in range(0, len(histories), batch):
        rows = [list(items) for items in histories[first : first + batch]]
        outputs = session.run(["items", "scores"], {"history": pad_histories(rows), "k": np.array(k)})
        onnx_items, onnx_scores = (torch.from_numpy(output).to(policy.device) for output in outputs)
        head = policy.head(batch_from_histories(rows, policy.n_items, policy.history, policy.device))
        torch_scores, torch_items = top_k(head, k)
        is_compared = ~_undecided_rows(head, torch.cat([onnx_items, torch_items], 1))
        expected = torch.cat([torch_scores, head.at(onnx_items)], 1)[is_compared].double()
        difference = (expected - onnx_scores.repeat(1, 2)[is_compared].double()).abs().nan_to_num(nan=torch.inf)
        if difference.numel():
            absolute = max(absolute, float(difference.max()))
            relative = max(relative, float((difference / expected.abs().clamp(min=1.0)).max()))
        swapped += int((onnx_items != torch_items)[is_compared].sum())
        undecided += int((~is_compared).sum())
    return Agreement(len(histories), k, relative, absolute, swapped, undecided)


def _undecided_rows(head: Head, items: Tensor) -> Tensor:
    """[B] whether π̂_b of an item equals the bound of the support up to rounding."""
    if head.support is None:
        return torch.zeros(head.n_rows, dtype=torch.bool, device=items.device)
    log_b, bound = head.support.head.at(items), head.support.bound[:, None]
    return ((log_b - bound).abs() <= LOG_TOLERANCE).any(1)
