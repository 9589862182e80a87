"""Estimate the value of policies trained on a log without ground truth, with every estimator.

    python benchmarks/estimate_events.py DATASET RUNS --out FOLDER [--refits 4] [--updates 1000] [--device auto]
    python benchmarks/estimate_events.py DATASET RUNS --out FOLDER --summary FILE.json --picture FILE.svg

RUNS contains run folders of the dataset; each policy samples one item. The first command writes FOLDER/<run>.json and
.npz for each run and skips existing ones; it needs only torch, numpy and safetensors. The second also needs scipy and
matplotlib. It writes what `offrec estimate --estimator all --json` writes, and a picture of the recommended estimator.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimate_shop import fit_variants
from evidence import estimate, protocol, read_results, trained, write_results

COLUMNS = ("offsets", "reward", "log_pi", "log_b", "q", "v", "rare_mass")


def one(run: Path, data: Path, arguments: argparse.Namespace) -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    import offrec

    dataset, policy = offrec.Dataset.open(data), offrec.load(run, arguments.device)
    scored = offrec.evaluate(policy, dataset, "test").metrics["all"].values
    steps, values, again, error = fit_variants(policy, dataset, "sample", 1, arguments)
    result = {
        "name": run.name,
        "direct": values["direct"],
        "refits": again,
        "propensity_error": error,
        "figures": {key: scored[key] for key in ("HR@5", "NDCG@10")},
    }
    settings = json.loads((run / "run.json").read_text())["options"]
    made_with = {run.name: trained(settings, dataset.protocol.format)}
    made_with |= {"protocol": protocol(**dataset.protocol.as_json())}
    made_with["fitted Q"] = estimate(updates=arguments.updates, batch_size=arguments.batch_size)
    temporary = arguments.out / f".{run.name}.npz"
    with temporary.open("wb") as file:
        np.savez_compressed(
            file, **{name: getattr(steps, name) for name in COLUMNS}, log_cluster_ratio=steps.log_ratios["clusters"]
        )
    temporary.replace(arguments.out / f"{run.name}.npz")
    command = "python benchmarks/estimate_events.py DATASET RUNS --out FOLDER"
    write_results(arguments.out / f"{run.name}.json", result, made_with, command=command, device=policy.device.type)
    print(run.name, result, flush=True)


def comparison(data: Path, out: Path) -> tuple[Any, dict[str, Any]]:
    """Read the estimates and the next-item metrics of each run from the first command's files."""
    import numpy as np

    import offrec
    from offrec.data.rewards import event_rewards
    from offrec.estimation.collect import reward_trajectories
    from offrec.estimation.estimate import difference_to_log, logged_value
    from offrec.estimation.logged_decisions import LoggedDecisions
    from offrec.estimation.options import EstimateOptions, available_estimators
    from offrec.estimation.result import EstimateResult
    from offrec.estimation.result import PolicyEstimate as Row
    from offrec.estimation.trajectories import Trajectories
    from offrec.estimation.verdict import assess

    dataset, options = offrec.Dataset.open(data), EstimateOptions(estimators=("all",))
    policies, figures, error = [], {}, 0.0
    parts = reward_trajectories(LoggedDecisions.load(dataset, "test"), event_rewards(dataset, {})).reward_by_behaviour
    for path in sorted(out.glob("*.json")):
        row, stored = read_results(path), np.load(path.with_suffix(".npz"))
        ratios = {"clusters": stored["log_cluster_ratio"]}
        steps = Trajectories(**{name: stored[name] for name in COLUMNS}, log_ratios=ratios, reward_by_behaviour=parts)
        assessed, differences = {}, {}
        for name in available_estimators(steps):
            refits = np.array(row["refits"]) if name == "direct" and row["refits"] else None
            assessed[name] = assess(name, steps, refits=refits, propensity_error=row["propensity_error"])
            differences[name] = difference_to_log(name, steps, options, refits)
        policies.append(Row(row["name"], "sample", 1, steps, assessed, differences))
        figures[row["name"]], error = row["figures"], row["propensity_error"]
    around = logged_value(policies[0].trajectories, options)
    whole = EstimateResult(
        source=dataset.path,
        fingerprint=dataset.fingerprint,
        notes=(),
        options=options,
        has_propensities=False,
        calibration={"calibration_error": error},
        logged=around,
        sessions=len(policies[0].trajectories),
        split="test",
        sessions_note="",
        policies=policies,
    )
    return whole, figures


def summary(arguments: argparse.Namespace) -> None:
    from offrec.estimation.forest_plot import draw_forest_plot

    whole, figures = comparison(arguments.dataset, arguments.out)
    result = whole.as_json()
    for row in result["policies"]:
        row["figures"] = figures[row["name"]]
        for assessment in row["estimates"].values():
            del assessment["support"]["effective_sessions_by_step"]  # long and not needed here
    content, files = {**result, "source": arguments.dataset.name}, sorted(arguments.out.glob("*.json"))
    write_results(arguments.summary, content, {}, made_from=files)
    best = [replace(one, assessments={"direct": one.assessments["direct"]}) for one in whole.policies]
    if arguments.picture is not None:
        draw_forest_plot(replace(whole, policies=best), arguments.picture)
    for one in whole.policies:
        for name, assessment in one.assessments.items():
            around = assessment.interval
            shown = f"{around.estimate:8.3f} ({around.low:.3f} … {around.high:.3f})"
            verdict = f"{assessment.verdict}{', withheld' * assessment.is_withheld}"
            print(f"{one.name:12s} {name:24s} {shown}  {verdict}: {assessment.reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--refits", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-capture", action="store_true", help="do not use CUDA graphs in fitted Q")
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    arguments.variants = 1
    if arguments.summary is not None:
        summary(arguments)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.runs.rglob("run.json")):
        if not (arguments.out / f"{path.parent.name}.json").exists():
            one(path.parent, arguments.dataset, arguments)


if __name__ == "__main__":
    main()
