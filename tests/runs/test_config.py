"""One tree of options, three spellings."""

import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.runs.option_text import describe_options, flatten, parse_settings, read_toml, to_toml
from offrec.runs.options import add_defaults, build_options, logging_training, option_names, resolve_options


def test_flat_toml_and_back() -> None:
    options = build_options(
        add_defaults(
            {"network.backbone": "sasrec", "reward.view": "0.3", "training.epochs": "7", "seed": "3"}, "events"
        )
    )
    assert options.training.epochs == 7
    assert options.reward == {"view": 0.3}
    assert options.network.layers == 2, "what SASRec does best with"
    again = build_options(flatten(tomllib.loads(to_toml(options.settings()))))
    assert again == options


def test_odd_behaviour_names_survive() -> None:
    options = build_options({"reward.add to cart": 1, "reward.müsli.v2": 2, 'reward.a"b': 3})
    assert build_options(flatten(tomllib.loads(to_toml(options.settings())))) == options


def test_paper_preset() -> None:
    """Xin et al. 2020's settings, and their rate for each data set."""
    for name, rate in (("yoochoose", 0.01), ("retailrocket", 0.005), ("events", 0.005)):
        options = resolve_options({"preset": "paper"}, name)
        assert options.network.backbone == "cfn", "the paper's RNN"
        assert options.training.learning_rate == rate
        assert (options.network.width, options.network.history, options.training.batch_size) == (64, 10, 256)
        assert (options.network.tied, options.network.repeat, options.gamma) == (False, "off", 0.5)
        assert options.training.encode == "windows"


@pytest.mark.parametrize("name", LEARNERS)
def test_presets_of_the_learners(name: str) -> None:
    paper = resolve_options({"preset": "paper", "algorithm.name": name}, "events")
    strong = resolve_options({"algorithm.name": name}, "events")
    assert (paper.gamma, paper.reward_unit, strong.reward_unit) == (0.5, "absolute", "returns")
    assert strong.gamma == (0.5 if name == "sl" else 0.9)
    if paper.learner.needs.critic != "none":
        assert (paper.critic.ground, strong.critic.ground > 0) == (0, True)
    if paper.learner.needs.critic == "own":
        assert paper.critic.repeat == "off"
    expected = {"alpha": 1.0, "expectation": "gumbel", "uniform_prior": False, "beta": 1.0}
    for option, value in expected.items():
        assert getattr(paper.learner, option, value) == value
    assert paper.critic.returns == 0.0, "the paper's targets know no logged return"
    assert getattr(strong.learner, "expectation", "exact") == "exact"
    assert getattr(strong.learner, "uniform_prior", True)
    for options in (paper, strong):
        again = build_options(flatten(tomllib.loads(to_toml(options.settings()))))
        assert again.settings() == options.settings()


def test_the_papers_particulars() -> None:
    def learner(name: str) -> Any:
        return resolve_options({"preset": "paper", "algorithm.name": name}, "events").learner

    assert (learner("pc").baseline, learner("pc").normalised) == (False, False)
    assert learner("sc").delta == 0.01
    assert learner("sr").kl == "likelihood"
    assert learner("sl+dqn").double


def test_a_given_option_beats_the_learners_preset() -> None:
    given = {"algorithm.name": "dc", "algorithm.alpha": "0.5", "gamma": "0.3", "critic.width": "none"}
    options = resolve_options(given, "events")
    assert (options.learner.alpha, options.gamma, options.critic.width) == (0.5, 0.3, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LEARNERS)
def test_described_options_are_the_options(name: str) -> None:
    """Read as TOML they are the same, and every one is explained."""
    options = resolve_options({"algorithm.name": name, "reward.view": 0.3}, "events")
    text = describe_options(options)
    assert build_options(flatten(tomllib.loads(text))) == options
    lines = text.splitlines()
    bare = [line for before, line in pairwise(lines) if "=" in line and not before.startswith("# ")]
    assert bare == ["view = 0.3"]
    assert ("# backbone =" in lines) == (options.learner.needs.critic == "own")


def test_later_layers_win(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[training]\nepochs = 4\nbatch_size = 9\n")
    layers = read_toml(tmp_path / "a.toml"), parse_settings(["training.batch_size=11"])
    options = resolve_options({"preset": "paper", **layers[0], **layers[1]}, "events")
    assert (options.training.epochs, options.training.batch_size, options.network.width) == (4, 11, 64)


@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        (
            {"network.wdth": 3},
            "no option 'network.wdth'; the nearest is network.width; `offrec options --algorithm sl` lists",
        ),
        ({"gama": 3}, "no option 'gama'; the nearest is gamma;"),
        ({"epochs": 3}, "no option 'epochs'; the nearest is training.epochs;"),
        ({"traning.epoch": 3}, "no option 'traning.epoch'; the nearest is training.epochs;"),
        ({"rewards.cart": 3}, "no option 'rewards.cart'; `offrec options --algorithm sl` lists all."),
        (
            {"algorithm.name": "dc", "algorithm.alfa": 3},
            "'algorithm.alfa'; the nearest is algorithm.alpha; .* dc` lists",
        ),
        ({"network.width": "wide"}, "network.width is 'wide'; it must be an int"),
        ({"network.width": 2.5}, "network.width is 2.5; it must be an int"),
        ({"network.width": 0}, "network.width is 0; it must be above 0"),
        ({"network.width": True}, "network.width is True; it must be an int"),
        ({"network.tied": "perhaps"}, "network.tied is 'perhaps'; it must be true or false"),
        ({"network.repeat": "never"}, "network.repeat is 'never'; it must be one of instead, bonus, off"),
        ({"network.dropout": 1}, r"network.dropout is 1.0; it must lie in \[0, 1\)"),
        ({"network.backbone": "sasrec", "network.width": 9}, "9 is not a multiple of network.heads 2"),
        ({"network.backbone": ["gru"]}, "no backbone"),
        ({"seed": -1}, "seed is -1; it must lie between 0"),
        ({"reward.view": "nan"}, "reward.view is 'nan'; it must be a float"),
        ({"training.learning_rate": "nan"}, "training.learning_rate is 'nan'"),
        ({"algorithm.name": "magic"}, "no algorithm 'magic'; there are sl"),
        ({"algorithm.weight": "gold"}, "must be one of equal, reward"),
        (
            {"algorithm.alpha": 1},
            "no option 'algorithm.alpha' of sl, only of sdac, sc, sr, pc, dc, re; `offrec options",
        ),
        ({"algorithm.name": "dc", "algorithm.alpha": 0}, "algorithm.alpha is 0.0; it must be above 0"),
        ({"algorithm.name": "dc", "critic.backbone": "mlp"}, "no backbone 'mlp'"),
        (
            {"algorithm.name": "dc", "critic.backbone": "sasrec", "critic.width": 9},
            "critic.width 9 is not a multiple of",
        ),
        ({"algorithm.name": "dc", "critic.width": 0}, "critic.width is 0; it must be above 0"),
        ({"algorithm.name": "dc", "critic.grond": 1}, "no option 'critic.grond'; the nearest are critic.ground and"),
        ({"select": "luck"}, "select is 'luck'; it must be one of ndcg, reward, value, last"),
        ({"reward_unit": "euro"}, "reward_unit is 'euro'; it must be one of returns, absolute"),
        ({"reward_shift": True, "algorithm.weight": "reward"}, "With reward_shift no reward is above 0"),
    ],
)
def test_wrong_options_get_one_sentence(flat: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_options(flat)


@pytest.mark.parametrize(
    ("preset", "backbone", "expected"), [("strong", "gru", 0.002), ("strong", "sasrec", 0.001), ("paper", "cfn", 0.01)]
)
def test_the_logging_policy_is_fitted_as_its_preset_trains_sl(preset: str, backbone: str, expected: float) -> None:
    """Not as the run: one serves all runs. What makes a run fit its machine holds for it too."""
    own = {"training.epochs": 3, "training.learning_rate": 0.3, "training.batch_size": 7, "training.precision": "bf16"}
    for name in ("dc", "sdac"):
        given = {"preset": preset, "network.backbone": backbone, "algorithm.name": name, **own}
        found = logging_training(resolve_options(given, "yoochoose"), "yoochoose")
        sl = resolve_options({"preset": preset, "network.backbone": backbone}, "yoochoose").training
        assert found == replace(sl, precision="bf16")
        assert found.learning_rate == expected


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="no preset 'weak'; there are strong, paper"):
        add_defaults({"preset": "weak"}, "events")


SHAPE = {"backbone": "sasrec", "width": 8, "layers": 2, "dropout": 0.1, "repeat": "off"}
UNREAD = [
    *(("sl+dqn", f"critic.{name}", value, f"; set network.{name}") for name, value in SHAPE.items()),
    ("pc", "algorithm.gumbel_temperature", 0.5, "takes no sample"),
    ("pc", "algorithm.straight_through", True, "takes no sample"),
]


@pytest.mark.parametrize(("algorithm", "key", "value", "why"), UNREAD)
@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_what_a_learner_does_not_read_is_refused_and_not_listed(
    preset: str, algorithm: str, key: str, value: Any, why: str
) -> None:
    given = {"algorithm.name": algorithm, "preset": preset}
    with pytest.raises(InputError, match=rf"{key} has no meaning for {re.escape(algorithm)}: .*{why}"):
        add_defaults({**given, key: value}, "events")
    options = resolve_options(given, "events")
    assert key not in options.settings()
    assert key not in option_names(algorithm)
    assert key in option_names("sdac")


def test_dqn_has_one_network() -> None:
    """So what is said of the network is said of its critic, unless the critic is spoken of."""
    for preset in ("strong", "paper"):
        given = {"algorithm.name": "dqn", "preset": preset, "network.repeat": "instead"}
        assert resolve_options(given, "events").critic.repeat == "instead"
        given["critic.repeat"] = "bonus"
        assert resolve_options(given, "events").critic.repeat == "bonus"
    dc = add_defaults({"algorithm.name": "dc", "network.repeat": "off"}, "events")
    assert build_options(dc).critic.repeat == "bonus"


@pytest.mark.parametrize("name", ["sl", "pg", "sl+pg"])
def test_who_has_no_critic_takes_no_options_of_one(name: str) -> None:
    with pytest.raises(InputError, match="which has no critic"):
        build_options({"algorithm.name": name, "critic.width": 8})
    for preset in ("strong", "paper"):
        resolve_options({"algorithm.name": name, "preset": preset}, "events")
