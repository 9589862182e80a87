"""Run rounds: serve → log → prepare → train → evaluate.

The folder contains

    rounds.json        the options
    yardsticks.json    what the shop's own policies earn
    start/round-0/     the round of the logging policy, which all ways of exploring share
    WAY/round-N/       one folder per round

and each folder of a round contains log/, data/, run/ and round.json. Every part is published when it is complete, and
an interrupted training continues from its checkpoint, so a repeated command continues where the last one stopped.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from offrec.algorithms import LEARNERS
from offrec.console import Console
from offrec.data.files import remove_leftovers
from offrec.data.json_files import write_json
from offrec.data.locks import lock_folder
from offrec.errors import InputError
from offrec.policy import Policy
from offrec.rounds.logs import RoundLogs
from offrec.rounds.options import RoundsOptions, WayOfExploring
from offrec.rounds.results import (
    ROUND,
    YARDSTICKS,
    Round,
    RoundsResults,
    collect_results,
    read_options,
    round_folder,
    write_options,
)
from offrec.runs.loading import load, pick_device
from offrec.runs.train import train
from offrec.shop import Shop
from offrec.shop.exploration import ExploringPlayer
from offrec.shop.log import ServedPolicy
from offrec.shop.rollout import Mean

VISITORS_SEED = 1_000_000  # the visitors that measure trained policies
SERVED_SEED = 5_000_000  # the visitors of later rounds begin here, so that they differ from all others
ROUND_WEIGHT, LOG_WEIGHT = 2, 1  # estimated duration of a round: serving and evaluating, and training per log


def run_rounds(
    options: RoundsOptions,
    out: str | Path,
    console: Console | None = None,
    *,
    logs: RoundLogs | None = None,
    seconds: float = float("inf"),
) -> RoundsResults:
    """Run all rounds that are not finished yet.

    Args:
        options: What to run. A folder can be continued with more rounds and other ways of exploring. 0 rounds run
            round 0 alone.
        out: The folder of the rounds.
        console: Prints progress; by default to standard error.
        logs: How logs and datasets are stored; by default as `offrec shop` and `offrec prepare` store them.
        seconds: Start no round after this many seconds.

    Returns:
        The results of all finished rounds of the options.

    Raises:
        InputError: If an option is wrong, or the folder was created with other options.
        Interrupted: Ctrl-C while training; repeat the call to continue.

    Example:
        >>> run_rounds(RoundsOptions(seed=10, rounds=2, explore=("never", "blend:0.1")), "rounds")
    """
    out, console = Path(out), console or Console()
    with torch.no_grad():
        rounds = _Rounds(options, out, console, logs or RoundLogs(), time.monotonic() + seconds)
    with lock_folder(out, advice="wait for it to end, or choose another --out"):
        _check_folder(out, options)
        return rounds.run()


def _check_folder(out: Path, options: RoundsOptions) -> None:
    """Create the folder, or check that it was created with the same options."""
    stored = read_options(out)
    if stored is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} exists and is not a folder of rounds; choose another --out.")
        write_options(out, options)
        return
    for name, value in options.fixed().items():
        if stored[name] != value:
            flag = {"settings": "set", "warm_start": "fresh"}.get(name, name.replace("_", "-"))
            raise InputError(
                f"--{flag} differs: {out} was created with {stored[name]!r}, this command has {value!r}; repeat the "
                "command with the same value, or choose another --out."
            )


@dataclass(frozen=True)
class _Step:
    """A round to run."""

    way: WayOfExploring | None  # None for round 0
    number: int

    @property
    def weight(self) -> int:
        return ROUND_WEIGHT + LOG_WEIGHT * (self.number + 1)


class _Rounds:
    def __init__(self, options: RoundsOptions, out: Path, console: Console, logs: RoundLogs, stop: float) -> None:
        self.options, self.out, self.console, self.logs, self.stop = options, out, console, logs, stop
        pick_device(options.device)  # refuses devices that do not exist before the first round
        self.shop = Shop.open(options.world, options.seed)  # on the CPU: fast enough, and the same on every machine
        self.skip_recent = LEARNERS[options.algorithm].skip_recent

    def run(self) -> RoundsResults:
        steps = [_Step(None, 0)]
        steps += [_Step(way, number) for way in self.options.ways for number in range(1, self.options.rounds + 1)]
        waiting = [step for step in steps if not (self._folder(step) / ROUND).exists()]
        self._measure_yardsticks()
        if len(waiting) < len(steps):
            self._check_ways()
        started, total = time.monotonic(), sum(step.weight for step in waiting)
        done = 0
        for step in waiting:
            if time.monotonic() > self.stop:
                self.console.line(f"Stopped before round {step.number} because the time is over; repeat to continue")
                break
            result = self._run_step(step)
            if step.number == 0:
                self._check_ways()
            done += step.weight
            left = (time.monotonic() - started) / done * (total - done)
            self.console.line(_describe(step, result) + (f"; {_minutes(left)} left" if total > done else ""))
        return collect_results(self.out, self.options)

    def _check_ways(self) -> None:
        """Check that the policy can explore in all ways, before the first of them takes its time."""
        policy = self._policy(_Step(None, 0))
        for way in self.options.ways:
            ExploringPlayer(self.shop.dynamics, policy, way.exploration)

    def _folder(self, step: _Step) -> Path:
        return round_folder(self.out, None if step.way is None else step.way.name, step.number)

    def _before(self, step: _Step) -> _Step:
        """Return the round before a round."""
        return _Step(step.way if step.number > 1 else None, step.number - 1)

    def _run_step(self, step: _Step) -> Round:
        started, folder = time.monotonic(), self._folder(step)
        self._serve(step)
        dataset = self._prepare(step)
        before = None if step.number == 0 else self._folder(self._before(step)) / "run"
        policy = train(
            dataset,
            folder / "run",
            algorithm=self.options.algorithm,
            device=self.options.device,
            settings=self.options.settings,
            start_from=before if self.options.warm_start else None,
            resume=True,
            console=self.console,
        )
        served, lists = self.logs.read(folder / "log")
        trained = self._evaluate(policy)
        explore = "logging" if step.way is None else step.way.name
        result = Round(step.number, explore, served, trained, lists, time.monotonic() - started)
        write_json(folder / ROUND, result.as_json())
        return result

    def _serve(self, step: _Step) -> None:
        """Write the log of a round, unless it exists."""
        options, log = self.options, self._folder(step) / "log"
        remove_leftovers(log)
        if log.exists():
            return
        seed = options.seed if step.way is None else SERVED_SEED + 1000 * options.seed + step.number
        with self.console.counter(f"round {step.number}: visitors served") as at:
            self.logs.write(
                self.shop,
                options.sessions,
                log,
                seed=seed,
                served=self._served_policy(step),
                first_session=step.number * options.sessions,
                progress=at,
            )

    def _served_policy(self, step: _Step) -> ServedPolicy | None:
        if step.way is None:
            return None
        last = self._before(step)
        previous = None
        if step.way.with_last and last.number > 0:
            previous = self._policy(self._before(last))
        return ServedPolicy(self._policy(last), step.way.exploration, self.skip_recent, previous, self.skip_recent)

    def _policy(self, step: _Step) -> Policy:
        return load(self._folder(step) / "run", self.options.device)

    def _prepare(self, step: _Step) -> Path:
        """Write the dataset of a round, unless it exists."""
        data = self._folder(step) / "data"
        remove_leftovers(data)
        if not data.exists():
            first = {"served": min(1, step.number), "all": 0, "newest": step.number}[self.options.train_on]
            steps = [step]
            while steps[0].number > first:
                steps.insert(0, self._before(steps[0]))
            # A policy shows only some items. The next one still has to know the others.
            catalogue = None if step.number == 0 else self._folder(self._before(step)) / "data"
            self.logs.prepare([self._folder(one) / "log" for one in steps], data, catalogue)
        return data

    def _evaluate(self, policy: "Policy | str", first: int | None = None) -> Mean:
        with self.console.counter("visitors evaluated") as at:
            rollout = self.shop.rollout(
                policy,
                self.options.visitors,
                skip_recent=self.skip_recent,
                seed=VISITORS_SEED,
                progress=at,
                first=first,
            )
        return rollout.reward

    def _measure_yardsticks(self) -> None:
        if (self.out / YARDSTICKS).exists():
            return
        informed = self.options.informed_visitors
        means = {
            "logging": self._evaluate("logging").as_json(),
            "informed": self._evaluate("informed", informed).as_json() if informed else None,
        }
        write_json(self.out / YARDSTICKS, means)


def _describe(step: _Step, result: Round) -> str:
    who = "logging policy" if step.way is None else f"{step.way.name}"
    return (
        f"Round {step.number}, {who}: earned {result.served.mean:.2f} per session while serving; "
        f"the trained policy earns {result.trained.mean:.2f}"
    )


def _minutes(seconds: float) -> str:
    return f"about {seconds / 60:.0f} minutes" if seconds >= 90 else f"about {seconds:.0f} seconds"
