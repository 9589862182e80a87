"""Runs with random weights, in folders as `offrec train` writes them. Serving does not depend on the training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offrec.models.agent import Agent
from offrec.runs.folder import RUN_VERSION
from offrec.runs.options import resolve_options
from offrec.training import checkpoint


def write_run(
    path: Path, ids: Sequence[int] | Sequence[str], *, seed: int = 0, spread: float = 1.0, **settings: Any
) -> Path:
    """Write a run.

    Args:
        path: The folder to create.
        ids: The item ids.
        seed: The seed of the weights.
        spread: The standard deviation of the item biases.
        **settings: Options of the run, with an underscore for the dot: `algorithm_name="dc"`.

    Returns:
        The folder.
    """
    small = {"network.width": 8, "network.history": 5, "algorithm.name": "sl"}
    dotted = {name.replace("_", ".", 1): value for name, value in settings.items()}
    options = resolve_options({**small, **dotted}, "events")
    torch.manual_seed(seed)
    agent = Agent(len(ids), options.learner, options.network, options.critic, restored=True)
    for name, tensor in agent.state_dict().items():
        if name.endswith("bias") and len(tensor) == len(ids):
            tensor.copy_(spread * torch.randn(len(ids)))
    path.mkdir(parents=True)
    is_numeric = isinstance(ids[0], int)
    facts = {
        "run_version": RUN_VERSION,
        "dataset": "nowhere",
        "fingerprint": "made-for-a-test",
        "data_hash": "made-for-a-test",
        "items": len(ids),
        "item_id_type": "int" if is_numeric else "string",
        "options": options.settings(),
    }
    (path / "run.json").write_text(json.dumps(facts))
    if is_numeric:
        np.save(path / "item_ids.npy", np.array(ids, np.int64))
    else:
        texts = [str(text).encode() for text in ids]
        np.save(path / "item_ids.npy", np.frombuffer(b"".join(texts), np.uint8))
        np.save(path / "item_ids_offsets.npy", np.cumsum([0, *map(len, texts)]))
    tensors = {f"module.{name}": tensor for name, tensor in agent.state_dict().items()}
    checkpoint.save(path / "best.safetensors", tensors, {"data_hash": facts["data_hash"]})
    return path
