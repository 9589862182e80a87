"""Let two processes write and read the same folder at the same time.

    python two_processes.py BASE [--pairs 12] [--json FILE]

BASE is what attack_base.py made. One process may be refused by a lock. Afterwards every file must be intact and belong
to one of the two processes.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack_base import QUIET, ROUNDS, SMALL, study
from crash_points import Ended, fork

from offrec.commands.verify import verify
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.rounds import run_rounds
from offrec.rounds.results import read_results
from offrec.runs.loading import load
from offrec.runs.train import train
from offrec.serving.erasure import erase_sessions
from offrec.serving.item_lists import ItemLists

Command = Callable[[], object]


def fork_both(one: Command, other: Command) -> tuple[Ended, Ended]:
    """Run two commands at the same time."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        ended = fork(other, 0)
        os.write(writer, json.dumps([ended.code, ended.said]).encode())
        os._exit(0)
    os.close(writer)
    first = fork(one, 0)
    with open(reader, "rb") as pipe:
        second = Ended(*json.loads(pipe.read()))
    os.waitpid(pid, 0)
    return first, second


def _train(work: Path, seed: int, out: str = "new", **options: Any) -> None:
    settings = {**SMALL, "training.epochs": 3, "seed": seed}
    train(work / "data", work / out, settings=settings, device="cpu", console=QUIET, **options)


def _read_often(work: Path) -> None:
    hashes = {Dataset.open(work / "data").meta["protocol"]["split_seed"] for _ in range(40)}
    if not hashes <= {0, 5}:
        raise InputError(f"read {hashes}")


def _prepare_often(work: Path) -> None:
    for seed in (5, 0) * 4:
        prepare(work / "shop/events.parquet", out=work / "data", force=True, split_seed=seed)


def _load_often(work: Path) -> None:
    for _ in range(40):
        load(work / "run", "cpu").recommend([], 3)


def _replace_often(work: Path) -> None:
    for seed in (1, 2, 3):
        _train(work, seed, "run", force=True)


def _put_often(work: Path, first: int) -> None:
    """Set a list again and again, and read it. It must be one of the lists that were set, and whole."""
    lists = ItemLists(work / "held")
    for number in range(30):
        lists.put("stock", json.dumps([first + number] * 2000 + [0]).encode(), is_json=True)
        if len(lists.ids("stock")) != 2:
            raise InputError("the list is not whole")


def _erase(work: Path, session: str) -> None:
    erase_sessions(work / "served", [session], QUIET.line)


PAIRS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str, bool]] = {
    # the two commands, the folder to verify, and whether the lock may refuse one of them
    "two trainings": (lambda w: _train(w, 0, force=True), lambda w: _train(w, 1, force=True), "new", True),
    "two resumed trainings": (
        lambda w: _train(w, 0, resume=True), lambda w: _train(w, 0, resume=True), "new", True,
    ),
    "training and prepare --force": (lambda w: _train(w, 0), _prepare_often, "new", False),
    "readers and prepare --force": (_read_often, _prepare_often, "data", False),
    "two comparisons": (lambda w: study(w).run(), lambda w: study(w).run(), "study", True),
    "readers and train --force": (_load_often, _replace_often, "run", False),
    "two rounds": (
        lambda w: run_rounds(ROUNDS, w / "new", QUIET), lambda w: run_rounds(ROUNDS, w / "new", QUIET), "new", True,
    ),
    "two erasures": (lambda w: _erase(w, "v1"), lambda w: _erase(w, "v2"), "served", True),
    "two lists": (lambda w: _put_often(w, 1), lambda w: _put_often(w, 1000), "held", False),
}  # fmt: skip


def attack(base: Path, pairs: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Run each pair of commands several times. Return outcomes by pair, and the failures."""
    tally: dict[str, Counter[str]] = {name: Counter() for name in PAIRS}
    failures: list[str] = []
    for number in range(pairs):
        name = list(PAIRS)[number % len(PAIRS)]
        one, other, out, may_refuse = PAIRS[name]
        with tempfile.TemporaryDirectory(prefix="offrec-two-") as scratch:
            work = Path(scratch, "work")
            shutil.copytree(base, work, symlinks=True)
            if name == "two comparisons":
                shutil.rmtree(work / "study")
            problem = _judge(*_run_both(one, other, work), work / out, may_refuse)
        tally[name]["pairs"] += 1
        if problem is not None:
            failures.append(f"{name}, pair {number}: {problem}")
            tally[name]["failures"] += 1
            print(failures[-1], flush=True)
    return tally, failures


def _run_both(one: Callable[[Path], object], other: Callable[[Path], object], work: Path) -> tuple[Ended, Ended]:
    return fork_both(lambda: one(work), lambda: other(work))


def _judge(first: Ended, second: Ended, out: Path, may_refuse: bool) -> str | None:
    allowed = {0, 2} if may_refuse else {0}
    if not {first.code, second.code} <= allowed or first.code == second.code == 2:
        return f"exit codes {first.code} and {second.code}: {first.said[-200:]} {second.said[-200:]}"
    if any(ended.code == 2 and "is being written by process" not in ended.said for ended in (first, second)):
        return f"refused for another reason: {first.said} {second.said}"
    checked = fork(lambda: _verify(out), 0)
    return checked.said if checked.code else None


def _verify(path: Path) -> None:
    if (path / "rounds.json").exists():
        read_results(path)
        return
    if (path / "stock.list").exists():
        ItemLists(path).ids("stock")
        return
    problems = verify(path).problems
    lines = len((path / "metrics.jsonl").read_text().splitlines()) if (path / "metrics.jsonl").exists() else 3
    if lines != 3:
        problems.append(f"metrics.jsonl has {lines} lines after 3 epochs")
    if problems:
        raise InputError(problems[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--pairs", type=int, default=45)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tally, failures = attack(options.base.resolve(), options.pairs)
    for name, counts in tally.items():
        print(f"{name}: {counts['pairs']} pairs, {counts['failures']} failures")
    print(f"failures: {len(failures)}")
    if options.json is not None:
        options.json.write_text(json.dumps({"pairs": tally, "failures": failures}, indent=1) + "\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
