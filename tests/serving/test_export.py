"""A run as ONNX: the same lists as torch, whatever the network and the way it ranks; and what is refused."""

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
from random_runs import write_run

from made_datasets import write_dataset
from offrec.commands.export import Export
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.replay import batch_from_histories
from offrec.errors import InputError, RunError
from offrec.models.network_policy import NetworkPolicy
from offrec.runs.loading import load
from offrec.runs.train import train
from offrec.serving import export, onnx_backbones, onnx_model, served_policy
from offrec.serving.export import export_onnx
from offrec.serving.onnx_check import compare, made_up

ITEMS, HISTORY = 60, 6
FAST = {"network.width": 12, "network.history": HISTORY, "training.epochs": 1, "training.batch_size": 64}
REAL = Path(__file__).parents[3] / "shared/data/retailrocket-events.csv.gz"

NETWORKS: dict[str, dict[str, Any]] = {
    "gru": {"network.layers": 2},
    "cfn": {"network.layers": 2},
    "caser": {"network.tied": False},
    "nextitnet": {"network.repeat": "bonus"},
    "sasrec": {"network.layers": 2, "network.repeat_state": False},
}
WAYS: dict[str, dict[str, Any]] = {
    "actor beside a critic": {"algorithm.name": "sl+dqn"},
    "critic": {"algorithm.name": "dqn"},
    "critic over a temperature": {"algorithm.name": "sdac", "algorithm.ranks": "critic", "network.repeat": "off"},
    "critic with a prior": {"algorithm.name": "dc", "algorithm.ranks": "critic", "critic.backbone": "sasrec"},
    "critic within support": {"algorithm.name": "dqn", "algorithm.delta": 0.03},
    "the paper's": {"preset": "paper"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    draw = np.random.default_rng(0)
    walks = [(draw.integers(ITEMS) + draw.integers(-2, 3, draw.integers(2, 10)).cumsum()) % ITEMS for _ in range(120)]
    ids = [f"sku {n:03d} – é" for n in range(ITEMS)]
    return write_dataset(tmp_path_factory.mktemp("data"), [w.tolist() for w in walks], ids=ids, items=ITEMS)


def trained(dataset: Dataset, out: Path, settings: dict[str, Any]) -> NetworkPolicy:
    return train(dataset, out, settings={**FAST, **settings}, device="cpu", console=Console(quiet=True))


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "gru"
    trained(dataset, out, {})
    export_onnx(out, out / "model.onnx")
    return out


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def ranked(model: Any, history: Any, k: int = 5) -> tuple[Any, Any]:
    items, scores = model.run(["items", "scores"], {"history": np.array(history, dtype=np.int64), "k": np.array(k)})
    return items.tolist(), scores


def alive(policy: NetworkPolicy, histories: list[list[int]]) -> bool:
    """Do states differ from history to history? If not, scores agree whatever became of the backbone."""
    with torch.no_grad():
        states = policy.head(batch_from_histories(histories, policy.n_items, policy.history, policy.device)).state
    return float(states.std(0).max()) > 0.01 and bool(states.any(1).all())


@pytest.mark.parametrize("backbone", NETWORKS)
def test_every_backbone_ranks_as_torch_does(dataset: Dataset, tmp_path: Path, backbone: str) -> None:
    policy = trained(dataset, tmp_path / "run", {"network.backbone": backbone, **NETWORKS[backbone]})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)  # other runtimes read it too
    histories = made_up(ITEMS, HISTORY, 300, seed=1)
    assert alive(policy, histories)
    found = compare(policy, session(tmp_path / "model.onnx"), histories, 20)
    assert found.largest_difference < 1e-5
    assert found.on_the_border == 0


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_ranking(dataset: Dataset, tmp_path: Path, way: str) -> None:
    policy = trained(dataset, tmp_path / "run", WAYS[way])
    described = export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    found = compare(policy, session(tmp_path / "model.onnx"), made_up(ITEMS, HISTORY, 300, seed=1), ITEMS)
    assert found.largest_difference < 1e-5
    assert ("softmax" in described["scores"]) == policy.stochastic


def test_within_support_masks_and_always_leaves_one(dataset: Dataset, tmp_path: Path) -> None:
    trained(dataset, tmp_path / "run", {"algorithm.name": "dqn", "algorithm.delta": 0.9})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    _, scores = ranked(session(tmp_path / "model.onnx"), [[1, 2], [3, 4]])
    assert (scores > -1e29).sum(1).tolist() == [1, 1]


def test_padding_and_unknown_items_are_skipped_wherever_they_stand(run: Path) -> None:
    model = session(run / "model.onnx")
    items, scores = ranked(model, [[3, 9, 4]])
    for same in ([-1, -1, 3, 9, 4], [3, 9, 4, -1], [3, -1, 9, ITEMS, 4, -7, 10**12]):
        again, again_scores = ranked(model, [same])
        assert again == items
        np.testing.assert_allclose(again_scores, scores, atol=1e-6)


def test_only_the_last_items_count_and_rows_do_not_touch(run: Path) -> None:
    model = session(run / "model.onnx")
    long, short = [7, 7, 1, 2, 3, 4, 5, 6], [8]
    items, scores = ranked(model, [long, short + [-1] * 7])
    for row, alone in enumerate([long[-HISTORY:], short]):
        own, own_scores = ranked(model, [alone])
        assert own[0] == items[row]
        np.testing.assert_allclose(own_scores[0], scores[row], atol=1e-6)
    other = ranked(model, [[9, *long[1 - HISTORY :]]])[1]
    assert np.abs(other - scores[0]).max() > 1e-4  # the oldest of those that count does count


def test_an_empty_history_and_a_k_beyond_the_catalogue(run: Path) -> None:
    model = session(run / "model.onnx")
    none, scores = ranked(model, np.zeros((2, 0)), 10**6)
    assert none == ranked(model, [[-1], [-1]], ITEMS)[0]
    assert sorted(none[0]) == list(range(ITEMS))
    assert (np.diff(scores) <= 0).all()


def test_the_example_of_the_page_works_without_offrec_and_torch(run: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/export.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    ids = ["sku 004 – é", "no such item", "sku 009 – é"]
    code = f"{example}\nimport sys\nprint(json.dumps([recommend([{ids!r}, []], 7), sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=run, capture_output=True, text=True, check=True)
    (after, new), modules = json.loads(done.stdout)
    policy = load(run, "cpu")
    for history, found in ((ids, after), ([], new)):
        wanted = policy.recommend(history, 7)
        assert [item for item, _ in found] == wanted.items
        assert [score for _, score in found] == pytest.approx(wanted.scores, abs=1e-5)
    assert not {"torch", "offrec"} & set(modules)


def test_the_command_and_what_it_writes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new/best.onnx"
    command = [sys.executable, "-m", "offrec", "export", str(run), "--format", "onnx", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Same top 20 as torch on 256 histories" in done.stdout
    assert sorted(path.name for path in out.parent.iterdir()) == ["best.ids.json", "best.json", "best.onnx"]
    described, facts = json.loads(out.with_suffix(".json").read_text()), json.loads((run / "run.json").read_text())
    assert described["dataset_fingerprint"] == facts["fingerprint"]
    assert described["fingerprint"] == served_policy.load_policy("any", run, "cpu").fingerprint
    assert session(out).get_modelmeta().custom_metadata_map["fingerprint"] == described["fingerprint"]
    with pytest.raises(InputError, match="exists already; choose another --out, or replace it with --force"):
        Export(run, out).run()
    Export(run, out, force=True, json=True).run()
    assert json.loads(capsys.readouterr().out) == described


def test_large_weights_stand_beside_the_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(export, "IN_ONE_FILE", 0)
        export_onnx(run, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").stat().st_size > (tmp_path / "model.onnx").stat().st_size / 4
    found = compare(load(run, "cpu"), session(tmp_path / "model.onnx"), made_up(ITEMS, HISTORY, 9, 0), 5)
    assert found.sound
    export_onnx(run, tmp_path / "model.onnx", force=True)
    assert not (tmp_path / "model.onnx.data").exists()
    assert session(tmp_path / "model.onnx")


def test_a_model_that_ranks_otherwise_is_not_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_repeats(graph: Any, term: Any, states: str, recent: str, n_items: int) -> str:
        return graph.op("Mul", graph.cast(recent, np.float32), graph.real(0.0))

    monkeypatch.setattr(onnx_model, "_repeats", without_repeats)
    with pytest.raises(RunError, match="does not rank as torch does"):
        export_onnx(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_refusals(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"give a file that ends in \.onnx"):
        export_onnx(run, tmp_path / "model.bin")
    with pytest.raises(InputError, match="is not a run"):
        export_onnx(tmp_path, tmp_path / "model.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(InputError, match="is no file"):
        export_onnx(run, tmp_path / "folder.onnx", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        export_onnx(run, tmp_path / "file/model.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(onnx_backbones, "BACKBONES", {})
        with pytest.raises(InputError, match="has the backbone gru, which cannot be written as ONNX"):
            export_onnx(run, tmp_path / "model.onnx")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(InputError, match=r"needs onnxruntime.*offrec\[onnx\]"):
            export_onnx(run, tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.onnx"]


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", list(range(20)), spread=float("nan"))
    with pytest.raises(InputError, match="weights that are no numbers"):
        export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.all
@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/retailrocket-events.csv.gz")
@pytest.mark.parametrize("backbone", NETWORKS)
def test_a_thousand_real_sessions(tmp_path: Path, backbone: str) -> None:
    from offrec.data.prepare import prepare

    data = prepare(REAL, out=tmp_path / "data", format="retailrocket", filter=("session=3",), sample=4000)
    settings = {"network.backbone": backbone, "network.width": 32, "network.history": 20}
    # a rate at which Caser's states, with a last ReLU as there once was, are all 0 within the epoch
    policy = trained(data, tmp_path / "run", {**settings, "training.learning_rate": 0.005})
    export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    bounds = data.sessions.offsets[-1001:].tolist()  # all of test, and validation before it
    sessions = [data.sessions.items[a:b].tolist() for a, b in pairwise(bounds)]
    assert len(sessions) == 1000
    assert alive(policy, sessions)
    found = compare(policy, session(tmp_path / "model.onnx"), sessions, 20)
    assert found.largest_absolute_difference < 1e-4
    assert found.sound
