"""What all tests share."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from made_datasets import write_dataset
from offrec.data.dataset import Dataset

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

MakeDataset = Callable[..., Dataset]


@pytest.fixture
def make_dataset() -> MakeDataset:
    """make_dataset(tmp_path, sessions, behaviours=None, splits=None, *, items=None, ids=None, **protocol) → Dataset"""
    return write_dataset


@pytest.fixture
def quick_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """π̂_b fitted as briefly as the run is trained: as its preset says would take longer than the rest of a test."""

    def brief(options: Any, dataset_format: str) -> Any:
        return replace(options.training, schedule="plateau")  # the one thing in which learners' presets differ

    monkeypatch.setattr("offrec.runs.train.logging_training", brief)


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Products in full float32: then an error is an error, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
