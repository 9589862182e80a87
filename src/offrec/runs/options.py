"""Options of a run: dotted keys ↔ frozen dataclasses ↔ TOML. One tree, three spellings.

Later layers win: preset, then what backbone and learner do best with, then the TOML file, then --set.
"""

import ast
import inspect
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from offrec.algorithms import LEARNERS, Learner
from offrec.backbones import BACKBONES
from offrec.errors import InputError
from offrec.models.critic import CriticOptions
from offrec.models.network import NetworkOptions
from offrec.plugins import Settings, check_bounds, option
from offrec.runs import option_errors as unknown
from offrec.runs.presets import PRESETS
from offrec.training.loop import TrainingOptions

SECTIONS = {"network": NetworkOptions, "critic": CriticOptions, "training": TrainingOptions}
MACHINE = ("precision", "table_state", "capture", "memory_check")  # training options that make a run fit its machine
TOP = ("preset", "seed", "device", "gamma", "reward_unit", "reward_shift", "select", "diagnostics", "catalogue")


@dataclass(frozen=True)
class RunOptions:
    algorithm: str
    learner: Learner
    network: NetworkOptions
    training: TrainingOptions
    critic: CriticOptions = field(default_factory=CriticOptions)
    reward: dict[str, float] = field(default_factory=dict)
    gamma: float = option(0.5, minimum=0.0, maximum=1.0)
    """γ: what a reward one step later is worth."""
    reward_unit: Literal["returns", "absolute"] = "returns"
    """Count rewards in spreads of the log's returns, so that temperatures suit any log, or as they are."""
    reward_shift: bool = False
    """Subtract the largest reward from all, as in the paper. Not neutral: it makes long sessions worth less."""
    select: Literal["ndcg", "reward", "value", "last"] = "ndcg"
    """The checkpoint kept: the largest NDCG@10 on validation, the largest reward@10 (hits weighted by reward), the
    largest value@5 (what its best five were worth to the log's visitors), or the last. The first two reward
    imitation, which is not what a policy that is to earn should be chosen by."""
    diagnostics: Literal["all", "some"] = "all"
    """What is logged of a learner with rewards after each epoch. all: also how far its policy is from π̂_b, which is
    fitted for that where it is not there yet; some: only what needs no π̂_b that the learner itself does not need."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Of weights, batches and dropout."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 …"""
    preset: str = "strong"
    """strong or paper."""
    catalogue: Literal["auto", "reference", "tiled", "kernels"] = "auto"
    """What computes over the whole catalogue; auto: kernels on a GPU, tiled elsewhere."""

    def sections(self) -> dict[str, Any]:
        """Those that matter to the learner, by name."""
        found = {"algorithm": self.learner, "network": self.network, "critic": self.critic, "training": self.training}
        return found if self.learner.needs.critic != "none" else {k: v for k, v in found.items() if k != "critic"}

    def flat(self) -> Settings:
        """Every option under its dotted key: what is stored with a run, and enough to repeat it."""
        found: Settings = {name: getattr(self, name) for name in TOP}
        found["algorithm.name"] = self.algorithm
        for section, options in self.sections().items():
            for one in fields(options):
                found[f"{section}.{one.name}"] = getattr(options, one.name)
        found = {key: value for key, value in found.items() if key not in LEARNERS[self.algorithm].ignored}
        return found | {f"reward.{name}": value for name, value in self.reward.items()}


def layered(flat: Settings, dataset_format: str) -> Settings:
    """The given settings on top of those of their preset, backbone and learner."""
    preset = PRESETS[flat.get("preset", "strong")]
    backbone = BACKBONES[flat.get("network.backbone", preset.backbone)]
    learner = LEARNERS[flat.get("algorithm.name", "sl")]
    for key, reason in learner.ignored.items():
        if flat.get(key) not in (None, "none"):
            raise InputError(f"{key} has no effect on {learner.name}: {reason}.")
    base = {**preset.settings, **backbone.presets.get(preset.name, {}), **learner.presets.get(preset.name, {})}
    if dataset_format in preset.learning_rates:
        base["training.learning_rate"] = preset.learning_rates[dataset_format]
    needs = learner.learner().needs
    if needs.critic == "none":
        base = {key: value for key, value in base.items() if not key.startswith("critic.")}
    base = {key: value for key, value in base.items() if key not in learner.ignored}
    if not needs.actor and "network.repeat" in flat:
        base["critic.repeat"] = flat["network.repeat"]  # the critic is the only network
    return {"preset": preset.name, "network.backbone": backbone.name, **base, **flat}


def logging_training(options: RunOptions, dataset_format: str) -> TrainingOptions:
    """How π̂_b of a run is fitted: as its preset has SL trained on that backbone, whatever the run's own rate, batches
    or epochs, so that one serves all runs; only as large and as precise as the run itself can afford.
    """
    flat = layered({"preset": options.preset, "network.backbone": options.network.backbone}, dataset_format)
    return replace(build(flat).training, **{name: getattr(options.training, name) for name in MACHINE})


def build(flat: Settings) -> RunOptions:
    """Dotted keys → options. Unknown keys are refused with the nearest ones."""
    name = LEARNERS[flat.get("algorithm.name", "sl")].name
    for key in ("network.backbone", "critic.backbone"):
        if flat.get(key) not in (None, "none"):
            BACKBONES[flat[key]]
    kinds = SECTIONS | {"algorithm": LEARNERS[name].learner}
    sections: dict[str, Settings] = {section: {} for section in kinds}
    top: Settings = {}
    for key, value in flat.items():
        section, _, option = key.partition(".")
        if key == "algorithm.name":
            continue
        if section == "reward" and option:
            top.setdefault("reward", {})[option] = _cast(key, value, float)
        elif option and section in kinds and option in (hints := get_type_hints(kinds[section])):
            sections[section][option] = _cast(key, value, hints[option])
        elif key in TOP:
            top[key] = _cast(key, value, get_type_hints(RunOptions)[key])
        else:
            raise InputError(unknown.sentence(key, name, {other: known(other) for other in LEARNERS}))
    made = {section: kind(**sections[section]) for section, kind in kinds.items()}
    options = RunOptions(name, made["algorithm"], made["network"], made["training"], made["critic"], **top)
    if sections["critic"] and options.learner.needs.critic == "none":
        raise InputError(f"critic.{next(iter(sections['critic']))} has no meaning for {name}, which has no critic.")
    _check(options)
    return options


def known(algorithm: str = "sl") -> list[str]:
    """Every dotted key there is."""
    kinds = SECTIONS | {"algorithm": LEARNERS[algorithm].learner}
    keys = [f"{section}.{one.name}" for section, kind in kinds.items() for one in fields(kind)]
    keys = [key for key in keys if key not in LEARNERS[algorithm].ignored]
    return ["algorithm.name", *keys, "reward.<behaviour>", *TOP]


def _cast(key: str, value: Any, kind: Any) -> Any:
    """Text from the command line and values from TOML alike."""
    choices = get_args(kind) if get_origin(kind) is Literal else None
    try:
        if choices is not None:
            if value in choices:
                return value
        elif get_origin(kind) in (Union, UnionType):
            inner = next(k for k in get_args(kind) if k is not NoneType)
            return None if value in (None, "none") else _cast(key, value, inner)
        elif kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        elif kind is float and math.isfinite(float(value)):
            return float(value)
        elif kind is int and not isinstance(value, bool) and float(value) == int(value):
            return int(value)
        elif kind is str and isinstance(value, str):
            return value
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    wanted = (
        f"one of {', '.join(map(str, choices))}"
        if choices
        else {bool: "true or false"}.get(kind, f"a{'n' if kind is int else ''} {kind.__name__}")
    )
    raise InputError(f"{key} is {value!r}; it must be {wanted}.")


def _check(options: RunOptions) -> None:
    check_bounds("", options)
    for section, values in options.sections().items():
        check_bounds(section, values)
    _check_sizes("network", options.network)
    if options.learner.needs.critic == "own":
        _check_sizes("critic", options.critic.network(options.network))
    if options.reward_shift and options.algorithm == "sl" and options.learner.needs_reward:
        raise InputError(
            "reward_shift leaves no reward above 0, so rewards cannot be weights; set algorithm.weight=equal."
        )


def _check_sizes(section: str, network: NetworkOptions) -> None:
    check = BACKBONES[network.backbone].check
    reason = check(network.sizes) if check else None
    if reason is not None:
        raise InputError(f"{section}.{reason}")


def parse_set(pairs: Iterable[str]) -> Settings:
    """["training.epochs=3", …] → dotted keys."""
    flat: Settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair} is not of the form key=value, for example --set training.epochs=3.")
        flat[key.strip()] = value.strip()
    return flat


def read_toml(path: Path) -> Settings:
    try:
        return flatten(tomllib.loads(path.read_text()))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from error


def flatten(tree: dict[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def to_toml(flat: Settings) -> str:
    """The same options as a TOML file; None is left out, being the default wherever it is allowed."""
    top = [f"{key} = {_toml(value)}" for key, value in flat.items() if "." not in key and value is not None]
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, dot, option = key.partition(".")
        if dot and value is not None:
            sections.setdefault(section, []).append(f"{_toml_key(option)} = {_toml(value)}")
    blocks = ["\n".join([f"[{section}]", *lines]) for section, lines in sections.items()]
    return "\n\n".join(["\n".join(top), *blocks]) + "\n"


def described(options: RunOptions) -> str:
    """As TOML, each option under what it means."""
    kinds: dict[str, type] = {"": RunOptions, **{name: type(section) for name, section in options.sections().items()}}
    meanings = {name: _meanings(kind) for name, kind in kinds.items()}
    meanings["algorithm"] |= {"name": f"The learner: {', '.join(LEARNERS)}."}
    blocks: dict[str, list[str]] = {}
    for key, value in options.flat().items():
        section, dot, option = key.partition(".")
        section, option = (section, option) if dot else ("", section)
        lines = blocks.setdefault(section, [f"[{section}]"] if section else [])
        lines += textwrap.wrap(
            meanings.get(section, {}).get(option, ""), 118, initial_indent="# ", subsequent_indent="# "
        )
        lines.append(f"# {option} =" if value is None else f"{_toml_key(option)} = {_toml(value)}")
    return "\n\n".join("\n".join(lines) for lines in blocks.values()) + "\n"


def _meanings(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass and of those it builds on; Python itself does not keep it."""
    found: dict[str, str] = {}
    for one in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(one)).body[0]).body
        for field_, text in pairwise(body):
            if (
                isinstance(field_, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[ast.unparse(field_.target)] = " ".join(str(text.value.value).split())
    return found


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
