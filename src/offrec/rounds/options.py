"""The options of `offrec rounds`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.shop.exploration import Exploration
from offrec.shop.worlds import get_world

TrainOn = Literal["served", "all", "newest"]


@dataclass(frozen=True)
class WayOfExploring:
    """How the trained policies of all rounds explore.

    Args:
        name: The text that `parse_way` reads, such as `blend:0.1`.
        exploration: How lists are made.
        with_last: For a blend: whether the previous policy is that of the round before, instead of the shop's logging
            policy.
    """

    name: str
    exploration: Exploration
    with_last: bool = False

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.name.replace(":", "-")


def _blend(share: float) -> Exploration:
    return Exploration("blend", share=share)


# Name → how to build the exploration from a number, the default number, and the type of the number.
WAYS: dict[str, tuple[Callable[[Any], Exploration], Any, type]] = {
    "never": (lambda _: Exploration("topk"), None, type(None)),
    "blend": (_blend, 0.1, float),
    "blend-last": (_blend, 0.1, float),
    "places": (lambda j: Exploration("topk", places=j), 1, int),
    "policy-places": (lambda j: Exploration("topk", places=j, places_from="policy"), 1, int),
    "sample": (lambda t: Exploration("sample", temperature=t), 1.0, float),
}
HELP = "never, blend:SHARE, blend-last:SHARE, places:N, policy-places:N or sample:TEMPERATURE"


def parse_way(text: str) -> WayOfExploring:
    """Read a way of exploring: a name, or a name and a number such as `blend:0.1`.

    Raises:
        InputError: If the name is unknown or the number is out of range.
    """
    name, colon, number = text.strip().partition(":")
    if name not in WAYS:
        raise InputError(f"--explore {name!r} is not known; use {HELP}.")
    build, default, kind = WAYS[name]
    if not colon:
        value = default
    elif default is None:
        raise InputError(f"--explore {name} takes no number; got {text!r}.")
    else:
        try:
            value = kind(number)
        except ValueError as error:
            expected = "a whole number" if kind is int else "a number"
            raise InputError(f"--explore {name} needs {expected} after the colon; got {number!r}.") from error
    label = name if value is None else f"{name}:{value:g}"
    try:
        return WayOfExploring(label, build(value), name == "blend-last")
    except InputError as error:
        raise InputError(f"--explore {text.strip()} is not valid: {error}") from error


@dataclass(frozen=True)
class RoundsOptions:
    """What is served, logged and trained in every round.

    Round 0 is served by the shop's logging policy. In each later round, the policy of the round before serves new
    visitors and explores.

    Args:
        world: The world of the shop.
        seed: The seed of the shop and of the visitors of round 0.
        sessions: The number of visitors per round.
        rounds: The number of rounds that trained policies serve.
        explore: The ways of exploring; see `parse_way`. Each has its own rounds after round 0.
        algorithm: The learner.
        settings: Options of the learner under dotted keys.
        train_on: Train on all logs that trained policies wrote, on these and the log of round 0, or on the newest log.
        warm_start: Whether policies start from the weights of the round before, instead of new ones.
        visitors: New visitors that measure what each trained policy earns by its best k items.
        informed_visitors: How many of these visitors the shop's policy `informed` serves; 0 leaves it out.
        device: Where to train and to compute lists. Visitors are simulated on the CPU.

    Raises:
        InputError: If a value is out of range.
    """

    world: str = "demo"
    seed: int = 0
    sessions: int = 20_000
    rounds: int = 3
    explore: tuple[str, ...] = ("never", "blend")
    algorithm: str = "user-model"
    settings: Mapping[str, Any] = field(default_factory=dict)
    train_on: TrainOn = "served"
    warm_start: bool = True
    visitors: int = 4000
    informed_visitors: int = 1000
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, minimum in (("seed", 0), ("sessions", 1), ("rounds", 0), ("visitors", 1), ("informed_visitors", 0)):
            if getattr(self, name) < minimum:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} must be at least {minimum}; got {getattr(self, name)}.")
        if self.informed_visitors > self.visitors:
            raise InputError(
                f"--informed-visitors must be at most --visitors {self.visitors}; got {self.informed_visitors}."
            )
        if self.algorithm not in LEARNERS:
            raise InputError(f"--algorithm must be one of {', '.join(LEARNERS)}; got {self.algorithm!r}.")
        if self.train_on not in get_args(TrainOn):
            raise InputError(f"--train-on must be one of {', '.join(get_args(TrainOn))}; got {self.train_on!r}.")
        names = [way.name for way in self.ways]
        if len(set(names)) < len(names) or not names:
            raise InputError(f"--explore needs different ways of exploring; got {', '.join(self.explore) or 'none'}.")
        k = get_world(self.world).k
        for way in self.ways:
            if way.exploration.places > k:
                raise InputError(f"--explore {way.name}: the lists of {self.world} have only {k} places.")
            if way.exploration.reads_probabilities and LEARNERS[self.algorithm].family == "planner":
                raise InputError(
                    f"--explore {way.name} needs a policy with probabilities, and {self.algorithm} has only scores; "
                    "use never, blend, blend-last or places."
                )

    @property
    def ways(self) -> tuple[WayOfExploring, ...]:
        """The ways of exploring."""
        return tuple(parse_way(text) for text in self.explore)

    def fixed(self) -> dict[str, Any]:
        """Return the options that must not change when a folder is continued."""
        values = {name: value for name, value in vars(self).items() if name not in ("explore", "rounds", "device")}
        return {**values, "settings": dict(self.settings)}
