"""Read and write JSON and TOML. No other module of offrec parses them.

JSON files that offrec writes have a key `sha256`: the SHA-256 of all other keys, as compact JSON with sorted keys. It
does not depend on white space or on the order of the keys. It detects accidents. Somebody who changes a file on purpose
can change the checksum too, so the types and ranges of all values are checked as well.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from offrec.data.files import ADVICE, publish_text
from offrec.data.regular_files import read_limited
from offrec.data.schema import Schema
from offrec.errors import InputError

CHECKSUM = "sha256"
MAX_BYTES = 16 << 20
MAX_DEPTH = 64


def read_json(path: Path, schema: Schema, *, advice: str, sealed: bool = True) -> dict[str, Any]:
    """Read a JSON object, verify its checksum and check its structure.

    Args:
        path: The file: a regular file of at most 16 MiB.
        schema: The structure of the object, without the checksum.
        advice: What the user should do if the file is damaged; the end of the message.
        sealed: Whether the file contains a checksum.

    Returns:
        The object without the checksum.

    Raises:
        FileNotFoundError: If the file does not exist.
        InputError: If the file cannot be read or is not valid.
    """
    return verify_json(path, load_json(path, advice=advice), schema, advice=advice, sealed=sealed)


def verify_json(path: Path, content: Any, schema: Schema, *, advice: str, sealed: bool = True) -> dict[str, Any]:
    """Verify the checksum and the structure of an object that `load_json` read from a file, as `read_json` does."""
    if not isinstance(content, dict):
        _damaged(path, "it must contain an object", advice)
    stored = content.pop(CHECKSUM, None)
    if sealed and stored != checksum(content):
        _damaged(path, "its checksum does not match" if stored else "it has no checksum", advice)
    problem = schema.problem(content, "")
    if problem is not None:
        _damaged(path, problem, advice)
    return content


def load_json(path: Path, *, advice: str) -> Any:
    """Parse a JSON file without checking its checksum or its structure.

    Raises:
        FileNotFoundError: If the file does not exist.
        InputError: If the file cannot be read or parsed.
    """
    try:
        return parse_json(read_limited(path, MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        _damaged(path, _reason(error), advice)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If the text is not valid JSON, repeats a key of an object, or is nested too deeply.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from error
    _check_depth(content)
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: If the text is not valid TOML, or is nested too deeply.
    """
    try:
        content = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from error
    _check_depth(content)
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that the user wrote.

    Raises:
        InputError: If the file does not exist, cannot be read or is not valid TOML.
    """
    try:
        return parse_toml(read_limited(path, MAX_BYTES).decode())
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; check the path.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    except ValueError as error:
        raise InputError(f"{path} is not a TOML file ({error}); correct it.") from error


def write_json(path: Path, content: dict[str, Any], *, indent: int = 2, advice: str = ADVICE) -> None:
    """Write a JSON object with its checksum, atomically."""
    publish_text(path, format_json(content, indent), advice=advice)


def format_json(content: dict[str, Any], indent: int = 2) -> str:
    """Return a JSON object with its checksum as text, for a file in a folder that is about to be published."""
    content = seal(content)
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a path on the command line need not be valid UTF-8
        text = json.dumps(content, indent=indent)
    return text + "\n"


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum."""
    stored = json.loads(json.dumps({key: value for key, value in content.items() if key != CHECKSUM}))
    return {**stored, CHECKSUM: checksum(stored)}


def checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of an object that was read from JSON, without its checksum."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: OSError | ValueError) -> str:
    """Return why a JSON file cannot be read, without the words of the decoder."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if isinstance(error, json.JSONDecodeError):
        if not error.doc.strip():
            return "it is empty"
        is_cut = not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string")
        return f"it ends within line {error.lineno}" if is_cut else f"line {error.lineno} is not valid JSON"
    return str(error)


def _damaged(path: Path, reason: str, advice: str) -> NoReturn:
    raise InputError(f"{path} is damaged: {reason}; {advice}.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object contains a key twice")
    return content


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
