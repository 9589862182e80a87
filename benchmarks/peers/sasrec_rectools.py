"""RecTools' SASRec with softmax over all items: one epoch, timed. Needs requirements-rectools.txt; run by run.py.

RecTools encodes a session once, cut to its last `history` + 1 events and padded to `history`, and computes the logits
of the padding as well. Its catalogue is what its interactions hold, so it is given all training sessions and stopped
after as many of them as the others train on.
"""

import math
import time
from typing import Any

import numpy as np
import pandas as pd
import peerlog
import torch
from pytorch_lightning import Callback, Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


class Clock(Callback):
    def __init__(self) -> None:
        self.seconds, self.events, self.updates, self.before, self.started = 0.0, 0, 0, 0.0, 0.0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.before, self.started = peerlog.resident(), time.perf_counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.events += int((batch["y"] != 0).sum())
        self.updates += 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.seconds = time.perf_counter() - self.started


def interactions(log: peerlog.Log) -> Dataset:
    table = {
        Columns.User: log.session_of_event(),
        Columns.Item: log.items,
        Columns.Weight: 1.0,
        Columns.Datetime: pd.to_datetime(np.arange(log.events), unit="s"),
    }
    return Dataset.construct(pd.DataFrame(table))


def main() -> None:
    parser = peerlog.options(__doc__)
    parser.add_argument("--sessions", type=int, help="in an update; by default as many as hold --batch events")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    log, whole = peerlog.read(options.dataset), peerlog.read(options.dataset, "whole")
    predicted = int(np.minimum(whole.lengths - 1, options.history).sum())
    sessions = options.sessions or round(options.batch * whole.sessions / predicted)
    updates = math.ceil(log.sessions / sessions)
    model = SASRecModel(
        n_blocks=options.layers,
        n_heads=options.heads,
        n_factors=options.width,
        dropout_rate=options.dropout,
        session_max_len=options.history,
        loss="softmax",
        lr=options.rate,
        batch_size=sessions,
        get_trainer_func=lambda: Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            limit_train_batches=updates,
            callbacks=[Clock()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ),
    )
    model.fit(interactions(whole))
    clock = next(found for found in model.fit_trainer.callbacks if isinstance(found, Clock))  # a copy of ours
    missing = whole.n_items - len(model.data_preparator.get_known_item_ids())
    peerlog.report(
        seconds=clock.seconds,
        updates=clock.updates,
        events=clock.events,
        epoch_events=predicted,
        before=clock.before,
        loss=float(model.fit_trainer.callback_metrics["train_loss"]),
        sessions=sessions,
        items_missing=missing,
    )


if __name__ == "__main__":
    main()
