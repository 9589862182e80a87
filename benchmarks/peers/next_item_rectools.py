"""Train RecTools' SASRec and write its lists for the test events. Needs requirements-rectools.txt.

    python next_item_rectools.py DATASET --json FILE [--seconds 600] [--seed 0]

The configurations share the budget of CPU seconds; what one of them leaves is added to the shares of the next.
The epoch with the best NDCG@10 on validation events is scored.
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
from rectools.models.nn.transformers.sasrec import SASRecDataPreparator

HISTORY, SESSIONS, PATIENCE = 50, 32, 5
CONFIGURATIONS = [
    {"n_factors": 64, "dropout_rate": 0.5},
    {"n_factors": 128, "dropout_rate": 0.3},
    {"n_factors": 256, "dropout_rate": 0.2},  # RecTools' default width and dropout
]


class Preparator(SASRecDataPreparator):
    """Pads a training batch to its longest session. RecTools pads all to session_max_len; the loss is the same."""

    def _collate_fn_train(self, batch: Any) -> dict[str, torch.Tensor]:
        longest = max(len(session) for session, *_ in batch) - 1
        return {name: value[:, -longest:] for name, value in super()._collate_fn_train(batch).items()}


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


def lists(model: SASRecModel, histories: list[Dataset]) -> Any:
    """Return the 20 best items after each history."""
    result = []
    for part in histories:
        users = part.user_id_map.external_ids
        table = model.recommend(
            users=users, dataset=part, k=scoring.LENGTH, filter_viewed=False, on_unsupported_targets="ignore"
        )
        found = np.full((len(users), scoring.LENGTH), -1, dtype=np.int64)
        found[table[Columns.User].to_numpy(), table[Columns.Rank].to_numpy() - 1] = table[Columns.Item]
        result.append(found)
    return np.concatenate(result)


def histories(events: scoring.Events, size: int = 5_000) -> list[Dataset]:
    """Return the histories of the events as RecTools' datasets."""
    all_histories = events.histories()
    return [interactions(all_histories[first : first + size]) for first in range(0, len(all_histories), size)]


class Best(Callback):
    """Scores validation events after each epoch, stores the best weights, and stops training."""

    def __init__(self, own: dict[str, Any], validation: scoring.Events, seconds: float) -> None:
        self.histories, self.target, self.seconds = histories(validation), validation.target, seconds
        self.started, self.curve = time.process_time(), list[float]()
        self.model: SASRecModel = None
        self.best: dict[str, Any] = {"figure": -1.0, "settings": own}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.model.lightning_model, self.model.is_fitted = pl_module, True
        rank = scoring.ranks(lists(self.model, self.histories), self.target)
        pl_module.train()
        self.curve.append(round(scoring.figures(rank)["NDCG@10"], 5))
        if self.curve[-1] > self.best["figure"]:
            weights = copy.deepcopy(pl_module.state_dict())
            self.best |= {"figure": self.curve[-1], "epoch": len(self.curve), "weights": weights}
        is_over = time.process_time() - self.started > self.seconds
        is_done = len(self.curve) - self.best["epoch"] >= PATIENCE
        if is_over or is_done:
            self.best |= {"stopped_early": not is_over, "validation": self.curve}
            self.best["cpu_seconds"] = round(time.process_time() - self.started)
            trainer.should_stop = True

    def __deepcopy__(self, memo: Any) -> "Best":
        return self  # RecTools copies its trainer


def fit(own: dict[str, Any], train: Dataset, validation: scoring.Events, seed: int, seconds: float) -> Any:
    """Train one configuration; return its best epoch and its model."""
    seed_everything(seed)
    callback = Best(own, validation, seconds)
    callback.model = SASRecModel(
        n_blocks=2,
        n_heads=2,
        session_max_len=HISTORY,
        loss="softmax",
        lr=0.001,
        batch_size=SESSIONS,
        data_preparator_type=Preparator,
        recommend_torch_device="cpu",
        get_trainer_func=lambda: Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=-1,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ),
        **own,
    )
    callback.model.fit(train)
    callback.model.lightning_model.load_state_dict(callback.best.pop("weights"))
    return callback.best, callback.model


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
    train, runs, started = interactions(scoring.train_sessions(options.dataset)), [], time.process_time()
    for number, own in enumerate(CONFIGURATIONS):
        left = options.seconds - (time.process_time() - started)
        runs.append(fit(own, train, validation, options.seed, left / (len(CONFIGURATIONS) - number)))
    chosen, model = max(runs, key=lambda run: run[0]["figure"])
    score = scoring.score(lists(model, histories(test)), test)
    record = {"dataset": options.dataset.name, "method": "RecTools SASRec", "seed": options.seed}
    record |= {"budget_seconds": options.seconds, "cpu_seconds": round(time.process_time() - started)}
    record |= {"chosen": chosen, "tried": [run[0] for run in runs], "test": score}
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(options.dataset.name, score["all"], *record["tried"], sep="\n")


if __name__ == "__main__":
    main()
