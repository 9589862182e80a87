"""Random numbers by purpose: each (seed, purpose, step) has a stream of its own.

So two policies meet the same visitors with the same luck, however differently they draw their lists.
"""

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    ITEMS = 0
    VISITORS = 1
    OUTCOMES = 2
    LISTS = 3
    CLOCK = 4


def generator(seed: int, purpose: Purpose, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    entropy = np.random.SeedSequence([seed, int(purpose), step]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(entropy >> np.uint64(1)))


def outcome_uniforms(seed: int, step: int, sessions: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[3, sessions] evenly in [0, 1): which item, which behaviour, leave or stay. For all sessions, also those over.

    Drawn on the CPU, so that it is the same on every device.
    """
    random = generator(seed, Purpose.OUTCOMES, step)
    return torch.rand(3, sessions, generator=random, dtype=torch.double).to(device, dtype)
