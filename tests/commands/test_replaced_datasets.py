"""Commands that read the dataset of a run, after its folder was replaced or removed."""

import shutil
from pathlib import Path

import pytest

from offrec.commands.estimate import Estimate
from offrec.commands.evaluate import Evaluate
from offrec.console import Console
from offrec.errors import InputError
from offrec.runs.train import train
from small_datasets import write_dataset

SETTINGS = {"network.width": 8, "training.epochs": 1}


def test_another_dataset_in_the_folder_of_the_first_is_not_taken_for_it(tmp_path: Path) -> None:
    before = write_dataset(tmp_path, [[0, 1, 2]] * 8)
    train(before, tmp_path / "run", device="cpu", settings=SETTINGS, console=Console(quiet=True))
    later, other = write_dataset(tmp_path, [[0, 2, 1]] * 8), write_dataset(tmp_path, [[2, 1, 0]] * 8)
    evaluate = Evaluate((tmp_path / "run",), baselines="popular", dataset=later.path, device="cpu")
    estimate = Estimate((tmp_path / "run",), dataset=later.path, device="cpu")
    assert evaluate._counted_dataset(later).meta["data_hash"] == before.meta["data_hash"]
    assert estimate._seen_note(later) == []
    shutil.rmtree(before.path)
    with pytest.raises(InputError, match=r"--baselines count .* no longer exists; omit --baselines"):
        evaluate._counted_dataset(later)
    assert "which no longer exists. Whether" in estimate._seen_note(later)[0]
    shutil.copytree(other.path, before.path)
    with pytest.raises(InputError, match=r"--baselines count .* now contains other data; omit --baselines"):
        evaluate._counted_dataset(later)
    assert "which now contains other data. Whether" in estimate._seen_note(later)[0]
