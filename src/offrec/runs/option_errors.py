"""Messages for options that do not exist, and for options that are given twice with different values."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from offrec.errors import InputError
from offrec.plugins import Settings


def merge_flags(flags: Mapping[str, tuple[str, Any]], settings: Mapping[str, Any]) -> Settings:
    """Merge options given by name with settings under dotted keys; refuse two values for one option.

    Args:
        flags: The key and value of each flag: {"--seed": ("seed", 3)}. The value None means "not given".
        settings: Values under dotted keys.

    Returns:
        All settings under dotted keys.

    Raises:
        InputError: A flag and a setting disagree.
    """
    merged = dict(settings)
    for flag, (key, value) in flags.items():
        if value is None:
            continue
        if key in settings and str(settings[key]) != str(value):
            raise InputError(f"{flag} is {value}, but {key} is set to {settings[key]}; give only one of them.")
        merged[key] = value
    return merged


def unknown_option(key: str, algorithm: str, known: Mapping[str, Sequence[str]]) -> str:
    """Return the message for a dotted key that does not exist.

    Args:
        key: The unknown key.
        algorithm: The learner of the run.
        known: The dotted keys of each learner.
    """
    advice = f"`offrec options --algorithm {algorithm}` lists all options"
    if owners := [name for name, keys in known.items() if key in keys]:
        return f"{key} is not an option of {algorithm}, only of {', '.join(owners)}; {advice}."
    if near := nearest_options(key, known[algorithm]):
        return f"There is no option {key!r}; did you mean {' or '.join(near)}? {advice}."
    return f"There is no option {key!r}; {advice}."


def nearest_options(key: str, known: Sequence[str]) -> list[str]:
    """Return at most two known keys that resemble a key.

    A key of the same section with a similar name comes first, then a key of another section with the same name, then
    a key with a similar spelling.
    """
    section, _, name = key.rpartition(".")
    names = {one: one.rpartition(".")[2] for one in known}
    similar = [one for near in get_close_matches(name, set(names.values()), n=2) for one in known if names[one] == near]
    same_section = [one for one in similar if one.rpartition(".")[0] == section]
    same_name = [one for one in similar if names[one] == name or not section]
    return (same_section or same_name or get_close_matches(key, known, n=1, cutoff=0.8))[:2]
