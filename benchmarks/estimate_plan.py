"""What `estimate_trust.py` measures. It was fixed before any reported shop was simulated.

Two rounds per shop. The shop's logging policy writes a log. A policy is trained on it and serves sampled lists with
exact propensities. Policies of the next round are trained on both logs. They are evaluated on further served logs, on
which nothing was trained.

Limits of verdicts and default estimators are chosen on `CALIBRATION_SEEDS`. Coverage is reported on `REPORT_SEEDS`.
"""

from dataclasses import dataclass
from typing import Literal

WORLDS = ("demo", "stay", "diverse", "cascade", "strong-logging", "blind-logging")
CALIBRATION_SEEDS = tuple(range(20, 40))
SPENT_SEEDS = tuple(range(200, 205))  # reported before intervals were extended by the bias of their assumption
REPORT_SEEDS = tuple(range(205, 210))  # in every world: 30 shops
LOGS_PER_SHOP = 4  # served logs for evaluation per shop: 120 logs
ONE_STEP_SEEDS = (21, 205, 206)  # shops with logs of one list per session too
BLENDS = (0.1, 0.3, 1.0)

FIRST_SESSIONS = 5_000  # of the shop's logging policy
SERVED_SESSIONS = 5_000  # of the served policy, for training the next round
LOG_SESSIONS = 5_000  # of each log that is evaluated
TRUTH_VISITORS = 8_000  # common visitors of all policies and blends; they give differences from the served policy
SERVED_VISITORS = 40_000  # of the roll-out that gives the value of the served policy
ONE_STEP_SESSIONS = 10_000  # of logs with one list per session
ONE_STEP_VISITORS = 40_000


@dataclass(frozen=True)
class Recipe:
    """A policy: softmax((base + strength · reward) / temperature).

    Args:
        base: The logits to start from: "imitation" for supervised learning on all logs so far, "served" for the policy
            that served the last log, so that the new policy stays close to it.
        strength: Weight of an item's mean reward so far, in standard deviations over the catalogue.
        temperature: Softmax temperature of sampled lists.
    """

    base: Literal["imitation", "served"]
    strength: float = 0.0
    temperature: float = 1.0


SERVED = Recipe("imitation", strength=0.5)
NEXT_ROUND = {
    "constrained": Recipe("served", strength=0.5),
    "constrained-bold": Recipe("served", strength=1.0),
    "retrained": Recipe("imitation", strength=0.5),
    "imitation": Recipe("imitation"),
}
LAST = "imitation"  # the policy whose files are written last
