"""What offrec knows about a learner besides its equations. Each learner's file declares one record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from offrec.algorithms.symbols import Learner
from offrec.plugins import Range, Registry, SearchSpace, Settings

Family = Literal["imitation", "mixed", "unconstrained", "constrained"]


@dataclass(frozen=True)
class LearnerRecord:
    """A learner as commands and reports see it.

    Args:
        name: The name after `--algorithm`: "dc".
        label: The name in tables and figures: "DC".
        learner: The class: a frozen dataclass of options with `needs`, `needs_reward` and `loss`.
        help: One line that says what the learner does.
        family: The group that gives the learner its colour in figures.
        presets: Settings that a preset adds for this learner: {"paper": {…}, "strong": {…}}.
        search: The settings that `offrec tune` searches, next to those searched for every learner.
        ignored: Inherited or shared options that the learner does not read, each with the reason. Setting one is
            refused.
    """

    name: str
    label: str
    learner: type[Learner]
    help: str
    family: Family = "unconstrained"
    presets: Mapping[str, Settings] = field(default_factory=dict)
    search: SearchSpace = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)


LEARNERS: Registry[LearnerRecord] = Registry("algorithm")


def register_learner(record: LearnerRecord) -> LearnerRecord:
    """Make a learner known to every command.

    Args:
        record: Its record.

    Returns:
        The same record.

    Raises:
        InputError: A learner with this name exists.

    Example:
        >>> offrec.register_learner(offrec.LearnerRecord("mine", "Mine", Mine, "My own learner."))
    """
    return LEARNERS.register(record)


# Settings that several learners share.

# A policy that should earn over a whole session has to look ahead, and validation NDCG would choose it by how well it
# imitates the log. These values were chosen by true reward in the shops demo 10–13 and medium 10, 11
# (docs/evidence/defaults.md).
EARNING: dict[str, Any] = {"gamma": 0.9, "select": "last", "training.epochs": 20, "training.schedule": "linear"}
EARNING_WITH_RETURNS: dict[str, Any] = {**EARNING, "critic.returns": 0.5}
PAPER_SOFT: dict[str, Any] = {"algorithm.alpha": 1.0, "algorithm.expectation": "gumbel"}
PAPER_ACTOR_CRITIC: dict[str, Any] = {**PAPER_SOFT, "algorithm.uniform_prior": False}
SEARCH_GAMMA: SearchSpace = {"gamma": Range(0.3, 0.97, log=False)}
SEARCH_SOFT: SearchSpace = {"algorithm.alpha": Range(0.002, 1.0), **SEARCH_GAMMA}
