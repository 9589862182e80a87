"""Errors that the server returns to a client as one sentence."""

import re
from pathlib import Path

ABSOLUTE_PATH = re.compile(r"(?:(?<=^)|(?<=[\s'\"(=:,;]))/\S*")


class RequestError(Exception):
    """Error that rejects a request with an HTTP status and a sentence for the client.

    Args:
        status: The HTTP status code, from 400 upwards.
        sentence: What was received, what was expected and what to do.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def without_folders(sentence: str, *paths: Path) -> str | None:
    """Remove the folders of a server's files from a sentence, because clients must not learn them.

    Args:
        sentence: The sentence.
        paths: The files and folders that it may mention.

    Returns:
        The sentence with only the last part of these paths, or None if it contains another absolute path.

    Example:
        >>> without_folders("/srv/runs/live/run.json does not exist", Path("/srv/runs/live"))
        'live/run.json does not exist'
    """
    for path in paths:
        sentence = sentence.replace(f"{path.parent}/", "")
    return None if ABSOLUTE_PATH.search(sentence) else sentence
