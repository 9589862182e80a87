"""The options page: every option of a run, read from the option classes, the records and the presets."""

import types
from dataclasses import Field, fields
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from reference_text import escape_cell, table

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.plugins import Bounds
from offrec.runs.option_text import field_help
from offrec.runs.options import SECTIONS, TOP, RunOptions, resolve_options

GENERAL = "sl"  # reads no critic, so its values are the ones every learner starts from
CRITIC = "sdac"
PRESETS = ("strong", "paper")


class Option(NamedTuple):
    """An option as its class declares it."""

    key: str
    field: Field[Any]
    hint: Any
    meaning: str


def page(learner: str = "") -> str:
    """Return every table, or the one of a learner."""
    if learner:
        return _learner_table(learner)
    parts = ["## Options of the run\n\n" + _table([*_rows("", GENERAL), _REWARD])]
    parts += [
        f"## {section.title()}\n\n" + _table(_rows(section, CRITIC if section == "critic" else GENERAL))
        for section in SECTIONS
    ]
    parts.append("## Learners\n\nWhat each learner adds, and the options whose default differs from SL's.")
    parts += [f"### {record.label}\n\n{record.help}\n\n{_learner_table(name)}" for name, record in LEARNERS.items()]
    parts.append(f"## Backbones\n\nOptions whose default depends on the backbone.\n\n{_backbone_table()}")
    return "\n\n".join(parts)


_REWARD = (
    "| `reward.NAME` | number | view 0.2, click 0.2, cart 1, buy 1 | same | "
    "Reward of the behaviour NAME. Behaviours without a default need a value. |"
)


def _values(learner: str, preset: str) -> dict[str, Any]:
    """Return the value of every option of a learner in a preset."""
    return resolve_options({"preset": preset, "algorithm.name": learner}, "events").settings()


def _options(section: str, kind: type) -> list[Option]:
    hints, texts = get_type_hints(kind), field_help(kind)
    prefix = f"{section}." if section else ""
    return [
        Option(prefix + one.name, one, hints[one.name], texts.get(one.name, ""))
        for one in fields(kind)
        if section or one.name in TOP
    ]


def _rows(section: str, learner: str) -> list[str]:
    strong, paper = (_values(learner, preset) for preset in PRESETS)
    kind = SECTIONS[section] if section else RunOptions
    return [_row(one, strong.get(one.key), paper.get(one.key)) for one in _options(section, kind)]


def _learner_table(learner: str) -> str:
    strong, paper = (_values(learner, preset) for preset in PRESETS)
    base_strong, base_paper = (_values(GENERAL, preset) for preset in PRESETS)
    rows = []
    kinds = {"algorithm": LEARNERS[learner].learner, **SECTIONS, "": RunOptions}
    for one in (option for section, kind in kinds.items() for option in _options(section, kind)):
        key = one.key
        if key not in strong:
            continue
        differs = key in base_strong and (strong[key], paper[key]) != (base_strong[key], base_paper[key])
        of_critic = key.startswith("critic.") and strong[key] != paper[key]
        if key.startswith("algorithm.") or differs or of_critic:
            rows.append(_row(one, strong[key], paper[key]))
    return _table(rows) if rows else "It adds no options."


def _backbone_table() -> str:
    rows = []
    for backbone in BACKBONES.values():
        settings = [backbone.presets.get(preset, {}) for preset in PRESETS]
        for key in dict.fromkeys(key for one in settings for key in one):
            strong, paper = (_shown(one.get(key)) for one in settings)
            rows.append(f"| `{backbone.name}` | `{key}` | {strong} | {paper} |")
    return table(["backbone", "option", "`strong`", "`paper`"], rows)


def _row(one: Option, strong: Any, paper: Any) -> str:
    bounds = one.field.metadata.get("bounds")
    values = ", ".join(part for part in (_kind(one.hint), str(bounds) if isinstance(bounds, Bounds) else "") if part)
    return f"| `{one.key}` | {values} | {_shown(strong)} | {_shown(paper)} | {escape_cell(one.meaning)} |"


def _table(rows: list[str]) -> str:
    return table(["option", "values", "`strong`", "`paper`", "meaning"], rows)


def _kind(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if origin in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not types.NoneType]
        return " or ".join(_kind(part) for part in inner) + ", or unset"
    return {bool: "`true`, `false`", int: "integer", float: "number", str: "text"}.get(hint, str(hint))


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
