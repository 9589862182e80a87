"""Items numbered as another dataset has them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from small_logs import Prepare, refused, told
from test_decision_tables import EXPECTED, ROWS, as_csv, as_json_lines

HOME = "session,item\na,4\na,5\na,6\nb,7\nb,8\nc,9\nc,10\nd,5\n"


def test_a_log_takes_the_numbers_of_another(prepared: Prepare) -> None:
    home = prepared(("home.csv", HOME), out="home")
    dataset = prepared(("d.csv", as_csv(ROWS)), format="decisions", split="time", catalogue=str(home.path))
    assert dataset.vocabulary == home.vocabulary
    assert dataset.n_items == 7, "items that this log lacks stay"
    assert sorted(told(dataset)) == sorted(EXPECTED)
    assert np.load(dataset.path / "decision_items.npy").max() == 7, "padding is the number of items"
    assert dataset.vocabulary != prepared(("e.csv", HOME + "e,11\n"), out="other").vocabulary


def test_text_and_numbers_find_each_other(prepared: Prepare) -> None:
    home = prepared(("home.csv", HOME.replace("4", "shoe")), out="home")
    dataset = prepared(("d.jsonl", as_json_lines(ROWS)), format="decisions", split="time", catalogue=str(home.path))
    assert dataset.vocabulary == home.vocabulary
    assert [item for session in told(dataset) for _, items, _, _ in session for item in items][:2] == ["5", "7"]


def test_strangers_are_left_out_and_counted(prepared: Prepare) -> None:
    home = prepared(("home.csv", HOME), out="home")
    log = "session,item\na,5\na,77\nb,6\nc,78\nd,9\nd,5\n"
    dataset = prepared(("log.csv", log), catalogue=str(home.path))
    assert dataset.meta["counts"] == {"sessions": 3, "events": 4, "items": 7}
    assert dataset.meta["steps"][1] == {"step": "drop items outside the catalogue", "sessions": 3, "events": 4}


def test_what_cannot_be_is_refused(prepared: Prepare, tmp_path: Path) -> None:
    home = prepared(("home.csv", HOME.replace("9", "90")), out="home")
    given: dict[str, Any] = {"format": "decisions", "catalogue": str(home.path)}
    sentence = refused(prepared, ("d.csv", as_csv(ROWS)), **given)
    assert re.match("A list offers an item that the catalogue of .* does not know, such as 9; give the run", sentence)
    assert "neither a dataset nor a run" in refused(prepared, ("log.csv", HOME), catalogue=str(tmp_path))
    (home.path / "dataset.json").write_text("{}")
    assert "is damaged" in refused(prepared, ("log.csv", HOME), catalogue=str(home.path))
