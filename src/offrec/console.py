"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere. All of it on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

PLAIN_SECONDS = 10.0  # away from a terminal, a long step says at most so often how far it is


class Advance(Protocol):
    def __call__(self, steps: int = 1, note: str = "") -> None: ...


class Console:
    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = not quiet and sys.stderr.isatty()

    def line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        """`with console.steps("epoch 1", 500) as advance: … advance()`"""
        if self.terminal:
            with _bar(label, total) as advance:
                yield advance
        else:
            yield self._plain(label, total)

    @contextmanager
    def counter(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """For work that says itself how far it is: `with console.counter("ranking") as at: … at(done, total)`"""
        with ExitStack() as stack:
            last = 0
            advance: Advance | None = None

            def at(done: int, total: int) -> None:
                nonlocal last, advance
                if advance is None:
                    advance = stack.enter_context(self.steps(label, total))
                advance(done - last)
                last = done

            yield at

    def _plain(self, label: str, total: int) -> Advance:
        done, said = 0, time.monotonic()

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal done, said
            done += steps
            if not self.quiet and time.monotonic() - said > PLAIN_SECONDS and done < total:
                said = time.monotonic()
                self.line(f"{label}: {done:,} of {total:,} {note}".rstrip())

        return advance


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    # Imported here: the training path must run where rich is not installed.
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            progress.advance(task, steps)
            if note:
                progress.update(task, note=note)

        yield advance
