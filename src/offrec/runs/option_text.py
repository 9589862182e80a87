"""Settings as text: `--set key=value`, TOML files, and the list that `offrec options` prints."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.data import json_files
from offrec.errors import InputError
from offrec.plugins import Registry, Settings, bounds_of
from offrec.runs.options import RunOptions
from offrec.runs.presets import PRESETS

REGISTERED: dict[str, tuple[str, Registry[Any]]] = {  # options whose values are the names in a registry
    "algorithm.name": ("The learner", LEARNERS),
    "network.backbone": ("The backbone", BACKBONES),
    "critic.backbone": ("The critic's backbone; by default the actor's", BACKBONES),
    "preset": ("The preset", PRESETS),
}


def parse_settings(pairs: Iterable[str]) -> Settings:
    """Parse the values of --set: ["training.epochs=3", …]. A key with two different values is an error."""
    settings: Settings = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InputError(f"--set {pair} is not of the form key=value, for example --set training.epochs=3.")
        if settings.get(key, value) != value:
            raise InputError(f"--set gives {key} two values, {settings[key]} and {value}; give only one of them.")
        settings[key] = value
    return settings


def read_toml(path: Path) -> Settings:
    """Read settings from a TOML file."""
    return flatten(json_files.read_toml(path))


def flatten(tree: dict[str, Any], prefix: str = "") -> Settings:
    """Convert nested tables to dotted keys."""
    settings: Settings = {}
    for key, value in tree.items():
        settings |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return settings


def to_toml(settings: Settings) -> str:
    """Return settings as TOML. None is omitted: it is the default of every option that allows it."""
    blocks: dict[str, list[str]] = {"": []}
    for key, value in settings.items():
        section, dot, name = key.partition(".")
        section, name = (section, name) if dot else ("", section)
        if value is not None:
            lines = blocks.setdefault(section, [f"[{section}]"])
            lines.append(f"{_toml_key(name)} = {_toml_value(value)}")
    return "\n\n".join("\n".join(lines) for lines in blocks.values()) + "\n"


def describe_options(options: RunOptions) -> str:
    """Return every option as TOML, with its help text and the values it accepts as comments."""
    classes: dict[str, type] = {"": RunOptions, **{name: type(section) for name, section in options.sections().items()}}
    blocks: dict[str, list[str]] = {}
    for key, value in options.settings().items():
        section, dot, name = key.partition(".")
        section, name = (section, name) if dot else ("", section)
        lines = blocks.setdefault(section, [f"[{section}]"] if section else [])
        if key in REGISTERED:
            text = f"{REGISTERED[key][0]}: {', '.join(REGISTERED[key][1])}."
        elif section == "reward":
            text = "Reward of this behaviour."
        else:
            text = f"{field_help(classes[section]).get(name, '')} {accepted_values(classes[section], name)}".strip()
        lines += textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"# {name} =" if value is None else f"{_toml_key(name)} = {_toml_value(value)}")
    return "\n\n".join("\n".join(lines) for lines in blocks.values()) + "\n"


def accepted_values(kind: type, name: str) -> str:
    """Return the values that an option accepts, as a sentence: "At least 0 and below 1." or "One of a, b." """
    hint = get_type_hints(kind)[name]
    if get_origin(hint) is Literal:
        return f"One of {', '.join(map(str, get_args(hint)))}."
    bounds = bounds_of(kind, name)
    text = "" if bounds is None else str(bounds)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def field_help(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of its bases. Python itself does not store them."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
        for statement, text in pairwise(body):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(statement, ast.AnnAssign) and is_text:
                texts[ast.unparse(statement.target)] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return texts


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
