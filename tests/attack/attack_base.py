"""What the attacks start from: small logs of a shop with datasets, runs, rounds, a study, a decision log, held lists.

python attack_base.py FOLDER
"""

import json
import sys
from pathlib import Path

import polars as pl
import torch

from offrec import logging_policy
from offrec.commands.studies import Compare
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.line_checksums import seal_end, seal_record
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.models.network_policy import NetworkPolicy
from offrec.rounds import RoundsOptions, run_rounds
from offrec.runs.options import resolve_options
from offrec.runs.train import train
from offrec.serving.item_lists import ItemLists
from offrec.shop import Shop
from offrec.shop.log import write_log

QUIET = Console(quiet=True)
ROUNDS = RoundsOptions(
    world="tiny", sessions=40, rounds=1, explore=("never",), algorithm="sl", visitors=20, informed_visitors=0,
    device="cpu", settings={"network.width": 8, "network.history": 5, "training.epochs": 1},
)  # fmt: skip
SMALL = {"network.width": 8, "network.history": 5, "training.epochs": 1, "diagnostics": "some"}


def build(base: Path) -> Path:
    """Create everything in a new folder."""
    base.mkdir(parents=True, exist_ok=True)
    write_log(Shop.open("tiny"), 150, base / "shop")
    prepare(base / "shop" / "events.parquet", out=base / "data")
    prepare(base / "shop" / "full.parquet", out=base / "lists", format="decisions")
    prepare(base / "shop" / "events.parquet", out=base / "items", items=(str(base / "shop" / "items.parquet"),))
    write_log(Shop.open("tiny"), 60, base / "later_shop", seed=1, first_session=1000)
    prepare(base / "later_shop" / "events.parquet", out=base / "later")
    for data, run in (("data", "run"), ("lists", "run_lists"), ("items", "run_items")):
        train(base / data, base / run, settings=SMALL, device="cpu", console=QUIET)
    train(
        base / "later",
        base / "warm",
        settings={"training.epochs": 1},
        start_from=base / "run",
        device="cpu",
        console=QUIET,
    )
    write_new_items(base)
    run_rounds(ROUNDS, base / "rounds", QUIET)
    ItemLists(base / "held").put("stock", json.dumps(list(range(20))).encode(), is_json=True)
    write_decision_log(base / "served")
    fit_logging_policy(base / "data")
    study(base).run()
    try:
        from offrec.serving.export import export_onnx

        export_onnx(base / "run", base / "model.onnx")
    except InputError:
        pass  # onnx is not installed
    return base


def continue_training(base: Path, out: Path) -> NetworkPolicy:
    """Train on the later log, starting from the run of the earlier one."""
    settings = {"training.epochs": 1}
    return train(base / "later", out, settings=settings, start_from=base / "run", device="cpu", console=QUIET)


def write_new_items(base: Path) -> None:
    """Write a table of items that no run has seen, with the columns of the shop's items."""
    items = pl.read_parquet(base / "shop" / "items.parquet")
    items.head(3).with_columns(pl.col("item") + 100_000).write_parquet(base / "new_items.parquet")


def study(base: Path, out: str = "study") -> Compare:
    """Return the command that makes the study."""
    from offrec.commands.studies import Execution

    settings = tuple(f"{key}={value}" for key, value in SMALL.items())
    execution = Execution(device="cpu", json=True)
    return Compare(
        (base / "data",), base / out, algorithms="sl", baselines="popular,recent", seeds="1", set=settings,
        visitors=50, execution=execution,
    )  # fmt: skip


def write_decision_log(folder: Path) -> None:
    """Write a decision log as a server would."""
    folder.mkdir()
    lines = []
    for visitor in range(30):
        for step in range(2):
            time, request = 1000 + 10 * visitor + 2 * step, f"{visitor}-{step}"
            names = {"request_id": request, "session_id": f"v{visitor}"}
            policy, split = "ab"[visitor % 2], "a=0.5,b=0.5"
            record = {"kind": "list", "time": time, **names, "policy": policy, "split": split, "history": [1] * step}
            record |= {"items": [1, 2], "log_probability": -1.5, "sampled": True, "restricted": False}
            lines += [record, {"kind": "event", "time": time + 1, **names, "item": 1, "behaviour": "view"}]
    (folder / "decisions-1-1-0.jsonl").write_bytes(b"".join(map(seal_record, lines)) + seal_end(len(lines)))


def fit_logging_policy(data: Path) -> dict[str, float]:
    """Fit the logging policy of a dataset, or read it from its cache; return numbers that depend on every weight."""
    dataset, options = Dataset.open(data), resolve_options(SMALL, "events")
    fitted = logging_policy.load_or_fit(
        dataset, options.network, options.training, 0, torch.device("cpu"), QUIET, need="both"
    )  # fmt: skip
    assert fitted.network is not None
    assert fitted.log_b is not None
    weights = sum(float(tensor.double().abs().sum()) for tensor in fitted.network.state_dict().values())
    return {"weights": weights, "log_b": float(fitted.log_b.nansum()), **fitted.calibration}


if __name__ == "__main__":
    build(Path(sys.argv[1]))
