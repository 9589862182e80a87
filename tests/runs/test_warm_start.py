"""A run that starts from an earlier one has its weights, by item id."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import QUIET, trained

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.errors import InputError, Interrupted
from offrec.logging_policy import fitting
from offrec.runs import warm_start
from offrec.runs.folder import read_run
from offrec.runs.loading import load
from offrec.runs.options import build_options, resolve_options
from offrec.runs.plan import plan_runs
from offrec.runs.train import build_trainer, train, train_many
from offrec.runs.warm_start import WarmStart, warm_schedule
from offrec.training.loop import Trainer

ITEMS = 12


class Lines(Console):
    """Collects the printed lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def log(make_dataset: Any, tmp_path: Path, order: list[int], lists: bool = False, ids: Any = None) -> Dataset:
    """Sessions in which item i + 1 follows item i; `order[i]` is the index of item i in the catalogue."""
    sessions = [[order[(start + step) % ITEMS] for step in range(4)] for start in range(ITEMS)] * 3
    behaviours = [["view", "view", "buy", "view"]] * len(sessions)
    decisions = [
        [
            (place, [item, order[0]] if item != order[0] else [item, order[1]], 0.1, place)
            for place, item in enumerate(s)
        ]
        for s in sessions
    ]
    ids = [100 + order.index(index) for index in range(ITEMS)] if ids is None else ids
    return make_dataset(
        tmp_path, sessions, behaviours, splits=(24, 6, 6), ids=ids, decisions=decisions if lists else None
    )


def started(dataset: Dataset, run: Path, out: Path, **given: Any) -> Any:
    """The policy of a warm run before its first update."""
    start = WarmStart.read(run)
    dataset = start.adapt(dataset)
    options = resolve_options(start.settings({"device": "cpu", **given}), dataset.protocol.format)
    (plan,) = plan_runs(dataset, {"run": options}, QUIET).values()
    return build_trainer(plan, out, QUIET, start=start).policy


CASES = [(name, {}) for name in LEARNERS] + [
    ("sl", {"network.backbone": backbone, "network.tied": tied})
    for backbone in BACKBONES
    for tied in (True, False)
    if (backbone, tied) != ("gru", True)
]


@pytest.mark.usefixtures("quick_logging_policy")
@pytest.mark.parametrize(("algorithm", "settings"), CASES)
def test_every_learner_and_backbone_recommends_as_before_when_items_only_change_their_order(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(warm_start, "PRIOR", "nothing.")  # π̂_b is loaded too, not fitted to the new log
    lists = algorithm == "user-model"
    before = log(make_dataset, tmp_path, list(range(ITEMS)), lists)
    after = log(make_dataset, tmp_path, np.random.default_rng(1).permutation(ITEMS).tolist(), lists)
    assert before.vocabulary != after.vocabulary
    policy = trained(before, tmp_path / "run", algorithm=algorithm, settings=settings)
    warm = started(after, tmp_path / "run", tmp_path / "warm", diagnostics="some")
    for history in ([], [103], [105, 106, 105]):
        expected, found = policy.recommend(history, k=ITEMS), warm.recommend(history, k=ITEMS)
        scores, order = np.array(expected.scores), np.argsort(expected.items)
        np.testing.assert_allclose(np.array(found.scores)[np.argsort(found.items)], scores[order], atol=1e-4)


def test_new_and_vanished_items_are_counted_and_the_run_says_where_it_started(
    tmp_path: Path, make_dataset: Any
) -> None:
    before = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(before, tmp_path / "run")
    after = log(make_dataset, tmp_path, list(range(ITEMS)), ids=[*range(100, 109), 201, 202, 203])
    console = Lines()
    train(after, tmp_path / "warm", device="cpu", start_from=tmp_path / "run", console=console)
    assert any(
        line == f"Starting from {tmp_path / 'run'} ({before.fingerprint}): 9 items matched, 3 new, 3 vanished"
        for line in console.lines
    )
    start = json.loads((tmp_path / "warm/run.json").read_text())["start"]
    assert start["items"] == {"matched": 9, "new": 3, "vanished": 3}
    assert start["fingerprint"] == before.fingerprint
    assert str(tmp_path) not in json.dumps(start)
    assert load(tmp_path / "warm").recommend([201], k=3).items


def test_options_come_from_the_earlier_run_with_a_shorter_schedule(tmp_path: Path, make_dataset: Any) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run", algorithm="sdac", settings={"algorithm.alpha": 0.7, "training.epochs": 8})
    start = WarmStart.read(tmp_path / "run")
    settings = start.settings({"gamma": "0.25"})
    assert settings["algorithm.alpha"] == 0.7
    assert settings["gamma"] == "0.25"
    schedule = warm_schedule(start.stored.options)
    assert {key: settings[key] for key in schedule} == schedule
    assert settings["training.epochs"] < 8
    assert start.settings({"training.epochs": 5})["training.epochs"] == 5


def test_a_chain_of_warm_runs_keeps_its_schedule(tmp_path: Path, make_dataset: Any) -> None:
    """Otherwise the learning rate would fall every night."""
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "0")
    rates = []
    for night in range(2):
        train(dataset, tmp_path / str(night + 1), device="cpu", start_from=tmp_path / str(night), console=QUIET)
        options = json.loads((tmp_path / str(night + 1) / "run.json").read_text())["options"]
        rates.append(build_options(options).training)
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"algorithm": "dc"}, r"--algorithm is dc, but --from .* was trained with sl; omit it"),
        ({"backbone": "sasrec"}, r"--backbone is sasrec, but --from .* was trained with gru"),
        ({"settings": {"network.width": "16"}}, r"network.width is 16, but --from .* was trained with 8"),
        ({"preset": "paper"}, r"--preset is paper, but --from .* was trained with strong"),
        ({"settings": {"algorithm.neighbours": 0}}, "^$"),
    ],
)
def test_another_learner_or_network_is_refused_with_one_sentence(
    tmp_path: Path, make_dataset: Any, given: dict[str, Any], sentence: str
) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run")
    if sentence == "^$":  # fewer tensors than before: nothing is missing
        train(dataset, tmp_path / "warm", device="cpu", start_from=tmp_path / "run", console=QUIET, **given)
        return
    with pytest.raises(InputError, match=sentence):
        train(dataset, tmp_path / "warm", device="cpu", start_from=tmp_path / "run", console=QUIET, **given)
    assert not (tmp_path / "warm").exists()


def test_tensors_that_the_earlier_run_lacks_are_refused(tmp_path: Path, make_dataset: Any) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run", settings={"algorithm.neighbours": 0})
    with pytest.raises(InputError, match=r"--from .* does not fit the options of this run \(neighbours"):
        train(
            dataset,
            tmp_path / "warm",
            device="cpu",
            start_from=tmp_path / "run",
            console=QUIET,
            settings={"algorithm.neighbours": 3},
        )
    assert not (tmp_path / "warm").exists()


def test_a_catalogue_without_a_common_item_is_refused(tmp_path: Path, make_dataset: Any) -> None:
    trained(log(make_dataset, tmp_path, list(range(ITEMS))), tmp_path / "run")
    other = log(make_dataset, tmp_path, list(range(ITEMS)), ids=list(range(ITEMS)))
    with pytest.raises(InputError, match="have no item id in common; train without --from"):
        train(other, tmp_path / "warm", start_from=tmp_path / "run", device="cpu", console=QUIET)


def test_a_user_model_knows_the_behaviours_of_both_logs(tmp_path: Path, make_dataset: Any) -> None:
    """The new log lacks "view" and "buy" and has "cart"."""
    run = tmp_path / "run"
    first = trained(log(make_dataset, tmp_path, list(range(ITEMS)), lists=True), run, algorithm="user-model")
    sessions, decisions = [[0, 1], [1, 2]] * 6, [[(0, [0, 1], 0.5, 0), (1, [1, 2], 0.5, 1)]] * 12
    other = make_dataset(tmp_path, sessions, [["cart", "cart"]] * 12, splits=(8, 2, 2), decisions=decisions)
    warm = started(other, run, tmp_path / "warm")
    assert read_run(tmp_path / "warm")["behaviours"] == ["view", "buy", "cart"]
    assert warm.agent.behaviour_base[0] == first.agent.behaviour_base[0]
    assert warm.agent.behaviour_base.shape == (2,)
    assert warm.agent.reward.tolist() == pytest.approx([0.2, 1.0, 1.0])
    policy = train(other, tmp_path / "trained", start_from=run, device="cpu", console=QUIET)
    assert policy.agent.behaviour_base[1] > warm.agent.behaviour_base[1]  # every event of the new log is a cart
    assert load(tmp_path / "trained", "cpu").recommend([100], 3).items == policy.recommend([100], 3).items


def test_a_user_model_keeps_what_it_knows_about_items_that_the_new_log_does_not_show(
    tmp_path: Path, make_dataset: Any
) -> None:
    run = tmp_path / "run"
    first = trained(log(make_dataset, tmp_path, list(range(ITEMS)), lists=True), run, algorithm="user-model")
    sessions, decisions = [[0, 1], [1, 2]] * 6, [[(0, [0, 1], 0.5, 0), (1, [1, 2], 0.5, 1)]] * 12
    other = make_dataset(tmp_path, sessions, splits=(8, 2, 2), items=ITEMS, decisions=decisions)
    second = train(other, tmp_path / "warm", start_from=run, device="cpu", console=QUIET)
    for name in ("x", "attractiveness", "conversion_effect", "leave_effect"):
        before, now = (getattr(policy.agent, name) for policy in (first, second))
        assert (now[3:] == before[3:]).all()
        assert (now[:3] != before[:3]).any()


@pytest.mark.usefixtures("quick_logging_policy")
def test_the_logging_policy_of_a_warm_run_starts_from_that_of_the_earlier_run(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run", algorithm="dc")
    after = log(make_dataset, tmp_path, list(range(ITEMS))[::-1])
    first: list[Any] = []

    def record(specs: Any, device: Any) -> Any:
        network = initial(specs, device)
        first.append(network.items_in.detach().clone())
        return network

    initial = fitting._initial_network
    monkeypatch.setattr(fitting, "_initial_network", record)
    policy = started(after, tmp_path / "run", tmp_path / "warm")
    stored = WarmStart.read(tmp_path / "run").stored.weights["prior.items_in"]
    assert (first[0][:ITEMS] == stored[:ITEMS].flip(0)).all()
    assert policy.agent.prior is not None


def test_a_stopped_warm_run_resumes_and_needs_the_same_start(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run")
    trained(dataset, tmp_path / "other", seed=1)
    options: dict[str, Any] = {"device": "cpu", "console": QUIET, "settings": {"training.epochs": 2}}
    whole = train(dataset, tmp_path / "whole", start_from=tmp_path / "run", **options)
    epoch = Trainer._end_epoch

    def stop_after_one(self: Trainer) -> None:
        epoch(self)
        raise Interrupted("stopped")

    monkeypatch.setattr(Trainer, "_end_epoch", stop_after_one)
    with pytest.raises(Interrupted):
        train(dataset, tmp_path / "warm", start_from=tmp_path / "run", **options)
    monkeypatch.setattr(Trainer, "_end_epoch", epoch)
    with pytest.raises(InputError, match="from another run; resume it with the same --from"):
        train(dataset, tmp_path / "warm", start_from=tmp_path / "other", resume=True, **options)
    again = train(dataset, tmp_path / "warm", start_from=tmp_path / "run", resume=True, **options)
    assert again.recommend([103], k=5).scores == whole.recommend([103], k=5).scores


def test_several_runs_with_a_start_resume(tmp_path: Path, make_dataset: Any) -> None:
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run")
    runs = {f"seed-{seed}": {"seed": seed, "device": "cpu"} for seed in (0, 1)}
    options: dict[str, Any] = {"start_from": tmp_path / "run", "console": QUIET}
    first = train_many(dataset, runs, tmp_path / "many", **options)
    again = train_many(dataset, runs, tmp_path / "many", resume=True, **options)
    assert again.keys() == first.keys() == runs.keys()
    assert all(again[name].recommend([103]).scores == first[name].recommend([103]).scores for name in runs)


def test_an_sl_run_serves_as_the_logging_policy(tmp_path: Path, make_dataset: Any) -> None:
    """The prior of the new run has the weights of the SL run, and nothing is fitted."""
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "sl")
    policy = trained(dataset, tmp_path / "dc", algorithm="dc", logging_policy=tmp_path / "sl")
    stored = WarmStart.read(tmp_path / "sl").stored
    assert (policy.agent.prior.items_in == stored.weights["actor.items_in"]).all()
    assert not (dataset.path / "logging").exists()
    facts = json.loads((tmp_path / "dc/run.json").read_text())
    assert facts["logging_run"] == stored.id
    assert facts["logging_policy"]["network.events"] > 0
    for other, sentence in [
        ({"settings": {"network.width": 4}}, "network.width is 4, but --logging-policy .* was trained with 8"),
        ({"logging_policy": tmp_path / "dc"}, "is a run of dc; it must be a run of sl"),
    ]:
        with pytest.raises(InputError, match=sentence):
            trained(dataset, tmp_path / "x", **{"algorithm": "dc", "logging_policy": tmp_path / "sl", **other})
    different = log(make_dataset, tmp_path, list(range(ITEMS))[::-1])
    with pytest.raises(InputError, match="was trained on another dataset"):
        trained(different, tmp_path / "x", algorithm="dc", logging_policy=tmp_path / "sl")


def test_fits_that_have_no_start_keep_the_schedule_of_random_weights(tmp_path: Path, make_dataset: Any) -> None:
    """The networks of the folds start from random weights, so the short schedule of a warm run is not for them."""
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    trained(dataset, tmp_path / "run", algorithm="sdac", settings={"training.epochs": 8})
    start = WarmStart.read(tmp_path / "run")
    warm = build_options(start.settings({}))
    assert start.cold_options(warm).training == start.stored.options.training
    own = build_options(start.settings({"training.epochs": 1}))
    assert start.cold_options(own).training.epochs == 1


def test_the_weights_at_the_start_are_selected_if_no_epoch_is_better(tmp_path: Path, make_dataset: Any) -> None:
    """With a learning rate of 1 every epoch is worse than the start."""
    dataset = log(make_dataset, tmp_path, list(range(ITEMS)))
    settings = {"training.epochs": 60, "training.learning_rate": 0.03, "training.warmup": 0, "network.dropout": 0.0}
    policy = trained(dataset, tmp_path / "run", settings=settings)
    console = Lines()
    options: dict[str, Any] = {"device": "cpu", "console": console, "start_from": tmp_path / "run"}
    warm = train(dataset, tmp_path / "warm", settings={"training.learning_rate": 1.0}, **options)
    records = [json.loads(line) for line in (tmp_path / "warm/metrics.jsonl").read_text().splitlines()]
    assert records[0]["epoch"] == 0
    assert records[-1]["best_epoch"] == 0
    assert all(record["validation"]["NDCG@10"] < records[0]["validation"]["NDCG@10"] for record in records[1:])
    assert console.lines[-1].endswith("the weights at the start are best.")
    assert warm.recommend([103], k=5).scores == policy.recommend([103], k=5).scores
    assert load(tmp_path / "warm").recommend([103], k=5).scores == policy.recommend([103], k=5).scores
