"""Trace how a command reaches its equation: `offrec train` → a learner's `loss`, `offrec estimate` → an estimator.

    python benchmarks/call_path.py

Each command runs in-process on a small random dataset until it first calls its target. Two numbers are reported:

frames     Functions of offrec on the stack when the target is called, without the target.
functions  Distinct functions of offrec that a reader steps through: every function on that stack, every function that
           one of them calls directly before the target is reached, and the target. Calls inside those callees are
           stepped over. Lambdas, comprehensions and imports are not counted.

A generator counts once, however often it resumes.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import offrec
from offrec import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from small_datasets import write_dataset

ROOT = str(Path(offrec.__file__).parent)
Function = tuple[str, str]  # file below src/offrec, qualified name


class TargetReachedError(BaseException):
    """Ends the traced command; not an Exception, so that no handler of the command catches it."""


class Trace:
    """Records the calls of offrec's functions until the first call of a target."""

    def __init__(self, is_target: Callable[[Function], bool]) -> None:
        self.is_target = is_target
        self.calls: list[tuple[Function, list[Function]]] = []  # each function with the stack that called it

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        function = _function(frame)
        if event != "call" or function is None or "<" in function[1]:
            return
        stack, caller = list[Function](), frame.f_back
        while caller is not None:
            outer = _function(caller)
            if outer is not None and outer[1] == "<module>":
                return  # an import
            if outer is not None and "<" not in outer[1]:
                stack.append(outer)
            caller = caller.f_back
        self.calls.append((function, stack[::-1]))
        if self.is_target(function):
            sys.setprofile(None)
            raise TargetReachedError

    @property
    def stack(self) -> list[Function]:
        return self.calls[-1][1]

    @property
    def functions(self) -> list[Function]:
        """Return the functions on the final stack and those that they call directly, ordered by their first call."""
        stack = self.stack
        return list(dict.fromkeys(function for function, callers in self.calls if callers == stack[: len(callers)]))


def _function(frame: FrameType) -> Function | None:
    path = frame.f_code.co_filename
    return (path[len(ROOT) + 1 :], frame.f_code.co_qualname) if path.startswith(ROOT) else None


def trace(arguments: list[str], is_target: Callable[[Function], bool]) -> Trace:
    """Run `offrec` with `arguments` until it calls the target."""
    calls, sys.argv = Trace(is_target), ["offrec", *arguments]
    sys.setprofile(calls)
    try:
        cli.main()
    except TargetReachedError:
        return calls
    finally:
        sys.setprofile(None)
    raise RuntimeError(f"offrec {' '.join(arguments)} ended before it called its target")


def report(title: str, calls: Trace) -> dict[str, Any]:
    """Print the path and return its two numbers."""
    frames, functions = calls.stack, calls.functions
    print(f"\n{title}: {len(functions)} functions, {len(frames)} frames")
    for function in functions:
        mark = "│" if function in frames else " "
        print(f"  {mark} {function[0]:<36} {function[1]}")
    return {"path": title, "functions": len(functions), "frames": len(frames)}


def main() -> None:
    """Trace both commands and print a summary as JSON."""
    random = np.random.default_rng(0)
    sessions = [random.integers(0, 20, 6).tolist() for _ in range(60)]
    decisions = [[(at, [session[at], (session[at] + 1) % 20], 0.1, at) for at in range(1, 6)] for session in sessions]
    with tempfile.TemporaryDirectory() as folder:
        data = write_dataset(Path(folder), sessions, splits=(40, 10, 10), decisions=decisions)
        run = f"{folder}/run"
        settings = ["--device", "cpu", "--set", "training.epochs=1", "--set", "network.width=8"]
        train = ["train", str(data.path), "--algorithm", "sl", "--out", run, *settings]
        rows = [report("offrec train → loss", trace(train, lambda function: function[1] == "Supervised.loss"))]
        sys.argv = ["offrec", *train, "--force"]
        cli.main()
        estimate = ["estimate", run, "--reward", "view=1", "--updates", "2", "--refits", "0", "--device", "cpu"]
        calls = trace(estimate, lambda function: function[0] == "estimation/estimators.py")
        rows.append(report("offrec estimate → estimator", calls))
    print("\n" + json.dumps(rows))


if __name__ == "__main__":
    main()
