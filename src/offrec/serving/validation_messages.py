"""Describe invalid requests in one sentence."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

EXPECTED_ITEM_ID = "an item id must be a 64-bit integer or a string of at most 512 characters"
QUOTED_CHARACTERS = 60  # longest part of an invalid value that an error message quotes


def validation_sentence(error: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Describe a validation error of pydantic in one sentence.

    Args:
        error: The first entry of `ValidationError.errors()`, whose location begins with "body" or "query".
        fields: The fields that the request may have.

    Returns:
        A sentence that names the field, the value received and what was expected.
    """
    path, kind = list(error["loc"][1:]), error["type"]
    if kind == "json_invalid":
        return f"The body is not valid JSON ({error['ctx']['error']} at character {path[0]}); send one JSON object."
    if kind == "extra_forbidden":
        return f"{_quote(path[-1])} is not a field of this request; the fields are {', '.join(fields)}."
    if kind == "missing" and path:
        return f"{path[-1]} is missing; the fields are {', '.join(fields)}."
    if not path:
        return f"The body is {_quote(error['input'])}; expected a JSON object with the fields {', '.join(fields)}."
    is_item_id = len(path) > 1 and path[-1] in ("int", "str", "constrained-int", "constrained-str")
    expected = EXPECTED_ITEM_ID if is_item_id else str(error["msg"]).removesuffix(".").lower()
    return f"{_field_name(path[:-1] if is_item_id else path)} is {_quote(error['input'])}; {expected}."


def _field_name(path: Sequence[int | str]) -> str:
    """Write a location as in code: ["history", 3] becomes history[3]."""
    name = str(path[0])
    for part in path[1:]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name


def _quote(value: Any) -> str:
    """Write an invalid value as JSON, cut to a readable length; control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    text = text if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
