"""Compare next-item predictions: offrec's SL and baselines, RecTools, RecBole and `implicit`.

    python benchmarks/peers/next_item.py DATASET… --environments ENVIRONMENTS --out FOLDER [--json FILE] \\
        [--only sl baselines implicit rectools recbole] [--backbones gru sasrec] [--seeds 3] [--seconds 600] \\
        [--collect] [--extend FILE]

Every method trains on the same sessions and is scored on the same test events, those with a history, by `scoring.py`.
Each method writes files into FOLDER; existing files are not computed again. `--collect` only prints the table of the
existing files, which may have been written on other machines. `--extend` adds the records of an earlier results file,
except those that FOLDER contains again, and keeps its stamps.

SL runs on a CPU here. It is listed as "SL (gru), CPU", next to runs of `next_item_sl.py` on a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
METHODS = ("sl", "baselines", "implicit", "rectools", "recbole")
Record = dict[str, Any]


def commands(method: str, dataset: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the commands of a method by the name of the file that they write."""

    def python(environment: str, script: str, *words: str) -> list[str]:
        path = sys.executable if environment == "offrec" else f"{options.environments}/{environment}/bin/python"
        return [path, str(HERE / f"next_item_{script}.py"), str(dataset), *words]

    name, seeds = dataset.name, [str(seed) for seed in range(options.seeds)]
    budget = ("--seconds", str(options.seconds))
    if method == "sl":
        words = ("--device", "cpu", "--seeds", "1", *budget, "--backbones", *options.backbones, "--first-seed")
        return {f"{name}-sl-{seed}": python("offrec", "sl", *words, seed) for seed in seeds}
    if method == "baselines":
        return {f"{name}-baselines": python("offrec", "baselines")}
    if method == "implicit":
        return {f"{name}-implicit": python("implicit", "implicit")}
    if method == "rectools":
        return {f"{name}-rectools-{seed}": python("rectools", "rectools", "--seed", seed, *budget) for seed in seeds}
    return {
        f"{name}-recbole-{model}-{seed}": python("recbole", "recbole", "--model", model, "--seed", seed, *budget)
        for model in ("SASRec", "GRU4Rec")
        for seed in seeds
    }


def run(options: argparse.Namespace) -> None:
    for dataset in options.datasets:
        for method in options.only:
            for name, words in commands(method, dataset, options).items():
                path = options.out / f"{name}.json"
                if path.exists():
                    continue
                print(name, flush=True)
                result = subprocess.run(
                    [*words, "--json", str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True
                )
                if result.returncode:
                    print(f"{name} failed: {result.stderr.decode().strip().splitlines()[-1:]}", flush=True)


def records(folder: Path) -> list[Record]:
    """Read the results of all methods; SL's runs become records like the others."""
    result: list[Record] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "runs" in content:
            labels = {"default": "SL", "without neighbours": "SL without neighbours"}
            for one in (run for run in content["runs"] if "test" in run):
                label = f"{labels.get(one['variant'], one['variant'])} ({one['backbone']})"
                result.append({**one, "method": label + (", CPU" if "budget_seconds" in one else "")})
        else:
            result += content if isinstance(content, list) else [content]
    return result


def extended(path: Path, found: list[Record]) -> list[Record]:
    """Return the records of a results file that were not measured again, and the found ones."""
    from evidence import read_results  # needs offrec

    def key(record: Record) -> tuple[Any, ...]:
        return record["dataset"], record["method"], record.get("seed", 0)

    again = {key(record) for record in found}
    return [record for record in read_results(path)["records"] if key(record) not in again] + found


def summarise(found: list[Record]) -> list[Record]:
    """Return the means over seeds, with the number of seeds, the spread of NDCG@10 and the mean of the CPU seconds."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in found:
        groups[record["dataset"], record["method"]].append(record)
    rows = []
    for (dataset, method), part in sorted(groups.items()):
        figures = {
            group: {key: round(mean(one["test"][group][key] for one in part), 5) for key in part[0]["test"][group]}
            for group in part[0]["test"]
        }
        ndcg = [one["test"]["all"]["NDCG@10"] for one in part]
        row = {"dataset": dataset, "method": method, "seeds": len(part), "figures": figures}
        row["range"] = round(max(ndcg) - min(ndcg), 5)
        if all("cpu_seconds" in one for one in part):
            row["cpu_seconds"] = round(mean(one["cpu_seconds"] for one in part), 1)
        rows.append(row)
    return rows


def table(rows: list[Record]) -> str:
    """Return one Markdown table per log: NDCG@10 / HR@20 of all events, repeats, new items and behaviours."""
    lines = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        part = sorted(
            (row for row in rows if row["dataset"] == dataset), key=lambda row: -row["figures"]["all"]["NDCG@10"]
        )
        groups = list(part[0]["figures"])
        lines += [
            f"\n### {dataset}\n",
            "| method | seeds | " + " | ".join(groups) + " |",
            "|---" * (2 + len(groups)) + "|",
        ]
        for row in part:
            cells = [f"{one['NDCG@10']:.3f} / {one['HR@20']:.3f}" for one in row["figures"].values()]
            lines.append(f"| {row['method']} | {row['seeds']} | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("0.", ".")


def write(path: Path, rows: list[Record], found: list[Record], earlier: Path | None) -> None:
    """Write the results with a stamp, and with the stamps of an earlier file."""
    from evidence import baseline, learner, write_results  # needs offrec

    measured = {row["method"] for row in rows}
    stamped = {f"SL ({name})": learner({"network.backbone": name}) for name in ("gru", "sasrec")}
    stamped |= {name: baseline(name) for name in ("recent", "item-neighbours", "vsknn") if name in measured}
    write_results(path, {"summary": rows, "records": found}, stamped, extends=earlier)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--environments", type=Path, default=Path("environments"))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--backbones", nargs="+", default=["gru", "sasrec"], help="backbones of SL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="CPU seconds per library, seed and log")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--extend", type=Path, help="earlier results to which the new ones are added")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.collect:
        run(options)
    found = records(options.out)
    if options.extend:
        found = extended(options.extend, found)
    rows = summarise(found)
    if options.json:
        write(options.json, rows, found, options.extend)
    print(table(rows))


if __name__ == "__main__":
    main()
