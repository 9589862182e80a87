"""Tables of earnings and of diagnostics, from results that are known."""

import csv
import io
import json
from pathlib import Path

from made_studies import made_log, made_study, row
from offrec.data.json_files import write_json
from offrec.reports.comparison import Comparer
from offrec.reports.diagnostics import diagnostics_tables
from offrec.reports.earnings import earnings_tables
from offrec.reports.reading import read_studies
from offrec.reports.report import build_report
from offrec.reports.tables import Table
from offrec.reports.text_formats import csv as to_csv
from offrec.reports.text_formats import markdown
from offrec.studies.study import Study

HITS = {"sl": 0.5, "dc": 0.62, "dqn": 0.3, "recent": 0.4}


def earnings_table(study: Study) -> Table:
    results = read_studies([study.folder])
    (table,) = earnings_tables(results, Comparer(results))
    return table


def test_only_columns_that_exist_are_explained(tmp_path: Path) -> None:
    (full,) = diagnostics_tables(read_studies([made_study(tmp_path / "full", [made_log()], HITS).folder]))
    (short,) = diagnostics_tables(read_studies([made_study(tmp_path / "short", [made_log()], {"sl": 0.5}).folder]))
    for column, explanation in (("overestimation", "Overestimation:"), ("π where π̂_b < 10⁻⁴", "π where")):
        assert column in full.heads
        assert explanation in full.note
        assert column not in short.heads
        assert explanation not in short.note


def test_diagnostics_say_which_runs_stopped_early_and_when(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6})
    path = study.path("results", "yoochoose.sl.gru.1.json")
    facts = json.loads(path.read_text()) | {"stopped_early": True, "selected_epoch": 5}
    write_json(path, facts)
    (table,) = diagnostics_tables(read_studies([study.folder]))
    assert table.heads[:3] == ["epochs run", "selected epoch", "stopped early"]
    assert [cell.text for cell in row(table, "SL")[:3]] == ["8", "7", "1 of 3 seeds"]
    assert [cell.text for cell in row(table, "DC")[:3]] == ["8", "8", "no"]


def test_true_rewards_are_compared_with_sl_the_best_baseline_and_the_logging_policy(tmp_path: Path) -> None:
    earned = {"sl": 1.0, "dc": 2.0, "dqn": 0.5, "recent": 0.9, "popular": 0.3, "logging": 1.2, "oracle": 5.0}
    table = earnings_table(made_study(tmp_path / "study", [made_log()], HITS, earned=earned))
    assert table.heads == [
        "true reward per session", "compared with SL", "compared with the best baseline (Recent)",
        "compared with the logging policy", "picks", "purchases",
    ]  # fmt: skip
    assert next(title for title, _ in table.sections) == "Shop policies"
    dc, oracle, dqn = (row(table, name) for name in ("DC", "Oracle", "DQN"))
    assert dc[0].rank == "best"
    assert [cell.stars for cell in dc[1:4]] == ["**", "**", "**"]
    assert dc[1].text.startswith("+0.9")
    assert dc[2].text.startswith("+1.0")
    assert [cell.stars for cell in dqn[1:3]] == ["▾", "▾"]
    assert oracle[0].rank == "", "shop policies are not ranked"
    assert {cell.stars for cell in oracle} == {""}


def test_small_rewards_are_not_rounded_to_zero(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], HITS, earned={"sl": 1.0, "dc": 2.0})
    for path in study.path("results").glob("*.json"):
        facts = json.loads(path.read_text())
        if "shop" in facts:
            facts["shop"]["reward"] = {key: value / 1000 for key, value in facts["shop"]["reward"].items()}
            write_json(path, facts)
    table = earnings_table(study)
    assert row(table, "DC")[0].text.startswith("0.001")
    assert row(table, "DC")[1].text.startswith("+0.000")
    assert float(row(table, "DC")[1].text) > 0


def test_earnings_without_sl(tmp_path: Path) -> None:
    """A sweep in a shop has shop policies and no SL to compare with."""
    for earned in ({"logging": 1.2, "oracle": 5.0}, {"logging": 1.2, "dc": 2.0}):
        hits = {"dc": 0.6} if "dc" in earned else {}
        table = earnings_table(made_study(tmp_path / "".join(earned), [made_log()], hits, earned=earned))
        assert table.heads == ["true reward per session", "compared with the logging policy", "picks", "purchases"]
        assert {len(one.cells) for one in table.rows} == {4}
        assert row(table, "Oracle" if "oracle" in earned else "DC")[1].text.startswith("+")


def test_estimated_values_have_columns(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], HITS)
    path = study.path("results", "yoochoose.dc.gru.0.json")
    facts = json.loads(path.read_text())
    facts["value"] = {"value": 1.5, "low": -0.2, "high": 1.8, "verdict": "fair support"}
    write_json(path, facts)
    table = earnings_table(study)
    assert table.heads == ["estimated value per session", "verdict"]
    assert [cell.text for cell in row(table, "DC")] == ["1.50", "fair support"]
    assert row(table, "DC")[0].spread == "[−0.20 … 1.80]"
    report = build_report([study.folder])
    assert "1.50 [−0.20 … 1.80]" in markdown(report)
    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    values = [one for one in rows if one["metric"].startswith("value")]
    assert [one["value"] for one in values] == ["1.5", "-0.2", "1.8", ""]
    assert [one["text"] for one in values] == ["", "", "", "fair support"]
    assert {one["text"] for one in rows if one not in values} == {""}
    facts["value"] |= {"value": None, "low": None, "high": None, "verdict": "do not trust"}
    write_json(path, facts)
    assert [cell.text for cell in row(earnings_table(study), "DC")] == ["withheld", "do not trust"]
