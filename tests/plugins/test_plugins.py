"""A separate package adds a learner, a backbone, a baseline, a format and a metric, and every command knows them.

The package in offrec_example/ is installed by pip into a temporary folder that only the processes of these tests see.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parent / "offrec_example"
# Runs several commands in one process, because importing torch takes longer than any of them.
DRIVER = """
import contextlib, io, json, sys
from offrec import cli
results = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, err, code = ["offrec", *words], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as error:
            code = error.code or 0
    results.append({"code": code, "out": " ".join(out.getvalue().split()), "err": err.getvalue()})
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("target")
    shutil.copytree(PACKAGE, source)  # the build writes into the source folder
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Path:
    """A dataset in the plug-in's format, and a run with the plug-in's learner and backbone."""
    folder = tmp_path_factory.mktemp("work")
    rows = [
        f"{user},{(user + step) % 9},3.5,{1700000000 + 1000 * user + step}" for user in range(60) for step in range(4)
    ]
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")
    names = ["--algorithm", "smoothed", "--backbone", "mean"]
    prepare, train = run(
        installed,
        ["prepare", str(folder / "ratings.csv"), "--format", "movielens", "--out", str(folder / "data")],
        ["train", str(folder / "data"), "--out", str(folder / "run"), *names, *FAST],
    )
    assert (prepare["code"], train["code"]) == (0, 0), prepare["err"] + train["err"]
    assert "smoothed/mean on data" in train["err"]
    return folder


FAST = ["--set", "training.epochs=1", "--set", "network.width=8", "--set", "network.history=5"]


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.strip(os.pathsep)}


def run(installed: Path | None, *commands: list[str]) -> list[dict[str, Any]]:
    """Run commands in a new process, with or without the plug-in; return exit code and output of each."""
    folders = [] if installed is None else [installed]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        env=environment(*folders),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def test_commands_for_one_run_know_the_plug_in(work: Path, installed: Path) -> None:
    data, trained = str(work / "data"), str(work / "run")
    help_text, evaluated, baseline, recommended, table, exported, options, names, wrong = run(
        installed,
        ["train", "--help"],  # first: the commands are imported once, and with their help only if it is shown
        ["evaluate", trained, "--json"],
        ["evaluate", "--baselines", "by-number", "--dataset", data],
        ["recommend", trained, "--history", "1,2", "-k", "3"],
        ["recommend", trained, "--input", str(work / "ratings.csv"), "--format", "movielens", "--out",
         str(work / "lists.csv"), "-k", "3"],
        ["export", trained, "--out", str(work / "model.onnx")],
        ["options", "--algorithm", "smoothed", "--preset", "paper"],
        ["options", "--names"],
        ["train", data, "--out", str(work / "x"), "--algorithm", "smothed"],
    )  # fmt: skip
    assert {"First@5", "NDCG@10"} <= json.loads(evaluated["out"])["policies"][0]["metrics"]["all"].keys()
    assert baseline["code"] == 0, baseline["err"]
    assert "First@5" in baseline["out"]
    assert recommended["code"] == 0, recommended["err"]
    assert table["code"] == 0, table["err"]
    assert exported["code"] == 2, "the backbone has no ONNX writer"
    assert "Traceback" not in exported["err"]
    assert "smoothing = 0.0" in options["out"]
    assert "Weight of the log-partition function. At least 0 and below 1." in options["out"].replace("# ", "")
    for name in ("smoothed", "mean", "by-number", "movielens", "First"):
        assert name in names["out"]
    assert "smoothed" in help_text["out"]
    assert "did you mean smoothed?" in wrong["err"]


def test_studies_and_reports_know_the_plug_in(work: Path, installed: Path) -> None:
    """Studies train in worker processes of their own."""
    data, names = str(work / "data"), ["--algorithm", "smoothed", "--backbone", "mean"]
    compared, swept, tuned, report = run(
        installed,
        ["compare", data, "--out", str(work / "study"), "--algorithms", "sl,smoothed", "--backbones", "mean",
         "--baselines", "recent,by-number", "--seeds", "1", "--jobs", "2", *FAST],
        ["sweep", data, "--out", str(work / "sweep"), *names, "--vary", "algorithm.smoothing=0.1,0.2", "--seeds", "1",
         *FAST],
        ["tune", data, "--out", str(work / "tune"), *names, "--trials", "2", *FAST],
        ["report", str(work / "study"), "--out", str(work / "report.md"), "--out", str(work / "report.html")],
    )  # fmt: skip
    for done in (compared, swept, tuned, report):
        assert done["code"] == 0, done["err"]
    text = (work / "report.md").read_text()
    assert "Smoothed SL" in text
    assert "Running mean" in text
    assert "Items by number" in text
    assert ", other backbones" in text, "a backbone of another family is not listed as recurrent"
    assert "algorithm.smoothing" in tuned["err"], "the search space is the record's"
    for study in ("study", "sweep", "tune"):
        commands = [
            ["report", str(work / study), "--out", str(work / f"{name}.md")]
            for name in (f"{study}-with", f"{study}-without")
        ]
        assert [run(one, command)[0]["code"] for one, command in zip((installed, None), commands, strict=True)] == [
            0,
            0,
        ]
        assert (work / f"{study}-without.md").read_text() == (work / f"{study}-with.md").read_text()


def test_a_server_loads_the_plug_in(work: Path, installed: Path) -> None:
    command = [sys.executable, "-m", "offrec", "serve", str(work / "run"), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, env=environment(installed), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "http://" in line:
                break
        # Not SIGINT: it is ignored until the server sets its handler, if the tests run in the background of a shell.
        process.terminate()
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert "http://" in lines[-1], "".join(lines)


def test_a_run_without_its_plug_in_gets_one_sentence(work: Path) -> None:
    (done,) = run(None, ["evaluate", str(work / "run")])
    assert done["code"] == 2
    assert "needs the algorithm 'smoothed' of offrec-example 1.2, which is not installed" in done["err"]


def test_a_broken_plug_in_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text("import a_module_that_does_not_exist\n")
    info = tmp_path / "broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[offrec.plugins]\nbroken = broken_plugin\n")
    (done,) = run(tmp_path, ["options", "--names"])
    assert done["code"] == 2
    assert "The plug-in 'broken' (broken 0.1) cannot be loaded: ModuleNotFoundError" in done["err"]
