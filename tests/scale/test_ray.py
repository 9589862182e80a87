"""A Ray cluster of three local nodes, one of which is killed under way, gives what one machine gives.

`make test-ray` installs Ray and runs these tests; they take a few minutes.
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offrec.commands import recommend
from offrec.commands.engines import load_run
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.estimation.decision_values import ValueOptions
from offrec.estimation.estimate import estimate
from offrec.estimation.options import EstimateOptions
from offrec.estimation.partitioned import RemotePasses
from offrec.evaluation import evaluate
from offrec.evaluation.partitioned import evaluate_on
from offrec.models.network import NetworkOptions
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.runs.loading import load
from offrec.runs.train import train
from offrec.serving.recommend_parts import write_parts
from offrec.serving.recommend_table import TableOptions
from offrec.studies.worker import RunCounts
from small_studies import finished, small_dataset, small_study

ray = pytest.importorskip("ray", reason="Ray is not installed; `make test-ray` installs it and runs this test")
pytestmark = pytest.mark.filterwarnings("ignore")
QUIET = Console(quiet=True)
OPTIONS: dict[str, Any] = {"split": "hash", "filter": ("item=3", "session=2")}


class ThreeNodes:
    """A cluster with a head node without processors and three nodes with one each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(3)]
        self.cluster.wait_for_nodes()

    def engine(self) -> Any:
        from offrec.scale.ray_engine import RayEngine

        return RayEngine(self.cluster.address)

    def kill_one(self) -> None:
        """Kill the processes of a node."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def kill_one_in_use(self) -> None:
        """Kill the processes of a node that runs something."""
        free = ray._private.state.available_resources_per_node()
        self.nodes.sort(key=lambda node: free[node.node_id].get("CPU", 0.0) < 1.0)
        self.kill_one()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Replace a node that the block kills."""
        yield
        assert len(self.nodes) == 2, "the block must kill a node"
        self.nodes.append(self.cluster.add_node(num_cpus=1))
        self.cluster.wait_for_nodes()


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes()
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partitioned table of 60,000 events whose sessions span all files."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("log") / "log"
    for day in range(6):
        rows = [
            (f"session {rng.randrange(12_000)}", rng.randrange(900) ** 2 // 900, 1_700_000_000 + rng.randrange(90_000))
            for _ in range(10_000)
        ]
        path = folder / f"behaviour={'view' if day % 2 else 'buy'}" / f"{day}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows, ["session", "item", "time"], orient="row").write_parquet(path)
    return folder


@pytest.fixture(scope="module")
def dataset(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare(log, out=tmp_path_factory.mktemp("data") / "data", **OPTIONS)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def once(action: Callable[[], None], when: Callable[..., bool] = lambda *_: True) -> Callable[..., None]:
    """Return a function that calls `action` the first time that its arguments fulfil a condition."""
    called = False

    def call(*arguments: Any) -> None:
        nonlocal called
        if not called and when(*arguments):
            called = True
            action()

    return call


def test_prepare_gives_the_same_bytes_although_a_node_dies(
    three_nodes: ThreeNodes, log: Path, dataset: Dataset, tmp_path: Path
) -> None:
    # After "read", all partitions are stored on the nodes, and the counts of items are not known yet.
    progress = once(three_nodes.kill_one, lambda line: line.startswith("read: "))
    with three_nodes.restored():
        out = prepare(log, out=tmp_path / "data", engine=three_nodes.engine(), progress=progress, **OPTIONS)
    assert contents(out.path) == contents(dataset.path)


def test_prepare_reads_urls(three_nodes: ThreeNodes, log: Path, dataset: Dataset, tmp_path: Path) -> None:
    out = prepare(f"file://{log}", out=tmp_path / "data", engine=three_nodes.engine(), **OPTIONS)
    assert contents(out.path) == contents(dataset.path)


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"network.width": 8, "network.history": 5, "training.epochs": 1}
    out = tmp_path_factory.mktemp("run") / "run"
    train(dataset, out, settings=settings, device="cpu", console=QUIET)
    return out


def test_evaluate_gives_the_same_metrics_although_a_node_dies(
    three_nodes: ThreeNodes, dataset: Dataset, run: Path
) -> None:
    policy, kill = load(run, "cpu"), once(three_nodes.kill_one)
    with three_nodes.restored():
        several = evaluate_on(
            three_nodes.engine(), partial(load_run, run, "cpu"), policy, dataset, batch_size=64,
            progress=kill,
        )  # fmt: skip
    assert several.as_json() == evaluate(policy, dataset, batch_size=64).as_json()


class KillingEngine:
    """An engine that calls a function after its first result."""

    def __init__(self, engine: Any, kill: Callable[..., None]) -> None:
        self.engine, self.kill, self.slots = engine, kill, engine.slots

    def map(self, *arguments: Any) -> Iterator[Any]:
        for result in self.engine.map(*arguments):
            self.kill()
            yield result


def test_estimate_gives_the_same_figures_although_a_node_dies(
    three_nodes: ThreeNodes, dataset: Dataset, run: Path
) -> None:
    values = ValueOptions(NetworkOptions(width=4), updates=5)
    options = EstimateOptions(estimators=("all",), refits=2, values=values, value_at_5=False)
    policies = {"run": load(run, "cpu")}
    with three_nodes.restored():
        engine = KillingEngine(three_nodes.engine(), once(three_nodes.kill_one))
        several = estimate(
            policies,
            dataset,
            options,
            remote=lambda name, *more: RemotePasses(engine, partial(load_run, run, "cpu"), *more),
        )
    assert several.as_json() == estimate(policies, dataset, options).as_json()


class Listener(Console):
    """A console that calls a function for each line."""

    def __init__(self, call: Callable[[str], None]) -> None:
        super().__init__(quiet=True)
        self.line = call  # type: ignore[method-assign]


class Recorder(Listener):
    """A console that stores its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(self.lines.append)


def test_recommend_gives_the_same_files_although_a_node_dies(
    three_nodes: ThreeNodes, run: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    for number in range(12):
        rows = [(f"s{number}-{one}", one % 800) for one in range(300) for _ in range(2)]
        pl.DataFrame(rows, ["session", "item"], orient="row").write_parquet(table / f"{number:02d}.parquet")
    policy, load_run = load(run, "cpu"), partial(recommend._load_run, run, "cpu", ())
    write_parts(policy, [table], tmp_path / "one", TableOptions(k=5), QUIET, force=False)
    with three_nodes.restored():
        console = Listener(once(three_nodes.kill_one))
        engine = three_nodes.engine()
        options = TableOptions(k=5)
        write_parts(policy, [table], tmp_path / "several", options, console, force=False, engine=engine, load=load_run)
    assert contents(tmp_path / "several") == contents(tmp_path / "one")


def test_compare_gives_the_same_tables_although_a_node_dies(three_nodes: ThreeNodes, tmp_path: Path) -> None:
    small = small_dataset(tmp_path / "small")
    choices = {"algorithms": "sl", "baselines": "recent,popular,markov", "seeds": "4"}
    one = small_study(small, tmp_path / "one" / "study", **choices)
    assert finished(one) == RunCounts(7, 0, 0)
    several = small_study(small, tmp_path / "several" / "study", **choices)

    def kill_after_the_first_result() -> None:
        while not list(several.path("results").glob("*.json")):
            time.sleep(0.05)
        three_nodes.kill_one()

    with three_nodes.restored():
        killer = threading.Thread(target=kill_after_the_first_result)
        killer.start()
        assert finished(several, cluster=three_nodes.engine()) == RunCounts(7, 0, 0)
        killer.join()
    assert csv(build_report([several.folder])) == csv(build_report([one.folder]))


SETTINGS = {"network.width": 4, "training.epochs": 12, "training.patience": 99, "training.batch_size": 512}


def launch(three_nodes: ThreeNodes, dataset: Dataset, out: Path, console: Console, **more: Any) -> None:
    from offrec.scale.ray_launch import RayLauncher

    arguments = {"dataset": str(dataset.path), "out": str(out), "settings": {**SETTINGS, "device": "cpu"}}
    arguments |= {"catalogue_ranks": None, "resume": False, "force": False, "track": ("none",)}
    launcher = RayLauncher(2, three_nodes.cluster.address)
    launcher.train(arguments | more, console, max_restarts=1)


def test_train_continues_on_another_node_although_one_dies(
    three_nodes: ThreeNodes, dataset: Dataset, tmp_path: Path
) -> None:
    """Two ranks on three nodes. The node of a rank is killed after the first epoch."""
    console = Recorder()

    def kill_after_an_epoch() -> None:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.05)
        three_nodes.kill_one_in_use()

    killer = threading.Thread(target=kill_after_an_epoch, daemon=True)
    with three_nodes.restored():
        killer.start()
        launch(three_nodes, dataset, tmp_path / "run", console)
        killer.join()
    assert "A rank ended; restart 1 of 1." in console.lines
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == SETTINGS["training.epochs"]
    assert load(tmp_path / "run", "cpu").recommend([], 3).items
    assert any(line.startswith("Trained: 12 of 12 epochs") for line in console.lines)


def test_ranks_that_refuse_a_run_print_one_sentence(three_nodes: ThreeNodes, dataset: Dataset, tmp_path: Path) -> None:
    console = Recorder()
    with pytest.raises(InputError, match="The ranks could not train the run"):
        launch(three_nodes, dataset, tmp_path / "run", console, catalogue_ranks=3)
    (sentence,) = [line for line in console.lines if line.startswith("offrec:")]
    assert "--catalogue-ranks must divide the 2 processes" in sentence


def test_more_ranks_than_the_cluster_can_run_are_refused(three_nodes: ThreeNodes) -> None:
    from offrec.scale.ray_launch import RayLauncher

    with pytest.raises(InputError, match=r"^--ranks is 9, but the Ray cluster can run 3 processes with --ray-cpus 1"):
        RayLauncher(9, three_nodes.cluster.address)


def test_bad_rows_are_reported_by_one_sentence(three_nodes: ThreeNodes, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("session,item\n1,2\n1,\n")
    with pytest.raises(InputError, match=r"^log.csv, line 3: a missing item id \(the only such row\); every event"):
        prepare(log, out=tmp_path / "data", engine=three_nodes.engine(), split="hash")


def test_a_cluster_that_is_not_there_is_reported_by_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offrec", "prepare", "log.csv", "--out", str(tmp_path / "data"), "--split", "hash"]
    command += ["--engine", "ray", "--ray-address", "127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("offrec: --ray-address 127.0.0.1:1 does not answer (")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()
