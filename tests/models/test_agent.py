"""One contract for the agent of every learner: what is trained, what is fixed, what is saved."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_agents import (
    CPU,
    HISTORY,
    ITEMS,
    NETWORK_LEARNERS,
    OPTIONS,
    agent,
    batch,
    facts,
    optimiser,
    prior,
    total,
    update,
)
from torch import nn

from offrec.algorithms import LEARNERS
from offrec.catalogue import Head, reference, top_k
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError
from offrec.models.agent import Agent, LogFacts, return_spread
from offrec.models.critic import CriticOptions

ACTOR, CRITIC = {"actor"}, {"critic"}
TRAINED = {"sl": ACTOR, "dqn": CRITIC, "pg": ACTOR, "sl+dqn": ACTOR, "sl+pg": ACTOR} | dict.fromkeys(
    ("sdac", "sc", "sr", "pc", "dc", "re"), ACTOR | CRITIC
)
TRAINED |= {"snqn": ACTOR, "sa2c": ACTOR}
VARIANTS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NETWORK_LEARNERS] + [
    ("dqn", {"double": True}),
    ("dqn", {"delta": 0.05}),
    ("sl+dqn", {"double": True}),
    ("pg", {"logging": "own"}),
    ("pg", {"start": "supervised"}),
    ("sr", {"adaptive": True}),
    ("dc", {"expectation": "gumbel"}),
    ("dc", {"ranks": "critic"}),
    ("sdac", {"ranks": "critic", "expectation": "gumbel", "straight_through": True}),
]


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(before: dict[str, torch.Tensor], module: nn.Module) -> set[str]:
    return {name.split(".")[0] for name, value in module.state_dict().items() if not torch.equal(before[name], value)}


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_gradients_reach_what_is_declared(name: str, options: dict[str, Any]) -> None:
    """Gradients reach every parameter of actor and critic, and none of the target and the prior."""
    made = agent(name, **options)
    loss = total(made, batch())
    assert torch.isfinite(loss)
    loss.backward()
    reached = {n for n, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    expected = {n for n, p in made.named_parameters() if n.split(".")[0] in TRAINED[name]}
    assert reached == expected
    assert all(torch.isfinite(p.grad).all() for p in made.parameters() if p.grad is not None)
    assert {n for n, p in made.named_parameters() if p.requires_grad} == expected


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_targets_move_only_after_the_step_and_priors_never(name: str, options: dict[str, Any]) -> None:
    made = agent(name, **options).train()
    adam, rows = optimiser(made), batch()
    before = snapshot(made)
    total(made, rows).backward()
    assert moved(before, made) == set(), "a loss moves nothing"
    adam.step()
    assert moved(before, made) == TRAINED[name]
    made.after_update()
    after = moved(before, made)
    assert after == TRAINED[name] | ({"target"} if made.target is not None else set()) | (
        {"multiplier"} if made.needs.multiplier else set()
    ) | ({"updates"} if made.needs.updates else set())
    for _ in range(3):
        update(made, rows, adam)
    assert "prior" not in moved(before, made)


@pytest.mark.parametrize("name", ["sdac", "sl+dqn"])
def test_soft_targets_follow_by_their_rate(name: str) -> None:
    made = agent(name, critic=CriticOptions(ground=0, target_rate=0.25))
    online = made.critic if made.critic is not None else made.actor
    before = [p.clone() for p in made.target.network.parameters()]
    assert all(torch.equal(b, p) for b, p in zip(before, online.parameters(), strict=True)), "they start alike"
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.normal_()
    made.after_update()
    for old, new, found in zip(before, online.parameters(), made.target.network.parameters(), strict=True):
        torch.testing.assert_close(found, 0.75 * old + 0.25 * new)


def test_periodic_targets_jump_exactly_and_on_time() -> None:
    made = agent("sdac", critic=CriticOptions(ground=0, target="periodic", target_every=3))
    before = snapshot(made.target.network)
    for step in range(1, 7):
        with torch.no_grad():
            for parameter in made.critic.parameters():
                parameter.normal_()
        made.after_update()
        now = snapshot(made.target.network)
        if step % 3:
            assert all(torch.equal(now[n], before[n]) for n in now), f"after {step} updates"
        else:
            assert all(torch.equal(now[n], value) for n, value in made.critic.state_dict().items())
            before = now
    assert int(made.target.updates) == 6


def test_fixed_networks_never_drop_out() -> None:
    made = agent("dc", network=replace(OPTIONS, dropout=0.5)).train()
    assert made.actor.training
    assert made.critic.training
    assert not any(module.training for fixed in (made.target, made.prior) for module in fixed.modules())
    rows = batch()
    first, second = made.symbols(rows), made.symbols(rows)
    for name, same in {
        "b": True,
        "next_b": True,
        "next_q": True,
        "target_q": True,
        "pi": False,
        "q": False,
    }.items():
        heads = (reference.logits(getattr(x, name)) for x in (first, second))
        assert torch.equal(*heads) == same, name


def test_the_multiplier_climbs_while_the_constraint_is_broken() -> None:
    """β ← max(0, β + η (KL − ε)), calculated by hand for two updates."""
    made, rows = agent("sr", adaptive=True, beta=0.5, epsilon=0.1, rate=0.2), batch()
    beta = 0.5
    for _ in range(2):
        terms = made.loss(rows)
        assert (terms["~multiplier"] == beta).all()
        kl = (rows.weight * terms["~kl"]).sum().item()
        made.after_update()
        beta = max(0.0, beta + 0.2 * (kl - 0.1))
        assert made.multiplier.item() == pytest.approx(beta)
        beta = made.multiplier.item()
    free = agent("sr", adaptive=True, beta=0.5, epsilon=1e6)
    free.loss(rows)
    free.after_update()
    assert free.multiplier.item() == 0.0


PAIRS = [("gru", 8, "sasrec", 12), ("sasrec", 8, "caser", 4), ("caser", 6, "gru", 16), ("cfn", 8, "nextitnet", 8)]


@pytest.mark.parametrize("name", ["sdac", "dc", "re", "pc"])
@pytest.mark.parametrize(("actor", "width", "critic", "critic_width"), PAIRS)
def test_actor_and_critic_may_differ(name: str, actor: str, width: int, critic: str, critic_width: int) -> None:
    options = CriticOptions(backbone=critic, width=critic_width, repeat="off", ground=2)
    made = agent(name, network=replace(OPTIONS, backbone=actor, width=width), critic=options)
    adam, rows = optimiser(made), batch()
    losses = [update(made, rows, adam) for _ in range(3)]
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    assert made.critic.options.width == critic_width
    assert made(rows).state.shape[1] == width


@pytest.mark.parametrize("draw", ["uniform", "popular", "logging"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_saved_agent_is_loaded_unchanged(name: str, options: dict[str, Any], draw: Any) -> None:
    """Load into an agent without prior and log, which is all that a policy needs."""
    made, rows = agent(name, critic=CriticOptions(ground=2, ground_draw=draw), **options), batch()
    adam = optimiser(made)
    for _ in range(2):
        update(made, rows, adam)
    torch.manual_seed(7)
    other = Agent(ITEMS, made.learner, OPTIONS, made.critic_options, LogFacts(), restored=True)
    other.load_state_dict({n: v.clone() for n, v in made.state_dict().items()})
    queries = batch_from_histories([[], [3], [1, 4, 4]], ITEMS, HISTORY, CPU)
    with torch.no_grad():
        mine, its = (reference.logits(a.eval()(queries)) for a in (made, other))
    torch.testing.assert_close(mine, its, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["pg", "sc", "dc", "re"])
def test_a_missing_logging_policy_is_noticed(name: str) -> None:
    with pytest.raises(ValueError, match="π̂_b"):
        Agent(ITEMS, LEARNERS[name].learner(), OPTIONS, None, LogFacts(0.9))


@pytest.mark.parametrize("name", NETWORK_LEARNERS)
def test_units_of_reward_do_not_matter(name: str) -> None:
    """Two logs that differ only in the unit of rewards give the same losses."""
    found = []
    for scale in (1.0, 64.0):
        rows = batch(scale)
        made = agent(name, given=facts(unit=return_spread(rows.return_to_go)))
        torch.manual_seed(3)
        found.append(made.loss(rows))
    for term in found[0]:
        torch.testing.assert_close(found[0][term], found[1][term])


def test_return_spread() -> None:
    assert return_spread(torch.tensor([1.0, 3.0])) == 1.0
    assert return_spread(torch.tensor([0.2, 0.2, 0.2])) == pytest.approx(0.2)
    assert return_spread(torch.zeros(3)) == 1.0


@pytest.mark.parametrize("name", ["pg", "sl+pg", "sdac", "dc"])
def test_a_start_from_the_logging_policy(name: str) -> None:
    made = agent(name, start="supervised")
    for key, value in prior().state_dict().items():
        assert torch.equal(made.actor.state_dict()[key], value)
    with pytest.raises(InputError, match="network options"):
        Agent(ITEMS, made.learner, OPTIONS, CriticOptions(), facts(), prior(replace(OPTIONS, width=4)))


@pytest.mark.parametrize("dropout", [None, 0.7], ids=["its own", "another's"])
def test_re_starts_its_critic_as_alpha_times_the_logging_policys_scores(dropout: float | None) -> None:
    """Q is α log π̂_b up to a constant per state, so softmax(Q/α) = π̂_b, for the critic and its target."""
    critic = CriticOptions(repeat=OPTIONS.repeat, dropout=dropout)
    learner = LEARNERS["re"].learner(alpha=0.3, critic_start="supervised")
    made, rows = Agent(ITEMS, learner, OPTIONS, critic, facts(), prior()).eval(), batch()
    wanted = reference.logits(prior().eval()(rows))
    for network in (made.critic, made.target.network):
        torch.testing.assert_close(reference.logits(network(rows)) / 0.3, wanted, atol=1e-5, rtol=1e-5)
    other = "off" if OPTIONS.repeat != "off" else "bonus"
    with pytest.raises(InputError, match=r"critic\.repeat"):
        Agent(ITEMS, learner, OPTIONS, CriticOptions(repeat=other), facts(), prior())


def test_dqn_ranks_within_the_support() -> None:
    """Items with π̂_b ≥ δ in the order of Q; the likeliest item if there are none."""
    made, rows = agent("dqn", delta=0.05).eval(), batch()
    with torch.no_grad():
        q, b = reference.logits(made.critic(rows)), reference.logits(made.prior(rows)).softmax(1)
        best = top_k(made(rows), 1)[1][:, 0]
        assert (best == q.masked_fill(b < 0.05, -torch.inf).argmax(1)).all()
        assert (best != q.argmax(1)).any()
        lonely = agent("dqn", delta=2.0).eval()
        assert (top_k(lonely(rows), 1)[1][:, 0] == reference.logits(lonely.prior(rows)).argmax(1)).all()


@pytest.mark.parametrize("repeat", ["instead", "bonus", "off"])
def test_ranking_by_the_policy_the_critic_implies(repeat: Any) -> None:
    """softmax(Q/α), for DC π̂_b exp(Q/α), with any corrections of both heads."""
    rows, alpha = batch(), 0.2
    for name in ("sdac", "dc"):
        made = agent(name, critic=CriticOptions(ground=0, repeat=repeat), ranks="critic", alpha=alpha).eval()
        with torch.no_grad():
            for parameter in made.critic.parameters():
                parameter.normal_()
            expected = reference.logits(made.critic(rows)) / alpha
            if name == "dc":
                expected = expected + reference.logits(made.prior(rows))
            found = reference.logits(made(rows))
        torch.testing.assert_close(found.log_softmax(1), expected.log_softmax(1), rtol=1e-4, atol=1e-3)
        assert made.stochastic


def test_diagnostics() -> None:
    made, rows = agent("dc", given=facts(unit=2.0)), batch()
    with torch.no_grad():
        made.critic.bias.fill_(3.0)
        found = made.diagnostics(rows)
        made.eval()
        log_pi = reference.logits(made.actor(rows)).log_softmax(1)
        log_b = reference.logits(made.prior(rows)).log_softmax(1)
        q = reference.logits(made.critic(rows))
    pi = log_pi.exp()
    torch.testing.assert_close(found["~entropy"], -(pi * log_pi).sum(1))
    torch.testing.assert_close(found["~kl_to_logging"], (pi * (log_pi - log_b)).sum(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["~rare"], (pi * (log_b < -9.21034)).sum(1))
    torch.testing.assert_close(found["~q_logged"], 2 * q.gather(1, rows.action[:, None])[:, 0])
    assert ((found["~q_random"] - 6).abs() < 1).all(), "in units of reward"
    assert torch.equal(found["~return_to_go"], rows.return_to_go)
    given = agent("sdac").diagnostics(rows, prior())
    assert given.keys() == found.keys()
    assert agent("sl").diagnostics(rows).keys() == {"~entropy"}


def test_the_same_generator_gives_the_same_update() -> None:
    found = []
    for _ in range(2):
        made = agent("dc", network=replace(OPTIONS, dropout=0.3), expectation="gumbel")
        torch.manual_seed(5)
        found.append(made.loss(batch())["critic"].detach())
    assert torch.equal(*found)
    made = deepcopy(made)
    assert not torch.equal(made.loss(batch())["critic"], found[0]), "and another state another"


@pytest.mark.parametrize("name", NETWORK_LEARNERS)
def test_bfloat16_heads_give_close_losses(name: str) -> None:
    """Losses agree within 2 %, and gradients have full precision."""
    exact, narrow = agent(name), agent(name)
    narrow.bfloat16_products = True
    found = []
    for made in (exact, narrow):
        torch.manual_seed(4)
        loss = total(made, batch())
        loss.backward()
        found.append(loss.item())
        assert all(p.grad.dtype == torch.float32 for p in made.parameters() if p.requires_grad)
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[1] != found[0]


@pytest.mark.parametrize("name", ["pg", "sl+pg"])
def test_an_own_logging_head_has_no_gradient_to_the_policy(name: str) -> None:
    made = agent(name, logging="own")
    made.loss(batch())["logging_cross_entropy"].sum().backward()
    reached = {n for n, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {n for n, _ in made.named_parameters() if n.startswith("actor.second.")}


def test_only_the_policy_and_the_critic_at_s_carry_a_graph() -> None:
    for made in (agent("dc"), agent("dqn", double=True), agent("sl+dqn", double=True)):
        x = made.symbols(batch())
        heads = {name: head for name, head in vars(x).items() if isinstance(head, Head)}
        live = {n for n, h in heads.items() if h.state.requires_grad or h.table.requires_grad}
        assert live == {"pi", "q"} & heads.keys()
        assert len(heads) > 2
