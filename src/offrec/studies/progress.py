"""Show the progress of a study: runs done, time left and the best policy so far.

Progress is read from the study's folder, so it includes the runs of other processes.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mean
from types import TracebackType

from offrec.console import Advance, Console, format_duration
from offrec.studies.stored_results import read_failure, read_result
from offrec.studies.study import Run, Study

MESSAGE_LENGTH = 72  # characters of a run's message on a terminal
PLAIN_SECONDS = 30.0  # without a terminal, the current run is reported at most this often


class StudyProgress:
    """Show a bar over all runs and one for the current run; without a terminal, print occasional lines."""

    def __init__(self, study: Study, console: Console) -> None:
        self.study, self.console = study, console
        self.started = self.last_message = time.monotonic()
        self.ended: set[str] = set()
        self.best: dict[str, tuple[float, str]] = {}  # log → best validation NDCG@10 and its policy
        self.last_log = ""
        self.seconds: dict[str, list[float]] = {}  # policy, and kind of policy → seconds of each run
        self._stack = ExitStack()
        self._read_folder()
        self.seconds_before = self._total_seconds()

    def __enter__(self) -> "StudyProgress":
        self._board = self._stack.enter_context(self.console.board())
        bar = self._board.console(self.study.folder.name)
        self._advance: Advance = self._stack.enter_context(bar.steps("runs", len(self.study.runs)))
        self._advance(len(self.ended), self.note())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def update(self) -> None:
        """Read the folder again and advance the bar if runs have ended."""
        before = len(self.ended)
        self._read_folder()
        if len(self.ended) > before:
            self._advance(len(self.ended) - before, self.note())

    def report(self, message: str) -> None:
        """Show a message of the current run."""
        if self.console.terminal:
            self._advance(0, "; ".join(filter(None, (message[:MESSAGE_LENGTH], self.note()))))
        elif time.monotonic() - self.last_message > PLAIN_SECONDS:
            self.last_message = time.monotonic()
            done, left = f"{len(self.ended)} of {len(self.study.runs)} runs done", self._time_left()
            parts = filter(None, (done, left, f"now {message}"))
            self.console.line(f"{self.study.folder.name}  {'; '.join(parts)}")

    @contextmanager
    def steps(self, name: str, label: str, total: int) -> Iterator[Advance]:
        """Show the progress of a part of a run with a known number of steps."""
        if self.console.terminal:
            with self._board.console(name).steps(label, total) as advance:
                yield advance
            return
        done = 0

        def advance_plain(steps: int = 1, note: str = "") -> None:
            nonlocal done
            done += steps
            self.report(f"{name} {label}, {done:,} of {total:,}")

        yield advance_plain

    def note(self) -> str:
        """Return the time left and the best policy so far."""
        parts = [left] if (left := self._time_left()) else []
        if self.last_log in self.best:
            ndcg, label = self.best[self.last_log]
            parts.append(f"best so far on {self.last_log}: {label}, validation NDCG@10 {ndcg:.4f}")
        return "; ".join(parts)

    def _time_left(self) -> str:
        """Estimate the time left from runs of the same policy or kind, and from the number of concurrent runs."""
        expected = []
        for run in (run for run in self.study.runs if run.name not in self.ended):
            group = self.study.group(run)
            known = self.seconds.get(group.policy) or self.seconds.get(group.kind)
            if known is None:
                return ""
            expected.append(mean(known))
        concurrency = (self._total_seconds() - self.seconds_before) / (time.monotonic() - self.started)
        return f"about {format_duration(sum(expected) / max(1.0, concurrency))} left" if expected else ""

    def _total_seconds(self) -> float:
        kinds = ("shop", "baseline", "learner")
        return sum(sum(seconds) for kind, seconds in self.seconds.items() if kind in kinds)

    def _read_folder(self) -> None:
        for run in self.study.runs:
            if run.name in self.ended:
                continue
            if self.study.is_done(run):
                self._add(run)
                self.ended.add(run.name)
            elif self.study.has_failed(run):
                self.ended.add(run.name)
                self.console.line(f"{run.name} failed: {read_failure(self.study, run)['reason']}")

    def _add(self, run: Run) -> None:
        group = self.study.group(run)
        facts = read_result(self.study, run)
        for key in (group.policy, group.kind):
            self.seconds.setdefault(key, []).append(facts.get("seconds", 0.0))
        ndcg = facts.get("validation", {}).get("all", {}).get("NDCG@10")
        if ndcg is not None:
            self.last_log = group.log
            self.best[group.log] = max(self.best.get(group.log, (0.0, "")), (ndcg, group.label))


class RunConsole(Console):
    """Console of a run within a study. It shows the run's messages next to the study's bar."""

    def __init__(self, progress: StudyProgress, runs: Sequence[Run]) -> None:
        super().__init__(quiet=True)
        self.progress = progress
        self.name = describe_runs(runs)

    def line(self, text: str) -> None:
        self.progress.report(f"{self.name} {' '.join(text.split())}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        with self.progress.steps(self.name, label, total) as advance:
            yield advance


def describe_runs(runs: Sequence[Run]) -> str:
    """Return a label for the runs that one process executes at the same time."""
    if not runs:
        return "the current runs"
    return runs[0].name if len(runs) == 1 else f"{runs[0].group} ({len(runs)} seeds)"
