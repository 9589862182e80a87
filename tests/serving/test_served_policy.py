"""A run that is loaded is what stood there at one moment, and stays so whatever becomes of its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_runs import write_run

from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import load
from offrec.serving import served_policy


def test_ids_stay_when_the_folder_is_overwritten_in_place(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [100, 101, 102])
    policy = served_policy.load("run", run, "cpu").policy
    with (run / "item_ids.npy").open("r+b") as file:
        file.seek(-24, 2)
        file.write(np.array([7, 8, 9], np.int64).tobytes())
    assert [policy.vocabulary.id(index) for index in range(3)] == [100, 101, 102]


def test_a_link_switched_during_a_load_mixes_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (write_run(tmp_path / name, list(range(20)), seed=seed) for seed, name in enumerate("ab"))
    expected = served_policy.load("run", before, "cpu").fingerprint
    link, real = tmp_path / "live", load
    link.symlink_to(before)

    def switched(run: Path, *rest: Any) -> NetworkPolicy:
        policy = real(run, *rest)
        link.unlink()
        link.symlink_to(after)
        return policy

    monkeypatch.setattr("offrec.runs.loading.load", switched)
    assert served_policy.load("run", link, "cpu").fingerprint == expected
    monkeypatch.undo()
    assert served_policy.load("run", link, "cpu").fingerprint != expected
