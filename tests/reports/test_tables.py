"""Tables from results that are known."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from made_studies import BASELINES, LEARNERS, OWN, made_log, made_study, made_sweep, row
from offrec.errors import InputError
from offrec.reports import html as page
from offrec.reports import report, tables
from offrec.reports.comparison import Comparer
from offrec.reports.reading import read_studies
from offrec.reports.statistics import holm
from offrec.reports.text_formats import csv as as_csv
from offrec.reports.text_formats import latex, markdown
from offrec.reports.writing import write_report
from offrec.studies.study import Study

HITS = {"sl": 0.5, "dc": 0.62, "dqn": 0.3, "pc": 0.5, "recent": 0.4, "popular": 0.1}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return made_study(tmp_path_factory.mktemp("made") / "study", [made_log()], HITS)


def test_clicks_and_purchases_are_tables_of_their_own(study: Study) -> None:
    reading = read_studies([study.folder])
    clicks, purchases = tables.ranking_tables(reading, Comparer(reading))
    assert (clicks.key, purchases.key) == ("clicks_rnn", "purchases_rnn")
    assert clicks.spans == [("yoochoose, view", 4)]
    assert purchases.spans == [("yoochoose, cart", 4)]
    assert clicks.heads == ["HR@5", "NDCG@5", "HR@10", "NDCG@10"]
    assert [title for title, _ in clicks.sections] == ["Without training", "GRU"]
    three = tables.ranking_tables(reading, Comparer(reading), cutoffs=(5, 10, 20))[0]
    assert three.heads[-1] == "NDCG@20"


def test_a_backbone_has_no_rows_where_it_has_no_figures(tmp_path: Path) -> None:
    both, views = made_log("events"), made_log("sessions", behaviours=("view",))
    made_study(tmp_path / "both", [both], {"sl": 0.5, "recent": 0.4})
    made_study(tmp_path / "views", [views], {"sl": 0.5}, backbones=["caser"])
    reading = read_studies([tmp_path / "both", tmp_path / "views"])
    found = {
        table.key: [title for title, _ in table.sections] for table in tables.ranking_tables(reading, Comparer(reading))
    }
    assert found["purchases_rnn"] == ["Without training", "GRU"]
    assert found["clicks_cnn"] == ["Caser"]


def test_figures_marks_and_stars(study: Study) -> None:
    reading = read_studies([study.folder])
    (table, _) = tables.ranking_tables(reading, Comparer(reading))
    values = [r.figure("view", "HR@10") for e in reading.entries if e.group.policy == "dc" for r in e.results]
    assert len(values) == 3
    cell = row(table, "DC")[2]
    assert float(cell.text) == pytest.approx(sum(v or 0 for v in values) / 3, abs=6e-5)
    assert cell.rank == "best"
    assert cell.spread.startswith("± .0")
    assert {row(table, name)[2].rank for name in ("SL", "PC")} == {"second", ""}
    assert row(table, "DQN")[2].stars == "▾"
    assert row(table, "Popular items")[2].stars == "▾"
    assert row(table, "SL")[2].stars == "", "SL is not tested against itself"
    assert row(table, "PC")[2].stars == "", "what is drawn alike is not told apart"
    assert {row(table, "DC")[n].stars for n in range(4)} <= {"*", "**"}


def test_both_tests_have_to_agree(tmp_path: Path) -> None:
    """With many sessions and two seeds that differ much, the bootstrap alone would reject."""
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.53}, seeds=2, sessions=4000)
    reading = read_studies([study.folder])
    found = Comparer(reading).compare(reading.entries[1], reading.entries[0], "view", "HR@20")
    assert found is not None
    assert found.p_sessions is not None
    assert found.p_seeds is not None
    assert found.p == max(found.p_seeds, found.p_sessions)
    one = replace(found, p_seeds=None)
    assert one.p == found.p_sessions, "one seed: the bootstrap alone"


def test_a_column_is_a_family(study: Study) -> None:
    """More policies in a column, a larger p: by Holm."""
    reading = read_studies([study.folder])
    comparer, sl = Comparer(reading), next(e for e in reading.entries if e.group.policy == "sl")
    others = [e for e in reading.entries if e.group.policy in ("dc", "dqn", "pc")]
    found = comparer.family(others, [sl] * 3, "view", "HR@5")
    assert [one.corrected for one in found if one] == holm([one.p for one in found if one])
    assert comparer.family([sl], [sl], "view", "HR@5") == [None]


def test_against_the_best_baseline(study: Study) -> None:
    reading = read_studies([study.folder])
    table = tables.ranking_tables(reading, Comparer(reading), against="baseline")[0]
    assert "above the policy without training that is best in the column" in table.note
    assert row(table, "SL")[2].stars in ("*", "**")
    assert row(table, "DQN")[2].stars == "▾"
    assert row(table, "Most recent items")[2].stars == "", "the best is not tested against itself"


def test_the_note_says_who_is_tested_against_whom(study: Study, tmp_path: Path) -> None:
    """A policy without training has no backbone: it is tested against the first SL of its log."""
    hits = {"sl": 0.5, "dc": 0.6, "recent": 0.4}
    other = made_study(tmp_path, [made_log("retailrocket")], hits, backbones=("caser", "sasrec"))
    for folders, said in (
        ([study.folder], "above SL with the same backbone (policies without training: SL with GRU) at p"),
        ([study.folder, other.folder], "SL with GRU on yoochoose and Caser on retailrocket) at p"),
    ):
        reading = read_studies(folders)
        assert said in tables.ranking_tables(reading, Comparer(reading))[-1].note
    alone = read_studies([made_study(tmp_path / "alone", [made_log()], {"sl": 0.5, "dc": 0.6}).folder])
    assert "above SL with the same backbone at p" in tables.ranking_tables(alone, Comparer(alone))[0].note


def test_the_papers_figures_stand_beside_ours(study: Study) -> None:
    found = tables.paper_figures()
    assert {len(rows) for rows in found["tables"].values()} == {11}
    assert found["tables"]["clicks_rnn"]["dc"]["RecSys"]["HR@5"] == 0.3272
    assert found["tables"]["clicks_cnn"]["re"]["Kaggle"]["NDCG@10"] == 0.1866
    assert found["tables"]["purchases_rnn"]["sl+pg"]["Kaggle"] == {
        "HR@5": 0.5087, "NDCG@5": 0.4172, "HR@10": 0.5602, "NDCG@10": 0.4340
    }  # fmt: skip
    reading = read_studies([study.folder])
    clicks, purchases = tables.ranking_tables(reading, Comparer(reading), reference=found)
    assert [cell.reference for cell in row(clicks, "DC")] == [".3272", ".2306", ".4217", ".2593"]
    assert row(clicks, "Popular items")[0].reference == ""
    assert row(purchases, "DC")[0].reference == "", "RecSys's purchases are buys, these are carts"
    with pytest.raises(InputError, match="--reference peers is not known"):
        tables.reference_figures("peers")


def test_seeds_that_are_missing_are_told(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], HITS)
    study.path("results", "yoochoose.dc.gru.1.json").unlink()
    found = report.build_report([study.folder])
    assert "DC (2 of 3 seeds)" in markdown(found)
    assert "1 runs are still to do" in markdown(found)


def test_csv_has_every_figure(study: Study) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(report.build_report([study.folder])))))
    mine = [r for r in rows if (r["policy"], r["seed"], r["split"]) == ("dc", "2", "test")]
    assert {r["behaviour"] for r in mine} == {"all", "view", "cart"}
    assert {"HR@5", "NDCG@20", "events"} <= {r["figure"] for r in mine}
    assert {r["fingerprint"] for r in rows} == {"print-yoochoose"}


def test_markdown_and_latex(study: Study, tmp_path: Path) -> None:
    found = report.build_report([study.folder], reference="paper")
    text = markdown(found)
    assert "## Is the RL doing anything here?" in text
    assert "| DC | **." in text
    assert "(paper .3272)" in text
    tex = latex(found)
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") >= 2
    assert r"\textbf{." in tex
    assert r"$^{\ast" in tex
    assert tex.isascii(), "nothing that plain LaTeX does not print"
    columns = next(line for line in tex.splitlines() if r"\begin{tabular}" in line).count("r") - 1
    body = [line for line in tex.split(r"\end{tabular}")[0].splitlines() if line.startswith("DC")]
    assert all(line.count(" & ") == columns for line in body)
    written = write_report(found, [tmp_path / "all"])
    assert [path.name for path in written] == ["report.html", "report.md", "report.csv", "report.tex"]
    with pytest.raises(InputError, match=r"ends in \.pdf; a report ends in"):
        write_report(found, [tmp_path / "report.pdf"])


def test_two_studies_in_one_report(study: Study, tmp_path: Path) -> None:
    other = made_study(tmp_path / "other", [made_log("retailrocket")], {"sl": 0.4, "dc": 0.5}, backbones=("caser",))
    found = report.build_report([study.folder, other.folder])
    assert [table.key for table in found.every_table][:3] == ["clicks_rnn", "clicks_cnn", "purchases_rnn"]
    purchases = next(table for table in found.every_table if table.key == "purchases_rnn")
    assert [label for label, _ in purchases.spans] == ["yoochoose, cart", "retailrocket, cart"]
    again = report.build_report([study.folder, study.folder])
    assert len(list(again.reading.results())) == len(list(report.build_report([study.folder]).reading.results()))


@pytest.mark.parametrize("figure", ["value@5", "value"])
def test_of_a_seed_in_two_studies_the_result_with_values_is_kept(tmp_path: Path, figure: str) -> None:
    studies = [made_study(tmp_path / name, [made_log()], {"sl": 0.5}) for name in ("plain", "valued")]
    path = studies[1].path("results", "yoochoose.sl.gru.1.json")
    facts = json.loads(path.read_text())
    if figure == "value":
        facts["value"] = {"value": 1.5, "low": 1.2, "high": 1.8, "verdict": "caution"}
    else:
        facts["test"]["all"]["value@5"] = 1.5
    path.write_text(json.dumps(facts))
    for several in (studies, studies[::-1]):
        (entry,) = read_studies([study.folder for study in several]).entries
        assert entry.values("all", figure) == {1: 1.5}
        assert [(r.run.seed, r.study.folder.name) for r in entry.results] == [
            (0, several[0].folder.name),
            (1, "valued"),
            (2, several[0].folder.name),
        ]


def test_what_does_not_belong_together(study: Study, tmp_path: Path) -> None:
    other = made_study(tmp_path / "a", [made_log("other", score_first=False)], {"sl": 0.4})
    with pytest.raises(InputError, match=r"yoochoose has score_first = True and other has False.* one table"):
        report.build_report([study.folder, other.folder])
    same = made_study(tmp_path / "b", [replace(made_log(), fingerprint="another")], {"sl": 0.4})
    with pytest.raises(InputError, match=r"has the fingerprint another in .* and print-yoochoose in another study"):
        report.build_report([study.folder, same.folder])
    with pytest.raises(InputError, match=r"Figures at \[3\] are not kept"):
        report.build_report([study.folder], cutoffs=(3,))


def test_a_log_without_the_usual_behaviours(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log("music", ("listen", "like"))], {"sl": 0.4, "dc": 0.5})
    (table,) = [t for t in report.build_report([study.folder]).every_table if t.key == "others"]
    assert [label for label, _ in table.spans] == ["music, listen", "music, like"]


def test_every_policy_has_its_place(tmp_path: Path) -> None:
    hits = {name: 0.3 + 0.02 * n for n, name in enumerate((*LEARNERS, *BASELINES))}
    study = made_study(tmp_path / "study", [made_log()], hits, earned=dict.fromkeys(OWN, 1.0), seeds=5)
    found = {table.key: table for table in report.build_report([study.folder]).every_table}
    assert [row.label for row in found["clicks_rnn"].rows][5:] == [name.upper() for name in LEARNERS]
    assert len(found["earned-yoochoose"].rows) == 4
    assert len(found["diagnostics-yoochoose"].rows) == 11


def test_what_several_sweeps_are_set_beside_stands_in_each_of_them(tmp_path: Path) -> None:
    folders = [made_sweep(tmp_path / name, name).folder for name in ("dc", "re")]
    found = report.build_report([*folders, made_study(tmp_path / "other", [made_log()], {"pc": 0.4}).folder])
    swept = [table for table in found.every_table if table.key.startswith("sweep")]
    assert [[row.label for row in table.rows] for table in swept] == [["α = 1", "SL"]] * 2
    (section,) = [section for section in found.sections if section.title == "Sweeps"]
    assert all("stroke-dasharray" in picture.svg for picture in section.pictures)
    (drawn,) = [part for part in page.html(found).split("<section") if "<h2>Sweeps</h2>" in part]
    assert drawn.rindex("<figure") < drawn.index("<table"), "what is swept is seen first, then read"
    assert "doing anything here" not in markdown(report.build_report(folders))
