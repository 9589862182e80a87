"""The next state from a shared pass equals the state of the history with the action appended."""

from dataclasses import replace

import pytest
import torch
from small_agents import CPU, HISTORY, ITEMS, OPTIONS, batch, sessions

from offrec.catalogue import reference
from offrec.data.replay import batch_from_histories
from offrec.models.network import Network


@pytest.mark.parametrize("how", ["sessions", "windows"])
@pytest.mark.parametrize("backbone", ["gru", "cfn", "caser", "nextitnet", "sasrec"])
def test_next_state(backbone: str, how: str) -> None:
    torch.manual_seed(0)
    network = Network(ITEMS, replace(OPTIONS, backbone=backbone)).eval()
    rows, log = batch(how=how), sessions()
    starts = torch.tensor(log.offsets[:-1])
    begin = starts[torch.searchsorted(starts, rows.event, right=True) - 1]
    before = [log.items[first:event].tolist() for first, event in zip(begin.tolist(), rows.event.tolist(), strict=True)]
    after = [[*history, action] for history, action in zip(before, rows.action.tolist(), strict=True)]
    assert max(map(len, after)) <= HISTORY
    states, next_states = network.states_and_next(rows)
    torch.testing.assert_close(states, network.states(rows))
    whole = batch_from_histories(after, ITEMS, HISTORY, CPU)
    found = rows.next_recent
    torch.testing.assert_close(found, whole.recent[:, : found.shape[1]])
    assert (whole.recent[:, found.shape[1] :] == ITEMS).all()
    found = reference.logits(network.head(next_states, rows.next_recent))
    torch.testing.assert_close(found, reference.logits(network(whole)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(states, next_states)


def test_a_critic_starts_near_zero_and_so_does_its_repeat_term() -> None:
    torch.manual_seed(0)
    options = replace(OPTIONS, width=64, repeat="bonus")
    policy, critic = Network(ITEMS, options).eval(), Network(ITEMS, options, value=True).eval()
    assert reference.logits(policy(batch())).abs().max() > 5
    assert reference.logits(critic(batch())).abs().max() < 0.15


def test_a_critics_level_is_common_to_all_items() -> None:
    torch.manual_seed(0)
    critic = Network(ITEMS, replace(OPTIONS, repeat="off"), value=True).eval()
    before = reference.logits(critic(batch()))
    with torch.no_grad():
        critic.scale.level.normal_()
    difference = reference.logits(critic(batch())) - before
    torch.testing.assert_close(difference, difference[:, :1].expand(-1, ITEMS))
    assert difference[:, 0].unique().numel() > 3, "and moves with the state"


@pytest.mark.parametrize("tied", [True, False])
def test_a_second_head_has_a_table_of_its_own(tied: bool) -> None:
    network = Network(ITEMS, replace(OPTIONS, tied=tied), second="critic")
    tables = {network.items_in.data_ptr(), network.table.data_ptr(), network.second.items_out.data_ptr()}
    assert len(tables) == (2 if tied else 3)
