"""Show the progress of a study: runs done, time left and the best policy so far."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mean
from types import TracebackType

from offrec.console import Advance, Console
from offrec.studies.study import Run, Study

SEEN = 72  # letters of what a run says of itself, on a terminal
PLAIN_SECONDS = 30.0  # away from a terminal, the run that is under way is spoken of at most so often


class Progress:
    """On a terminal one bar over all runs and one of what is under way; elsewhere a line now and then."""

    def __init__(self, study: Study, console: Console) -> None:
        self.study, self.console = study, console
        self.started = self.said = time.monotonic()
        self.ended: set[str] = set()
        self.best: dict[str, tuple[float, str]] = {}  # log → its best figure on validation, and whose it is
        self.last_log = ""
        self.took: dict[str, list[float]] = {}  # policy, and kind of policy → seconds of each run
        self._stack = ExitStack()
        self._look()
        self.before = self._spent()

    def __enter__(self) -> "Progress":
        self._board = self._stack.enter_context(self.console.board())
        whole = self._board.console(self.study.folder.name)
        self._advance: Advance = self._stack.enter_context(whole.steps("runs", len(self.study.runs)))
        self._advance(len(self.ended), self.note())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self) -> None:
        """Look at the folder again and say what is new, if anything is."""
        before = len(self.ended)
        self._look()
        if len(self.ended) > before:
            self._advance(len(self.ended) - before, self.note())

    def say(self, text: str) -> None:
        """What the run that is under way says."""
        if self.console.terminal:
            self._advance(0, "; ".join(filter(None, (text[:SEEN], self.note()))))
        elif time.monotonic() - self.said > PLAIN_SECONDS:
            self.said = time.monotonic()
            done, left = f"{len(self.ended)} of {len(self.study.runs)} runs done", self._left()
            self.console.line(f"{self.study.folder.name}  {'; '.join(filter(None, (done, left)))}; now {text}")

    @contextmanager
    def under_way(self, name: str, label: str, total: int) -> Iterator[Advance]:
        """A part of a run that says itself how far it is."""
        if self.console.terminal:
            with self._board.console(name).steps(label, total) as advance:
                yield advance
            return
        done = 0

        def advanced(steps: int = 1, note: str = "") -> None:
            nonlocal done
            done += steps
            self.say(f"{name} {label}, {done:,} of {total:,}")

        yield advanced

    def note(self) -> str:
        parts = [left] if (left := self._left()) else []
        if self.last_log in self.best:
            figure, label = self.best[self.last_log]
            parts.append(f"best so far on {self.last_log}: {label}, NDCG@10 {figure:.4f} on validation")
        return "; ".join(parts)

    def _left(self) -> str:
        """From how long runs of the same policy took, or else of its kind, and how many go side by side."""
        wanted = []
        for run in (run for run in self.study.runs if run.name not in self.ended):
            group = self.study.group(run)
            known = self.took.get(group.policy) or self.took.get(group.kind)
            if known is None:
                return ""
            wanted.append(mean(known))
        abreast = (self._spent() - self.before) / (time.monotonic() - self.started)
        return f"about {spoken(sum(wanted) / max(1.0, abreast))} left" if wanted else ""

    def _spent(self) -> float:
        return sum(sum(seconds) for kind, seconds in self.took.items() if kind in ("shop", "baseline", "learner"))

    def _look(self) -> None:
        for run in self.study.runs:
            if run.name in self.ended:
                continue
            if self.study.done(run):
                self._add(run)
                self.ended.add(run.name)
            elif self.study.failed(run):
                self.ended.add(run.name)
                path = self.study.path("failed", f"{run.name}.json")
                self.console.line(f"{run.name} failed: {json.loads(path.read_text())['reason']}")

    def _add(self, run: Run) -> None:
        group = self.study.group(run)
        found = json.loads(self.study.path("results", f"{run.name}.json").read_text())
        for kind in (group.policy, group.kind):
            self.took.setdefault(kind, []).append(found["seconds"])
        figure = found.get("validation", {}).get("all", {}).get("NDCG@10")
        if figure is not None:
            self.last_log = group.log
            self.best[group.log] = max(self.best.get(group.log, (0.0, "")), (figure, group.label))


class Following(Console):
    """The console of a run inside a study: what it says goes beside the study's bar."""

    def __init__(self, progress: Progress, runs: Sequence[Run]) -> None:
        super().__init__(quiet=True)
        self.progress = progress
        self.name = spoken_of(runs)

    def line(self, text: str) -> None:
        self.progress.say(f"{self.name} {' '.join(text.split())}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        with self.progress.under_way(self.name, label, total) as advance:
            yield advance


def spoken_of(runs: Sequence[Run]) -> str:
    """Runs that one process works on at a time."""
    if not runs:
        return "what is in hand"
    return runs[0].name if len(runs) == 1 else f"{runs[0].group} ({len(runs)} seeds)"


def spoken(seconds: float) -> str:
    """A span of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
