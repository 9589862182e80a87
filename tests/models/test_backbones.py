"""Each backbone against independent calculations: by hand, another implementation, causality, padding."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from offrec.backbones import BACKBONES, Sizes
from offrec.backbones.caser import Caser
from offrec.backbones.cfn import CFNCell
from offrec.backbones.gru import GRU
from offrec.backbones.nextitnet import NextItNet
from offrec.backbones.sasrec import SASRecBlock

SIZES = Sizes(width=8, layers=2, dropout=0.0, history=9, heads=2, window=4)
CAUSAL = ["gru", "cfn", "nextitnet", "sasrec"]


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    return BACKBONES[name].build(SIZES).double().eval()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_cfn_cell_by_hand() -> None:
    cell = CFNCell(1)
    with torch.no_grad():
        cell.from_input.weight.copy_(torch.tensor([[0.5], [-1.0], [2.0]]))  # W_z, W_i, W
        cell.from_state.weight.copy_(torch.tensor([[1.5], [-0.5]]))  # U_z, U_i
        cell.from_state.bias.copy_(torch.tensor([0.1, 0.2]))
    first, second = cell(torch.tensor([[[0.3], [-0.7]]]))[0, :, 0].tolist()
    h1 = sigmoid(-1.0 * 0.3 + 0.2) * math.tanh(2.0 * 0.3)  # the state before is 0
    keep = sigmoid(1.5 * h1 + 0.5 * -0.7 + 0.1)
    take = sigmoid(-0.5 * h1 + -1.0 * -0.7 + 0.2)
    h2 = keep * math.tanh(h1) + take * math.tanh(2.0 * -0.7)
    assert first == pytest.approx(h1, abs=1e-6)
    assert second == pytest.approx(h2, abs=1e-6)


def test_cfn_forgets_without_input() -> None:
    torch.manual_seed(0)
    cell = CFNCell(4)
    inputs = torch.zeros(1, 400, 4)
    inputs[0, 0] = torch.randn(4) * 5
    states = cell(inputs)[0]
    assert states[0].abs().max() > 0.05
    assert states[-1].abs().max() < 0.5 * states[0].abs().max()


def test_gru_by_its_equations() -> None:
    torch.manual_seed(1)
    gru = GRU(5, 1, 0.0).double()
    inputs = torch.randn(3, 6, 5, dtype=torch.double)
    cells = gru.cells
    state = torch.zeros(3, 5, dtype=torch.double)
    for step in range(6):
        of_input = inputs[:, step] @ cells.weight_ih_l0.T + cells.bias_ih_l0
        of_state = state @ cells.weight_hh_l0.T + cells.bias_hh_l0
        (r_in, z_in, n_in), (r_st, z_st, n_st) = of_input.chunk(3, 1), of_state.chunk(3, 1)
        reset, update = (r_in + r_st).sigmoid(), (z_in + z_st).sigmoid()
        state = (1 - update) * (n_in + reset * n_st).tanh() + update * state
    torch.testing.assert_close(gru(inputs)[:, -1], state)


def test_sasrec_block_by_softmax_written_out() -> None:
    torch.manual_seed(2)
    block = SASRecBlock(6, 2, 0.0).double().eval()
    inputs = torch.randn(2, 5, 6, dtype=torch.double)
    query, key, value = block.query_key_value(block.norm_attention(inputs)).chunk(3, -1)
    mixed = torch.empty_like(inputs)
    for head in (slice(0, 3), slice(3, 6)):
        for step in range(5):
            scores = (key[:, : step + 1, head] * query[:, step : step + 1, head]).sum(-1) / math.sqrt(3)
            mixed[:, step, head] = (scores.softmax(1)[:, :, None] * value[:, : step + 1, head]).sum(1)
    hidden = inputs + block.out(mixed)
    expected = hidden + block.feed_forward(block.norm_feed_forward(hidden))
    torch.testing.assert_close(block(inputs), expected)


def test_caser_by_hand() -> None:
    """Window of 2, width 1, and one filter of each kind with known weights."""
    caser = Caser(1, 2, 0.0, filters=1, vertical=1).eval()
    with torch.no_grad():
        caser.horizontal[0].weight.copy_(torch.tensor([[[2.0]]]))
        caser.horizontal[0].bias.copy_(torch.tensor([0.5]))
        caser.horizontal[1].weight.copy_(torch.tensor([[[1.0, -1.0]]]))
        caser.horizontal[1].bias.copy_(torch.tensor([0.0]))
        caser.vertical.weight.copy_(torch.tensor([[[[3.0], [4.0]]]]))
        caser.vertical.bias.copy_(torch.tensor([0.0]))
        caser.linear.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        caser.linear.bias.copy_(torch.tensor([0.25]))
    # one item: max(relu(2·0.3 + .5), relu(2·0.1 + .5)) = 1.1; two: relu(0.3 − 0.1) = 0.2; vertical: 3·0.3 + 4·0.1 = 1.3
    assert caser(torch.tensor([[[0.3], [0.1]]])).item() == pytest.approx(1.1 + 2.0 + 130 + 0.25, abs=1e-4)
    # one item: max(relu(.1), relu(.7)) = .7; two: relu(−.3) = 0; vertical: −.2. A state may be below 0: no unit can die
    assert caser(torch.tensor([[[-0.2], [0.1]]])).item() == pytest.approx(0.7 - 20 + 0.25, abs=1e-4)


def test_nextitnet_reaches_as_far_as_its_dilations() -> None:
    """With dilations 1, 2, 4, 8 and kernels of size 3, an output depends on exactly the last 1 + 2·15 inputs."""
    torch.manual_seed(0)
    network = NextItNet(4, 1, 0.0).double().eval()
    inputs = torch.randn(1, 40, 4, dtype=torch.double, requires_grad=True)
    network(inputs)[0, 39].sum().backward()
    touched = inputs.grad[0].abs().sum(1) > 0
    assert touched.nonzero()[0].item() == 39 - 30
    assert touched[39 - 30 :].all()


@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name: str) -> None:
    backbone = built(name)
    inputs = torch.randn(2, 7, 8, dtype=torch.double)
    states = backbone(inputs)
    for step in range(7):
        torch.testing.assert_close(backbone(inputs[:, : step + 1])[:, -1], states[:, step])
    changed = inputs.clone()
    changed[:, 3] = torch.randn(8, dtype=torch.double)
    after = backbone(changed)
    torch.testing.assert_close(after[:, :3], states[:, :3])
    assert (after[:, 3] - states[:, 3]).abs().max() > 1e-3, "a state must depend on its last item"


@pytest.mark.parametrize("name", BACKBONES)
def test_order_matters(name: str) -> None:
    backbone = built(name)
    inputs = torch.randn(2, 4, 8, dtype=torch.double)
    there, back = backbone(inputs), backbone(inputs.flip(1))
    if name in CAUSAL:
        there, back = there[:, -1], back[:, -1]
    assert not torch.allclose(there, back, atol=1e-3)


@pytest.mark.parametrize("name", ["gru", "cfn", "sasrec", "nextitnet", "caser"])
def test_dropout_only_in_training(name: str) -> None:
    torch.manual_seed(0)
    backbone = BACKBONES[name].build(Sizes(width=8, layers=2, dropout=0.5, history=9, heads=2, window=4))
    inputs = torch.randn(3, 4, 8)
    backbone.eval()
    torch.testing.assert_close(backbone(inputs), backbone(inputs))
    backbone.train()
    assert not torch.allclose(backbone(inputs), backbone(inputs))


def test_attention_is_not_the_identity() -> None:
    """The softmax test above is meaningful: without attention the block gives another result."""
    torch.manual_seed(2)
    block = SASRecBlock(6, 2, 0.0).double().eval()
    inputs = torch.randn(2, 5, 6, dtype=torch.double)
    without = inputs + functional.linear(torch.zeros_like(inputs), block.out.weight, block.out.bias)
    without = without + block.feed_forward(block.norm_feed_forward(without))
    assert not torch.allclose(block(inputs), without, atol=1e-3)
