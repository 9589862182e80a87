"""Options of a run: settings, dataclasses and TOML describe the same options, and wrong ones are refused."""

import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import offrec
from offrec.algorithms import LEARNERS
from offrec.errors import InputError
from offrec.runs.option_errors import merge_flags
from offrec.runs.option_text import describe_options, flatten, parse_settings, read_toml, to_toml
from offrec.runs.options import add_defaults, build_options, logging_training, option_names, resolve_options


def from_toml(text: str) -> Any:
    return build_options(flatten(tomllib.loads(text)))


def test_options_survive_toml() -> None:
    settings = {"network.backbone": "sasrec", "reward.view": "0.3", "training.epochs": "7", "seed": "3"}
    options = resolve_options(settings, "events")
    assert options.training.epochs == 7
    assert options.reward == {"view": 0.3}
    assert options.network.layers == 2, "the preset of SASRec"
    assert from_toml(to_toml(options.settings())) == options


def test_unusual_behaviour_names_survive_toml() -> None:
    options = build_options({"reward.add to cart": 1, "reward.müsli.v2": 2, 'reward.a"b': 3})
    assert from_toml(to_toml(options.settings())) == options


def test_the_paper_preset_has_the_settings_of_xin_et_al() -> None:
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
    assert strong.gamma == (0.5 if name in ("sl", "user-model") else 0.9), "neither of the two reads it"
    if paper.learner.needs.critic != "none":
        sampled = 10 if name in ("snqn", "sa2c") else 0  # Xin et al. 2022 sample items, the paper does not
        assert (paper.critic.ground, strong.critic.ground > 0) == (sampled, True)
    if paper.learner.needs.critic == "own":
        assert paper.critic.repeat == "off"
    expected = {"alpha": 1.0, "expectation": "gumbel", "uniform_prior": False, "beta": 1.0}
    for option, value in expected.items():
        assert getattr(paper.learner, option, value) == value
    assert paper.critic.returns == 0.0, "the paper's targets do not use logged returns"
    assert getattr(strong.learner, "expectation", "exact") == "exact"
    assert getattr(strong.learner, "uniform_prior", True)
    for options in (paper, strong):
        assert from_toml(to_toml(options.settings())).settings() == options.settings()


def test_the_paper_preset_follows_the_paper_in_each_learner() -> None:
    def learner(name: str) -> Any:
        return resolve_options({"preset": "paper", "algorithm.name": name}, "events").learner

    assert (learner("pc").baseline, learner("pc").normalised) == (False, False)
    assert learner("sc").delta == 0.01
    assert (learner("sr").adaptive, learner("sr").epsilon, learner("sr").kl) == (True, 1.0, "likelihood")
    assert learner("sl+dqn").double


def test_a_given_option_overrides_the_preset_of_the_learner() -> None:
    settings = {"algorithm.name": "dc", "algorithm.alpha": "0.5", "gamma": "0.3", "critic.width": "none"}
    options = resolve_options(settings, "events")
    assert (options.learner.alpha, options.gamma, options.critic.width) == (0.5, 0.3, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LEARNERS)
def test_the_described_options_are_the_options(name: str) -> None:
    """The text is TOML with the same values, and every option has a help text."""
    options = resolve_options({"algorithm.name": name, "reward.view": 0.3}, "events")
    text = describe_options(options)
    assert from_toml(text) == options
    lines = text.splitlines()
    settings = [(before, line) for before, line in pairwise(lines) if "=" in line and not line.startswith("#")]
    assert [line for before, line in settings if not before.startswith("# ")] == []
    assert ("# backbone =" in lines) == (options.learner.needs.critic == "own")


def test_described_options_contain_bounds_and_choices() -> None:
    text = " ".join(describe_options(resolve_options({}, "events")).replace("# ", "").split())
    assert "At least 0 and below 1. dropout = 0.3" in text
    assert "One of instead, bonus, off. repeat =" in text


def test_set_overrides_the_toml_file_which_overrides_the_preset(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[training]\nepochs = 4\nbatch_size = 9\n")
    file, flags = read_toml(tmp_path / "a.toml"), parse_settings(["training.batch_size=11"])
    options = resolve_options({"preset": "paper", **file, **flags}, "events")
    assert (options.training.epochs, options.training.batch_size, options.network.width) == (4, 11, 64)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"network.wdth": 3},
            "no option 'network.wdth'; did you mean network.width\\? `offrec options --algorithm sl`",
        ),
        ({"gama": 3}, "no option 'gama'; did you mean gamma"),
        ({"epochs": 3}, "no option 'epochs'; did you mean training.epochs"),
        ({"traning.epoch": 3}, "no option 'traning.epoch'; did you mean training.epochs"),
        ({"rewards.cart": 3}, "no option 'rewards.cart'; `offrec options --algorithm sl` lists all"),
        ({"algorithm.name": "dc", "algorithm.alfa": 3}, "'algorithm.alfa'; did you mean algorithm.alpha.* dc` lists"),
        ({"network.width": "wide"}, "network.width must be a whole number; got 'wide'"),
        ({"network.width": 2.5}, "network.width must be a whole number; got 2.5"),
        ({"network.width": 0}, "network.width must be at least 1 .*; got 0"),
        ({"network.width": True}, "network.width must be a whole number; got True"),
        (
            {"network.layers": str(2**63)},
            "network.layers must be at least 1 and at most 1,000; got 9223372036854775808",
        ),
        ({"training.patience": 2**63}, "training.patience must be at most 2,147,483,647; got 9223372036854775808"),
        ({"network.tied": "perhaps"}, "network.tied must be true or false; got 'perhaps'"),
        ({"network.repeat": "never"}, "network.repeat must be one of instead, bonus, off; got 'never'"),
        ({"network.dropout": 1}, "network.dropout must be at least 0 and below 1; got 1.0"),
        (
            {"network.backbone": "sasrec", "network.width": 9},
            "network.width must be a multiple of network.heads, 2; got 9",
        ),
        ({"network.backbone": "grv"}, "no backbone 'grv'; did you mean gru"),
        ({"gamma": 1.1}, "gamma must be at least 0 and at most 1; got 1.1"),
        ({"seed": -1}, "seed must be at least 0 and at most .*; got -1"),
        ({"reward.view": "nan"}, "reward.view must be a finite number; got 'nan'"),
        ({"training.learning_rate": "nan"}, "training.learning_rate must be a finite number"),
        ({"algorithm.name": "magic"}, "no algorithm 'magic'; the known ones are sl"),
        ({"algorithm.weight": "gold"}, "must be one of equal, reward"),
        ({"algorithm.alpha": 1}, "algorithm.alpha is not an option of sl, only of sdac, sc, sr, pc, dc, re; `offrec"),
        ({"algorithm.name": "dc", "algorithm.alpha": 0}, "algorithm.alpha must be above 0; got 0.0"),
        ({"algorithm.name": "dc", "critic.backbone": "mlp"}, "no backbone 'mlp'"),
        (
            {"algorithm.name": "dc", "critic.backbone": "sasrec", "critic.width": 9},
            "critic.width must be a multiple of network.heads",
        ),
        ({"algorithm.name": "dc", "critic.width": 0}, "critic.width must be at least 1 .*; got 0"),
        ({"algorithm.name": "dc", "critic.target_rate": 0}, "critic.target_rate must be above 0 and at most 1"),
        ({"algorithm.name": "dc", "critic.grond": 1}, "no option 'critic.grond'; did you mean critic.ground or"),
        ({"select": "luck"}, "select must be one of ndcg, reward, value, last; got 'luck'"),
        ({"reward_unit": "euro"}, "reward_unit must be one of returns, absolute; got 'euro'"),
        ({"reward_shift": True, "algorithm.weight": "reward"}, "reward_shift leaves no reward above 0"),
    ],
)
def test_wrong_options_are_refused_with_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_options(settings)


@pytest.mark.parametrize(
    ("preset", "backbone", "expected"), [("strong", "gru", 0.002), ("strong", "sasrec", 0.001), ("paper", "cfn", 0.01)]
)
def test_the_logging_policy_is_trained_as_its_preset_trains_sl(preset: str, backbone: str, expected: float) -> None:
    """Only the options that adapt a run to its machine come from the run, and epochs below its default."""
    own = {"training.epochs": 3, "training.learning_rate": 0.3, "training.batch_size": 7, "training.precision": "bf16"}
    for name in ("dc", "sdac"):
        settings = {"preset": preset, "network.backbone": backbone, "algorithm.name": name, **own}
        training = logging_training(resolve_options(settings, "yoochoose"), "yoochoose")
        sl = resolve_options({"preset": preset, "network.backbone": backbone}, "yoochoose").training
        assert training == replace(sl, precision="bf16", epochs=3)
        more = resolve_options({**settings, "training.epochs": 70}, "yoochoose")
        assert logging_training(more, "yoochoose").epochs == sl.epochs
        assert training.learning_rate == expected


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(InputError, match="no preset 'weak'; the known ones are strong, paper"):
        add_defaults({"preset": "weak"}, "events")


SHAPE = {"backbone": "sasrec", "width": 8, "layers": 2, "dropout": 0.1, "repeat": "off"}
IGNORED = [
    *(("sl+dqn", f"critic.{name}", value, f"; set network.{name}") for name, value in SHAPE.items()),
    ("pc", "algorithm.gumbel_temperature", 0.5, "does not sample"),
    ("pc", "algorithm.straight_through", True, "does not sample"),
]


@pytest.mark.parametrize(("algorithm", "key", "value", "reason"), IGNORED)
@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_options_that_a_learner_ignores_are_refused_and_not_listed(
    preset: str, algorithm: str, key: str, value: Any, reason: str
) -> None:
    settings = {"algorithm.name": algorithm, "preset": preset}
    with pytest.raises(InputError, match=rf"{key} has no effect on {re.escape(algorithm)}: .*{reason}"):
        add_defaults({**settings, key: value}, "events")
    assert key not in resolve_options(settings, "events").settings()
    assert key not in option_names(algorithm)
    assert key in option_names("sdac")


def test_network_options_of_dqn_apply_to_its_critic() -> None:
    """The critic is the only network of DQN."""
    for preset in ("strong", "paper"):
        settings = {"algorithm.name": "dqn", "preset": preset, "network.repeat": "instead"}
        assert resolve_options(settings, "events").critic.repeat == "instead"
        settings["critic.repeat"] = "bonus"
        assert resolve_options(settings, "events").critic.repeat == "bonus"
    assert resolve_options({"algorithm.name": "dc", "network.repeat": "off"}, "events").critic.repeat == "bonus"


@pytest.mark.parametrize("name", ["sl", "pg", "sl+pg"])
def test_learners_without_a_critic_refuse_critic_options(name: str) -> None:
    with pytest.raises(InputError, match="it has no critic"):
        build_options({"algorithm.name": name, "critic.width": 8})
    for preset in ("strong", "paper"):
        assert not any(key.startswith("critic.") for key in add_defaults({"algorithm.name": name}, preset))


def test_conflicting_options_are_refused(tmp_path: Path, make_dataset: Any) -> None:
    dataset = make_dataset(tmp_path, [[0, 1], [1, 2], [2, 0]], splits=(1, 1, 1))
    with pytest.raises(InputError, match=r"algorithm is dqn, but algorithm.name is set to sl; give only one"):
        offrec.train(dataset, tmp_path / "run", algorithm="dqn", settings={"algorithm.name": "sl"})
    with pytest.raises(InputError, match="seed is 1, but seed is set to 2"):
        offrec.train(dataset, tmp_path / "run", seed=1, settings={"seed": 2})
    assert not (tmp_path / "run").exists()
    assert merge_flags({"--seed": ("seed", 3), "--device": ("device", None)}, {"seed": "3"}) == {"seed": 3}
    with pytest.raises(InputError, match=r"--set gives training.epochs two values, 3 and 4"):
        parse_settings(["training.epochs=3", "training.epochs=4"])
