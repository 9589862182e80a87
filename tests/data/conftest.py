from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, write_sources

from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare


@pytest.fixture
def prepare_log(tmp_path: Path) -> Prepare:
    """Return a function that prepares (name, content) pairs or existing files and opens the dataset."""

    def run(*sources: tuple[str, str | bytes] | Path, out: str = "dataset", **choices: Any) -> Dataset:
        return prepare(write_sources(tmp_path, sources), out=tmp_path / out, **choices)

    return run
