"""One contract over every learner: it learns a log with a known answer, what is stored is what was learned, and a run
is the same run when it is stopped, repeated, or trained concurrently with others.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_training import SMALL, assert_same, log, stop_after, tensors

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.catalogue import maximum
from offrec.console import Console
from offrec.data.replay import batch_from_histories
from offrec.errors import Interrupted
from offrec.evaluation import evaluate
from offrec.runs.loading import load
from offrec.runs.train import train, train_many
from small_datasets import write_dataset

pytestmark = pytest.mark.usefixtures("quick_logging_policy")

QUIET = Console(quiet=True)
CERTAIN = {
    "network.width": 16,
    "network.history": 8,
    "network.dropout": 0.0,
    "training.batch_size": 60,
    "training.epochs": 80,
    "training.patience": 80,
    "training.schedule": "plateau",
    "training.decay": 1.0,
    "training.learning_rate": 0.02,
    "diagnostics": "some",
}
SOFT = ("sdac", "sc", "sr", "pc", "dc", "re")
START_FROM_LOGGING = {"pg": ("cfn", "caser", "nextitnet", "sasrec"), "dc": ("caser",), "re": ("cfn", "caser", "sasrec")}


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Item i is always followed by i + 1 (mod 12), each rewarded alike: to imitate is to earn. One dataset for all
    learners, since π̂_b is fitted once and cached next to it.
    """
    sessions = [[(start + step) % 12 for step in range(5)] for start in range(12)] * 6
    return write_dataset(tmp_path_factory.mktemp("certain"), sessions, splits=(48, 12, 12), score_first=False)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kinds = [["view" if n % 3 else "cart" for n in range(len(session))] for session in log()]
    return write_dataset(tmp_path_factory.mktemp("log"), log(), kinds, splits=(90, 15, 15))


def settings_for(name: str, backbone: str) -> dict[str, Any]:
    """A log of 240 events has few updates: a target that follows fast, and a temperature at which a critic that is not
    done yet does not decide everything. From random weights PG is slow, and starts from π̂_b but with GRU. An actor that
    climbs a sharp π̂_b can end on a wrong item for good, and with its log π̂_b V falls and falls: DC's with Caser has one
    item for nearly every history then, and a median V of −30 where 2 is right. With Caser DC and RE, and with CFN
    and SASRec RE, start from π̂_b. RE's critic has log π̂_b to learn besides, with Caser more slowly.
    """
    settings = {**CERTAIN, **({"algorithm.alpha": 0.3, "critic.target_rate": 0.05} if name in SOFT else {})}
    if backbone in START_FROM_LOGGING.get(name, ()):
        settings["algorithm.start"] = "supervised"
    return settings | ({"training.learning_rate": 0.005} if (name, backbone) == ("re", "caser") else {})


def check(dataset: Any, out: Path, name: str, backbone: str, more: dict[str, Any]) -> None:
    settings = {**settings_for(name, backbone), **more}
    policy = train(dataset, out, algorithm=name, backbone=backbone, device="cpu", settings=settings, console=QUIET)
    assert evaluate(policy, dataset, "test", (1,)).metrics["all"]["HR@1"] == 1.0
    assert policy.recommend([100, 101, 102], 1).items == [103]
    if name in SOFT:  # also those that rank by the critic, which π̂_b alone could bring there
        histories = [[(start + step) % 12 for step in range(3)] for start in range(12)]
        with torch.no_grad():
            chosen = maximum(policy.agent.actor(batch_from_histories(histories, 12, 8, torch.device("cpu"))))[1]
        assert chosen.tolist() == [(start + 3) % 12 for start in range(12)]
    loaded = load(out, "cpu")
    assert loaded.recommend([105, 106], 4) == policy.recommend([105, 106], 4)
    assert (loaded.name, loaded.stochastic) == (f"{name}/{backbone}", name != "dqn")


GRID = [
    pytest.param(name, backbone, marks=[] if backbone == "gru" else pytest.mark.all)
    for name in LEARNERS
    for backbone in BACKBONES
    if "network.backbone" not in LEARNERS[name].ignored  # the user model ranks for value, not to predict
]


@pytest.mark.parametrize(("name", "backbone"), GRID)
def test_learns_what_follows(certain: Any, tmp_path: Path, name: str, backbone: str) -> None:
    check(certain, tmp_path / "run", name, backbone, {})


PAIRS = [
    pytest.param(name, actor, critic, marks=[] if (name, actor) == ("dc", "gru") else pytest.mark.all)
    for name in SOFT
    for actor, critic in (("gru", "sasrec"), ("caser", "gru"))
]


@pytest.mark.parametrize(("name", "actor", "critic"), PAIRS)
def test_actor_and_critic_may_differ(certain: Any, tmp_path: Path, name: str, actor: str, critic: str) -> None:
    """At a rate of .02 SC's critic with two layers of attention does not learn (its loss stays at .18, and is .01 at
    .005).
    """
    more: dict[str, Any] = {"critic.backbone": critic, "critic.width": 20, "critic.layers": 2}
    if (name, critic) == ("sc", "sasrec"):
        more["training.learning_rate"] = 0.005
    check(certain, tmp_path / "run", name, actor, more)
    stored = tensors(tmp_path / "run", "best")
    assert stored["module.critic.items_in"].shape == (13, 20)
    assert stored["module.actor.items_in"].shape == (13, 16)


# Whatever moves besides the optimiser: multipliers, counts, soft and periodic targets, noise, draws of unlogged items.
MOVING: dict[str, dict[str, Any]] = {
    "sr": {"algorithm.adaptive": True, "algorithm.rate": 0.05},
    "dc": {"algorithm.expectation": "gumbel", "critic.ground_draw": "popular"},
    "sl+dqn": {"critic.target": "periodic", "critic.target_every": 6},
    "sa2c": {"algorithm.warmup": 6},
}
STOPS = [
    *(pytest.param(name, "gru", stop) for name in MOVING for stop in (4, 20)),
    *(
        pytest.param(name, backbone, 13, marks=pytest.mark.all)
        for name, record in LEARNERS.items()
        for backbone in BACKBONES
        if "network.backbone" not in record.ignored
    ),
]


def moving(name: str, backbone: str = "gru") -> dict[str, Any]:
    return {**SMALL, "algorithm.name": name, "network.backbone": backbone, **MOVING.get(name, {}), "device": "cpu"}


def trained(dataset: Any, out: Path, settings: dict[str, Any], resume: bool = False) -> dict[str, Any]:
    train_many(dataset, {out.name: settings}, out.parent, resume=resume, console=QUIET)
    return tensors(out)


@pytest.mark.parametrize(("name", "backbone", "stop"), STOPS)
def test_resume_is_exact(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, backbone: str, stop: int
) -> None:
    """The same seed therefore gives the same run."""
    settings = moving(name, backbone)
    whole = trained(dataset, tmp_path / "whole", settings)  # with it π̂_b is there, and fits no more
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Interrupted):
            trained(dataset, tmp_path / "halves", settings)
    assert tensors(tmp_path / "halves")["optimiser.0.step"] < whole["optimiser.0.step"]
    assert_same(whole, trained(dataset, tmp_path / "halves", settings, resume=True))
    assert_same(tensors(tmp_path / "whole", "best"), tensors(tmp_path / "halves", "best"))
    lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "halves")]
    assert lines[0] == lines[1]


def test_checkpoints_contain_everything_that_changes(dataset: Any, tmp_path: Path) -> None:
    """The equality above is therefore meaningful."""
    sr = trained(dataset, tmp_path / "sr", moving("sr"))
    assert sr["module.multiplier"] != 1.0
    target, online = "module.target.network.items_in", "module.critic.items_in"
    assert not torch.equal(sr[target], sr[online])
    assert trained(dataset, tmp_path / "both", moving("sl+dqn"))["module.target.updates"] > 6
    assert trained(dataset, tmp_path / "sa2c", moving("sa2c"))["module.updates"] > 6
    assert {"module.prior.items_in", "module.actor.items_in"} <= trained(dataset, tmp_path / "dc", moving("dc")).keys()


def test_same_seed_same_run_together_or_alone(dataset: Any, tmp_path: Path) -> None:
    runs = {name: moving(name) for name in MOVING}
    runs |= {f"{name}-1": {**settings, "seed": 1} for name, settings in runs.items()}
    train_many(dataset, runs, tmp_path / "many", console=QUIET)
    for name, settings in runs.items():
        train_many(dataset, {name: settings}, tmp_path / "alone", console=QUIET)
        assert_same(tensors(tmp_path / "many" / name), tensors(tmp_path / "alone" / name))
        lines = [(tmp_path / part / name / "metrics.jsonl").read_text() for part in ("many", "alone")]
        assert lines[0] == lines[1]
