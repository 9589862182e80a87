"""Tables of ranking metrics, from results that are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_studies import BASELINES, LEARNERS, OWN, made_log, made_study, replace_array, row
from offrec.algorithms import LEARNERS as LEARNER_RECORDS
from offrec.backbones import BACKBONES as BACKBONE_RECORDS
from offrec.baselines import BASELINES as BASELINE_RECORDS
from offrec.errors import InputError
from offrec.reports.comparison import Comparer
from offrec.reports.html import html
from offrec.reports.ranking import paper_figures, ranking_tables, reference_figures
from offrec.reports.reading import read_studies
from offrec.reports.report import build_report
from offrec.reports.statistics import holm
from offrec.reports.tables import Table
from offrec.studies.folder import write_study
from offrec.studies.study import Study

HITS = {"sl": 0.5, "dc": 0.62, "dqn": 0.3, "pc": 0.5, "recent": 0.4, "popular": 0.1}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return made_study(tmp_path_factory.mktemp("made") / "study", [made_log()], HITS)


def tables_of(*folders: Path, **options: object) -> dict[str, Table]:
    results = read_studies(folders)
    return {table.key: table for table in ranking_tables(results, Comparer(results), **options)}  # type: ignore[arg-type]


def test_clicks_and_purchases_have_separate_tables(study: Study) -> None:
    made = tables_of(study.folder)
    assert list(made) == ["clicks_rnn", "purchases_rnn"]
    assert made["clicks_rnn"].spans == [("yoochoose, view", 4)]
    assert made["purchases_rnn"].spans == [("yoochoose, cart", 4)]
    assert made["clicks_rnn"].heads == ["HR@5", "NDCG@5", "HR@10", "NDCG@10"]
    assert [title for title, _ in made["clicks_rnn"].sections] == ["Baselines (compared with SL, GRU)", "GRU"]
    assert tables_of(study.folder, cutoffs=(5, 10, 20))["clicks_rnn"].heads[-1] == "NDCG@20"


def test_a_backbone_without_results_has_no_rows(tmp_path: Path) -> None:
    both, views = made_log("events"), made_log("sessions", behaviours=("view",))
    made_study(tmp_path / "both", [both], {"sl": 0.5, "recent": 0.4})
    made_study(tmp_path / "views", [views], {"sl": 0.5}, backbones=["caser"])
    made = tables_of(tmp_path / "both", tmp_path / "views")
    assert [title for title, _ in made["purchases_rnn"].sections] == ["Baselines (compared with SL, GRU)", "GRU"]
    assert [title for title, _ in made["clicks_cnn"].sections] == ["Caser"]


def test_means_ranks_and_stars(study: Study) -> None:
    table = tables_of(study.folder)["clicks_rnn"]
    (dc,) = [policy for policy in read_studies([study.folder]).policies if policy.group.policy == "dc"]
    values = list(dc.values("view", "HR@10").values())
    assert len(values) == 3
    cell = row(table, "DC")[2]
    assert float(cell.text) == pytest.approx(sum(values) / 3, abs=6e-5)
    assert cell.rank == "best"
    assert cell.spread.startswith("± .0")
    assert {row(table, name)[2].rank for name in ("SL", "PC")} == {"second", ""}
    assert row(table, "DQN")[2].stars == "▾"
    assert row(table, "Popular items")[2].stars == "▾"
    assert row(table, "SL")[2].stars == "", "SL is not tested against itself"
    assert row(table, "PC")[2].stars == "", "PC has the same distribution as SL"
    assert {row(table, "DC")[n].stars for n in range(4)} <= {"*", "**"}


def test_both_tests_have_to_agree(tmp_path: Path) -> None:
    """With many sessions and two seeds that differ much, the bootstrap alone would reject."""
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.53}, seeds=2, sessions=4000)
    results = read_studies([study.folder])
    comparison = Comparer(results).compare(results.policies[1], results.policies[0], "view", "HR@20")
    assert comparison is not None
    assert comparison.p_sessions is not None
    assert comparison.p_seeds is not None
    assert comparison.p == max(comparison.p_seeds, comparison.p_sessions)
    assert replace(comparison, p_seeds=None).p == comparison.p_sessions, "one seed: the bootstrap alone"


def test_the_bootstrap_samples_sessions_not_events(tmp_path: Path) -> None:
    """The events of a session are equal, so five events per session are worth no more than one.

    The interval must be as wide as that of the session means; sampling events would make it √5 times narrower.
    """
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.5}, seeds=1, sessions=200)
    gain = np.random.default_rng(0).random(200) < 0.3  # sessions in which DC hits and SL does not
    for name, hit in (("sl", np.zeros(200, bool)), ("dc", gain)):
        ranks = np.where(np.repeat(hit, 5), 1, 21).astype(np.uint8)
        replace_array(study, f"yoochoose.{name}.gru.0", "ranks", ranks)
    results = read_studies([study.folder])
    sl, dc = results.policies
    comparison = Comparer(results).compare(dc, sl, "all", "HR@5")
    assert comparison is not None
    assert comparison.low is not None
    assert comparison.high is not None
    expected = 2 * 1.96 * gain.std() / 200**0.5
    assert comparison.high - comparison.low == pytest.approx(expected, rel=0.1)


def test_p_values_are_corrected_within_a_column(study: Study) -> None:
    results = read_studies([study.folder])
    comparer = Comparer(results)
    (sl,) = [policy for policy in results.policies if policy.group.policy == "sl"]
    others = [policy for policy in results.policies if policy.group.policy in ("dc", "dqn", "pc")]
    comparisons = comparer.compare_family(others, [sl] * 3, "view", "HR@5")
    assert [one.corrected for one in comparisons if one] == holm([one.p for one in comparisons if one])
    assert comparer.compare_family([sl], [sl], "view", "HR@5") == [None]


def test_against_the_best_baseline(study: Study) -> None:
    table = tables_of(study.folder, against="baseline")["clicks_rnn"]
    assert row(table, "SL")[2].stars in ("*", "**")
    assert row(table, "DQN")[2].stars == "▾"
    assert row(table, "Most recent items")[2].stars == "", "the best baseline is not tested against itself"
    legend = dict(build_report([study.folder], against="baseline").legend)
    assert "best baseline" in legend["compared with"]


def test_the_papers_figures_are_shown_next_to_ours(study: Study) -> None:
    paper = paper_figures()
    assert {len(rows) for rows in paper["tables"].values()} == {11}
    assert paper["tables"]["clicks_rnn"]["dc"]["RecSys"]["HR@5"] == 0.3272
    assert paper["tables"]["clicks_cnn"]["re"]["Kaggle"]["NDCG@10"] == 0.1866
    assert paper["tables"]["purchases_rnn"]["sl+pg"]["Kaggle"] == {
        "HR@5": 0.5087, "NDCG@5": 0.4172, "HR@10": 0.5602, "NDCG@10": 0.4340
    }  # fmt: skip
    made = tables_of(study.folder, reference=paper)
    assert [cell.reference for cell in row(made["clicks_rnn"], "DC")] == [".3272", ".2306", ".4217", ".2593"]
    assert row(made["clicks_rnn"], "Popular items")[0].reference == ""
    assert row(made["purchases_rnn"], "DC")[0].reference == "", "RecSys has buys, this log has carts"
    with pytest.raises(InputError, match="--reference must be paper; got peers"):
        reference_figures("peers")


def test_two_studies_in_one_report(study: Study, tmp_path: Path) -> None:
    other = made_study(tmp_path / "other", [made_log("retailrocket")], {"sl": 0.4, "dc": 0.5}, backbones=("caser",))
    report = build_report([study.folder, other.folder])
    assert [table.key for table in report.every_table][:3] == ["clicks_rnn", "clicks_cnn", "purchases_rnn"]
    purchases = next(table for table in report.every_table if table.key == "purchases_rnn")
    assert [label for label, _ in purchases.spans] == ["yoochoose, cart", "retailrocket, cart"]
    twice = build_report([study.folder, study.folder])
    assert len(list(twice.results.results())) == len(list(build_report([study.folder]).results.results()))


def test_a_log_with_other_behaviours(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log("music", ("listen", "like"))], {"sl": 0.4, "dc": 0.5})
    assert [label for label, _ in tables_of(study.folder)["others"].spans] == ["music, listen", "music, like"]


def test_every_policy_has_a_row(tmp_path: Path) -> None:
    hits = {name: 0.3 + 0.02 * n for n, name in enumerate((*LEARNERS, *BASELINES))}
    study = made_study(tmp_path / "study", [made_log()], hits, earned=dict.fromkeys(OWN, 1.0), seeds=5)
    made = {table.key: table for table in build_report([study.folder]).every_table}
    learners = [LEARNER_RECORDS[name].label for name in LEARNERS]
    assert [one.label for one in made["clicks_rnn"].rows][len(BASELINES) :] == learners
    assert len(made["earned-yoochoose"].rows) == len(OWN)
    assert len(made["diagnostics-yoochoose"].rows) == len(LEARNERS)


def renamed_study(folder: Path) -> Study:
    """Make a study whose learner, backbone and baseline are unknown to offrec."""
    study = made_study(folder, [made_log()], {"sl": 0.4, "dc": 0.5, "recent": 0.3})
    names = {"dc": "mine", "recent": "mine-baseline"}
    groups = [
        replace(group, policy=names.get(group.policy, group.policy), backbone=group.backbone and "mine-backbone")
        for group in study.groups
    ]
    study = replace(study, groups=tuple(groups))
    write_study(study)
    return study


def test_labels_and_tables_come_from_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = replace(LEARNER_RECORDS["dc"], name="mine", label="My learner", family="constrained")
    monkeypatch.setitem(LEARNER_RECORDS._records, "mine", new)
    backbone = replace(BACKBONE_RECORDS["gru"], name="mine-backbone", label="My backbone", family="recurrent")
    monkeypatch.setitem(BACKBONE_RECORDS._records, "mine-backbone", backbone)
    baseline = replace(BASELINE_RECORDS["recent"], name="mine-baseline", label="My baseline", short_label="")
    monkeypatch.setitem(BASELINE_RECORDS._records, "mine-baseline", baseline)
    report = build_report([renamed_study(tmp_path).folder])
    table = next(table for table in report.every_table if table.key == "clicks_rnn")
    assert [title for title, _ in table.sections] == ["Baselines (compared with SL, My backbone)", "My backbone"]
    assert [one.label for one in table.rows] == ["My baseline", "SL", "My learner"]
    assert [answer.about for answer in report.answers] == ["yoochoose, My backbone"]
    page = html(report)
    assert ">My learner<" in page
    assert "mark f-constrained" in page


def test_policies_of_a_plugin_that_is_not_installed(tmp_path: Path) -> None:
    report = build_report([renamed_study(tmp_path).folder])
    table = next(table for table in report.every_table if table.key == "clicks_cnn")
    assert [one.label for one in table.rows] == ["mine-baseline", "SL", "MINE"]
    assert "mine-backbone" in html(report)


def test_stored_labels_and_families_replace_those_of_missing_plugins(tmp_path: Path) -> None:
    study = renamed_study(tmp_path)
    stored: dict[str, dict[str, str]] = {
        "mine": {"policy_label": "My learner", "family": "constrained"},
        "mine-baseline": {"policy_label": "My baseline", "short_label": "Mine"},
    }
    backbone = {"backbone_label": "My backbone", "backbone_family": "recurrent"}
    groups = [
        replace(group, **stored.get(group.policy, {}), **(backbone if group.backbone else {})) for group in study.groups
    ]
    write_study(replace(study, groups=tuple(groups)))
    report = build_report([study.folder])
    table = next(table for table in report.every_table if table.key == "clicks_rnn")
    assert [title for title, _ in table.sections] == ["Baselines (compared with SL, My backbone)", "My backbone"]
    assert [one.label for one in table.rows] == ["My baseline", "SL", "My learner"]
    assert "mark f-constrained" in html(report)
