"""Checks that several kinds of records share. Each returns what is wrong, or None."""

from collections.abc import Mapping, Sequence
from typing import Any

from offrec.plugins.search import PRESET_NAMES


def check_texts(record: Any, names: Sequence[str]) -> str | None:
    """Check that the fields `names` contain text."""
    empty = [name for name in names if not isinstance(getattr(record, name), str) or not getattr(record, name).strip()]
    return f"its {empty[0]} must be text that is not empty" if empty else None


def check_callable(record: Any, name: str) -> str | None:
    """Check that a field is a function or a class."""
    return None if callable(getattr(record, name)) else f"its {name} must be callable"


def check_count(record: Any, name: str) -> str | None:
    """Check that a field is a whole number of at least 0."""
    value = getattr(record, name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if is_count else f"its {name} must be a whole number of at least 0; got {value!r}"


def check_family(family: object, families: Sequence[str]) -> str | None:
    """Check that the family is a known one."""
    return None if family in families else f"its family must be one of {', '.join(families)}; got {family!r}"


def check_presets(presets: object) -> str | None:
    """Check the names of the presets, and that each has settings."""
    if not isinstance(presets, Mapping) or not all(isinstance(one, Mapping) for one in presets.values()):
        return "its presets must map the name of a preset to settings"
    unknown = [name for name in presets if name not in PRESET_NAMES]
    return f"its presets may be {' and '.join(PRESET_NAMES)}; got {unknown[0]!r}" if unknown else None
