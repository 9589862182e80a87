"""`offrec compare`, `sweep`, `tune` and `report`."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.engines import EngineName, RayOptions
from offrec.commands.printing import console_for, print_json, print_table, registered, unset
from offrec.errors import InputError, RunError

if TYPE_CHECKING:
    from offrec.studies.study import Study
    from offrec.studies.worker import WorkerOptions

Datasets = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET [DATASET …]", help_behavior_hint="")
]
Select = Literal["ndcg", "reward", "value", "last"]


@dataclass(frozen=True)
class Execution:
    """Options for running the study."""

    device: str = "auto"
    """auto, cpu, cuda …; several devices, separated by commas, with --jobs."""
    jobs: int = 1
    """Number of concurrent processes. Other processes can work on the same study."""
    concurrent_seeds: Annotated[int | None, unset("N")] = None
    """Most seeds trained concurrently per process. By default all that fit into memory on a GPU, and one on a CPU."""
    time_limit: Annotated[float | None, unset("SECONDS")] = None
    """Start no run after this many seconds. Repeat the command to continue."""
    retry_failed: bool = False
    """Run failed runs again."""
    engine: EngineName = "local"
    """Where runs are executed. `ray`: on a Ray cluster, whose machines share the study folder and the datasets."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
    plan_only: bool = False
    """Write study.json and run nothing. `python -m offrec.studies STUDY` runs it, also on a machine with torch only."""
    json: bool = False
    """Print JSON."""

    def options(self) -> "WorkerOptions":
        from offrec.studies.worker import WorkerOptions

        limit = math.inf if self.time_limit is None else self.time_limit
        cluster = None if self.plan_only else self.ray.connect(self.engine)
        return WorkerOptions(self.device, self.jobs, limit, self.concurrent_seeds, self.retry_failed, cluster)

    def execute(self, plan: "Study") -> None:
        """Create or extend the study folder, run the study, then print its tables and write its report."""
        from offrec.studies.design import create_or_extend
        from offrec.studies.run import run_study

        console, options = console_for(self.json), self.options()  # a cluster that does not answer writes no folder
        study = create_or_extend(plan)
        for sentence in study.request.get("left_out", ()):
            console.line(sentence)
        if self.plan_only:
            console.line(f"Planned runs: {len(study.runs)}. Next: python -m offrec.studies {study.folder}")
            return
        counts = run_study(study, options, console)
        if self.json:
            print_json({"study": str(study.folder), **asdict(counts), "runs": _results(study)})
        elif counts.done:
            _show(study)
        if counts.failed:
            raise RunError(
                f"{counts.failed} of {len(study.runs)} runs failed; the reasons are in {study.path('failed')}."
            )


@dataclass(frozen=True)
class Compare:
    """Train learners with several backbones and seeds, add baselines, and write tables and a report.

    Repeat the command to continue a study that was stopped, or add seeds, learners or datasets to extend it.

    Example: offrec compare data/yoochoose data/retailrocket --algorithms all --backbones gru,sasrec --out study
    """

    datasets: Datasets
    """Dataset folders written by `offrec prepare`."""
    out: Path
    """Study folder."""
    execution: Annotated[Execution, tyro.conf.arg(name="")]
    algorithms: Annotated[str, registered("learner", "Learners, separated by commas; by default all", "NAMES")] = "all"
    backbones: Annotated[
        str | None,
        registered("backbone", "Backbones, separated by commas; by default gru, with --preset paper cfn", "NAMES"),
    ] = None
    baselines: Annotated[
        str, registered("baseline", "Policies without training, separated by commas, or none; by default all", "NAMES")
    ] = "all"
    seeds: str = "5"
    """Number of seeds, or a list of seeds: 0,1,2."""
    preset: Literal["strong", "paper"] = "strong"
    """Preset of all runs."""
    select: Annotated[Select | None, unset("ndcg|reward|value|last")] = None
    """How all learners select their checkpoint. By default as each learner's preset says."""
    set: tuple[str, ...] = ()
    """An option for all learners (training.epochs=3) or for one (dc:algorithm.alpha=0.1). Can be repeated."""
    visitors: int = 4000
    """Simulated visitors per policy, for logs of the simulated shop."""
    informed_visitors: int = 1000
    """How many of these visitors the shop's policy `informed` serves, which is slow; 0 leaves it out."""
    skip_recent: Annotated[int | None, unset("N")] = None
    """In the shop, rank a visitor's last N picks below all other items. Default: the better of 0 and 8 for each policy,
    measured in other shops."""
    twins: bool = True
    """On logs of the simulated shop, each learner that looks ahead is also trained without look-ahead (γ = 0).
    --no-twins leaves these runs out."""
    repeated_splits: bool = False
    """The datasets are splits of one log with different values of `--split-seed`. Each is one repeat, with its own
    seed."""
    value: bool = False
    """Also estimate each policy's value from the log, with a verdict. This fits three networks per policy, which can
    take longer than training it."""

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
            informed_visitors=self.informed_visitors,
            skip_recent=self.skip_recent,
            twins=self.twins,
            repeated_splits=self.repeated_splits,
            value=self.value,
        )
        self.execution.execute(study)


@dataclass(frozen=True)
class Sweep:
    """Train one learner with several values of an option, and plot the metrics over the values.

    Example: offrec sweep data --algorithm dc --vary algorithm.alpha=0.01,0.1,1,10 --seeds 3 --out study
    """

    datasets: Datasets
    """Dataset folders written by `offrec prepare`."""
    out: Path
    """Study folder."""
    algorithm: Annotated[str, registered("learner", "The learner")]
    execution: Annotated[Execution, tyro.conf.arg(name="")]
    vary: tuple[str, ...] = ()
    """KEY=VALUE,VALUE… Can be repeated: several options are varied separately, not crossed."""
    compare_with: tuple[str, ...] = ()
    """Settings KEY=VALUE,KEY=VALUE of a run to compare with: a horizontal line in the figures. algorithm.name=sl
    compares with another learner. Can be repeated."""
    backbone: Annotated[
        str | None, registered("backbone", "The backbone; by default gru, with --preset paper cfn. One of")
    ] = None
    seeds: str = "3"
    """Number of seeds, or a list of seeds: 0,1,2."""
    preset: Literal["strong", "paper"] = "strong"
    """Preset of all runs."""
    select: Annotated[Select | None, unset("ndcg|reward|value|last")] = None
    """How the learner selects its checkpoint. By default as its preset says."""
    set: tuple[str, ...] = ()
    """An option for all runs. Can be repeated."""
    visitors: int = 4000
    """Simulated visitors per policy, for logs of the simulated shop."""
    informed_visitors: int = 1000
    """How many of these visitors the shop's policy `informed` serves, which is slow; 0 leaves it out."""
    value: bool = False
    """Also compute value@5 on test sessions, in default rewards. This fits one network per log, which is cached next to
    the dataset."""

    def run(self) -> None:
        from offrec.studies import design

        study = design.plan_sweep(
            self.datasets,
            self.out,
            algorithm=self.algorithm,
            vary=self.vary,
            compare_with=self.compare_with,
            backbone=self.backbone,
            seeds=self.seeds,
            preset=self.preset,
            select=self.select,
            settings=self.set,
            visitors=self.visitors,
            informed_visitors=self.informed_visitors,
            value=self.value,
        )
        self.execution.execute(study)


@dataclass(frozen=True)
class Tune:
    """Search a learner's options by validation metrics (with optuna). Repeat the command to continue a search.

    Example: offrec tune data --algorithm dc --trials 30 --out study
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Dataset folder written by `offrec prepare`."""
    out: Path
    """Study folder."""
    algorithm: Annotated[str, registered("learner", "The learner")]
    execution: Annotated[Execution, tyro.conf.arg(name="")]
    trials: int = 30
    """Number of trials. The first one is the preset."""
    objective: Literal["ndcg", "reward", "value"] = "ndcg"
    """Validation metric to maximise: NDCG@10, reward@10 (hits weighted by their reward) or value@5 (estimated value of
    the top five items)."""
    backbone: Annotated[
        str | None, registered("backbone", "The backbone; by default gru, with --preset paper cfn. One of")
    ] = None
    preset: Literal["strong", "paper"] = "strong"
    """Preset that the search starts from."""
    seeds: str = "1"
    """Number of seeds per trial, or a list of seeds. The mean over seeds counts."""
    seed: int = 0
    """Seed of the search."""
    set: tuple[str, ...] = ()
    """An option that the search does not change. Can be repeated."""

    def run(self) -> None:
        from offrec.studies.tuning import Search, best_trial, train_command, tune

        if self.execution.time_limit is not None or self.execution.plan_only:
            raise InputError(
                "`offrec tune` takes neither --time-limit nor --plan-only: each trial depends on the last."
            )
        search = Search(self.dataset, self.out, self.algorithm, self.backbone, self.preset, self.set, self.trials,
                        self.seeds, self.objective, self.seed)  # fmt: skip
        console = console_for(self.execution.json)
        study = tune(search, self.execution.options(), console)
        best = best_trial(study)
        if best is None:
            raise RunError(f"No trial succeeded; the reasons are in {study.path('failed')}.")
        if self.execution.json:
            print_json({"study": str(study.folder), "trial": best.trial, "settings": best.varied})
            return
        _show(study)
        console.line(f"Next: {train_command(search, best)}")


@dataclass(frozen=True)
class Report:
    """Write the report of one or several studies as HTML, Markdown, CSV or LaTeX.

    Example: offrec report study --out report.html --out report.csv --reference paper
    """

    studies: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="STUDY [STUDY …]", help_behavior_hint="")
    ]
    """Study folders written by compare, sweep or tune."""
    out: tuple[Path, ...] = ()
    """Files that end in .html, .md, .csv or .tex; a folder gets all four. By default report.html."""
    cutoffs: str = "5,10"
    """List lengths k of HR@k and NDCG@k: any of 5, 10 and 20."""
    against: Literal["sl", "baseline"] = "sl"
    """What policies are tested against: SL with the same backbone, or the best baseline."""
    reference: Annotated[str | None, unset("paper")] = None
    """`paper` shows the paper's metrics next to ours."""
    title: Annotated[str | None, unset("TEXT")] = None
    """Title of the report."""

    def run(self) -> None:
        from offrec.reports.report import build_report
        from offrec.reports.writing import write_report

        if not self.studies:
            raise InputError("Give at least one study folder written by `offrec compare`, `sweep` or `tune`.")
        try:
            cutoffs = tuple(int(part) for part in self.cutoffs.split(","))
        except ValueError as error:
            raise InputError(
                f"--cutoffs must be whole numbers separated by commas, such as 5,10,20; got {self.cutoffs!r}."
            ) from error
        report = build_report(
            self.studies, cutoffs=cutoffs, against=self.against, reference=self.reference, title=self.title
        )
        paths = write_report(report, self.out or (Path("report.html"),))
        console_for(False).line(f"Wrote {', '.join(map(str, paths))}")


def _results(study: "Study") -> list[dict[str, object]]:
    """Return the main facts of every finished run, for --json."""
    from offrec.reports.reading import read_studies

    keys = ("run", "validation", "test", "shop", "value", "seconds", "peak_memory", "selected_epoch", "stopped_early")
    facts = [result.facts for result in read_studies([study.folder]).results()]
    return [{key: one[key] for key in keys if key in one} for one in facts]


def _show(study: "Study") -> None:
    """Print the tables and write the report into the study folder."""
    from offrec.reports import terminal
    from offrec.reports.report import build_report
    from offrec.reports.writing import write_report

    report = build_report([study.folder])
    for table in terminal.tables(report):
        print_table(*table)
    legend = terminal.legend(report)
    if legend:
        print(legend)
    for answer in report.answers:
        print(f"{answer.about}: {answer.text()}")
    (path,) = write_report(report, [study.folder / "report.html"])
    console_for(False).line(f"Wrote {path}")
