"""Checkpoints from elsewhere."""

from pathlib import Path

import pytest
import torch

from offrec.errors import InputError
from offrec.training import checkpoint


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"w": torch.zeros(2, 9), "b": torch.zeros(3)}, r"w is F32 \[2, 9\] instead of F32 \[2, 3\], as run.json"),
        ({"w": torch.zeros(2, 3).double(), "b": torch.zeros(3)}, r"w is F64 \[2, 3\] instead of F32 \[2, 3\]"),
        ({"w": torch.zeros(2, 3)}, "it lacks tensor 'b'"),
        ({"w": torch.zeros(2, 3), "b": torch.zeros(3), "x": torch.zeros(9)}, "it has an unexpected tensor 'x'"),
    ],
)
def test_other_tensors_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: checkpoint.Tensors, reason: str
) -> None:
    path, expected = tmp_path / "best.safetensors", {"w": ((2, 3), torch.float32), "b": ((3,), torch.float32)}
    checkpoint.save(path, tensors, {})
    monkeypatch.setattr(checkpoint, "_checksum", None)  # it needs the tensors: a call would end with another message
    with pytest.raises(InputError, match=rf"is damaged \({reason}.*\); train the run again"):
        checkpoint.load(path, expected)
