"""benchmarks/evidence.py and list_evidence.py: a changed default makes a results file stale."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from offrec.algorithms import LEARNERS
from offrec.shop import WORLDS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("evidence")
    for name in ("evidence", "list_evidence"):
        sys.modules.pop(name, None)


@pytest.fixture
def listing(evidence: ModuleType) -> ModuleType:
    return __import__("list_evidence")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("results", "docs/evidence"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/evidence/shops.md").write_text("Raw: [shops.json](../../results/shops.json).\n")
    (tmp_path / "docs/evidence/index.md").write_text("`old.json`\n")
    return tmp_path


@pytest.fixture
def changed_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    record = LEARNERS["dc"]
    presets = {**record.presets, "strong": {**record.presets["strong"], "algorithm.alpha": 0.123}}
    monkeypatch.setitem(LEARNERS._records, "dc", replace(record, presets=presets))


def statuses(listing: ModuleType, root: Path) -> dict[str, str]:
    return {one.name: one.status for one in listing.list_results(root)}


def test_a_changed_default_makes_a_file_stale(
    evidence: ModuleType, listing: ModuleType, root: Path, request: pytest.FixtureRequest
) -> None:
    path = root / "results/shops.json"
    evidence.write_results(path, [{"reward": 2.0}], {"dc": evidence.learner(algorithm="dc")}, command="python x")
    assert statuses(listing, root) == {"shops.json": "current"}
    old = json.loads(path.read_text())["evidence"][0]
    request.getfixturevalue("changed_alpha")
    (status,) = listing.list_results(root)
    before = old["options"]["dc"]["resolved"]["algorithm.alpha"]
    assert status.status == "stale"
    assert status.changes == (f"dc: algorithm.alpha {before} → 0.123",)
    assert status.pages == ("docs/evidence/shops.md",)
    assert evidence.options_hash({"dc": evidence.learner(algorithm="dc")}) != old["hash"]


def test_an_explicit_setting_does_not_depend_on_its_default(
    evidence: ModuleType, listing: ModuleType, root: Path, request: pytest.FixtureRequest
) -> None:
    option = evidence.learner({"algorithm.name": "dc", "algorithm.alpha": 0.5})
    evidence.write_results(root / "results/shops.json", [], {"dc": option}, command="python x")
    request.getfixturevalue("changed_alpha")
    assert statuses(listing, root) == {"shops.json": "current"}


def test_a_changed_world_and_a_removed_learner_are_named(
    evidence: ModuleType, listing: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"demo": evidence.world("demo"), "dc": evidence.learner(algorithm="dc")}
    evidence.write_results(root / "results/shops.json", {"mean": 1.0}, options, command="python x")
    monkeypatch.setitem(WORLDS, "demo", replace(WORLDS["demo"], fatigue=9.0))
    # A copy without dc: an item that is deleted and put back would change the order of the learners for later tests.
    records = {name: record for name, record in LEARNERS._records.items() if name != "dc"}
    monkeypatch.setattr(LEARNERS, "_records", records)
    (status,) = listing.list_results(root)
    assert any(change.startswith("demo: fatigue ") and change.endswith("→ 9.0") for change in status.changes)
    assert any(change.startswith("dc: cannot be resolved any more") for change in status.changes)


def test_strict_fails_only_if_a_page_quotes_a_stale_file(
    evidence: ModuleType,
    listing: ModuleType,
    root: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(listing, "ROOT", root)
    monkeypatch.setattr(listing.list_results, "__defaults__", (root,))
    monkeypatch.setattr(sys, "argv", ["list_evidence.py", "--strict"])
    evidence.write_results(root / "results/old.json", [], {"dc": evidence.learner(algorithm="dc")}, command="python x")
    request.getfixturevalue("changed_alpha")
    assert listing.main() == 0  # stale, but only the index names it
    evidence.write_results(root / "results/shops.json", [], {"dc": evidence.learner(algorithm="dc")}, command="x")
    assert listing.main() == 0
    stamped = json.loads((root / "results/old.json").read_text())
    (root / "results/shops.json").write_text(json.dumps(stamped))
    assert listing.main() == 1
    assert "Stale and quoted: shops.json" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["list_evidence.py"])
    assert listing.main() == 0


def test_unstamped_files_state_a_recorded_commit(evidence: ModuleType, listing: ModuleType, root: Path) -> None:
    (root / "results/a.json").write_text('[{"reward": 1, "commit": "abc1234"}]')
    (root / "results/b.json").write_text("[]")
    (root / "results/README.md").write_text("| file | commit |\n|---|---|\n| `b.json` | 7654321 |\n")
    a, b = listing.list_results(root)
    assert (a.status, b.status) == ("unstamped", "unstamped")
    assert "commit abc1234 in the file" in a.note
    assert "commit 7654321 in results/README.md" in b.note


def test_results_are_read_as_they_were_written(evidence: ModuleType, tmp_path: Path) -> None:
    for payload in ([{"a": 1}, {"b": [1.5, None]}], [], {"rows": [1], "cores": 2}):
        evidence.write_results(tmp_path / "x.json", payload, {}, command="python x")
        assert evidence.read_results(tmp_path / "x.json") == payload
    with pytest.raises(ValueError, match="must not have"):
        evidence.write_results(tmp_path / "x.json", {"rows": []}, {})


def test_appended_rows_keep_the_stamps_of_the_earlier_ones(evidence: ModuleType, tmp_path: Path) -> None:
    path, rows = tmp_path / "x.json", [{"a": 1}]
    path.write_text(json.dumps(rows))  # as 0.1 wrote it
    for command in ("first", "second", "second"):
        rows = [*evidence.read_results(path), {"command": command}]
        evidence.write_results(path, rows, {}, command=command)
    assert [stamp["command"] for stamp in evidence.read_stamps(path)] == [None, "first", "second"]
    evidence.write_results(path, [{"a": 2}], {}, command="third")
    assert [stamp["command"] for stamp in evidence.read_stamps(path)] == ["third"]


def test_extended_results_keep_the_stamps_of_the_earlier_file(evidence: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    evidence.write_results(path, {"records": [1], "summary": 1.0}, {}, command="first")
    evidence.write_results(path, {"records": [1, 2], "summary": 1.5}, {}, command="second", extends=path)
    assert [stamp["command"] for stamp in evidence.read_stamps(path)] == ["first", "second"]


def test_a_picture_has_the_stamp_of_its_data(evidence: ModuleType, listing: ModuleType, root: Path) -> None:
    evidence.write_results(root / "results/shops.json", [], {"demo": evidence.world("demo")}, command="python x")
    (root / "results/shops.svg").write_text("<svg/>")
    (root / "results/table.csv.gz").write_bytes(b"\x1f\x8b\xff")
    evidence.write_stamp(root / "results/table.csv.gz", [root / "results/shops.json"])
    assert statuses(listing, root) == {"shops.json": "current", "shops.svg": "current", "table.csv.gz": "current"}


def test_every_file_in_results_has_a_status(listing: ModuleType) -> None:
    files = listing.list_results()
    assert files
    assert {one.status for one in files} <= {"current", "stale", "unstamped"}
