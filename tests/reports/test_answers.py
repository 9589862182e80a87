"""The answers to "Is the RL doing anything here?": who is compared with whom, sign and significance."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_studies import made_log, made_study, replace_array
from offrec.data.json_files import write_json
from offrec.evaluation.metrics import compute_metrics
from offrec.reports.answers import Answer, build_answers
from offrec.reports.comparison import Comparer
from offrec.reports.reading import read_studies
from offrec.reports.tables import Cell, find_sl
from offrec.studies.folder import write_study
from offrec.studies.stored_results import RANK_CAP
from offrec.studies.study import Study

SHOP = {"logging": 1.2, "informed": 4.0, "oracle": 5.0}
HITS = {"sl": 0.5, "dc": 0.3, "recent": 0.4}


def only_answer(study: Study) -> Answer:
    results = read_studies([study.folder])
    (answer,) = build_answers(results, Comparer(results))
    return answer


def answer(folder: Path, hits: dict[str, float], **more: Any) -> Answer:
    return only_answer(made_study(folder / "study", [made_log()], hits, **more))


def signs(answer: Answer) -> tuple[str | None, str | None]:
    """Return the sign of the best learner compared with SL and with the best baseline."""
    pair = (answer.versus_sl, answer.versus_baseline)
    versus_sl, versus_baseline = (one.sign() if one else None for one in pair)
    return versus_sl, versus_baseline


def cell(answer: Answer, label: str, head: str) -> Cell:
    assert answer.table is not None
    row = next(row for row in answer.table.rows if row.label == label)
    return row.cells[answer.table.heads.index(head)]


@pytest.mark.parametrize(
    ("earned", "simple", "expected", "verdict"),
    [
        ({"dc": 2.0, "dc twin": 1.5, "recent": 1.3}, "Most recent items", ("more", "more"), "Yes"),
        ({"dc": 2.0, "dc twin": 2.0, "recent": 1.3}, "Most recent items", ("more", "unclear"), "Partly"),
        ({"dc": 2.0, "dc twin": 2.5, "recent": 1.3}, "Most recent items", ("more", "less"), "Partly"),
        ({"dc": 2.0, "sl sampled": 1.4}, "SL, sampled", ("more", None), "Partly"),
        ({"dc": 2.0, "dc twin": 1.0, "recent": 0.5}, "Logging policy", ("more", "more"), "Yes"),
        ({"dc": 2.0, "dc twin": 1.0, "recent": 2.0}, "Most recent items", ("unclear", "more"), "Not shown"),
        ({"dc": 1.1, "dc twin": 1.1, "recent": 0.8}, "Logging policy", ("less", "unclear"), "No"),
    ],
)
def test_true_reward_is_compared_with_the_best_simple_policy_and_the_twin(
    tmp_path: Path, earned: dict[str, float], simple: str, expected: tuple[str, str | None], verdict: str
) -> None:
    hits = HITS | ({"dc twin": 0.3} if "dc twin" in earned else {})
    made = answer(tmp_path, hits, earned={"sl": 1.0, **earned} | SHOP)
    assert (made.about, made.measure, made.best) == ("yoochoose, GRU", "reward", "DC")
    assert made.in_shop is not None
    twin = made.in_shop.versus_twin
    assert (made.in_shop.versus_simple.sign(), twin.sign() if twin else None) == expected
    assert made.short.split(":")[0] == verdict
    assert f"the best simple policy, {simple}" in made.short
    assert ("DC, γ = 0" in made.short) == ("dc twin" in earned)
    assert ("its twin without look-ahead was not run" in made.short) == ("dc twin" not in earned)


def test_a_twin_is_never_the_best_learner(tmp_path: Path) -> None:
    made = answer(tmp_path, {**HITS, "dc twin": 0.3}, earned={"sl": 1.0, "dc": 2.0, "dc twin": 3.0, "recent": 0.8})
    assert made.best == "DC"


def test_the_table_shows_ranking_and_earnings_of_each_policy(tmp_path: Path) -> None:
    earned = {"sl": 1.0, "sl sampled": 1.1, "dc": 2.0, "dc twin": 1.5, "recent": 0.8, "popular": 0.9} | SHOP
    made = answer(tmp_path, {**HITS, "popular": 0.2, "dc twin": 0.3}, earned=earned)
    assert made.table is not None
    assert [row.label for row in made.table.rows] == [
        "SL", "SL, sampled", "DC", "DC, γ = 0", "Most recent items", "Popular items", "Logging policy",
        "Informed (knows the items; first 100 visitors)", "Oracle (knows everything)",
    ], "the best baseline by ranking and by reward"  # fmt: skip
    assert cell(made, "DC", "compared with the best simple policy (Logging)").stars == "**"
    assert cell(made, "DC", "compared with its twin without look-ahead").stars == "**"
    assert cell(made, "DC", "NDCG@10 compared with SL").stars == "▾", "by ranking"
    assert cell(made, "Oracle (knows everything)", "true reward per session").stars == ""


def test_the_best_learner_is_named(tmp_path: Path) -> None:
    made = answer(tmp_path, {"sl": 0.3, "dc": 0.5, "sr": 0.45}, earned={"sl": 1.0, "dc": 2.0, "sr": 1.5})
    assert made.best == "DC"
    assert made.versus_sl is not None
    assert made.versus_sl.gain == pytest.approx(1.0, abs=0.1)


def test_ranking_metrics_do_not_answer_the_question(tmp_path: Path) -> None:
    above = answer(tmp_path / "above", {"sl": 0.3, "sr": 0.45, "dc": 0.5, "dqn": 0.1})
    assert (above.measure, above.best, signs(above)[0]) == ("NDCG@10", "DC", "more")
    assert above.short.startswith("Not answered: no reward was measured.")
    assert "earn" not in above.short
    assert above.short.index("DC") < above.short.index("SR"), "the best comes first"
    below = answer(tmp_path / "below", {"sl": 0.5, "dc": 0.3})
    assert (below.measure, signs(below)[0]) == ("NDCG@10", "less")


def uneven(study: Study, learner: str, beyond: slice) -> None:
    """Make the second seed worse, so that the seeds differ too much for a t-test."""
    path = study.path("results", f"yoochoose.{learner}.gru.1.json")
    array = study.path("results", f"yoochoose.{learner}.gru.1.ranks.npy")
    ranks = np.load(array)
    ranks[beyond] = RANK_CAP
    replace_array(study, path.stem, "ranks", ranks)
    facts = json.loads(path.read_text())
    facts["test"]["all"] |= compute_metrics(ranks.astype(np.int64), (5, 10, 20)).values
    write_json(path, facts)


@pytest.mark.parametrize("seeds", [2, 3])
def test_with_two_seeds_the_p_value_over_sessions_is_shown(tmp_path: Path, seeds: int) -> None:
    study = made_study(tmp_path, [made_log()], {"sl": 0.4, "dc": 0.7, "pc": 0.4}, seeds=seeds)
    uneven(study, "dc", slice(None, None, 4))
    made = only_answer(study)
    dc = cell(made, "DC", "NDCG@10 compared with SL")
    assert dc.stars == "", "the t-test does not reject"
    assert ("sessions p < .001" in dc.spread) == (seeds == 2)
    assert made.table is not None
    assert made.table.note.startswith("Two seeds") == (seeds == 2)


def test_one_seed_is_noted(tmp_path: Path) -> None:
    made = answer(tmp_path, HITS, seeds=1)
    assert made.table is not None
    assert made.table.note.startswith("One seed")
    assert made.text() == f"{made.short} {made.table.note}", "a terminal does not show the table"
    for seeds in (2, 3):
        made = answer(tmp_path / str(seeds), HITS, seeds=seeds)
        assert made.text() == made.short


def test_without_sl_or_without_rl_there_is_no_answer(tmp_path: Path) -> None:
    for name, hits in (("rl", {"dc": 0.5}), ("sl", {"sl": 0.5})):
        made = answer(tmp_path / name, hits)
        assert made.short.startswith("Not answered")
        assert (made.best, made.table) == (None, None)


def with_imitation_plugin(study: Study, name: str = "sr") -> Study:
    """Turn a learner into an imitation learner of a plug-in that is not installed."""
    groups = [
        replace(group, policy="smoothed", policy_label="Smoothed SL", family="imitation")
        if group.policy == name
        else group
        for group in study.groups
    ]
    study = replace(study, groups=tuple(groups))
    write_study(study)
    return study


def test_other_imitation_learners_are_listed_but_are_not_the_reference(tmp_path: Path) -> None:
    earned = {"sl": 1.0, "sr": 3.0, "dc": 2.0, "recent": 0.8}
    hits = {"sl": 0.5, "sr": 0.5, "dc": 0.3, "recent": 0.4}
    made = only_answer(with_imitation_plugin(made_study(tmp_path, [made_log()], hits, earned=earned)))
    assert made.best == "DC", "the best RL learner"
    assert made.versus_sl is not None
    assert made.versus_sl.gain == pytest.approx(1.0, abs=0.1), "compared with SL"
    assert made.table is not None
    assert [row.label for row in made.table.rows] == ["SL", "Smoothed SL", "DC", "Most recent items"]
    assert cell(made, "Smoothed SL", "compared with the best simple policy (SL)").stars == "**"


@pytest.mark.parametrize(
    ("earned", "expected"),
    [
        ({"dc": 2.0, "recent": 0.8}, "DC earns more than the best baseline, Most recent items (+"),
        ({"dc": 0.5, "recent": 0.8}, "DC earns less than the best baseline, Most recent items (−"),
        ({"dc": 0.8, "recent": 0.8}, "It is unclear whether DC earns more than the best baseline, Most recent items ("),
        (None, "DC ranks below the best baseline, Most recent items, in NDCG@10 (−"),
    ],
)
def test_without_sl_the_best_baseline_is_the_only_reference(
    tmp_path: Path, earned: dict[str, float] | None, expected: str
) -> None:
    hits = {"sr": 0.5, "dc": 0.3, "recent": 0.4}
    study = made_study(tmp_path, [made_log()], hits, earned=earned and {"sr": 3.0, **earned})
    made = only_answer(with_imitation_plugin(study))
    assert made.short.startswith(f"Not answered: SL was not run. {expected}")
    assert (made.best, made.versus_sl, made.baseline) == ("DC", None, "Most recent items")
    assert made.table is not None
    assert [row.label for row in made.table.rows] == ["Smoothed SL", "DC", "Most recent items"]
    assert not [head for head in made.table.heads if "compared with SL" in head]


def test_ranking_tables_are_not_compared_with_other_imitation_learners(tmp_path: Path) -> None:
    study = made_study(tmp_path, [made_log()], {"sr": 0.5, "dc": 0.3})
    results = read_studies([with_imitation_plugin(study).folder])
    assert [find_sl(results, policy) for policy in results.compared] == [None, None]


def valued(folder: Path, values: dict[str, tuple[float, str]], seeds: int, hits: dict[str, float]) -> Answer:
    """Make a study with estimated values: policy → (value, verdict)."""
    study = made_study(folder, [made_log()], hits, seeds=seeds)
    for run in study.runs:
        mean, verdict = values[study.group(run).policy]
        path = study.path("results", f"{run.name}.json")
        value = {"value": mean * (1 + 0.01 * run.seed), "low": 0.0, "high": 9.0, "verdict": verdict, "reason": ""}
        write_json(path, {**json.loads(path.read_text()), "value": value})
    return only_answer(study)


EQUAL = {"sl": 0.5, "dc": 0.5, "sr": 0.5, "recent": 0.5, "popular": 0.5}
TRUST, DISTRUST = "caution", "do not trust"


def test_distrusted_values_are_not_used(tmp_path: Path) -> None:
    values = {"sl": (1.0, TRUST), "dc": (2.0, TRUST), "sr": (3.0, DISTRUST), "recent": (1.5, TRUST)}
    made = valued(tmp_path, values | {"popular": (9.0, DISTRUST)}, 3, EQUAL)
    assert (made.measure, made.best, made.baseline) == ("value", "DC", "Most recent items")
    assert signs(made) == ("more", "more")
    assert cell(made, "SR", "verdict").text == DISTRUST


@pytest.mark.parametrize(("seeds", "verdicts"), [(1, (TRUST, TRUST)), (3, (DISTRUST, TRUST)), (3, (TRUST, DISTRUST))])
def test_values_that_cannot_be_trusted_or_tested_give_no_answer(
    tmp_path: Path, seeds: int, verdicts: tuple[str, str]
) -> None:
    sl, dc = verdicts
    values = {"sl": (1.0, sl), "dc": (2.0, dc)}
    made = valued(tmp_path, values, seeds, {"sl": 0.3, "dc": 0.5})
    assert made.measure == "NDCG@10"
    assert made.short.startswith("Not answered")
    assert cell(made, "DC", "verdict").text == dc, "the table still shows the estimate"
