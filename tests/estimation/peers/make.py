"""Write the estimates of SCOPE-RL and obp on small cases to numbers.json, together with the cases.

Run once in a separate environment. The metadata of obp exclude Python 3.11, but its code works with it:

    pip install --no-deps --ignore-requires-python -r tests/estimation/peers/requirements.txt
    python tests/estimation/peers/make.py

SCOPE-RL needs sessions of equal length. Shorter sessions are therefore continued in an absorbing state with one action,
reward 0 and Q 0. Names: PDIS is importance, SNPDIS is self_normalised, DM is direct, DR is doubly_robust, and SNDR is
weighted_doubly_robust. SCOPE-RL adds 1e-10 to mean weights, so results are equal up to that.

obp supports one decision per session. IPW is importance and, with its lambda, capped; SNIPW is self_normalised; SNDR
normalises by the mean weight; SNMIPW with the true p(e|a) is marginal, with clusters as embeddings. obp has no OffCEM:
marginal_doubly_robust is its SNDR with propensities π(a) / ρ, so that its weights are the ratios ρ of the clusters.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from obp import ope as bandit
from scope_rl.ope.discrete import basic_estimators as scope

OUT = Path(__file__).with_name("numbers.json")
ACTIONS, CLUSTERS, CAP = 4, 2, 1.25


def chances(random: np.random.Generator, rows: int) -> np.ndarray:
    z = random.normal(size=(rows, ACTIONS))
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


def case(lengths: list[int], gamma: float, seed: int) -> dict[str, Any]:
    """Flat decisions: probabilities and Q of all actions, the chosen action and its reward."""
    random, rows = np.random.default_rng(seed), sum(lengths)
    b = chances(random, rows)
    return {
        "lengths": lengths,
        "gamma": gamma,
        "pi": chances(random, rows),
        "b": b,
        "q": random.normal(size=(rows, ACTIONS)),
        "action": np.array([random.choice(ACTIONS, p=p) for p in b], int),
        "reward": random.normal(size=rows),
    }


def padded(one: dict[str, Any]) -> dict[str, Any]:
    """The input of SCOPE-RL: every session padded to the longest."""
    horizon, sessions = max(one["lengths"]), len(one["lengths"])
    over = np.arange(horizon) >= np.array(one["lengths"])[:, None]
    only = np.eye(ACTIONS)[np.zeros(sessions * horizon, int)]
    rows = np.flatnonzero(~over.ravel())
    pi, q, action = only.copy(), np.zeros_like(only), np.zeros(len(only), int)
    pscore, reward = np.ones(len(only)), np.zeros(len(only))
    pi[rows], q[rows], action[rows], reward[rows] = one["pi"], one["q"], one["action"], one["reward"]
    pscore[rows] = one["b"][np.arange(len(rows)), one["action"]]
    return {
        "step_per_trajectory": horizon,
        "action": action,
        "reward": reward,
        "pscore": pscore,
        "evaluation_policy_action_dist": pi,
        "state_action_value_prediction": q,
        "gamma": one["gamma"],
    }


def by_scope(one: dict[str, Any]) -> dict[str, float]:
    names = {
        "importance": scope.PerDecisionImportanceSampling,
        "self_normalised": scope.SelfNormalizedPDIS,
        "direct": scope.DirectMethod,
        "doubly_robust": scope.DoublyRobust,
        "weighted_doubly_robust": scope.SelfNormalizedDR,
    }
    return {name: float(kind().estimate_policy_value(**padded(one))) for name, kind in names.items()}


def by_obp(one: dict[str, Any]) -> dict[str, float]:
    rows, action = len(one["action"]), one["action"]
    cluster = np.arange(ACTIONS) % CLUSTERS
    given = {
        "reward": one["reward"],
        "action": action,
        "pscore": one["b"][np.arange(rows), action],
        "action_dist": one["pi"][:, :, None],
        "position": np.zeros(rows, int),
        "estimated_rewards_by_reg_model": one["q"][:, :, None],
    }
    embedded = {**given, "action_embed": cluster[action][:, None], "pi_b": one["b"][:, :, None]}
    embedded["p_e_a"] = np.eye(CLUSTERS)[cluster][:, :, None]
    inside = cluster == cluster[action][:, None]
    ratio = (one["pi"] * inside).sum(1) / (one["b"] * inside).sum(1)
    clustered = {**given, "pscore": one["pi"][np.arange(rows), action] / ratio}
    found = {
        "importance": bandit.InverseProbabilityWeighting().estimate_policy_value(**given),
        "capped": bandit.InverseProbabilityWeighting(lambda_=CAP).estimate_policy_value(**given),
        "self_normalised": bandit.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**given),
        "direct": bandit.DirectMethod().estimate_policy_value(**given),
        "doubly_robust": bandit.DoublyRobust().estimate_policy_value(**given),
        "weighted_doubly_robust": bandit.SelfNormalizedDoublyRobust().estimate_policy_value(**given),
        "marginal": bandit.SelfNormalizedMarginalizedInverseProbabilityWeighting(
            n_actions=ACTIONS, embedding_selection_method=None
        ).estimate_policy_value(**embedded),
        "marginal_doubly_robust": bandit.SelfNormalizedDoublyRobust().estimate_policy_value(**clustered),
    }
    return {name: float(number) for name, number in found.items()}


def main() -> None:
    cases = {
        "equal": case([3] * 20, 0.9, seed=1),
        "of any length": case([2, 5, 0, 1, 3, 7, 1, 0, 4, 2, 6, 1], 0.8, seed=2),
        "undiscounted": case([1, 4, 2, 8, 3, 3, 1], 1.0, seed=3),
        "one decision": case([1] * 30, 1.0, seed=4),
    }
    written = []
    for name, one in cases.items():
        peers = {"SCOPE-RL 0.2.1": by_scope(one)}
        if max(one["lengths"]) == 1:
            peers["obp 0.5.7"] = by_obp(one)
        flat = {key: part.tolist() if isinstance(part, np.ndarray) else part for key, part in one.items()}
        written.append({"name": name, **flat, "cap": CAP, "clusters": CLUSTERS, "estimates": peers})
    OUT.write_text("[\n" + ",\n".join(json.dumps(one) for one in written) + "\n]\n")


if __name__ == "__main__":
    main()
