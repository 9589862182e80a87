"""Train RecBole's SASRec or GRU4Rec and write its lists for the test events. Needs requirements-recbole.txt.

    python next_item_recbole.py DATASET --model SASRec --json FILE [--seconds 600] [--seed 0]

Two configurations share the budget of CPU seconds. The epoch with the best NDCG@10 on validation events is scored.
"""

import argparse
import copy
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scoring
import torch
from recbole.config import Config
from recbole.data import create_dataset
from recbole.data.interaction import Interaction
from recbole.data.utils import get_dataloader
from recbole.utils import get_model, get_trainer, init_seed

NAME, HISTORY, BATCH, PATIENCE, VALIDATION = (
    "log",
    20,
    256,
    3,
    1_000,
)  # sessions are short; 50 items cost 2.5 times as much
CONFIGURATIONS = {
    "SASRec": [
        {"hidden_size": 64, "inner_size": 256, "hidden_dropout_prob": 0.5, "attn_dropout_prob": 0.5},
        {"hidden_size": 128, "inner_size": 512, "hidden_dropout_prob": 0.3, "attn_dropout_prob": 0.3},
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


def lists(model: Any, events: scoring.Events, to_internal: Any, to_item: Any, limit: int | None = None) -> Any:
    """Return the 20 best items of each event."""
    model.eval()
    number = np.arange(len(events.event))[:limit]
    result = np.full((len(number), scoring.LENGTH), -1, dtype=np.int64)
    with torch.no_grad():
        for part in np.array_split(number, max(1, len(number) // 256)):
            histories = [events.history(one)[-HISTORY:] for one in part]
            sequence = torch.zeros(len(part), HISTORY, dtype=torch.long)
            for row, history in enumerate(histories):
                sequence[row, : len(history)] = torch.from_numpy(to_internal[history])
            lengths = torch.tensor([len(history) for history in histories])
            scores = model.full_sort_predict(Interaction({"item_id_list": sequence, "item_length": lengths}))
            scores[:, 0] = -torch.inf  # padding
            result[part] = to_item[scores.topk(scoring.LENGTH).indices.numpy()]
    return result


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
    best: dict[str, Any] = {"NDCG@10": -1.0}
    with tempfile.TemporaryDirectory() as work:
        export(Path(work) / NAME, folder, test.n_items)
        os.chdir(work)  # RecBole writes logs into the current folder
        for own in CONFIGURATIONS[options.model]:
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
                "seed": options.seed,
                "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "group_by": None, "order": "TO", "mode": "full"},
                "use_gpu": False,
                "show_progress": False,
                "state": "ERROR",
                **own,
            }
            config = Config(model=options.model, dataset=NAME, config_dict=settings)
            init_seed(config["seed"], config["reproducibility"])
            data = create_dataset(config)
            train = data.build()[0]
            tokens = [str(item) for item in range(test.n_items)]
            to_internal = np.array(data.token2id("item_id", tokens))
            to_item = np.full(len(tokens) + 1, -1)
            to_item[to_internal] = np.arange(test.n_items)
            loader = get_dataloader(config, "train")(config, train, None, shuffle=True)
            model = get_model(options.model)(config, train)
            trainer = get_trainer(config["MODEL_TYPE"], options.model)(config, model)
            started, own_best, since, epoch = time.process_time(), -1.0, 0, 0
            while since < PATIENCE and time.process_time() - started < options.seconds / len(
                CONFIGURATIONS[options.model]
            ):
                trainer._train_epoch(loader, epoch)
                found = lists(model, validation, to_internal, to_item, VALIDATION)
                figure = scoring.figures(scoring.ranks(found, validation.target[:VALIDATION]))["NDCG@10"]
                epoch, since = epoch + 1, 0 if figure > own_best else since + 1
                own_best = max(own_best, figure)
                if figure > best["NDCG@10"]:
                    best = {"NDCG@10": figure, "epoch": epoch, "settings": own}
                    best["weights"], best["model"] = copy.deepcopy(model.state_dict()), model
        best["model"].load_state_dict(best.pop("weights"))
        score = scoring.score(lists(best.pop("model"), test, to_internal, to_item), test)
    record = {"dataset": folder.name, "method": f"RecBole {options.model}", "seed": options.seed, "chosen": best}
    record |= {"cpu_seconds": round(time.process_time()), "test": score}
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(folder.name, options.model, score["all"], best)


if __name__ == "__main__":
    main()
