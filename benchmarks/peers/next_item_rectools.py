"""Train RecTools' SASRec and write its lists for the test events. Needs requirements-rectools.txt.

    python next_item_rectools.py DATASET --json FILE [--seconds 600] [--seed 0]

Two configurations share the budget of CPU seconds. The epoch with the best NDCG@10 on validation events is scored.
"""

import argparse
import copy
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scoring
import torch
from pytorch_lightning import Callback, Trainer, seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

HISTORY, SESSIONS, PATIENCE, VALIDATION, EPOCHS = 50, 128, 3, 2_000, 100
CONFIGURATIONS = [{"n_factors": 64, "dropout_rate": 0.5}, {"n_factors": 128, "dropout_rate": 0.3}]


def interactions(sessions: list[Any]) -> Dataset:
    """Return sessions as RecTools' interactions; session n is user n."""
    items = np.concatenate(sessions)
    table = {
        Columns.User: np.repeat(np.arange(len(sessions)), [len(session) for session in sessions]),
        Columns.Item: items,
        Columns.Weight: 1.0,
        Columns.Datetime: pd.to_datetime(np.arange(len(items)), unit="s"),
    }
    return Dataset.construct(pd.DataFrame(table))


def lists(model: SASRecModel, events: scoring.Events, limit: int | None = None) -> Any:
    """Return the 20 best items of each event."""
    histories = events.histories()[:limit]
    result = np.full((len(histories), scoring.LENGTH), -1, dtype=np.int64)
    for first in range(0, len(histories), 5_000):
        part = histories[first : first + 5_000]
        table = model.recommend(
            users=np.arange(len(part)),
            dataset=interactions(part),
            k=scoring.LENGTH,
            filter_viewed=False,
            on_unsupported_targets="ignore",
        )
        result[first + table[Columns.User].to_numpy(), table[Columns.Rank].to_numpy() - 1] = table[Columns.Item]
    return result


class Best(Callback):
    """Scores validation events after each epoch, stores the best weights, and stops training."""

    def __init__(self, owner: dict[str, Any], events: scoring.Events, seconds: float) -> None:
        self.owner, self.events, self.seconds = owner, events, seconds
        self.started, self.since = time.process_time(), 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.owner["model"].lightning_model, self.owner["model"].is_fitted = pl_module, True
        found = lists(self.owner["model"], self.events, VALIDATION)
        pl_module.train()
        figure = scoring.figures(scoring.ranks(found, self.events.target[:VALIDATION]))["NDCG@10"]
        self.since = 0 if figure > self.owner["figure"] else self.since + 1
        if figure > self.owner["figure"]:
            self.owner |= {"figure": figure, "epoch": trainer.current_epoch + 1}
            self.owner["weights"] = copy.deepcopy(pl_module.state_dict())
        if self.since >= PATIENCE or time.process_time() - self.started > self.seconds:
            trainer.should_stop = True

    def __deepcopy__(self, memo: Any) -> "Best":
        return self  # RecTools copies its trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    validation, test = (scoring.read_events(options.dataset, split) for split in ("validation", "test"))
    train, runs = interactions(scoring.train_sessions(options.dataset)), []
    for own in CONFIGURATIONS:
        seed_everything(options.seed)
        owner: dict[str, Any] = {"figure": -1.0, "settings": own}
        best = Best(owner, validation, options.seconds / len(CONFIGURATIONS))
        owner["model"] = SASRecModel(
            n_blocks=2,
            n_heads=2,
            session_max_len=HISTORY,
            loss="softmax",
            lr=0.001,
            batch_size=SESSIONS,
            recommend_torch_device="cpu",
            get_trainer_func=lambda callback=best: Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=EPOCHS,
                callbacks=[callback],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            ),
            **own,
        )
        owner["model"].fit(train)
        owner["model"].lightning_model.load_state_dict(owner.pop("weights"))
        runs.append(owner)
    chosen = max(runs, key=lambda run: run["figure"])
    score = scoring.score(lists(chosen.pop("model"), test), test)
    record = {"dataset": options.dataset.name, "method": "RecTools SASRec", "seed": options.seed, "chosen": chosen}
    record |= {"cpu_seconds": round(time.process_time()), "test": score}
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(options.dataset.name, score["all"], chosen)


if __name__ == "__main__":
    main()
