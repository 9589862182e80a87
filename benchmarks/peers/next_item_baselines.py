"""Score offrec's baselines on the test events. Needs offrec.

python next_item_baselines.py DATASET… --json FILE
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import scoring
import torch
from next_item_sl import lists

import offrec
from offrec.baselines import BASELINES
from offrec.baselines.item_neighbours import ItemNeighbours
from offrec.data.dataset import Dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    any_log = [name for name, record in BASELINES.items() if record.needs_only_events]
    parser.add_argument("--only", nargs="+", default=any_log, choices=list(BASELINES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for folder in options.datasets:
        events = scoring.read_events(folder)
        for name in options.only:
            started = time.process_time()
            policy = offrec.baseline(name, Dataset.open(folder))
            record = {"dataset": folder.name, "method": name, "cpu_seconds": round(time.process_time() - started, 1)}
            if isinstance(policy, ItemNeighbours):
                record["chosen"] = asdict(policy.options)
            record["test"] = scoring.score(lists(policy, events, 256), events)
            records.append(record)
            print(folder.name, name, record["test"]["all"], flush=True)
            options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
