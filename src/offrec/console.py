"""Progress on standard error: a progress bar on a terminal, lines of text elsewhere. Both show the time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

from offrec.errors import plain_text

PLAIN_SECONDS = 10.0  # the minimum time between two progress lines without a terminal
WIDE = 120  # the minimum width of a terminal for a long progress bar


class Advance(Protocol):
    """Reports finished steps; `note` is shown next to the bar."""

    def __call__(self, steps: int = 1, note: str = "") -> None: ...


class Console:
    """Prints messages and progress.

    Args:
        quiet: Print nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = not quiet and sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print one message."""
        if not self.quiet:
            with suppress(OSError):  # a full disk behind `2> log` must not end a run or a server
                print(plain_text(text), file=sys.stderr, flush=True)

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        """Show the progress of a task with a known number of steps.

        Example:
            >>> with console.steps("epoch 1", 500) as advance:
            ...     advance()
        """
        if self.terminal:
            with _bar(label, total) as advance:
                yield advance
        else:
            yield self._line_progress(label, total)

    @contextmanager
    def counter(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Show the progress of a task that reports how many of its steps are done.

        Example:
            >>> with console.counter("ranking") as at:
            ...     at(done, total)
        """
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
        """Show the progress of several runs that train concurrently.

        Example:
            >>> with console.board() as board:
            ...     run(board.console("seed-1"))
        """
        with ExitStack() as stack:
            yield Board(self, stack.enter_context(_progress()) if self.terminal else None)

    def _line_progress(self, label: str, total: int) -> Advance:
        done = 0
        started = printed = time.monotonic()

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal done, printed
            done += steps
            if not self.quiet and time.monotonic() - printed > PLAIN_SECONDS and done < total:
                printed = time.monotonic()
                left = f"about {format_duration((printed - started) * (total - done) / done)} left" if done else ""
                left = "" if " left" in note else left  # the note has a better estimate
                self.line("  ".join(filter(None, (f"{label}: {done:,} of {total:,}", left, note))))

        return advance


class Board:
    """Combines several consoles: one progress bar per console on a terminal, and lines that begin with its name."""

    def __init__(self, console: Console, progress: Any) -> None:
        self.parent, self.progress = console, progress

    def console(self, name: str) -> Console:
        return _NamedConsole(self, name)


class _NamedConsole(Console):
    def __init__(self, board: Board, name: str) -> None:
        super().__init__(board.parent.quiet)
        self.parent, self.progress, self.name = board.parent, board.progress, name

    def line(self, text: str) -> None:
        self.parent.line(f"{self.name}  {text}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        if self.progress is None:
            yield self._line_progress(label, total)
            return
        with _task(self.progress, f"{self.name}  {label}", total) as advance:
            yield advance


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    with _progress() as progress, _task(progress, label, total) as advance:
        yield advance


def _progress() -> Any:
    # Imported here, because training must also work without rich.
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = RichConsole(stderr=True)
    bar = BarColumn(40 if console.width >= WIDE else 10)
    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        bar,
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    # The note gets the remaining width: on a narrow terminal, the label and the progress stay readable.
    columns.append(TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, ratio=1)))
    return Progress(*columns, console=console, transient=True, expand=True)


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


def format_duration(seconds: float) -> str:
    """Format a duration, for example "89 s", "3 min" or "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
