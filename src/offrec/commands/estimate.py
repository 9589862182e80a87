"""`offrec estimate`: what policies would earn, from the log alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, ids, print_json, print_table, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.estimation.estimate import EstimateOptions, EstimateResult, PolicyEstimate
    from offrec.estimation.interval import Interval
    from offrec.policy import Policy

NOTHING = "–"
BY = "estimator, play"


@dataclass(frozen=True)
class Estimate:
    """Estimate what policies would earn in a session, from the log alone, beside the policy that made it; with an
    interval and a verdict: trust, caution or do not trust. Of several also an order: which to try first, by the mean of
    their ranks by the direct estimate and by value@5 (what a policy's best five were worth to the log's visitors).

    Examples: offrec estimate runs/sl runs/dc --picture forest.png
              offrec estimate runs/dc --estimator all --gamma 0.9
              offrec estimate --baselines recent,markov --dataset data/shop
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Folders made by `offrec train`, all on one dataset or at least of one catalogue."""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """Another log to judge by, with the runs' catalogue (`offrec prepare --catalogue RUN`), such as what a server has
    logged since; or where the runs' own dataset is now. Needed for baselines alone."""
    baselines: str = ""
    """Policies without training, separated by commas: popular, recent, markov, sknn, vsknn. They see as many of the
    last events as the runs do, where all runs see alike many."""
    split: Literal["test", "validation"] = "test"
    """The sessions to judge by. Values are learned from the training sessions."""
    estimator: str = ""
    """One or several, separated by commas, or all: importance, capped, self_normalised, marginal, direct,
    doubly_robust, weighted_doubly_robust. By default the recommended one, direct. One that is named is shown in any
    case."""
    gamma: float = 1.0
    """What a reward one step later is worth."""
    play: Literal["sample", "topk"] = "sample"
    """How lists are made: drawn from the policy, or its best k. A policy that is no distribution plays its best k."""
    k: Annotated[int | None, unset("INT"), tyro.conf.arg(aliases=["-k"])] = None
    """Items on a list; by default as many as the log's lists have, and one where the log has picks only."""
    temperature: float = 1.0
    """Of the policy that is drawn from: below 1 it is surer of itself."""
    blend: float = 1.0
    """Judge what happens if only this share of the decisions is handed to the policy, at random, and the others are
    left to the one that logged: nearer to the log, and so easier to know. By weights only."""
    reward: tuple[str, ...] = ()
    """The reward of a behaviour, as often as needed: --reward cart=2. By default the runs' own."""
    cap: Annotated[float | None, unset("NUMBER")] = None
    """Cut weights above this."""
    refits: int = 4
    """Fit values again to so many resamples of the sessions, for an interval of the direct method; 0 is faster
    and gives none."""
    updates: int = 2000
    """Updates of each fit of values, that of value@5 too."""
    seed: int = 0
    """Seed of resamples and of the fits."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    picture: Annotated[Path | None, unset("FILE")] = None
    """Also draw all of it: a .png, .svg or .pdf."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.estimation.estimate import estimate

        if self.picture is not None and self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--picture is {self.picture}; its name must end in .png, .svg or .pdf.")
        dataset = self._dataset()
        asked = self._asked()
        policies = self._policies(dataset)
        found = estimate(policies, dataset, asked, console_for(self.json))
        if self.picture is not None:
            from offrec.estimation.forest_plot import draw_forest_plot

            draw_forest_plot(found, self.picture)
        if self.json:
            print_json(found.as_json() | {"notes": _notes(dataset)})
        else:
            _print(found)

    def _dataset(self) -> "Dataset":
        from offrec.data.dataset import Dataset
        from offrec.runs.folder import read_run
        from offrec.runs.loading import open_dataset

        if not self.runs and (self.dataset is None or not self.baselines):
            raise InputError("Give the folders of runs, or --baselines NAMES --dataset DATASET.")
        if not self.runs:
            return Dataset.open(str(self.dataset))
        if self.dataset is not None:
            return _same_items(Dataset.open(self.dataset), self.runs)
        hashes = [read_run(run)["data_hash"] for run in self.runs]
        for run, data_hash in zip(self.runs, hashes, strict=True):
            if data_hash != hashes[0]:
                raise InputError(
                    f"{self.runs[0]} and {run} were trained on different datasets, so no log can compare them; "
                    "estimate them apart."
                )
        return open_dataset(self.runs[0])

    def _policies(self, dataset: "Dataset") -> "dict[str, Policy]":
        from offrec.baselines import baseline
        from offrec.runs.loading import load, pick_device

        found: dict[str, Policy] = {str(run): load(run, self.device) for run in self.runs}
        device, histories = pick_device(self.device), {policy.history for policy in found.values()}
        # Of another history Q of the log would be another too, and the order would compare what two critics say.
        shared = {"history": histories.pop()} if len(histories) == 1 else {}
        for name in ids(self.baselines):
            found[name] = baseline(name, dataset, device=device, **shared)
        return found

    def _asked(self) -> "EstimateOptions":
        from dataclasses import replace

        from offrec.estimation.decision_values import ValueOptions
        from offrec.estimation.estimate import EstimateOptions
        from offrec.runs.folder import read_run
        from offrec.runs.options import build_options

        reward = _rewards(self.reward)
        options = [build_options(read_run(run)["options"]) for run in self.runs]
        if not reward and any(one.reward != options[0].reward for one in options):
            raise InputError(
                "The runs were trained for different rewards; say which count, for example --reward cart=1."
            )
        asked = EstimateOptions(
            split=self.split,
            estimators=tuple(ids(self.estimator)),
            gamma=self.gamma,
            play=self.play,
            k=self.k,
            temperature=self.temperature,
            blend=self.blend,
            reward=reward or (options[0].reward if options else {}),
            cap=self.cap,
            refits=self.refits,
            seed=self.seed,
            values=replace(ValueOptions(), updates=self.updates, seed=self.seed),
        )
        return replace(asked, network=options[0].network) if options else asked


def _same_items(dataset: "Dataset", runs: tuple[Path, ...]) -> "Dataset":
    """The dataset, if the runs know its items by the same numbers."""
    from offrec.data.vocabulary import read_catalogue

    for run in runs:
        if read_catalogue(run) != dataset.vocabulary:
            raise InputError(
                f"{dataset.path} numbers its items otherwise than {run} does; prepare its log again with "
                f"--catalogue {run}."
            )
    return dataset


def _rewards(pairs: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--reward {pair} is not of the form BEHAVIOUR=NUMBER, for example --reward cart=2.")
    return found


def _print(found: "EstimateResult") -> None:
    asked, logged = found.asked, found.logged
    discount = "not discounted" if asked.gamma == 1 else f"discounted by {asked.gamma:g} a step"
    heat = "" if asked.temperature == 1 else f", temperature {asked.temperature:g}"
    heat += "" if asked.blend == 1 else f", {asked.blend:.3g} of the decisions handed over"
    whence = f"{found.sessions:,} {asked.split} sessions of {found.dataset.path.name}"
    columns = ["policy", BY, "estimate", "95 % interval", "over logging", "value@5", "order"]
    columns += ["effective", "largest", "capped", "rare", "verdict"]
    own = ["logging", "", f"{logged.estimate:.3f}", _between(logged), *[""] * 8]
    rows = [own, *(row for one in found.policies for row in _rows(one, found))]
    alike = {row[columns.index(BY)] for row in rows[1:]}
    by = f" ({alike.pop()})" if len(alike) == 1 else ""
    # Lines are long: what nobody has, as weights of the direct method, takes no column, nor what all have alike.
    told = [n for n, name in enumerate(columns) if _tells([row[n] for row in rows]) and not (by and name == BY)]
    title = f"Reward a session{by}, {discount}{heat}, from {whence}  {found.dataset.fingerprint}"
    print_table(title, [columns[n] for n in told], [[row[n] for n in told] for row in rows])
    _explain(found)
    if found.has_lists:
        print("Propensities: the log's own.", *_notes(found.dataset), sep="\n")
    else:
        error, best = (found.calibration.get(name, float("nan")) for name in ("calibration_error", "temperature"))
        print(f"Propensities: estimated from picks (calibration error {error:.3f}, best temperature {best:.2f}).")
    for one in found.policies:
        for name, assessment in one.assessed.items():
            print(f"{one.name}, {name.replace('_', ' ')}: {assessment.verdict}: {assessment.reason}.")


def _tells(column: list[str]) -> bool:
    return any(cell not in ("", NOTHING) for cell in column)


def _explain(found: "EstimateResult") -> None:
    """Why an interval is missing, what value@5 is, and what the order is for."""
    if not all(found.has_interval(name) for one in found.policies for name in one.assessed):
        print("95 % interval: no refits, so no interval of the direct method.")
    if any(one.value is not None for one in found.policies):
        print("value@5: what a policy's best five were worth to the log's visitors, by what followed such choices.")
    if found.order:
        some = "" if len(found.order) == len(found.policies) else ", of those whose direct estimate is not withheld"
        where = " It was found on logs of picks, not of lists." if found.has_lists else ""
        if any(one.play != "topk" for one in found.policies if one.name in found.order):
            where += " It was found on policies that all play their best k (--play topk); here some are drawn from."
        print(
            f"order: which to try first, by the mean of the ranks by value@5 and by direct{some}; it says nothing of "
            f"how much they earn (docs/estimates.md).{where}"
        )


def _notes(dataset: "Dataset") -> list[str]:
    """What was left out of the log when it was prepared, and so of every estimate."""
    notes: list[str] = dataset.meta.get("decisions", {}).get("notes", [])
    return notes


def _rows(one: "PolicyEstimate", found: "EstimateResult") -> list[list[str]]:
    rows, drawn = [], "one draw" if one.k == 1 else f"{one.k} drawn"
    beside = "direct" if "direct" in one.assessed else next(iter(one.assessed))  # value@5 is the policy's: said once
    for name, assessment in one.assessed.items():
        around, difference, support = assessment.interval, one.differences[name], assessment.support
        figures = ["withheld", "", ""]
        if name in found.asked.named or not assessment.withheld:
            intervals = [_between(around), _between(difference)] if found.has_interval(name) else [NOTHING, NOTHING]
            figures = [f"{around.estimate:.3f}", *intervals]
        cheap = [_said(one.value, ".3f"), _said(found.order.get(one.name), "d")] if name == beside else ["", ""]
        measures = ((support.effective, ",.0f"), (support.largest_weight, ",.3g"), (support.capped, ".1%"))
        said = [_said(value, how) for value, how in (*measures, (support.rare, ".0%"))]
        play = drawn if one.play == "sample" else f"top {one.k}"
        rows.append([one.name, f"{name.replace('_', ' ')}, {play}", *figures, *cheap, *said, assessment.verdict])
    return rows


def _said(value: float | None, how: str) -> str:
    return NOTHING if value is None else format(value, how)


def _between(around: "Interval") -> str:
    return f"{around.low:.2f} … {around.high:.2f}"
