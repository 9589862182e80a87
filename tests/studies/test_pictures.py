"""Pictures of results that are known."""

import json
import math
from pathlib import Path

from made_studies import made_log, made_study

from offrec.studies import pictures
from offrec.studies.reading import read


def test_what_is_not_a_number_is_not_drawn(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", [made_log()], {"sl": 0.5, "dc": 0.6, "dqn": 0.4, "pg": 0.3}, seeds=1)
    distances = {"dc": 0.3, "dqn": math.nan, "pg": 1.2}
    for name, distance in distances.items():
        path = study.path("results", f"yoochoose.{name}.gru.0.json")
        facts = json.loads(path.read_text())
        for epoch in facts["curve"]:
            epoch["diagnostics"] = {"kl_to_logging": distance}
        path.write_text(json.dumps(facts))
    (picture,) = [one for one in pictures.trade_offs(read([study.folder])) if one.key.startswith("kl-")]
    assert "nan" not in picture.svg
    assert ">DC<" in picture.svg
    assert ">DQN<" not in picture.svg
