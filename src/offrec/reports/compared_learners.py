"""The learners of an answer, and how they compare by one measure."""

from dataclasses import dataclass
from typing import Final, Literal

from offrec.reports.comparison import Comparison
from offrec.reports.reading import PolicyResults

METRIC: Final = "NDCG@10"
Measure = Literal["reward", "value", "NDCG@10"]
BEHAVIOUR = {"reward": "", "value": "", METRIC: "all"}


@dataclass(frozen=True)
class AnswerLearners:
    """The learners of one answer. Only RL learners are candidates; others and twins are listed in the table."""

    sl: PolicyResults | None
    other_imitation: list[PolicyResults]
    rl: list[PolicyResults]
    listed: list[PolicyResults]  # all of them, with sampled SL and the twins, in the order of the table

    @property
    def all(self) -> list[PolicyResults]:
        return [*([self.sl] if self.sl is not None else []), *self.other_imitation, *self.rl]

    @property
    def log(self) -> str:
        return self.rl[0].group.log


@dataclass(frozen=True)
class ComparedLearners:
    """The learners by one measure, each compared with SL, if it was run, and with the best baseline."""

    measure: Measure
    learners: list[PolicyResults]
    versus_sl: list[Comparison | None]
    baseline: PolicyResults | None
    versus_baseline: list[Comparison | None]

    @property
    def is_tested(self) -> bool:
        return any(one is not None and one.corrected is not None for one in self.versus_reference)

    @property
    def versus_reference(self) -> list[Comparison | None]:
        """The comparisons with SL; without SL, those with the best baseline."""
        return self.versus_sl if any(self.versus_sl) else self.versus_baseline

    def best(self) -> int:
        """Return the index of the best learner; learners significantly above SL take precedence."""

        def key(index: int) -> tuple[bool, float]:
            comparison = self.versus_reference[index]
            return (comparison is not None and comparison.sign() == "more", comparison.gain if comparison else -1e30)

        return max(range(len(self.learners)), key=key)
