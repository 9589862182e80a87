"""Bounds of options: declared with each field of an option class, checked by one function."""

from dataclasses import dataclass, field, fields
from typing import Any

from offrec.errors import InputError

LARGEST = 2**31 - 1  # the largest value of whole-number options


@dataclass(frozen=True)
class Bounds:
    """The values that a numeric option accepts. None: no bound on that side."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None

    def allow(self, value: float) -> bool:
        return not (
            (self.minimum is not None and not value >= self.minimum)
            or (self.above is not None and not value > self.above)
            or (self.maximum is not None and not value <= self.maximum)
            or (self.below is not None and not value < self.below)
        )

    def __str__(self) -> str:
        """Return text such as "at least 0 and below 1"."""
        named = {"at least": self.minimum, "above": self.above, "at most": self.maximum, "below": self.below}
        return " and ".join(f"{word} {_number(bound)}" for word, bound in named.items() if bound is not None)


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def option(
    default: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field of an option class together with its bounds.

    The docstring under the field is its help text. Fields with a `Literal` type need no bounds.

    Args:
        default: The default value.
        minimum: The smallest allowed value.
        above: The value must be larger than this.
        maximum: The largest allowed value. Whole numbers must also be at most 2,147,483,647.
        below: The value must be smaller than this.

    Returns:
        A dataclass field.

    Example:
        >>> @dataclass(frozen=True)
        ... class Options:
        ...     epochs: int = option(50, minimum=1)
        ...     '''Number of passes over the data.'''
    """
    return field(default=default, metadata={"bounds": Bounds(minimum, above, maximum, below)})


def bounds_of(kind: type, name: str) -> Bounds | None:
    """Return the bounds of a field, or None if it was declared without `option`."""
    (bounds,) = (one.metadata.get("bounds") for one in fields(kind) if one.name == name)
    return bounds if isinstance(bounds, Bounds) else None


def check_bounds(section: str, options: Any) -> None:
    """Check every numeric field of an option object.

    Args:
        section: Prefix of the dotted keys in messages: "training", or "" for top-level options.
        options: An instance of a dataclass whose fields are declared with `option`.

    Raises:
        InputError: A value is out of bounds.
    """
    for one in fields(options):
        value = getattr(options, one.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        key = f"{section}.{one.name}" if section else one.name
        bounds = one.metadata.get("bounds") or Bounds()
        if not bounds.allow(value):
            raise InputError(f"{key} must be {bounds}; got {value}.")
        if isinstance(value, int) and bounds.maximum is None and abs(value) > LARGEST:
            raise InputError(f"{key} must be at most {LARGEST:,}; got {value}.")
