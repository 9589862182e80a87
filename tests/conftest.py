"""Fixtures that all tests share."""

import faulthandler
import os
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch

from offrec.data.dataset import Dataset
from small_datasets import write_dataset

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

MakeDataset = Callable[..., Dataset]
HANG_SECONDS = 400  # the slowest test takes half a minute on a quiet core
_output = [2]


def pytest_configure() -> None:
    """Keep the standard error for tracebacks of hangs: pytest replaces it while a test runs."""
    _output[0] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Fail a test that hangs. If native code hangs, which no signal interrupts, end the process a minute later."""

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(file=_output[0])
        pytest.fail(f"the test ran for more than {HANG_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG_SECONDS)
    faulthandler.dump_traceback_later(HANG_SECONDS + 60, exit=True, file=_output[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
