"""SharpeRatio@k of the estimated values of a table: what a test of the best estimated policies promises."""

from statistics import mean

from offrec.estimation.sharpe_ratio import sharpe_ratio
from offrec.reports.reading import PolicyResults

K = 3


def sharpe_note(policies: list[PolicyResults], logging: PolicyResults | None) -> str:
    """Return a sentence with SharpeRatio@k of a log's estimated values, empty for fewer than two estimates.

    Args:
        policies: The policies of the log; those without an estimate, shop policies and sampled lists do not count.
        logging: The logging policy, if its true reward is known. The ratio is then given with true rewards too.
    """
    known = [
        policy
        for policy in policies
        if policy.mean("", "value") is not None and policy.group.kind != "shop" and not policy.results[0].is_sampled
    ]
    estimated = [result.facts.get("value") or {} for policy in known for result in policy.results]
    rewards = [one["logged"] for one in estimated if one.get("logged") is not None]
    if len(known) < 2 or not rewards:
        return ""
    estimates, k = [policy.mean("", "value") or 0.0 for policy in known], min(K, len(known))
    promised = sharpe_ratio(estimates, estimates, mean(rewards), k)
    true = [policy.mean("", "reward") for policy in known]
    text = (
        f"SharpeRatio@{k}, the gain of the best of the {k} policies with the largest estimates over the logging policy "
    )
    text += f"relative to the spread of the {k}, is {_number(promised)} by the estimates"
    logging_reward = None if logging is None else logging.mean("", "reward")
    if logging_reward is not None and None not in true:
        earned = sharpe_ratio(estimates, [value or 0.0 for value in true], logging_reward, k)
        text += f" and {_number(earned)} by true rewards"
    return f"{text}."


def _number(ratio: float | None) -> str:
    return "undefined, because they are equal," if ratio is None else f"{ratio:.2f}"
