"""`offrec estimate`: estimate what policies would earn, from a log alone."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, parse_rewards, print_json, print_table, significant, split_ids, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.estimation.interval import Interval
    from offrec.estimation.options import EstimateOptions
    from offrec.estimation.result import EstimateResult, PolicyEstimate
    from offrec.estimation.verdict import Assessment
    from offrec.policy import Policy
    from offrec.runs.options import RunOptions

DASH = "–"
LEGEND = {
    "estimate": "reward per session; `withheld` if the log has too little support to show a number",
    "95 % interval": "of the estimate; – for the direct estimator without refits",
    "difference": "estimate minus what the logging policy earned on the same sessions, 95 % interval",
    "value@5": "what the policy's top five items were worth to the visitors of the log (--gamma does not apply)",
    "order": "which policy to try first: mean of the ranks by value@5 and by direct; not a measure of reward",
    "effective": "number of on-policy sessions with the same information as the weighted log",
    "largest": "largest importance weight",
    "capped": "share of the decisions whose weight was capped",
    "rare": "share of the policy's choices that the log rarely contains",
    "verdict": "trust, caution or do not trust",
    "reasons": "diagnostics beyond a limit, most severe first; explained below",
}


@dataclass(frozen=True)
class Estimate:
    """Estimate what policies would earn per session, from a log alone.

    Prints for each policy an estimate, its 95 % interval, a verdict (trust, caution or do not trust) and the reasons.
    For several policies it also suggests which one to try first.

    Examples: offrec estimate runs/sl runs/dc --picture forest.png
              offrec estimate runs/dc --estimator all --gamma 0.9
              offrec estimate --baselines recent,markov --dataset data/shop
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders written by `offrec train`, with the same catalogue."""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The log to estimate from, if it is not the dataset of the runs. It must have their catalogue (`offrec prepare
    --catalogue RUN`). Required if only baselines are estimated."""
    baselines: str = ""
    """Further baselines to estimate, separated by commas, such as recent,markov. They use the history length of the
    runs if all runs have the same one."""
    split: Annotated[Literal["test", "validation", "all"] | None, unset("test|validation|all")] = None
    """The sessions to estimate from. The default is all sessions if the log has exact propensities, no policy was
    trained on it and no Q is fitted, else the test sessions. Q is fitted to the training sessions."""
    estimator: str = ""
    """Estimators, separated by commas, or all: importance, capped, self_normalised, marginal, direct, doubly_robust,
    weighted_doubly_robust. The default is self_normalised for sampled lists on a log with exact propensities, else
    direct. Estimates of estimators chosen by name are never withheld."""
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
    reward: tuple[str, ...] = ()
    """Reward of a behaviour, for example --reward cart=2. May be repeated. The default is the reward of the runs."""
    cap: Annotated[float | None, unset("NUMBER")] = None
    """Largest importance weight; larger weights are clipped to it."""
    refits: int = 4
    """Number of additional fits of Q to resampled sessions, for the interval of the direct estimator; 0 is faster but
    gives no interval."""
    updates: int = 2000
    """Updates per fit of Q, also for value@5."""
    seed: int = 0
    """Seed of the resampling and the fits."""
    device: str = "auto"
    """Device: auto, cpu, cuda, …"""
    picture: Annotated[Path | None, unset("FILE")] = None
    """Also save a forest plot to this .png, .svg or .pdf file."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Run the command."""
        from offrec.estimation.estimate import estimate

        if self.picture is not None and self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--picture must end in .png, .svg or .pdf; got {self.picture}.")
        policies, dataset, options = self._load()
        seen = self._seen_note(dataset)
        if seen and options.split is None:
            options = replace(options, split="test")
        result = estimate(policies, dataset, options, console_for(self.json))
        if self.picture is not None:
            from offrec.estimation.forest_plot import draw_forest_plot

            draw_forest_plot(result, self.picture)
        if self.json:
            print_json(result.as_json() | {"notes": [*seen, *_dataset_notes(dataset)]})
        else:
            print_result(result)
            print(*seen, sep="\n", end="\n" if seen else "")

    def _load(self) -> "tuple[dict[str, Policy], Dataset, EstimateOptions]":
        """Load everything that the options name. Fast checks run first."""
        dataset = self._open_dataset()
        options = self._estimate_options()
        return self._load_policies(dataset), dataset, options

    def _open_dataset(self) -> "Dataset":
        from offrec.data.dataset import Dataset
        from offrec.data.vocabulary import read_catalogue
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
            if read_catalogue(run) != dataset.vocabulary:
                raise InputError(
                    f"{dataset.path} has another catalogue than {run}; prepare its log again with --catalogue {run}."
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
            reward=reward or (runs[0].reward if runs else {}),
            cap=self.cap,
            refits=self.refits,
            seed=self.seed,
            values=ValueOptions(updates=self.updates, seed=self.seed),
        )
        return replace(options, network=runs[0].network) if runs else options


def print_result(result: "EstimateResult") -> None:
    """Print the table of all estimates, its legend and the source of the propensities."""
    options, dataset = result.options, result.dataset
    settings = [f"{result.sessions:,} {result.split} sessions of {dataset.path.name}"]
    settings += [f"γ = {options.gamma:g}"] if options.gamma != 1 else []
    settings += [f"temperature {options.temperature:g}"] if options.temperature != 1 else []
    settings += [f"blend {options.blend:g}"] if options.blend != 1 else []
    columns = ["policy", "estimator", "lists", *LEGEND]
    rows = [["logging policy", "", "", *_numbers(result.logged), *[""] * (len(LEGEND) - 2)]]
    for policy in result.policies:
        rows += [_row(policy, name, result) for name in policy.assessments]
    # Omit columns without values, such as the weights of the direct estimator.
    used = [index for index in range(len(columns)) if any(row[index] not in ("", DASH) for row in rows)]
    title = f"Reward per session, {', '.join(settings)}  {dataset.fingerprint}"
    print_table(title, [columns[index] for index in used], [[row[index] for index in used] for row in rows])
    _print_legend(result, [columns[index] for index in used])
    print(f"Sessions: {result.split}. {result.sessions_note}")
    if _is_weighted_estimate_withheld(result):
        print("For a withheld estimate, the log contains too few of the policy's lists; try --estimator direct.")
    if result.has_propensities:
        print("Propensities: logged.", *_dataset_notes(dataset), sep="\n")
    else:
        names = ("calibration_error", "temperature")
        error, temperature = (result.calibration.get(name, float("nan")) for name in names)
        print(f"Propensities: estimated (calibration error {error:.3f}, best temperature {temperature:.2f}).")


def _is_weighted_estimate_withheld(result: "EstimateResult") -> bool:
    """Return whether no estimator was chosen and the weighted estimate of a policy is withheld."""
    if result.options.estimators:
        return False
    return any(not result.is_shown(one) for policy in result.policies for one in policy.assessments.values())


def _print_legend(result: "EstimateResult", columns: list[str]) -> None:
    """Explain the columns of the table and the codes of the reasons that occur in it."""
    from offrec.estimation.verdict import TEXTS

    entries = [(column, LEGEND[column]) for column in columns if column in LEGEND]
    used = {
        reason.code
        for policy in result.policies
        for assessment in policy.assessments.values()
        for reason in assessment.reasons
    }
    entries += [(code, text) for code, text in TEXTS.items() if code in used]
    width = max(len(name) for name, _ in entries)
    print("\n".join(f"{name:{width}}  {text}" for name, text in entries))


def _row(policy: "PolicyEstimate", estimator: str, result: "EstimateResult") -> list[str]:
    """Return the cells of one estimate. Only the first row of a policy shows its value@5 and order."""
    assessment, support = policy.assessments[estimator], policy.assessments[estimator].support
    is_first = estimator == next(iter(policy.assessments))
    order = result.suggested_order.get(policy.name)
    lists = f"top {policy.k}" if policy.play == "topk" else f"sample {policy.k}"
    return [
        policy.name,
        estimator.replace("_", " "),
        lists,
        *_estimate_cells(assessment, policy.differences[estimator], result),
        significant(policy.value_at_5) if is_first else "",
        (DASH if order is None else str(order)) if is_first else "",
        DASH if support.effective_sessions is None else f"{support.effective_sessions:,.0f}",
        significant(support.largest_weight),
        DASH if support.capped_share is None else f"{support.capped_share:.1%}",
        DASH if support.rare_share is None else f"{support.rare_share:.0%}",
        assessment.verdict,
        ", ".join(reason.short for reason in assessment.reasons),
    ]


def _estimate_cells(assessment: "Assessment", difference: "Interval", result: "EstimateResult") -> list[str]:
    """Return the estimate, its interval and the interval of the difference from the logging policy."""
    if not result.is_shown(assessment):
        return ["withheld", "", ""]
    if not result.has_interval(assessment.estimator):
        return [significant(assessment.interval.estimate), DASH, DASH]
    return [*_numbers(assessment.interval), _numbers(difference)[1]]


def _numbers(interval: "Interval") -> list[str]:
    """Return the estimate and its interval, rounded according to the width of the interval."""
    width = interval.high - interval.low
    estimate, low, high = (
        significant(value, 2 if width else 3, scale=width) for value in (interval.estimate, interval.low, interval.high)
    )
    return [estimate, f"{low} … {high}"]


def _dataset_notes(dataset: "Dataset") -> list[str]:
    """Return the notes about data that was excluded when the log was prepared."""
    notes: list[str] = dataset.meta.get("decisions", {}).get("notes", [])
    return notes
