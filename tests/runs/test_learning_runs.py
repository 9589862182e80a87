"""What a run gives to its learner, and what it logs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import FAST, QUIET, fast, trained

from offrec import logging_policy
from offrec.algorithms import LEARNERS
from offrec.catalogue import reference
from offrec.data.rewards import event_rewards, event_rewards_or_none, reward_shift
from offrec.data.transitions import transitions
from offrec.errors import InputError
from offrec.evaluation import Ranks, ScoredEvents
from offrec.logging_policy import fitting
from offrec.models.network import Network
from offrec.runs.loading import load
from offrec.runs.options import RunOptions, resolve_options
from offrec.runs.plan import plan_run
from offrec.runs.shared_data import SharedData
from offrec.runs.train import build_agent, mean_diagnostics, train_many
from offrec.training import checkpoint

pytestmark = pytest.mark.usefixtures("quick_logging_policy")

CPU = torch.device("cpu")
SESSIONS = [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)]
KINDS = [["view", "view", "cart"] if n % 2 else ["view", "cart", "view"] for n in range(40)]


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, SESSIONS, KINDS, splits=(30, 5, 5))


def options_of(name: str, **more: Any) -> RunOptions:
    return resolve_options({"algorithm.name": name, **fast(name), **more}, "events")


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_rewards_are_divided_by_the_standard_deviation_of_returns(dataset: Any) -> None:
    """With γ 0.5 and rewards 0.2 and 1, returns are 0.55, 0.7, 1 (cart last) or 0.75, 1.1, 0.2, half of each."""
    facts = plan_run(SharedData(dataset), options_of("dc", gamma=0.5), CPU).facts
    assert facts.unit == pytest.approx(np.std([0.55, 0.7, 1.0, 0.75, 1.1, 0.2]))
    assert (facts.discount_if_ignored, facts.shift) == (0.5, 0.0)
    assert facts.counts.tolist() == dataset.train_counts.tolist()
    assert plan_run(SharedData(dataset), options_of("dc", reward_unit="absolute"), CPU).facts.unit == 1.0


def test_shifted_rewards_are_shifted_for_ignored_items_too(dataset: Any) -> None:
    plan = plan_run(SharedData(dataset), options_of("sdac", reward_shift=True, reward_unit="absolute"), CPU)
    assert plan.facts.shift == -1.0
    rows = plan.epochs.replay.batch(np.arange(10))
    rewards = build_agent(plan).symbols(rows).rewards
    assert set(rewards[:, 0].tolist()) == {np.float32(0.2) - np.float32(1.0), 0.0}
    assert (rewards[:, 1:] == -1.0).all()
    assert reward_shift(np.array([-2.0, -0.5], dtype=np.float32)) == 0.0


NEEDS = dict.fromkeys(LEARNERS) | {
    "pg": "log_b",
    "sl+pg": "log_b",
    "sc": "network",
    "dc": "network",
    "re": "network",
}
OPTIONS: list[tuple[str, dict[str, Any], str | None]] = [
    *((name, {}, need) for name, need in NEEDS.items()),
    ("sc", {"algorithm.delta": 0}, None),
    ("sr", {"algorithm.adaptive": True}, "log_b"),
    ("sr", {"algorithm.adaptive": True, "algorithm.kl": "likelihood"}, None),
    ("sdac", {"algorithm.start": "supervised"}, "network"),
    ("pg", {"algorithm.logging": "own"}, None),
    ("dqn", {"algorithm.delta": 0.01}, "network"),
    ("dqn", {"critic.ground_draw": "logging"}, "network"),
    *((name, {"diagnostics": "all"}, "network") for name in ("dqn", "sl+dqn", "sdac", "sr", "pc", "dc")),
    *((name, {"diagnostics": "all"}, "both") for name in ("pg", "sl+pg")),
    ("sl+pg", {"algorithm.start": "supervised"}, "both"),
    ("pg", {"diagnostics": "all", "algorithm.logging": "own"}, None),
]


@pytest.mark.parametrize(("name", "more", "need"), OPTIONS)
def test_only_the_needed_parts_of_the_logging_policy_are_fitted(
    dataset: Any, name: str, more: dict[str, Any], need: str | None
) -> None:
    assert plan_run(SharedData(dataset), options_of(name, **more), CPU).logging == need


def test_runs_share_a_fitted_logging_policy(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = logging_policy.load_or_fit, []

    def recorded(*given: Any, need: Any, start: Any = None) -> Any:
        calls.append((given[3], need))
        return real(*given, need=need, start=start)

    monkeypatch.setattr(logging_policy, "load_or_fit", recorded)
    runs = {f"{name}-{seed}": {**FAST, "algorithm.name": name, "seed": seed, "device": "cpu"}
            for name in ("sl", "dc", "re", "sdac") for seed in (0, 1)}  # fmt: skip
    train_many(dataset, runs, tmp_path / "runs", console=QUIET)
    assert calls == [(0, "network"), (1, "network")]
    one, other = (load(tmp_path / f"runs/{name}", "cpu").agent.prior for name in ("dc-0", "re-0"))
    assert all(torch.equal(mine, its) for mine, its in zip(one.parameters(), other.parameters(), strict=True))
    calibration = json.loads((tmp_path / "runs/dc-0/run.json").read_text())["logging_policy"]
    assert calibration["network.log_likelihood"] < 0
    assert json.loads((tmp_path / "runs/sl-0/run.json").read_text())["logging_policy"] is None


def test_sl_has_one_network_and_no_critic_options(dataset: Any, tmp_path: Path) -> None:
    agent = trained(dataset, tmp_path / "run").agent
    assert {name.split(".")[0] for name in agent.state_dict()} == {"actor", "neighbours"}
    assert "diagnostics" not in records(tmp_path / "run")[0]
    assert not any(key.startswith("critic.") for key in options_of("sl").settings())


CRITICS = ["q_logged", "q_random", "return_logged"]
POLICIES = ["entropy", "kl_to_logging", "mass_rare"]
WITH_CRITIC = [name for name in LEARNERS if LEARNERS[name].learner().needs.critic != "none"]
SOME = {"dqn": CRITICS, "sl+dqn": ["entropy", *CRITICS], "pc": ["entropy", *CRITICS], "dc": [*POLICIES, *CRITICS]}


def logged(run: Path) -> list[list[str]]:
    return [list(epoch["diagnostics"]) for epoch in records(run)]


def test_diagnostics_all_are_logged_for_learners_with_a_critic(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for PG. All of them share one fit of π̂_b."""
    real, fits = fitting._trainer, []
    monkeypatch.setattr(fitting, "_trainer", lambda *given: fits.append(given[1].name) or real(*given))
    for name in (*WITH_CRITIC, "pg"):
        trained(dataset, tmp_path / name, algorithm=name, settings={"diagnostics": "all"})
        epochs = records(tmp_path / name)
        expected = POLICIES if name == "pg" else [*POLICIES, *CRITICS]
        assert logged(tmp_path / name) == [expected] * len(epochs)
        assert all(np.isfinite(list(epoch["diagnostics"].values())).all() for epoch in epochs)
        assert epochs[0]["validation"].keys() == {"HR@10", "NDCG@10", "reward@10"}
        assert json.loads((tmp_path / name / "run.json").read_text())["logging_policy"] is not None
    assert fits == ["π̂_b", "π̂_b without fold 1", "π̂_b without fold 2"]


@pytest.mark.parametrize("name", SOME)
def test_diagnostics_some_need_no_fit(dataset: Any, tmp_path: Path, name: str) -> None:
    trained(dataset, tmp_path / "run", algorithm=name)
    assert logged(tmp_path / "run") == [SOME[name]]
    assert (dataset.path / "logging").exists() == (name == "dc")


def test_diagnostics_do_not_change_the_run(dataset: Any, tmp_path: Path) -> None:
    runs = {
        which: {**FAST, "algorithm.name": "sdac", "diagnostics": which, "device": "cpu"} for which in ("all", "some")
    }
    train_many(dataset, runs, tmp_path, console=QUIET)
    one, other = (checkpoint.load(tmp_path / which / "last.safetensors")[0] for which in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_diagnostics_by_hand(dataset: Any) -> None:
    """Q, returns and entropy of the 15 events of five validation sessions, computed from full matrices."""
    plan = plan_run(SharedData(dataset), options_of("sdac", gamma=0.5), CPU)
    rows = [event for batch in plan.diagnostic_batches for event in batch.event.tolist()]
    assert sorted(rows) == list(range(90, 105))
    agent = build_agent(plan).eval()
    means = mean_diagnostics(agent, plan.diagnostic_batches)
    validation = dataset.split("validation")
    return_to_go = transitions(validation, event_rewards(dataset, {}), 0.5).return_to_go
    assert means["return_logged"] == pytest.approx(return_to_go.mean())
    q, entropy = [], []
    with torch.no_grad():
        for batch in plan.diagnostic_batches:
            values = reference.logits(agent.critic(batch)) * plan.facts.unit
            q += values.gather(1, batch.action[:, None])[:, 0].tolist()
            pi = reference.logits(agent.actor(batch)).softmax(1)
            entropy += (-(pi * pi.log()).sum(1)).tolist()
    assert means["q_logged"] == pytest.approx(np.mean(q), rel=1e-4)
    assert means["entropy"] == pytest.approx(np.mean(entropy), rel=1e-4)


def test_reward_ndcg_by_hand() -> None:
    """Ranks 1, 3 and 20 with rewards 0.2, 1, 1: (0.2 · 1 + 1 · ½ + 0) / 2.2."""
    ranks = Ranks(np.arange(3), np.array([0, 1, 1], dtype=np.uint8), np.array([1, 3, 20]))
    assert ranks.reward_ndcg(np.array([0.2, 1.0, 1.0], dtype=np.float32), 10) == pytest.approx(0.7 / 2.2)
    assert ranks.reward_ndcg(np.full(3, 3.0, dtype=np.float32), 10) == pytest.approx(ranks.metrics((10,))["NDCG@10"])


@pytest.mark.parametrize(("select", "best"), [("ndcg", 0), ("reward", 1), ("last", 1)])
def test_the_best_checkpoint_follows_the_selection_metric(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: str, best: int
) -> None:
    """Epoch 1 ranks every view first and no cart, epoch 2 the reverse: 10 views of reward 0.2, 5 carts of reward 1."""
    real, epochs = ScoredEvents.ranks_and_exposure, iter([0, 1])

    def ranks_and_exposure(self: ScoredEvents, policy: Any) -> Any:
        ranks, exposure = real(self, policy)
        return replace(ranks, rank=np.where(ranks.behaviour == next(epochs), 1, 99)), exposure

    monkeypatch.setattr(ScoredEvents, "ranks_and_exposure", ranks_and_exposure)
    trained(dataset, tmp_path / "run", settings={"select": select, "training.epochs": 2})
    figures = [epoch["validation"] for epoch in records(tmp_path / "run")]
    assert [epoch["NDCG@10"] for epoch in figures] == pytest.approx([10 / 15, 5 / 15])
    assert [epoch["reward@10"] for epoch in figures] == pytest.approx([2 / 7, 5 / 7])
    assert checkpoint.load(tmp_path / "run/best.safetensors")[1]["progress"]["best_epoch"] == best


def test_selection_by_reward_needs_rewards(tmp_path: Path, make_dataset: Any) -> None:
    dataset = make_dataset(tmp_path, SESSIONS, [["wave", "nod", "nod"]] * 40, splits=(30, 5, 5))
    with pytest.raises(InputError, match="behaviour 'wave' has no reward"):
        trained(dataset, tmp_path / "run", settings={"select": "reward"})
    trained(dataset, tmp_path / "run")
    assert "reward@10" not in records(tmp_path / "run")[0]["validation"]
    assert event_rewards_or_none(dataset, {}) is None
    assert event_rewards_or_none(dataset, {"wave": 0.0, "nod": 0.0}) is None


@pytest.mark.parametrize(("name", "more"), [("sl", {}), ("dc", {}), ("sl+dqn", {}), ("pg", {}), ("dqn", {}),
                                            ("sr", {"algorithm.adaptive": True}),
                                            ("re", {"critic.width": 24, "critic.ground_draw": "popular"}),
                                            ("sdac", {"diagnostics": "all"}),
                                            ("pg", {"diagnostics": "all"})])  # fmt: skip
def test_the_memory_plan_counts_target_and_prior(dataset: Any, name: str, more: dict[str, Any]) -> None:
    plan = plan_run(SharedData(dataset), options_of(name, **more), CPU)
    prior = Network(dataset.n_items, plan.options.network) if plan.logging in ("network", "both") else None
    log_b = torch.zeros(dataset.sessions.events) if plan.logging in ("log_b", "both") else None
    agent = build_agent(plan, prior, log_b)
    size = sum(tensor.nbytes for tensor in (*agent.parameters(), *agent.buffers()))
    if prior is not None and agent.prior is None:
        size += sum(weights.nbytes for weights in prior.parameters())
    assert plan.memory.parameters == size
    trainable = [p.nbytes for p in agent.parameters() if p.requires_grad]
    assert (plan.memory.gradients, plan.memory.optimiser) == (sum(trainable), 2 * sum(trainable))


def test_a_run_is_refused_before_anything_is_fitted(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging_policy, "load_or_fit", lambda *given, **more: pytest.fail("π̂_b was fitted"))
    with pytest.raises(InputError, match=r"gamma = 1.* lower gamma or set critic\.ground=0"):
        trained(dataset, tmp_path / "run", algorithm="dc", settings={"gamma": 1})
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="exists; choose another --out"):
        trained(dataset, tmp_path / "run", algorithm="dc")
    assert not any((tmp_path / "run").iterdir())


def test_gamma_1_is_allowed_without_grounding(dataset: Any, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "run", algorithm="sdac", settings={"gamma": 1, "critic.ground": 0})
    assert all(np.isfinite(value) for value in records(tmp_path / "run")[0]["loss"].values())


def test_runs_of_an_older_format_are_refused(dataset: Any, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "run")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps({**facts, "run_version": 2}))
    with pytest.raises(InputError, match="has run format 2; this version of offrec reads format 8; train"):
        load(tmp_path / "run")


@pytest.mark.parametrize("preset", ["strong", "paper"])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_trains_in_both_presets(dataset: Any, tmp_path: Path, name: str, preset: str) -> None:
    policy = trained(dataset, tmp_path / "run", algorithm=name, preset=preset)
    losses = records(tmp_path / "run")[0]["loss"]
    assert all(np.isfinite(value) for value in losses.values())
    assert load(tmp_path / "run", "cpu").recommend([100], 3) == policy.recommend([100], 3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"catalogue": "kernels", "device": "cpu"}, "kernels need a GPU"),
        ({"algorithm.weight": "reward", "reward.view": -1.0}, "cannot be a weight"),
    ],
)
def test_a_run_that_cannot_train_writes_nothing(
    dataset: Any, tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(dataset, tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()
