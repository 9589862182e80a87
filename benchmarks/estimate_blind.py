"""Measure in a simulated shop how hidden knowledge of the logging policy biases the direct method.

    python benchmarks/estimate_blind.py --seed 0 --out FILE [--sessions 12000] [--updates 2000]

The shop's own policy knows the visitors' tastes, which no state contains. Policies without this knowledge, but similar
to the log, are evaluated on a new log of lists of one. Fitted Q with equal weights and with exposure weights
(of the current decision, or of all decisions so far) is compared with what the policies earn from 6,000 new visitors.
Takes about twenty minutes on one core.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import offrec
from evidence import estimate, script_arguments, world, write_results
from offrec.catalogue import Head
from offrec.console import Console
from offrec.data.rewards import event_rewards
from offrec.estimation import fitted_q
from offrec.estimation.collect import collect_trajectories, reward_trajectories
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.support import compute_support
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.shop.store import Shop
from offrec.types import Batch

VISITORS, VISITORS_SEED = 6000, 1_000_000
exposure_weights = LoggedDecisions.exposure_weights
WEIGHTS = {
    "equal": lambda log: None,
    "current step, no cap": partialmethod(exposure_weights, cap=np.inf, earlier=False),
    "current step": partialmethod(exposure_weights, earlier=False),
    "all steps": exposure_weights,
}


class Same(Policy):
    """Has the same probabilities in every state, except for a bonus on the item picked last."""

    stochastic = True

    def __init__(self, name: str, dataset: Any, chances: Any, again: float = 0.0) -> None:
        super().__init__(dataset.vocabulary, 5, torch.device("cpu"), dataset.meta["data_hash"])
        self.name, self.again = name, again
        self.logits = torch.from_numpy(np.log(chances)).float()

    def head(self, batch: Batch) -> Head:
        nothing, table = self.logits.new_zeros(len(batch), 0), self.logits.new_zeros(len(self.logits), 0)
        return Head(nothing, table, self.logits, batch.recent[:, :1], torch.full((len(batch), 1), self.again))


def policies(dataset: Any, rewards: Any) -> list[Same]:
    train = LoggedDecisions.load(dataset, "train")
    item, reward = train.lists[:, 0], reward_trajectories(train, rewards).reward
    shown = np.bincount(item, minlength=dataset.n_items)
    rate = (np.bincount(item, reward, minlength=dataset.n_items) + 5 * reward.mean()) / (shown + 10)
    return [
        Same("as often as the log", dataset, shown + 0.5),
        Same("all alike", dataset, np.ones(dataset.n_items)),
        Same("what earned most, more often", dataset, (shown + 0.5) * np.exp(rate / rate.std())),
        Same("as the log, the last pick more often", dataset, (shown + 0.5) / (shown + 0.5).sum(), again=5.0),
    ]


def direct(played: ListPolicy, dataset: Any, rewards: Any, options: ValueOptions) -> float:
    test = LoggedDecisions.load(dataset, "test")
    result = fitted_q.fit_q(played, dataset, rewards, 1.0, options, Console(quiet=True)).values(test)
    return float(replace(reward_trajectories(test, rewards), q=result.q, v=result.v).start_values.mean())  # type: ignore[union-attr]


def evaluate_policy(policy: Same, dataset: Any, rewards: Any, shop: Shop, options: ValueOptions) -> dict[str, Any]:
    played = ListPolicy(policy, "sample", 1)
    steps = collect_trajectories(played, LoggedDecisions.load(dataset, "test"), rewards, None)
    truth = shop.rollout(policy, VISITORS, play="sample", seed=VISITORS_SEED).reward
    values = {}
    for name, weights in WEIGHTS.items():
        with mock.patch.object(LoggedDecisions, "exposure_weights", weights):
            values[name] = direct(played, dataset, rewards, options)
    overlap = compute_support("direct", steps, 1.0, np.inf).overlap
    return {
        "policy": policy.name,
        "truth": truth.mean,
        "low": truth.low,
        "high": truth.high,
        "overlap": overlap,
        **values,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=12000)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = ValueOptions(NetworkOptions(width=32, dropout=0.1), CriticOptions(target_rate=0.1), arguments.updates,
                           batch_size=512)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "offrec"]
        log, data = f"{folder}/log", f"{folder}/data"
        made = ["--world", "demo", "--seed", str(arguments.seed), "-k", "1", "--sessions", str(arguments.sessions)]
        parts = ["--format", "decisions", "--split-parts", "6", "1", "3", "--out", data]
        for more in (["shop", *made, "--out", log], ["prepare", f"{log}/full.parquet", *parts]):
            subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
        dataset = offrec.Dataset.open(data)
        rewards, shop = event_rewards(dataset, {}), Shop.from_meta(dataset.meta["shop"])
        steps = reward_trajectories(LoggedDecisions.load(dataset, "test"), rewards)
        result = {"seed": arguments.seed, "logged": float(steps.reward.sum() / len(steps)), "policies": []}
        for policy in policies(dataset, rewards):
            started = time.time()
            result["policies"].append(evaluate_policy(policy, dataset, rewards, shop, options))
            print(result["policies"][-1], f"{time.time() - started:.0f} s", flush=True)
    made_with = {"script": script_arguments(arguments), "demo": world("demo")}
    made_with["fitted Q"] = estimate(updates=arguments.updates, batch_size=512)
    write_results(arguments.out, result, made_with)


if __name__ == "__main__":
    main()
