"""Time one epoch of RecBole's SASRec with cross-entropy over all items. Run by run.py.

Needs requirements-recbole.txt. RecBole turns every event except a session's first into a row: up to `history` items
before it, padded.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import peerlog
import torch
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.utils import get_dataloader
from recbole.utils import get_model, get_trainer, init_seed

NAME = "log"


def export(log: peerlog.Log, folder: Path) -> None:
    """Write RecBole's atomic files; the item file also lists items that occur in no session."""
    folder.mkdir(parents=True)
    position = np.arange(log.events) - np.repeat(log.offsets[:-1], log.lengths)
    table = {"session_id:token": log.session_of_event(), "item_id:token": log.items, "timestamp:float": position}
    pd.DataFrame(table).to_csv(folder / f"{NAME}.inter", sep="\t", index=False)
    pd.DataFrame({"item_id:token": np.arange(log.n_items)}).to_csv(folder / f"{NAME}.item", sep="\t", index=False)


def settings(options: Any) -> dict[str, Any]:
    return {
        "data_path": str(options.work),
        "checkpoint_dir": str(options.work / "saved"),
        "USER_ID_FIELD": "session_id",
        "ITEM_ID_FIELD": "item_id",
        "load_col": {"inter": ["session_id", "item_id", "timestamp"], "item": ["item_id"]},
        "MAX_ITEM_LIST_LENGTH": options.history,
        "hidden_size": options.width,
        "inner_size": 4 * options.width,
        "n_layers": options.layers,
        "n_heads": options.heads,
        "hidden_dropout_prob": options.dropout,
        "attn_dropout_prob": options.dropout,
        "loss_type": "CE",
        "train_neg_sample_args": None,
        "train_batch_size": options.batch,
        "learning_rate": options.rate,
        "epochs": 1,
        "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "group_by": None, "order": "TO", "mode": "full"},
        "use_gpu": False,
        "show_progress": False,
        "state": "ERROR",
    }


def main() -> None:
    options = peerlog.options(__doc__).parse_args()
    options.work = options.work.absolute()
    torch.set_num_threads(options.threads)
    log, whole = peerlog.read(options.dataset), peerlog.read(options.dataset, "whole")
    export(log, options.work / NAME)
    os.chdir(options.work)  # RecBole writes logs into the current folder
    config = Config(model="SASRec", dataset=NAME, config_dict=settings(options))
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    train = dataset.build()[0]
    loader = get_dataloader(config, "train")(config, train, None, shuffle=True)
    model = get_model("SASRec")(config, train)
    assert model.n_items == log.n_items + 1, "the catalogue is not whole"
    assert len(train) == log.events - log.sessions, "an event is missing"
    trainer = get_trainer(config["MODEL_TYPE"], "SASRec")(config, model)
    before, started = peerlog.resident(), time.perf_counter()
    trainer.fit(loader, saved=False, verbose=False)
    peerlog.report(
        seconds=time.perf_counter() - started,
        updates=len(loader),
        events=len(train),
        epoch_events=whole.events - whole.sessions,
        before=before,
        loss=trainer.train_loss_dict[0] / len(loader),
    )


if __name__ == "__main__":
    main()
