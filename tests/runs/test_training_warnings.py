"""Warnings that `train` prints before the first epoch, about the log of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import fast

from offrec.console import Console
from offrec.runs.train import train
from offrec.shop import Shop

SESSIONS = [[n % 7, (n + 1) % 7, (n + 2) % 7] for n in range(40)]
LISTS = [[(place, [item, (item + 3) % 7], 0.5, place) for place, item in enumerate(one)] for one in SESSIONS]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(Console, "line", lambda self, text: printed.append(text))
    return printed


def warnings(lines: list[str], dataset: Any, out: Path, algorithm: str, **options: Any) -> list[str]:
    lines.clear()
    train(dataset, out, algorithm=algorithm, settings=fast(algorithm), device="cpu", **options)
    return [line for line in lines if line.startswith("Warning: ")]


def test_a_user_model_without_lists_says_what_it_lacks(tmp_path: Path, make_dataset: Any, lines: list[str]) -> None:
    picks = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5))
    (sentence,) = warnings(lines, picks, tmp_path / "picks", "user-model")
    assert "contains no lists" in sentence
    assert "--format decisions or --format served (docs/how-to/your-log.md)." in sentence
    assert not any("contains no lists" in one for one in warnings(lines, picks, tmp_path / "sl", "sl"))
    lists = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5), decisions=LISTS)
    assert warnings(lines, lists, tmp_path / "lists", "user-model") == []


def test_a_start_from_a_run_with_few_common_items_is_a_warning(
    tmp_path: Path, make_dataset: Any, lines: list[str]
) -> None:
    before = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5), ids=list(range(100, 107)))
    assert warnings(lines, before, tmp_path / "run", "sl") == []
    for ids, share in (([100, *range(201, 207)], "14.3%"), ([*range(100, 104), 201, 202, 203], None)):
        later = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5), ids=ids)
        said = warnings(lines, later, tmp_path / f"later-{share}", "sl", start_from=tmp_path / "run")
        expected = f"Warning: {tmp_path / 'run'} knows only {share} of the 7 items of {later.path}; "
        assert [one.startswith(expected) for one in said] == ([] if share is None else [True])


def test_a_start_from_a_run_of_another_shop_is_a_warning(tmp_path: Path, make_dataset: Any, lines: list[str]) -> None:
    def log(seed: int) -> Any:
        made = make_dataset(tmp_path, SESSIONS, splits=(30, 5, 5))
        return replace(made, meta={**made.meta, "shop": Shop.open("tiny", seed).as_json()})

    warnings(lines, log(3), tmp_path / "run", "sl")
    assert warnings(lines, log(3), tmp_path / "same", "sl", start_from=tmp_path / "run") == []
    (said,) = warnings(lines, log(4), tmp_path / "other", "sl", start_from=tmp_path / "run")
    assert "a log of the shop tiny with seed 3, but" in said
    assert said.endswith("is one of tiny with seed 4: equal ids are different items; train without --from.")
