"""Studies with invented results, so that the right report is known. Nothing is trained."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.arrays import describe_array
from offrec.data.json_files import write_json
from offrec.data.protocol import Protocol
from offrec.evaluation.metrics import compute_metrics
from offrec.reports.tables import Cell, Table
from offrec.studies.folder import write_study
from offrec.studies.results import Measurements
from offrec.studies.stored_results import RANK_CAP, write_result
from offrec.studies.study import PolicyKind, Run, RunGroup, Study, StudyDataset, StudyKind

LEARNERS = ("sl", "dqn", "pg", "sl+dqn", "sl+pg", "sdac", "sc", "sr", "pc", "dc", "re")
BASELINES = ("popular", "recent", "mean-reward", "markov", "sknn", "vsknn")
OWN = ("random", "logging", "greedy", "informed", "oracle")
TWIN, SAMPLED = " twin", "sl sampled"
VISITORS, INFORMED_VISITORS = 500, 100
MACHINE = {"offrec": "0.1.0", "commit": "abc1234", "python": "3.11", "torch": "2.13.0", "system": "Linux",
           "processor": "2 × invented", "device": "cpu"}  # fmt: skip


def made_log(name: str = "yoochoose", behaviours: Sequence[str] = ("view", "cart"), **protocol: Any) -> StudyDataset:
    counts = {"sessions": 4000, "events": 20000, "items": 500}
    stored = Protocol(**protocol).as_json()
    return StudyDataset(
        name, name, f"/nowhere/{name}", f"print-{name}", f"hash-{name}", stored, counts, list(behaviours), None
    )


def made_study(
    folder: Path,
    logs: Sequence[StudyDataset],
    hits: Mapping[str, float],
    *,
    earned: Mapping[str, float] | None = None,
    backbones: Sequence[str] = ("gru",),
    seeds: int = 3,
    sessions: int = 400,
    kind: StudyKind = "compare",
) -> Study:
    """Make a study.

    Args:
        hits: Policy → share of events whose item is among its top 20. "dc twin" is DC without look-ahead.
        earned: Policy → true reward per session. "sl sampled" is the reward of lists sampled from SL.
    """
    names = [name for name in dict.fromkeys([*hits, *(earned or {})]) if name != SAMPLED]
    groups: list[RunGroup] = []
    for log in logs:
        for name in names:
            learner = name.removesuffix(TWIN)
            if learner in LEARNERS:
                is_twin = name != learner
                options = {"select": "ndcg", "algorithm.name": learner, "gamma": 0.0 if is_twin else 0.9}
                label = f"{learner.upper()}, γ = 0" if is_twin else None
                groups += [
                    RunGroup(
                        f"{log.name}.{name.replace(' ', '.')}.{b}", log.name, "learner", learner, b, "strong", options,
                        policy_label=label, is_twin=is_twin, ranks_by_critic=learner in ("dqn", "dc"),
                    )
                    for b in backbones
                ]  # fmt: skip
            else:
                own: PolicyKind = "shop" if name in OWN else "baseline"
                groups.append(RunGroup(f"{log.name}.{name}", log.name, own, name))
    runs = [
        Run(f"{group.name}.{seed}", group.name, group.log, seed)
        for group in groups
        for seed in range(seeds if group.kind == "learner" else 1)
    ]
    study = Study(folder, kind, tuple(logs), tuple(groups), tuple(runs), visitors=VISITORS)
    write_study(study)
    for run in runs:
        group = study.group(run)
        name = group.policy + TWIN * group.is_twin
        result = made_result(study, run, hits.get(name), (earned or {}).get(name), sessions)
        if group.policy == "sl" and earned and SAMPLED in earned:
            other = made_result(study, run, None, earned[SAMPLED], sessions)
            result.facts["shop_sampled"] = other.facts["shop"]
            result.arrays["rewards_sampled"] = other.arrays["rewards"]
        write_result(study, run, result.facts, result.arrays)
    return study


def replace_array(study: Study, name: str, kind: str, array: Any) -> None:
    """Replace an array of a stored result, with the right checksum."""
    path = study.path("results", f"{name}.json")
    facts = json.loads(path.read_text())
    facts["arrays"][kind] = describe_array(array)
    (run,) = (run for run in study.runs if run.name == name)
    np.save(path.with_name(f"{run.dataset if kind == 'events' else name}.{kind}.npy"), array)
    write_json(path, facts)


def made_result(study: Study, run: Run, hit: float | None, reward: float | None, sessions: int) -> Measurements:
    """Make sessions of five events; every fifth event has the log's last behaviour. Hard events are hard for all."""
    group, log = study.group(run), study.dataset(run.dataset)
    random = np.random.default_rng([sum(map(ord, run.name)), run.seed])
    facts: dict[str, Any] = {
        "seconds": 2.0, "concurrent_seeds": 1, "peak_memory": 2**28, "finished_at": "2026-01-01T10:00:00+00:00",
        "machine": MACHINE,
    }  # fmt: skip
    arrays: dict[str, Any] = {}
    if hit is not None:
        session = np.repeat(np.arange(sessions), 5)
        behaviour = np.where(np.arange(len(session)) % 5 == 4, len(log.behaviours) - 1, 0)
        hard = np.random.default_rng(0).random(len(session))
        noise = random.random(len(session))
        rank = np.where(0.9 * hard + 0.1 * noise < hit, 1 + random.geometric(0.25, len(session)) % 20, RANK_CAP)
        arrays["events"] = np.stack([session, behaviour]).astype(np.uint32)
        arrays["ranks"] = rank.astype(np.uint8)
        table = {"all": compute_metrics(rank, (5, 10, 20))}
        table |= {name: compute_metrics(rank[behaviour == n], (5, 10, 20)) for n, name in enumerate(log.behaviours)}
        facts["test"] = {name: {"events": one.events, **one.values} for name, one in table.items()}
        facts["test"]["all"]["reward@10"] = facts["test"]["all"]["NDCG@10"]
        facts["validation"] = facts["test"]
    if reward is not None:
        luck = np.random.default_rng(1).exponential(1.0, VISITORS)
        rewards = reward * luck + 0.02 * random.standard_normal(VISITORS)
        rewards = rewards[:INFORMED_VISITORS] if group.policy == "informed" else rewards
        arrays["rewards"] = rewards.astype(np.float32)
        middle, half = float(rewards.mean()), 1.96 * float(rewards.std()) / len(rewards) ** 0.5
        mean = {"mean": middle, "low": middle - half, "high": middle + half}
        facts["shop"] = {
            "world": "demo", "seed": 3, "rollout_seed": 7, "sessions": len(rewards), "population": VISITORS,
            "policy": group.policy, "play": "topk", "skip_recent": 0, "k": 5, "cut": 0.0,
            "reward": mean, "discounted": {"gamma": 1.0, **mean}, "steps": {**mean, "mean": 4.0},
            "length": {**mean, "mean": 4.0}, "purchases": {**mean, "mean": 0.2},
        }  # fmt: skip
    if group.kind == "learner":
        facts["learning_curve"] = [made_epoch(group.policy, n, hit or 0.3, random) for n in range(1, 9)]
        facts |= {"selected_epoch": 8, "resumed": False, "logging_policy": None}
    return Measurements(facts, arrays)


def made_epoch(policy: str, epoch: int, hit: float, random: np.random.Generator) -> dict[str, Any]:
    so_far = hit * (1 - 0.6**epoch) + 0.003 * random.standard_normal()
    row: dict[str, Any] = {"epoch": epoch, "validation": {"NDCG@10": so_far, "HR@10": 2 * so_far}}
    if policy != "sl":
        far = 0.4 * LEARNERS.index(policy)
        row["diagnostics"] = {"q_logged": 0.6 + 0.1 * epoch, "return_logged": 0.9, "q_random": 0.2, "entropy": 2.0,
                              "kl_to_logging": far, "mass_rare": 0.01 * far}  # fmt: skip
    return row


def row(table: Table, label: str) -> list[Cell]:
    return next(row.cells for row in table.rows if row.label == label)


def made_sweep(folder: Path, learner: str) -> Study:
    """Make a sweep of one value, compared with SL."""
    made = made_study(folder, [made_log()], {learner: 0.6, "sl": 0.5}, kind="sweep")
    varied, sl = (
        replace(group, varied={"algorithm.alpha": 1.0})
        if group.policy == learner
        else replace(group, compare_with="algorithm.name=sl")
        for group in made.groups
    )
    made = replace(made, groups=(varied, sl))
    write_study(made)
    return made
