"""Answer "Is the RL doing anything here?" for each log and backbone.

An answer uses the best measure of earnings that the study has: true reward in the shop, else estimated values that are
trusted and tested. Ranking metrics reward imitation, so they do not answer the question.

In the shop, the best RL learner is compared with the best simple policy and with its twin without look-ahead
(`shop_answers`). Elsewhere it is compared with the learner `sl` and with the best baseline. Other imitation learners
are listed in the table. Without SL the question is not answered, and the best RL learner is compared with the best
baseline only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offrec.reports import labels
from offrec.reports.answer_sentences import NO_SL, earnings_sentence, ranking_sentence, sentence_without_sl
from offrec.reports.answer_table import NOTES, answer_table
from offrec.reports.compared_learners import BEHAVIOUR, METRIC, AnswerLearners, ComparedLearners, Measure
from offrec.reports.comparison import Comparer, Comparison
from offrec.reports.earnings import verdicts
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.shop_answers import ShopComparison, compare_in_shop
from offrec.reports.tables import Table

QUESTION = "Is the RL doing anything here?"
DISTRUST = "do not trust"


@dataclass(frozen=True)
class Answer:
    """The answer for one log and backbone.

    Attributes:
        about: Log and backbone.
        short: The answer in a sentence or two.
        measure: The measure that the answer is based on.
        best: Label of the best RL learner by that measure.
        versus_sl: The best RL learner compared with SL.
        baseline: Label of the best baseline by that measure.
        versus_baseline: The best RL learner compared with the best baseline.
        table: All policies of the answer.
        in_shop: In the shop: the best RL learner compared with the best simple policy and with its twin.
    """

    about: str
    short: str
    measure: Measure = METRIC
    best: str | None = None
    versus_sl: Comparison | None = None
    baseline: str | None = None
    versus_baseline: Comparison | None = None
    table: Table | None = None
    in_shop: ShopComparison | None = None

    @property
    def one_seed_note(self) -> str:
        """A note for readers who do not see the table, if the answer comes from one seed."""
        return self.table.note if self.table is not None and self.table.note == NOTES[1] else ""

    def text(self) -> str:
        """Return the answer and the note about one seed, for a terminal."""
        return f"{self.short} {self.one_seed_note}".rstrip()


def learner_groups(results: StudyResults) -> list[tuple[str, str, list[PolicyResults]]]:
    """Return (title, key, learners) for each log, backbone and preset."""
    groups: dict[tuple[object, ...], list[PolicyResults]] = {}
    for policy in results.compared:
        if policy.group.kind == "learner":
            groups.setdefault((policy.group.log, policy.group.backbone, policy.group.preset), []).append(policy)
    return [
        (f"{learners[0].group.log}, {labels.backbone_label(learners[0])}", "-".join(map(str, key)), learners)
        for key, learners in groups.items()
    ]


def build_answers(results: StudyResults, comparer: Comparer) -> list[Answer]:
    """Build one answer for each log, backbone and preset."""
    answers = []
    for about, key, learners in learner_groups(results):
        sl = next((policy for policy in learners if labels.is_sl(policy)), None)
        rl = [policy for policy in learners if not labels.is_imitation(policy) and not policy.group.is_twin]
        has_baseline = any(
            p.group.kind == "baseline" and p.group.log == learners[0].group.log for p in results.compared
        )
        if not rl:
            answers.append(Answer(about, "Not answered: no learner that uses rewards was run."))
        elif sl is None and not has_baseline:
            answers.append(Answer(about, f"{NO_SL} There is no baseline to compare with either."))
        else:
            others = [policy for policy in learners if labels.is_imitation(policy) and policy is not sl]
            sampled = [policy for policy in results.sampled if sl is not None and _plays(policy, sl)]
            with_twins = [one for policy in rl for one in (policy, results.twin(policy)) if one is not None]
            listed = [*([sl] if sl is not None else []), *sampled, *others, *with_twins]
            answers.append(_answer(results, comparer, about, key, AnswerLearners(sl, others, rl, listed)))
    return answers


def _plays(sampled: PolicyResults, sl: PolicyResults) -> bool:
    return (sampled.study.folder, sampled.group.name) == (sl.study.folder, sl.group.name)


def earnings_measure(policies: Sequence[PolicyResults]) -> Measure | None:
    """Return the best measure of earnings that at least some policies have."""
    if any(policy.values("", "reward") for policy in policies):
        return "reward"
    return "value" if any(policy.values("", "value") for policy in policies) else None


def _answer(results: StudyResults, comparer: Comparer, about: str, key: str, learners: AnswerLearners) -> Answer:
    sl, rl = learners.sl, learners.rl
    ranking = _compare(results, comparer, METRIC, sl, rl)
    earning = earnings_measure(learners.all)
    compared, reason = ranking, "no reward was measured"
    in_shop = None
    if earning == "reward":
        compared = _compare(results, comparer, "reward", sl, rl)
        in_shop = compare_in_shop(results, comparer, rl, learners.listed) if sl is not None else None
    elif earning == "value":
        trusted = [policy for policy in rl if not _is_distrusted(policy)]
        if sl is not None and _is_distrusted(sl):
            reason = "the estimated value of SL is not reliable"
        elif not trusted:
            reason = "no RL learner has a reliable estimated value"
        else:
            by_value = _compare(results, comparer, "value", sl, trusted)
            compared = by_value if by_value.is_tested else ranking
            reason = "testing estimated values needs several seeds"
    best = compared.best()
    versus_sl, versus_baseline = compared.versus_sl[best], compared.versus_baseline[best]
    name, baseline = labels.policy_label(compared.learners[best]), compared.baseline
    if in_shop is not None:
        best = compared.learners.index(in_shop.best)
        name, short = labels.policy_label(in_shop.best), in_shop.sentence()
        versus_sl, versus_baseline = compared.versus_sl[best], compared.versus_baseline[best]
    elif sl is None:
        short = sentence_without_sl(compared)
    else:
        short = ranking_sentence(ranking, reason) if compared.measure == METRIC else earnings_sentence(compared)
    return Answer(
        about,
        short,
        compared.measure,
        name,
        versus_sl,
        labels.policy_label(baseline) if baseline else None,
        versus_baseline,
        answer_table(results, comparer, key, learners, ranking, earning),
        in_shop,
    )


def _compare(
    results: StudyResults, comparer: Comparer, measure: Measure, sl: PolicyResults | None, learners: list[PolicyResults]
) -> ComparedLearners:
    behaviour = BEHAVIOUR[measure]
    baselines = [p for p in results.compared if p.group.kind == "baseline" and p.group.log == learners[0].group.log]
    usable = [p for p in baselines if p.values(behaviour, measure) and not (measure == "value" and _is_distrusted(p))]
    baseline = max(usable, key=lambda p: p.mean(behaviour, measure) or 0.0, default=None)
    versus_sl = comparer.compare_family(learners, [sl] * len(learners), behaviour, measure)
    versus_baseline = comparer.compare_family(learners, [baseline] * len(learners), behaviour, measure)
    return ComparedLearners(measure, learners, versus_sl, baseline, versus_baseline)


def _is_distrusted(policy: PolicyResults) -> bool:
    return DISTRUST in verdicts(policy)
