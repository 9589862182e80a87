"""Random numbers by purpose: each (seed, purpose, step) has its own stream.

All policies therefore serve the same visitors with common random numbers, whichever lists they sample.
"""

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    """The purposes of random numbers."""

    ITEMS = 0
    VISITORS = 1
    OUTCOMES = 2
    LISTS = 3
    CLOCK = 4
    FEATURES = 5


def generator(seed: int, purpose: Purpose, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the random stream of a seed, a purpose and a step."""
    entropy = np.random.SeedSequence([seed, int(purpose), step]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(entropy >> np.uint64(1)))


def outcome_uniforms(seed: int, step: int, sessions: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[3, sessions] uniform numbers that decide the pick, the behaviour and whether the visitor leaves.

    They are generated on the CPU and for all sessions, including those that have ended, so that they are the same on
    every device.
    """
    random = generator(seed, Purpose.OUTCOMES, step)
    return torch.rand(3, sessions, generator=random, dtype=torch.double).to(device, dtype)
