"""The sentences of an answer."""

from offrec.reports import formatting, labels
from offrec.reports.compared_learners import METRIC, ComparedLearners
from offrec.reports.comparison import Comparison

NO_SL = "Not answered: SL was not run."
VERB = {"reward": "earns", "value": "is estimated to earn"}


def earnings_sentence(compared: ComparedLearners) -> str:
    """Compare the best RL learner with SL and the best baseline by what they earn."""
    index, verb = compared.best(), VERB[compared.measure]
    name = labels.policy_label(compared.learners[index])
    versus_sl, versus_baseline = compared.versus_sl[index], compared.versus_baseline[index]
    decimals = formatting.reward_decimals(*(p.mean("", compared.measure) for p in compared.learners))
    baseline = f"the best baseline, {labels.policy_label(compared.baseline)}" if compared.baseline else ""
    gain = _gain(versus_baseline, decimals)
    if versus_sl is not None and versus_sl.sign() == "more":
        more = f"{name} {verb} more than SL ({_gain(versus_sl, decimals)} per session)"
        if versus_baseline is None:
            return f"Partly: {more}, but there is no baseline to compare with."
        ending = {
            "more": f" and more than {baseline} ({gain})",
            "less": f", but less than {baseline} ({gain})",
            "unclear": f", but not clearly more than {baseline} ({gain})",
        }[versus_baseline.sign()]
        return f"{'Yes' if versus_baseline.sign() == 'more' else 'Partly'}: {more}{ending}."
    if all(one is not None and one.sign() == "less" for one in compared.versus_sl):
        text = (
            f"No: every RL learner {verb} less than SL; the best is {name} ({_gain(versus_sl, decimals)} per session)."
        )
    else:
        text = (
            f"Not shown: no RL learner {verb} clearly more than SL; the best is {name} ({_gain(versus_sl, decimals)})."
        )
    return f"{text} Compared with {baseline}, {name} has {gain}." if versus_baseline else text


def sentence_without_sl(compared: ComparedLearners) -> str:
    """Compare the best RL learner with the best baseline only."""
    index = compared.best()
    name, versus = labels.policy_label(compared.learners[index]), compared.versus_baseline[index]
    if compared.baseline is None or versus is None:
        return f"{NO_SL} No baseline has the same measurement as the RL learners."
    is_less = versus.sign() == "less"
    if compared.measure == METRIC:
        claim, gain = f"ranks {'below' if is_less else 'above'}", formatting.format_share(versus.relative)
    else:
        claim = f"{VERB[compared.measure]} {'less' if is_less else 'more'} than"
        decimals = formatting.reward_decimals(*(p.mean("", compared.measure) for p in compared.learners))
        gain = f"{_gain(versus, decimals)} per session"
    baseline = f"the best baseline, {labels.policy_label(compared.baseline)}"
    metric = f", in {METRIC}" if compared.measure == METRIC else ""
    start = f"It is unclear whether {name}" if versus.sign() == "unclear" else name
    return f"{NO_SL} {start} {claim} {baseline}{metric} ({gain})."


def _gain(comparison: Comparison | None, decimals: int) -> str:
    if comparison is None:
        return "not measured"
    gain = formatting.format_gain(comparison.gain, decimals)
    return gain if comparison.sign() != "unclear" else f"{gain}, {formatting.format_p_value(comparison.corrected)}"


def ranking_sentence(ranking: ComparedLearners, reason: str) -> str:
    """Say why the question is not answered, and which RL learners rank above SL."""
    pairs = zip(ranking.learners, ranking.versus_sl, strict=True)
    above = [(policy, one) for policy, one in pairs if one is not None and one.sign() == "more"]
    above.sort(key=lambda pair: -pair[1].gain)
    if not above:
        return f"Not answered: {reason}. No RL learner ranks clearly above SL in {METRIC}."
    names = [f"{labels.policy_label(policy)} ({formatting.format_share(one.relative)})" for policy, one in above]
    verb = "ranks" if len(above) == 1 else "rank"
    return f"Not answered: {reason}. {formatting.join_names(names)} {verb} above SL in {METRIC}."
