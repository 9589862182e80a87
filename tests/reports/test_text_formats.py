"""Reports as Markdown, CSV and LaTeX, and the formatting of numbers."""

import csv
import io
from pathlib import Path

import pytest

from made_studies import made_log, made_study, made_sweep
from offrec.errors import InputError
from offrec.reports import formatting
from offrec.reports.html import html
from offrec.reports.report import Report, build_report
from offrec.reports.text_formats import csv as to_csv
from offrec.reports.text_formats import latex, markdown
from offrec.reports.writing import write_report

HITS = {"sl": 0.5, "dc": 0.62, "dqn": 0.3, "recent": 0.4}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    study = made_study(tmp_path_factory.mktemp("made") / "study", [made_log()], HITS)
    return build_report([study.folder], reference="paper")


def test_csv_has_every_metric(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    dc = [row for row in rows if (row["policy"], row["seed"], row["split"]) == ("dc", "2", "test")]
    assert {row["behaviour"] for row in dc} == {"all", "view", "cart"}
    assert {"HR@5", "NDCG@20", "events"} <= {row["metric"] for row in dc}
    assert {row["fingerprint"] for row in rows} == {"print-yoochoose"}


def test_markdown(report: Report) -> None:
    text = markdown(report)
    assert "## Is the RL doing anything here?" in text
    assert "| DC | **." in text
    assert "(paper .3272)" in text
    assert "- **±**: standard deviation over seeds" in text


def test_latex(report: Report) -> None:
    text = latex(report)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") >= 2
    assert r"\textbf{." in text
    assert r"$^{\ast" in text
    assert text.isascii(), "plain LaTeX prints every character"
    columns = next(line for line in text.splitlines() if r"\begin{tabular}" in line).count("r") - 1
    body = [line for line in text.split(r"\end{tabular}")[0].splitlines() if line.startswith("DC")]
    assert all(line.count(" & ") == columns for line in body)


def test_a_folder_gets_every_format(report: Report, tmp_path: Path) -> None:
    written = write_report(report, [tmp_path / "all"])
    assert [path.name for path in written] == ["report.html", "report.md", "report.csv", "report.tex"]
    with pytest.raises(InputError, match=r"ends in \.pdf; a report must end in"):
        write_report(report, [tmp_path / "report.pdf"])


def test_sweeps_show_the_runs_they_are_compared_with(tmp_path: Path) -> None:
    folders = [made_sweep(tmp_path / name, name).folder for name in ("dc", "re")]
    report = build_report([*folders, made_study(tmp_path / "other", [made_log()], {"pc": 0.4}).folder])
    sweeps = [table for table in report.every_table if table.key.startswith("sweep")]
    assert [[row.label for row in table.rows] for table in sweeps] == [["α = 1", "SL"]] * 2
    (section,) = [section for section in report.sections if section.title == "Sweeps"]
    assert all("stroke-dasharray" in figure.svg for figure in section.figures)
    (text,) = [part for part in html(report).split("<section") if "<h2>Sweeps</h2>" in part]
    assert text.rindex("<figure") < text.index("<table"), "figures come before the table"
    assert "doing anything here" not in markdown(build_report(folders))


def test_small_rewards_keep_significant_digits() -> None:
    decimals = formatting.reward_decimals(0.0123, 0.0045)
    assert [formatting.format_reward(value, decimals) for value in (0.0123, 0.0045)] == ["0.0123", "0.0045"]
    assert formatting.format_gain(-0.0002, decimals) == "−0.0002"
    assert formatting.format_gain(0.0, 2) == "0.00"
    assert formatting.reward_decimals(1.5, 0.001) == 2
    assert formatting.format_spread(0.001, lambda value: formatting.format_reward(value, 2)) == "< 0.01"


def test_names_are_joined() -> None:
    joined = [formatting.join_names(names) for names in ([], ["A"], ["A", "B"], ["A", "B", "C"])]
    assert joined == ["none", "A", "A and B", "A, B and C"]
