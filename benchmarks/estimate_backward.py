"""Compare estimates of the top k with both layers of the GRU, and with the reward in the simulated shop.

    python benchmarks/estimate_backward.py DATASET… --runs FOLDER --out results/estimates-backward.json

Q is fitted once by PyTorch's layer and once by `GRULayer`, which fits use on a CPU. Both compute the same states and
gradients and round differently.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from evidence import baseline as baseline_option
from evidence import estimate, learner, world, write_results

VISITORS_SEED = 1_000_000
BASELINES, SR = ("mean-reward", "popular"), {"algorithm.name": "sr", "training.epochs": 2}


def policies_of(dataset: Any, folder: Path) -> dict[str, Any]:
    """Return the baselines, and SR after two epochs."""
    from offrec.baselines import baseline
    from offrec.console import Console
    from offrec.runs.train import train

    policies = {name: baseline(name, dataset, device=torch.device("cpu")) for name in BASELINES}
    run = folder / dataset.path.name
    return policies | {"sr": train(dataset, run, settings=SR, device="cpu", console=Console(quiet=True))}


def measure(policy: Any, dataset: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the true reward, the estimates and the CPU seconds of a policy."""
    from offrec.backbones.gru import GRU
    from offrec.console import Console
    from offrec.data.rewards import event_rewards
    from offrec.estimation import decision_values
    from offrec.estimation.decision_values import ValueOptions
    from offrec.estimation.fitted_q import collect_top_lists, fit_q
    from offrec.estimation.list_policy import ListPolicy
    from offrec.estimation.logged_decisions import LoggedDecisions
    from offrec.shop.store import Shop

    shop = Shop.from_meta(dataset.meta["shop"], policy.device)
    reward = shop.rollout(policy, arguments.visitors, play="topk", seed=VISITORS_SEED).reward
    result: dict[str, Any] = {"truth": reward.mean, "low": reward.low, "high": reward.high}
    list_policy, decisions = ListPolicy(policy, "topk", shop.world.k), LoggedDecisions.load(dataset, "test")
    lists = collect_top_lists(list_policy, LoggedDecisions.load(dataset, "train"))
    first = decisions.offsets[:-1]
    for name, layer in (("pytorch", type(None)), ("fast", GRU)):
        decision_values.GRU = layer  # type: ignore[misc, attr-defined]
        started, options = time.process_time(), ValueOptions(updates=arguments.updates)
        fitted = fit_q(list_policy, dataset, event_rewards(dataset, {}), 1.0, options, Console(True), top_lists=lists)
        result[name] = float(fitted.values(decisions).v[first].mean())
        result[f"{name}_seconds"] = time.process_time() - started
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+", help="prepared logs of picks")
    parser.add_argument("--runs", type=Path, required=True, help="where SR is trained")
    parser.add_argument("--visitors", type=int, default=4000)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import offrec

    rows: list[dict[str, Any]] = []
    made_with = {"fitted Q": estimate(updates=arguments.updates), "sr": learner(SR)}
    made_with |= {name: baseline_option(name) for name in BASELINES}
    for path in arguments.datasets:
        dataset = offrec.Dataset.open(path)
        shop = dataset.meta["shop"]
        for name, policy in policies_of(dataset, arguments.runs).items():
            rows.append({"world": shop["world"], "seed": shop["seed"], "policy": name})
            rows[-1] |= measure(policy, dataset, arguments)
            print(rows[-1], flush=True)
        made_with[shop["world"]] = world(shop["world"])
    command = "python benchmarks/estimate_backward.py DATASETS --runs RUNS --out FILE"
    write_results(arguments.out, rows, made_with, command=command, device="cpu")


if __name__ == "__main__":
    main()
