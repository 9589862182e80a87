"""The user model: its likelihood by hand, its plans by brute force, and its runs."""

from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import offrec
from offrec.algorithms.user_model import UserModel, UserSymbols
from offrec.catalogue import restrict, top_k
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.list_log import ListEpochs, read_lists
from offrec.models import user_agent
from offrec.models.log_shape import LogShape
from offrec.models.network import NetworkOptions
from offrec.models.planner import Planner
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.policy import PickHistory

CPU = torch.device("cpu")
ITEMS = 8
SETTINGS = {"algorithm.types": 3, "algorithm.width": 4, "training.epochs": 2}


def sessions_and_lists(count: int) -> tuple[list[list[int]], list[Any]]:
    """Sessions of two picks and a list without a pick between them."""
    sessions = [[number % ITEMS, (number + 3) % ITEMS] for number in range(count)]
    lists = [
        [
            (0, [first, (first + 1) % ITEMS], 0.5, 0),
            (1, [(first + 2) % ITEMS, (first + 4) % ITEMS], 0.5, None),
            (1, [(first + 5) % ITEMS, second], 0.5, 1),
        ]
        for first, second in sessions
    ]
    return sessions, lists


@pytest.fixture
def dataset(tmp_path: Path, make_dataset: Any) -> Dataset:
    sessions, lists = sessions_and_lists(40)
    made: Dataset = make_dataset(tmp_path, sessions, splits=(32, 4, 4), items=ITEMS, decisions=lists)
    return made


def agent(types: int = 2, memory: int = 2, behaviours: int = 2, seed: int = 0, **options: Any) -> UserModelAgent:
    torch.manual_seed(seed)
    learner = UserModel(types=types, width=3, memory=memory, **options)
    made = build_user_agent(ITEMS, learner, NetworkOptions(), LogShape(behaviours, 3))
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.7)
    made.reward.copy_(torch.tensor([0.2, 1.0][:behaviours]))
    return made.eval().requires_grad_(False)


def test_lists_become_rows_with_picks_memory_and_leaving(dataset: Dataset) -> None:
    log = read_lists(dataset, "train", 2, 5, CPU)
    batch = log.batch(torch.tensor([0]))
    items = dataset.sessions.items[:2].tolist()
    assert batch.place.tolist() == [1, 0, 2]
    assert batch.offered[0, 0] == items[0]
    assert batch.picked_item[2] == items[1]
    assert batch.memory.tolist() == [[ITEMS, ITEMS], [items[0], ITEMS], [items[0], ITEMS]]
    assert batch.picks.tolist() == [0, 1, 1]
    assert batch.leaves.tolist() == [False, False, True]


def test_an_epoch_contains_every_session_once_in_an_order_of_its_own(dataset: Dataset) -> None:
    epochs = ListEpochs(read_lists(dataset, "train", 2, 5, CPU), batch_size=9, seed=0)
    orders = []
    for epoch in (0, 1, 0):
        sizes = epochs.begin(epoch)
        assert [len(part) for part in epochs.batches] == [size.segments for size in sizes]
        orders.append([part.tolist() for part in epochs.batches])
        assert sorted(session for part in orders[-1] for session in part) == list(range(32))
    assert orders[0] == orders[2] != orders[1]


def test_choice_is_a_softmax_of_utilities_and_of_picking_nothing() -> None:
    model = agent()
    memory, items = torch.tensor([[5, ITEMS]]), torch.tensor([[1, 5, ITEMS]])
    types = torch.tensor([[0, 1]])
    utility, _ = model.utility_and_interest(types, memory, items)
    a = model.attractiveness - model.attractiveness.mean()
    for c in (0, 1):
        taste = model.fading.sigmoid() * model.types[c] + model.lag[0] * model.x[5]
        expected = [a[1] + model.x[1] @ taste, a[5] + model.x[5] @ taste + model.seen_choice[0]]
        torch.testing.assert_close(utility[0, c, :2], torch.stack(expected))
        probability = model.log_choice(utility).exp()[0, c]
        weights = torch.stack([model.none, expected[0] + model.place[0], expected[1] + model.place[1]]).exp()
        torch.testing.assert_close(probability[:3], weights / weights.sum())
        assert probability[3] == 0  # padding is never picked


def test_the_first_taste_fades_with_the_number_of_picks_in_memory() -> None:
    model = agent()
    model.fading.copy_(torch.tensor(0.75).logit())
    memory = torch.tensor([[ITEMS, ITEMS], [5, ITEMS], [3, 5]])
    first = torch.tensor([[1.0, 2.0, -1.0]]).expand(3, 1, 3)
    later = torch.stack(
        [torch.zeros(3), model.lag[0] * model.x[5], model.lag[0] * model.x[3] + model.lag[1] * model.x[5]]
    )
    expected = torch.tensor([1.0, 0.75, 0.5625])[:, None] * first[:, 0] + later
    torch.testing.assert_close(model.taste(first, memory)[:, 0], expected)


@pytest.mark.parametrize("choice", ["logit", "cascade"])
def test_before_training_nothing_is_picked_as_often_as_in_the_log(dataset: Dataset, choice: str) -> None:
    """Every third list has no pick."""
    model = agent(choice=choice)
    model.start_choice(read_lists(dataset, "train", 2, 5, CPU))
    model.place.zero_()
    nothing = model.log_choice(torch.zeros(1, 2)).exp()[0, 0]
    assert nothing.item() == pytest.approx(1 / 3, rel=1e-5)


def test_choice_by_cascade_passes_over_each_place_before_the_pick() -> None:
    model = agent(choice="cascade")
    utility = torch.tensor([[0.4, -1.0, 2.0]])
    p = (utility[0] + model.place - model.none).sigmoid()
    expected = torch.stack([(1 - p).prod(), p[0], (1 - p[0]) * p[1], (1 - p[0]) * (1 - p[1]) * p[2]])
    torch.testing.assert_close(model.log_choice(utility).exp()[0], expected)
    assert expected.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("types", [1, 3])
def test_cascade_plans_are_the_best_lists_if_places_are_equal(types: int) -> None:
    memory = torch.tensor([[4, 1]])
    for seed in range(40):
        model = agent(types=types, choice="cascade", horizon=0, candidates_per_type=ITEMS, seed=seed)
        model.place.zero_()
        planner, posterior = Planner(model, 3, look_ahead=False), torch.randn(1, types)
        planned = planner.plan(posterior, memory, torch.tensor([2]))
        lists = torch.cat([planned, *permutations_of(range(ITEMS))])
        values = list_values(planner, lists, memory, posterior)
        assert len(set(planned[0].tolist())) == 3
        # With several types, places are improved one by one, which need not end at the best list.
        assert values[0] > (0.99999 if types == 1 else 0.999) * values[1:].max()


def permutations_of(items: Iterable[int]) -> list[torch.Tensor]:
    return [torch.tensor([order]) for order in permutations(items, 3)]


def list_values(planner: Planner, lists: torch.Tensor, memory: torch.Tensor, posterior: torch.Tensor) -> torch.Tensor:
    """Expected reward of the pick from each list, for a posterior of types [1, K]."""
    choice, rewards = planner._outcomes(lists, memory.expand(len(lists), -1))
    return (choice.exp()[:, :, 1:] * rewards).sum(2) @ posterior.softmax(1)[0]


@pytest.mark.parametrize("choice", ["logit", "cascade"])
def test_with_fewer_allowed_items_than_places_no_item_repeats(choice: str) -> None:
    memory, few = torch.tensor([[4, 1]]), torch.tensor([1, 5, 6])
    allowed = torch.zeros(ITEMS, dtype=torch.bool).index_fill(0, few, True)
    for seed in range(20):
        model = agent(types=1, choice=choice, candidates_per_type=ITEMS, seed=seed)
        model.place.zero_()
        planner = Planner(model, 5, look_ahead=False)
        planned = planner.plan(torch.zeros(1, 1), memory, torch.tensor([2]), allowed)
        shown = [item for item in planned[0].tolist() if item < ITEMS]
        assert len(set(shown)) == len(shown) <= 3
        assert set(shown) <= set(few.tolist())
        orders = torch.cat([planned, *(pad(order, (0, 2), value=ITEMS) for order in permutations_of(few.tolist()))])
        values = list_values(planner, orders, memory, torch.zeros(1, 1))
        assert values[0] > 0.99999 * values[1:].max()
        head = model.planned_head(torch.zeros(1, 1), memory, torch.tensor([2]), allowed)
        ranked = top_k(restrict(head, allowed), 3)[1][0].tolist()
        assert sorted(ranked) == few.tolist()


@pytest.mark.parametrize("choice", ["logit", "cascade"])
def test_picks_alone_tell_the_type_as_its_taste_fades(choice: str) -> None:
    """Each pick is compared with what the log showed, by a taste that has faded as much as that of the pick."""
    model = agent(types=3, memory=2, choice=choice)
    shown = torch.arange(1.0, ITEMS + 1) / torch.arange(1.0, ITEMS + 1).sum()
    model.shown.copy_(shown)
    recent = torch.tensor([[2, 6, 1, ITEMS]])  # most recent first
    planner = Planner(model, 3, look_ahead=False)
    expected, types = model.type_logit.log_softmax(0).clone(), torch.arange(3)[None]
    for number, (item, before) in enumerate([(1, [ITEMS, ITEMS]), (6, [1, ITEMS]), (2, [6, 1])]):
        utility = model.utility_and_interest(types, torch.tensor([before]), torch.tensor([[item]]))[0][0, :, 0]
        faded = model.fading.sigmoid() ** number * model.types @ model.x.T + model.centred()
        if choice == "cascade":
            total = (shown * (faded - model.none).sigmoid()).sum(1).log()
            expected += (utility - model.none).sigmoid().log() - total
        else:
            expected += utility - (model.none.exp() + 3 * (shown * faded.exp()).sum(1)).log()
    torch.testing.assert_close(planner.after_picks(recent)[0], expected)


@pytest.mark.parametrize("is_cascade", [False, True])
def test_the_form_of_choice_is_selected_by_likelihood(tmp_path: Path, make_dataset: Any, is_cascade: bool) -> None:
    """Every list has two good items and a bad one between them. By cascade, the item at the end is picked rarely."""
    generator = torch.Generator().manual_seed(0)
    sessions, lists = [], []
    weight = {0: 2.0, 1: 1.6, 2: -1.5, 3: -2.0}
    for _ in range(600):
        items = torch.randperm(4, generator=generator)[:3].tolist()
        u = torch.tensor([weight[item] for item in items])
        if is_cascade:
            p = u.sigmoid()
            passed = torch.cat([torch.ones(1), (1 - p).cumprod(0)])
            chances = torch.cat([passed[-1:], passed[:-1] * p])
        else:
            chances = torch.cat([torch.zeros(1), u]).softmax(0)
        place = int(torch.multinomial(chances, 1, generator=generator))
        if place == 0:  # a session needs an event
            continue
        sessions.append([items[place - 1]])
        lists.append([(0, items, 0.5, 0)])
    count = len(sessions)
    data = make_dataset(tmp_path, sessions, splits=(count - 100, 50, 50), items=4, decisions=lists)
    quick = {**SETTINGS, "algorithm.types": 1, "training.epochs": 4, "training.batch_size": 32}
    policy = offrec.train(data, tmp_path / "run", algorithm="user-model", settings=quick, console=Console(quiet=True))
    assert bool(policy.agent.is_cascade) == is_cascade


def test_each_prior_has_its_precision() -> None:
    names = ("vector_precision", "effect_precision", "attractiveness_precision", "conversion_precision")
    none: dict[str, Any] = dict.fromkeys(names, 0.0)
    plain = agent(**none)
    leaving = plain._penalty()
    effects = {
        "vector_precision": plain.x,
        "effect_precision": torch.cat([plain.types, plain.exposed_types]),
        "attractiveness_precision": plain.centred(),
        "conversion_precision": plain.conversion_effect,
    }
    for name, effect in effects.items():
        shrunk = agent(**{**none, name: 3.0})
        expected = 1.5 * effect.square().sum()
        torch.testing.assert_close(shrunk._penalty() - leaving, expected, rtol=1e-4, atol=1e-3)


def test_the_loss_of_a_session_sums_over_types() -> None:
    symbols = UserSymbols(
        log_prior=torch.tensor([0.25, 0.75]).log(),
        utility=torch.zeros(2, 2, 1),
        choice=torch.tensor([[0.5, 0.2], [0.1, 0.4]]).log(),
        conversion=torch.tensor([[1.0, 1.0], [0.5, 0.25]]).log(),
        exposure=torch.tensor([[0.3, 0.6], [1.0, 1.0]]).log(),
        leave_logit=torch.zeros(2, 1),
        impatience=torch.zeros(1, 1),
        log_share=torch.zeros(1),
        leaves=torch.tensor([False, True]),
        session=torch.tensor([0, 0]),
        penalty=torch.tensor(0.0),
        lists_per_session=torch.tensor(2.0),
    )
    terms = UserModel().loss(symbols)
    by_hand = 0.25 * (0.5 * 0.1) * (1.0 * 0.5) * 0.3 + 0.75 * (0.2 * 0.4) * (1.0 * 0.25) * 0.6
    assert terms["likelihood"].item() == pytest.approx(-torch.tensor(by_hand).log().item())
    assert terms["leaving"].item() == pytest.approx(2 * torch.tensor(2.0).log().item())


def test_each_item_of_a_plan_increases_the_value_of_the_list_most() -> None:
    model = agent(types=2, horizon=0, candidate_types=2, candidates_per_type=ITEMS)
    planner = Planner(model, 3, look_ahead=False)
    memory, picks, posterior = torch.tensor([[4, 1]]), torch.tensor([2]), torch.tensor([[0.3, 0.7]]).log()
    planned = planner.plan(posterior, memory, picks)[0].tolist()

    def value(items: list[int]) -> float:
        """The expected reward of the next pick, written out for every type."""
        choice, rewards = planner._outcomes(torch.tensor([items]), memory)
        by_type = (choice.exp()[0, :, 1:] * rewards[0]).sum(1)
        return float(posterior.exp()[0] @ by_type)

    for length in (1, 2, 3):
        others = [item for item in range(ITEMS) if item not in planned[: length - 1]]
        best = max(others, key=lambda item: value([*planned[: length - 1], item]))
        assert planned[length - 1] == best


def test_plans_prefer_items_with_a_higher_reward_of_their_own() -> None:
    """All candidates but one come from the linear score, so it has to know the rewards of items, too."""
    model = agent(types=1, horizon=0, candidate_types=1, candidates_per_type=1)
    memory, picks, posterior = torch.full((1, 2), ITEMS), torch.zeros(1, dtype=torch.long), torch.zeros(1, 1)
    last = int(Planner(model, ITEMS, look_ahead=False).plan(posterior, memory, picks)[0, -1])
    rewards = model.reward.expand(ITEMS, -1).clone()
    rewards[last] += 1000.0
    model.set_rewards(rewards)
    torch.testing.assert_close(model.reward + model.item_reward, rewards)
    assert int(Planner(model, 1, look_ahead=False).plan(posterior, memory, picks)) == last


def test_planning_ahead_prefers_items_that_keep_visitors_and_horizon_0_does_not() -> None:
    model = agent(types=1)
    for name in ("leave_slopes", "leave_effect", "attractiveness", "conversion_effect", "lag", "place", "leave_same"):
        getattr(model, name).data.zero_()
    model.x.data.zero_()
    model.leave_effect.data[3] = 2.0
    model.statistics.copy_(torch.tensor([0.3, 0.0, 0.5]))
    memory, picks = torch.full((1, 2), ITEMS), torch.zeros(1, dtype=torch.long)
    ahead = Planner(model, 1, look_ahead=True)
    advantage = ahead.advantage(memory, picks, torch.arange(ITEMS)[None], ahead.start_patience(1))[0]
    assert advantage.argmax() == 3
    assert ahead.plan(torch.zeros(1, 1), memory, picks).item() == 3
    model.conversion_effect.data[6] = 3.0
    assert Planner(model, 1, look_ahead=False).plan(torch.zeros(1, 1), memory, picks).item() == 6


def test_the_value_of_staying_is_a_geometric_sum_without_item_effects() -> None:
    model = agent(types=1)
    for parameter in model.parameters():
        parameter.data.zero_()
    model.leave_base.data.fill_(-1.0)
    model.log_impatience.data.fill_(-20.0)  # all visitors are alike
    model.statistics.copy_(torch.tensor([0.4, 0.0, 0.0]))
    planner = Planner(model, 1, look_ahead=True)
    w, picks, same = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.zeros(1, 1)
    stay = 1 - torch.tensor(-1.0).sigmoid().item()
    share = planner.start_patience(1).softmax(1)
    assert planner._value(w, picks, same, None, share).item() == pytest.approx(0.4 * stay / (1 - stay), rel=1e-5)


def test_sessions_update_the_posterior_by_bayes_rule_also_without_a_pick() -> None:
    model = agent()
    states = model.start_sessions(2)
    lists, items = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([2, ITEMS])
    choice, _ = model.planner()._outcomes(lists, states.memory)
    expected = model.planner().log_prior + torch.stack([choice[0, :, 2], choice[1, :, 0]])
    states.observe(torch.tensor([0, 1]), lists, items)
    torch.testing.assert_close(states.posterior, expected)
    assert states.memory.tolist() == [[2, ITEMS], [ITEMS, ITEMS]]
    assert states.picks.tolist() == [1, 0]


def test_the_planned_list_ranks_first_and_all_items_are_ranked() -> None:
    model = agent(list_length=3)
    posterior, memory = model.planner().start(2), torch.tensor([[1, 2], [ITEMS, ITEMS]])
    picks = torch.tensor([2, 0])
    planned = model.planner().plan(posterior, memory, picks)
    head = model.planned_head(posterior, memory, picks)
    order = head.at(torch.arange(ITEMS).expand(2, -1)).argsort(1, descending=True)
    assert order[:, :3].tolist() == planned.tolist()


def test_exposure_explains_items_that_are_shown_only_to_visitors_who_like_them(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Both types pick their own items from every list. Without exposure, items seem attractive to everybody."""
    sessions, lists = [], []
    for number in range(60):
        own = [0, 1, 2, 3] if number % 2 else [4, 5, 6, 7]
        sessions.append([own[number % 4], own[(number + 1) % 4]])
        lists.append([(at, [item, own[(number + 2) % 4]], 0.5, at) for at, item in enumerate(sessions[-1])])
    made = make_dataset(tmp_path, sessions, splits=(50, 5, 5), items=ITEMS, decisions=lists)
    torch.manual_seed(0)
    model = build_user_agent(ITEMS, UserModel(types=2, width=4), NetworkOptions(), LogShape.of(made))
    log = read_lists(made, "train", 8, 5, CPU)
    model.start(log, torch.ones(len(made.behaviours)))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    batch = log.batch(torch.arange(log.sessions))
    for _ in range(60):
        terms = model.loss(batch)
        optimiser.zero_grad()
        sum((batch.weight * term).sum() for term in terms.values()).backward()  # type: ignore[union-attr]
        optimiser.step()
    match = model.types @ model.x.T
    liked = [set(row.topk(4).indices.tolist()) for row in match]
    assert sorted(map(sorted, liked)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("exposure", "policy_reads_log", "learned"),
    [("auto", False, True), ("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_exposure_is_left_out_if_the_policy_knew_only_the_log(
    dataset: Dataset, exposure: Any, policy_reads_log: bool, learned: bool
) -> None:
    learner = UserModel(types=2, width=4, exposure=exposure)
    model = build_user_agent(dataset.n_items, learner, NetworkOptions(), LogShape.of(dataset))
    log = read_lists(dataset, "train", 8, 5, CPU)
    model.start(log, torch.ones(len(dataset.behaviours)), policy_reads_log=policy_reads_log)
    symbols = model.symbols(log.batch(torch.arange(5)), 1)
    assert bool(symbols.exposure.any()) == learned


def test_leaving_is_validated_on_more_sessions_than_choices(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = UserModel(types=2, width=4)
    model = build_user_agent(dataset.n_items, learner, NetworkOptions(), LogShape.of(dataset)).requires_grad_(False)
    model.leave_effect.normal_(generator=torch.Generator().manual_seed(0))
    log = read_lists(dataset, "train", 8, 5, CPU)
    at_once = model._leaving_likelihood(log)
    monkeypatch.setattr(user_agent, "VALIDATED_CHOICES", 5)
    torch.testing.assert_close(model._leaving_likelihood(log), at_once)
    monkeypatch.setattr(user_agent, "VALIDATED", 5)
    assert not torch.allclose(model._leaving_likelihood(log), at_once)


@pytest.mark.parametrize("has_lists", [True, False])
def test_a_run_trains_loads_and_recommends(has_lists: bool, tmp_path: Path, make_dataset: Any) -> None:
    sessions, lists = sessions_and_lists(40)
    decisions = {"decisions": lists} if has_lists else {}
    made = make_dataset(tmp_path, sessions, splits=(32, 4, 4), items=ITEMS, **decisions)
    policy = offrec.train(
        made, tmp_path / "run", algorithm="user-model", settings=SETTINGS, device="cpu", console=Console(quiet=True)
    )
    loaded = offrec.load(tmp_path / "run", "cpu")
    history = [policy.vocabulary.id(1)]
    assert loaded.name == "user-model"
    assert loaded.recommend(history, 5).items == policy.recommend(history, 5).items
    states = loaded.start_sessions(3)
    assert not isinstance(states, PickHistory)
    assert states.head(torch.tensor([0, 2])).n_rows == 2


def test_options_of_networks_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(offrec.InputError, match=r"network\.width has no effect on user-model"):
        offrec.train(dataset, tmp_path / "run", algorithm="user-model", settings={"network.width": 8})
    with pytest.raises(offrec.InputError, match="select must be last"):
        offrec.train(dataset, tmp_path / "run", algorithm="user-model", settings={"select": "ndcg"})
    assert not (tmp_path / "run").exists()
