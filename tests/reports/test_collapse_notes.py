"""The report repeats the warnings of the selected epoch."""

from pathlib import Path

from made_studies import made_log, made_study
from offrec.reports.diagnostics import collapse_notes
from offrec.reports.reading import read_studies


def test_a_warning_of_the_selected_epoch_is_a_note(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log("events")], {"sl": 0.4, "dc": 0.3}, seeds=2)
    results = read_studies([study.folder])
    assert collapse_notes(results) == []
    (policy,) = [one for one in results.compared if one.group.policy == "dc"]
    facts = policy.results[1].facts
    for epoch, record in enumerate(facts["learning_curve"], 1):
        record["warnings"] = {"same": "the same list."} if epoch == facts["selected_epoch"] else {"rare": "rare items."}
    del policy.__dict__["warnings"]  # computed before
    (note,) = collapse_notes(results)
    assert note.startswith("Warning, DC ")
    assert note.endswith("1 of 2 seeds; seed 1: the same list.")
