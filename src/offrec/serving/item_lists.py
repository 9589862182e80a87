"""Named lists of items that a server holds, such as the items in stock. Requests name them as `allow` or `deny`.

    FOLDER/NAME.list: a line of JSON with the number of ids, their SHA-256, the time and a checksum of the line, then
        one id per line, as JSON

A list is replaced by renaming a file. Every process compares the file's inode, size and time before it uses the list.
Therefore all workers, and other servers on the same folder, use a new list as soon as the request that changed it is
answered. Only masks are cached: one bit per item of a policy's catalogue.
"""

import hashlib
import json
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrec.data.files import publish_file
from offrec.data.id_files import Id, parse_ids
from offrec.data.json_files import parse_json
from offrec.data.line_checksums import is_sealed, seal_record
from offrec.data.regular_files import open_regular, read_limited
from offrec.errors import InputError, RunError
from offrec.serving.engine import AllowedItems
from offrec.serving.errors import RequestError
from offrec.serving.served_policy import ServedPolicy

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_LISTS = 1000
CACHED_MASKS = 256
HEADER_BYTES = 4096
FILE_BYTES = 1 << 30  # largest file that is read; its size was limited when it was written
Version = tuple[int, int, int]  # inode, time and size of a file


@dataclass(frozen=True)
class ListLimits:
    """Limits of the lists.

    Attributes:
        body_bytes: The largest body of a request that sets a list.
        items: The largest number of ids in a list.
    """

    body_bytes: int = 64 << 20
    items: int = 2_000_000


@dataclass(frozen=True)
class ListDescription:
    """What the first line of a list's file says, and its name."""

    name: str
    items: int
    sha256: str
    updated: int  # milliseconds since 1970

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the same names."""
        return asdict(self)


class ItemLists:
    """The lists in a folder. All methods may be called from several threads.

    Args:
        folder: The folder; None for a temporary one, whose lists end with this object.
        limits: Limits of the lists.
    """

    def __init__(self, folder: Path | None = None, limits: ListLimits | None = None) -> None:
        self.limits = limits or ListLimits()
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="offrec-lists-")
            folder = Path(self._temporary.name)
        self.folder = folder
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--lists {folder} cannot be written ({error.strerror}); choose another folder."
            ) from error
        self._lock = threading.Lock()
        self._masks: OrderedDict[tuple[str, ...], tuple[tuple[Version, ...], AllowedItems]] = OrderedDict()

    def put(self, name: str, content: bytes, is_json: bool, may_be_empty: bool = False) -> ListDescription:
        """Create or replace a list.

        Args:
            name: The name.
            content: The ids, as `parse_ids` reads them.
            is_json: Whether the content is JSON.
            may_be_empty: Whether a list without ids is valid. It usually comes from a failed export.

        Returns:
            The description of the list.

        Raises:
            RequestError: If the name or the content is not valid (422), or there are too many lists (409), or the
                folder cannot be written (503).
        """
        path = self._path(name)
        try:
            ids = parse_ids(content, is_json=is_json, limit=self.limits.items)
        except (ValueError, RecursionError) as error:
            raise RequestError(422, f"The list is not valid: {str(error).rstrip('.')}.") from error
        if not ids and not may_be_empty:
            raise RequestError(
                422,
                f"List {name} was not changed: the new list has no ids; send at least one, or add ?empty=true to the "
                "address if the list shall be empty.",
            )
        if not path.exists() and len(self._paths()) >= MAX_LISTS:
            raise RequestError(409, f"The server holds {MAX_LISTS:,} lists, which is the limit; delete one first.")
        unique = list(dict.fromkeys(ids))
        # JSON escapes line ends in strings, so that this separator occurs only between two ids.
        lines = json.dumps(unique, separators=(",\n", ":"))[1:-1].replace(",\n", "\n").encode()
        description = ListDescription(name, len(unique), hashlib.sha256(lines).hexdigest(), _unix_milliseconds())
        header = {key: value for key, value in description.as_json().items() if key != "name"}
        try:
            with publish_file(path) as temporary:
                temporary.write_bytes(seal_record(header) + lines)
        except (InputError, RunError, OSError) as error:
            raise RequestError(503, f"List {name} was not changed: the server cannot write it.") from error
        return description

    def delete(self, name: str) -> None:
        """Delete a list.

        Raises:
            RequestError: If it does not exist (404).
        """
        try:
            self._path(name).unlink()
        except FileNotFoundError as error:
            raise self._missing(name) from error

    def describe(self, name: str) -> ListDescription:
        """Return the description of a list.

        Raises:
            RequestError: If the list does not exist (404) or is damaged (503).
        """
        try:
            with open(open_regular(self._path(name)), "rb") as file:
                return _parse_header(name, file.readline(HEADER_BYTES))
        except FileNotFoundError as error:
            raise self._missing(name) from error
        except (OSError, ValueError) as error:
            raise _damaged(name) from error

    def describe_all(self) -> list[ListDescription]:
        """Return the descriptions of all lists, by name."""
        return [self.describe(path.stem) for path in self._paths()]

    def ids(self, name: str) -> list[Id]:
        """Read a list and verify its checksum.

        Raises:
            RequestError: If the list does not exist (404) or is damaged (503).
        """
        try:
            header, _, lines = read_limited(self._path(name), FILE_BYTES).partition(b"\n")
            description = _parse_header(name, header)
            if hashlib.sha256(lines).hexdigest() != description.sha256:
                raise ValueError("its checksum does not match")
            return parse_ids(b"[" + lines.replace(b"\n", b",") + b"]", is_json=True)
        except FileNotFoundError as error:
            raise self._missing(name) from error
        except (OSError, ValueError) as error:
            raise _damaged(name) from error

    def cached(self, served: ServedPolicy, allow: Sequence[str], deny: Sequence[str]) -> AllowedItems | None:
        """Return what `allowed` returns if it is cached and the lists have not changed, else None. Fast."""
        entry = self._masks.get(_key(served, allow, deny))
        return entry[1] if entry is not None and entry[0] == self._versions([*allow, *deny]) else None

    def allowed(self, served: ServedPolicy, allow: Sequence[str], deny: Sequence[str]) -> AllowedItems:
        """Return the items of a policy's catalogue that are in all lists of `allow` and in no list of `deny`.

        Args:
            served: The policy.
            allow: Names of lists; empty to allow all items.
            deny: Names of lists.

        Returns:
            The items. As long as the lists do not change, the same object is returned for the same arguments.

        Raises:
            RequestError: If a list does not exist (404) or is damaged (503).
        """
        with self._lock:  # one list of a million ids at a time
            if (known := self.cached(served, allow, deny)) is not None:
                return known
            key, versions = _key(served, allow, deny), self._versions([*allow, *deny])
            mask = np.ones(served.policy.n_items, np.bool_)
            for name in allow:
                mask &= served.policy.vocabulary.mask(self.ids(name))
            for name in deny:
                mask &= ~served.policy.vocabulary.mask(self.ids(name))
            result = AllowedItems(mask)
            self._masks[key] = (versions, result)
            self._masks.move_to_end(key)
            while len(self._masks) > CACHED_MASKS:
                self._masks.popitem(last=False)
            return result

    def close(self) -> None:
        """Remove the folder, if it is temporary."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _versions(self, names: Sequence[str]) -> tuple[Version, ...]:
        versions = []
        for name in names:
            try:
                status = self._path(name).stat()
            except FileNotFoundError as error:
                raise self._missing(name) from error
            versions.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(versions)

    def _path(self, name: str) -> Path:
        if NAME.fullmatch(name) is None:
            raise RequestError(
                422,
                f"The name of a list is {name[:80]!r}; expected at most 64 letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit.",
            )
        return self.folder / f"{name}.list"

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.list") if NAME.fullmatch(path.stem))

    def _missing(self, name: str) -> RequestError:
        known = ", ".join(path.stem for path in self._paths()[:10]) or "there are none"
        return RequestError(404, f"list {name[:80]!r} does not exist; the lists are: {known}.")


def _key(served: ServedPolicy, allow: Sequence[str], deny: Sequence[str]) -> tuple[str, ...]:
    return served.name, served.fingerprint, *(f"+{name}" for name in allow), *(f"-{name}" for name in deny)


def _parse_header(name: str, line: bytes) -> ListDescription:
    if not is_sealed(line.rstrip(b"\n")):
        raise ValueError("its first line has no right checksum")
    header = parse_json(line)
    if not isinstance(header, dict) or [type(header.get(key)) for key in ("items", "sha256", "updated")] != [
        int,
        str,
        int,
    ]:
        raise ValueError("its first line is not a header")
    return ListDescription(name, header["items"], header["sha256"], header["updated"])


def _damaged(name: str) -> RequestError:
    return RequestError(503, f"List {name} is damaged; set it again with PUT /v1/lists/{name}.")


def _unix_milliseconds() -> int:
    return int(time.time() * 1000)
