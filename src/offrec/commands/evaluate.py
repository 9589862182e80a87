"""`offrec evaluate`: next-item metrics of runs and baselines in one table."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from offrec.commands.engines import EngineName, RayOptions, load_baseline, load_run
from offrec.commands.printing import (
    console_for,
    metrics_table,
    print_json,
    print_table,
    registered,
    split_ids,
    unset,
)
from offrec.console import Console
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.evaluation import Evaluation
    from offrec.evaluation.partitioned import LoadPolicy
    from offrec.policy import Policy

COLUMNS = ("HR@5", "NDCG@5", "HR@10", "NDCG@10", "HR@20", "NDCG@20")  # of the table of several policies
SPLITS = {"test": "test sessions", "validation": "validation sessions", "all": "all sessions"}


@dataclass(frozen=True)
class Evaluate:
    """Rank every logged item of some sessions in the full catalogue and print HR, NDCG, MRR and coverage.

    The sessions are the test sessions of the runs' dataset or, with --dataset, those of any other log. Items are
    matched by id: an event whose item a policy does not know is a miss, and histories contain the items it knows.

    Examples: offrec evaluate runs/sl
              offrec evaluate runs/sl runs/dc --baselines recent,markov
              offrec evaluate runs/monday runs/tuesday --dataset data/wednesday --split all
              offrec evaluate --baselines all --dataset data/retailrocket
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders written by `offrec train`."""
    baselines: Annotated[
        str,
        registered(
            "baseline",
            "Policies without training, separated by commas, or all. They count the training sessions of the first "
            "run's dataset or, without runs, of --dataset. Some of",
            "NAMES",
        ),
    ] = ""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The log to evaluate on; by default the dataset of the runs. Required if only baselines are evaluated."""
    split: Literal["test", "validation", "all"] = "test"
    """The sessions to rank. `all` is for a log that no policy was trained on."""
    score_first: Annotated[bool | None, unset("True|False")] = None
    """Whether to score the first event of a session; by default as in the dataset. Changes the fingerprint."""
    unseen: Annotated[Literal["keep", "drop"] | None, unset("keep|drop")] = None
    """Whether to score items that never occur in training or, on another dataset, items that a policy does not know.
    Changes the fingerprint."""
    score_last: Annotated[int | None, unset("N")] = None
    """Score only the last N events of each session. Changes the fingerprint."""
    exclude_seen: bool = False
    """Exclude the items of the history from the ranking, so that a repeated item is a miss. Changes the fingerprint."""
    skip_recent: int = 0
    """Rank this many of the last items of the history below all other items. Changes the fingerprint."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    engine: EngineName = "local"
    """Where events are ranked. `ray`: on a Ray cluster, whose machines have the folders of the runs and of the
    dataset."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.evaluation import evaluate
        from offrec.evaluation.partitioned import evaluate_on

        engine = self.ray.connect(self.engine)
        dataset = self._open_dataset()
        policies = self._load_policies(dataset)
        rewards = self._rewards()
        evaluations: dict[str, Evaluation] = {}
        for name, policy in policies.items():
            with console_for(self.json).counter(f"{name}: ranking {SPLITS[self.split]}") as at:
                reward = rewards.get(name, next(iter(rewards.values()), {}))
                if engine is None:
                    evaluations[name] = evaluate(policy, dataset, self.split, reward=reward, progress=at)
                else:
                    load = self._loader(name, policy, dataset)
                    evaluations[name] = evaluate_on(
                        engine, load, policy, dataset, self.split, reward=reward, progress=at
                    )
        warnings = {name: list(getattr(policy, "warnings", ())) for name, policy in policies.items()}
        if self.json:
            print_json(self._as_json(dataset, evaluations, warnings))
        else:
            self._print(dataset, evaluations, warnings)

    def _open_dataset(self) -> "Dataset":
        """Open the dataset to evaluate on, with the protocol of the options."""
        from offrec.data.dataset import Dataset
        from offrec.runs.folder import read_run
        from offrec.runs.loading import open_dataset

        if not self.runs and not split_ids(self.baselines):
            raise InputError("No policy was given; pass run folders, or --baselines NAMES with --dataset DATASET.")
        facts = [read_run(run) for run in self.runs]
        if self.dataset is not None:
            dataset = Dataset.open(self.dataset)
        elif not self.runs:
            raise InputError("--baselines without runs needs --dataset DATASET.")
        else:
            for run, one in zip(self.runs, facts, strict=True):
                if one["fingerprint"] != facts[0]["fingerprint"]:
                    raise InputError(
                        f"{self.runs[0]} and {run} were trained on different datasets; choose the log to evaluate on "
                        "with --dataset."
                    )
            dataset = open_dataset(self.runs[0])
        given = {
            "score_first": self.score_first,
            "unseen": self.unseen,
            "score_last": self.score_last,
            "exclude_seen": self.exclude_seen or None,
            "skip_recent": self.skip_recent or None,
        }
        return dataset.with_protocol(**{key: value for key, value in given.items() if value is not None})

    def _load_policies(self, dataset: "Dataset") -> "dict[str, Policy]":
        from offrec.baselines import BASELINES, baseline
        from offrec.runs.loading import load, pick_device

        policies: dict[str, Policy] = {str(run): load(run, self.device) for run in self.runs}
        if not self.baselines:
            return policies
        counted = self._counted_dataset(dataset)
        names = split_ids(self.baselines)
        if names == ["all"]:
            left_out = {name: record.left_out(counted) for name, record in BASELINES.items()}
            names = [name for name, sentence in left_out.items() if sentence is None]
            for sentence in filter(None, left_out.values()):
                Console().line(sentence)
        histories = {policy.history for policy in policies.values()}
        shared = {"history": histories.pop()} if len(histories) == 1 else {}
        for name in names:
            policies[name] = baseline(name, counted, device=pick_device(self.device), **shared)
        return policies

    def _loader(self, name: str, policy: "Policy", dataset: "Dataset") -> "LoadPolicy":
        """Return a function that loads a policy on another machine."""
        device = self.ray.device(self.device)
        if name in map(str, self.runs):
            return partial(load_run, Path(name).resolve(), device)
        return partial(load_baseline, name, self._counted_dataset(dataset).path.resolve(), device, policy.history)

    def _counted_dataset(self, dataset: "Dataset") -> "Dataset":
        """Return the dataset whose training sessions the baselines count: that of the first run, if there is one."""
        from offrec.data.dataset import Dataset
        from offrec.runs.folder import read_run

        if not self.runs:
            return dataset
        facts = read_run(self.runs[0])
        if facts["data_hash"] == dataset.meta["data_hash"]:
            return dataset
        counted = f"--baselines count the training sessions of {self.runs[0]}, but its dataset {facts['dataset']}"
        if not Path(facts["dataset"]).exists():
            raise InputError(f"{counted} no longer exists; omit --baselines.")
        trained = Dataset.open(facts["dataset"])
        if trained.meta["data_hash"] != facts["data_hash"]:
            raise InputError(f"{counted} now contains other data; omit --baselines, or train the run again.")
        return trained

    def _rewards(self) -> dict[str, dict[str, float]]:
        """Return the rewards of each run."""
        from offrec.runs.folder import read_run
        from offrec.runs.options import build_options

        return {str(run): build_options(read_run(run)["options"]).reward for run in self.runs}

    def _as_json(
        self, dataset: "Dataset", evaluations: "dict[str, Evaluation]", warnings: dict[str, list[str]]
    ) -> dict[str, Any]:
        policies = []
        for name, evaluation in evaluations.items():
            tree = {"name": name, **evaluation.as_json()}
            common = ("split", "fingerprint", "protocol", "dataset")
            tree = {key: value for key, value in tree.items() if key not in common}
            policies.append(tree | ({"warnings": warnings[name]} if warnings[name] else {}))
        return {
            "dataset": str(dataset.path),
            "counts": dataset.meta["counts"],
            "split": self.split,
            "fingerprint": dataset.fingerprint,
            "protocol": dataset.protocol.as_json(),
            "policies": policies,
        }

    def _print(self, dataset: "Dataset", evaluations: "dict[str, Evaluation]", warnings: dict[str, list[str]]) -> None:
        protocol = dataset.protocol
        rules = [SPLITS[self.split] + f" of {dataset.path.name}"]
        rules += ["seen items excluded"] if protocol.exclude_seen else []
        rules += [f"last {protocol.skip_recent} items ranked last"] if protocol.skip_recent else []
        place = f"{', '.join(rules)}  {dataset.fingerprint}"
        if len(evaluations) == 1:
            ((name, evaluation),) = evaluations.items()
            print_table(f"{name} ({evaluation.policy}) on {place}", *metrics_table(evaluation))
        else:
            _print_comparison(place, evaluations)
        for name, evaluation in evaluations.items():
            if evaluation.unknown:
                print(
                    f"{name} does not know the items of {evaluation.unknown:,} scored events "
                    f"({evaluation.unknown_share:.1%}); they count as misses."
                )
        for name, sentences in warnings.items():
            for sentence in sentences:
                Console().line(f"Warning: {name}: {sentence}" if len(evaluations) > 1 else f"Warning: {sentence}")


def _print_comparison(place: str, evaluations: "dict[str, Evaluation]") -> None:
    """Print a table with one row per policy, for all events and for each behaviour."""
    first = next(iter(evaluations.values()))
    groups = [name for name, values in first.metrics.items() if values.events]
    for group in groups if len(groups) > 2 else groups[:1]:  # one behaviour: its table equals that of all events
        rows = []
        for name, evaluation in evaluations.items():
            values = evaluation.metrics[group]
            figures = [f"{values[column]:.4f}" if values.events else "–" for column in COLUMNS]
            unknown = [f"{evaluation.unknown_share:.1%}"] if group == "all" else []
            rows.append([name, f"{values.events:,}", *figures, *unknown])
        columns = ["policy", "events", *COLUMNS, *(["unknown items"] if group == "all" else [])]
        print_table(f"{'all' if group == 'all' else group} events, {place}", columns, rows)
