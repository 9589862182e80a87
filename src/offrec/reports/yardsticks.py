"""Yardsticks for rewards in the simulated shop: the best simple policy, twins without look-ahead, and `informed`.

A simple policy needs no critic: a baseline, SL (top k or sampled) or the logging policy. p-values of comparisons with
the best simple policy are corrected over all learners of the table, twins included.
"""

from collections.abc import Sequence

import numpy as np

from offrec.reports import formatting, labels
from offrec.reports.comparison import Comparer, Comparison, mean_rewards
from offrec.reports.reading import PolicyResults, StudyResults
from offrec.reports.tables import Cell, gain_cell

REWARD = ("", "reward")
Columns = list[tuple[str, list[Cell]]]


def simple_policies(results: StudyResults, log: str, backbone: str | None = None) -> list[PolicyResults]:
    """Return the simple policies of a log that were simulated.

    Args:
        results: The results.
        log: The log.
        backbone: The backbone of SL; None: any.
    """
    played = [policy for policy in results.played if policy.group.log == log and policy.values(*REWARD)]
    return [policy for policy in played if _is_simple(policy, backbone)]


def best_simple(results: StudyResults, log: str, backbone: str | None = None) -> PolicyResults | None:
    """Return the simple policy with the highest mean reward; see `simple_policies`."""
    policies = simple_policies(results, log, backbone)
    return max(policies, key=lambda policy: policy.mean(*REWARD) or 0.0, default=None)


def _is_simple(policy: PolicyResults, backbone: str | None) -> bool:
    group = policy.group
    if group.kind == "learner":
        return group.policy == "sl" and backbone in (None, group.backbone)
    return group.kind == "baseline" or group.policy == "logging"


def compare_with_simple(
    comparer: Comparer, policies: Sequence[PolicyResults], simple: PolicyResults | None
) -> list[Comparison | None]:
    """Compare each learner with the best simple policy; other policies are not tested."""
    others = [simple if policy.group.kind == "learner" else None for policy in policies]
    return comparer.compare_family(policies, others, *REWARD)


def compare_with_twins(
    results: StudyResults, comparer: Comparer, policies: Sequence[PolicyResults]
) -> list[Comparison | None]:
    """Compare each learner with its twin, which does not look ahead."""
    return comparer.compare_family(policies, [results.twin(policy) for policy in policies], *REWARD)


def share_of_informed(results: StudyResults, policy: PolicyResults) -> float | None:
    """Return the reward of a policy as a share of the reward of `informed`, over the visitors that both served."""
    informed = results.find(policy.group.log, "informed")
    measured = [result for result in policy.results if result.facts.get("shop")]
    if informed is None or not informed.results or not measured:
        return None
    reference = mean_rewards(informed.results)
    reward = float(np.mean(mean_rewards(measured)[: len(reference)]))
    return reward / float(reference.mean()) if reference.mean() else None


def yardstick_columns(
    results: StudyResults,
    comparer: Comparer,
    policies: Sequence[PolicyResults],
    simple: PolicyResults | None,
    decimals: int,
) -> Columns:
    """Return the columns of rewards compared with yardsticks; a column without content is left out.

    Args:
        results: The results.
        comparer: Compares policies.
        policies: The rows of the table.
        simple: The best simple policy.
        decimals: The decimals of rewards.
    """
    name = f" ({labels.short_label(simple)})" if simple else ""
    shares = [share_of_informed(results, policy) for policy in policies]
    columns = [
        ("share of Informed", [Cell(formatting.format_percent(share), sort=share) for share in shares]),
        (
            f"compared with the best simple policy{name}",
            [_gain_with_p(one, decimals) for one in compare_with_simple(comparer, policies, simple)],
        ),
        (
            "compared with its twin without look-ahead",
            [_gain_with_p(one, decimals) for one in compare_with_twins(results, comparer, policies)],
        ),
        ("ranks by", [Cell(ranks_by(policy)) for policy in policies]),
    ]
    return [(head, cells) for head, cells in columns if any(cell.text != formatting.MISSING for cell in cells)]


def informed_note(results: StudyResults, log: str) -> str:
    """Say on which visitors `informed` was measured."""
    informed = results.find(log, "informed")
    if informed is None or not informed.results:
        return ""
    shop = informed.results[0].facts["shop"]
    return (
        f"Informed knows the items and infers tastes from lists and picks; it is a reference, not a bound. It serves "
        f"the first {shop['sessions']:,} visitors, and shares are over these visitors."
    )


def seeds_note(policies: Sequence[PolicyResults]) -> str:
    """Say which shop and which visitors the rewards come from."""
    shops = [result.facts["shop"] for policy in policies for result in policy.results if result.facts.get("shop")]
    known = sorted({(shop["world"], shop["seed"], shop["rollout_seed"]) for shop in shops})
    if len(known) != 1:
        return ""
    world, seed, visitors_seed = known[0]
    return f"World {world}, shop seed {seed}, visitors' seed {visitors_seed}."


def skipped_note(policies: Sequence[PolicyResults]) -> str:
    """Say which policies skip a visitor's last picks."""
    names: dict[int, list[str]] = {}
    for policy in policies:
        if policy.group.skip_recent:
            names.setdefault(policy.group.skip_recent, []).append(labels.policy_label(policy))
    return " ".join(
        f"The last {picks} picks of a visitor rank last in the lists of {formatting.join_names(labelled)}."
        for picks, labelled in names.items()
    )


def _gain_with_p(comparison: Comparison | None, decimals: int) -> Cell:
    """Return a difference with its interval, marks and corrected p-value."""
    cell = gain_cell(comparison, decimals)
    if comparison is None or comparison.corrected is None:
        return cell
    spread = f"{cell.spread} {formatting.format_p_value(comparison.corrected)}".lstrip()
    return Cell(cell.text, spread, cell.stars, sort=cell.sort)


def ranks_by(policy: PolicyResults) -> str:
    """Return the network that ranks the items of a learner."""
    if policy.group.kind != "learner":
        return formatting.MISSING
    if labels.learner_family(policy.group) == "planner":
        return "plan"
    return "critic" if policy.group.ranks_by_critic else "actor"
