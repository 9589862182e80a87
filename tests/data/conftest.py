from pathlib import Path
from typing import Any

import pytest
from small_logs import Prepare, written

from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare


@pytest.fixture
def prepared(tmp_path: Path) -> Prepare:
    """Prepare text, bytes or files; sources are (name, content) pairs or paths."""

    def run(*sources: tuple[str, str | bytes] | Path, out: str = "dataset", **choices: Any) -> Dataset:
        return prepare(written(tmp_path, sources), out=tmp_path / out, **choices)

    return run
