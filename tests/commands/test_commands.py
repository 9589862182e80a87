"""The commands as typed: output, exit codes and error messages."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typed_commands import offrec, offrec_here, sentence

from offrec import cli

FAST = ["--set", "training.epochs=2", "--set", "network.width=16", "--set", "network.history=10"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with string ids, its dataset and a run."""
    folder = tmp_path_factory.mktemp("work")
    rows = ["visit,sku,when,what"]
    for visit in range(80):
        for step in range(2 + visit % 5):
            what = "cart" if step == 3 else "view"
            rows.append(f"v{visit},sku-{(visit + step) % 9:03d},{1700000000 + visit * 1000 + step},{what}")
    (folder / "log.csv").write_text("\n".join(rows) + "\n")
    columns = ["--session", "visit", "--item", "sku", "--time", "when", "--behaviour", "what"]
    offrec("prepare", folder / "log.csv", *columns, "--out", folder / "data")
    offrec("train", folder / "data", "--out", folder / "run", *FAST)
    return folder


def test_prepare_prints_statistics(work: Path) -> None:
    done = offrec_here("prepare", work / "log.csv", "--session", "visit", "--item", "sku", "--filter", "item=2",
                       "--filter", "session=3", "--out", work / "again", "--json")  # fmt: skip
    meta = json.loads(done.stdout)
    assert meta["protocol"]["filters"] == ["item=2", "session=3"]
    assert meta["counts"]["sessions"] == 64
    done = offrec_here(
        "prepare", work / "log.csv", "--session", "visit", "--item", "sku", "--out", work / "again", "--force"
    )
    assert "share of repeats" in done.stdout
    assert "sessions" in done.stdout


def test_evaluate_a_run_and_a_baseline(work: Path) -> None:
    tree = json.loads(offrec_here("evaluate", work / "run", "--json").stdout)
    (evaluation,) = tree["policies"]
    meta = json.loads((work / "data/dataset.json").read_text())
    assert tree["fingerprint"] == meta["fingerprint"]
    assert {"HR@5", "NDCG@10", "MRR@20", "coverage@5", "events"} <= evaluation["metrics"]["all"].keys()
    assert (
        evaluation["metrics"]["view"]["events"] + evaluation["metrics"]["cart"]["events"]
        == evaluation["metrics"]["all"]["events"]
    )
    fewer = json.loads(offrec_here("evaluate", work / "run", "--json", "--score-first", "False").stdout)
    assert fewer["fingerprint"] != tree["fingerprint"]
    (scored,) = fewer["policies"]
    assert scored["metrics"]["all"]["events"] == evaluation["metrics"]["all"]["events"] - 8
    done = offrec_here("evaluate", "--baselines", "all", "--dataset", work / "data", "--split", "validation")
    for name in ("popular", "recent", "markov", "item-neighbours", "sknn", "vsknn"):
        assert name in done.stdout
    assert "Left out: pick-rate, which needs served lists; " in done.stderr
    assert "No policy was given; pass run folders, or --baselines" in sentence(offrec_here("evaluate", code=2))
    blank = offrec_here("evaluate", "--baselines", " ", "--dataset", work / "data", code=2)
    assert "No policy was given; pass run folders, or --baselines" in sentence(blank)
    assert "needs --dataset" in sentence(offrec_here("evaluate", "--baselines", "popular", code=2))


def test_evaluate_compares_runs_and_baselines_on_a_later_log(work: Path, tmp_path: Path) -> None:
    """The later log has an item more, in one of its 51 events, and another catalogue."""
    rows = [(f"later{number}", f"sku-00{item}") for number in range(10) for item in (0, 1, 2, 3, 1)]
    lines = ["visit,sku", *(f"{visit},{item}" for visit, item in rows), "later1,new"]
    (tmp_path / "later.csv").write_text("\n".join(lines) + "\n")
    columns = ["--session", "visit", "--item", "sku"]
    offrec_here("prepare", tmp_path / "later.csv", *columns, "--out", tmp_path / "later")
    words = ["evaluate", work / "run", "--baselines", "recent,popular", "--dataset", tmp_path / "later"]
    done = offrec_here(*words, "--split", "all")
    assert "all sessions of later" in done.stdout
    assert "scored events (2.0%); they count as misses" in done.stdout
    tree = json.loads(offrec_here(*words, "--split", "all", "--exclude-seen", "--skip-recent", "2", "--json").stdout)
    assert [one["name"] for one in tree["policies"]] == [str(work / "run"), "recent", "popular"]
    assert all(one["unknown_events"] == 1 for one in tree["policies"])
    assert all(one["metrics"]["all"]["events"] == 51 for one in tree["policies"])
    assert tree["protocol"]["exclude_seen"] is True
    assert tree["protocol"]["skip_recent"] == 2
    plain = json.loads(offrec_here(*words, "--split", "all", "--json").stdout)
    assert plain["fingerprint"] != tree["fingerprint"]
    refused = offrec_here("evaluate", work / "run", "--split", "all", code=2)
    assert "--split all would evaluate" in sentence(refused)


def test_recommend_prints_the_ids_of_the_log(work: Path) -> None:
    answer = json.loads(
        offrec_here("recommend", work / "run", "--history", "sku-001,sku-002,nope", "-k", "4", "--json").stdout
    )
    items = [row["item"] for row in answer["recommendations"]]
    assert len(items) == 4
    assert all(re.fullmatch(r"sku-00\d", item) for item in items)
    assert answer["unknown"] == 1
    assert 0 < sum(row["probability"] for row in answer["recommendations"]) <= 1
    done = offrec_here("recommend", work / "run", "--history", "sku-001,nope", "-k", "3")
    assert "1 item of the history is not in the catalogue" in done.stderr
    assert "sku-00" in done.stdout
    seen = offrec_here("recommend", work / "run", "--history", "sku-001,sku-002", "--exclude-seen", "--exclude",
                       "sku-003", "-k", "9", "--json")  # fmt: skip
    left = {row["item"] for row in json.loads(seen.stdout)["recommendations"]}
    assert left == {f"sku-00{n}" for n in (0, 4, 5, 6, 7, 8)}
    few = offrec_here("recommend", work / "run", "--candidates", "sku-007,sku-004,nope", "-k", "5", "--json")
    assert {row["item"] for row in json.loads(few.stdout)["recommendations"]} == {"sku-004", "sku-007"}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in this process, which is faster, and return the sentence with which it is refused."""

    def run(*words: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["offrec", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 2
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("offrec: "))
        return line

    return run


def test_bad_input_gets_one_sentence(work: Path, refused: Callable[..., str]) -> None:
    assert refused("trian", work / "data").startswith("offrec: There is no command 'trian'; did you mean train?")
    assert "does not exist" in refused("evaluate", work / "nowhere")
    assert "is not a dataset folder" in sentence(offrec("train", work, "--out", work / "x", code=2))
    assert "exists; choose another --out" in refused("train", work / "data", "--out", work / "run")
    wrong = refused("train", work / "data", "--out", work / "x", "--set", "training.epoch=3")
    assert "no option 'training.epoch'; did you mean training.epochs? `offrec options --algorithm sl` lists" in wrong
    assert "training.epochs must be a whole number; got 'many'" in refused(
        "train", work / "data", "--out", work / "x", "--set", "training.epochs=many"
    )
    assert "not of the form key=value" in refused(
        "train", work / "data", "--out", work / "x", "--set", "training.epochs"
    )
    assert "no algorithm 'magic'; the known ones are sl" in refused(
        "train", work / "data", "--out", work / "x", "--algorithm", "magic"
    )
    assert "no backbone 'mlp'" in refused("train", work / "data", "--out", work / "x", "--backbone", "mlp")
    assert "cannot be used here" in refused("train", work / "data", "--out", work / "x", "--device", "abacus")
    assert "reward.buy is not a behaviour" in refused(
        "train", work / "data", "--out", work / "x", "--set", "reward.buy=1"
    )
    assert not (work / "x").exists(), "a refused run writes nothing"
    assert "is not a run" in refused("evaluate", work / "data")
    assert "99" in refused("recommend", work / "run", "-k", "99")
    assert "contains no item of the catalogue" in refused("recommend", work / "run", "--candidates", "nope", "-k", "2")
    assert "exists" in refused(
        "prepare", work / "log.csv", "--item", "sku", "--session", "visit", "--out", work / "data"
    )
    (work / "bad.toml").write_text("[training\n")
    assert "is not a TOML file" in refused("train", work / "data", "--out", work / "x", "--config", work / "bad.toml")


def test_set_and_flags_override_the_toml_file(work: Path) -> None:
    (work / "run.toml").write_text('preset = "paper"\n[training]\nepochs = 1\nbatch_size = 64\n[network]\nwidth = 8\n')
    offrec_here("train", work / "data", "--out", work / "toml", "--config", work / "run.toml", "--backbone", "cfn",
           "--set", "training.batch_size=32", "--seed", "5")  # fmt: skip
    options = json.loads((work / "toml/run.json").read_text())["options"]
    assert options["preset"] == "paper"
    assert options["training.epochs"] == 1
    assert options["training.batch_size"] == 32
    assert options["network.width"] == 8
    assert options["network.backbone"] == "cfn"
    assert options["network.tied"] is False
    assert options["seed"] == 5
    again = (work / "toml/run.toml").read_text().replace('/toml"', '/repeated"')
    (work / "repeat.toml").write_text(again)
    subprocess.run([sys.executable, "-m", "offrec.runs", str(work / "repeat.toml")], check=True, capture_output=True)
    assert (work / "repeated/metrics.jsonl").read_text() == (work / "toml/metrics.jsonl").read_text()


def test_several_seeds_train_concurrently(work: Path, refused: Callable[..., str]) -> None:
    done = offrec("train", work / "data", "--out", work / "many", "--seeds", "3,0", *FAST)
    assert "memory of the 2 concurrent runs" in done.stderr
    assert "seed-3  epoch   1" in done.stderr
    offrec("train", work / "data", "--out", work / "three", "--seed", "3", *FAST)
    assert (work / "many/seed-3/metrics.jsonl").read_text() == (work / "three/metrics.jsonl").read_text()
    again = offrec("train", work / "data", "--out", work / "many", "--seeds", "0,3", *FAST, "--resume")
    assert "already trained" in again.stderr
    for wrong in ("1,1", "a", ""):
        said = refused("train", work / "data", "--out", work / "no", "--seeds", wrong)
        assert "--seeds must be distinct integers" in said


def test_the_python_example_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    items = [355908, 456792, *range(1, 8)]
    rows = [f"{n * 1000},{n // 4},view,{items[(n // 4 + n % 4) % 9]}," for n in range(400)]
    (tmp_path / "events.csv").write_text("timestamp,visitorid,event,itemid,transactionid\n" + "\n".join(rows) + "\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ndcg, recommended = done.stdout.splitlines()
    assert 0 < float(ndcg) <= 1
    assert set(json.loads(recommended)) < set(items)


def test_options_prints_values_and_help() -> None:
    listed = offrec_here("options", "--preset", "paper", "--backbone", "cfn").stdout
    assert "[training]" in listed
    assert "batch_size = 256" in listed
    assert 'backbone = "cfn"' in listed
    learner = offrec_here("options", "--algorithm", "dc").stdout
    assert "Above 0.\nalpha = 0.02" in learner
    assert "alpha = 0.02" in learner
    assert "[critic]" in learner
    assert "no algorithm 'magic'" in sentence(offrec_here("options", "--algorithm", "magic", code=2))


def test_train_with_a_named_learner(work: Path) -> None:
    done = offrec_here("train", work / "data", "--out", work / "dc", "--algorithm", "dc", "--select", "reward", *FAST)
    assert "q_logged" in done.stderr
    options = json.loads((work / "dc/run.json").read_text())["options"]
    assert (options["algorithm.name"], options["select"], options["gamma"]) == ("dc", "reward", 0.9)
    answer = json.loads(offrec_here("recommend", work / "dc", "--history", "sku-001", "-k", "2", "--json").stdout)
    assert all("probability" in row for row in answer["recommendations"])
    listed = " ".join(offrec_here("train", "--help").stdout.split())
    assert all(name in listed for name in ("sl+dqn", "sl+pg", "sdac", "dc, re"))


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "recommend", "options", "demo"])
def test_every_command_has_help(command: str) -> None:
    text = offrec_here(command, "--help").stdout
    assert len(text.splitlines()) > 8


def test_ctrl_c_saves_the_run_and_resume_continues_it(work: Path) -> None:
    words = ["train", work / "data", "--out", work / "stopped", "--set", "training.epochs=100000", "--set",
             "training.patience=100000", "--set", "training.decay=1", "--set", "network.width=16"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "offrec", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics = work / "stopped/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Stopped in epoch" in errors
    assert "Traceback" not in errors
    assert (work / "stopped/last.safetensors").exists()
    before = len(metrics.read_text().splitlines())
    process = subprocess.Popen(
        [sys.executable, "-m", "offrec", *map(str, words), "--resume"], stderr=subprocess.PIPE, text=True
    )
    while len(metrics.read_text().splitlines()) <= before and time.monotonic() < deadline + 60:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    epochs = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert epochs == list(range(1, len(epochs) + 1))
    assert len(epochs) > before


def test_version() -> None:
    assert re.fullmatch(r"offrec \d+\.\d+\.\d+\S*\n", offrec("--version").stdout)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--epochs", "3"], "no flag --epochs; did you mean --set training.epochs=3?"),
        (["--learning-rate=0.1"], "did you mean --set training.learning_rate=0.1?"),
        (["--algoritm", "dc"], "no flag --algoritm; did you mean --algorithm?"),
        (["--alpha", "1", "--algorithm", "dc"], "did you mean --set algorithm.alpha=1?"),
        (["--xyzzy"], "no flag --xyzzy; `offrec train --help` lists all flags"),
        (["more"], "Unexpected argument 'more'"),
    ],
)
def test_an_unknown_flag_gets_a_hint(refused: Callable[..., str], words: list[str], hint: str) -> None:
    assert hint in refused("train", "data", "--out", "x", *words)


def test_a_flag_that_contradicts_set_is_refused(work: Path, refused: Callable[..., str]) -> None:
    words = ["train", work / "data", "--out", work / "x", "--algorithm", "dqn", "--set", "algorithm.name=sl"]
    assert "--algorithm is dqn, but algorithm.name is set to sl" in refused(*words)
    assert not (work / "x").exists()


def test_train_says_how_it_ended(work: Path) -> None:
    words = ["--set", "training.epochs=30", "--set", "training.patience=1", "--set", "training.warmup=0"]
    margin = ["--set", "training.margin=10", "--set", "network.width=8"]  # no epoch is better by so much
    done = offrec_here("train", work / "data", "--out", work / "early", *words, *margin)
    assert re.search(r"Trained: 2 of 30 epochs, stopped early; epoch [12] is best\.", done.stderr)


def test_ids_and_behaviours_are_printed_as_they_are(tmp_path: Path) -> None:
    """Neither rich's markup nor control characters are interpreted."""
    rows = [f"{n // 3},[/sku{n % 3}],{n},[red]view" for n in range(90)] + ["30,\x1b[31msku,90,[red]view"]
    (tmp_path / "log.csv").write_text("session,item,time,behaviour\n" + "\n".join(rows) + "\n")
    prepared = offrec_here("prepare", tmp_path / "log.csv", "--out", tmp_path / "data")
    assert "[red]view" in prepared.stdout
    evaluated = offrec_here("evaluate", "--baselines", "recent", "--dataset", tmp_path / "data")
    assert "[red]view" in evaluated.stdout
    reward = ["--set", "reward.[red]view=1", "--set", "training.epochs=1", "--set", "network.width=8"]
    offrec_here("train", tmp_path / "data", "--out", tmp_path / "run", *reward)
    done = offrec_here("recommend", tmp_path / "run", "--history", "[/sku1]", "-k", "4")
    assert all(f"[/sku{n}]" in done.stdout for n in range(3))
    assert r"\x1b[31msku" in done.stdout
    assert "\x1b[31m" not in done.stdout
