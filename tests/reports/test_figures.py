"""Figures of results that are known."""

import json
import math
from pathlib import Path

from made_studies import LEARNERS, made_log, made_study, made_sweep
from offrec.algorithms import LEARNERS as RECORDS
from offrec.data.json_files import write_json
from offrec.reports import figures, svg
from offrec.reports.reading import read_studies


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6, "dqn": 0.4, "pg": 0.3}, seeds=1)
    distances = {"dc": 0.3, "dqn": math.nan, "pg": 1.2}
    for name, distance in distances.items():
        path = study.path("results", f"yoochoose.{name}.gru.0.json")
        facts = json.loads(path.read_text())
        for epoch in facts["learning_curve"]:
            epoch["diagnostics"] = {"kl_to_logging": distance}
        write_json(path, facts)
    (figure,) = [one for one in figures.trade_offs(read_studies([study.folder])) if one.key.startswith("kl-")]
    assert "nan" not in figure.svg
    assert ">DC<" in figure.svg
    assert ">DQN<" not in figure.svg


def test_the_overview_needs_a_measure_of_earnings(tmp_path: Path) -> None:
    hits = {"sl": 0.5, "dc": 0.6, "recent": 0.4}
    log_only = made_study(tmp_path / "log", [made_log()], hits)
    assert figures.overview(read_studies([log_only.folder])) == []
    earned = {"sl": 1.0, "dc": 2.0, "recent": 0.5, "logging": 0.8}
    shop = made_study(tmp_path / "shop", [made_log()], hits, earned=earned)
    (figure,) = figures.overview(read_studies([shop.folder]))
    assert figure.svg.count('class="mark') == 3
    assert "true reward per session" in figure.svg
    assert "stroke-dasharray" in figure.svg, "the logging policy"
    for run in log_only.runs:
        path = log_only.path("results", f"{run.name}.json")
        value = {"value": 1.0 + run.seed, "low": 0.5, "high": 2.0, "verdict": "caution"}
        write_json(path, {**json.loads(path.read_text()), "value": value})
    (figure,) = figures.overview(read_studies([log_only.folder]))
    assert "estimated value per session" in figure.svg


def test_long_titles_are_wrapped() -> None:
    title = "overestimation by Q: yoochoose-64-sessions, CFN, preset paper"
    assert svg.wrap_title("NDCG@10: shop, GRU", 344) == ["NDCG@10: shop, GRU"]
    assert svg.wrap_title(title, 344) == ["overestimation by Q:", "yoochoose-64-sessions, CFN, preset paper"]
    assert svg.wrap_title("a" * 99, 344)[0].endswith("a…")
    panels = [svg.Panel(text, "", svg.Scale(0, 1), svg.Scale(0, 1), "", "") for text in ("short", title)]
    assert [panel.svg().count('class="head"') for panel in panels] == [1, 2]
    (_, one), (_, two) = (panel.point(0, 0) for panel in panels)
    assert two - one == svg.HEAD_LINE, "the figure grows, so that the drawing keeps its size"


def test_titles_of_sweeps_differ(tmp_path: Path) -> None:
    drawings = figures.sweep_figures(read_studies([made_sweep(tmp_path, "dc").folder]))
    titles = [figure.svg.split("<title>")[1].split("</title>")[0] for figure in drawings]
    assert titles == [
        f"{metric}: DC, GRU over α, yoochoose" for metric in ("NDCG@10", "NDCG@10 of view", "NDCG@10 of cart")
    ]


def test_labels_without_space_are_listed_in_the_caption(tmp_path: Path) -> None:
    """All learners have nearly the same position."""
    study = made_study(tmp_path, [made_log()], dict.fromkeys(LEARNERS, 0.5) | {"recent": 0.1}, seeds=1)
    drawings = figures.trade_offs(read_studies([study.folder]))
    figure = next(one for one in drawings if one.key.startswith("clicks-"))
    names = [RECORDS[name].label for name in LEARNERS]
    labelled = [name for name in names if f">{name}<" in figure.svg]
    assert 0 < len(labelled) < len(names)
    assert figure.svg.count('class="mark') == len(names) + 1, "every policy has a mark"
    assert all(name in figure.caption for name in names if name not in labelled)
    assert ">Recent<" in figure.svg
