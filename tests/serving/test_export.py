"""An exported run gives the same lists as torch, for every backbone and every kind of ranking."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from offrec.backbones import BACKBONES, BackboneRecord
from offrec.commands.export import Export
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError, RunError
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import load
from offrec.runs.train import train
from offrec.serving import export, onnx_model
from offrec.serving.export import export_onnx
from offrec.serving.onnx_check import compare, random_histories
from offrec.serving.served_policy import load_policy
from small_datasets import write_dataset

ITEMS, HISTORY = 60, 6
FAST = {"network.width": 12, "network.history": HISTORY, "training.epochs": 1, "training.batch_size": 64}
REAL_LOG = Path(__file__).parents[3] / "shared/data/retailrocket-events.csv.gz"
DOCUMENT = Path(__file__).parents[2] / "docs/how-to/export.md"

NETWORKS: dict[str, dict[str, Any]] = {
    "gru": {"network.layers": 2},
    "cfn": {"network.layers": 2},
    "caser": {"network.tied": False},
    "nextitnet": {"network.repeat": "bonus"},
    "sasrec": {"network.layers": 2, "network.repeat_state": False},
}
RANKINGS: dict[str, dict[str, Any]] = {
    "actor with a critic": {"algorithm.name": "sl+dqn"},
    "critic": {"algorithm.name": "dqn"},
    "critic over a temperature": {"algorithm.name": "sdac", "algorithm.ranks": "critic", "network.repeat": "off"},
    "critic with a prior": {"algorithm.name": "dc", "algorithm.ranks": "critic", "critic.backbone": "sasrec"},
    "critic within support": {"algorithm.name": "dqn", "algorithm.delta": 0.03},
    "paper preset": {"preset": "paper"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    random = np.random.default_rng(0)
    walks = [
        (random.integers(ITEMS) + random.integers(-2, 3, random.integers(2, 10)).cumsum()) % ITEMS for _ in range(120)
    ]
    ids = [f"sku {n:03d} – é" for n in range(ITEMS)]
    return write_dataset(tmp_path_factory.mktemp("data"), [walk.tolist() for walk in walks], ids=ids, items=ITEMS)


def train_run(dataset: Dataset, out: Path, settings: dict[str, Any]) -> NetworkPolicy:
    return train(dataset, out, settings={**FAST, **settings}, device="cpu", console=Console(quiet=True))


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "gru"
    train_run(dataset, out, {})
    export_onnx(out, out / "model.onnx")
    return out


def open_model(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def rank(model: Any, history: Any, k: int = 5) -> tuple[Any, Any]:
    items, scores = model.run(["items", "scores"], {"history": np.array(history, dtype=np.int64), "k": np.array(k)})
    return items.tolist(), scores


def states_differ(policy: NetworkPolicy, histories: list[list[int]]) -> bool:
    """Whether states depend on the history. If not, scores agree even if the backbone is exported wrongly."""
    with torch.no_grad():
        states = policy.head(batch_from_histories(histories, policy.n_items, policy.history, policy.device)).state
    return float(states.std(0).max()) > 0.01 and bool(states.any(1).all())


def test_every_backbone_with_a_writer_is_tested() -> None:
    assert set(NETWORKS) == {name for name, record in BACKBONES.items() if record.onnx is not None}


@pytest.mark.parametrize("backbone", NETWORKS)
def test_every_backbone_ranks_as_in_torch(dataset: Dataset, tmp_path: Path, backbone: str) -> None:
    policy = train_run(dataset, tmp_path / "run", {"network.backbone": backbone, **NETWORKS[backbone]})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)  # for runtimes other than ONNX Runtime
    histories = random_histories(ITEMS, HISTORY, 300, seed=1)
    assert states_differ(policy, histories)
    agreement = compare(policy, open_model(tmp_path / "model.onnx"), histories, 20)
    assert agreement.largest_difference < 1e-5
    assert agreement.undecided == 0


@pytest.mark.parametrize("ranking", RANKINGS)
def test_every_kind_of_ranking_is_exported(dataset: Dataset, tmp_path: Path, ranking: str) -> None:
    policy = train_run(dataset, tmp_path / "run", RANKINGS[ranking])
    description = export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    histories = random_histories(ITEMS, HISTORY, 300, seed=1)
    agreement = compare(policy, open_model(tmp_path / "model.onnx"), histories, ITEMS)
    assert agreement.largest_difference < 1e-5
    assert ("softmax" in description["scores"]) == policy.stochastic


class MeanBackbone(nn.Module):
    """A causal backbone of another package: the mean of the inputs so far, through a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        counts = torch.arange(1, inputs.shape[1] + 1, device=inputs.device)[:, None]
        states: Tensor = self.linear(inputs.cumsum(1) / counts)
        return states


def write_mean(graph: Any, module: MeanBackbone, inputs: str) -> str:
    one = graph.op(
        "ConstantOfShape", graph.length(inputs, 1), value=onnx.numpy_helper.from_array(np.ones(1, np.float32))
    )
    counts = graph.op("Unsqueeze", graph.op("CumSum", one, graph.integer(0)), graph.integers(1))
    return graph.linear(graph.op("Div", graph.op("CumSum", inputs, graph.integer(1)), counts), module.linear)


@pytest.mark.parametrize("has_writer", [True, False])
def test_a_backbone_of_another_package_is_exported_if_it_has_a_writer(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_writer: bool
) -> None:
    record = BackboneRecord(
        name="mean",
        label="Mean",
        build=lambda sizes: MeanBackbone(sizes.width),
        help="Mean of the items.",
        onnx=write_mean if has_writer else None,
    )
    monkeypatch.setitem(BACKBONES._records, "mean", record)
    policy = train_run(dataset, tmp_path / "run", {"network.backbone": "mean"})
    out = tmp_path / "model.onnx"
    if has_writer:
        export_onnx(tmp_path / "run", out)
        agreement = compare(policy, open_model(out), random_histories(ITEMS, HISTORY, 100, seed=1), 20)
        assert agreement.largest_difference < 1e-5
    else:
        with pytest.raises(InputError, match="backbone mean, which has no ONNX writer"):
            export_onnx(tmp_path / "run", out)
        assert not out.exists()


def test_the_support_masks_items_and_always_leaves_one(dataset: Dataset, tmp_path: Path) -> None:
    train_run(dataset, tmp_path / "run", {"algorithm.name": "dqn", "algorithm.delta": 0.9})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    _, scores = rank(open_model(tmp_path / "model.onnx"), [[1, 2], [3, 4]])
    assert (scores > -1e29).sum(1).tolist() == [1, 1]


def test_padding_and_unknown_items_are_ignored_at_every_position(run: Path) -> None:
    model = open_model(run / "model.onnx")
    items, scores = rank(model, [[3, 9, 4]])
    for same in ([-1, -1, 3, 9, 4], [3, 9, 4, -1], [3, -1, 9, ITEMS, 4, -7, 10**12]):
        same_items, same_scores = rank(model, [same])
        assert same_items == items
        np.testing.assert_allclose(same_scores, scores, atol=1e-6)


def test_only_the_last_items_count_and_rows_are_independent(run: Path) -> None:
    model = open_model(run / "model.onnx")
    long, short = [7, 7, 1, 2, 3, 4, 5, 6], [8]
    items, scores = rank(model, [long, short + [-1] * 7])
    for row, alone in enumerate([long[-HISTORY:], short]):
        own_items, own_scores = rank(model, [alone])
        assert own_items[0] == items[row]
        np.testing.assert_allclose(own_scores[0], scores[row], atol=1e-6)
    other = rank(model, [[9, *long[1 - HISTORY :]]])[1]
    assert np.abs(other - scores[0]).max() > 1e-4, "the oldest item that counts changes the scores"


def test_an_empty_history_and_a_k_beyond_the_catalogue(run: Path) -> None:
    model = open_model(run / "model.onnx")
    items, scores = rank(model, np.zeros((2, 0)), 10**6)
    assert items == rank(model, [[-1], [-1]], ITEMS)[0]
    assert sorted(items[0]) == list(range(ITEMS))
    assert (np.diff(scores) <= 0).all()


def test_the_example_of_the_documentation_works_without_offrec_and_torch(run: Path) -> None:
    example = DOCUMENT.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    ids = ["sku 004 – é", "no such item", "sku 009 – é"]
    code = f"{example}\nimport sys\nprint(json.dumps([recommend([{ids!r}, []], 7), sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=run, capture_output=True, text=True, check=True)
    (after_history, new_visitor), modules = json.loads(done.stdout)
    policy = load(run, "cpu")
    for history, recommended in ((ids, after_history), ([], new_visitor)):
        expected = policy.recommend(history, 7)
        assert [item for item, _ in recommended] == expected.items
        assert [score for _, score in recommended] == pytest.approx(expected.scores, abs=1e-5)
    assert not {"torch", "offrec"} & set(modules)


def test_the_command_writes_three_files_that_agree(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new/best.onnx"
    command = [sys.executable, "-m", "offrec", "export", str(run), "--format", "onnx", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "top 20" in done.stdout
    assert sorted(path.name for path in out.parent.iterdir()) == ["best.ids.json", "best.json", "best.onnx"]
    description = json.loads(out.with_suffix(".json").read_text())
    assert description["dataset_fingerprint"] == json.loads((run / "run.json").read_text())["fingerprint"]
    assert description["fingerprint"] == load_policy("any", run, "cpu").fingerprint
    assert open_model(out).get_modelmeta().custom_metadata_map["fingerprint"] == description["fingerprint"]
    with pytest.raises(InputError, match=r"exists.*--out.*--force"):
        Export(run, out).run()
    Export(run, out, force=True, json=True).run()
    assert json.loads(capsys.readouterr().out) == description


def test_large_weights_go_to_a_second_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model.onnx"
    with monkeypatch.context() as patch:
        patch.setattr(export, "ONE_FILE_BYTES", 0)
        export_onnx(run, out)
    assert (tmp_path / "model.onnx.data").stat().st_size > out.stat().st_size / 4
    assert compare(load(run, "cpu"), open_model(out), random_histories(ITEMS, HISTORY, 9, 0), 5).is_sound
    export_onnx(run, out, force=True)
    assert not (tmp_path / "model.onnx.data").exists()
    assert open_model(out)


def test_a_model_that_ranks_differently_is_not_published(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_no_bonus(graph: Any, term: Any, states: str, recent: str, n_items: int) -> str:
        return graph.op("Mul", graph.cast(recent, np.float32), graph.real(0.0))

    monkeypatch.setattr(onnx_model, "_write_repeat_bonus", write_no_bonus)
    with pytest.raises(RunError, match="does not rank as torch does"):
        export_onnx(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_invalid_arguments_are_refused_and_leave_no_files(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"--out .*\.onnx"):
        export_onnx(run, tmp_path / "model.bin")
    with pytest.raises(InputError, match="is not a run"):
        export_onnx(tmp_path, tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(InputError, match="is not a file"):
        export_onnx(run, tmp_path / "folder.onnx", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        export_onnx(run, tmp_path / "file/model.onnx")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(InputError, match=r"onnxruntime.*offrec\[onnx\]"):
            export_onnx(run, tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.onnx"]


@pytest.mark.all
@pytest.mark.skipif(not REAL_LOG.exists(), reason="needs ../shared/data/retailrocket-events.csv.gz")
@pytest.mark.parametrize("backbone", NETWORKS)
def test_a_thousand_real_sessions_rank_as_in_torch(tmp_path: Path, backbone: str) -> None:
    from offrec.data.prepare import prepare

    data = prepare(REAL_LOG, out=tmp_path / "data", format="retailrocket", filter=("session=3",), sample=4000)
    settings = {"network.backbone": backbone, "network.width": 32, "network.history": 20}
    # At this learning rate, a Caser that ended in a ReLU would have only zero states after the epoch.
    policy = train_run(data, tmp_path / "run", {**settings, "training.learning_rate": 0.005})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    bounds = data.sessions.offsets[-1001:].tolist()  # the test sessions and some validation sessions
    sessions = [data.sessions.items[start:end].tolist() for start, end in pairwise(bounds)]
    assert len(sessions) == 1000
    assert states_differ(policy, sessions)
    agreement = compare(policy, open_model(tmp_path / "model.onnx"), sessions, 20)
    assert agreement.largest_absolute_difference < 1e-4
    assert agreement.is_sound
