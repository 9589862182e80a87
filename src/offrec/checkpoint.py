"""Checkpoints: one safetensors file with its JSON inside, written aside and renamed, so there is never half of one.
No pickle.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offrec.errors import InputError

Tensors = dict[str, Tensor]


def save(path: Path, tensors: Tensors, facts: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    aside = path.with_suffix(".partial")
    save_file(tensors, aside, {"facts": json.dumps(facts), "crc32": str(_checksum(tensors))})
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            header = file.metadata() or {}
        facts: dict[str, Any] = json.loads(header["facts"])
        sound = int(header["crc32"]) == _checksum(tensors)
    except FileNotFoundError as error:
        raise InputError(f"There is no checkpoint {path}; train the run first.") from error
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"The checkpoint {path} is damaged ({error}); train the run again.") from error
    if not sound:
        raise InputError(f"The checkpoint {path} is damaged: its checksum does not match; train the run again.")
    return tensors, facts


def _checksum(tensors: Tensors) -> int:
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        total = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), total))
    return total
