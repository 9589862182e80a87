"""The options of an estimate, and which estimators and sessions they imply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from offrec.errors import InputError
from offrec.estimation.certify import SHARES
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimators import CLUSTER_WEIGHTINGS, ESTIMATORS, get_estimator
from offrec.estimation.list_policy import Play
from offrec.estimation.trajectories import Trajectories
from offrec.evaluation import EvaluationSplit
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.training.loop import TrainingOptions

RECOMMENDED = "direct"
WEIGHTED = "self_normalised"  # recommended where propensities are exact, and for blends, which have no Q
PICK, MANY_LISTS = "pick", 1.5  # recommended instead if the ratios are known and sessions have more lists than this
ALL = "all"


@dataclass(frozen=True)
class EstimateOptions:
    """Options of `estimate`.

    Args:
        split: The sessions to estimate from; Q is always fitted to the training sessions. None for all sessions if no
            policy was trained on the dataset and no Q is fitted, else for the test sessions.
        split_reason: The sentence that says why `split` is used; empty if the user chose it.
        estimators: Names from `ESTIMATORS`; "all" for every one that the log and the policy allow; empty for the
            recommended one: for sampled lists on a log with exact propensities and for blends `pick` if the policy that
            served the log is given and sessions have several lists of several items, else `self_normalised`;
            otherwise `direct`.
        gamma: Discount per decision.
        play: Whether policies sample their lists or show their top k.
        k: Items per list; None for the length of the logged lists.
        temperature: Softmax temperature of sampled lists.
        blend: Share of the decisions that the policy makes; the logging policy makes the others.
        certify: Whether to certify shares of the traffic too, see `certify`. Needs exact propensities; no Q is fitted.
        served_temperature: Softmax temperature at which the policy that served the log sampled its lists.
        shares: The shares to certify.
        temperatures: Certify sampled policies at each of these temperatures; empty for `temperature` only.
        reward: Reward of each behaviour; missing ones use the default.
        cap: Largest importance weight; None for the estimator's own cap.
        refits: How often Q is refitted to resampled sessions; with 0 the direct method has no interval.
        value_at_5: Whether to compute value@5 too if Q is fitted anyway. This needs one more fit, which is cached.
        jobs: Processes that fit Q, value@5 and the logging policy concurrently on a CPU; None for the number of threads
            that PyTorch uses, but at most 8. Estimates agree up to rounding. Only for policies that show their top k.
        seed: Seed of the bootstrap and the logging policy.
        values: How Q is fitted.
        network: Network of π̂_b, if the log has no propensities.
        training: Training of π̂_b.

    Raises:
        InputError: If a value is out of range or an estimator is incompatible with the other options.
    """

    split: EvaluationSplit | None = None
    split_reason: str = ""
    estimators: tuple[str, ...] = ()
    gamma: float = 1.0
    play: Play = "sample"
    k: int | None = None
    temperature: float = 1.0
    blend: float = 1.0
    certify: bool = False
    served_temperature: float = 1.0
    shares: tuple[float, ...] = SHARES
    temperatures: tuple[float, ...] = ()
    reward: Mapping[str, float] = field(default_factory=dict)
    cap: float | None = None
    refits: int = 4
    value_at_5: bool = True
    jobs: int | None = None
    seed: int = 0
    values: ValueOptions = field(default_factory=ValueOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise InputError(f"--gamma must be between 0 and 1; got {self.gamma}.")
        if self.refits < 0 or self.refits == 1:
            raise InputError(f"--refits must be 0 or at least 2; got {self.refits}.")
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"--jobs must be at least 1; got {self.jobs}.")
        for estimator in map(get_estimator, self.named_estimators):
            if estimator.uses_q and self.certify:
                raise InputError(
                    f"--estimator {estimator.name} cannot evaluate a blend, so it cannot certify a share: the logging "
                    "policy's probabilities for unshown lists are unknown. Omit --estimator, or omit --certify."
                )
            if estimator.uses_q and self.blend < 1:
                raise InputError(
                    f"--estimator {estimator.name} cannot evaluate a blend: the logging policy's probabilities for "
                    "unshown lists are unknown. Use another estimator or --blend 1."
                )

        if self.certify and self.blend < 1:
            raise InputError("--certify finds the share itself; omit --blend.")
        if self.certify and (ALL in self.estimators or len(self.estimators) > 1):
            raise InputError("--certify uses one estimator; omit --estimator or name one.")
        if self.temperatures and (not self.certify or self.play == "topk"):
            raise InputError("--temperatures needs --certify and sampled lists; use --temperature.")
        if any(not share > 0 or share > 1 for share in self.shares) or not self.shares:
            raise InputError(f"--shares must be numbers above 0 and at most 1; got {', '.join(map(str, self.shares))}.")

    def network_for(self, policy: Policy) -> NetworkOptions:
        """Return the network of π̂_b, which reads as much of the history as a policy does."""
        return replace(self.network, history=policy.history)

    @property
    def named_estimators(self) -> tuple[str, ...]:
        """The estimators that were chosen by name; their numbers are always shown."""
        return tuple(name for name in self.estimators if name != ALL)

    def choose_estimators(self, trajectories: Trajectories, has_propensities: bool, k: int) -> list[str]:
        """Return the estimators to use for these trajectories.

        Args:
            trajectories: The trajectories of one policy.
            has_propensities: Whether the log contains exact propensities.
            k: Items per list.
        """
        if ALL in self.estimators:
            return [
                name for name in available_estimators(trajectories) if self.blend == 1 or not ESTIMATORS[name].uses_q
            ]
        if self.named_estimators:
            return list(self.named_estimators)
        name = self.recommended(trajectories.log_pi is not None, has_propensities)
        return [self.weighted(trajectories, k) if name == WEIGHTED else name]

    def weighted(self, trajectories: Trajectories, k: int) -> str:
        """Return the estimator with weights that is used by default: `pick` for longer sessions if it is available.

        In sessions of several lists, products of ratios of lists leave too few effective sessions. In sessions of one
        list, ratios of lists are precise enough and need no assumption. Ratios of lists of one item vary no more than
        ratios of picks do, and they are exact.
        """
        is_long = trajectories.decisions > MANY_LISTS * len(trajectories)
        return PICK if k > 1 and is_long and "picks" in trajectories.log_ratios else WEIGHTED

    def recommended(self, is_sampled: bool, has_propensities: bool) -> str:
        """Return the estimator that is used by default for a policy that samples its lists, or shows its top k."""
        if self.certify and self.named_estimators:
            return self.named_estimators[0]
        needs_weights = self.blend < 1 or self.certify
        return WEIGHTED if needs_weights or (is_sampled and has_propensities) else RECOMMENDED

    @property
    def uses_clusters(self) -> bool:
        """Whether an estimator may need ratios of item clusters."""
        return ALL in self.estimators or any(
            get_estimator(name).weighting in CLUSTER_WEIGHTINGS for name in self.named_estimators
        )

    @property
    def uses_states(self) -> bool:
        """Whether an estimator may need the classes of states."""
        return ALL in self.estimators or any(get_estimator(name).last_ratios for name in self.named_estimators)

    def check_weightings(self, *, has_lists: bool, is_served: bool) -> None:
        """Raise `InputError` if a named estimator needs the policy that served the log, which is not given.

        Args:
            has_lists: Whether the log has served lists, not only picks.
            is_served: Whether the policy that served the log is given.
        """
        for name in self.named_estimators:
            weighting = get_estimator(name).weighting
            if weighting == "lists" or is_served or (weighting == "clusters" and not has_lists):
                continue
            if not has_lists:
                raise InputError(f"--estimator {name} needs served lists, but the log has only picks; use another one.")
            raise InputError(
                f"--estimator {name} needs probabilities of {weighting.replace('_', ' ')}, but the log has those of "
                "whole lists only; add --served RUN, the policy that served the log, or use another estimator."
            )

    def fits_q(self, is_sampled: bool, has_propensities: bool) -> bool:
        """Return whether the estimators of a policy need a fitted Q."""
        return self.count_fits(is_sampled, has_propensities) > 0

    def count_fits(self, is_sampled: bool, has_propensities: bool) -> int:
        """Return how many fits of Q the estimators of a policy need: one, and the refits for the direct method."""
        if ALL in self.estimators:
            names = tuple(ESTIMATORS) if self.blend == 1 else ()
        else:
            names = self.named_estimators or (self.recommended(is_sampled, has_propensities),)
        if not any(get_estimator(name).uses_q for name in names):
            return 0
        return 1 + (self.refits if RECOMMENDED in names else 0)


def describe_left_out(used: Sequence[str], is_sampled: bool, has_lists: bool, is_served: bool, blend: float) -> str:
    """Return which estimators "all" leaves out and why, or "" if it leaves out none.

    Args:
        used: The estimators in use.
        is_sampled: Whether the policy samples its lists.
        has_lists: Whether the log has served lists, not only picks.
        is_served: Whether the policy that served the log is given.
        blend: As in `EstimateOptions`.
    """
    reasons: dict[str, list[str]] = {}
    for name, estimator in ESTIMATORS.items():
        if name in used:
            continue
        if estimator.uses_q and blend < 1:
            reason = "a blend has no Q"
        elif not is_sampled:
            reason = "the policy shows its best items"
        elif not has_lists:
            reason = "the log has only picks"
        else:
            reason = "the log was not served by the policy" if is_served else "they need --served RUN"
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"because {reason}: {', '.join(names)}" for reason, names in reasons.items())


def available_estimators(trajectories: Trajectories) -> list[str]:
    """Return the estimators whose columns are available, assuming that Q can be fitted."""
    has_weights = trajectories.log_pi is not None and trajectories.log_b is not None
    weightings = {"lists"} if has_weights else set()
    weightings |= trajectories.log_ratios.keys()
    return [
        name
        for name, estimator in ESTIMATORS.items()
        if not estimator.uses_weights
        or (estimator.weighting in weightings and not (estimator.last_ratios and trajectories.state is None))
    ]
