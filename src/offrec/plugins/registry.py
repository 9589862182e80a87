"""A mapping from names to records that other packages can extend through the entry-point group `offrec.plugins`."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

from offrec.errors import InputError, first_line

GROUP = "offrec.plugins"
NAME = re.compile(r"[a-z0-9][a-z0-9+._-]*")
MIXED_CASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
RESERVED = ("all", "none")  # words that commands accept in place of names


class Record(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Record)


class Registry(Mapping[str, R]):
    """Records by name, in the order in which they were registered.

    Built-in records are registered when their package is imported. Records of other packages are added when an unknown
    name is looked up or all names are listed for the first time. Importing offrec therefore never imports a plug-in.

    Args:
        kind: The kind of record, for messages: "algorithm", "backbone", …
        record_type: The class of the records.
        check: Returns what is wrong with a record, or None. The registry itself checks the class and the name.
        upper_case: Whether names may contain upper-case letters.
    """

    def __init__(
        self,
        kind: str,
        record_type: type[R],
        check: Callable[[R], str | None] | None = None,
        *,
        upper_case: bool = False,
    ) -> None:
        self.kind = kind
        self._record_type = record_type
        self._check = check
        self._upper_case = upper_case
        self._records: dict[str, R] = {}
        self._packages: dict[str, str] = {}

    def register(self, record: R) -> R:
        """Add a record.

        Args:
            record: The record; its name must be new. Registering the same object again has no effect.

        Returns:
            The same record.

        Raises:
            InputError: The record is not valid, or its name is taken.
        """
        if not isinstance(record, self._record_type):
            raise InputError(
                f"The {self.kind} {record!r} cannot be registered: it must be a {self._record_type.__name__}."
            )
        if self._records.get(record.name) is record:
            return record
        reason = self._check_name(record.name) or (self._check(record) if self._check else None)
        if reason is not None:
            raise InputError(f"The {self.kind} {record.name!r} cannot be registered: {reason}.")
        if record.name in self._records:
            raise InputError(
                f"The {self.kind} {record.name!r} is already registered by {self.package(record.name) or 'offrec'}; "
                "choose another name."
            )
        self._records[record.name] = record
        if _loading:
            self._packages[record.name] = _loading[-1]
        return record

    def package(self, name: str) -> str | None:
        """Return the name and version of the package that registered a record; None for built-in records."""
        return self._packages.get(name)

    def __getitem__(self, name: str) -> R:
        """Look up a record; an unknown name raises InputError with the nearest known names."""
        if name not in self:
            raise InputError(self._unknown(name))
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._records:
            load_plugins()
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._records)

    def __len__(self) -> int:
        load_plugins()
        return len(self._records)

    def _check_name(self, name: object) -> str | None:
        pattern, case = (MIXED_CASE_NAME, "") if self._upper_case else (NAME, "lower-case ")
        if not isinstance(name, str) or not pattern.fullmatch(name):
            return f"its name must consist of {case}letters, digits and + - . _, and begin with a letter or digit"
        return f"{' and '.join(RESERVED)} are reserved names" if name in RESERVED else None

    def _unknown(self, name: object) -> str:
        near = get_close_matches(str(name), self._records, n=2)
        hint = f"did you mean {' or '.join(near)}? The" if near else "the"
        return f"There is no {self.kind} {name!r}; {hint} known ones are {', '.join(self._records)}."


_loading: list[str] = []  # the package whose entry point is being loaded
_loaded: set[str] = set()  # entry points that were loaded in this process


def load_plugins() -> None:
    """Import the entry points of the group `offrec.plugins`, each once per process.

    An entry point names a module that calls `offrec.register_learner` or a similar function when it is imported.

    Raises:
        InputError: A plug-in cannot be imported, or registers a name that is taken.
    """
    if _loading:  # a plug-in that looks up a name while it is imported
        return
    for point in entry_points(group=GROUP):
        key = f"{point.name}={point.value}"
        if key not in _loaded:
            _loaded.add(key)
            _load(point)


def _load(point: EntryPoint) -> None:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.name
    _loading.append(package)
    try:
        point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise InputError(
            f"The plug-in {point.name!r} ({package}) cannot be loaded: {reason}; repair it or uninstall the package."
        ) from error
    finally:
        _loading.pop()
