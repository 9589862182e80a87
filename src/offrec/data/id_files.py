"""Read lists of item ids that somebody wrote by hand or exported: one id per line, or a JSON array."""

import re
from pathlib import Path

from offrec.data.json_files import parse_json
from offrec.data.regular_files import read_limited
from offrec.errors import InputError

Id = str | int
MAX_BYTES = 256 << 20  # of a file
MAX_ID_CHARACTERS = 512
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # an end that is missing must not cause another search


def read_ids(path: Path, option: str) -> list[Id]:
    """Read a file of item ids.

    Args:
        path: The file: a JSON array if it ends in .json, else text with one id per line.
        option: The option that named the file, for messages.

    Returns:
        The ids. Ids in text are strings; `Vocabulary.index` also finds numbers by them.

    Raises:
        InputError: If the file cannot be read, or contains no ids.
    """
    try:
        ids = parse_ids(read_limited(path, MAX_BYTES), is_json=path.suffix == ".json")
    except FileNotFoundError as error:
        raise InputError(f"{option} {path} does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise InputError(
            f"{option} {path} cannot be read: {reason}; expected one item id per line, or a JSON array in a .json file."
        ) from error
    if not ids:
        raise InputError(f"{option} {path} contains no item ids; expected one per line.")
    return ids


def parse_ids(content: bytes, *, is_json: bool, limit: int | None = None) -> list[Id]:
    """Parse item ids.

    Args:
        content: A JSON array of integers and strings, or UTF-8 text with one id per line. Empty lines are ignored.
        is_json: Whether the content is JSON.
        limit: The largest number of ids; it is checked before the ids are created.

    Returns:
        The ids, in order.

    Raises:
        ValueError: If the content is not valid, or has more ids than `limit`.
    """
    if limit is not None and _has_more_ids(content, limit, is_json):
        raise ValueError(f"it has more than {limit:,} item ids")
    if not is_json:
        try:
            lines = content.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError("it is not UTF-8 text") from error
        ids: list[Id] = [text for line in lines if (text := line.strip())]
    else:
        ids = parse_json(content)
        if not isinstance(ids, list):
            raise ValueError("it must be a JSON array of item ids")
    for number, item in enumerate(ids):
        is_integer = isinstance(item, int) and not isinstance(item, bool) and -(2**63) <= item < 2**63
        if not is_integer and not (isinstance(item, str) and len(item) <= MAX_ID_CHARACTERS):
            raise ValueError(
                f"id number {number + 1} is {str(item)[:60]!r}, but an item id is a 64-bit integer or a string of at "
                f"most {MAX_ID_CHARACTERS} characters"
            )
    if limit is not None and len(ids) > limit:
        raise ValueError(f"it has more than {limit:,} item ids")
    return ids


def _has_more_ids(content: bytes, limit: int, is_json: bool) -> bool:
    """Return whether the separators show more ids than the limit. Commas inside JSON strings are not separators."""
    separator = b"," if is_json else b"\n"
    if content.count(separator) <= limit:
        return False
    return not is_json or JSON_STRING.sub(b"", content).count(separator) > limit
