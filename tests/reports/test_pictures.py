"""Pictures of results that are known."""

import json
import math
from pathlib import Path

from made_studies import LEARNERS, made_log, made_study, made_sweep
from offrec.reports import figures as pictures
from offrec.reports import svg
from offrec.reports.reading import read_studies


def test_what_is_not_a_number_is_not_drawn(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6, "dqn": 0.4, "pg": 0.3}, seeds=1)
    distances = {"dc": 0.3, "dqn": math.nan, "pg": 1.2}
    for name, distance in distances.items():
        path = study.path("results", f"yoochoose.{name}.gru.0.json")
        facts = json.loads(path.read_text())
        for epoch in facts["learning_curve"]:
            epoch["diagnostics"] = {"kl_to_logging": distance}
        path.write_text(json.dumps(facts))
    (picture,) = [one for one in pictures.trade_offs(read_studies([study.folder])) if one.key.startswith("kl-")]
    assert "nan" not in picture.svg
    assert ">DC<" in picture.svg
    assert ">DQN<" not in picture.svg


def test_long_titles_go_on_in_another_line() -> None:
    title = "over-estimation by Q: yoochoose-64-sessions, CFN, preset paper"
    assert svg.wrapped("NDCG@10: shop, GRU", 344) == ["NDCG@10: shop, GRU"]
    assert svg.wrapped(title, 344) == ["over-estimation by Q:", "yoochoose-64-sessions, CFN, preset paper"]
    assert svg.wrapped("a" * 99, 344)[0].endswith("a…")
    panels = [svg.Panel(text, "", svg.Scale(0, 1), svg.Scale(0, 1), "", "") for text in ("short", title)]
    assert [panel.svg().count('class="head"') for panel in panels] == [1, 2]
    (_, one), (_, two) = (panel.at(0, 0) for panel in panels)
    assert two - one == svg.HEAD_LINE, "the picture is as much higher: what is drawn keeps its size"


def test_pictures_of_a_sweep_have_titles_of_their_own(tmp_path: Path) -> None:
    found = pictures.swept(read_studies([made_sweep(tmp_path, "dc").folder]))
    titles = [one.svg.split("<title>")[1].split("</title>")[0] for one in found]
    assert titles == [
        f"{figure}: DC, GRU over α, yoochoose" for figure in ("NDCG@10", "NDCG@10 of view", "NDCG@10 of cart")
    ]


def test_names_that_would_cover_others_are_left_out_and_told(tmp_path: Path) -> None:
    """Eleven learners at one place."""
    study = made_study(tmp_path, [made_log()], dict.fromkeys(LEARNERS, 0.5) | {"recent": 0.1}, seeds=1)
    picture = next(one for one in pictures.trade_offs(read_studies([study.folder])) if one.key.startswith("clicks-"))
    named = [name for name in LEARNERS if f">{name.upper()}<" in picture.svg]
    assert 0 < len(named) < len(LEARNERS)
    assert picture.svg.count('class="mark') == len(LEARNERS) + 1, "all of them are drawn"
    assert [name.upper() in picture.caption for name in ("sl+pg", "sr")] == [n not in named for n in ("sl+pg", "sr")]
    assert ">Recent<" in picture.svg
