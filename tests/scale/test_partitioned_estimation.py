"""Estimates whose passes and fits run in parts equal those of one machine, bit for bit."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import InProcess

from offrec.commands.engines import load_baseline, load_run
from offrec.commands.estimate import Estimate
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.partitioned import RemotePasses
from offrec.estimation.passes import LocalPasses
from offrec.models.network import NetworkOptions
from offrec.policy import Policy
from offrec.runs.train import train
from offrec.training.loop import TrainingOptions
from small_datasets import write_dataset

ITEMS = 12
SL = {"network.width": 4, "training.epochs": 1, "algorithm.neighbours": 0}
USER_MODEL = {
    "algorithm.name": "user-model",
    "algorithm.types": 2,
    "algorithm.width": 2,
    "algorithm.choice": "logit",
    "training.epochs": 1,
}


def make_dataset(folder: Path, *, has_lists: bool) -> Dataset:
    random = np.random.default_rng(0)
    sessions, lists = [], []
    for _ in range(60):
        session = random.integers(0, ITEMS, random.integers(2, 6)).tolist()
        sessions.append(session)
        lists.append([(at, [item, (item + 5) % ITEMS], 0.02, at) for at, item in enumerate(session)])
    more = {"decisions": lists} if has_lists else {}
    return write_dataset(folder, sessions, None, (36, 4, 20), items=ITEMS, **more)


def trained(dataset: Dataset, out: Path, settings: dict[str, Any]) -> tuple[Policy, Any]:
    """Train a run; return its policy, and a function that loads it elsewhere."""
    policy = train(dataset, out, settings=settings, device="cpu", console=Console(quiet=True))
    return policy, partial(load_run, out, "cpu")


def both(policy: Policy, load: Any, dataset: Dataset, options: EstimateOptions) -> tuple[Any, Any]:
    """Return the estimate of one machine and that of several."""
    policies = {"policy": policy}
    one = estimate(policies, dataset, options)

    def remote(name: str, *more: Any) -> RemotePasses:
        assert name == "policy"
        return RemotePasses(InProcess(), load, *more)

    return one.as_json(), estimate(policies, dataset, options, remote=remote).as_json()


def test_estimates_with_fits_equal_those_of_one_machine(tmp_path: Path) -> None:
    """A log of picks: estimated propensities, ratios of clusters, and Q with resampled fits."""
    dataset = make_dataset(tmp_path, has_lists=False)
    policy, load = trained(dataset, tmp_path / "run", SL)
    values = ValueOptions(NetworkOptions(width=4, dropout=0.1), updates=6)
    options = EstimateOptions(
        estimators=("all",),
        refits=2,
        values=values,
        network=NetworkOptions(width=4),
        training=TrainingOptions(epochs=1),
        value_at_5=False,
    )
    one, several = both(policy, load, dataset, options)
    assert len(one["policies"][0]["estimates"]) > 3
    assert several == one


def test_lists_that_depend_on_earlier_lists_equal_those_of_one_machine(tmp_path: Path) -> None:
    """A user model, whose lists also depend on lists without a pick."""
    dataset = make_dataset(tmp_path, has_lists=True)
    policy, load = trained(dataset, tmp_path / "run", USER_MODEL)
    one, several = both(policy, load, dataset, EstimateOptions(play="topk", estimators=("importance", "capped")))
    assert several == one


def test_baselines_are_built_from_the_training_sessions(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, has_lists=True)
    load = partial(load_baseline, "markov", dataset.path, "cpu", 4)
    one, several = both(load(dataset), load, dataset, EstimateOptions(play="topk", estimators=("importance",)))
    assert several == one


@pytest.mark.parametrize("slots", [1, 50])
def test_probabilities_of_parts_of_lists_equal_those_of_one_machine(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offrec.estimation.served_policy.MAX_LOGITS", 5 * ITEMS)  # several batches
    dataset = make_dataset(tmp_path, has_lists=True)
    policy, load = trained(dataset, tmp_path / "run", SL)
    decisions = LoggedDecisions.load(dataset, "test")
    list_policy = ListPolicy(policy, "sample", decisions.k, temperature=0.7)
    cluster = torch.arange(dataset.n_items) % 3
    one = LocalPasses().list_probabilities(list_policy, decisions, cluster)
    remote = RemotePasses(InProcess(slots), load, "test", EstimateOptions())
    several = remote.list_probabilities(list_policy, decisions, cluster)
    for name in ("places", "sets", "picks", "included", "clusters", "cluster_items"):
        assert getattr(several, name).tobytes() == getattr(one, name).tobytes()
    assert len(one.picks) == len(decisions)


def test_a_table_needs_no_cluster() -> None:
    with pytest.raises(InputError, match=r"^--engine ray has no effect with --table, which contains all prob"):
        Estimate(table=("log.parquet",), probabilities="new", engine="ray").run()


def test_options_of_ray_need_the_engine() -> None:
    from offrec.commands.engines import RayOptions

    with pytest.raises(InputError, match="need --engine ray; add it or remove them"):
        Estimate(runs=(Path("run"),), ray=RayOptions(ray_address="10.0.0.1:6379")).run()
