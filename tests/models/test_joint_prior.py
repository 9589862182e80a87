"""The joint distribution of item effects: by hand, by numerical integration, and from simulated items."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offrec.algorithms.user_model import UserModel, leaving_log_likelihood
from offrec.data.list_log import ListLog, read_lists
from offrec.models.item_features import ItemFeatures
from offrec.models.joint_prior import (
    EFFECTS,
    SAMPLE,
    Evidence,
    Mixture,
    _evidence,
    _in_sample,
    _set_effects,
    fit_mixture,
    select_mixture,
    shrink_item_effects,
)
from offrec.models.leaving_fit import LeavingFit
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.user_agent import UserModelAgent, build_user_agent
from small_datasets import small_properties

ITEMS = 9
CPU = torch.device("cpu")


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def mixture(*components: tuple[float, list[float], Tensor]) -> Mixture:
    shares, means, covariances = zip(*components, strict=True)
    return Mixture(doubles(shares), doubles(means), torch.stack(covariances))


def test_a_single_normal_distribution_gives_the_formula_of_shrinkage() -> None:
    """With variance 4, information 2 and h = 3 the precision is .25 + 2, and b is 1/4 + 3."""
    prior = mixture((1.0, [1.0, 0.0, 0.0], torch.diag(doubles([4.0, 1.0, 1.0]))))
    evidence = Evidence(doubles([[3.0, 0.0, 0.0]]), doubles([[2.0, 0.0, 0.0]]))
    _, share, mean, covariance = prior.posterior(evidence)
    assert share.item() == pytest.approx(1.0)
    torch.testing.assert_close(mean[0, 0], doubles([3.25 / 2.25, 0.0, 0.0]))
    assert covariance[0, 0, 0, 0].item() == pytest.approx(1 / 2.25)


def test_evidence_is_the_integral_of_the_likelihood() -> None:
    """Of the first two effects; the third is independent of them and has no data."""
    two = doubles([[1.0, 0.6, 0.0], [0.6, 0.9, 0.0], [0.0, 0.0, 1.0]])
    prior = mixture((0.3, [1.0, -0.5, 0.0], two), (0.7, [-0.8, 0.4, 0.0], 0.5 * torch.eye(3, dtype=torch.double)))
    h, information = doubles([0.7, -1.1, 0.0]), doubles([1.5, 0.8, 0.0])
    total, share, mean, _ = prior.posterior(Evidence(h[None], information[None]))
    grid = torch.linspace(-9.0, 9.0, 901, dtype=torch.double)
    points = torch.cartesian_prod(grid, grid)
    density = torch.zeros(len(points), dtype=torch.double)
    for weight, centre, covariance in zip(prior.share, prior.mean, prior.covariance, strict=True):
        normal = torch.distributions.MultivariateNormal(centre[:2], covariance[:2, :2])
        density += weight * normal.log_prob(points).exp()
    density *= (points @ h[:2] - points.square() @ information[:2] / 2).exp()
    whole = density.sum() * 0.02**2
    assert total.item() == pytest.approx(whole.log().item(), abs=1e-6)
    expected = (density[:, None] * points).sum(0) * 0.02**2 / whole
    torch.testing.assert_close((share[..., None] * mean).sum(1)[0, :2], expected, rtol=0.0, atol=1e-6)


def population(kinds: int, seed: int = 0) -> tuple[Tensor, Evidence]:
    """Effects of 3,000 items of one or two kinds, and noisy observations of them."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(3000, 3, generator=generator, dtype=torch.double)
    root = doubles([[0.5, 0.0, 0.0], [0.2, 0.4, 0.0], [0.1, 0.2, 0.3]])
    effects = normal @ root.T
    if kinds == 2:
        bad = torch.rand(3000, generator=generator) < 0.3
        effects = effects + bad[:, None] * doubles([1.8, -1.8, -1.5])
    information = 8 * torch.rand(3000, 3, generator=generator, dtype=torch.double) ** 2
    noise = torch.randn(3000, 3, generator=generator, dtype=torch.double)
    return effects, Evidence(information * effects + information.sqrt() * noise, information)


def estimate(prior: Mixture, evidence: Evidence) -> Tensor:
    _, share, mean, _ = prior.posterior(evidence)
    return (share[..., None] * mean).sum(1)


def test_the_number_of_kinds_is_found_and_two_kinds_are_estimated_better() -> None:
    for kinds in (1, 2):
        effects, evidence = population(kinds)
        first = evidence.h / (evidence.information + 2.0)
        chosen = select_mixture(evidence, first)
        assert len(chosen.share) == kinds
        single, _ = fit_mixture(evidence, mixture((1.0, [0.0] * EFFECTS, torch.eye(EFFECTS, dtype=torch.double))))
        errors = [float((estimate(one, evidence) - effects).square().mean()) for one in (chosen, single)]
        if kinds == 1:
            torch.testing.assert_close(chosen.covariance[0], effects.T.cov(), rtol=0.0, atol=0.06)
            assert errors[0] == pytest.approx(errors[1], rel=0.01)
        else:
            assert errors[0] < 0.9 * errors[1]
            assert float(chosen.share.min()) == pytest.approx(0.3, abs=0.05)


def test_the_number_of_components_has_the_largest_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second component has 10 more parameters. It may not pay for them where a third one does."""
    effects, evidence = population(1)
    likelihoods: dict[int, float] = {}

    def fit(evidence: Evidence, start: Mixture, sum_items: Any) -> tuple[Mixture, float]:
        return start, likelihoods[len(start.share)]

    monkeypatch.setattr("offrec.models.joint_prior.fit_mixture", fit)
    for second, third, chosen in ((9.0, 19.0, 1), (11.0, 20.5, 2), (11.0, 21.5, 3), (9.0, 21.0, 3), (-50.0, 21.0, 3)):
        likelihoods.update({1: 0.0, 2: second, 3: third})
        assert len(select_mixture(evidence, effects).share) == chosen


@pytest.mark.parametrize("effects", [[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 0.5, 0.5]])
def test_a_split_moves_the_halves_apart_along_the_main_axis(effects: list[float]) -> None:
    """Each moves by √v for the largest variance v, also where the entries of the axis have the sum 0."""
    axis = doubles(effects) / doubles(effects).norm()
    one = mixture((1.0, [0.3, 0.2, 0.1], 0.5 * torch.eye(3, dtype=torch.double) + 1.5 * torch.outer(axis, axis)))
    two = one.split()
    assert two.share.tolist() == [0.5, 0.5]
    torch.testing.assert_close(two.mean.mean(0), one.mean[0])
    step = (two.mean[1] - two.mean[0]) / 2
    torch.testing.assert_close(torch.outer(step, step), 2 * torch.outer(axis, axis))


def test_the_sample_follows_no_pattern_and_does_not_depend_on_who_stores_the_items() -> None:
    """Only items 1, 4, 7, … have data, 40,001 of them: every third item of the catalogue would be none of them."""
    items = 3 * torch.arange(40_001) + 1
    chosen = items[_in_sample(items, len(items))]
    assert len(chosen) == pytest.approx(SAMPLE, abs=5 * (SAMPLE / 2) ** 0.5)
    for period in (2, 3, 5):
        shares = torch.bincount((chosen - 1) // 3 % period) / len(chosen)
        torch.testing.assert_close(shares, torch.full((period,), 1 / period), rtol=0.0, atol=0.02)
    parts = [part[_in_sample(part, len(items))] for part in (items[:7], items[7:30_000], items[30_000:])]
    assert torch.cat(parts).equal(chosen)
    assert _in_sample(items[:SAMPLE], SAMPLE).all(), "small catalogues are used entirely"


def test_em_never_decreases_its_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likelihood alone may decrease: the prior keeps the variances of a component with few items above 0."""
    _, evidence = population(2)
    few = Evidence(evidence.h[:40], evidence.information[:40])
    start = select_mixture(evidence, evidence.h / (evidence.information + 2.0)).split()
    for part in (evidence, few):
        objectives = []
        for iterations in range(1, 30):
            monkeypatch.setattr("offrec.models.joint_prior.ITERATIONS", iterations)
            fitted, likelihood = fit_mixture(part, start)
            assert likelihood == pytest.approx(float(fitted.posterior(part)[0].sum()), abs=1e-9)
            assert float(fitted.share.sum()) == pytest.approx(1.0)
            objectives.append(likelihood + fitted.log_prior)
        gains = [after - before for before, after in pairwise(objectives)]
        assert min(gains) > -1e-9
        assert sum(gains) > 0.1


def test_the_prior_of_covariances_by_hand() -> None:
    """Variances 1, 1 and .5: −5/2 (log .5 + .01 (1 + 1 + 2))."""
    one = mixture((1.0, [3.0, 0.0, 0.0], torch.diag(doubles([1.0, 1.0, 0.5]))))
    assert one.log_prior == pytest.approx(-2.5 * (np.log(0.5) + 0.04))


@pytest.fixture
def log(tmp_path: Path, make_dataset: Any) -> ListLog:
    """Visitors see lists of two items until they leave. Those who pick item 0 leave later. Item 8 is never shown."""
    generator = torch.Generator().manual_seed(0)
    sessions, lists = [], []
    for _ in range(400):
        picks: list[int] = []
        shown: list[Any] = []
        while not shown or (
            len(shown) < 12 and torch.rand((), generator=generator) > (0.15 if 0 in picks[-1:] else 0.5)
        ):
            pair = torch.randperm(ITEMS - 1, generator=generator)[:2].tolist()
            picked = bool(torch.rand((), generator=generator) < 0.7)
            shown.append((len(picks), pair, 0.5, len(picks) if picked else None))
            picks += pair[:1] if picked else []
        sessions.append(picks)
        lists.append(shown)
    dataset = make_dataset(tmp_path, sessions, splits=(360, 20, 20), items=ITEMS, decisions=lists)
    return read_lists(dataset, "train", 3, 5, CPU)


def agent(**options: Any) -> UserModelAgent:
    torch.manual_seed(0)
    learner = UserModel(types=2, width=3, memory=3, **options)
    made = build_user_agent(ITEMS, learner, NetworkOptions(), LogShape(2, 2))
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.3)
    made.set_rewards(torch.tensor([0.2, 1.0]))
    return made


def agent_with_features() -> UserModelAgent:
    torch.manual_seed(0)
    features = ItemFeatures(small_properties(ITEMS), np.ones(ITEMS, bool))
    made = build_user_agent(ITEMS, UserModel(types=2, width=3, memory=3), NetworkOptions(), LogShape(2, 2), features)
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.3)
    return made


def effects_of(model: UserModelAgent) -> Tensor:
    return torch.stack([model.centred(), model.interest(), model.worth()[:, int(model.best)]], 1).detach()


def test_the_evidence_of_leaving_is_the_gradient_and_the_curvature_of_its_likelihood(log: ListLog) -> None:
    """Without impatience the information is the second derivative."""
    model = agent()
    best = int(model.best)
    model.log_impatience.data.fill_(-20.0)
    score, information = LeavingFit(model, log).evidence(best)
    batch, step = log.batch(torch.arange(log.sessions)), 1e-3
    model = model.double()

    @torch.no_grad()
    def likelihood(item: int, change: float) -> float:
        model.leave_effect.data[item, best] += change
        outcome = leaving_log_likelihood(
            model.leave_logits_after(batch), model.impatience(), model.log_share, batch.leaves, batch.session
        )
        model.leave_effect.data[item, best] -= change
        return float(outcome[:, best].sum())

    for item in (0, 3):
        low, middle, high = (likelihood(item, change) for change in (-step, 0.0, step))
        assert float(score[item]) == pytest.approx((high - low) / (2 * step), rel=1e-4)
        assert float(information[item]) == pytest.approx((2 * middle - high - low) / step**2, rel=1e-4)
    assert score[ITEMS - 1] == information[ITEMS - 1] == 0.0


def test_utilities_of_all_items_and_of_nothing_can_change_together(log: ListLog) -> None:
    model, batch = agent(), log.batch(torch.arange(log.sessions))
    before, effects = model.loss(batch)["likelihood"].detach(), effects_of(model)
    with torch.no_grad():
        model.none.add_(0.7)
        _set_effects(model, effects + torch.tensor([0.7, 0.0, 0.0]), None)
    torch.testing.assert_close(effects_of(model), effects, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(model.loss(batch)["likelihood"].detach(), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_features", [False, True])
def test_other_candidates_of_leaving_keep_their_effects(log: ListLog, has_features: bool) -> None:
    """Their w depends on a and q, which change; ε′ makes up for it."""
    model = agent_with_features() if has_features else agent()
    before, effects = model.worth().detach(), effects_of(model)
    shrink_item_effects(model, log)
    after, best = model.worth().detach(), int(model.best)
    others = [number for number in range(before.shape[1]) if number != best]
    torch.testing.assert_close(after[:, others], before[:, others], rtol=0.0, atol=1e-5)
    assert float((after[:, best] - before[:, best]).abs().max()) > 0.05
    assert float((effects_of(model) - effects)[:, :2].abs().max()) > 0.05


def test_effects_become_posterior_means(log: ListLog) -> None:
    model = agent()
    current = effects_of(model).double()
    with torch.no_grad():
        evidence = _evidence(model, log, current)
    known = (evidence.information > 0).any(1)
    assert known.tolist() == [True] * (ITEMS - 1) + [False]
    prior = select_mixture(evidence[known], current[known])
    expected = estimate(prior, evidence)
    shrink_item_effects(model, log)
    found = effects_of(model).double()
    expected[:, 0] -= expected[:, 0].mean()
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-4)
    average = (prior.share[:, None] * prior.mean).sum(0)  # an item without data is an average item
    torch.testing.assert_close(found[-1, 1:], average[1:], rtol=0.0, atol=1e-4)


def test_the_prior_is_about_what_features_do_not_tell(log: ListLog) -> None:
    model = agent_with_features()
    current, mapped, best = effects_of(model).double(), model._mapped(), int(model.best)
    assert mapped is not None
    with torch.no_grad():
        evidence = _evidence(model, log, current)
        a, slopes = mapped[1], model.leave_slopes[:, best]
        q = mapped[2] + model.conversion_slope * a
        told = torch.stack([a, q, mapped[3][:, best] + slopes[0] * a + slopes[1] * q], 1).double()
    others = Evidence(evidence.h - evidence.information * told, evidence.information)
    known = (evidence.information > 0).any(1)
    expected = told + estimate(select_mixture(others[known], (current - told)[known]), others)
    shrink_item_effects(model, log)
    expected[:, 0] -= expected[:, 0].mean()
    torch.testing.assert_close(effects_of(model).double(), expected, rtol=0.0, atol=1e-4)


def test_items_of_an_earlier_run_that_the_log_lacks_keep_their_effects(log: ListLog) -> None:
    model = agent()
    frozen = torch.zeros(ITEMS, dtype=torch.bool)
    frozen[2] = True
    model.freeze_items(frozen)
    before = effects_of(model)
    shrink_item_effects(model, log)
    after = effects_of(model)
    torch.testing.assert_close(after[2, 1:], before[2, 1:], rtol=0.0, atol=1e-5)
    assert float((after[~frozen] - before[~frozen]).abs().min(0).values.max()) > 1e-3


@pytest.mark.parametrize("options", [{"item_prior": "separate"}, {"conversion_precision": 2.0}])
def test_separate_priors_stay_if_they_are_asked_for(log: ListLog, options: dict[str, Any]) -> None:
    changed, kept = agent(), agent(**options)
    effects = []
    for model in (changed, kept):
        model.finish(log, log.first_sessions(0))
        effects.append((model.attractiveness.detach().clone(), model.conversion_effect.detach().clone()))
    assert not effects[0][0].equal(effects[1][0])
    original = agent(**options)
    assert effects[1][0].equal(original.attractiveness)
    assert effects[1][1].equal(original.conversion_effect)
