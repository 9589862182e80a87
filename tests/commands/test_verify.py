"""`offrec verify` names every damaged file of a folder."""

from pathlib import Path

import pytest

from made_studies import made_log, made_study
from offrec.commands.verify import Verify, verify
from offrec.console import Console
from offrec.data.line_checksums import seal_end, seal_record
from offrec.errors import InputError, RunError
from offrec.runs.train import train
from offrec.serving.export import export_onnx
from offrec.serving.item_lists import ItemLists
from small_datasets import write_dataset

SESSIONS = [[0, 1, 2], [1, 2, 3], [2, 3], [3, 0, 1], [0, 2], [1, 3]]


def flip(path: Path, position: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 2
    path.write_bytes(content)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    write_dataset(folder, SESSIONS * 4, splits=(20, 2, 2)).path.rename(folder / "data")
    settings = {"network.width": 8, "network.history": 5, "training.epochs": 1}
    train(folder / "data", folder / "run", settings=settings, device="cpu", console=Console(quiet=True))
    made_study(folder / "study", [made_log()], {"sl": 0.5, "recent": 0.3}, earned={"sl": 1.0}, seeds=2, sessions=30)
    export_onnx(folder / "run", folder / "model.onnx")
    (folder / "log").mkdir()
    lines = [seal_record({"kind": "event", "time": n, "item": 5, "behaviour": "click"}) for n in range(9)]
    (folder / "log" / "decisions-1-1-0.jsonl").write_bytes(b"".join(lines) + seal_end(len(lines)))
    ItemLists(folder / "held").put("stock", b"[1, 2]", is_json=True)
    return folder


@pytest.mark.parametrize(
    ("path", "kind", "files"),
    [
        ("data", "dataset", ["items.npy", "item_ids.npy"]),
        ("run", "run", ["best.safetensors", "last.safetensors"]),
        ("run", "run", ["item_ids.npy", "metrics.jsonl"]),
        ("study", "study", ["results/yoochoose.sl.gru.0.ranks.npy", "results/yoochoose.recent.0.json"]),
        ("study", "study", ["results/yoochoose.sl.gru.1.rewards.npy"]),
        ("log", "decision log", ["decisions-1-1-0.jsonl"]),
        ("held", "lists", ["stock.list"]),
        ("model.onnx", "exported model", ["../model.onnx", "../model.ids.json"]),
        ("model.onnx", "exported model", ["../model.json"]),
    ],
)
def test_every_damaged_file_is_named(
    work: Path, capsys: pytest.CaptureFixture[str], path: str, kind: str, files: list[str]
) -> None:
    assert verify(work / path).problems == []
    assert verify(work / path).kind == kind
    changed = [(work / path / name).resolve() if "../" not in name else work / name[3:] for name in files]
    for file in changed:
        flip(file)
    try:
        problems = verify(work / path).problems
        assert len(problems) == len(files)
        assert all(any(file.name in problem for problem in problems) for file in changed)
        with pytest.raises(RunError, match=f"Problems found: {len(files)}; restore"):
            Verify((work / path,)).run()
    finally:
        for file in changed:
            flip(file)
    printed = capsys.readouterr().out
    assert f"{work / path}: {kind}, {len(files)} wrong" in printed
    Verify((work / path,)).run()
    assert capsys.readouterr().out == f"{work / path}: {kind}, intact\n"


def test_a_decision_log_that_was_cut_between_two_lines_is_named(work: Path) -> None:
    path = work / "log" / "decisions-1-1-0.jsonl"
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    for cut, problem in ((lines[:4], "not closed"), ([*lines[:4], *lines[5:]], "1 records are missing or repeated")):
        path.write_bytes(b"".join(cut))
        (found,) = verify(work / "log").problems
        assert problem in found
    path.rename(path.with_name("decisions-1-1-0.jsonl.open"))
    path.with_name("decisions-1-1-0.jsonl.open").write_bytes(b"".join(lines[:4]))  # a server is writing it
    assert verify(work / "log").problems == []
    path.with_name("decisions-1-1-0.jsonl.open").rename(path)
    path.write_bytes(content)


def test_all_files_of_a_run_have_the_same_permissions(work: Path) -> None:
    assert len({path.stat().st_mode for path in (work / "run").iterdir()}) == 1


def test_other_folders_are_refused(work: Path) -> None:
    with pytest.raises(InputError, match="was not written by offrec; expected the folder of a dataset"):
        verify(work)
