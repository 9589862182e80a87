"""Tables of what is earned, and of diagnostics, from results that are known."""

import csv
import io
import json
from pathlib import Path

from made_studies import made_log, made_study, row
from offrec.reports import report
from offrec.reports.comparison import Comparer
from offrec.reports.reading import read_studies
from offrec.reports.text_formats import csv as as_csv
from offrec.reports.text_formats import markdown
from offrec.reports.value_tables import diagnostics_tables, earning_tables

HITS = {"sl": 0.5, "dc": 0.62, "dqn": 0.3, "recent": 0.4}


def test_only_columns_that_are_there_are_explained(tmp_path: Path) -> None:
    (whole,) = diagnostics_tables(read_studies([made_study(tmp_path / "whole", [made_log()], HITS).folder]))
    (plain,) = diagnostics_tables(read_studies([made_study(tmp_path / "plain", [made_log()], {"sl": 0.5}).folder]))
    for column, words in (("over-estimation", "Over-estimation:"), ("π where π̂_b < 10⁻⁴", "π where")):
        assert column in whole.heads
        assert words in whole.note
        assert column not in plain.heads
        assert words not in plain.note


def test_what_is_earned(tmp_path: Path) -> None:
    earned = {"sl": 1.0, "dc": 2.0, "dqn": 0.5, "recent": 0.9, "logging": 1.2, "oracle": 5.0}
    study = made_study(tmp_path / "study", [made_log()], HITS, earned=earned)
    reading = read_studies([study.folder])
    (table,) = earning_tables(reading, Comparer(reading))
    assert next(title for title, _ in table.sections) == "The shop's own"
    assert table.heads[0] == "true reward a session"
    assert "value, estimated" not in table.heads, "a column only where there are values"
    assert row(table, "DC")[0].stars == "**"
    assert row(table, "DC")[0].rank == "best"
    assert row(table, "The oracle")[0].rank == "", "it knows what no log tells"
    assert row(table, "DQN")[0].stars == "▾"
    assert row(table, "DC")[1].text.startswith("+0.9")
    assert "Stars against SL as above. The shop's own policies know what no log tells; they have no" in table.note


def test_what_is_earned_where_no_sl_is_compared(tmp_path: Path) -> None:
    """A sweep's log of a shop, with the shop's own policies alone, and then a learner beside them."""
    for earned, ends in (
        ({"logging": 1.2, "oracle": 5.0}, "paired. The shop's own policies know what no log tells."),
        ({"logging": 1.2, "dc": 2.0}, "what no log tells; best and second best are among the others."),
    ):
        study = made_study(
            tmp_path / "".join(earned), [made_log()], {"dc": 0.6} if "dc" in earned else {}, earned=earned
        )
        reading = read_studies([study.folder])
        (table,) = earning_tables(reading, Comparer(reading))
        assert table.heads == ["true reward a session", "over the logging policy", "picks", "purchases"]
        assert {len(row.cells) for row in table.rows} == {4}
        assert row(table, "The oracle" if "oracle" in earned else "DC")[1].text.startswith("+")
        assert table.note.endswith(ends)
        assert "tars" not in table.note


def test_values_have_a_column_where_there_are_any(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], HITS)
    path = study.path("results", "yoochoose.dc.gru.0.json")
    facts = json.loads(path.read_text())
    facts["value"] = {"value": 1.5, "low": -0.2, "high": 1.8, "verdict": "fair support"}
    path.write_text(json.dumps(facts))
    reading = read_studies([study.folder])
    (table,) = earning_tables(reading, Comparer(reading))
    assert table.heads == ["value, estimated", "verdict"]
    assert [cell.text for cell in row(table, "DC")] == ["1.50", "fair support"]
    assert row(table, "DC")[0].spread == "[−0.20 … 1.80]"
    assert "ReferenceFigures it in brackets, where one seed has a value" in table.note
    assert "± over seeds" not in table.note
    assert "1.50 [−0.20 … 1.80]" in markdown(report.build_report([study.folder]))
    assert "estimated from test sessions alone" in table.note
    rows = list(csv.DictReader(io.StringIO(as_csv(report.build_report([study.folder])))))
    figures = [r for r in rows if r["figure"].startswith("value")]
    assert [r["value"] for r in figures] == ["1.5", "-0.2", "1.8", ""]
    assert [r["text"] for r in figures] == ["", "", "", "fair support"]
    assert {r["text"] for r in rows if r not in figures} == {""}
    facts["value"] |= {"value": None, "low": None, "high": None, "verdict": "do not trust"}
    path.write_text(json.dumps(facts))
    reading = read_studies([study.folder])
    (table,) = earning_tables(reading, Comparer(reading))
    assert [cell.text for cell in row(table, "DC")] == ["withheld", "do not trust"]
