"""Time one epoch of RecTools' SASRec with softmax over all items. Run by run.py.

Needs requirements-rectools.txt. RecTools encodes a session once, cut to its last `history` + 1 events and padded to
`history`, and also computes the logits of the padding. Its catalogue consists of the items in its interactions. It gets
all training sessions and is stopped after the number of sessions that the other libraries train on.
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
    parser.add_argument(
        "--sessions", type=int, help="sessions per update; by default, the number that contains --batch events"
    )
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
    clock = next(one for one in model.fit_trainer.callbacks if isinstance(one, Clock))  # RecTools copies it
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
