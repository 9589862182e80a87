"""Limits on files that somebody else may have written: sizes, nesting, and what a compressed file unpacks to."""

import ast
import gzip
import io
import json
import os
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from small_logs import Prepare, error_message

from offrec.data import json_files, sources
from offrec.data.json_files import parse_json, parse_toml, read_json, read_toml, write_json
from offrec.data.schema import Anything, Table, Text, Whole
from offrec.errors import InputError
from offrec.shop import Shop
from offrec.shop.worlds import WORLDS

SOURCE = Path(json_files.__file__).parent.parent
ROWS = b"session,item\n" + b"".join(b"%d,%d\n" % (n // 3, n % 4) for n in range(300))


def packed(data: bytes, how: str) -> bytes:
    if how == "gz":
        return gzip.compress(data)
    if how == "zst":
        return zstandard.ZstdCompressor().compress(data)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", data)
    return file.getvalue()


@pytest.mark.parametrize("how", ["gz", "zst", "zip"])
def test_a_file_that_unpacks_to_too_much_is_refused(
    prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sources, "UNPACKED_BYTES", 100_000)
    monkeypatch.setattr(sources, "UNPACKED_RATIO", 20)
    assert len(prepare_log((f"log.csv.{how}", packed(ROWS, how)), out="good").split("train")) == 80
    bomb = packed(ROWS + b"1,1\n" * 1_000_000, how)
    assert len(bomb) < 20_000
    message = error_message(prepare_log, (f"bomb.csv.{how}", bomb))
    assert "to more than" in message
    assert message.endswith("expected at most 20 times its size: unpack the file and check its content.")


@pytest.mark.parametrize("how", ["gz", "zst", "zip"])
def test_a_row_that_does_not_end_is_refused_before_it_fills_the_memory(
    prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 1 << 20)
    message = error_message(prepare_log, (f"log.csv.{how}", packed(ROWS + b"a" * (40 << 20), how)))
    assert "has a quote or a row that does not end" in message


def test_a_parquet_file_with_too_many_rows_is_refused(
    prepare_log: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offrec.data.parquet_tables.UNPACKED_BYTES", 100_000)
    monkeypatch.setattr("offrec.data.parquet_tables.UNPACKED_RATIO", 20)
    table = pl.DataFrame({"session": [1, 1, 2, 3], "item": [1, 2, 1, 2]})
    for copies, refused in ((1, False), (100_000, True)):
        file = io.BytesIO()
        pl.concat([table] * copies).write_parquet(file)
        if refused:
            message = error_message(prepare_log, ("log.parquet", file.getvalue()))
            assert message.startswith("log.parquet has 400,000 rows in ")
        else:
            prepare_log(("log.parquet", file.getvalue()), out="good")


def test_an_archive_with_too_many_files_is_refused(prepare_log: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_MEMBERS", 2)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(3):
            archive.writestr(f"{number}.csv", ROWS)
    assert "contains 3 files; expected at most 2" in error_message(prepare_log, ("log.zip", file.getvalue()))


def test_deep_nesting_in_a_table_is_refused(prepare_log: Prepare) -> None:
    line = b'{"session": 1, "item": ' + b"[" * 5000 + b"]" * 5000 + b"}\n"
    assert error_message(prepare_log, ("log.jsonl", line * 3))


def test_lines_after_a_quote_that_does_not_end_belong_to_its_row(tmp_path: Path) -> None:
    data = b'a,b\n"c\nd",e\n\n"f\ng\nh\n'
    (tmp_path / "log.csv").write_bytes(data)
    block = sources.Block(sources.Source(tmp_path / "log.csv"), 0, data)
    assert [block.line(row) for row in range(5)] == [1, 2, 5, 5, 5]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_tables_must_be_regular_files(prepare_log: Prepare, tmp_path: Path, kind: str) -> None:
    from offrec.data.prepare import prepare

    path = tmp_path / "log.csv"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is not a regular file; write its content to a file first"):
        prepare(path, out=tmp_path / "dataset")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 2000 + "1" + "}" * 2000, '{"a": 1, "a": 2}', "1" * 5000, "{", "", '{"a": 1} 2', "\x00"],
)
def test_json_that_is_too_deep_or_not_valid_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000 + "]" * 3000, "a.b." * 3000 + "c = 1", "a = 1\na = 2", "a"])
def test_toml_that_is_too_deep_or_not_valid_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_toml(text)


def test_json_and_toml_files_must_be_small_and_regular(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(" " * (16 << 20) + "{}")
    with pytest.raises(InputError, match="is damaged: it is larger than 16,777,216 bytes; ask"):
        read_json(path, Table(), advice="ask")
    with pytest.raises(InputError, match=r"is not a TOML file \(it is larger than 16,777,216 bytes\); correct it"):
        read_toml(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is damaged: it is not a regular file; ask"):
        read_json(path, Table(), advice="ask")
    with pytest.raises(InputError, match="it is not a regular file"):
        read_toml(path)
    with pytest.raises(InputError, match="it is not a regular file"):
        read_toml(Path("/dev/zero"))


def test_a_sealed_file_keeps_its_checksum_when_it_is_formatted_again(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.json", Table({"name": Text(), "n": Whole(0, 9)}, others=Anything())
    content = {"name": "é\udc80", "n": 3, "x": [0.1, 1e300, None, {"2": True}]}
    write_json(path, content)
    assert read_json(path, schema, advice="ask") == content
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(stored.items()))))
    assert read_json(path, schema, advice="ask") == content
    path.write_text(json.dumps(stored | {"n": 4}))
    with pytest.raises(InputError, match="its checksum does not match"):
        read_json(path, schema, advice="ask")
    write_json(path, content | {"n": 10})
    with pytest.raises(InputError, match="n must be a whole number from 0 to 9; got 10; ask"):
        read_json(path, schema, advice="ask")


def test_no_other_module_parses_json_or_toml() -> None:
    parsers = {"load", "loads", "JSONDecoder", "raw_decode"}
    wrong = []
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "data" / "json_files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_call and node.value.id in ("json", "tomllib") and node.attr in parsers:  # type: ignore[attr-defined]
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")  # type: ignore[attr-defined]
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None)]
                imports_parser = getattr(node, "module", None) == "json" and parsers & set(names)
                if {"tomllib", "pickle"} & set(names) or imports_parser:
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not wrong


@pytest.mark.parametrize("changes", [{"items": 10**9}, {"items": -1}, {"k": 2**40}, {"zipf": "x"}, {"choice": "x"}])
def test_impossible_shops_are_refused_before_they_are_built(changes: dict[str, Any]) -> None:
    knobs = asdict(WORLDS["demo"])
    with pytest.raises(InputError, match="The shop of the log is not possible"):
        Shop.from_meta({"world": "demo", "seed": 0, "k": 5, "knobs": knobs | changes})


@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_the_description_of_a_shop_is_accepted(name: str) -> None:
    assert Shop.from_meta(json.loads(json.dumps(Shop.open(name).as_json()))).world == WORLDS[name]
