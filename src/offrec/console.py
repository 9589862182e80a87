"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere. All of it on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

PLAIN_SECONDS = 10.0  # away from a terminal, a long step says at most so often how far it is
WIDE = 120  # columns of a terminal that has room for a long bar beside words


def plain_text(text: str) -> str:
    r"""Escape control characters, so that an id from a log cannot change the terminal: ESC becomes `\x1b`."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


class Advance(Protocol):
    def __call__(self, steps: int = 1, note: str = "") -> None: ...


class Console:
    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = not quiet and sys.stderr.isatty()

    def line(self, text: str) -> None:
        if not self.quiet:
            with suppress(OSError):  # a full disk behind `2> log` is no reason to end a run or a server
                print(plain_text(text), file=sys.stderr, flush=True)

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

    @contextmanager
    def board(self) -> Iterator["Board"]:
        """For several runs at once: `with console.board() as board: … board.console("seed-1")`"""
        with ExitStack() as stack:
            yield Board(self, stack.enter_context(_progress()) if self.terminal else None)

    def _plain(self, label: str, total: int) -> Advance:
        done, said = 0, time.monotonic()

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal done, said
            done += steps
            if not self.quiet and time.monotonic() - said > PLAIN_SECONDS and done < total:
                said = time.monotonic()
                self.line(f"{label}: {done:,} of {total:,} {note}".rstrip())

        return advance


class Board:
    """One display for several consoles: a bar each on a terminal, and lines that say whose they are."""

    def __init__(self, console: Console, progress: Any) -> None:
        self.whole, self.progress = console, progress

    def console(self, name: str) -> Console:
        return _Named(self, name)


class _Named(Console):
    def __init__(self, board: Board, name: str) -> None:
        super().__init__(board.whole.quiet)
        self.whole, self.progress, self.name = board.whole, board.progress, name

    def line(self, text: str) -> None:
        self.whole.line(f"{self.name}  {text}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        if self.progress is None:
            yield self._plain(label, total)
            return
        with _task(self.progress, f"{self.name}  {label}", total) as advance:
            yield advance


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    with _progress() as progress, _task(progress, label, total) as advance:
        yield advance


def _progress() -> Any:
    # Imported here: the training path must run where rich is not installed.
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    to = RichConsole(stderr=True)
    bar = BarColumn(40 if to.width >= WIDE else 10)
    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        bar,
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    # The note takes what room is left: where there is little, a person still reads what is under way and how far it is.
    columns.append(TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)))
    return Progress(*columns, console=to, transient=True, expand=True)


@contextmanager
def _task(progress: Any, label: str, total: int) -> Iterator[Advance]:
    task = progress.add_task(label, total=total, note="")

    def advance(steps: int = 1, note: str = "") -> None:
        progress.advance(task, steps)
        if note:
            progress.update(task, note=note)

    try:
        yield advance
    finally:
        progress.remove_task(task)
