"""`offrec estimate`: estimate what policies would earn, from a log alone."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.engines import EngineName, RayOptions, load_baseline, load_run
from offrec.commands.estimate_output import print_result
from offrec.commands.printing import console_for, parse_rewards, print_json, split_ids, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.data.decision_table import LoggedPolicy, TableColumns
    from offrec.estimation.options import EstimateOptions
    from offrec.estimation.partitioned import RemotePasses
    from offrec.estimation.result import EstimateResult
    from offrec.evaluation import EvaluationSplit
    from offrec.policy import Policy
    from offrec.runs.options import RunOptions
    from offrec.scale.ray_engine import RayEngine


@dataclass(frozen=True)
class Estimate:
    """Estimate what policies would earn per session, from a log alone.

    Prints for each policy an estimate, its 95 % interval, a verdict (trust, caution or do not trust) and the reasons.
    For several policies it also suggests which one to try first.

    Examples: offrec estimate runs/sl runs/dc --picture forest.png
              offrec estimate runs/dc --estimator all --gamma 0.9
              offrec estimate --baselines recent,markov --dataset data/shop
              offrec estimate runs/dc --dataset data/served --certify
              offrec estimate --table decisions.parquet --probabilities new_policy
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders written by `offrec train`."""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The log to estimate from, if it is not the dataset of the runs. It must have all of their items (`offrec
    prepare --catalogue RUN --keep-new-items`). Required if only baselines are estimated."""
    baselines: str = ""
    """Further baselines to estimate, separated by commas, such as recent,markov. They use the history length of the
    runs if all runs have the same one."""
    split: Annotated[Literal["test", "validation", "all"] | None, unset("test|validation|all")] = None
    """The sessions to estimate from. The default is all sessions if the log has exact propensities, no policy was
    trained on it and no Q is fitted, else the test sessions. Q is fitted to the training sessions."""
    estimator: str = ""
    """Estimators, separated by commas, or all: importance, capped, self_normalised, marginal, order_free, cascade,
    pick, marginal_pick, state_marginal, state_marginal_pick, direct, doubly_robust, weighted_doubly_robust, and the
    doubly robust forms marginal_doubly_robust (OffCEM), order_free_doubly_robust, cascade_doubly_robust,
    pick_doubly_robust, marginal_pick_doubly_robust, state_marginal_doubly_robust and
    state_marginal_pick_doubly_robust. The default is self_normalised for sampled lists on a log with exact propensities
    (with --served: pick), else direct. Estimates of estimators chosen by name are never withheld."""
    gamma: float = 1.0
    """Discount per decision."""
    play: Literal["sample", "topk"] = "sample"
    """Whether policies sample their lists or show their top k. Policies without probabilities always show the top k."""
    k: Annotated[int | None, unset("INT"), tyro.conf.arg(aliases=["-k"])] = None
    """Items per list. The default is the length of the logged lists, or 1 for a log of picks."""
    temperature: float = 1.0
    """Softmax temperature of sampled lists; values below 1 make likely items more likely."""
    blend: float = 1.0
    """Share of decisions, chosen at random, that the policy makes; the logging policy makes the others. Small shares
    stay close to the log and are easier to estimate. Only for estimators without Q."""
    certify: bool = False
    """Find the largest share of the traffic that each policy may get: the share whose estimate is trusted and whose
    interval is above the logged reward. A share is the probability with which the policy makes a decision, as for
    --blend. All intervals hold together with 95 %. Needs exact propensities."""
    shares: str = ""
    """With --certify: the shares to consider, separated by commas. The default is 0.05, 0.1, 0.2, …, 1."""
    temperatures: str = ""
    """With --certify: sample the policies at each of these temperatures, separated by commas, such as 2,1,0.5."""
    served: Annotated[Path | None, unset("RUN")] = None
    """The run that served the log by sampling its lists. It allows weights by picks or item clusters instead of whole
    lists, which vary much less; the default estimator is then pick. Its probabilities must equal the logged
    propensities."""
    served_temperature: float = 1.0
    """With --served: the softmax temperature at which its lists were sampled."""
    reward: tuple[str, ...] = ()
    """Reward of a behaviour, for example --reward cart=2. May be repeated. The default is the reward of the runs."""
    cap: Annotated[float | None, unset("NUMBER")] = None
    """Largest importance weight; larger weights are clipped to it."""
    refits: int = 4
    """Number of additional fits of Q to resampled sessions, for the interval of the direct estimator; 0 is faster but
    gives no interval."""
    updates: int = 2000
    """Updates per fit of Q, also for value@5."""
    jobs: Annotated[int | None, unset("NUMBER")] = None
    """Number of processes that fit Q concurrently on a CPU, with --play topk. The default is the number of threads that
    PyTorch uses, but at most 8. Estimates agree up to rounding."""
    table: tuple[str, ...] = ()
    """Estimate from a table of decisions instead of a dataset: CSV, JSON lines or Parquet, one decision per row. May be
    repeated. With --probabilities or --policy-log; no runs and no training are needed."""
    format: Literal["decisions", "open-bandit"] = "decisions"
    """With --table: `decisions` reads the columns that the next options name. `open-bandit` reads a campaign of the
    Open Bandit Dataset: its folder or its CSV file."""
    probabilities: str = ""
    """With --table: the columns with the probability that each policy gives to what was shown, separated by commas.
    Each column is a policy."""
    policy_log: tuple[str, ...] = ()
    """With --table: evaluate the policy that wrote this other table, from its propensities. May be repeated."""
    match: str = ""
    """With --policy-log: the columns on which the propensities depend, separated by commas, such as item,slot. The
    policy's probability of a row is the harmonic mean of its propensities in its own rows with the same values."""
    propensity: Annotated[str | None, unset("COLUMN")] = None
    """With --table: the column with the probability of what was shown (default: `propensity`)."""
    session: Annotated[str | None, unset("COLUMN")] = None
    """With --table: the column with the session (default: `session`). Without it, each row is a session."""
    time: Annotated[str | None, unset("COLUMN")] = None
    """With --table: the column that orders the decisions of a session (default: `time`). Without it, the rows do."""
    reward_column: Annotated[str | None, unset("COLUMN")] = None
    """With --table: the column with the reward (default: `reward`). Without it, `behaviour` and --reward decide."""
    seed: int = 0
    """Seed of the resampling and the fits."""
    device: str = "auto"
    """Device: auto, cpu, cuda, …"""
    engine: EngineName = "local"
    """Where policies are applied to the log and Q is fitted. `ray`: on a Ray cluster, whose machines have the folders
    of the runs and of the dataset."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
    picture: Annotated[Path | None, unset("FILE")] = None
    """Also save a forest plot to this .png, .svg or .pdf file."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Run the command."""
        from offrec.estimation.estimate import estimate
        from offrec.runs.loading import load

        if self.picture is not None and self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--picture must end in .png, .svg or .pdf; got {self.picture}.")
        if self.table and self.engine == "ray":
            raise InputError("--engine ray has no effect with --table, which contains all probabilities; omit it.")
        if self.jobs is not None and self.engine == "ray":
            raise InputError("--jobs has no effect with --engine ray, which fits Q on the cluster; omit it.")
        engine = self.ray.connect(self.engine)
        seen: list[str] = []
        if self.table:
            result = self._estimate_table()
        else:
            self._check_without_table()
            policies, dataset, options = self._load()
            seen = self._seen_note(dataset)
            if seen and options.split is None:
                reason = "A policy was, or may have been, trained on sessions of this log: only test sessions are used."
                options = replace(options, split="test", split_reason=reason)
            served = None if self.served is None else load(self.served, self.device)
            remote = None if engine is None else partial(self._passes, engine, policies, dataset.path)
            result = estimate(policies, dataset, options, console_for(self.json), served=served, remote=remote)
        if self.picture is not None:
            from offrec.estimation.forest_plot import draw_forest_plot

            draw_forest_plot(result, self.picture)
        if self.json:
            print_json(result.as_json() | {"notes": [*seen, *result.notes]})
        else:
            print_result(result)
            print(*seen, sep="\n", end="\n" if seen else "")

    def _passes(
        self,
        engine: "RayEngine",
        policies: "dict[str, Policy]",
        dataset: Path,
        name: str,
        split: "EvaluationSplit",
        options: "EstimateOptions",
    ) -> "RemotePasses":
        """Return the passes of a policy on the cluster."""
        from offrec.estimation.estimate import SERVED
        from offrec.estimation.partitioned import RemotePasses

        device = self.ray.device(self.device)
        run = self.served if name == SERVED else Path(name) if name in map(str, self.runs) else None
        if run is None:
            load = partial(load_baseline, name, dataset.resolve(), device, policies[name].history)
        else:
            load = partial(load_run, run.resolve(), device)
        return RemotePasses(engine, load, split, options)

    def _estimate_table(self) -> "EstimateResult":
        from offrec.estimation.outside import estimate_table

        for name in ("runs", "dataset", "baselines", "split", "k", "served"):
            if getattr(self, name):
                option = "RUN" if name == "runs" else f"--{name}"
                raise InputError(f"{option} cannot be used with --table, which contains all probabilities; omit one.")
        for name in ("play", "temperature", "temperatures", "served_temperature", "refits", "updates", "jobs"):
            if getattr(self, name) != getattr(Estimate, name):
                raise InputError(f"--{name.replace('_', '-')} has no effect with --table; omit it.")
        if self.match and not self.policy_log:
            raise InputError("--match has no effect without --policy-log; add it or omit --match.")
        if self.policy_log and not (self.match or self.format == "open-bandit"):
            raise InputError("--policy-log needs --match, the columns on which its propensities depend.")
        paths, columns, policies = self._table_columns()
        names = split_ids(self.probabilities)
        console = console_for(self.json)
        return estimate_table(
            paths, names, self._estimate_options(), columns=columns, policies=policies, console=console
        )

    def _table_columns(self) -> "tuple[list[str], TableColumns, list[LoggedPolicy]]":
        """Return the tables, the names of their columns, and the policies that other tables were written by."""
        from offrec.data.decision_table import LoggedPolicy, TableColumns
        from offrec.data.formats import open_bandit

        given = {name: getattr(self, name) for name in ("propensity", "session", "time") if getattr(self, name)}
        match = tuple(split_ids(self.match))
        if self.format == "decisions":
            logged = [LoggedPolicy(path, (path,), match) for path in self.policy_log]
            return list(self.table), TableColumns(reward=self.reward_column, **given), logged
        if given or self.reward_column:
            raise InputError(
                "--format open-bandit has fixed columns; omit --propensity, --session, --time and --reward-column."
            )
        tables = [str(source.path) for source in open_bandit.find(self.table)]
        logged = [
            LoggedPolicy(path, (str(open_bandit.find([path])[0].path),), match or open_bandit.CONTEXT)
            for path in self.policy_log
        ]
        return tables, open_bandit.TABLE_COLUMNS, logged

    def _check_without_table(self) -> None:
        for name in ("probabilities", "policy_log", "match", "propensity", "session", "time", "reward_column"):
            if getattr(self, name):
                raise InputError(f"--{name.replace('_', '-')} needs --table FILE, the table that has the column.")
        if self.served is None and self.served_temperature != Estimate.served_temperature:
            raise InputError("--served-temperature has no effect without --served; add it or omit the temperature.")
        if self.format != "decisions":
            raise InputError("--format needs --table; prepare a dataset with `offrec prepare --format open-bandit`.")

    def _load(self) -> "tuple[dict[str, Policy], Dataset, EstimateOptions]":
        """Load everything that the options name. Fast checks run first."""
        dataset = self._open_dataset()
        options = self._estimate_options()
        return self._load_policies(dataset), dataset, options

    def _open_dataset(self) -> "Dataset":
        from offrec.data.dataset import Dataset
        from offrec.data.vocabulary import match_ids, read_catalogue
        from offrec.runs.folder import read_run
        from offrec.runs.loading import open_dataset

        if not self.runs and (self.dataset is None or not self.baselines):
            raise InputError("No policies were given; pass run folders, or --baselines NAMES --dataset DATASET.")
        if self.dataset is None:
            hashes = [read_run(run)["data_hash"] for run in self.runs]
            for run, data_hash in zip(self.runs, hashes, strict=True):
                if data_hash != hashes[0]:
                    raise InputError(
                        f"{self.runs[0]} and {run} were trained on different datasets; estimate them separately or "
                        "pass --dataset."
                    )
            return open_dataset(self.runs[0])
        dataset = Dataset.open(self.dataset)
        for run in self.runs:
            if not run.exists():
                raise InputError(f"{run} does not exist; give a run folder from `offrec train`.")
            if (match_ids(dataset.vocabulary, read_catalogue(run)) < 0).any():
                raise InputError(
                    f"{dataset.path} has another catalogue than {run}: it lacks some of its items; prepare its log "
                    f"again with --catalogue {run} --keep-new-items."
                )
        return dataset

    def _seen_note(self, dataset: "Dataset") -> list[str]:
        """Return a sentence for each run that was, or may have been, trained on sessions that this log contains too."""
        from offrec.data.dataset import Dataset
        from offrec.estimation.seen_sessions import count_seen_sessions
        from offrec.runs.folder import read_run

        notes = []
        for run in self.runs:
            facts = read_run(run)
            if facts["data_hash"] == dataset.meta["data_hash"]:
                continue
            earlier = Dataset.open(facts["dataset"]) if Path(facts["dataset"]).exists() else None
            if earlier is None or earlier.meta["data_hash"] != facts["data_hash"]:
                problem = "no longer exists" if earlier is None else "now contains other data"
                notes.append(
                    f"{run} was trained on {facts['dataset']}, which {problem}. Whether {dataset.path} contains its "
                    "training sessions is unknown; if it does, the estimate may be too high."
                )
                continue
            total, test = (count_seen_sessions(dataset, split, earlier) for split in ("all", "test"))
            if total:
                notes.append(
                    f"{run} was trained on {total:,} sessions of {dataset.path}, {test:,} of them test sessions; its "
                    "estimate may be too high. Prepare a log of later sessions."
                )
        return notes

    def _load_policies(self, dataset: "Dataset") -> "dict[str, Policy]":
        from offrec.baselines import baseline
        from offrec.runs.loading import load, pick_device

        policies: dict[str, Policy] = {str(run): load(run, self.device) for run in self.runs}
        histories = {policy.history for policy in policies.values()}
        # value@5 depends on the history length: with different lengths, the suggested order would compare different
        # critics.
        shared = {"history": histories.pop()} if len(histories) == 1 else {}
        for name in split_ids(self.baselines):
            policies[name] = baseline(name, dataset, device=pick_device(self.device), **shared)
        return policies

    def _estimate_options(self) -> "EstimateOptions":
        from offrec.estimation.decision_values import ValueOptions
        from offrec.estimation.options import EstimateOptions
        from offrec.runs.folder import read_run
        from offrec.runs.options import build_options

        runs: list[RunOptions] = [build_options(read_run(run)["options"]) for run in self.runs]
        reward = parse_rewards(self.reward)
        if not reward and any(run.reward != runs[0].reward for run in runs):
            raise InputError("The runs have different rewards; choose one, for example --reward cart=1.")
        options = EstimateOptions(
            split=self.split,
            estimators=tuple(split_ids(self.estimator)),
            gamma=self.gamma,
            play=self.play,
            k=self.k,
            temperature=self.temperature,
            blend=self.blend,
            certify=self.certify,
            served_temperature=self.served_temperature,
            shares=self._shares(),
            temperatures=_parse_numbers("--temperatures", self.temperatures),
            reward=reward or (runs[0].reward if runs else {}),
            cap=self.cap,
            refits=self.refits,
            jobs=self.jobs,
            seed=self.seed,
            values=ValueOptions(updates=self.updates, seed=self.seed),
        )
        return replace(options, network=runs[0].network) if runs else options

    def _shares(self) -> tuple[float, ...]:
        from offrec.estimation.certify import SHARES

        if self.shares and not self.certify:
            raise InputError("--shares has no effect without --certify; add it or omit --shares.")
        return _parse_numbers("--shares", self.shares) or SHARES


def _parse_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in split_ids(text))
    except ValueError as error:
        raise InputError(f"{option} must be numbers separated by commas, such as 0.1,0.3; got {text!r}.") from error
