"""`offrec compare`, `sweep`, `tune` and `report`: many runs into tables and pictures."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json, print_table, unset
from offrec.errors import InputError, RunError

if TYPE_CHECKING:
    from offrec.studies.study import Study

Datasets = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET [DATASET …]", help_behavior_hint="")
]


@dataclass(frozen=True)
class Working:
    """Where and how the runs are made."""

    device: str = "auto"
    """auto, cpu, cuda …; several, separated by commas, with --jobs."""
    jobs: int = 1
    """Processes side by side. Whoever else works on the same study shares its queue."""
    together: Annotated[int | None, unset("N")] = None
    """Seeds trained at once in a process. By default all of them on a GPU, one on a CPU."""
    limit: Annotated[float | None, unset("SECONDS")] = None
    """Start no run after so many seconds; the same command goes on later."""
    retry: bool = False
    """Try again what failed."""
    plan_only: bool = False
    """Write the study and run nothing: `python -m offrec.studies STUDY` does it, on a machine with torch alone."""
    json: bool = False
    """Print JSON."""

    def finish(self, study: "Study") -> None:
        """Run what is to be run, then show what came of it."""
        from offrec.studies.run import run_study
        from offrec.studies.worker import WorkerOptions

        console = console_for(self.json)
        if self.plan_only:
            console.line(f"{study.folder}: {len(study.runs)} runs asked. Next: python -m offrec.studies {study.folder}")
            return
        limit = math.inf if self.limit is None else self.limit
        left = run_study(study, WorkerOptions(self.device, self.jobs, limit, self.together, self.retry), console)
        if self.json:
            print_json({"study": str(study.folder), **asdict(left), "runs": _facts(study)})
        elif left.done:
            _show(study)
        if left.failed:
            raise RunError(f"{left.failed} of {len(study.runs)} runs failed; {study.path('failed')} says why.")


@dataclass(frozen=True)
class Compare:
    """Train learners with backbones on logs, several seeds each, beside policies without training, and make the tables.
    Killed and started again, it goes on; asked for more, it adds it.

    Example: offrec compare data/yoochoose data/retailrocket --algorithms all --backbones gru,sasrec --out study
    """

    datasets: Datasets
    """Folders made by `offrec prepare`."""
    out: Path
    """The study's folder."""
    working: Annotated[Working, tyro.conf.arg(name="")]
    algorithms: str = "all"
    """Learners, separated by commas."""
    backbones: Annotated[str | None, unset("NAMES")] = None
    """Backbones, separated by commas. By default gru; of `paper`, cfn."""
    baselines: str = "all"
    """Policies without training, separated by commas, or none."""
    seeds: str = "5"
    """How many seeds, or which: 0,1,2."""
    preset: Literal["strong", "paper"] = "strong"
    """The preset of all runs."""
    select: Annotated[Literal["ndcg", "reward", "value", "last"] | None, unset("ndcg|reward|value|last")] = None
    """The checkpoint kept, for all learners. By default what each does best with."""
    set: tuple[str, ...] = ()
    """An option for all learners, training.epochs=3, or for one, dc:algorithm.alpha=0.1; as often as needed."""
    visitors: int = 4000
    """Who come to the shop for each policy, where a log comes from it."""
    redraw: bool = False
    """The datasets are one log with its split drawn again (`prepare --split-seed`): each is a repeat, with a seed of
    its own."""
    value: bool = False
    """Also estimate from the log what each policy would earn, with a verdict: three fits of a network a policy, which
    may take longer than its training."""

    def run(self) -> None:
        from offrec.studies import design

        study = design.plan_comparison(
            self.datasets,
            self.out,
            algorithms=self.algorithms,
            backbones=self.backbones,
            baselines=self.baselines,
            seeds=self.seeds,
            preset=self.preset,
            select=self.select,
            settings=self.set,
            visitors=self.visitors,
            redraw=self.redraw,
            value=self.value,
        )
        self.working.finish(design.create_or_extend(study))


@dataclass(frozen=True)
class Sweep:
    """Train one learner with an option set to each of several values: curves with bands.

    Example: offrec sweep data --algorithm dc --vary algorithm.alpha=0.01,0.1,1,10 --seeds 3 --out study
    """

    datasets: Datasets
    """Folders made by `offrec prepare`."""
    out: Path
    """The study's folder."""
    algorithm: str
    """The learner."""
    working: Annotated[Working, tyro.conf.arg(name="")]
    vary: tuple[str, ...] = ()
    """KEY=VALUE,VALUE…; several are varied one after the other, not crossed."""
    level: tuple[str, ...] = ()
    """Settings to set the values beside, as KEY=VALUE,KEY=VALUE: a line across the picture. Also algorithm.name=sl."""
    backbone: Annotated[str | None, unset("NAME")] = None
    """The backbone. By default gru; of `paper`, cfn."""
    seeds: str = "3"
    """How many seeds, or which: 0,1,2."""
    preset: Literal["strong", "paper"] = "strong"
    """The preset of all runs."""
    select: Annotated[Literal["ndcg", "reward", "value", "last"] | None, unset("ndcg|reward|value|last")] = None
    """The checkpoint kept. By default what the learner does best with."""
    set: tuple[str, ...] = ()
    """An option of all runs, as often as needed."""
    visitors: int = 4000
    """Who come to the shop for each policy, where a log comes from it."""
    value: bool = False
    """Also estimate from the log what each policy's best five are worth (value@5, on test sessions, in default
    rewards): one fit of a network a log, kept beside the dataset."""

    def run(self) -> None:
        from offrec.studies import design

        study = design.plan_sweep(
            self.datasets,
            self.out,
            algorithm=self.algorithm,
            vary=self.vary,
            levels=self.level,
            backbone=self.backbone,
            seeds=self.seeds,
            preset=self.preset,
            select=self.select,
            settings=self.set,
            visitors=self.visitors,
            value=self.value,
        )
        self.working.finish(design.create_or_extend(study))


@dataclass(frozen=True)
class Tune:
    """Search for a learner's options by validation figures alone (optuna). Stopped and started again, it goes on.

    Example: offrec tune data --algorithm dc --trials 30 --out study
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """A folder made by `offrec prepare`."""
    out: Path
    """The study's folder."""
    algorithm: str
    """The learner."""
    working: Annotated[Working, tyro.conf.arg(name="")]
    trials: int = 30
    """How many, the preset as it is being the first."""
    objective: Literal["ndcg", "reward", "value"] = "ndcg"
    """NDCG@10 on validation, reward@10 (hits weighted by their reward), or value@5 (what the policy's best five were
    worth to the log's visitors)."""
    backbone: Annotated[str | None, unset("NAME")] = None
    """The backbone. By default gru; of `paper`, cfn."""
    preset: Literal["strong", "paper"] = "strong"
    """What the search starts from."""
    seeds: str = "1"
    """Seeds of each trial, whose mean counts."""
    seed: int = 0
    """Of the search."""
    set: tuple[str, ...] = ()
    """An option that is held as given, as often as needed."""

    def run(self) -> None:
        from offrec.studies.tuning import Search, best, train_command, tune
        from offrec.studies.worker import WorkerOptions

        if self.working.limit is not None or self.working.plan_only:
            raise InputError("A search depends on what it finds, so tune takes no --limit and no --plan-only.")
        search = Search(self.dataset, self.out, self.algorithm, self.backbone, self.preset, self.set, self.trials,
                        self.seeds, self.objective, self.seed)  # fmt: skip
        how = WorkerOptions(self.working.device, self.working.jobs, math.inf, self.working.together, self.working.retry)
        console = console_for(self.working.json)
        study = tune(search, how, console)
        found = best(study)
        if found is None:
            raise RunError(f"No trial succeeded; {study.path('failed')} says why.")
        if self.working.json:
            print_json({"study": str(study.folder), "trial": found.trial, "settings": found.varied})
            return
        _show(study)
        console.line(f"Next: {train_command(search, found)}")


@dataclass(frozen=True)
class Report:
    """What came of studies, as a page a person wants to read, as Markdown, CSV or LaTeX.

    Example: offrec report study --out report.html --out report.csv --reference paper
    """

    studies: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="STUDY [STUDY …]", help_behavior_hint="")
    ]
    """Folders made by compare, sweep or tune."""
    out: tuple[Path, ...] = ()
    """Files ending in .html, .md, .csv or .tex; a folder gets all four. By default report.html."""
    at: str = "5,10"
    """HR and NDCG at these lengths: of 5, 10 and 20."""
    against: Literal["sl", "baseline"] = "sl"
    """What stars are against: SL with the same backbone, or the best policy without training."""
    reference: Annotated[str | None, unset("paper")] = None
    """`paper` shows the paper's figures next to ours."""
    title: Annotated[str | None, unset("TEXT")] = None
    """The report's title."""

    def run(self) -> None:
        from offrec.reports.report import build_report
        from offrec.reports.writing import write_report

        if not self.studies:
            raise InputError("Give at least one study: a folder made by `offrec compare`, `sweep` or `tune`.")
        try:
            ks = tuple(int(part) for part in self.at.split(","))
        except ValueError as error:
            raise InputError(f"--at is {self.at!r}; give lengths separated by commas, such as 5,10,20.") from error
        found = build_report(self.studies, ks=ks, against=self.against, reference=self.reference, title=self.title)
        paths = write_report(found, self.out or (Path("report.html"),))
        console_for(False).line(f"Written: {', '.join(map(str, paths))}")


def _facts(study: "Study") -> list[dict[str, object]]:
    from offrec.reports import reading

    kept = ("run", "validation", "test", "shop", "value", "seconds", "memory", "kept_epoch")
    facts = [result.facts for result in reading.read_studies([study.folder]).results()]
    return [{key: one[key] for key in kept if key in one} for one in facts]


def _show(study: "Study") -> None:
    """The tables on the terminal, the whole report beside the study."""
    from offrec.reports import terminal
    from offrec.reports.report import build_report
    from offrec.reports.writing import write_report

    found = build_report([study.folder])
    for printed in terminal.tables(found):
        print_table(*printed)
    legend = terminal.legend(found)
    if legend:
        print(legend)
    for answer in found.answers:
        print(f"{answer.about}: {answer.short}")
    (path,) = write_report(found, [study.folder / "report.html"])
    console_for(False).line(f"Written: {path}")
