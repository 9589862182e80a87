"""Fixtures that all tests share."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from offrec.data.dataset import Dataset
from small_datasets import write_dataset

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

MakeDataset = Callable[..., Dataset]


@pytest.fixture
def make_dataset() -> MakeDataset:
    """Return `small_datasets.write_dataset`, for packages whose tests cannot import it."""
    return write_dataset


@pytest.fixture
def quick_logging_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit π̂_b with the training options of the run. With its own preset, fitting would dominate the test."""

    def training_of_run(options: Any, dataset_format: str) -> Any:
        return replace(options.training, schedule="plateau")  # the presets of learners differ only in the schedule

    for module in ("logging_run", "train", "warm_start"):
        monkeypatch.setattr(f"offrec.runs.{module}.logging_training", training_of_run)


@pytest.fixture
def full_float32() -> Iterator[None]:
    """Disable TF32, so that differences are errors and not rounding."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
