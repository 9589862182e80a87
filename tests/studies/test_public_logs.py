"""benchmarks/public_logs.py, applied to studies with invented results."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from made_studies import MACHINE, made_log, made_study, replace_array
from offrec.evaluation.metrics import compute_metrics
from offrec.studies.folder import write_study
from offrec.studies.stored_results import RANK_CAP, write_result
from offrec.studies.study import Run, RunGroup, Study
from small_datasets import write_dataset

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SESSIONS = 200
ORDERS = (0, 1, 2), (0, 2, 1), (1, 2, 0)  # of noise over seeds, so that no difference is constant


@pytest.fixture
def public_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("public_logs")
    for name in ("public_logs", "public_rewards", "public_seen"):
        sys.modules.pop(name, None)


def sweep(folder: Path, name: str, knob: str, value: float, hits: Callable[[float, str], int]) -> Study:
    """Make a sweep over five rewards with three seeds. `hits`: (reward of a cart, behaviour) → hits of 100."""
    log = made_log("events")
    groups = [
        RunGroup(f"events.{name}.cart={cart}", "events", "learner", name, "gru", "strong",
              {f"algorithm.{knob}": value, "reward_unit": "absolute", "reward.cart": cart}, {"reward.cart": cart})
        for cart in (0.2, 0.5, 1.0, 2.0, 5.0)
    ]  # fmt: skip
    runs = [Run(f"{group.name}.{seed}", group.name, "events", seed) for group in groups for seed in range(3)]
    study = Study(folder / f"cart-{name}-{value}", "sweep", (log,), tuple(groups), tuple(runs))
    write_study(study)
    session = np.repeat(np.arange(SESSIONS), 2)
    behaviour = np.tile([0, 1], SESSIONS)
    events = np.stack([session, behaviour]).astype(np.uint32)
    for group, run in ((study.group(run), run) for run in runs):
        cart = group.options["reward.cart"]
        noise = ORDERS[int(cart) % 3][run.seed]
        wanted = np.array([hits(cart, kind) + noise for kind in log.behaviours])
        rank = np.where(session % 100 < wanted[behaviour], 1, RANK_CAP)
        measured = {kind: compute_metrics(rank[behaviour == n], (5, 10)) for n, kind in enumerate(log.behaviours)}
        table = {kind: {"events": one.events, **one.values} for kind, one in measured.items()}
        facts = {
            "validation": table,
            "test": table,
            "learning_curve": [{"epoch": 1}],
            "selected_epoch": 1,
            "machine": MACHINE,
            "seconds": 2.0,
            "concurrent_seeds": 1,
            "peak_memory": None,
            "finished_at": "2026-01-01T10:00:00+00:00",
        }
        write_result(study, run, facts, {"ranks": rank.astype(np.uint8), "events": events})
    return study


def test_gains_between_rewards_of_a_cart(public_logs: ModuleType, tmp_path: Path) -> None:
    sweep(tmp_path, "dc", "alpha", 0.5, lambda cart, kind: 40 + int(4 * cart) if kind == "cart" else 40 - int(4 * cart))
    sweep(tmp_path, "pc", "beta", 0.3, lambda cart, kind: {0.2: 50, 1.0: 60}.get(cart, 55) if kind == "cart" else 30)
    rewards = public_logs.public_rewards
    results = rewards.read(tmp_path)
    settings = rewards.by_setting(results)
    assert list(settings) == [("dc", 0.5, "absolute"), ("pc", 0.3, "absolute")]
    assert list(settings["dc", 0.5, "absolute"]) == [0.2, 0.5, 1.0, 2.0, 5.0]
    assert [rewards.monotone(entries, "test") for entries in settings.values()] == [True, False]
    steps = {(row["learner"], row["behaviour"], row["from"], row["to"]): row for row in rewards.steps(results)}
    assert steps["dc", "cart", 0.2, 1.0]["gain"] == pytest.approx(0.04)
    assert steps["dc", "view", 0.2, 5.0]["gain"] == pytest.approx(-0.20)
    assert steps["dc", "view", 0.2, 5.0]["corrected"] < 0.05
    assert steps["pc", "cart", 1.0, 5.0]["gain"] == pytest.approx(-0.05)
    assert steps["pc", "view", 1.0, 5.0]["corrected"] == 1
    rows = rewards.runs(results)
    assert len(rows) == 30
    assert rows[0]["test"]["cart"] == {"HR@5": 0.4, "NDCG@10": 0.4}
    assert "| DC, α .5, absolute | .4100 · .4100 | .3900 · .4300 | .3700 · .4500 |" in rewards.table(results)


def test_the_figure_shows_both_behaviours(public_logs: ModuleType, tmp_path: Path) -> None:
    for name, knob, value in (("dc", "alpha", 0.5), ("pc", "beta", 0.3), ("dc", "alpha", 2.0)):
        sweep(tmp_path, name, knob, value, lambda cart, kind: 40 + int(4 * cart) * (1 if kind == "cart" else -1))
    figure = ElementTree.fromstring(public_logs.public_rewards.picture(public_logs.public_rewards.read(tmp_path)))
    texts = [text.text for text in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("Carts", "Views")] == ["Carts", "Views"]
    assert texts.count("DC, α .5") == texts.count("PC, β .3") == 2
    assert "DC, α 2" not in texts
    tips = [tip.text for tip in figure.iter("{http://www.w3.org/2000/svg}title")]
    assert "DC, α .5, cart 5: 0.6100 ± 0.0100" in tips
    assert "DC, α .5, cart 5: 0.2100 ± 0.0100" in tips


def test_a_column_without_a_number_of_seeds_is_refused(public_logs: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--columns: paper-cfn lacks its number of seeds; give it, as in strong-gru=5"):
        public_logs.chosen([tmp_path], tmp_path, "strong-gru=5,paper-cfn")


def test_rows_of_the_requested_seeds(public_logs: ModuleType, tmp_path: Path) -> None:
    made_study(tmp_path / "strong-gru-clicks", [made_log("clicks", ["view"])], {"sl": 0.4, "recent": 0.2})
    made_study(
        tmp_path / "strong-caser-clicks", [made_log("clicks", ["view"])], {"sl": 0.3}
    )  # not a column of the table
    assert [(row["policy"], row["seed"]) for row in public_logs.rows(tmp_path)] == [("sl", 0), ("recent", 0)]
    more = public_logs.rows(tmp_path, (0, 2))
    assert [(row["policy"], row["seed"]) for row in more] == [("sl", 0), ("sl", 2), ("recent", 0)]
    assert all(list(row["test"]) == ["all"] for row in more)


def test_metrics_by_what_the_session_contained_before(public_logs: ModuleType, tmp_path: Path) -> None:
    seen = public_logs.public_seen
    assert seen.kinds([9, 9, 7, 7, 8, 7, 9, 5, 5], [2, 6, 7, 9]).tolist() == [0, 1, 3, 2, 0, 0, 1]
    behaviours = [["view"] * 2, ["cart"] * 2, ["view", "cart", "view", "view"], ["view", "view", "view", "cart"]]
    dataset = write_dataset(tmp_path, [[0, 1], [1, 0], [0, 0, 1, 0], [2, 0, 1, 1]], behaviours, splits=(1, 1, 2))
    log = made_log(dataset.path.name, dataset.behaviours)
    study = made_study(tmp_path / f"strong-gru-{log.name}", [log], {"sl": 0.4}, seeds=1, sessions=2)
    ranks = np.array([RANK_CAP, 1, RANK_CAP, 3, RANK_CAP, 1, 3, 1], dtype=np.uint8)
    events = np.load(study.path("results", f"{log.name}.events.npy"))
    replace_array(study, study.runs[0].name, "events", events[:, :8])
    replace_array(study, study.runs[0].name, "ranks", ranks)
    counted, *others, row, views, carts = seen.rows([dataset.path], tmp_path, public_logs.STUDIES)
    assert counted["events"] == {"first": 2, "again": 2, "before": 1, "new": 3}
    assert {row["behaviour"]: row["events"]["again"] for row in others} == {"view": 0, "cart": 2}
    assert (row["first"], row["again"], row["before"], row["new"]) == (0, 1, 0.5, 0.5)
    assert (carts["behaviour"], carts["all"], carts["again"], carts["new"]) == ("cart", 1, 1, None)
    assert (views["all"], views["again"]) == (pytest.approx(2 / 6), None)
    replace_array(study, study.runs[0].name, "events", events[:, :7])
    replace_array(study, study.runs[0].name, "ranks", ranks[1:])
    with pytest.raises(SystemExit, match="test sessions"):
        seen.rows([dataset.path], tmp_path, public_logs.STUDIES)
