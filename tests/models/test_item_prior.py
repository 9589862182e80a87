"""The precision of item effects: by hand, from simulated conversions, and from the lists of a log."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import offrec
from offrec.algorithms.user_model import UserModel
from offrec.console import Console
from offrec.data.list_log import read_lists
from offrec.models.item_prior import HIGHEST, estimate_precision, update_precisions
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.user_agent import UserModelAgent, build_user_agent

CPU = torch.device("cpu")
ITEMS = 6
STEP = 1.13  # ratio of neighbouring candidates of the precision, rounded up
DEFAULT = torch.tensor(3.0)


@pytest.mark.parametrize(("information", "squared", "precision"), [(2.0, 3.0, 4.0), (1.0, 11.0, 0.1), (4.0, 5.6, 10.0)])
def test_precision_of_equally_informed_items_is_that_of_the_formula(
    information: float, squared: float, precision: float
) -> None:
    """With equal I and h² of all items, L(τ) has its maximum at τ = I² / (h² − I)."""
    h = torch.tensor([squared**0.5, -(squared**0.5)])
    estimate = estimate_precision(h, torch.full((2,), information), DEFAULT)
    assert precision / STEP < estimate.item() < precision * STEP


def test_effects_that_vary_no_more_than_noise_are_shrunk_to_0() -> None:
    h = torch.tensor([1.0, -1.2, 0.9])  # h² ≤ I on average
    assert estimate_precision(h, torch.full((3,), 1.5), DEFAULT).item() == pytest.approx(10**HIGHEST)


def test_items_without_data_do_not_count() -> None:
    h, information = torch.tensor([2.0, -1.0]), torch.tensor([1.5, 1.0])
    padded = [torch.cat([values, torch.zeros(100)]) for values in (h, information)]
    assert estimate_precision(*padded, DEFAULT) == estimate_precision(h, information, DEFAULT)
    assert estimate_precision(torch.zeros(4), torch.zeros(4), DEFAULT) == DEFAULT


@pytest.mark.parametrize("spread", [0.4, 0.8])
def test_the_spread_of_effects_is_recovered_from_rare_conversions(spread: float) -> None:
    """Most items have few picks and no conversion. Each update of the precision follows steps to the mode."""
    generator = torch.Generator().manual_seed(0)
    picks = (2 * torch.rand(4000, generator=generator) ** -0.9).floor().clamp(max=2000)
    effects = spread * torch.randn(4000, generator=generator)
    bought = torch.binomial(picks, (effects - 2.5).sigmoid(), generator=generator)
    estimate, precision = torch.zeros(4000), DEFAULT

    def derivatives() -> tuple[Tensor, Tensor]:
        p = (estimate - 2.5).sigmoid()
        return bought - picks * p, picks * p * (1 - p)

    for _ in range(6):
        for _ in range(10):
            score, information = derivatives()
            estimate = estimate + 0.7 * (score - precision * estimate) / (information + precision)
        score, information = derivatives()
        precision = estimate_precision(information * estimate + score, information, DEFAULT)
    assert precision.item() ** -0.5 == pytest.approx(spread, rel=0.15)


def small_model(tmp_path: Path, make_dataset: Any, **options: Any) -> tuple[UserModelAgent, Any]:
    """A model with random parameters, and lists with two behaviours."""
    sessions = [[number % ITEMS, (number + 2) % ITEMS] for number in range(20)]
    lists = [[(at, [item, (item + 1) % ITEMS], 0.5, at) for at, item in enumerate(items)] for items in sessions]
    data = make_dataset(tmp_path, sessions, splits=(16, 2, 2), items=ITEMS, decisions=lists)
    torch.manual_seed(0)
    model = build_user_agent(ITEMS, UserModel(types=3, width=2, **options), NetworkOptions(), LogShape(3, 2))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.7)
    log = read_lists(data, "train", 8, 5, CPU)
    batch = log.batch(torch.arange(log.sessions))
    batch.behaviour.copy_(torch.arange(len(batch)) % 3)
    return model, batch


@pytest.mark.parametrize("choice", ["logit", "cascade"])
def test_scores_of_items_are_gradients_of_the_likelihood(tmp_path: Path, make_dataset: Any, choice: str) -> None:
    model, batch = small_model(tmp_path, make_dataset, choice=choice)
    model.conversion_slope.data.zero_()  # scores of attractiveness come from choices alone
    model.loss(batch)["likelihood"].sum().backward()
    effects = (model.attractiveness - model.attractiveness.mean(), model.conversion_effect)
    gradients = (model.attractiveness.grad, model.conversion_effect.grad)
    columns = (model.evidence[:, :2], model.evidence[:, 2:])
    for column, effect, gradient in zip(columns, effects, gradients, strict=True):
        h, information = column.unbind(1)
        assert gradient is not None
        score = h - information * effect
        is_centred = gradient is model.attractiveness.grad
        torch.testing.assert_close(score - score.mean() * is_centred, -gradient, rtol=1e-4, atol=1e-4)


def test_information_of_lists_is_the_variance_of_the_choice(tmp_path: Path, make_dataset: Any) -> None:
    """Without item effects, each of two items is picked with probability 1/4 and 1/2 is for nothing."""
    model, batch = small_model(tmp_path, make_dataset, choice="logit")
    for parameter in (model.x, model.attractiveness, model.seen_choice, model.place):
        parameter.data.zero_()
    model.none.data.fill_(torch.tensor(2.0).log())
    model.loss(batch)
    shown = torch.bincount(batch.offered.flatten(), minlength=ITEMS)
    torch.testing.assert_close(model.evidence[:, 1], shown * 0.25 * 0.75)


def test_cascades_say_nothing_about_places_after_the_pick(tmp_path: Path, make_dataset: Any) -> None:
    model, batch = small_model(tmp_path, make_dataset, choice="cascade")
    for parameter in (model.x, model.attractiveness, model.seen_choice, model.place, model.none):
        parameter.data.zero_()
    batch.place.fill_(1)
    batch.place[0] = 0
    model.loss(batch)
    seen = torch.cat([batch.offered[0], batch.offered[1:, 0]])
    torch.testing.assert_close(model.evidence[:, 1], torch.bincount(seen, minlength=ITEMS) * 0.25)


def test_information_of_picks_is_the_variance_of_the_slopes(tmp_path: Path, make_dataset: Any) -> None:
    model, batch = small_model(tmp_path, make_dataset)
    for parameter in (model.x, model.conversion_effect, model.attractiveness, model.seen_conversion):
        parameter.data.zero_()
    model.behaviour_slope.data.copy_(torch.tensor([0.6, 0.8]))
    model.behaviour_base.data.copy_(torch.tensor([0.5, 0.25]).log())
    model.loss(batch)
    first, second = 0.6 * 2**0.5, 0.8 * 2**0.5  # the slopes, with mean square 1
    chances = (0.5 / 1.75, 0.25 / 1.75)
    mean = chances[0] * first + chances[1] * second
    variance = chances[0] * first**2 + chances[1] * second**2 - mean**2
    picks = torch.bincount(batch.picked_item[batch.place > 0], minlength=ITEMS)
    torch.testing.assert_close(model.evidence[:, 3], picks * variance)


def test_the_scale_of_the_slopes_has_no_effect(tmp_path: Path, make_dataset: Any) -> None:
    model, batch = small_model(tmp_path, make_dataset)
    before = model.loss(batch)["likelihood"].sum()
    model.behaviour_slope.data.mul_(7.0)
    torch.testing.assert_close(model.loss(batch)["likelihood"].sum(), before)


def test_precisions_that_are_given_stay(tmp_path: Path, make_dataset: Any) -> None:
    model, batch = small_model(tmp_path, make_dataset, attractiveness_precision=2.5)
    before = model.precision.clone()
    model.loss(batch)
    update_precisions(model)
    assert (model.precision == before).tolist() == [True, False]
    assert model.precision[0] == 2.5
    assert not model.evidence.any()


def test_a_run_stores_and_reports_its_precision(tmp_path: Path, make_dataset: Any) -> None:
    sessions = [[number % ITEMS, (number + 2) % ITEMS] for number in range(20)]
    data = make_dataset(tmp_path, sessions, splits=(16, 2, 2), items=ITEMS)
    settings = {"algorithm.types": 2, "algorithm.width": 2, "training.epochs": 1}
    policy = offrec.train(
        data, tmp_path / "run", algorithm="user-model", settings=settings, console=Console(quiet=True)
    )
    loaded = offrec.load(tmp_path / "run", "cpu")
    assert loaded.agent.precision.tolist() == policy.agent.precision.tolist()
    assert "conversion precision" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_warm_start_uses_the_precisions_that_are_given(tmp_path: Path, make_dataset: Any) -> None:
    sessions = [[number % ITEMS, (number + 2) % ITEMS] for number in range(20)]
    data = make_dataset(tmp_path, sessions, splits=(16, 2, 2), items=ITEMS)
    settings = {"algorithm.types": 2, "algorithm.width": 2, "training.epochs": 1}
    common: dict[str, Any] = {"algorithm": "user-model", "console": Console(quiet=True)}
    first = offrec.train(data, tmp_path / "first", settings=settings, **common)
    given = {**settings, "algorithm.attractiveness_precision": 7.0}
    second = offrec.train(data, tmp_path / "second", settings=given, start_from=tmp_path / "first", **common)
    assert first.agent.precision[0] != 7.0
    assert second.agent.precision[0] == 7.0
