"""Opening a dataset reads all of its arrays, but does not keep them in the memory of the process."""

from pathlib import Path

import numpy as np
import pytest

from offrec.data import arrays
from offrec.data.arrays import describe_array, hash_array, open_array, read_blocks


def resident_file_pages() -> int:
    """Return the bytes of memory-mapped files in the memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


def test_blocks_of_a_mapped_file_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 1 << 20)
    values = np.arange(8 << 20, dtype=np.int32)  # 32 MiB
    np.save(tmp_path / "values.npy", values)
    mapped = open_array(tmp_path / "values.npy", advice="")
    before, most, total = resident_file_pages(), 0, 0
    for block in read_blocks(mapped):
        total += int(block.sum(dtype=np.int64))
        most = max(most, resident_file_pages() - before)
    assert total == int(values.sum(dtype=np.int64))
    assert most < 8 << 20
    assert hash_array(mapped) == describe_array(values)["sha256"]
    assert resident_file_pages() - before < 8 << 20


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (2, 0)])
def test_blocks_contain_every_value_once(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 16)
    values = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    assert [one for block in read_blocks(values) for one in block.tolist()] == values.reshape(-1).tolist()
