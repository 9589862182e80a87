"""The options page: every option of a run, read from the option dataclasses, the learners and the presets."""

import types
from dataclasses import Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reference_text import escape_cell, table

from offrec.algorithms import LEARNERS
from offrec.runs.option_text import field_help
from offrec.runs.options import SECTIONS, TOP, RunOptions, resolve_options

GENERAL = "sl"  # reads no critic, so its values are the ones every learner starts from
CRITIC = "sdac"


def page(learner: str = "") -> str:
    """Return every table, or the one of a learner."""
    if learner:
        return _learner_table(learner)
    parts = ["## Options of the run\n\n" + _table(_top_rows())]
    for section, title in (("network", "Network"), ("critic", "Critic"), ("training", "Training")):
        parts.append(f"## {title}\n\n" + _table(_section_rows(section)))
    parts.append(
        "## Learners\n\nThe tables list what each learner adds, and the options whose preset differs from SL's."
    )
    parts += [f"### {name}\n\n{_learner_table(name)}" for name in LEARNERS]
    return "\n\n".join(parts)


def _values(learner: str, preset: str) -> dict[str, Any]:
    """Return the value of every option of a learner in a preset."""
    flat = {"preset": preset, "algorithm.name": learner}
    return resolve_options(flat, "events").settings()


def _top_rows() -> list[str]:
    hints = get_type_hints(RunOptions)
    meanings = field_help(RunOptions)
    by_name = {field.name: field for field in fields(RunOptions)}
    rows = [_row(name, hints[name], by_name[name], _presets(GENERAL, name), meanings.get(name, "")) for name in TOP]
    meaning = "Reward of a behaviour. Every behaviour of the log that is not listed here needs one."
    return [*rows, f"| `reward.NAME` | number | view 0.2, click 0.2, cart 1, buy 1 | same | {meaning} |"]


def _section_rows(section: str) -> list[str]:
    kind = SECTIONS[section]
    learner = CRITIC if section == "critic" else GENERAL
    return [
        _row(f"{section}.{field.name}", hint, field, _presets(learner, f"{section}.{field.name}"), meaning)
        for field, hint, meaning in _described(kind)
    ]


def _learner_table(learner: str) -> str:
    described = {
        f"algorithm.{field.name}": (field, hint, meaning)
        for field, hint, meaning in _described(LEARNERS[learner].learner)
    }
    for section, kind in SECTIONS.items():
        described |= {f"{section}.{field.name}": (field, hint, meaning) for field, hint, meaning in _described(kind)}
    hints, meanings = get_type_hints(RunOptions), field_help(RunOptions)
    described |= {f.name: (f, hints[f.name], meanings.get(f.name, "")) for f in fields(RunOptions) if f.name in TOP}
    rows = []
    strong, paper = _values(learner, "strong"), _values(learner, "paper")
    base_strong, base_paper = (_values(GENERAL, preset) for preset in ("strong", "paper"))
    for key, (field, hint, meaning) in described.items():
        if key not in strong:
            continue
        own = key.startswith("algorithm.")
        differs = key in base_strong and (strong[key], paper[key]) != (base_strong[key], base_paper[key])
        critic = key.startswith("critic.") and strong[key] != paper[key]
        if own or differs or critic:
            rows.append(_row(key, hint, field, (_shown(strong[key]), _shown(paper[key])), meaning))
    return _table(rows)


def _described(kind: type) -> list[tuple[Field[Any], Any, str]]:
    hints, meanings = get_type_hints(kind), field_help(kind)
    return [(field, hints[field.name], meanings.get(field.name, "")) for field in fields(kind)]


def _presets(learner: str, key: str) -> tuple[str, str]:
    strong, paper = (_shown(_values(learner, preset).get(key)) for preset in ("strong", "paper"))
    return strong, paper


def _row(key: str, hint: Any, field: Field[Any], presets: tuple[str, str], meaning: str) -> str:
    values = _kind(hint)
    if bounds := _bounds(field):
        values = f"{values}, {bounds}"
    return f"| `{key}` | {values} | {presets[0]} | {presets[1]} | {escape_cell(meaning)} |"


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


def _bounds(field: Field[Any]) -> str:
    """Read the bounds from the field's metadata, whatever they are called there."""
    return ", ".join(str(value) for value in field.metadata.values())


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
