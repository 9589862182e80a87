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
from offrec.reports.yardsticks import best_simple, compare_with_simple
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


EARNED = {"sl": 1.0, "sl sampled": 1.1, "dc": 2.0, "dc twin": 1.5, "dqn": 0.5, "recent": 0.9, "popular": 0.3,
          "logging": 1.2, "informed": 4.0, "oracle": 5.0}  # fmt: skip


def test_true_rewards_are_compared_with_the_yardsticks(tmp_path: Path) -> None:
    table = earnings_table(made_study(tmp_path / "study", [made_log()], {**HITS, "dc twin": 0.5}, earned=EARNED))
    assert table.heads == [
        "true reward per session", "share of Informed", "compared with the best simple policy (Logging)",
        "compared with its twin without look-ahead", "ranks by", "compared with the logging policy", "picks",
        "purchases",
    ]  # fmt: skip
    assert [label.label for label in table.rows] == [
        "Logging policy", "Informed (knows the items; first 100 visitors)", "Oracle (knows everything)",
        "Most recent items", "Popular items", "SL", "SL, sampled", "DQN", "DC", "DC, γ = 0",
    ]  # fmt: skip
    assert next(title for title, _ in table.sections) == "Shop policies"
    dc, oracle, dqn = (row(table, name) for name in ("DC", "Oracle (knows everything)", "DQN"))
    assert dc[0].rank == "best"
    assert [cell.stars for cell in (dc[2], dc[3], dc[5])] == ["**", "**", "**"]
    assert dc[2].text.startswith("+0.7")
    assert dc[3].text.startswith(("+0.4", "+0.5"))
    assert [cell.stars for cell in (dqn[2], dqn[5])] == ["▾", "▾"]
    ranks_by = [row(table, name)[4].text for name in ("DC", "DQN", "SL", "Popular items")]
    assert ranks_by == ["critic", "critic", "actor", "–"]
    assert oracle[0].rank == "", "shop policies are not ranked"
    assert {cell.stars for cell in oracle} == {""}
    assert "World demo, shop seed 3, visitors' seed 7." in table.note
    assert "the first 100 visitors, and shares are over these visitors." in table.note


def test_shares_of_informed_are_over_the_same_visitors(tmp_path: Path) -> None:
    table = earnings_table(made_study(tmp_path / "study", [made_log()], HITS, earned=EARNED))
    share, logging = (table.heads.index(head) for head in ("share of Informed", "compared with the logging policy"))
    assert row(table, "DC")[share].text == "50 %", "2 of 4, although the first visitors are luckier than all"
    assert row(table, "SL, sampled")[share].text in ("27 %", "28 %")
    informed = row(table, "Informed (knows the items; first 100 visitors)")
    assert informed[share].text == "100 %"
    assert informed[logging].text == "–", "other policies served other visitors as well"


def test_p_values_are_corrected_over_all_learners_of_the_table(tmp_path: Path) -> None:
    earned = {"sl": 1.0, "dc": 1.004, "dc twin": 1.0, "dqn": 1.001, "sr": 0.999, "logging": 0.5, "recent": 0.9}
    hits = {"sl": 0.5, "dc": 0.6, "dc twin": 0.5, "dqn": 0.3, "sr": 0.3, "recent": 0.4}
    results = read_studies([made_study(tmp_path / "study", [made_log()], hits, earned=earned, seeds=1).folder])
    comparer, learners = Comparer(results), [p for p in results.played if p.group.kind == "learner"]
    simple = best_simple(results, "yoochoose")
    assert simple is not None
    others = [policy for policy in learners if policy is not simple]
    raw = [one.p or 0.0 for policy in others if (one := comparer.compare(policy, simple, "", "reward")) is not None]
    by_hand, largest = {}, 0.0
    for rank, index in enumerate(sorted(range(len(raw)), key=lambda index: raw[index])):
        largest = max(largest, min(1.0, (len(raw) - rank) * raw[index]))
        by_hand[id(others[index])] = largest
    assert len(raw) >= 4
    for policy, comparison in zip(learners, compare_with_simple(comparer, learners, simple), strict=True):
        assert (comparison.corrected if comparison else None) == by_hand.get(id(policy))


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
        others = ["compared with the logging policy", "picks", "purchases"]
        yardsticks = ["compared with the best simple policy (Logging)", "ranks by"] if "dc" in earned else []
        assert table.heads == ["true reward per session", *yardsticks, *others]
        cells = row(table, "Oracle (knows everything)" if "oracle" in earned else "DC")
        assert cells[table.heads.index("compared with the logging policy")].text.startswith("+")


def test_estimated_values_have_a_sharpe_ratio(tmp_path: Path) -> None:
    """Estimates 1.5, 1 and .5 (SL, DC, DQN) with the logged reward .9: (1.5 − .9) / √(1/6)."""
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6, "dqn": 0.3}, earned=EARNED)
    for name, value in (("sl", 1.5), ("dc", 1.0), ("dqn", 0.5)):
        for path in study.path("results").glob(f"yoochoose.{name}.gru.*.json"):
            facts = json.loads(path.read_text())
            facts["value"] = {"value": value, "low": 0.0, "high": 2.0, "logged": 0.9, "verdict": "caution"}
            write_json(path, facts)
    note = earnings_table(study).note
    assert "is 1.47 by the estimates and " in note
    assert note.endswith(" by true rewards.")


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
