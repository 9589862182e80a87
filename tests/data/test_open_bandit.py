"""The Open Bandit Dataset: files that are made in its format, prepared and estimated in both directions."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from offrec.commands.estimate import Estimate
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.estimation.logged_decisions import LoggedDecisions

ITEMS, SLOTS, ROWS = 5, 3, 3000
POLICIES = {
    "random": np.full((SLOTS, ITEMS), 1 / ITEMS),
    "bts": np.array([[0.1, 0.1, 0.2, 0.2, 0.4], [0.1, 0.2, 0.3, 0.2, 0.2], [0.3, 0.2, 0.2, 0.2, 0.1]]),
}
CLICKS = np.array([[0.02, 0.05, 0.1, 0.2, 0.3], [0.1, 0.1, 0.2, 0.1, 0.1], [0.2, 0.1, 0.1, 0.0, 0.0]])  # [slot, item]


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OBD/{random,bts}/men/{men.csv,item_context.csv}, with the columns and the index of the original files."""
    root = tmp_path_factory.mktemp("obd")
    for number, (name, policy) in enumerate(POLICIES.items()):
        random = np.random.default_rng(number)
        slot = random.integers(SLOTS, size=ROWS)
        item = (random.random(ROWS)[:, None] > policy[slot].cumsum(1)).sum(1).clip(max=ITEMS - 1)
        folder = root / name / "men"
        folder.mkdir(parents=True)
        frame = pl.DataFrame(
            {
                "": np.arange(ROWS),
                "timestamp": [
                    f"2019-11-24 00:{row // 60 % 60:02d}:{row % 60:02d}.{row:06d}+00:00" for row in range(ROWS)
                ],
                "item_id": item,
                "position": slot + 1,
                "click": (random.random(ROWS) < CLICKS[slot, item]).astype(int),
                "propensity_score": policy[slot, item],
                "user_feature_0": ["81ce123cbb5bd8ce818f60fb3586bba5"] * ROWS,
                "user-item_affinity_0": np.zeros(ROWS),
            }
        )
        frame.write_csv(folder / "men.csv")
        context = {"": range(ITEMS), "item_id": range(ITEMS), "item_feature_0": np.linspace(-1, 1, ITEMS),
                   "item_feature_1": ["a", "b", "a", "b", "a"]}  # fmt: skip
        pl.DataFrame(context).write_csv(folder / "item_context.csv")
    return root


def test_rows_are_sessions_of_one_decision(campaigns: Path, tmp_path: Path) -> None:
    folder = campaigns / "bts" / "men"
    options = {"format": "open-bandit", "items": (str(folder / "item_context.csv"),)}
    dataset = prepare(folder, out=tmp_path / "data", **options)  # type: ignore[arg-type]
    raw = pl.read_csv(folder / "men.csv")
    log = LoggedDecisions.load(dataset, "all")
    assert (len(log), len(log.sessions), log.k) == (ROWS, ROWS, 1)
    assert dataset.behaviours == ["click"]
    assert dataset.meta["counts"]["events"] == raw["click"].sum()
    shares = np.bincount(log.lists[:, 0], minlength=ITEMS)
    assert shares.tolist() == np.bincount(raw["item_id"], minlength=ITEMS).tolist()
    np.testing.assert_allclose(np.sort(np.exp(log.log_propensity)), np.sort(raw["propensity_score"].to_numpy()))
    assert dataset.item_properties is not None


def test_each_log_estimates_the_policy_of_the_other(campaigns: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policies depend on the slot, so their probabilities are recovered by item and slot."""
    for name, other in (("random", "bts"), ("bts", "random")):
        log, policy = (str(campaigns / one / "men") for one in (name, other))
        Estimate(table=(log,), format="open-bandit", policy_log=(policy,), json=True).run()
        result = json.loads(capsys.readouterr().out)
        (one,) = result["policies"]
        estimate = one["estimates"]["self_normalised"]
        truth = float((POLICIES[other] * CLICKS).sum(1).mean())
        assert estimate["low"] < truth < estimate["high"]
        assert estimate["verdict"] == "trust", estimate["reasons"]
        assert result["logging_policy"]["sessions"] == ROWS
        assert result["notes"] == []


def test_other_files_are_refused(campaigns: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("timestamp,item_id,position,click\n1,2,3,0\n")
    raw = pl.read_csv(campaigns / "random/men/men.csv").head(3)
    raw.with_columns(click=pl.Series(["0", "maybe", "1"])).write_csv(tmp_path / "click.csv")
    raw.with_columns(position=pl.Series(["1", "left", "2"])).write_csv(tmp_path / "slot.csv")
    for source, message in (
        (campaigns / "random", "has no random.csv; give a campaign"),
        (tmp_path / "log.csv", "has no column 'propensity_score'"),
        (tmp_path / "click.csv", "click.csv, line 3: the click 'maybe' .the only such row.; expected 0 or 1"),
        (tmp_path / "slot.csv", "slot.csv, line 3: the position 'left' .the only such row.; expected the number"),
    ):
        with pytest.raises(InputError, match=message):
            prepare(source, out=tmp_path / "data", format="open-bandit")
    with pytest.raises(InputError, match="--format open-bandit has fixed columns"):
        prepare(campaigns / "random/men", out=tmp_path / "data", format="open-bandit", item="item_id")
    with pytest.raises(InputError, match="--format open-bandit has fixed columns"):
        Estimate(table=("x",), format="open-bandit", probabilities="a", propensity="p").run()
    with pytest.raises(InputError, match="--format needs --table"):
        Estimate((tmp_path,), format="open-bandit").run()
