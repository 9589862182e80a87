"""The options of a run: settings under dotted keys ↔ frozen dataclasses.

Later layers override earlier ones: preset, then the settings of backbone and learner for that preset, then the TOML
file, then --set.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from offrec.algorithms import LEARNERS, Learner
from offrec.backbones import BACKBONES
from offrec.errors import InputError
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.plugins import Settings, check_bounds, option
from offrec.runs.option_errors import merge_flags, unknown_option
from offrec.runs.presets import PRESETS
from offrec.training.loop import TrainingOptions

SECTIONS = {"network": NetworkOptions, "critic": CriticOptions, "training": TrainingOptions}
MACHINE = ("precision", "table_state", "capture", "memory_check")  # training options that adapt a run to its machine
TOP = ("preset", "seed", "device", "gamma", "reward_unit", "reward_shift", "select", "diagnostics", "catalogue")


@dataclass(frozen=True)
class RunOptions:
    """Every option of a run."""

    algorithm: str
    learner: Learner
    network: NetworkOptions
    training: TrainingOptions
    critic: CriticOptions = field(default_factory=CriticOptions)
    reward: dict[str, float] = field(default_factory=dict)
    gamma: float = option(0.5, minimum=0.0, maximum=1.0)
    """γ: the discount factor per step of a session."""
    reward_unit: Literal["returns", "absolute"] = "returns"
    """returns: divide rewards by the standard deviation of the log's returns, so that temperatures suit any log.
    absolute: use rewards unchanged."""
    reward_shift: bool = False
    """Subtract the largest reward from all rewards, as in the paper. This makes long sessions worth less."""
    select: Literal["ndcg", "reward", "value", "last"] = "ndcg"
    """Which checkpoint to keep: the one with the largest validation NDCG@10, reward@10 (hits weighted by reward) or
    value@5 (estimated value of the top five), or the last. The first two favour imitation of the log."""
    diagnostics: Literal["all", "some"] = "all"
    """Which diagnostics to log after each epoch of a learner with rewards. all: include the distance between
    policy and π̂_b, which is fitted for this purpose if necessary. some: only diagnostics without an additional fit."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Seed of weights, batches and dropout."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    preset: str = "strong"
    """strong or paper."""
    catalogue: Literal["auto", "reference", "tiled", "kernels"] = "auto"
    """Implementation of computations over the whole catalogue; auto: kernels on a GPU, tiled elsewhere."""

    def sections(self) -> dict[str, Any]:
        """Return the option objects that the learner reads, by section."""
        sections = {
            "algorithm": self.learner,
            "network": self.network,
            "critic": self.critic,
            "training": self.training,
        }
        if self.learner.needs.critic == "none":
            del sections["critic"]
        return sections

    def settings(self) -> Settings:
        """Return every option under its dotted key. They are stored with the run and suffice to repeat it."""
        settings: Settings = {name: getattr(self, name) for name in TOP}
        settings["algorithm.name"] = self.algorithm
        for section, options in self.sections().items():
            settings |= {f"{section}.{one.name}": getattr(options, one.name) for one in fields(options)}
        ignored = LEARNERS[self.algorithm].ignored
        settings = {key: value for key, value in settings.items() if key not in ignored}
        return settings | {f"reward.{name}": value for name, value in self.reward.items()}


def resolve_options(
    settings: Mapping[str, Any], dataset_format: str, flags: Mapping[str, tuple[str, Any]] | None = None
) -> RunOptions:
    """Build the options of a run from settings and the defaults of their preset, backbone and learner.

    Args:
        settings: Values under dotted keys, as text or as numbers.
        dataset_format: Raw format of the dataset; the paper's learning rate depends on it.
        flags: The key and value of each flag, as in `merge_flags`.

    Returns:
        The options.

    Raises:
        InputError: A key or a value is not valid, or a flag and a setting disagree.
    """
    return build_options(add_defaults(merge_flags(flags or {}, settings), dataset_format))


def add_defaults(settings: Settings, dataset_format: str) -> Settings:
    """Add the defaults of preset, backbone and learner to the given settings."""
    preset = PRESETS[settings.get("preset", "strong")]
    backbone = BACKBONES[settings.get("network.backbone", preset.backbone)]
    record = LEARNERS[settings.get("algorithm.name", "sl")]
    for key, reason in record.ignored.items():
        if settings.get(key) not in (None, "none"):
            raise InputError(f"{key} has no effect on {record.name}: {reason}.")
    defaults = {**preset.settings, **backbone.presets.get(preset.name, {})}
    if dataset_format in preset.learning_rates:
        defaults["training.learning_rate"] = preset.learning_rates[dataset_format]
    defaults |= record.presets.get(preset.name, {})
    needs = record.learner().needs
    if needs.critic == "none":
        defaults = {key: value for key, value in defaults.items() if not key.startswith("critic.")}
    defaults = {key: value for key, value in defaults.items() if key not in record.ignored}
    if not needs.actor and "network.repeat" in settings:
        defaults["critic.repeat"] = settings["network.repeat"]  # the critic is the only network
    return {"preset": preset.name, "network.backbone": backbone.name, **defaults, **settings}


def build_options(settings: Settings) -> RunOptions:
    """Build options from settings alone, without a preset. Unknown keys and values out of bounds are errors."""
    record = LEARNERS[settings.get("algorithm.name", "sl")]
    classes = SECTIONS | {"algorithm": record.learner}
    sections: dict[str, Settings] = {section: {} for section in classes}
    top: Settings = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if key == "algorithm.name":
            continue
        if section == "reward" and name:
            top.setdefault("reward", {})[name] = _cast(key, value, float)
        elif name and section in classes and name in (hints := get_type_hints(classes[section])):
            sections[section][name] = _cast(key, value, hints[name])
        elif key in TOP:
            top[key] = _cast(key, value, get_type_hints(RunOptions)[key])
        else:
            raise InputError(unknown_option(key, record.name, {name: option_names(name) for name in LEARNERS}))
    built = {section: kind(**sections[section]) for section, kind in classes.items()}
    options = RunOptions(record.name, built["algorithm"], built["network"], built["training"], built["critic"], **top)
    if sections["critic"] and options.learner.needs.critic == "none":
        raise InputError(f"critic.{next(iter(sections['critic']))} has no effect on {record.name}: it has no critic.")
    _check(options)
    return options


def logging_training(options: RunOptions, dataset_format: str) -> TrainingOptions:
    """Return the training options for fitting π̂_b of a run.

    π̂_b is trained as the preset trains SL with this backbone. It ignores the run's learning rate and batch size, so
    that runs can share it. The options that adapt a run to its machine come from the run, and so does the number of
    epochs if it is below the default of the run's learner.
    """
    settings = {"preset": options.preset, "network.backbone": options.network.backbone}
    training = resolve_options(settings, dataset_format).training
    ignored = LEARNERS[options.algorithm].ignored
    of_learner = {key: value for key, value in settings.items() if key not in ignored}
    default = resolve_options({**of_learner, "algorithm.name": options.algorithm}, dataset_format).training.epochs
    if options.training.epochs < default:
        training = replace(training, epochs=min(training.epochs, options.training.epochs))
    return replace(training, **{name: getattr(options.training, name) for name in MACHINE})


def option_names(algorithm: str = "sl") -> list[str]:
    """Return every dotted key that a learner reads."""
    record = LEARNERS[algorithm]
    classes: dict[str, Any] = SECTIONS | {"algorithm": record.learner}
    keys = [f"{section}.{one.name}" for section, kind in classes.items() for one in fields(kind)]
    keys = [key for key in keys if key not in record.ignored]
    return ["algorithm.name", *keys, "reward.<behaviour>", *TOP]


def _check(options: RunOptions) -> None:
    check_bounds("", options)
    for section, values in options.sections().items():
        check_bounds(section, values)
    _check_network("network", options.network)
    if options.learner.needs.critic == "own":
        _check_network("critic", options.critic.network(options.network))
    if options.reward_shift and options.learner.needs.weights_by_reward:
        raise InputError(
            f"reward_shift leaves no reward above 0, but {options.algorithm} weights events by their rewards; set "
            "reward_shift=false."
        )


def _check_network(section: str, network: NetworkOptions) -> None:
    """Look up the backbone, and let it check its sizes."""
    check = BACKBONES[network.backbone].check
    reason = check(network.sizes) if check else None
    if reason is not None:
        raise InputError(f"{section}.{reason}")


def _cast(key: str, value: Any, kind: Any) -> Any:
    """Convert text from the command line, or a TOML value, to the option's type."""
    choices = get_args(kind) if get_origin(kind) is Literal else None
    try:
        if choices is not None:
            if value in choices:
                return value
        elif get_origin(kind) in (Union, UnionType):
            inner = next(one for one in get_args(kind) if one is not NoneType)
            return None if value in (None, "none") else _cast(key, value, inner)
        elif kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        elif kind is float and math.isfinite(float(value)):
            return float(value)
        elif kind is int and not isinstance(value, bool):
            return _integer(value)
        elif kind is str and isinstance(value, str):
            return value
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    if choices is not None:
        expected = f"one of {', '.join(map(str, choices))}"
    else:
        expected = {bool: "true or false", int: "a whole number", float: "a finite number"}.get(kind, "text")
    raise InputError(f"{key} must be {expected}; got {value!r}.")


def _integer(value: Any) -> int:
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        return int(value)  # exact for any number of digits
    if float(value) != int(float(value)):
        raise ValueError
    return int(value if isinstance(value, int) else float(value))
