"""Compare offrec with other libraries on CPU cores: SASRec (RecBole, RecTools) and learners over actions (d3rlpy).

    python benchmarks/peers/run.py DATASET --environments ENVIRONMENTS [--json FILE]

README.md in this folder explains how to create DATASET and ENVIRONMENTS, and discusses the fairness of the comparison.
Every measurement runs in its own process, the libraries alternate, and the median of the rounds is printed.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peerlog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence import learner, script_arguments, write_results

HERE = Path(__file__).parent
LADDER = (1_000, 3_000, 10_000, 36_453, 100_000, 300_000, 1_000_000)
LONG = 100_000  # items
TOO_LONG = 600  # seconds per epoch


@dataclass(frozen=True)
class Contender:
    title: str
    environment: str  # the environment whose Python runs it
    script: str
    words: tuple[str, ...] = ()


@dataclass
class Tally:
    """The results of one contender at one size, over all rounds."""

    title: str
    items: int
    found: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None

    def median(self, of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(one) for one in self.found)

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {"title": self.title, "items": self.items, "failure": self.failure}
        if self.found:
            record |= {
                "ms_per_update": self.median(lambda one: 1e3 * one["seconds"] / one["updates"]),
                "events_per_second": self.median(lambda one: one["events"] / one["seconds"]),
                "epoch_seconds": self.median(lambda one: one["seconds"] * one["epoch_events"] / one["events"]),
                "extrapolated": any(one["events"] != one["epoch_events"] for one in self.found),
                "peak_gb": self.median(lambda one: one["peak_mb"]) / 1024,
                "own_gb": self.median(lambda one: one["peak_mb"] - one["before_mb"]) / 1024,
                "rounds": self.found,
            }
        return record


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.number = options, folder, 0

    def measure(self, contender: Contender, dataset: Path, tally: Tally) -> None:
        """Run once in a new process, with limits on memory and time."""
        if tally.failure:
            return
        self.number += 1
        work = self.folder / f"work-{self.number}"
        work.mkdir()
        words = [self._python(contender.environment), str(HERE / contender.script), str(dataset), "--work", str(work)]
        words += ["--threads", str(self.options.threads), "--width", str(self.options.width), *contender.words]
        print(f"… {contender.title}, {tally.items:,} items", file=sys.stderr, flush=True)
        started = time.perf_counter()
        with (work / "out").open("wb") as out, (work / "err").open("wb") as err:
            process = subprocess.Popen(words, stdout=out, stderr=err, env=self._variables(), preexec_fn=self._limit)
            late = threading.Timer(self.options.timeout, process.kill)
            late.start()
            _, status, usage = os.wait4(process.pid, 0)
            late.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        if process.returncode == 0:
            last = (work / "out").read_text().splitlines()[-1]
            whole = {"peak_mb": usage.ru_maxrss / peerlog.MEGABYTE, "process_seconds": wall}
            whole |= {"user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime}
            tally.found.append(json.loads(last) | whole)
        else:
            tally.failure = self._reason(work / "err", process.returncode, wall)

    def _reason(self, errors: Path, code: int, wall: float) -> str:
        text = errors.read_text(errors="replace").strip()
        if wall >= self.options.timeout:
            return f"over {self.options.timeout:.0f} s"
        if code == -9 or "can't allocate memory" in text or "MemoryError" in text or "bad_alloc" in text:
            return f"over {self.options.memory:g} GB"
        return (text.splitlines() or [f"exit code {code}"])[-1][:200]

    def _python(self, environment: str) -> str:
        if environment == "offrec":
            return sys.executable
        return str(self.options.environments / environment / "bin" / "python")

    def _variables(self) -> dict[str, str]:
        # Spinning threads slow each other down on shared cores.
        threads = {"OMP_NUM_THREADS": str(self.options.threads), "OMP_WAIT_POLICY": "passive"}
        return {**os.environ, **threads, "PYTHONWARNINGS": "ignore"}

    def _limit(self) -> None:
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (int(self.options.memory * 2**30),) * 2)


def sasrec(bench: Bench, options: argparse.Namespace) -> list[Tally]:
    """Compare the same model on the same sessions."""
    dataset = bench.folder / "sasrec"
    peerlog.derive(options.dataset, dataset, options.events)
    shape = ("--layers", str(options.layers), "--heads", str(options.heads), "--history", str(options.history))
    shape += ("--batch", str(options.batch), "--dropout", str(options.dropout))
    plain = ("--set", "network.repeat=off")
    contenders = [
        Contender("offrec, the same model", "offrec", "ours.py", (*shape, *plain)),
        Contender("RecBole", "recbole", "sasrec_recbole.py", shape),
        Contender("offrec, its defaults (repeat term)", "offrec", "ours.py", shape),
        Contender("RecTools", "rectools", "sasrec_rectools.py", shape),
    ]
    return take_turns(bench, options, contenders, dataset, peerlog.read(dataset).n_items, options.rounds)


def learners(bench: Bench, options: argparse.Namespace) -> list[Tally]:
    """Increase the number of actions until one library fails; long cases get few updates and one round."""
    tallies: list[Tally] = []
    for n in sorted(options.actions):
        updates = min(30, max(3, 300_000 // n))
        dataset = bench.folder / f"actions-{n}"
        peerlog.derive(options.dataset, dataset, updates * options.batch, n)
        words = ("--batch", str(options.batch), "--history", str(options.history))
        theirs = ("--updates", str(updates), "--learner", options.learner)
        contenders = [
            Contender(f"offrec {options.algorithm}", "offrec", "ours.py", (*words, "--algorithm", options.algorithm)),
            Contender(f"d3rlpy {options.learner}", "d3rlpy", "learner_d3rlpy.py", (*words, *theirs)),
        ]
        stopped = {tally.title for tally in tallies if tally.failure}
        contenders = [contender for contender in contenders if contender.title not in stopped]
        tallies += take_turns(bench, options, contenders, dataset, n, 1 if n >= LONG else options.rounds)
    return tallies


def take_turns(
    bench: Bench, options: argparse.Namespace, contenders: list[Contender], dataset: Path, items: int, rounds: int
) -> list[Tally]:
    chosen = [contender for contender in contenders if contender.environment in options.only]
    tallies = [Tally(contender.title, items) for contender in chosen]
    for _ in range(rounds):
        for contender, tally in zip(chosen, tallies, strict=True):
            bench.measure(contender, dataset, tally)
    return tallies


def table(title: str, tallies: list[Tally]) -> None:
    print(f"\n{title}")
    heads = ("items", "ms/update", "events/s", "epoch s", "peak GB", "own GB")
    print(f"{'':36}" + "".join(f"{head:>11}" for head in heads))
    for row in (tally.as_json() for tally in tallies):
        start = f"{row['title']:36}{row['items']:11,}"
        if "rounds" not in row:
            print(f"{start}  stops: {row['failure']}")
            continue
        mark = "*" if row["extrapolated"] else " "
        late = "  an epoch is over 10 minutes" if row["epoch_seconds"] > TOO_LONG else ""
        print(
            f"{start}{row['ms_per_update']:11,.0f}{row['events_per_second']:11,.0f}{row['epoch_seconds']:10,.0f}{mark}"
            f"{row['peak_gb']:11.2f}{row['own_gb']:11.2f}{late}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a dataset folder written by offrec prepare")
    parser.add_argument(
        "--environments", type=Path, required=True, help="the folder with recbole/, rectools/ and d3rlpy/"
    )
    parser.add_argument(
        "--events", type=int, default=10_000, help="SASRec: train on about this many events; 0: a whole epoch"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--history", type=int, default=50)
    parser.add_argument("--batch", type=int, default=1024, help="events per update")
    parser.add_argument("--actions", type=int, nargs="*", default=LADDER, help="numbers of items for the learners")
    parser.add_argument("--algorithm", default="sl", help="offrec's learner")
    parser.add_argument("--learner", default="DiscreteSAC", help="d3rlpy's learner")
    parser.add_argument("--only", nargs="*", default=["offrec", "recbole", "rectools", "d3rlpy"])
    parser.add_argument("--memory", type=float, default=20, help="memory limit of a process in gigabytes (Linux)")
    parser.add_argument("--timeout", type=float, default=600, help="time limit of a process in seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.dataset, options.environments = options.dataset.absolute(), options.environments.absolute()
    options.events = options.events or None
    return options


def main() -> None:
    options = parse()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, Path(name))
        models = sasrec(bench, options) if {"recbole", "rectools"} & set(options.only) else []
        actions = learners(bench, options) if "d3rlpy" in options.only else []
    if models:
        table("SASRec, full softmax (*: an epoch extrapolated from fewer events)", models)
    if actions:
        table(f"Updates of {options.batch:,} events over all actions (*: an epoch extrapolated from a few)", actions)
    print(f"\n{options.threads} threads of {os.cpu_count()} cores, {time.perf_counter() - started:.0f} s in all")
    if options.json:
        facts = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        del facts["dataset"], facts["environments"], facts["json"]
        record: dict[str, Any] = {"options": facts}
        record |= {"sasrec": [tally.as_json() for tally in models], "actions": [tally.as_json() for tally in actions]}
        given = {"algorithm.name": options.algorithm, "network.backbone": "sasrec"}
        write_results(options.json, record, {"offrec": learner(given), "script": script_arguments(facts)})


if __name__ == "__main__":
    main()
