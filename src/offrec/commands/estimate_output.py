"""Print the result of `offrec estimate`: a table, its legend and the certified shares."""

from textwrap import fill
from typing import TYPE_CHECKING

from offrec.commands.printing import breaks_words, print_table, significant, table_width

if TYPE_CHECKING:
    from offrec.estimation.interval import Interval
    from offrec.estimation.result import EstimateResult, PolicyEstimate
    from offrec.estimation.verdict import Assessment

DASH = "–"
LEGEND = {
    "estimate": "reward per session; `withheld` if the log has too little support to show a number",
    "95 % interval": "of the estimate; – for the direct estimator without refits",
    "difference": "estimate minus what the logging policy earned on the same sessions, 95 % interval",
    "value@5": "what the policy's top five items were worth to the visitors of the log (--gamma does not apply)",
    "order": "which policy to try first: mean of the ranks by value@5 and by direct; not a measure of reward",
    "effective": "number of on-policy sessions with the same information as the weighted log",
    "largest": "largest importance weight",
    "capped": "share of the decisions whose weight was capped",
    "rare": "share of the policy's choices that the log rarely contains",
    "verdict": "trust, caution or do not trust",
    "reasons": "diagnostics beyond a limit, most severe first; explained below",
}
SHARPE_K = 3
SHARPE_NOTE = (
    "SharpeRatio@k: of the k policies with the largest estimates, the estimated gain of the best one over the logging "
    "policy, divided by\nthe standard deviation of their estimates. With a small ratio, a test of all k risks much "
    "for a small gain."
)
CERTIFY_NOTE = (
    "A share of the traffic is the probability with which the policy makes each decision; the policy that wrote the "
    "log makes the others.\nAll intervals of these sentences hold together with a probability of 95 %."
)


def print_result(result: "EstimateResult") -> None:
    """Print the table of all estimates, its legend and the source of the propensities."""
    options = result.options
    settings = [f"{result.sessions:,} {result.split} sessions of {result.source.name}"]
    settings += [f"γ = {options.gamma:g}"] if options.gamma != 1 else []
    settings += [f"temperature {options.temperature:g}"] if options.temperature != 1 else []
    settings += [f"blend {options.blend:g}"] if options.blend != 1 else []
    columns = ["policy", "estimator", "lists", *LEGEND]
    rows = [["logging policy", "", "", *_numbers(result.logged), *[""] * (len(LEGEND) - 2)]]
    for policy in result.policies:
        rows += [_row(policy, name, result) for name in policy.assessments]
    # Omit columns without values, such as the weights of the direct estimator.
    used = [index for index in range(len(columns)) if any(row[index] not in ("", DASH) for row in rows)]
    title = f"Reward per session, {', '.join(settings)}  {result.fingerprint}"
    names, cells = [columns[index] for index in used], [[row[index] for index in used] for row in rows]
    reasons: list[str] = []
    if "reasons" in names and breaks_words(names, cells):  # print them below the table instead
        at = names.index("reasons")
        reasons = [f"{row[0]}, {row[1]}: {row[at]}" for row in cells if row[at]]
        names, cells = names[:at] + names[at + 1 :], [row[:at] + row[at + 1 :] for row in cells]
    print_table(title, names, cells)
    for text in reasons:
        print(fill(text, table_width(names, cells), subsequent_indent="  ", break_on_hyphens=False))
    _print_legend(result, [columns[index] for index in used])
    _print_sharpe_ratios(result)
    print(f"Sessions: {result.split}. {result.sessions_note}")
    if _is_weighted_estimate_withheld(result):
        advice = "a small --blend" if result.policies[0].play == "column" else "--estimator direct"  # tables have no Q
        if advice == "--estimator direct" and (options.certify or options.blend < 1):
            advice += f" without {'--certify' if options.certify else '--blend'}"
        print(f"For a withheld estimate, the log contains too few of the policy's lists; try {advice}.")
    if result.has_propensities:
        print("Propensities: logged.", *result.notes, sep="\n")
    else:
        figures = ("calibration_error", "temperature")
        error, temperature = (result.calibration.get(name, float("nan")) for name in figures)
        print(f"Propensities: estimated (calibration error {error:.3f}, best temperature {temperature:.2f}).")
        for policy in result.policies:
            for name, one in policy.assessments.items():
                if one.sensitivity is not None and result.is_shown(one):
                    print(f"{policy.name}, {name}: {one.sensitivity.text}.")
    if result.certification is not None:
        print("", *result.certification.sentences(), CERTIFY_NOTE, sep="\n")


def _is_weighted_estimate_withheld(result: "EstimateResult") -> bool:
    """Return whether no estimator was chosen and the weighted estimate of a policy is withheld."""
    if result.options.estimators:
        return False
    return any(not result.is_shown(one) for policy in result.policies for one in policy.assessments.values())


def _print_legend(result: "EstimateResult", columns: list[str]) -> None:
    """Explain the columns of the table and the codes of the reasons that occur in it."""
    from offrec.estimation.verdict import TEXTS

    entries = [(column, LEGEND[column]) for column in columns if column in LEGEND]
    used = {
        reason.code
        for policy in result.policies
        for assessment in policy.assessments.values()
        for reason in assessment.reasons
    }
    entries += [(code, text) for code, text in TEXTS.items() if code in used]
    width = max(len(name) for name, _ in entries)
    print("\n".join(f"{name:{width}}  {text}" for name, text in entries))


def _print_sharpe_ratios(result: "EstimateResult") -> None:
    """Print SharpeRatio@k of each estimator that has estimates of several policies, and what it means."""
    by_estimator = {name: ratios for name, ratios in result.sharpe_ratios.items() if ratios}
    for name, ratios in by_estimator.items():
        k = min(SHARPE_K, max(ratios))
        print(f"SharpeRatio@{k} by {name.replace('_', ' ')}: {significant(ratios[k])}")
    if by_estimator:
        print(SHARPE_NOTE)


def _row(policy: "PolicyEstimate", estimator: str, result: "EstimateResult") -> list[str]:
    """Return the cells of one estimate. Only the first row of a policy shows its value@5 and order."""
    assessment, support = policy.assessments[estimator], policy.assessments[estimator].support
    is_first = estimator == next(iter(policy.assessments))
    order = result.suggested_order.get(policy.name)
    lists = {"topk": f"top {policy.k}", "sample": f"sample {policy.k}"}.get(policy.play, policy.play)
    return [
        policy.name,
        estimator.replace("_", " "),
        lists,
        *_estimate_cells(assessment, policy.differences[estimator], result),
        significant(policy.value_at_5) if is_first else "",
        (DASH if order is None else str(order)) if is_first else "",
        DASH if support.effective_sessions is None else f"{support.effective_sessions:,.0f}",
        significant(support.largest_weight),
        DASH if support.capped_share is None else f"{support.capped_share:.1%}",
        DASH if support.rare_share is None else f"{support.rare_share:.0%}",
        assessment.verdict,
        ", ".join(reason.short for reason in assessment.reasons),
    ]


def _estimate_cells(assessment: "Assessment", difference: "Interval", result: "EstimateResult") -> list[str]:
    """Return the estimate, its interval and the interval of the difference from the logging policy."""
    if not result.is_shown(assessment):
        return ["withheld", "", ""]
    if not result.has_interval(assessment.estimator):
        return [significant(assessment.interval.estimate), DASH, DASH]
    return [*_numbers(assessment.interval), _numbers(difference)[1]]


def _numbers(interval: "Interval") -> list[str]:
    """Return the estimate and its interval, rounded according to the width of the interval."""
    width = interval.high - interval.low
    estimate, low, high = (
        significant(value, 2 if width else 3, scale=width) for value in (interval.estimate, interval.low, interval.high)
    )
    return [estimate, f"{low} … {high}"]
