"""What all tests share."""

import os
from collections.abc import Callable

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
