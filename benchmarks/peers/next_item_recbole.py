"""Train RecBole's SASRec or GRU4Rec and write its lists for the test events. Needs requirements-recbole.txt.

    python next_item_recbole.py DATASET --model SASRec --json FILE [--seconds 600] [--seed 0]

The configurations share the budget of CPU seconds; what one of them leaves is added to the shares of the next.
The epoch with the best NDCG@10 on validation events is scored.
"""

import argparse
import copy
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scoring
import torch
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.interaction import Interaction
from recbole.utils import get_model, get_trainer, init_seed

NAME, HISTORY, BATCH, PATIENCE = "log", 50, 128, 5
CHUNK = 16  # batches that are sorted by length together
SLOW = {"learning_rate": 0.0005}
CONFIGURATIONS = {
    "SASRec": [
        {"hidden_size": 64, "inner_size": 256, "hidden_dropout_prob": 0.5, "attn_dropout_prob": 0.5},
        {"hidden_size": 128, "inner_size": 512, "hidden_dropout_prob": 0.3, "attn_dropout_prob": 0.3},
        {"hidden_size": 256, "inner_size": 1024, "hidden_dropout_prob": 0.3, "attn_dropout_prob": 0.3, **SLOW},
    ],
    "GRU4Rec": [
        {"embedding_size": 64, "hidden_size": 128, "dropout_prob": 0.3},
        {"embedding_size": 128, "hidden_size": 128, "dropout_prob": 0.5},
    ],
}


def export(folder: Path, dataset: Path, n_items: int) -> None:
    """Write RecBole's files of the training sessions."""
    sessions = scoring.train_sessions(dataset)
    folder.mkdir()
    number = np.repeat(np.arange(len(sessions)), [len(session) for session in sessions])
    position = np.concatenate([np.arange(len(session)) for session in sessions])
    table = {"session_id:token": number, "item_id:token": np.concatenate(sessions), "timestamp:float": position}
    pd.DataFrame(table).to_csv(folder / f"{NAME}.inter", sep="\t", index=False)
    pd.DataFrame({"item_id:token": np.arange(n_items)}).to_csv(folder / f"{NAME}.item", sep="\t", index=False)


class Batches:
    """Shuffles the examples and pads each batch to its own longest history.

    RecBole's loader pads all histories to MAX_ITEM_LIST_LENGTH, so most positions of short sessions would be padding.
    The loss of a batch is the same.
    """

    def __init__(self, examples: Interaction, seed: int) -> None:
        self.examples, self.random = examples, np.random.default_rng(seed)
        self.length = examples["item_length"].numpy()

    def __len__(self) -> int:
        return -(-len(self.length) // BATCH)

    def __iter__(self) -> Iterator[Interaction]:
        order = self.random.permutation(len(self.length))
        for first in range(0, len(order), CHUNK * BATCH):
            chunk = order[first : first + CHUNK * BATCH]
            chunk = chunk[np.argsort(self.length[chunk], kind="stable")]
            parts = [chunk[begin : begin + BATCH] for begin in range(0, len(chunk), BATCH)]
            for number in self.random.permutation(len(parts)):
                batch = self.examples[torch.from_numpy(parts[number])]
                longest = int(batch["item_length"].max())
                fields = {name: batch[name] for name in ("item_length", "item_id")}
                yield Interaction({**fields, "item_id_list": batch["item_id_list"][:, :longest]})


def lists(model: Any, events: scoring.Events, to_internal: Any, to_item: Any) -> Any:
    """Return the 20 best items of each event."""
    model.eval()
    histories = [events.history(number)[-HISTORY:] for number in range(len(events.event))]
    order = np.argsort([len(history) for history in histories], kind="stable")
    result = np.full((len(order), scoring.LENGTH), -1, dtype=np.int64)
    with torch.no_grad():
        for part in np.array_split(order, max(1, len(order) // 256)):
            lengths = torch.tensor([len(histories[number]) for number in part])
            sequence = torch.zeros(len(part), int(lengths.max()), dtype=torch.long)
            for row, number in enumerate(part):
                sequence[row, : lengths[row]] = torch.from_numpy(to_internal[histories[number]])
            scores = model.full_sort_predict(Interaction({"item_id_list": sequence, "item_length": lengths}))
            scores[:, 0] = -torch.inf  # padding
            result[part] = to_item[scores.topk(scoring.LENGTH).indices.numpy()]
    return result


def fit(name: str, own: dict[str, Any], work: str, validation: scoring.Events, seed: int, seconds: float) -> Any:
    """Train one configuration; return its best epoch, its model and the mappings of items."""
    started = time.process_time()
    settings = {
        "data_path": work,
        "checkpoint_dir": f"{work}/saved",
        "USER_ID_FIELD": "session_id",
        "ITEM_ID_FIELD": "item_id",
        "load_col": {"inter": ["session_id", "item_id", "timestamp"], "item": ["item_id"]},
        "MAX_ITEM_LIST_LENGTH": HISTORY,
        "loss_type": "CE",
        "train_neg_sample_args": None,
        "train_batch_size": BATCH,
        "learning_rate": 0.001,
        "seed": seed,
        "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "group_by": None, "order": "TO", "mode": "full"},
        "use_gpu": False,
        "show_progress": False,
        "state": "ERROR",
        **own,
    }
    config = Config(model=name, dataset=NAME, config_dict=settings)
    init_seed(config["seed"], config["reproducibility"])
    train = create_dataset(config).build()[0]
    to_internal = np.array(train.token2id("item_id", [str(item) for item in range(validation.n_items)]))
    to_item = np.full(validation.n_items + 1, -1)
    to_item[to_internal] = np.arange(validation.n_items)
    batches = Batches(train.inter_feat, seed)
    model = get_model(name)(config, train)
    trainer = get_trainer(config["MODEL_TYPE"], name)(config, model)
    best: dict[str, Any] = {"figure": -1.0, "settings": own}
    curve: list[float] = []
    while time.process_time() - started < seconds:
        trainer._train_epoch(batches, len(curve))
        found = lists(model, validation, to_internal, to_item)
        curve.append(round(scoring.figures(scoring.ranks(found, validation.target))["NDCG@10"], 5))
        if curve[-1] > best["figure"]:
            best |= {"figure": curve[-1], "epoch": len(curve), "weights": copy.deepcopy(model.state_dict())}
        if len(curve) - best["epoch"] >= PATIENCE:
            break
    best |= {"stopped_early": time.process_time() - started < seconds, "validation": curve}
    best["cpu_seconds"] = round(time.process_time() - started)
    model.load_state_dict(best.pop("weights"))
    return best, (model, to_internal, to_item)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", choices=list(CONFIGURATIONS), default="SASRec")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, out = options.dataset.absolute(), options.json.absolute()
    torch.set_num_threads(1)
    validation, test = (scoring.read_events(folder, split) for split in ("validation", "test"))
    runs, started = [], time.process_time()
    with tempfile.TemporaryDirectory() as work:
        export(Path(work) / NAME, folder, test.n_items)
        os.chdir(work)  # RecBole writes logs into the current folder
        for number, own in enumerate(CONFIGURATIONS[options.model]):
            left = options.seconds - (time.process_time() - started)
            share = left / (len(CONFIGURATIONS[options.model]) - number)
            runs.append(fit(options.model, own, work, validation, options.seed, share))
        chosen, fitted = max(runs, key=lambda run: run[0]["figure"])
        score = scoring.score(lists(fitted[0], test, *fitted[1:]), test)
    record = {"dataset": folder.name, "method": f"RecBole {options.model}", "seed": options.seed}
    record |= {"budget_seconds": options.seconds, "cpu_seconds": round(time.process_time() - started)}
    record |= {"chosen": chosen, "tried": [run[0] for run in runs], "test": score}
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(folder.name, options.model, score["all"], *record["tried"], sep="\n")


if __name__ == "__main__":
    main()
