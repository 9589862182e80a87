"""Does ONNX Runtime rank as torch does? Asked of every export before it is kept."""

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

TOLERANCE = 1e-4  # of a score or, where it is beyond ±1, of its size
ROUNDING = 1e-5  # of a log-probability
PADDING = -1


@dataclass(frozen=True)
class Agreement:
    histories: int
    k: int
    largest_difference: float
    """Of a score: of the same item in both, and of the same place in both lists. Relative where it is beyond ±1."""
    largest_absolute_difference: float
    """The same, whatever the score's size."""
    swapped: int
    """Places where the lists name different items of equal score, as far as TOLERANCE goes."""
    on_the_border: int
    """Histories not compared, as rounding decides which items are likely enough to be shown (dqn with a delta)."""

    @property
    def sound(self) -> bool:
        return self.largest_difference <= TOLERANCE and self.on_the_border < max(2, self.histories // 10)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def padded(histories: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """[B, longest] for the model's input."""
    found = np.full((len(histories), max(map(len, histories), default=0)), PADDING, dtype=np.int64)
    for row, items in enumerate(histories):
        found[row, : len(items)] = items
    return found


def made_up(n_items: int, history: int, rows: int, seed: int) -> list[list[int]]:
    """Histories of every length: empty, longer than a state knows, with repeats."""
    draw = np.random.default_rng(seed)
    lengths = [0, 1, history, history + 3, *draw.integers(1, history + 2, max(0, rows - 4))]
    few = [draw.integers(0, n_items, max(1, int(length) // 2 + 1)) for length in lengths]
    return [draw.choice(own, int(length)).tolist() for own, length in zip(few, lengths, strict=True)]


@torch.no_grad()
def compare(policy: Policy, session: Any, histories: Sequence[Sequence[int]], k: int, batch: int = 64) -> Agreement:
    """`session`: an onnxruntime.InferenceSession of the policy."""
    k = min(k, policy.n_items)
    worst, absolute, swapped, border = 0.0, 0.0, 0, 0
    for first in range(0, len(histories), batch):
        rows = [list(items) for items in histories[first : first + batch]]
        items, scores = session.run(["items", "scores"], {"history": padded(rows), "k": np.array(k)})
        head = policy.head(batch_from_histories(rows, policy.n_items, policy.history, policy.device))
        theirs, mine = torch.from_numpy(items).to(policy.device), top_k(head, k)
        unsure = _on_the_border(head, torch.cat([theirs, mine[1]], 1))
        wanted = torch.cat([mine[0], head.at(theirs)], 1)[~unsure].double()
        found = torch.from_numpy(scores).to(policy.device).repeat(1, 2)[~unsure].double()
        apart = (wanted - found).abs().nan_to_num(nan=torch.inf)
        if apart.numel():
            absolute = max(absolute, float(apart.max()))
            worst = max(worst, float((apart / wanted.abs().clamp(min=1.0)).max()))
        swapped += int((theirs != mine[1])[~unsure].sum())
        border += int(unsure.sum())
    return Agreement(len(histories), k, worst, absolute, swapped, border)


def _on_the_border(head: Head, items: Tensor) -> Tensor:
    """[B] rows with an item whose π̂_b is at the bound, but for rounding."""
    if head.support is None:
        return torch.zeros(head.n_rows, dtype=torch.bool, device=items.device)
    likely, bound = head.support.head.at(items), head.support.bound[:, None]
    return ((likely - bound).abs() <= ROUNDING).any(1)
