"""Control variates for doubly robust forms of ratios that depend on what the visitor picked.

A doubly robust form adds terms with the mean 0 that resemble the noise of the weighted outcomes. With ratios of lists
the term is V(s) − ρ Q(s, l). If the ratio depends on the reaction, ρ Q has another mean than V. Q(s, l) is the mean of
q(s, l_j) over the places j, and each place has a ratio ρ_j that does not depend on the reaction, so that

    K = 1/k Σ_j ρ_j q(s, l_j),     E_b[K | s] = V(s)

    prefixes         ρ_j = π(l_1 … l_j) / b(l_1 … l_j)
    picks            ρ_j = P_π(l_j ∈ l) / P_b(l_j ∈ l)
    pick_clusters    ρ_j = N_π(c(l_j)) / N_b(c(l_j)), the expected numbers of items of the cluster; the mean of K is V
                     if q is the same for all items of a cluster. Otherwise V − K adds what Q says about the differences
                     within clusters (OffCEM, Saito et al. 2023)

Unlike the papers: OffCEM fits the differences within clusters in a first step of its own; here one fitted Q has them.
The cascade's recursion over places (Kiyohara et al. 2022) conditions the model of a place on the places before it; here
the model is a mean over items.
"""

from dataclasses import replace

import numpy as np

from offrec.estimation.trajectories import MAX_LOG_WEIGHT, Trajectories
from offrec.types import Doubles


def control_variate(log_ratio: Doubles, item_q: Doubles) -> Doubles:
    """[D] K, the mean of ρ_j q_j over the places of a list.

    Args:
        log_ratio: [D, k] log ρ_j.
        item_q: [D, k] q of the item at each place.
    """
    return np.asarray((np.exp(np.minimum(log_ratio, MAX_LOG_WEIGHT)) * item_q).mean(1))


def with_values(
    trajectories: Trajectories, q: Doubles, v: Doubles, item_q: Doubles | None, place_ratios: dict[str, Doubles]
) -> Trajectories:
    """Add a fitted Q to trajectories.

    Args:
        trajectories: Logged sessions.
        q: [D] Q of the logged lists.
        v: [D] V of the states.
        item_q: [D, k] q of the items of the logged lists, if it is known.
        place_ratios: Weighting → [D, k] log ratio at each place.
    """
    controls = {} if item_q is None else {name: control_variate(one, item_q) for name, one in place_ratios.items()}
    return replace(trajectories, q=q, v=v, controls=controls)
