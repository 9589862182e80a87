"""--catalogue: a log gets the item indices of another dataset."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from small_logs import Prepare, error_message, stored_decisions
from test_decision_tables import EXPECTED, ROWS, as_csv, as_json_lines

OTHER_LOG = "session,item\na,4\na,5\na,6\nb,7\nb,8\nc,9\nc,10\nd,5\n"


def test_a_log_gets_the_item_indices_of_another_dataset(prepare_log: Prepare) -> None:
    other = prepare_log(("other.csv", OTHER_LOG), out="other")
    dataset = prepare_log(("d.csv", as_csv(ROWS)), format="decisions", split="time", catalogue=str(other.path))
    assert dataset.vocabulary == other.vocabulary
    assert dataset.n_items == 7, "items without an event remain in the catalogue"
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    assert np.load(dataset.path / "decision_items.npy").max() == 7, "padding is the number of items"
    assert dataset.vocabulary != prepare_log(("e.csv", OTHER_LOG + "e,11\n"), out="third").vocabulary


def test_integer_ids_match_text_ids(prepare_log: Prepare) -> None:
    other = prepare_log(("other.csv", OTHER_LOG.replace("4", "shoe")), out="other")
    dataset = prepare_log(("d.jsonl", as_json_lines(ROWS)), format="decisions", split="time", catalogue=str(other.path))
    assert dataset.vocabulary == other.vocabulary
    assert [item for session in stored_decisions(dataset) for _, items, _, _ in session for item in items][:2] == [
        "5",
        "7",
    ]


def test_events_with_unknown_items_are_dropped_and_counted(prepare_log: Prepare) -> None:
    other = prepare_log(("other.csv", OTHER_LOG), out="other")
    log = "session,item\na,5\na,77\nb,6\nc,78\nd,9\nd,5\n"
    dataset = prepare_log(("log.csv", log), catalogue=str(other.path))
    assert dataset.meta["counts"] == {"sessions": 3, "events": 4, "items": 7}
    assert dataset.meta["steps"][1] == {"step": "drop items outside the catalogue", "sessions": 3, "events": 4}


def test_new_items_follow_those_of_the_catalogue_on_request(prepare_log: Prepare) -> None:
    other = prepare_log(("other.csv", OTHER_LOG.replace("9", "90")), out="other")  # without item 9, which lists offer
    options: dict[str, Any] = {"format": "decisions", "split": "time", "catalogue": str(other.path)}
    dataset = prepare_log(("d.csv", as_csv(ROWS)), **options, keep_new_items=True)
    known = other.vocabulary.ids.tolist()  # type: ignore[union-attr]
    assert dataset.vocabulary.ids.tolist() == [*known, 9]  # type: ignore[union-attr]
    assert sorted(stored_decisions(dataset)) == sorted(EXPECTED)
    log = "session,item\na,5\na,shoe\nb,6\nc,4\n"
    texts = prepare_log(("log.csv", log), out="texts", catalogue=str(other.path), keep_new_items=True)
    assert texts.vocabulary.ids == [*map(str, known), "shoe"]
    assert texts.meta["counts"]["events"] == 4
    message = error_message(prepare_log, ("log.csv", log), keep_new_items=True)
    assert message.startswith("--keep-new-items needs --catalogue")


def test_unusable_catalogues_are_refused(prepare_log: Prepare, tmp_path: Path) -> None:
    other = prepare_log(("other.csv", OTHER_LOG.replace("9", "90")), out="other")
    options: dict[str, Any] = {"format": "decisions", "catalogue": str(other.path)}
    message = error_message(prepare_log, ("d.csv", as_csv(ROWS)), **options)
    assert re.match("The catalogue of .* does not contain 9, which a served list offers; ", message)
    assert "neither a dataset nor a run folder" in error_message(
        prepare_log, ("log.csv", OTHER_LOG), catalogue=str(tmp_path)
    )
    (other.path / "dataset.json").write_text("{}")
    assert "is damaged" in error_message(prepare_log, ("log.csv", OTHER_LOG), catalogue=str(other.path))
