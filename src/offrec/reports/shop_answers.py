"""The answer in the simulated shop: does an RL learner earn more than simple policies, and does look-ahead help?"""

from collections.abc import Sequence
from dataclasses import dataclass

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.yardsticks import best_simple, compare_with_simple, compare_with_twins

MISSING_TWIN = "its twin without look-ahead was not run"


@dataclass(frozen=True)
class ShopComparison:
    """The best RL learner compared with the yardsticks.

    Attributes:
        best: The best RL learner: one that earns significantly more than the best simple policy takes precedence.
        simple: The best simple policy.
        versus_simple: The best learner compared with it, corrected over all learners of the table.
        twin: The twin of the best learner, without look-ahead.
        versus_twin: The best learner compared with its twin, corrected over all learners that have one.
        all_earn_less: Whether every RL learner earns significantly less than the best simple policy.
        decimals: The decimals of rewards.
    """

    best: PolicyResults
    simple: PolicyResults
    versus_simple: Comparison
    twin: PolicyResults | None
    versus_twin: Comparison | None
    all_earn_less: bool
    decimals: int

    def sentence(self) -> str:
        """Return the answer: yes, partly, not shown or no, and why."""
        name, gain = labels.policy_label(self.best), self._gain(self.versus_simple)
        simple = f"the best simple policy, {labels.policy_label(self.simple)}"
        sign = self.versus_simple.sign()
        if sign == "more":
            verdict = "Yes" if self.versus_twin and self.versus_twin.sign() == "more" else "Partly"
            link = "and" if verdict == "Yes" else "but"
            return f"{verdict}: {name} earns more than {simple} ({gain} per session), {link} {self._twin_clause()}."
        if self.all_earn_less:
            start = f"No: every RL learner earns less than {simple}; the best is {name} ({gain} per session)."
        else:
            start = f"Not shown: no RL learner earns clearly more than {simple}; the best is {name} ({gain})."
        clause = self._twin_clause()
        return f"{start} {clause[0].upper()}{clause[1:]}."

    def _twin_clause(self) -> str:
        if self.twin is None or self.versus_twin is None:
            return MISSING_TWIN
        twin = f"its twin without look-ahead, {labels.policy_label(self.twin)} ({self._gain(self.versus_twin)})"
        return {
            "more": f"it earns more than {twin}",
            "less": f"it earns less than {twin}",
            "unclear": f"it does not earn clearly more than {twin}",
        }[self.versus_twin.sign()]

    def _gain(self, comparison: Comparison) -> str:
        gain = formatting.format_gain(comparison.gain, self.decimals)
        return gain if comparison.sign() != "unclear" else f"{gain}, {formatting.format_p_value(comparison.corrected)}"


def compare_in_shop(
    results: StudyResults, comparer: Comparer, rl: Sequence[PolicyResults], listed: Sequence[PolicyResults]
) -> ShopComparison | None:
    """Compare RL learners with the best simple policy and with their twins.

    Args:
        results: The results.
        comparer: Compares policies.
        rl: The candidates: RL learners of one log and backbone.
        listed: All learners of the table, over which p-values are corrected.

    Returns:
        The comparison of the best learner, or None if no simple policy was simulated.
    """
    group = rl[0].group
    simple = best_simple(results, group.log, group.backbone)
    if simple is None:
        return None
    by_id = {id(p): one for p, one in zip(listed, compare_with_simple(comparer, listed, simple), strict=True)}
    compared = [(policy, one) for policy in rl if (one := by_id[id(policy)]) is not None]
    if not compared:
        return None
    best, versus_simple = max(compared, key=lambda pair: (pair[1].sign() == "more", pair[1].gain))
    twins = dict(zip(map(id, listed), compare_with_twins(results, comparer, listed), strict=True))
    return ShopComparison(
        best,
        simple,
        versus_simple,
        results.twin(best),
        twins[id(best)],
        all(one.sign() == "less" for _, one in compared),
        formatting.reward_decimals(*(policy.mean("", "reward") for policy in rl)),
    )
