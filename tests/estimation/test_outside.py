"""Policies from outside: probabilities from columns of a table, and policies known from their own logs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import offrec
from offrec.commands.estimate import Estimate
from offrec.data.decision_table import LoggedPolicy, TableColumns, read_decision_table
from offrec.errors import InputError
from offrec.estimation.options import EstimateOptions

B = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])  # [slot, item]
NEW = np.array([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])
MEANS = np.array([[0.1, 0.2, 0.5], [0.3, 0.3, 0.4]])


def slots(policy: np.ndarray, rows: int, seed: int, other: np.ndarray) -> pl.DataFrame:
    """Items in two slots, shown by `policy`, with the probabilities of `other`."""
    random = np.random.default_rng(seed)
    slot = random.integers(2, size=rows)
    item = (random.random(rows)[:, None] > policy[slot].cumsum(1)).sum(1).clip(max=2)
    return pl.DataFrame(
        {
            "slot": slot,
            "item": item,
            "propensity": policy[slot, item],
            "new": other[slot, item],
            "reward": (random.random(rows) < MEANS[slot, item]).astype(float),
        }
    )


def value(policy: np.ndarray) -> float:
    return float((policy * MEANS).sum(1).mean())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of both policies, with the probabilities of the other."""
    folder = tmp_path_factory.mktemp("tables")
    slots(B, 4000, 1, NEW).write_parquet(folder / "b.parquet")
    slots(NEW, 4000, 2, B).write_parquet(folder / "new.parquet")
    return folder


def test_each_log_estimates_the_policy_of_the_other(tables: Path) -> None:
    for name, truth in (("b", value(NEW)), ("new", value(B))):
        result = offrec.estimate_table(tables / f"{name}.parquet", ["new"])
        (one,) = result.policies
        assessment = one.assessments["self_normalised"]
        assert assessment.verdict == "trust", assessment.reasons
        assert assessment.interval.low < truth < assessment.interval.high
        assert assessment.interval.high - assessment.interval.low < 0.06
        assert (result.sessions, result.split, one.play) == (4000, "all", "column")


def test_a_policy_is_known_from_its_own_log(tables: Path) -> None:
    """Propensities depend on slot and item, so they are recovered exactly from the other log."""
    policy = LoggedPolicy("served", (str(tables / "new.parquet"),), ("slot", "item"))
    table = read_decision_table([tables / "b.parquet"], ["new"], policies=[policy])
    np.testing.assert_allclose(table.log_probability["served"], table.log_probability["new"])
    assert table.notes == ()
    coarse = LoggedPolicy("served", (str(tables / "new.parquet"),), ("item",))
    (note,) = read_decision_table([tables / "b.parquet"], policies=[coarse]).notes
    assert "differ by up to a factor of 1.50 within one item" in note


def test_a_policy_whose_propensities_differ_is_never_trusted(tmp_path: Path) -> None:
    """Items a and b have probabilities .9 and .1 for half of the visitors and the reverse for the others: .5 each."""
    own = {"item": ["a"] * 10 + ["b"] * 10, "propensity": [0.9] * 9 + [0.1] + [0.1] + [0.9] * 9}
    pl.DataFrame(own).write_csv(tmp_path / "own.csv")
    rows = {"item": ["a", "b"] * 1000, "propensity": [0.5] * 2000, "reward": [0, 1, 1, 1] * 500}
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    policy = LoggedPolicy("own", (str(tmp_path / "own.csv"),), ("item",))
    result = offrec.estimate_table(
        tmp_path / "log.csv", options=EstimateOptions(certify=True, shares=(0.1,)), policies=[policy]
    )
    assert result.policies[0].trajectories.log_pi == pytest.approx(np.log(0.5))
    assessment = result.policies[0].assessments["self_normalised"]
    assert assessment.verdict == "caution"
    assert [reason.code for reason in assessment.reasons] == ["averaged"]
    assert result.certification is not None
    assert result.certification.policies[0].largest_trusted is None


def test_items_that_the_other_log_lacks_have_probability_zero(tmp_path: Path) -> None:
    pl.DataFrame({"item": ["a", "b", "c"], "propensity": [0.5] * 3, "reward": [1.0] * 3}).write_csv(tmp_path / "a.csv")
    pl.DataFrame({"item": ["a", "a"], "propensity": [0.25, 0.25], "reward": [1, 0]}).write_csv(tmp_path / "b.csv")
    policy = LoggedPolicy("other", (str(tmp_path / "b.csv"),), ("item",))
    table = read_decision_table([tmp_path / "a.csv"], policies=[policy])
    assert np.exp(table.log_probability["other"]).tolist() == [0.25, 0.0, 0.0]
    assert table.notes == ("other never shows 2 of the 3 decisions: its log has no such item.",)


def test_sessions_are_ordered_by_time(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "visit": ["x", "y", "x", "y", "z"],
            "time": [20, 5, 10, 6, 1],
            "p": [0.1, 0.2, 0.3, 0.4, 0.5],
            "pi": [1.0, 0.0, 0.5, 0.5, 0.5],
            "behaviour": ["buy", None, "view", "none", "cart"],
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    columns = TableColumns(propensity="p", session="visit")
    table = read_decision_table([tmp_path / "log.parquet"], ["pi"], columns, {"cart": 3.0})
    assert table.offsets.tolist() == [0, 2, 4, 5]
    np.testing.assert_allclose(np.exp(table.log_propensity), [0.3, 0.1, 0.2, 0.4, 0.5])
    np.testing.assert_allclose(np.exp(table.log_probability["pi"]), [0.5, 1.0, 0.0, 0.5, 0.5])
    assert table.reward.tolist() == [0.2, 1.0, 0.0, 0.0, 3.0]
    frame.drop("time").write_parquet(tmp_path / "log.parquet")
    table = read_decision_table([tmp_path / "log.parquet"], ["pi"], columns)
    np.testing.assert_allclose(np.exp(table.log_propensity), [0.1, 0.3, 0.2, 0.4, 0.5])


def test_weights_of_a_session_are_products(tmp_path: Path) -> None:
    """One session of two decisions and one of one: importance = (ρ₁ r₁ + ρ₁ ρ₂ r₂ + ρ₃ r₃) / 2."""
    frame = {"session": [1, 1, 2], "propensity": [0.5, 0.5, 0.4], "pi": [0.25, 1.0, 0.2], "reward": [1.0, 2.0, 4.0]}
    pl.DataFrame(frame).write_csv(tmp_path / "log.csv")
    result = offrec.estimate_table(tmp_path / "log.csv", ["pi"], EstimateOptions(estimators=("importance",)))
    estimate = result.policies[0].assessments["importance"].interval.estimate
    assert estimate == pytest.approx((0.5 * 1 + 0.5 * 2 * 2 + 0.5 * 4) / 2)
    assert result.logged.estimate == pytest.approx(3.5)


def test_the_command_certifies_a_policy_from_a_table(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tables / "b.parquet")
    Estimate(table=(table,), probabilities="new", certify=True, shares="0.3,1", json=True).run()
    printed = json.loads(capsys.readouterr().out)
    (one,) = printed["certification"]["policies"]
    assert one["certified_share"] == 1.0
    assert printed["source"] == table
    Estimate(table=(table,), policy_log=(str(tables / "new.parquet"),), match="slot,item").run()
    printed = capsys.readouterr().out
    assert "column" in printed
    assert "All rows of the table are used." in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new": [0.5, 1.5]}, "line 3: the probability new '1.5' .the only such row.; expected the probability"),
        ({"new": ["0.5", ""]}, "a missing probability new"),
        ({"new": ["0.5", "often"]}, "the probability new 'often'"),
        ({"propensity": [0.5, 0.0]}, "the propensity '0.0'"),
        ({"reward": ["1", "nan"]}, "the reward 'nan'"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = {"propensity": [0.5, 0.5], "new": [0.5, 0.5], "reward": [1, 0]} | change
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    with pytest.raises(InputError, match=message):
        offrec.estimate_table(tmp_path / "log.csv", ["new"])


def test_unknown_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    rows = {"propensity": [0.5], "new_policy": [0.5], "click": [1]}
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    table = (str(tmp_path / "log.csv"),)
    for command, message in (
        (Estimate(table=table, probabilities="new_polcy", reward_column="click"), "did you mean new_policy?"),
        (
            Estimate(table=table, probabilities="new_policy", reward_column="clik"),
            "--reward-column: log.csv has no",
        ),
        (Estimate(table=table, probabilities="new_policy"), "has no column 'reward' or 'behaviour'"),
        (Estimate(table=table), "No policy was given; name its column with --probabilities"),
        (Estimate(table=table, probabilities="a,a"), "names a column twice"),
        (Estimate(table=table, probabilities="new_policy", policy_log=table), "--policy-log needs --match"),
        (Estimate((tmp_path,), table=table, probabilities="x"), "RUN cannot be used with --table"),
        (Estimate(table=table, probabilities="x", estimator="direct"), "--estimator direct needs more than"),
        (Estimate((tmp_path,), probabilities="x"), "--probabilities needs --table FILE"),
        (Estimate(table=table, probabilities="x", match="item"), "--match has no effect without --policy-log"),
        (Estimate(table=table, policy_log=table * 2, match="click"), "--policy-log names a policy twice"),
        (Estimate((tmp_path,), served_temperature=2.0), "--served-temperature has no effect without --served"),
    ):
        with pytest.raises(InputError, match=message):
            command.run()
    pl.DataFrame({"propensity": [0.5], "new": [0.5], "behaviour": ["wave"]}).write_csv(tmp_path / "log.csv")
    with pytest.raises(InputError, match="'wave' has no reward; give one, such as --reward wave=1"):
        offrec.estimate_table(tmp_path / "log.csv", ["new"])


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("propensity,new,reward\n")
    pl.DataFrame(schema={"propensity": pl.Float64, "new": pl.Float64, "reward": pl.Float64}).write_parquet(
        tmp_path / "log.parquet"
    )
    for name in ("log.csv", "log.parquet"):
        with pytest.raises(InputError, match=f"{name} has no rows; give a table with at least one decision"):
            offrec.estimate_table(tmp_path / name, ["new"])


def test_the_advice_for_a_withheld_estimate_is_possible_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"propensity": [0.5] * 9, "new": [0.5] * 9, "reward": [1, 0, 0] * 3}  # fewer than 10 sessions
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    Estimate(table=(str(tmp_path / "log.csv"),), probabilities="new").run()
    printed = capsys.readouterr().out
    assert "withheld" in printed
    assert "try a small --blend." in printed
    assert "--estimator direct" not in printed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("play", "topk"),
        ("temperature", 2.0),
        ("temperatures", "1,2"),
        ("served_temperature", 2.0),
        ("refits", 2),
        ("updates", 1),
    ],
)
def test_options_without_effect_on_a_table_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} has no effect with --table; omit it"):
        Estimate(table=("log.csv",), probabilities="new", **{name: value}).run()
