"""The limit on the number of ids counts ids, not commas."""

import json
import time

import pytest

from offrec.data.id_files import parse_ids


def test_commas_inside_ids_do_not_count_as_ids() -> None:
    ids = ["a,b,c", 'say "x,y"', "back\\,\\", "é,,,"]
    assert parse_ids(json.dumps(ids).encode(), is_json=True, limit=4) == ids
    with pytest.raises(ValueError, match="it has more than 3 item ids"):
        parse_ids(json.dumps(ids).encode(), is_json=True, limit=3)


def test_too_many_ids_are_refused_before_they_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offrec.data.id_files.parse_json", pytest.fail)
    with pytest.raises(ValueError, match="it has more than 4 item ids"):
        parse_ids(b'["a,b","c",1,2,3,4]', is_json=True, limit=4)


def test_strings_without_an_end_take_linear_time() -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match="Unterminated string"):
        parse_ids(b'["' + b'\\",' * 20_000, is_json=True, limit=4)
    assert time.process_time() - start < 2  # 0.001 s; with a required end of the string, 13 s
