"""How the visitors' impatience enters leaving, its posterior and the value of staying."""

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss

from offrec.algorithms.user_model import UserModel, leaving_log_likelihood
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.planner import Planner
from offrec.models.user_agent import UserModelAgent, build_user_agent

ITEMS, MEMORY = 6, 2


def agent(seed: int = 0) -> UserModelAgent:
    torch.manual_seed(seed)
    made = build_user_agent(ITEMS, UserModel(types=2, width=3, memory=MEMORY), NetworkOptions(), LogShape(2, 3))
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.5)
    made.reward.copy_(torch.tensor([0.2, 1.0]))
    made.statistics.copy_(torch.tensor([0.4, 0.1, 0.3]))
    return made.eval().requires_grad_(False)


def test_the_likelihood_of_a_session_is_a_mean_over_levels_of_impatience() -> None:
    """Two sessions: one of two lists that ends, one of one list that does not."""
    logit = torch.tensor([[0.4], [-0.3], [1.0]])
    impatience, share = torch.tensor([[-1.0], [2.0]]), torch.tensor([0.25, 0.75])
    leaves, session = torch.tensor([False, True, False]), torch.tensor([0, 0, 1])

    def leave(value: float) -> float:
        return float(torch.tensor(value).sigmoid())

    first = 0.25 * (1 - leave(-0.6)) * leave(-1.3) + 0.75 * (1 - leave(2.4)) * leave(1.7)
    second = 0.25 * (1 - leave(0.0)) + 0.75 * (1 - leave(3.0))
    found = leaving_log_likelihood(logit, impatience, share.log(), leaves, session)
    assert found.exp()[:, 0].tolist() == pytest.approx([first, second], rel=1e-5)


def test_levels_and_shares_integrate_a_normal_distribution() -> None:
    model = agent()
    z, share = model.impatience().double(), model.log_share.double().exp()
    variance = (2 * model.log_impatience.double()).exp()
    torch.testing.assert_close(share.sum(), torch.ones_like(share.sum()))
    torch.testing.assert_close(share @ z, torch.zeros_like(variance), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(share @ z.square(), variance, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(share @ z**4, 3 * variance.square(), rtol=1e-5, atol=0.0)


def test_the_value_of_staying_is_the_mean_of_the_values_at_each_level() -> None:
    model = agent()
    planner = Planner(model, 1, look_ahead=True)
    w, picks, same = torch.tensor([[0.3, -0.2]]), torch.tensor([1]), torch.tensor([[0.1, 0.4]])
    new = torch.tensor([[0.5, -0.1]])
    share = torch.tensor([[0.1, 0.2, 0.3, 0.25, 0.15]])
    total, levels = torch.zeros(1, 2), planner.impatience.clone()
    for number, level in enumerate(levels):
        planner.impatience = level[None]  # everybody has this level
        total += share[:, number] * planner._value(w, picks, same, new, torch.ones(1, 1))
    planner.impatience = levels
    torch.testing.assert_close(planner._value(w, picks, same, new, share), total)


def test_visitors_who_stay_become_patient_and_are_worth_keeping() -> None:
    model = agent()
    model.log_impatience.data.fill_(0.0)
    model.leave_effect.data[2] = 2.0
    states, lists = model.start_sessions(2), torch.tensor([[0, 1, 3]])
    nothing = torch.tensor([ITEMS])
    for _ in range(6):  # only the first visitor
        states.observe(torch.tensor([0]), lists, nothing)
    planner = model.planner()
    mean = states.patience.softmax(1) @ planner.impatience
    assert mean[0] < mean[1] - 0.5
    items = torch.tensor([[2, 4]]).expand(2, -1)
    gain = planner.advantage(states.memory, states.picks, items, states.patience)
    assert gain[0, 0] - gain[0, 1] > gain[1, 0] - gain[1, 1] > 0


def test_patience_after_picks_is_that_of_a_session_in_which_each_list_had_a_pick() -> None:
    model = agent(seed=1)
    states, picks = model.start_sessions(1), [3, 0, 5]
    for item in picks:
        states.observe(torch.tensor([0]), torch.tensor([[item, 1, 2]]), torch.tensor([item]))
    recent = torch.tensor([[*picks[::-1], ITEMS, ITEMS]])
    torch.testing.assert_close(model.planner().patience_after_picks(recent), states.patience)


def test_the_likelihood_has_its_maximum_at_the_true_impatience_and_effects() -> None:
    """Half of the visitors are impatient. After item 1 visitors stay longer, in the same way for all."""
    generator = torch.Generator().manual_seed(0)
    visitors, effect, spread = 6000, 1.5, 1.5
    z = spread * torch.randn(visitors, generator=generator)
    session, likes, leaves = [], [], []
    for number in range(visitors):
        for _ in range(30):
            like = bool(torch.rand((), generator=generator) < 0.5)
            chance = torch.sigmoid(z[number] - 0.5 - effect * like)
            left = bool(torch.rand((), generator=generator) < chance)
            session.append(number)
            likes.append(float(like))
            leaves.append(left)
            if left:
                break
    index, x, left_after = torch.tensor(session), torch.tensor(likes), torch.tensor(leaves)
    level, weight = hermegauss(5)
    nodes, share = torch.tensor(level).float(), torch.tensor(weight / weight.sum()).log().float()

    def fit(varies: bool) -> tuple[float, float]:
        parameters = [torch.zeros((), requires_grad=True) for _ in range(3)]
        base, slope, log_spread = parameters
        optimiser = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            z = (log_spread.exp() if varies else 0.0 * log_spread) * nodes[:, None]
            logit = (base - slope * x)[:, None]
            loss = -leaving_log_likelihood(logit, z, share, left_after, index).sum() / visitors
            loss.backward()
            return loss

        optimiser.step(closure)
        return float(slope.detach()), float(log_spread.detach().exp())

    slope, found = fit(varies=True)
    assert slope == pytest.approx(effect, rel=0.1)
    assert found == pytest.approx(spread, rel=0.1)
    assert fit(varies=False)[0] < 0.85 * effect
