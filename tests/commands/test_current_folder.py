"""Every writing command with `--out .`, `--out ..` and `--out /`: it works, or one sentence refuses it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from offrec import cli
from offrec.console import Console
from offrec.runs.train import train

TABLE = "session,item\na,1\na,2\na,3\nb,1\nb,3\nc,2\nc,3\nd,1\nd,2\n"
FAST = ["--set", "training.epochs=1", "--set", "network.width=8", "--device", "cpu"]
COMMANDS = {
    "prepare": ["prepare", "BASE/log.csv"],
    "prepare --force": ["prepare", "BASE/log.csv", "--force"],
    "train": ["train", "BASE/data", *FAST],
    "train --force": ["train", "BASE/data", "--force", *FAST],
    "train --seeds": ["train", "BASE/data", "--seeds", "0", *FAST],
    "shop": ["shop", "--world", "tiny", "--sessions", "10"],
    "recommend": ["recommend", "BASE/run", "--input", "BASE/log.csv", "-k", "1", "--device", "cpu"],
    "export": ["export", "BASE/run"],
    "compare": ["compare", "BASE/data", "--algorithms", "sl", "--baselines", "none", "--plan-only"],
    "sweep": ["sweep", "BASE/data", "--algorithm", "sl", "--vary", "training.epochs=1", "--plan-only"],
    "tune": ["tune", "BASE/data", "--algorithm", "sl", "--trials", "1"],
    "rounds": ["rounds", "--world", "tiny", "--rounds", "1"],
}
OUTS = {".": "is the current folder", "..": "contains the current folder", "/": "is the root of the file system"}
OTHER_REASONS = ("--out must end in", "is not empty and not a study folder", "is not a folder of rounds")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from offrec.data.prepare import prepare

    base = tmp_path_factory.mktemp("base")
    (base / "log.csv").write_text(TABLE)
    prepare(base / "log.csv", out=base / "data")
    settings = {"training.epochs": 1, "network.width": 8}
    train(base / "data", base / "run", settings=settings, device="cpu", console=Console(quiet=True))
    return base


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["offrec", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "out"),
    [
        (name, out)
        for name in COMMANDS
        for out in OUTS
        if (name, out) not in (("train --seeds", "/"), ("rounds", "."))  # they work: the folder is not replaced
    ],
)
def test_no_command_replaces_the_current_folder(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, out: str
) -> None:
    place = tmp_path / "parent" / "here"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    code, said = run([*(word.replace("BASE", str(base)) for word in COMMANDS[name]), "--out", out], monkeypatch, capsys)
    assert "Traceback" not in said
    assert "fault of offrec" not in said
    if name == "train --seeds":  # it writes seed-0 into the folder
        assert code == 0
    else:
        assert code == 2
        assert any(reason in said for reason in (OUTS[out], *OTHER_REASONS)), said
    assert place.is_dir()
    assert not list(place.glob(".*"))
    assert not list(place.parent.glob(".*"))


def test_a_run_can_be_resumed_in_its_own_folder(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert run(["train", f"{base}/data", "--out", f"{tmp_path}/run", *FAST], monkeypatch, capsys)[0] == 0
    monkeypatch.chdir(tmp_path / "run")
    code, said = run(["train", f"{base}/data", "--out", ".", "--resume", *FAST], monkeypatch, capsys)
    assert code == 0, said
    assert "is already trained" in said
    assert not list(tmp_path.glob(".*"))
