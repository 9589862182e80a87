"""Metadata of learners: names, presets and search spaces. Each learner's module declares one record."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args

from offrec.algorithms.symbols import Learner, Needs
from offrec.plugins import (
    Range,
    Registry,
    SearchSpace,
    Settings,
    check_count,
    check_family,
    check_presets,
    check_texts,
)

Family = Literal["imitation", "mixed", "unconstrained", "constrained", "planner"]


@dataclass(frozen=True)
class LearnerRecord:
    """Metadata that commands and reports need about a learner.

    Args:
        name: The value of `--algorithm`, such as "dc".
        label: The name in tables and figures, such as "DC".
        learner: The learner's class, a frozen dataclass of options with `needs`, `needs_reward` and `loss`.
        help: A one-line description.
        family: The group, which determines the colour in figures.
        presets: Settings that each preset adds for this learner: {"paper": {…}, "strong": {…}}.
        search: Settings that `offrec tune` searches, in addition to those it searches for every learner.
        ignored: Inherited or shared options that the learner does not read, with the reason. Setting one is an
            error.
        skip_recent: When a simulated shop plays the policy, how many of the visitor's last picks rank below all other
            items.
        myopic: Settings that remove look-ahead and change nothing else, such as {"gamma": 0.0}; None for a learner that
            does not look ahead. A comparison in a simulated shop also trains the learner with these settings.
    """

    name: str
    label: str
    learner: type[Learner]
    help: str
    family: Family = "unconstrained"
    presets: Mapping[str, Settings] = field(default_factory=dict)
    search: SearchSpace = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    skip_recent: int = 0
    myopic: Settings | None = None


def _check(record: LearnerRecord) -> str | None:
    return (
        check_texts(record, ("label", "help"))
        or check_family(record.family, get_args(Family))
        or check_presets(record.presets)
        or check_count(record, "skip_recent")
        or (None if isinstance(record.myopic, Mapping | None) else "its myopic must map options to values, or be None")
        or _check_class(record.learner)
    )


def _check_class(learner: Any) -> str | None:
    if not (isinstance(learner, type) and is_dataclass(learner)):
        return f"its learner must be a class decorated with @dataclass(frozen=True); got {learner!r}"
    options = fields(learner)
    if required := [one.name for one in options if one.default is MISSING and one.default_factory is MISSING]:
        return f"the field {required[0]!r} of {learner.__name__} must have a default"
    if "name" in [one.name for one in options]:
        return f"{learner.__name__} must not have a field 'name', because algorithm.name selects the learner"
    if missing := [name for name in ("needs", "needs_reward", "loss") if not hasattr(learner, name)]:
        return f"{learner.__name__} must have `needs`, `needs_reward` and `loss`; it lacks {missing[0]!r}"
    built: Any = learner()
    if not callable(built.loss):
        return f"`loss` of {learner.__name__} must be a method"
    needs = built.needs
    return None if isinstance(needs, Needs) else f"`needs` of {learner.__name__} must be a Needs; got {needs!r}"


LEARNERS: Registry[LearnerRecord] = Registry("algorithm", LearnerRecord, _check)


def register_learner(record: LearnerRecord) -> LearnerRecord:
    """Register a learner, so that every command accepts it.

    Args:
        record: The learner's record.

    Returns:
        The same record.

    Raises:
        InputError: If the record is not valid, or another learner has this name.

    Example:
        >>> offrec.register_learner(offrec.LearnerRecord("mine", "Mine", Mine, "My own learner."))
    """
    return LEARNERS.register(record)


# Settings that several learners share.

# To maximise reward over a whole session, a policy has to look ahead. Validation NDCG would select the checkpoint that
# imitates the log best. These values were selected by true reward in the shops demo 10–13 and medium 10, 11
# (docs/evidence/defaults.md).
EARNING: dict[str, Any] = {"gamma": 0.9, "select": "last", "training.epochs": 20, "training.schedule": "linear"}
EARNING_WITH_RETURNS: dict[str, Any] = {**EARNING, "critic.returns": 0.5}
PAPER_SOFT: dict[str, Any] = {"algorithm.alpha": 1.0, "algorithm.expectation": "gumbel"}
PAPER_ACTOR_CRITIC: dict[str, Any] = {**PAPER_SOFT, "algorithm.uniform_prior": False}
MYOPIC: dict[str, Any] = {"gamma": 0.0}  # the critic then predicts the immediate reward
SEARCH_GAMMA: SearchSpace = {"gamma": Range(0.3, 0.97, log=False)}
SEARCH_SOFT: SearchSpace = {"algorithm.alpha": Range(0.002, 1.0), **SEARCH_GAMMA}
