"""The paragraph that answers for itself: right words for whatever came out."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_studies import made_log, made_study
from offrec.evaluation.metrics import compute_metrics
from offrec.reports.answers import Answer, answers
from offrec.reports.comparison import Comparer
from offrec.reports.reading import read_studies
from offrec.studies.results import RANK_CAP
from offrec.studies.study import Study


def answer(folder: Path, hits: dict[str, float], **more: Any) -> Answer:
    study = made_study(folder / "study", [made_log()], hits, **more)
    reading = read_studies([study.folder])
    (found,) = answers(reading, Comparer(reading))
    return found


SHOP = {"logging": 1.2, "oracle": 5.0}
RANKS = {"sl": 0.5, "dc": 0.3, "recent": 0.4}


def test_earns_more_and_ranks_worse(tmp_path: Path) -> None:
    found = answer(tmp_path, RANKS, earned={"sl": 1.0, "dc": 2.0, **SHOP})
    assert found.about == "yoochoose, GRU"
    assert found.short.startswith("Yes: DC truly earns more than SL by +0.9")
    assert found.short.endswith("Next-item figures say the opposite of DC.")
    text = " ".join(found.sentences)
    assert "below it: DC (−" in text
    assert "In the shop itself SL earns" in text
    assert "clearly more: DC" in text
    assert "The policy that wrote the log earns" in text
    assert "clearly more than it: DC; clearly less: SL" in text
    assert "clearly above that: SL; clearly below: DC" in text
    assert "over 3 seeds" in text


def test_earns_less(tmp_path: Path) -> None:
    found = answer(tmp_path, RANKS, earned={"sl": 1.0, "dc": 0.5})
    assert found.short == "No: every learner that reads rewards truly earns less than SL."


def test_nothing_clear(tmp_path: Path) -> None:
    found = answer(tmp_path, RANKS, earned={"sl": 1.0, "dc": 1.0})
    assert found.short == "Nothing clear: no learner that reads rewards truly earns clearly more than SL."


def test_a_gain_that_two_seeds_cannot_show_is_still_named(tmp_path: Path) -> None:
    study = made_study(tmp_path, [made_log()], {"sl": 0.5, "dc": 0.5}, earned={"sl": 1.0, "dc": 1.1}, seeds=2)
    paid, facts = (study.path("results", f"yoochoose.dc.gru.0.{kind}") for kind in ("rewards.npy", "json"))
    np.save(paid, np.load(paid) + np.float32(0.8))
    lucky = json.loads(facts.read_text())
    lucky["shop"]["reward"]["mean"] += 0.8
    facts.write_text(json.dumps(lucky))
    reading = read_studies([study.folder])
    (found,) = answers(reading, Comparer(reading))
    said = "Nothing clear: no learner that reads rewards truly earns clearly more than SL; DC has +0."
    assert found.short.startswith(said)
    assert "Two seeds make a weak t-test" in found.sentences[-1]


def test_both_agree_and_the_most_is_named(tmp_path: Path) -> None:
    hits = {"sl": 0.3, "dc": 0.5, "sr": 0.45}
    found = answer(tmp_path, hits, earned={"sl": 1.0, "dc": 2.0, "sr": 1.5})
    assert found.short.startswith("Yes: DC and SR truly earn more than SL, DC most, by +0.9")
    assert found.short.endswith("Next-item figures agree.")


def test_without_a_shop_next_item_figures_do_not_speak_of_earning(tmp_path: Path) -> None:
    found = answer(tmp_path, {"sl": 0.3, "dc": 0.5})
    assert re.match(r"It ranks better: DC \(\+\d+\.\d %\) is above SL in NDCG@10, all events\.", found.short)
    assert found.short.endswith("Whether anything more is earned, this log does not show.")
    assert not any("shop" in sentence for sentence in found.sentences)


@pytest.mark.parametrize(("learners", "words"), [(("dc",), "it is not"), (("dc", "sr"), "none of them is")])
def test_without_a_gain(tmp_path: Path, learners: tuple[str, ...], words: str) -> None:
    found = answer(tmp_path, {"sl": 0.5, **dict.fromkeys(learners, 0.3)})
    said = f"Not in next-item figures: {words} clearly above SL in NDCG@10 over all test events (other figures, and"
    assert found.short.startswith(said)


def test_all_that_rank_better_are_named_the_best_first(tmp_path: Path) -> None:
    found = answer(tmp_path, {"sl": 0.3, "sr": 0.45, "dc": 0.5, "dqn": 0.1})
    assert re.match(r"It ranks better: DC \(\+[\d.]+ %\) and SR \(\+[\d.]+ %\) are above SL in NDCG@10,", found.short)


def uneven(study: Study, learner: str, beyond: slice) -> None:
    """The learner's second seed finds less: its two seeds differ too much for a t-test."""
    path = study.path("results", f"yoochoose.{learner}.gru.1.json")
    ranks = study.path("results", f"yoochoose.{learner}.gru.1.ranks.npy")
    found = np.load(ranks)
    found[beyond] = RANK_CAP
    np.save(ranks, found)
    facts = json.loads(path.read_text())
    facts["test"]["all"] |= compute_metrics(found.astype(np.int64), (5, 10, 20)).values
    path.write_text(json.dumps(facts))


def test_what_sessions_alone_tell_of_two_seeds_stands_apart(tmp_path: Path) -> None:
    """With three seeds, the t-test decides."""
    for seeds in (2, 3):
        hits = {"sl": 0.4, "re": 0.35, "dc": 0.7, "pc": 0.4}
        study = made_study(tmp_path / str(seeds), [made_log()], hits, seeds=seeds)
        uneven(study, "re", slice(None, None, 2))
        uneven(study, "dc", slice(None, None, 4))
        reading = read_studies([study.folder])
        (found,) = answers(reading, Comparer(reading))
        told = " ".join([found.short, found.sentences[0]])
        unsure = "by sessions alone, with too few seeds to be sure:"
        for words in (f"; above it {unsure} DC (+", f"; below it {unsure} RE (−"):
            assert (words in told) == (seeds == 2)
        assert (f"Above it {unsure} DC (+" in found.short) == (seeds == 2)
        (apart,) = re.findall(r"not told apart from it: (.*)", told)
        assert [name in apart for name in ("PC", "DC", "RE")] == [True, seeds == 3, seeds == 3]


def test_one_seed_says_so(tmp_path: Path) -> None:
    found = answer(tmp_path, RANKS, seeds=1)
    assert "With one seed nothing is known of the spread over seeds" in found.sentences[-1]


def test_without_sl_nothing_is_claimed(tmp_path: Path) -> None:
    assert answer(tmp_path, {"dc": 0.5}).short == "It cannot be told: SL, which imitates, was not run."
    alone = answer(tmp_path / "more", {"sl": 0.5})
    assert alone.short == "It cannot be told: no learner that reads rewards was run."


def valued(folder: Path, worth: dict[str, tuple[float, str]], seeds: int, ranks: dict[str, float]) -> Answer:
    """`worth`: learner → estimated value, and its verdict."""
    study = made_study(folder, [made_log()], ranks, seeds=seeds)
    for run in study.runs:
        level, verdict = worth[study.group(run).policy]
        facts = study.path("results", f"{run.name}.json")
        value = {"value": level * (1 + 0.01 * run.seed), "low": 0.0, "high": 9.0, "verdict": verdict, "reason": ""}
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "value": value}))
    reading = read_studies([study.folder])
    (found,) = answers(reading, Comparer(reading))
    return found


LEVEL = {"sl": 0.5, "dc": 0.5, "sr": 0.5}


def test_only_what_may_be_trusted_is_said_to_earn(tmp_path: Path) -> None:
    worth = {"sl": (1.0, "caution"), "dc": (2.0, "caution"), "sr": (3.0, "do not trust")}
    found = valued(tmp_path, worth, 3, LEVEL)
    assert found.short.startswith("Yes: DC is estimated to earn more than SL by +1.01 a session.")
    (said,) = [sentence for sentence in found.sentences if sentence.startswith("By the estimate")]
    assert "clearly more: DC (+1.01, p" in said
    assert said.endswith("Not to be trusted, so left out: SR.")


@pytest.mark.parametrize("seeds", [1, 3])
def test_values_that_cannot_be_counted_on_leave_the_answer_to_the_ranking(tmp_path: Path, seeds: int) -> None:
    """Three seeds of an SL that is not to be trusted; one seed, of which nothing can be tested."""
    verdict = "caution" if seeds == 1 else "do not trust"
    worth = {"sl": (1.0, verdict), "dc": (2.0, "caution"), "sr": (3.0, "caution")}
    found = valued(tmp_path, worth, seeds, {"sl": 0.3, "dc": 0.5, "sr": 0.3})
    assert re.match(r"It ranks better: DC \(\+\d+\.\d %\) is above SL", found.short)
    (said,) = [sentence for sentence in found.sentences if sentence.startswith("By the estimate")]
    assert ("not tested" in said) == (seeds == 1)
    assert ("that is not to be trusted, so no value is set beside it" in said) == (seeds == 3)


def test_no_learner_to_be_trusted(tmp_path: Path) -> None:
    worth = {"sl": (1.0, "caution"), "dc": (2.0, "do not trust"), "sr": (3.0, "do not trust")}
    found = valued(tmp_path, worth, 3, LEVEL)
    assert any("of no learner that reads rewards is it to be trusted" in sentence for sentence in found.sentences)
    assert "estimated" not in found.short
