"""The plan of a study: datasets, policies with all their options, and runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from offrec.data.dataset import Dataset

StudyKind = Literal["compare", "sweep", "tune"]
INFORMED_VISITORS = 1000
PolicyKind = Literal["learner", "baseline", "shop"]


@dataclass(frozen=True)
class StudyDataset:
    """A prepared dataset of a study.

    Attributes:
        name: Name of the dataset's folder.
        log: Name of the log. Datasets that split one log with different seeds share it.
        path: The dataset's folder.
        fingerprint: Identifies the dataset: protocol and content.
        data_hash: Identifies the raw log.
        protocol: How the log was split, filtered and scored.
        counts: Numbers of sessions, events and items.
        behaviours: Names of the behaviours, in the order of their codes.
        shop: The simulated shop that wrote the log, if one did.
    """

    name: str
    log: str
    path: str
    fingerprint: str
    data_hash: str
    protocol: dict[str, Any]
    counts: dict[str, int]
    behaviours: list[str]
    shop: str | None


@dataclass(frozen=True)
class RunGroup:
    """One policy on one log: runs that differ only in their seed.

    Attributes:
        name: Unique within the study.
        log: The log that the policy is trained and evaluated on.
        kind: Learner, baseline, or a policy of the simulated shop.
        policy: Name of the learner, baseline or shop policy.
        backbone: Backbone of a learner.
        preset: Preset of a learner.
        options: Every option of a learner under its dotted key, except seed and device.
        varied: In a sweep, the varied option and its value; in tuning, the searched options.
        compare_with: In a sweep, the settings of a run that the varied runs are compared with.
        trial: In tuning, the number of the trial.
        policy_label: Label of the policy in tables, from its record. Stored with the study, so that a report does not
            need the plug-in that has the record.
        short_label: Label of a baseline in figures.
        family: Family of a learner.
        backbone_label: Label of the backbone in tables.
        backbone_family: Family of the backbone.
        skip_recent: How many of a visitor's last picks rank below all other items when the shop plays the policy.
        is_twin: Whether this is the twin of a learner: the same options, apart from those that remove look-ahead.
        ranks_by_critic: Whether a learner ranks by its critic, not by its actor.
        is_sampled: Whether the shop plays the policy by sampling. The results are part of the policy's other results.
    """

    name: str
    log: str
    kind: PolicyKind
    policy: str
    backbone: str | None = None
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    varied: dict[str, Any] = field(default_factory=dict)
    compare_with: str | None = None
    trial: int | None = None
    policy_label: str | None = None
    short_label: str | None = None
    family: str | None = None
    backbone_label: str | None = None
    backbone_family: str | None = None
    skip_recent: int = 0
    is_twin: bool = False
    ranks_by_critic: bool = False
    is_sampled: bool = False

    @property
    def label(self) -> str:
        return f"{self.policy}/{self.backbone}" if self.backbone else self.policy


@dataclass(frozen=True)
class Run:
    """One seed of a group on one dataset."""

    name: str
    group: str
    dataset: str
    seed: int


@dataclass(frozen=True)
class Study:
    """Many runs that share one folder and one report.

    Attributes:
        folder: Where study.json, runs and results are stored.
        kind: The command that planned the study.
        datasets: The datasets of all logs.
        groups: The policies.
        runs: Every seed of every policy.
        evaluate_test: Whether test sessions are evaluated. Tuning evaluates validation sessions only.
        estimate_value: Whether the policies' value is estimated from test sessions (in a sweep: by value@5).
        visitors: Number of simulated visitors per policy, for logs of the simulated shop.
        informed_visitors: How many of these visitors the shop's policy `informed` serves, which is slow.
        request: Further arguments of the command, for the reader of study.json.
    """

    folder: Path
    kind: StudyKind
    datasets: tuple[StudyDataset, ...]
    groups: tuple[RunGroup, ...]
    runs: tuple[Run, ...]
    evaluate_test: bool = True
    estimate_value: bool = False
    visitors: int = 4000
    informed_visitors: int = INFORMED_VISITORS
    request: dict[str, Any] = field(default_factory=dict)

    def group(self, run: Run) -> RunGroup:
        """Return the group of a run."""
        return next(group for group in self.groups if group.name == run.group)

    def dataset(self, name: str) -> StudyDataset:
        """Return the dataset with this name."""
        return next(dataset for dataset in self.datasets if dataset.name == name)

    def path(self, kind: Literal["runs", "results", "failed", "locks"], name: str = "") -> Path:
        """Return the path of a file or subfolder of the study."""
        return self.folder / kind / name

    def is_done(self, run: Run) -> bool:
        """Return whether the result of a run is stored."""
        return self.path("results", f"{run.name}.json").exists()

    def has_failed(self, run: Run) -> bool:
        """Return whether the run has a recorded failure."""
        return self.path("failed", f"{run.name}.json").exists()

    def is_waiting(self, run: Run) -> bool:
        """Return whether a run is neither done nor failed."""
        return not self.is_done(run) and not self.has_failed(run)


def describe_dataset(dataset: Dataset, log: str | None = None) -> StudyDataset:
    """Describe an opened dataset for study.json.

    Args:
        dataset: The dataset.
        log: Name of its log; by default the name of the dataset's folder.
    """
    shop = dataset.meta.get("shop")
    return StudyDataset(
        name=dataset.path.resolve().name,
        log=log or dataset.path.resolve().name,
        path=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        data_hash=dataset.meta["data_hash"],
        protocol=dataset.protocol.as_json(),
        counts=dict(dataset.meta["counts"]),
        behaviours=dataset.behaviours,
        shop=shop and str(shop["world"]),
    )
