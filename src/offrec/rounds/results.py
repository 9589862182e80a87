"""The results of rounds: what was earned while serving, and what each trained policy earns."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from offrec.data.json_files import load_json, read_json, verify_json, write_json
from offrec.data.schema import Anything, Flag, Maybe, Number, OneOf, Scalar, Schema, Table, Text, Whole
from offrec.errors import InputError
from offrec.rounds.options import RoundsOptions, TrainOn, parse_way
from offrec.shop.rollout import Mean

FOLDER_VERSION = 1
ADVICE = "run the rounds again in another folder"
OPTIONS, YARDSTICKS, ROUND = "rounds.json", "yardsticks.json", "round.json"
MEAN = Table({"mean": Number(), "low": Maybe(Number()), "high": Maybe(Number())})
ROUND_SCHEMA = Table(
    {"number": Whole(0), "explore": Text(), "served": MEAN, "trained": MEAN, "lists": Whole(1), "seconds": Number()}
)
STORED_OPTIONS: dict[str, Schema] = {  # `RoundsOptions.fixed`
    **dict.fromkeys(("world", "algorithm"), Text()),
    **dict.fromkeys(("seed", "sessions", "visitors", "informed_visitors"), Whole()),
    "settings": Table(others=Scalar()),
    "train_on": OneOf(get_args(TrainOn)),
    "warm_start": Flag(),
}
OPTIONS_SCHEMA = Table({"version": Whole(), "options": Table(optional=STORED_OPTIONS, others=Anything())})
YARDSTICKS_SCHEMA = Table({"logging": MEAN, "informed": Maybe(MEAN)})


@dataclass(frozen=True)
class Round:
    """One round: a policy served and wrote a log, and the next policy was trained."""

    number: int  # 0: served by the logging policy
    explore: str  # the way of exploring; "logging" for round 0
    served: Mean  # reward per session while serving
    trained: Mean  # true reward per session of the best k items of the policy trained after serving
    lists: int  # lists in the log of this round
    seconds: float  # that the round took

    def as_json(self) -> dict[str, Any]:
        """Return the content of round.json."""
        return {**asdict(self), "served": self.served.as_json(), "trained": self.trained.as_json()}


@dataclass(frozen=True)
class RoundsResults:
    """All finished rounds of a folder."""

    options: RoundsOptions
    rounds: tuple[Round, ...]  # round 0 first, then by way of exploring
    logging: Mean | None = None  # what the shop's own policies earn from the visitors that measure trained policies
    informed: Mean | None = None

    @property
    def first(self) -> Round | None:
        """Round 0, if it is finished."""
        return next((one for one in self.rounds if one.number == 0), None)

    def of_way(self, explore: str) -> list[Round]:
        """Return the rounds of a way of exploring, beginning with round 0."""
        return [one for one in self.rounds if one.number == 0 or one.explore == explore]

    def last(self, explore: str) -> Round:
        """Return the last finished round of a way of exploring."""
        return self.of_way(explore)[-1]

    def as_json(self) -> dict[str, Any]:
        """Return all results as a JSON object."""
        yardsticks = {"logging": self.logging, "informed": self.informed}
        return {
            "options": {**self.options.fixed(), "rounds": self.options.rounds, "explore": list(self.options.explore)},
            "yardsticks": {name: mean and mean.as_json() for name, mean in yardsticks.items()},
            "rounds": [one.as_json() for one in self.rounds],
        }


def read_results(folder: str | Path) -> RoundsResults:
    """Read the finished rounds of a folder.

    Raises:
        InputError: If it is not a folder of rounds or a file is damaged.
    """
    folder = Path(folder)
    fixed = read_options(folder)
    if fixed is None:
        raise InputError(f"{folder} is not a folder of rounds: it has no {OPTIONS}; create one with offrec rounds.")
    rounds = [read_round(path) for path in sorted(folder.glob(f"*/*/{ROUND}"))]
    ways = tuple(dict.fromkeys(one.explore for one in rounds if one.number))
    last = max((one.number for one in rounds), default=0)
    return collect_results(folder, RoundsOptions(**fixed, explore=ways or ("never",), rounds=last))


def collect_results(folder: Path, options: RoundsOptions) -> RoundsResults:
    """Read the finished rounds of these options."""
    paths = [round_folder(folder, None, 0)]
    paths += [round_folder(folder, way.name, number) for way in options.ways for number in range(1, options.rounds + 1)]
    rounds = tuple(read_round(path / ROUND) for path in paths if (path / ROUND).exists())
    try:
        stored = read_json(folder / YARDSTICKS, YARDSTICKS_SCHEMA, advice=ADVICE)
    except FileNotFoundError as error:
        if rounds:  # they are measured before the first round
            raise InputError(f"{folder / YARDSTICKS} does not exist; {ADVICE}.") from error
        stored = {}
    means = {name: _mean(value) for name, value in stored.items() if value is not None}
    return RoundsResults(options, rounds, **means)


def round_folder(folder: Path, explore: str | None, number: int) -> Path:
    """Return the folder of a round; round 0 belongs to all ways of exploring."""
    return folder / ("start" if explore is None else parse_way(explore).folder) / f"round-{number}"


def read_round(path: Path) -> Round:
    """Read a round.json.

    Raises:
        InputError: If it is damaged, or belongs to the folder of another round.
    """
    content = read_json(path, ROUND_SCHEMA, advice=ADVICE)
    explore = None if content["number"] == 0 else content["explore"]
    if round_folder(path.parents[2], explore, content["number"]) != path.parent:
        raise InputError(f"{path} is the result of another round ({content['explore']} {content['number']}); {ADVICE}.")
    return Round(**{**content, "served": _mean(content["served"]), "trained": _mean(content["trained"])})


def read_options(folder: Path) -> dict[str, Any] | None:
    """Return the options with which a folder was created, or None if it contains no rounds.

    Raises:
        InputError: If the file is damaged or belongs to another version.
    """
    path = folder / OPTIONS
    try:
        content = load_json(path, advice=ADVICE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    content = verify_json(path, content, OPTIONS_SCHEMA, advice=ADVICE)
    if content["version"] != FOLDER_VERSION or content["options"].keys() != RoundsOptions().fixed().keys():
        raise InputError(f"{folder} was written by another version of offrec; {ADVICE}.")
    options: dict[str, Any] = content["options"]
    return options


def write_options(folder: Path, options: RoundsOptions) -> None:
    """Store the options of a folder."""
    write_json(folder / OPTIONS, {"version": FOLDER_VERSION, "options": options.fixed()})


def _mean(stored: dict[str, Any]) -> Mean:
    mean, low, high = (stored[name] for name in ("mean", "low", "high"))
    return Mean(mean, float("-inf") if low is None else low, float("inf") if high is None else high)
