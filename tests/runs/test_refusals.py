"""Input that a run refuses, the messages, and that nothing is overwritten."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_runs import QUIET, trained

import offrec
from offrec.algorithms import LEARNERS, LearnerRecord, Needs
from offrec.algorithms.supervised import Supervised
from offrec.errors import InputError
from offrec.runs.folder import ADVICE
from offrec.runs.loading import load
from offrec.runs.train import train


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Any:
    return make_dataset(tmp_path, [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)], splits=(30, 5, 5))


def test_force_replaces_runs_and_nothing_else(dataset: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("not a run")
    for out in (tmp_path / "other", dataset.path, tmp_path):
        with pytest.raises(InputError, match="--force does not replace it"):
            trained(dataset, out, force=True)
    assert (tmp_path / "other/notes.txt").read_text() == "not a run"
    assert (dataset.path / "dataset.json").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        trained(dataset, tmp_path / "file", force=True)
    with pytest.raises(InputError, match="cannot be written"):
        trained(dataset, tmp_path / "file" / "run")
    trained(dataset, tmp_path / "run")
    trained(dataset, tmp_path / "run", force=True, seed=1)
    assert json.loads((tmp_path / "run/run.json").read_text())["options"]["seed"] == 1
    assert not list(tmp_path.glob(".*partial"))


def test_evaluate_refuses_unknown_splits(dataset: Any, tmp_path: Path) -> None:
    policy = trained(dataset, tmp_path / "run")
    for one in (policy, offrec.baseline("popular", dataset)):
        with pytest.raises(InputError, match=r"split must be one of .*; got 'tset'"):
            offrec.evaluate(one, dataset, "tset")  # type: ignore[arg-type]


def test_recommend_refuses_empty_candidates_and_text(dataset: Any, tmp_path: Path) -> None:
    policy = trained(dataset, tmp_path / "run")
    everything = list(range(100, 107))
    with pytest.raises(InputError, match="No item is left to recommend"):
        policy.recommend([100], 3, exclude=everything)
    with pytest.raises(InputError, match="No item is left to recommend"):
        policy.recommend([100], 3, candidates=[100], exclude_seen=True)
    with pytest.raises(InputError, match="must be a list of item ids"):
        policy.recommend("100,101", 3)


def test_a_checkpoint_of_another_run_is_refused(dataset: Any, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "one")
    trained(dataset, tmp_path / "two", settings={"network.width": 12})
    (tmp_path / "two/last.safetensors").write_bytes((tmp_path / "one/last.safetensors").read_bytes())
    with pytest.raises(InputError, match="does not fit this run"):
        trained(dataset, tmp_path / "two", settings={"network.width": 12}, resume=True)


@pytest.mark.parametrize("content", ["[]", "{}", "not json"])
def test_a_damaged_run_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"\x80\xff\x00garbage", "it is not text"),
        (b"not json", "line 1 is not valid JSON"),
        (b'{\n  "a": 1,\n  "b', "it ends within line 3"),
        (b'{\n  "a": 1,\n', "it ends within line 3"),
        (b'{\n  "a": [1', "it ends within line 2"),
        (b"[" * 100_000, "it is nested more than 64 levels deep"),
    ],
)
def test_a_run_json_that_is_not_json_is_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'run.json'} is damaged: {reason}; {ADVICE}."


def test_sl_needs_rewards_only_if_it_weights_by_them(tmp_path: Path, make_dataset: Any) -> None:
    sessions = [[n % 7, (n + 1) % 7] for n in range(40)]
    dataset = make_dataset(tmp_path, sessions, [["wave", "nod"]] * 40, splits=(30, 5, 5))
    trained(dataset, tmp_path / "run")
    with pytest.raises(InputError, match="behaviour 'wave' has no reward"):
        trained(dataset, tmp_path / "weighted", settings={"algorithm.weight": "reward"})
    zero = {"algorithm.weight": "reward", "reward.wave": 0, "reward.nod": 0}
    with pytest.raises(InputError, match="has reward 0"):
        trained(dataset, tmp_path / "weighted", settings=zero)
    assert not (tmp_path / "weighted").exists()


def test_the_default_options_learn_a_small_log(tmp_path: Path, make_dataset: Any) -> None:
    """The next item is certain except for repeats; the default options must learn it and beat the recent items."""
    import numpy as np

    random = np.random.default_rng(0)
    sessions = []
    for _ in range(500):
        session = [int(random.integers(40))]
        for _ in range(random.integers(2, 8)):
            session.append(session[-1] if random.random() < 0.3 else (session[-1] * 7 + 3) % 40)
        sessions.append(session)
    dataset = make_dataset(tmp_path, sessions, splits=(400, 50, 50), score_first=False)
    policy = train(dataset, tmp_path / "run", device="cpu", console=QUIET)
    hit_rate = {p.name: offrec.evaluate(p, dataset).metrics["all"]["HR@5"] for p in (policy, *_baselines(dataset))}
    assert hit_rate["sl/gru"] > 0.95
    assert hit_rate["sl/gru"] > hit_rate["recent"] + 0.3


def _baselines(dataset: Any) -> list[Any]:
    return [offrec.baseline(name, dataset) for name in ("recent", "markov")]


@dataclass(frozen=True)
class RewardWeighted(Supervised):
    needs = Needs(weights_by_reward=True)
    needs_reward = True


def test_every_learner_that_weights_by_reward_refuses_negative_rewards(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = LearnerRecord("mine", "Mine", RewardWeighted, "A learner of another package.")
    monkeypatch.setitem(LEARNERS._records, "mine", record)
    with pytest.raises(InputError, match="but mine weights events by their rewards; set reward_shift=false"):
        trained(dataset, tmp_path / "run", algorithm="mine", settings={"reward_shift": True})
    with pytest.raises(InputError, match=r"^An event 'view' has the reward -1, but mine weights .*; use rewards of 0"):
        trained(dataset, tmp_path / "run", algorithm="mine", settings={"reward.view": -1.0})
    assert not (tmp_path / "run").exists()
