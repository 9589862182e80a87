"""Rounds of serving, logging and training: what is stored, what a repeated call does, and refusals."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offrec.rounds.run as rounds_module
from offrec.commands.rounds import Rounds
from offrec.commands.verify import verify
from offrec.console import Console
from offrec.data.dataset import Dataset
from offrec.data.json_files import write_json
from offrec.errors import InputError
from offrec.rounds import RoundsOptions, RoundsResults, parse_way, read_results, run_rounds
from offrec.rounds.logs import RoundLogs
from offrec.rounds.picture import draw_rounds
from offrec.rounds.tables import rounds_table
from offrec.runs.folder import read_run, run_id
from offrec.runs.user_model import policy_reads_log

SETTINGS = {
    "training.epochs": "1",
    "algorithm.types": "2",
    "algorithm.width": "2",
    "algorithm.candidates_per_type": "2",
}
OPTIONS = RoundsOptions(
    seed=3, sessions=60, rounds=2, explore=("never",), settings=SETTINGS, visitors=20, informed_visitors=5, device="cpu"
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds that never explore, then one round of a blend that was added later."""
    out = tmp_path_factory.mktemp("rounds") / "out"
    run_rounds(OPTIONS, out, QUIET)
    run_rounds(replace(OPTIONS, rounds=1, explore=("blend:0.5",)), out, QUIET)
    return out


def figures(results: RoundsResults) -> list[tuple[Any, ...]]:
    return [(one.explore, one.number, one.served, one.trained, one.lists) for one in results.rounds]


def test_every_round_has_its_log_its_dataset_and_its_run(folder: Path) -> None:
    results = read_results(folder)
    assert [(one.explore, one.number) for one in results.rounds] == [
        ("logging", 0), ("blend:0.5", 1), ("never", 1), ("never", 2),
    ]  # fmt: skip
    for one in results.rounds:
        home = folder / ("start" if one.number == 0 else one.explore.replace(":", "-")) / f"round-{one.number}"
        log = pl.read_parquet(home / "log/full.parquet")
        assert log["session"].min() == 60 * one.number
        assert log["session"].n_unique() == 60
        assert one.served.mean == pytest.approx(log["reward"].sum() / 60, rel=1e-5)
        assert one.lists == len(log)
        assert (log["propensity"].max() == 1) == (one.explore == "never")
        assert read_run(home / "run")["dataset"].endswith("data")
    assert results.informed is not None
    assert results.last("never").number == 2


def test_policies_continue_the_last_one_on_all_served_logs(folder: Path) -> None:
    homes = [folder / place for place in ("start/round-0", "never/round-1", "never/round-2")]
    runs = [read_run(home / "run") for home in homes]
    assert [run["start"] and run["start"]["run"] for run in runs] == [None, run_id(runs[0]), run_id(runs[1])]
    datasets = [Dataset.open(home / "data") for home in homes]
    assert [dataset.meta["counts"]["sessions"] for dataset in datasets] == [60, 60, 120]
    assert [policy_reads_log(dataset) for dataset in datasets] == [False, True, True]


def test_later_rounds_know_the_items_that_no_policy_shows(folder: Path) -> None:
    data = [Dataset.open(folder / place / "data") for place in ("start/round-0", "never/round-1", "never/round-2")]
    ids = [dataset.item_id_arrays["item_ids"] for dataset in data]
    assert data[1].decisions is not None
    assert len(np.unique(data[1].decisions.items)) < len(ids[0])  # so the log alone has a smaller catalogue
    for before, now in pairwise(ids):
        assert now[: len(before)].tolist() == before.tolist()


def test_no_round_starts_after_the_time_is_over(tmp_path: Path) -> None:
    results = run_rounds(replace(OPTIONS, informed_visitors=0), tmp_path / "out", QUIET, seconds=0.0)
    assert results.rounds == ()


def test_policies_can_be_fresh_and_train_on_all_logs(tmp_path: Path) -> None:
    options = replace(OPTIONS, rounds=1, train_on="all", warm_start=False, informed_visitors=0)
    run_rounds(options, tmp_path / "out", QUIET)
    assert not read_run(tmp_path / "out/never/round-1/run")["start"]
    data = Dataset.open(tmp_path / "out/never/round-1/data")
    assert data.meta["counts"]["sessions"] == 120
    assert data.meta["shop"]["seed"] == 3


def test_a_repeated_call_runs_nothing_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((rounds_module, "train"), (RoundLogs, "write"), (RoundLogs, "prepare")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("a finished round ran again"))
    results = run_rounds(replace(OPTIONS, explore=("blend:0.5", "never"), rounds=1), folder, QUIET)
    assert [(one.explore, one.number) for one in results.rounds] == [("logging", 0), ("blend:0.5", 1), ("never", 1)]


def test_a_killed_command_continues_with_the_same_results(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before and after each part of round 1, and every repetition continues."""
    out, options = tmp_path / "out", replace(OPTIONS, rounds=1)
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("never", "blend-0.5"))
    steps = ((RoundLogs, "write"), (RoundLogs, "prepare"), (RoundLogs, "read"))
    for owner, step in (*steps, (rounds_module, "train"), (rounds_module, "write_json")):
        original: Callable[..., Any] = getattr(owner, step)

        def before(*words: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

        def after(*words: Any, original: Callable[..., Any] = original, **options: Any) -> Any:
            original(*words, **options)
            raise KeyboardInterrupt

        for killed in (before, after):
            monkeypatch.setattr(owner, step, killed)
            with pytest.raises(KeyboardInterrupt):
                run_rounds(options, out, QUIET)
        monkeypatch.setattr(owner, step, original)
    expected = [one for one in figures(read_results(folder)) if one[:2] in (("logging", 0), ("never", 1))]
    assert figures(run_rounds(options, out, QUIET)) == expected


def test_a_folder_keeps_its_options(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--sessions differs: .* was created with 60, this command has 61"):
        run_rounds(replace(OPTIONS, sessions=61), folder, QUIET)
    with pytest.raises(InputError, match="--fresh differs"):
        run_rounds(replace(OPTIONS, warm_start=False), folder, QUIET)
    with pytest.raises(InputError, match="--set differs"):
        run_rounds(replace(OPTIONS, settings={}), folder, QUIET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").touch()
    with pytest.raises(InputError, match="exists and is not a folder of rounds; choose another --out"):
        run_rounds(OPTIONS, tmp_path / "other", QUIET)
    with pytest.raises(InputError, match=r"is not a folder of rounds: it has no rounds\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("sample", "--explore sample:.* needs a policy with probabilities, and user-model has only scores"),
        ("places:9", "--explore places:9: the lists of demo have only 5 places"),
        ("blend:-1", "--explore blend:-1 is not valid: --share must be between 0 and 1"),
    ],
)
def test_ways_of_exploring_that_do_not_fit_are_refused_before_any_round(way: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(OPTIONS, explore=("places", way))


def test_the_command_needs_at_least_one_round(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--rounds must be at least 1; got 0"):
        Rounds(tmp_path / "rounds", rounds=0).run()
    assert not (tmp_path / "rounds").exists()


def test_damaged_results_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert verify(copy).problems == []
    file = copy / "never/round-1/run/best.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert [file.name in problem for problem in verify(copy).problems] == [True]
    file = copy / "never/round-1/round.json"
    file.write_text(file.read_text().replace('"lists":', '"lists_":'))
    with pytest.raises(InputError, match=r"round\.json is damaged"):
        read_results(copy)
    shutil.copy(copy / "start/round-0/round.json", file)
    with pytest.raises(InputError, match=r"round-1/round\.json is the result of another round \(logging 0\)"):
        read_results(copy)
    file.unlink()
    options = json.loads((copy / "rounds.json").read_text())
    write_json(copy / "rounds.json", {"version": 1, "options": {**options["options"], "sessions": {}}})
    with pytest.raises(InputError, match=r"rounds\.json is damaged: options\.sessions must be"):
        read_results(copy)
    shutil.copy(folder / "rounds.json", copy / "rounds.json")
    (copy / "yardsticks.json").unlink()
    with pytest.raises(InputError, match=r"yardsticks\.json does not exist"):
        read_results(copy)


def test_ways_of_exploring_are_parsed() -> None:
    assert parse_way("blend").name == "blend:0.1"
    assert parse_way("blend:0.25").exploration.share == 0.25
    assert parse_way("blend-last:0.3").with_last
    assert not parse_way("blend:0.3").with_last
    assert (parse_way("places:2").exploration.places, parse_way("places").folder) == (2, "places-1")
    assert parse_way("policy-places").exploration.places_from == "policy"
    assert parse_way("sample:0.5").exploration.temperature == 0.5
    for text, said in {
        "greedy": "--explore 'greedy' is not known; use never, blend:SHARE",
        "never:1": "--explore never takes no number; got 'never:1'",
        "places:x": "--explore places needs a whole number after the colon; got 'x'",
        "blend:2": "--share must be between 0 and 1",
    }.items():
        with pytest.raises(InputError, match=said):
            parse_way(text)


def test_options_out_of_range_are_refused() -> None:
    for text, values in {
        "--sessions must be at least 1; got 0": {"sessions": 0},
        "--rounds must be at least 0; got -1": {"rounds": -1},
        "--informed-visitors must be at most --visitors 10; got 11": {"visitors": 10, "informed_visitors": 11},
        "--algorithm must be one of .*user-model.*; got 'x'": {"algorithm": "x"},
        "--train-on must be one of served, all, newest; got 'x'": {"train_on": "x"},
        "--explore needs different ways of exploring; got blend, blend:0.1": {"explore": ("blend", "blend:0.1")},
        "--explore needs different ways of exploring; got none": {"explore": ()},
    }.items():
        with pytest.raises(InputError, match=text):
            RoundsOptions(**values)  # type: ignore[arg-type]


def test_the_table_and_the_pictures_show_all_rounds(folder: Path, tmp_path: Path) -> None:
    results = read_results(folder)
    title, columns, rows = rounds_table(results)
    assert "user-model in demo, seed 3: 60 sessions per round" in title
    assert [row[:2] for row in rows] == [
        ["logging policy", "0"], ["blend:0.5", "1"], ["never", "1"], ["never", "2"], ["informed (knows the items)", ""],
    ]  # fmt: skip
    assert all(len(row) == len(columns) for row in rows)
    first, second = results.of_way("never")[:2]
    gain = second.trained.mean - first.trained.mean
    assert float(rows[2][4].replace("−", "-")) == pytest.approx(gain, abs=0.006)
    draw_rounds(results, [tmp_path / "rounds.svg", tmp_path / "rounds.png"])
    assert "<svg" in (tmp_path / "rounds.svg").read_text()
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json_and_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Rounds(
        out=folder, seed=3, sessions=60, rounds=2, explore="never", visitors=20, informed_visitors=5, device="cpu",
        set=tuple(f"{key}={value}" for key, value in SETTINGS.items()), json=True,
    ).run()  # fmt: skip
    printed = json.loads(capsys.readouterr().out)
    assert [(one["explore"], one["number"]) for one in printed["rounds"]] == [
        ("logging", 0), ("never", 1), ("never", 2),
    ]  # fmt: skip
    assert printed["options"]["sessions"] == 60
    assert printed["yardsticks"]["informed"]["mean"] > 0
    assert (folder / "rounds.svg").exists()
    assert (folder / "rounds.png").exists()
