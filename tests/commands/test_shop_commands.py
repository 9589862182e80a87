"""The commands of the simulated shop: write a log, train on it, and measure what a run earns."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typed_commands import offrec_here, sentence

import offrec
from offrec.commands.shop import WriteShop
from offrec.data.dataset import Dataset
from offrec.errors import InputError
from offrec.shop import WORLDS, Shop, paired_difference


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    offrec_here("shop", "--world", "demo", "--sessions", "400", "--seed", "3", "--out", folder / "log")
    offrec_here("prepare", folder / "log/events.parquet", "--out", folder / "data")
    offrec_here(
        "train", folder / "data", "--out", folder / "run", "--set", "training.epochs=1", "--set", "network.width=16"
    )
    return folder


def test_the_dataset_describes_its_shop(work: Path) -> None:
    shop = Dataset.open(work / "data").meta["shop"]
    assert (shop["world"], shop["seed"], shop["k"]) == ("demo", 3, 5)
    assert sorted(path.name for path in (work / "log").iterdir()) == [
        *("events.parquet", "full.parquet", "items.parquet")
    ]


def test_the_log_seed_gives_another_log_of_the_same_shop(work: Path, tmp_path: Path) -> None:
    for name, more in (("again", ()), ("other", ("--log-seed", "7"))):
        offrec_here("shop", "--world", "demo", "--sessions", "400", "--seed", "3", *more, "--out", tmp_path / name)
    first, again, other = (
        pl.read_parquet(home / "events.parquet") for home in (work / "log", tmp_path / "again", tmp_path / "other")
    )
    assert again.equals(first)
    assert not other.equals(first)
    offrec_here("prepare", tmp_path / "other/events.parquet", "--out", tmp_path / "data")
    shop = Dataset.open(tmp_path / "data").meta["shop"]
    assert (shop["seed"], shop["log_seed"]) == (3, 7)


def test_simulate_a_run_and_a_baseline(work: Path) -> None:
    rollout = json.loads(offrec_here("simulate", work / "run", "--sessions", "200", "--json").stdout)
    assert rollout["others"] == []
    assert rollout["reward"]["low"] < rollout["reward"]["mean"] < rollout["reward"]["high"]
    assert (rollout["world"], rollout["seed"], rollout["play"], rollout["policy"]) == ("demo", 3, "topk", "sl/gru")
    again = json.loads(offrec_here("simulate", work / "run", "--sessions", "200", "--json").stdout)
    assert again == rollout
    sampled = json.loads(
        offrec_here("simulate", work / "run", "--sessions", "200", "--play", "sample", "--json").stdout
    )
    assert sampled["play"] == "sample"
    assert sampled["reward"] != rollout["reward"]
    skipping = json.loads(
        offrec_here("simulate", work / "run", "--sessions", "200", "--skip-recent", "3", "--json").stdout
    )
    assert (rollout["skip_recent"], skipping["skip_recent"]) == (0, 3)
    assert skipping["reward"] != rollout["reward"]
    simulated = offrec_here("simulate", "--baseline", "mean-reward", "--dataset", work / "data", "--sessions", "100")
    assert "mean-reward (topk, skipping the last 8 picks) in demo" in simulated.stdout
    done = offrec_here("simulate", "--baseline", "popular", "--dataset", work / "data", "--sessions", "100")
    assert "purchases" in done.stdout
    own = offrec_here("simulate", "--policy", "greedy", "--dataset", work / "data", "--sessions", "100", "--json")
    assert json.loads(own.stdout)["seed"] == 3


def test_several_policies_are_compared_with_the_first_on_the_same_visitors(work: Path) -> None:
    words = ("simulate", work / "run", "--policy", "random", "--policy", "logging", "--sessions", "100")
    tree = json.loads(offrec_here(*words, "--baseline", "popular", "--json").stdout)
    assert tree["name"] == str(work / "run")
    assert [one["name"] for one in tree["others"]] == ["random", "logging", "popular"]
    shop = Shop.from_meta(Dataset.open(work / "data").meta["shop"])
    first, random = (shop.rollout(policy, 100, seed=1_000_000) for policy in (offrec.load(work / "run"), "random"))
    assert tree["reward"] == first.reward.as_json()
    assert tree["others"][0]["difference"] == paired_difference(random, first).as_json()
    printed = offrec_here(*words).stdout
    assert "Policies in demo, seed 3, lists of 5, 100 visitors" in printed
    assert f"{paired_difference(random, first).mean:+.4f}" in printed


@pytest.mark.parametrize("command", ["shop", "simulate", "rounds"])
def test_the_help_names_all_worlds(command: str) -> None:
    text = " ".join(offrec_here(command, "--help").stdout.replace("│", " ").split())
    assert ", ".join(f"{name} ({world.items} items)" for name, world in WORLDS.items()) in text


def test_bad_input_gets_one_sentence(work: Path, tmp_path: Path) -> None:
    def said(*words: str | Path) -> str:
        return sentence(offrec_here(*words, code=2))

    assert "no world 'mars'; the worlds are tiny, demo" in said("simulate", "--policy", "oracle", "--world", "mars")
    assert "no world 'mars'" in said("shop", "--world", "mars", "--out", tmp_path / "x")
    assert "got 99" in said("shop", "--world", "tiny", "-k", "99", "--out", tmp_path / "x")
    assert "exists already" in said("shop", "--sessions", "10", "--out", work / "log")
    assert "No policy was given" in said("simulate")
    assert "was given twice" in said("simulate", work / "run", work / "run")
    other = ("--sessions", "60", "--seed", "4", "--out")
    offrec_here("shop", "--world", "demo", *other, tmp_path / "log-4")
    offrec_here("prepare", tmp_path / "log-4/events.parquet", "--out", tmp_path / "data-4")
    settings = ("--set", "training.epochs=1", "--set", "network.width=16")
    offrec_here("train", tmp_path / "data-4", "--out", tmp_path / "run-4", *settings)
    message = said("simulate", work / "run", tmp_path / "run-4", "--sessions", "10")
    assert f"{tmp_path}/run-4: The log comes from the shop 'demo' with seed 4, this is 'demo' with seed 3" in message
    assert "--play cannot be used with --policy" in said(
        "simulate", "--policy", "greedy", "--world", "demo", "--play", "sample"
    )
    assert "--skip-recent cannot be used with --policy" in said(
        "simulate", "--policy", "greedy", "--world", "demo", "--skip-recent", "8"
    )
    assert "skip_recent must be at least 0; got -1" in said("simulate", work / "run", "--skip-recent", "-1")
    assert "needs --dataset" in said("simulate", "--baseline", "recent")
    assert "--world and --shop-seed cannot be used with a dataset" in said(
        "simulate", work / "run", "--world", "medium"
    )
    assert not (tmp_path / "x").exists()
    (tmp_path / "log.csv").write_text("session,item\n" + "\n".join(f"{n // 3},{n % 5}" for n in range(60)) + "\n")
    offrec_here("prepare", tmp_path / "log.csv", "--out", tmp_path / "data")
    words = ["simulate", "--baseline", "recent", "--dataset", tmp_path / "data"]
    assert "was not written by a simulated shop" in said(*words)


def test_a_run_writes_a_log_that_prepare_reads_with_the_first_one(work: Path, tmp_path: Path) -> None:
    words = ("shop", "--policy", work / "run", "--sessions", "100", "--log-seed", "9", "--first-session", "400")
    said = offrec_here(*words, "--play", "blend", "--share", "0.3", "--out", tmp_path / "blend").stderr
    assert "--format decisions --out data" in said
    assert "propensity 1" not in said
    said = offrec_here(*words, "--play", "sample", "--temperature", "0.5", "--out", tmp_path / "sample").stderr
    assert "propensity 1" not in said
    said = offrec_here(*words, "--out", tmp_path / "topk").stderr
    assert "Every list has propensity 1: this log cannot tell what other items would earn" in said
    logs = [work / "log/full.parquet", tmp_path / "blend/full.parquet"]
    offrec_here("prepare", *logs, "--format", "decisions", "--out", tmp_path / "data")
    meta = Dataset.open(tmp_path / "data").meta
    assert meta["counts"]["sessions"] == 500
    assert (meta["shop"]["world"], meta["shop"]["seed"]) == ("demo", 3)


def test_options_of_a_served_policy_are_checked(work: Path, tmp_path: Path) -> None:
    def said(**options: Any) -> str:
        with pytest.raises(InputError) as refusal:
            WriteShop(out=tmp_path / "x", **options).run()
        return str(refusal.value)

    run = work / "run"
    assert "--play needs --policy RUN" in said(play="blend")
    assert "--policy needs --log-seed N" in said(policy=run)
    assert "--previous has no effect with --play topk" in said(policy=run, log_seed=9, previous=run)
    assert "which is demo with seed 3; remove them" in said(policy=run, log_seed=9, seed=4)
    assert "--share must be between 0 and 1" in said(policy=run, log_seed=9, share=1.5)
    assert not (tmp_path / "x").exists()
