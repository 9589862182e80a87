"""Every backbone learns a log with a known answer, and the stored policy is the learned one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from offrec.backbones import BACKBONES
from offrec.console import Console
from offrec.evaluation import evaluate
from offrec.runs.loading import load
from offrec.runs.train import train

QUIET = Console(quiet=True)


GRID = [
    pytest.param(
        backbone,
        tied,
        repeat,
        marks=[] if (tied, repeat) == (True, "instead") or backbone == "gru" else pytest.mark.all,
    )
    for backbone in BACKBONES
    for tied in (True, False)
    for repeat in ("instead", "bonus", "off")
]


@pytest.mark.parametrize(("backbone", "tied", "repeat"), GRID)
def test_learns_what_follows(tmp_path: Path, make_dataset: Any, backbone: str, tied: bool, repeat: str) -> None:
    """Item i is always followed by i + 1 (mod 12), so the next item is certain after the first."""
    sessions = [[(start + step) % 12 for step in range(5)] for start in range(12)] * 6
    dataset = make_dataset(tmp_path, sessions, splits=(48, 12, 12), score_first=False)
    settings = {
        "network.width": 16,
        "network.history": 8,
        "network.dropout": 0.0,
        "network.tied": tied,
        "network.repeat": repeat,
        "training.batch_size": 60,
        "training.epochs": 60,
        "training.patience": 60,
        "training.decay": 1.0,
        "training.learning_rate": 0.02,
    }
    policy = train(dataset, tmp_path / "run", backbone=backbone, settings=settings, console=QUIET)
    assert evaluate(policy, dataset, "test", (1,)).metrics["all"]["HR@1"] == 1.0
    assert policy.recommend([100, 101, 102], 1).items == [103]
    loaded = load(tmp_path / "run")
    assert loaded.recommend([105, 106], 4) == policy.recommend([105, 106], 4)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_windows_and_sessions_give_the_same_states(tmp_path: Path, make_dataset: Any, backbone: str) -> None:
    """The head of a row depends only on its last items, not on its batch, padding or other rows."""
    from offrec.catalogue import reference
    from offrec.data.replay import Replay, batch_from_histories
    from offrec.data.transitions import transitions
    from offrec.models.network import Network
    from offrec.runs.options import build_options

    sessions = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 5], [8, 9, 7, 9]]
    dataset = make_dataset(tmp_path, sessions, splits=(3, 0, 0), items=10)
    options = build_options({"network.backbone": backbone, "network.width": 8, "network.history": 4})
    torch.manual_seed(0)
    network = Network(10, options.network).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # a fresh repeat term would ignore the state
    mdp = transitions(dataset.sessions, None, 0.5)
    device = torch.device("cpu")
    found: dict[str, dict[int, torch.Tensor]] = {}
    for how in ("windows", "exact"):
        replay = Replay(dataset.sessions, mdp, 10, 4, how, device)  # type: ignore[arg-type]
        found[how] = {}
        for batch in replay.batches(100):
            rows = reference.logits(network(batch))
            found[how] |= {int(event): row for event, row in zip(batch.event, rows, strict=True)}
    assert found["windows"].keys() == found["exact"].keys() == set(range(15))
    histories = [session[:t] for session in sessions for t in range(len(session))]
    alone = [reference.logits(network(batch_from_histories([past], 10, 4, device)))[0] for past in histories]
    for event in range(15):
        torch.testing.assert_close(found["windows"][event], found["exact"][event])
        torch.testing.assert_close(found["windows"][event], alone[event])
    assert not torch.allclose(alone[1], alone[2])
