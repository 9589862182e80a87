"""Kill every writing command just before each of its changes of the file system, then repeat the command.

    python crash_points.py BASE [--share 0.1] [--seconds S] [--seed N] [--json FILE]

BASE is what attack_base.py made. After each kill, the output is absent, old or new, but never partial; the repeated
command succeeds, and no temporary file remains. A command runs in a fork of this process, which has imported everything
but has not computed anything, because the thread pool of polars does not survive a fork.
"""

import argparse
import hashlib
import io
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack_base import QUIET, ROUNDS, SMALL, study

from offrec.commands.recommend import Recommend
from offrec.commands.verify import verify
from offrec.data.prepare import prepare
from offrec.errors import InputError, exit_code
from offrec.reports.report import build_report
from offrec.reports.writing import write_report
from offrec.rounds import run_rounds
from offrec.runs.replacement import MARK, replacement_folder
from offrec.runs.train import train
from offrec.serving import item_lists
from offrec.serving.erasure import erase_sessions
from offrec.serving.export import export_onnx
from offrec.shop import Shop
from offrec.shop.log import write_log

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "offrec.exchange"}
SECONDS = 120
Command = Callable[[Path, bool], object]  # the folder to work in, and whether the command is repeated


@dataclass
class Writer:
    """A command that writes: what it writes, and what its repetition may find."""

    run: Command
    out: str
    unstable: tuple[str, ...] = ()  # files whose content differs between two runs
    resumed: bool = False  # whether a killed command leaves a part that its repetition continues


def _train(work: Path, out: str, **options: Any) -> None:
    train(work / "data", work / out, settings=SMALL, device="cpu", console=QUIET, **options)


def _train_from(work: Path, again: bool) -> None:
    options: dict[str, Any] = {"start_from": work / "run", "resume": again, "device": "cpu", "console": QUIET}
    train(work / "later", work / "new", settings={"training.epochs": 1}, **options)


def _put_list(work: Path) -> None:
    item_lists._unix_milliseconds = lambda: 0  # so that two repetitions write the same file
    item_lists.ItemLists(work / "held").put("stock", b"[1, 2]", is_json=True)


def _replace_run(work: Path, again: bool) -> None:
    is_resumed = again and (replacement_folder(work / "run") / MARK).exists()
    _train(work, "run", seed=1, force=not is_resumed, resume=is_resumed)


def _recommend(work: Path, again: bool) -> None:
    tables = (str(work / "shop/events.parquet"),)
    Recommend(work / "run", input=tables, out=work / "new.csv", k=3, device="cpu", force=again).run()


EVENTS = "shop/events.parquet"
WRITERS: dict[str, Writer] = {
    "prepare": Writer(lambda work, again: prepare(work / EVENTS, out=work / "new"), "new"),
    "prepare --force": Writer(
        lambda work, again: prepare(work / EVENTS, out=work / "data", force=True, split_seed=5), "data"
    ),
    "shop": Writer(lambda work, again: write_log(Shop.open("tiny"), 20, work / "new"), "new"),
    "shop --force": Writer(lambda work, again: write_log(Shop.open("tiny"), 20, work / "shop", force=True), "shop"),
    "train": Writer(lambda work, again: _train(work, "new", resume=again), "new", resumed=True),
    "train --from": Writer(_train_from, "new", resumed=True),
    "prepare --items": Writer(
        lambda work, again: prepare(work / EVENTS, out=work / "new", items=(f"{work}/shop/items.parquet",)), "new"
    ),
    "rounds": Writer(lambda work, again: run_rounds(ROUNDS, work / "new", QUIET), "new", (".json",), resumed=True),
    "list": Writer(lambda work, again: _put_list(work), "held", (".partial.list",)),
    "train --force": Writer(lambda work, again: _train(work, "run", seed=1, force=True), "run", (MARK,)),
    "train --force and --resume": Writer(_replace_run, "run", (MARK,)),
    "recommend": Writer(_recommend, "new.csv"),
    "erase": Writer(
        lambda work, again: erase_sessions(work / "served", ["v1"], QUIET.line), "served", (".partial.jsonl", ".lock")
    ),
    "export": Writer(lambda work, again: export_onnx(work / "run", work / "new.onnx"), "new.onnx"),
    "export --force": Writer(
        lambda work, again: export_onnx(work / "run", work / "model.onnx", force=True), "model.onnx"
    ),
    "report": Writer(lambda work, again: write_report(build_report([work / "study"]), [work / "new.csv"]), "new.csv"),
    "compare": Writer(lambda work, again: study(work, "new").run(), "new", (".json", ".lock", ".log", ".html"), True),
}
Tally = dict[str, Counter[str]]


@dataclass
class Ended:
    """How a forked command ended."""

    code: int  # −9 if it was killed
    said: str
    changes: list[str] = field(default_factory=list)


def fork(command: Callable[[], object], kill_at: int | None = None) -> Ended:
    """Run a command in a fork and list its changes of the file system.

    Args:
        command: The command.
        kill_at: Kill the process just before this change; 0: do not watch the changes.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            signal.alarm(SECONDS)
            changes: list[str] = []
            if kill_at != 0:
                sys.addaudithook(lambda event, args: _count(event, args, changes, kill_at))
            error = io.StringIO()
            with redirect_stdout(io.StringIO()), redirect_stderr(error):
                code = exit_code(command)
            os.write(writer, json.dumps([code, error.getvalue()[-500:], changes]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return Ended(*json.loads(answer)) if answer else Ended(-9, "")


def _count(event: str, args: tuple[Any, ...], changes: list[str], kill_at: int | None) -> None:
    writes = False
    if event == "open" and isinstance(args[0], str | os.PathLike):
        by_mode = isinstance(args[1], str) and any(char in args[1] for char in "wax+")
        writes = by_mode or (args[1] is None and bool(args[2] & (os.O_WRONLY | os.O_RDWR)))
    if not writes and event not in CHANGES:
        return
    if str(args[0]).startswith(("/dev", "/proc")) or "__pycache__" in str(args[0]):
        return
    changes.append(f"{event} {args[0]}")
    if kill_at is not None and len(changes) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def content(path: Path, unstable: tuple[str, ...] = ()) -> dict[str, str] | None:
    """Return a hash of every file, without those that differ between two runs; None if there is no file."""
    if path.suffix == ".onnx":
        files = sorted(path.parent.glob(f"{path.stem}.*")) if path.exists() else []
    else:
        files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    files = [one for one in files if not (unstable and one.name.endswith(unstable))]
    return {os.path.relpath(one, path): hashlib.sha256(one.read_bytes()).hexdigest() for one in files} or None


def attack(
    base: Path, share: float, seed: int, only: tuple[str, ...] = (), seconds: float = math.inf
) -> tuple[Tally, list[str]]:
    """Kill the commands at a random share of their points, and start no point after some seconds.

    Returns:
        Counts by command, and the failures.
    """
    tally: Tally = {}
    failures: list[str] = []
    end = time.monotonic() + seconds
    for name in WRITERS:
        if not only or name in only:
            with tempfile.TemporaryDirectory(prefix="offrec-crash-") as scratch:
                choose = random.Random(f"{seed} {name}")
                tally[name] = _attack_writer(base, Path(scratch), share, choose, name, failures, end)
    return tally, failures


def _attack_writer(
    base: Path, scratch: Path, share: float, choose: random.Random, name: str, failures: list[str], end: float
) -> Counter[str]:
    writer, counts, work = WRITERS[name], Counter[str](), scratch / "work"
    _copy(base, work)
    old = content(work / writer.out, writer.unstable)
    whole = fork(lambda: writer.run(work, False))
    assert whole.code == 0, (name, whole.said)
    new = content(work / writer.out, writer.unstable)
    points = range(1, len(whole.changes) + 1)
    for point in choose.sample(points, min(len(points), max(1, round(share * len(points))))):
        if time.monotonic() > end:
            break
        _copy(base, work)
        fork(lambda: writer.run(work, False), point)
        problem = _judge(writer, work, old, new, name)
        counts["points"] += 1
        if problem is not None:
            counts["failures"] += 1
            failures.append(f"{name}, point {point} ({whole.changes[point - 1][-80:]}): {problem}")
            print(failures[-1], flush=True)
    counts["of"] = len(points)
    print(f"{name}: {len(points)} points, {counts['points']} tried, {counts['failures']} failures", flush=True)
    return counts


def _copy(base: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work, symlinks=True)


def _judge(writer: Writer, work: Path, old: Any, new: Any, name: str) -> str | None:
    """Return what is wrong after a kill and after the repetition of the command, or None."""
    out, command = work / writer.out, name.split()[0]
    now = content(out, writer.unstable)
    if not writer.resumed and now not in (None, old, new):
        return "the output is partial"
    if now is None and old is not None and command not in ("export", "compare"):
        return "the old output is gone"
    again = fork(lambda: writer.run(work, True), 0)
    is_complete = again.code == 2 and new in (now, content(out))  # it refuses to replace what is complete
    if again.code != 0 and not is_complete:
        return f"the repeated command ended with {again.code}: {again.said.strip()[-200:]}"
    after = content(out, writer.unstable) or {}
    if after != new:
        return f"the repeated command wrote other files: {[key for key in new if after.get(key) != new[key]][:4]}"
    if command in ("prepare", "train", "export", "compare"):
        problems = fork(lambda: _verify(out), 0)
        if problems.code:
            return problems.said
    left = [path.name for path in (*work.iterdir(), *(out.rglob(".*") if out.is_dir() else ())) if path.name[0] == "."]
    return f"temporary files are left: {left[:3]}" if left else None


def _verify(path: Path) -> None:
    problems = verify(path).problems
    if problems:
        raise InputError(problems[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="share of the points to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no point after this many seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    only = tuple(filter(None, options.only.split(",")))
    tally, failures = attack(options.base.resolve(), options.share, options.seed, only, options.seconds)
    print(f"points: {sum(counts['points'] for counts in tally.values())}, failures: {len(failures)}")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"seed": options.seed, "points": tally, "failures": failures}, indent=1) + "\n"
        )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
