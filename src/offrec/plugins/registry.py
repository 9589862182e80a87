"""A mapping from names to records that other packages can extend through the entry-point group `offrec.plugins`."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

from offrec.errors import InputError, first_line

GROUP = "offrec.plugins"


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
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._records: dict[str, R] = {}
        self._packages: dict[str, str] = {}

    def register(self, record: R) -> R:
        """Add a record.

        Args:
            record: The record; its name must be new.

        Returns:
            The same record.

        Raises:
            InputError: The name is taken.
        """
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

    def _unknown(self, name: object) -> str:
        near = get_close_matches(str(name), self._records, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return f"There is no {self.kind} {name!r}; {hint}the known ones are {', '.join(self._records)}."


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
        raise InputError(
            f"The plug-in {point.name!r} ({package}) cannot be loaded: {type(error).__name__}: {first_line(error)}; "
            "repair it or uninstall the package."
        ) from error
    finally:
        _loading.pop()
