"""How far a study is: runs done, time left, the best so far. Counted in the folder, so whoever works is seen."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mean
from types import TracebackType

from offrec.console import Advance, Console
from offrec.studies.plan import Run, Study

SEEN = 48  # letters of what a run says of itself


class Progress:
    """One bar over all runs on a terminal; elsewhere a line now and then."""

    def __init__(self, study: Study, console: Console) -> None:
        self.study, self.console = study, console
        self.started = time.monotonic()
        self.ended: set[str] = set()
        self.best: dict[str, tuple[float, str]] = {}  # log → its best figure on validation, and whose it is
        self.last_log = ""
        self.took: dict[str, list[float]] = {}  # policy, and kind of policy → seconds of each run
        self._stack = ExitStack()
        self._look()
        self.before = self._spent()

    def __enter__(self) -> "Progress":
        label = f"{self.study.folder.name}: runs"
        self._advance: Advance = self._stack.enter_context(self.console.steps(label, len(self.study.runs)))
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
        """What the run that is under way says, on a terminal only."""
        if self.console.terminal:
            self._advance(0, f"{self.note()}  {text[:SEEN]}")

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
        self.name = runs[0].name if len(runs) == 1 else f"{runs[0].group} ({len(runs)} seeds)"

    def line(self, text: str) -> None:
        self.progress.say(f"{self.name} {' '.join(text.split())}")

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        yield lambda steps=1, note="": None


def spoken(seconds: float) -> str:
    """A span of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
