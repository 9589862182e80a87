"""The repeat term calculated by hand, tied tables, and the parts of a head."""

import math
from dataclasses import replace

import pytest
import torch

from offrec.catalogue import log_prob, logsumexp, maximum, reference, top_k, use_backend
from offrec.catalogue.corrections import unique_items
from offrec.data.replay import batch_from_histories
from offrec.models.network import Network, NetworkOptions, RepeatTerm
from offrec.types import Batch

OPTIONS = NetworkOptions(width=4, history=5, dropout=0.0)
CPU = torch.device("cpu")


def test_repeat_term_by_hand() -> None:
    term = RepeatTerm(2, 4, by_state=True)
    assert term.by_state is not None
    with torch.no_grad():
        term.by_recency.copy_(torch.tensor([1.0, 0.5, 0.25, 0.125]))
        term.by_count.fill_(2.0)
        term.by_state.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    state = torch.tensor([[10.0, 20.0]])
    recent = torch.tensor([[7, 3, 7, 9]])  # 7 was seen last and before; 9 is padding (nine items)
    scores = term(state, unique_items(recent, 9))[0].tolist()
    assert scores == pytest.approx([4 * (1.0 + 2 * math.log(2) + 10), 4 * (0.5 + 20), 0.0, 0.0], rel=1e-6)


def test_repeat_instead_of_the_table_and_on_top_of_it() -> None:
    torch.manual_seed(0)
    instead = Network(6, OPTIONS).eval()
    bonus = Network(6, replace(OPTIONS, repeat="bonus")).eval()
    off = Network(6, replace(OPTIONS, repeat="off")).eval()
    bonus.load_state_dict(instead.state_dict())
    off.load_state_dict({k: v for k, v in instead.state_dict().items() if not k.startswith("repeat")})
    batch = batch_from_histories([[2, 5]], 6, 5, CPU)
    with torch.no_grad():
        z, added, base = (reference.logits(network(batch))[0] for network in (instead, bonus, off))
    torch.testing.assert_close(z[[0, 1, 3, 4]], base[[0, 1, 3, 4]])
    torch.testing.assert_close(added[[0, 1, 3, 4]], base[[0, 1, 3, 4]])
    torch.testing.assert_close(added[[2, 5]] - base[[2, 5]], z[[2, 5]])
    assert z[5].item() == pytest.approx(7.0, abs=1e-5)  # untrained: 7 − 1.5 log j
    assert z[2].item() == pytest.approx(7.0 - 1.5 * math.log(2), abs=1e-5)


def seen_twice(repeat: str, name: str) -> tuple[Network, Batch]:
    """Histories with repeated items and empty histories, for each implementation."""
    if name == "kernels":
        pytest.importorskip("triton", reason="the kernels need triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2)
    network = Network(9, replace(OPTIONS, repeat=repeat)).to(device)
    return network, batch_from_histories([[2, 5, 2], [], [7], [3, 3, 3, 8, 3]], 9, 5, device)


@pytest.mark.parametrize("name", ["tiled", "kernels"])
@pytest.mark.parametrize("repeat", ["instead", "bonus"])
def test_corrections_that_stand_gathered_need_no_adding_up(repeat: str, name: str) -> None:
    """Items seen twice and padding: the same values, gradients and largest item; the head as it was. On a CPU bit for
    bit: a GPU adds up the gradients of an item taken twice in any order.
    """
    network, batch = seen_twice(repeat, name)
    device, found = batch.action.device, []
    with use_backend(name):
        for corrections_merged in (True, False):
            head = network(batch)
            assert head.corrections_merged
            assert head.values is not None
            head, values = replace(head, corrections_merged=corrections_merged), head.values.detach().clone()
            largest = maximum(head)
            log_pi = log_prob(head, torch.tensor([[2, 0], [1, 3], [7, 8], [3, 8]], device=device))
            assert torch.equal(head.values, values)
            network.zero_grad()
            log_pi.square().sum().backward()
            gradients = [weights.grad.clone() for weights in network.parameters() if weights.grad is not None]
            found.append([*largest, log_pi.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        rounding = 0.0 if device == CPU else 1e-5
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


@pytest.mark.usefixtures("full_float32")
@pytest.mark.parametrize("name", ["tiled", "kernels"])
@pytest.mark.parametrize("repeat", ["instead", "bonus"])
def test_corrections_on_top_of_gathered_ones_count(repeat: str, name: str) -> None:
    """What was seen is barred: corrected twice over, its items stand corrections_merged no longer."""
    network, batch = seen_twice(repeat, name)
    with torch.no_grad(), use_backend(name):
        head = network(batch).mask(batch.recent)
        found = [logsumexp(head), *maximum(head), *top_k(head, 3)]
        truth = [reference.logsumexp(head), *reference.maximum(head), *reference.top_k(head, 3)]
    assert not (truth[-1][:, :, None] == batch.recent[:, None]).any()
    for mine, its in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_means_one_table(tied: bool) -> None:
    network = Network(6, replace(OPTIONS, tied=tied, repeat="off"))
    head = network(batch_from_histories([[1]], 6, 5, CPU))
    same = head.table.data_ptr() == network.items_in.data_ptr()
    assert same == tied
    head.at(torch.tensor([[3]])).sum().backward()
    touched = network.items_in.grad.abs().sum(1) > 0
    assert touched[[1, 6]].all(), "the history's item and the start go in"
    assert bool(touched[3]) == tied, "the scored item is in the input table only if tied"


@pytest.mark.parametrize("used", ["inputs", "table", "both"])
@pytest.mark.parametrize("value", [False, True])
def test_gradients_of_both_uses_of_a_tied_table_are_summed(used: str, value: bool) -> None:
    """Gradients equal those of slicing, for either use and for both."""
    torch.manual_seed(3)
    network, weights = Network(6, OPTIONS, value=value), (torch.randn(7, 4), torch.randn(6, 4))
    found = []
    for inputs, read in (network.tables(), (network.items_in, network.weights)):
        tables = {"inputs": inputs, "table": read.table}
        taken = [w * tables[name] for w, name in zip(weights, tables, strict=True) if used in (name, "both")]
        network.zero_grad()
        sum(part.sin().sum() for part in taken).backward()
        found.append({name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name
    with torch.no_grad():
        assert network.tables()[0] is network.items_in


def test_states_are_dropped_out_in_training_only() -> None:
    """A GRU with one layer has no internal dropout, so differences come from its inputs or outputs."""
    network = Network(6, replace(OPTIONS, dropout=0.5, repeat="off"))
    batch = batch_from_histories([[1, 2]] * 400, 6, 5, CPU)
    assert (network.train().states(batch) == 0).double().mean() == pytest.approx(0.5, abs=0.06)
    assert (network.eval().states(batch) == 0).sum() == 0


def test_recency_alone_ranks_like_most_recent() -> None:
    """The untrained repeat term ranks the latest item first and all seen items before the others."""
    torch.manual_seed(1)
    network = Network(30, NetworkOptions(width=8, history=10, dropout=0.0)).eval()
    with torch.no_grad():
        order = reference.top_k(network(batch_from_histories([[4, 9, 4, 17]], 30, 10, CPU)), 3)[1]
    assert order[0].tolist() == [17, 4, 9]
