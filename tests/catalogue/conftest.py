from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Products in full float32: then an error is an error, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
