"""Options of a run: dotted keys ↔ frozen dataclasses ↔ TOML. One tree, three spellings.

Later layers win: preset, then what the backbone does best with, then the TOML file, then --set.
"""

import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from offrec.algorithms import ALGORITHMS, Learner
from offrec.backbones import BACKBONES
from offrec.errors import InputError
from offrec.networks import NetworkOptions
from offrec.training import TrainingOptions

Flat = dict[str, Any]
Preset = Literal["strong", "paper"]

SECTIONS = {"network": NetworkOptions, "training": TrainingOptions}


@dataclass(frozen=True)
class RunOptions:
    algorithm: str
    learner: Learner
    network: NetworkOptions
    training: TrainingOptions
    reward: dict[str, float] = field(default_factory=dict)
    gamma: float = 0.5
    seed: int = 0
    device: str = "auto"
    preset: str = "strong"

    def flat(self) -> Flat:
        """Every option under its dotted key: what is stored with a run, and enough to repeat it."""
        found: Flat = {name: getattr(self, name) for name in ("preset", "seed", "device", "gamma")}
        found["algorithm.name"] = self.algorithm
        for section, options in (("algorithm", self.learner), ("network", self.network), ("training", self.training)):
            for option in fields(options):  # type: ignore[arg-type]
                found[f"{section}.{option.name}"] = getattr(options, option.name)
        return found | {f"reward.{name}": value for name, value in self.reward.items()}


# Xin et al. 2020's settings, which the paper's figures imply. Their rate differs between the two data sets.
PAPER: Flat = {
    "network.width": 64,
    "network.history": 10,
    "network.dropout": 0.0,
    "network.tied": False,
    "network.repeat": "off",
    "network.layers": 1,
    "training.encode": "windows",
    "training.batch_size": 256,
    "training.learning_rate": 0.005,
    "training.decay": 1.0,
    "training.warmup": 0,
    "gamma": 0.5,
}
PAPER_RATES = {"yoochoose": 0.01, "retailrocket": 0.005}
STRONG_BACKBONES: dict[str, Flat] = {
    "sasrec": {"network.layers": 2, "training.learning_rate": 0.001},
    "nextitnet": {"training.learning_rate": 0.001},
}


def layered(flat: Flat, dataset_format: str) -> Flat:
    """The options given, on top of what their preset and backbone bring along."""
    preset = flat.get("preset", "strong")
    if preset not in get_args(Preset):
        raise InputError(f"There is no preset {preset!r}; there are {', '.join(get_args(Preset))}.")
    backbone = flat.get("network.backbone", "cfn" if preset == "paper" else "gru")
    if preset == "paper":
        base = PAPER | {"training.learning_rate": PAPER_RATES.get(dataset_format, PAPER["training.learning_rate"])}
    else:
        base = STRONG_BACKBONES.get(str(backbone), {})
    return {"preset": preset, "network.backbone": backbone, **base, **flat}


def build(flat: Flat) -> RunOptions:
    """Dotted keys → options. Unknown keys are refused with the known ones."""
    name = str(flat.get("algorithm.name", "sl"))
    if name not in ALGORITHMS:
        raise InputError(f"There is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}.")
    backbone = flat.get("network.backbone", "gru")
    if not isinstance(backbone, str) or backbone not in BACKBONES:
        raise InputError(f"There is no backbone {backbone!r}; there are {', '.join(BACKBONES)}.")
    kinds = SECTIONS | {"algorithm": ALGORITHMS[name]}
    sections: dict[str, Flat] = {section: {} for section in kinds}
    top: Flat = {}
    for key, value in flat.items():
        section, _, option = key.partition(".")
        if key == "algorithm.name":
            continue
        if section == "reward" and option:
            top.setdefault("reward", {})[option] = _cast(key, value, float)
        elif option and section in kinds and option in (hints := get_type_hints(kinds[section])):
            sections[section][option] = _cast(key, value, hints[option])
        elif key in ("gamma", "seed", "device", "preset"):
            top[key] = _cast(key, value, get_type_hints(RunOptions)[key])
        else:
            raise InputError(f"There is no option {key!r}; the options are {', '.join(known(name))}.")
    made = {section: kind(**sections[section]) for section, kind in kinds.items()}
    options = RunOptions(name, made["algorithm"], made["network"], made["training"], **top)
    _check(options)
    return options


def known(algorithm: str = "sl") -> list[str]:
    """Every dotted key there is."""
    kinds = SECTIONS | {"algorithm": ALGORITHMS[algorithm]}
    keys = [f"{section}.{f.name}" for section, kind in kinds.items() for f in fields(kind)]
    return ["algorithm.name", *keys, "reward.<behaviour>", "gamma", "seed", "device", "preset"]


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
    positive = {
        "network.width": options.network.width,
        "network.layers": options.network.layers,
        "network.history": options.network.history,
        "network.heads": options.network.heads,
        "network.window": options.network.window,
        "training.epochs": options.training.epochs,
        "training.batch_size": 1 if options.training.batch_size is None else options.training.batch_size,
        "training.learning_rate": options.training.learning_rate,
        "training.patience": options.training.patience,
    }
    for key, value in positive.items():
        if not value > 0:
            raise InputError(f"{key} is {value}; it must be above 0.")
    if not 0 <= options.network.dropout < 1:
        raise InputError(f"network.dropout is {options.network.dropout}; it must lie in [0, 1).")
    if not 0 < options.training.decay <= 1:
        raise InputError(f"training.decay is {options.training.decay}; it must lie in (0, 1].")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"seed is {options.seed}; it must lie between 0 and 2^63 − 1.")
    if options.network.backbone == "sasrec" and options.network.width % options.network.heads:
        raise InputError(
            f"network.width {options.network.width} is not a multiple of network.heads {options.network.heads}."
        )


def parse_set(pairs: Iterable[str]) -> Flat:
    """["training.epochs=3", …] → dotted keys."""
    flat: Flat = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair} is not of the form key=value, for example --set training.epochs=3.")
        flat[key.strip()] = value.strip()
    return flat


def read_toml(path: Path) -> Flat:
    try:
        return flatten(tomllib.loads(path.read_text()))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from error


def flatten(tree: dict[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def to_toml(flat: Flat) -> str:
    """The same options as a TOML file; None is left out, being the default wherever it is allowed."""
    top = [f"{key} = {_toml(value)}" for key, value in flat.items() if "." not in key and value is not None]
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, dot, option = key.partition(".")
        if dot and value is not None:
            sections.setdefault(section, []).append(f"{_toml_key(option)} = {_toml(value)}")
    blocks = ["\n".join([f"[{section}]", *lines]) for section, lines in sections.items()]
    return "\n\n".join(["\n".join(top), *blocks]) + "\n"


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
