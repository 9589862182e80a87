"""`offrec estimate`: what policies would earn, from the log alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, ids, print_json, print_table, unset
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.data.dataset import Dataset
    from offrec.estimation.compare import Asked, Comparison, Judged
    from offrec.estimation.interval import Interval
    from offrec.policy import Policy


@dataclass(frozen=True)
class Estimate:
    """Estimate what policies would earn in a session, from the log alone, beside the policy that made it; with an
    interval and a verdict: trust, caution or do not trust.

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
    """Policies without training, separated by commas: popular, recent, markov, sknn, vsknn."""
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
    """Fit values again to so many resamples of the sessions, for an interval of the direct method; 0 is faster."""
    updates: int = 2000
    """Updates of each fit of values."""
    seed: int = 0
    """Seed of resamples and of the fits."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    picture: Annotated[Path | None, unset("FILE")] = None
    """Also draw all of it: a .png, .svg or .pdf."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.estimation.compare import estimate

        if self.picture is not None and self.picture.suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"--picture is {self.picture}; its name must end in .png, .svg or .pdf.")
        dataset = self._dataset()
        asked = self._asked()
        policies = self._policies(dataset)
        found = estimate(policies, dataset, asked, console_for(self.json))
        if self.picture is not None:
            from offrec.estimation.forest import forest

            forest(found, self.picture)
        if self.json:
            print_json(found.as_json() | {"notes": _notes(dataset)})
        else:
            _print(found)

    def _dataset(self) -> "Dataset":
        from offrec import experiment, run_folder
        from offrec.data.dataset import Dataset
        from offrec.estimation.compare import check_catalogue, check_one_dataset

        if not self.runs and (self.dataset is None or not self.baselines):
            raise InputError("Give the folders of runs, or --baselines NAMES --dataset DATASET.")
        if not self.runs:
            return Dataset.open(str(self.dataset))
        if self.dataset is not None:
            return check_catalogue(Dataset.open(self.dataset), self.runs)
        check_one_dataset(list(map(str, self.runs)), [run_folder.read(run)["data_hash"] for run in self.runs])
        return experiment.dataset_of(self.runs[0])

    def _policies(self, dataset: "Dataset") -> "dict[str, Policy]":
        from offrec import experiment
        from offrec.baselines import baseline

        found: dict[str, Policy] = {str(run): experiment.load(run, self.device) for run in self.runs}
        device = experiment.pick_device(self.device)
        for name in ids(self.baselines):
            found[name] = baseline(name, dataset, device=device)
        return found

    def _asked(self) -> "Asked":
        from dataclasses import replace

        from offrec import config, run_folder
        from offrec.estimation.compare import Asked
        from offrec.estimation.values import ValueOptions

        reward = _rewards(self.reward)
        options = [config.build(run_folder.read(run)["options"]) for run in self.runs]
        if not reward and any(one.reward != options[0].reward for one in options):
            raise InputError(
                "The runs were trained for different rewards; say which count, for example --reward cart=1."
            )
        asked = Asked(
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


def _print(found: "Comparison") -> None:
    asked, logged = found.asked, found.logged
    discount = "not discounted" if asked.gamma == 1 else f"discounted by {asked.gamma:g} a step"
    heat = "" if asked.temperature == 1 else f", temperature {asked.temperature:g}"
    heat += "" if asked.blend == 1 else f", {asked.blend:.3g} of the decisions handed over"
    whence = f"{found.sessions:,} {asked.split} sessions of {found.dataset.path.name}"
    title = f"Reward a session, {discount}{heat}, from {whence}  {found.dataset.fingerprint}"
    columns = ["policy", "estimator, play", "estimate", "95 % interval", "over logging"]
    columns += ["effective", "largest", "capped", "rare", "verdict"]
    own = ["logging", "", f"{logged.estimate:.3f}", _between(logged), *[""] * 6]
    print_table(title, columns, [own, *(row for one in found.policies for row in _rows(one, found))])
    if found.served:
        print("Propensities: the log's own.", *_notes(found.dataset), sep="\n")
    else:
        error, best = (found.calibration.get(name, float("nan")) for name in ("calibration_error", "temperature"))
        print(f"Propensities: estimated from picks (calibration error {error:.3f}, best temperature {best:.2f}).")
    for one in found.policies:
        for name, assessment in one.assessed.items():
            print(f"{one.name}, {name.replace('_', ' ')}: {assessment.verdict}: {assessment.reason}.")


def _notes(dataset: "Dataset") -> list[str]:
    """What was left out of the log when it was prepared, and so of every estimate."""
    notes: list[str] = dataset.meta.get("decisions", {}).get("notes", [])
    return notes


def _rows(one: "Judged", found: "Comparison") -> list[list[str]]:
    rows, drawn = [], "one draw" if one.k == 1 else f"{one.k} drawn"
    for name, assessment in one.assessed.items():
        around, difference, support = assessment.interval, one.differences[name], assessment.support
        figures = ["withheld", "", ""]
        if name in found.asked.named or not assessment.withheld:
            figures = [
                f"{around.estimate:.3f}",
                _between(around),
                f"{difference.estimate:+.2f} ({_between(difference)})",
            ]
        measures = ((support.effective, ",.0f"), (support.largest_weight, ",.3g"), (support.capped, ".1%"))
        said = ["–" if value is None else format(value, how) for value, how in (*measures, (support.rare, ".0%"))]
        play = drawn if one.play == "sample" else f"top {one.k}"
        rows.append([one.name, f"{name.replace('_', ' ')}, {play}", *figures, *said, assessment.verdict])
    return rows


def _between(around: "Interval") -> str:
    return f"{around.low:.2f} … {around.high:.2f}"
