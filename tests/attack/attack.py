"""Attack offrec with random cases: damaged and hostile folders, fuzzed tables and commands, full disks.

    python attack.py --cases 5000 [--seed N] [--base FOLDER] [--json FILE]

Every case runs a command in this process, as the command line does, and has one of these outcomes:

    same       the command succeeded with the result of the undamaged files: the change was harmless
    accepted   it succeeded, and the case has no known right result (other valid values, fuzzed input)
    refused    one sentence and exit code 1 or 2
    WRONG      it succeeded with another result, or changed files that it must not change
    FAULT      a traceback, or the report of a fault
    HANG       it ran for more than a minute
    MEMORY     it ran out of 4 GiB of additional address space

The last four are failures. The seed is printed; the same seed gives the same cases.
"""

import argparse
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import attack_base
from attack_cases import CASES
from attack_target import Attack, Case

from offrec.errors import exit_code

FAILURES = ("WRONG", "FAULT", "HANG", "MEMORY")
HANG_SECONDS = 60
NATIVE_HANG_SECONDS = 180  # Python handles no signal while native code runs; then the traceback is printed and all ends
MORE_MEMORY = 4 << 30


class Hang(BaseException):
    """A case ran for too long."""


@dataclass
class Outcome:
    """What a command printed, and how it ended."""

    code: int
    out: str
    error: str
    hung: bool = False

    def classify(self, expected: str | None) -> str:
        if self.hung:
            return "HANG"
        if "Memory ran out" in self.error:
            return "MEMORY"
        lines = self.error.strip().splitlines()
        if "This is a fault of offrec" in self.error or "Traceback (most recent call last)" in self.error:
            return "FAULT"
        if self.code:
            return "refused" if lines and lines[-1].startswith("offrec: ") else "FAULT"
        if expected is None:
            return "accepted"
        # A decision log may be incomplete, because a server can crash. The reader uses the rest and notes it.
        notes = ("skipped: incomplete", "not closed", "missing or repeated", "written twice")
        is_noted = any(note in self.out for note in notes)
        return "same" if self.out == expected else "refused" if is_noted else "WRONG"


@contextmanager
def limits() -> Iterator[None]:
    """Limit the address space, and interrupt a case that hangs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    faulthandler.dump_traceback_later(NATIVE_HANG_SECONDS, exit=True, file=sys.__stderr__ or 2)
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, hard))
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(command: Callable[[], object]) -> Outcome:
    """Run a command as the command line does."""
    out, error, hung = io.StringIO(), io.StringIO(), False

    def guarded() -> object:
        nonlocal hung
        try:
            return command()
        except Hang:
            hung = True
            raise

    code = 1
    with limits(), redirect_stdout(out), redirect_stderr(error), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest would turn warnings into errors
        try:
            code = exit_code(guarded)
        except SystemExit as end:  # a usage error of the command line
            code = end.code if isinstance(end.code, int) else 1
            print("offrec: usage", file=error)
        except BaseException as fault:
            print(f"Traceback (most recent call last) {fault!r}", file=error)
    return Outcome(code, out.getvalue(), error.getvalue(), hung)


@dataclass
class Tally:
    """Outcomes by class of attack, and the failures."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, number: int, verdict: str, outcome: Outcome) -> None:
        self.counts.setdefault(case.kind, Counter())[verdict] += 1
        if verdict in FAILURES:
            last = (outcome.error.strip().splitlines() or [""])[-1]
            self.failures.append(
                {"case": number, "kind": case.kind, "what": case.what, "verdict": verdict, "said": last}
            )
            print(f"  {verdict} case {number}, {case.kind}: {case.what}\n    {last[:300]}", flush=True)

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self.counts.values())

    def table(self) -> str:
        names = ("same", "accepted", "refused", *FAILURES)
        rows = [["", "cases", *names]]
        rows += [[kind, sum(c.values()), *(c[name] for name in names)] for kind, c in sorted(self.counts.items())]
        return "\n".join("  ".join(f"{cell!s:>{24 if n == 0 else 9}}" for n, cell in enumerate(row)) for row in rows)


def attack(base: Path, cases: int, seed: int, kinds: tuple[str, ...] = (), seconds: float = 1e9) -> Tally:
    """Run random cases.

    Args:
        base: What `attack_base.build` made; it is left as it was.
        cases: The number of cases.
        seed: The seed of all cases.
        kinds: The classes of attack; by default all.
        seconds: Start no case after this many seconds.
    """
    tally, started = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="offrec-attack-") as scratch:
        work = Path(scratch, "base")
        shutil.copytree(base, work, symlinks=True)
        target = Attack(work, Path(scratch), run)
        chosen = [make for kind, make in CASES.items() if not kinds or kind in kinds]
        for number in range(cases):
            if time.monotonic() - started > seconds:
                break
            choose = random.Random(f"{seed}-{number}")
            case = chosen[number % len(chosen)](target, choose)
            try:
                outcome = run(case.command)
                verdict = outcome.classify(case.expected)
                if verdict not in FAILURES and case.check is not None and not case.check(outcome.code):
                    verdict = "WRONG"
            finally:
                case.restore()
            tally.add(case, number, verdict, outcome)
    return tally


def commit() -> str:
    """Return the commit of the code, with a + if files differ from it."""
    folder = Path(__file__).parent
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    return subprocess.run(describe, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--kinds", default="", help=f"separated by commas: {', '.join(CASES)}")
    parser.add_argument("--base", type=Path, help="what attack_base.py made; by default it is made first")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after this many seconds")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="offrec-base-") as folder:
        if options.base is None:
            subprocess.run([sys.executable, attack_base.__file__, folder], check=True, stdout=subprocess.DEVNULL)
        kinds = tuple(filter(None, options.kinds.split(",")))
        tally = attack(options.base or Path(folder), options.cases, seed, kinds, options.seconds)
    print(f"{tally.total} cases, commit {commit()}\n{tally.table()}\nfailures: {len(tally.failures)}")
    if options.json is not None:
        facts = {"seed": seed, "cases": tally.total, "commit": commit(), "counts": tally.counts}
        options.json.write_text(json.dumps({**facts, "failures": tally.failures}, indent=1) + "\n")
    return bool(tally.failures)


if __name__ == "__main__":
    sys.exit(main())
