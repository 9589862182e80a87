"""benchmarks/shop_dataset.py, compared with `offrec prepare`."""

import sys
from pathlib import Path

import pytest

from offrec.data.prepare import prepare
from offrec.shop import Shop, write_log

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from shop_dataset import write_shop_dataset


@pytest.mark.parametrize(("world", "seed"), [("demo", 3), ("cascade", 12)])
def test_the_dataset_is_the_one_that_prepare_writes(world: str, seed: int, tmp_path: Path) -> None:
    shop = Shop.open(world, seed)
    write_log(shop, 300, tmp_path / "log", seed=seed)
    expected = prepare(tmp_path / "log/events.parquet", out=tmp_path / "prepared")
    dataset = write_shop_dataset(shop, 300, tmp_path / "written")
    for key in ("data_hash", "fingerprint", "counts", "behaviours", "splits"):
        assert dataset.meta[key] == expected.meta[key], key
    stored, known = dataset.meta["shop"], expected.meta["shop"]
    assert {**stored, "version": known["version"]} == known
