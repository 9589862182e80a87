"""Runs with random weights, in folders as `offrec train` writes them. Serving does not depend on the training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offrec.data.arrays import describe_arrays
from offrec.data.json_files import write_json
from offrec.models.agent import Agent
from offrec.models.log_shape import LogShape
from offrec.runs.folder import RUN_VERSION, read_run, run_id
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
        "behaviours": ["view"],
        "dataset": "nowhere",
        "fingerprint": "made-for-a-test",
        "data_hash": "made-for-a-test",
        "items": len(ids),
        "item_id_type": "int" if is_numeric else "string",
        "log": LogShape().as_json(),
        "options": options.settings(),
    }
    if is_numeric:
        arrays: dict[str, Any] = {"item_ids": np.array(ids, np.int64)}
    else:
        texts = [str(text).encode() for text in ids]
        arrays = {
            "item_ids": np.frombuffer(b"".join(texts), np.uint8),
            "item_ids_offsets": np.cumsum([0, *map(len, texts)]),
        }
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    write_json(path / "run.json", facts | {"arrays": describe_arrays(arrays)})
    tensors = {f"module.{name}": tensor for name, tensor in agent.state_dict().items()}
    progress: dict[str, Any] = {"warnings": {}}
    checkpoint.save(path / "best.safetensors", tensors, {"run": run_id(read_run(path)), "progress": progress})
    return path
