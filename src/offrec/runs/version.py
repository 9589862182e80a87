"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def offrec_version() -> str:
    """Return the version of offrec; "unknown" in a source tree that is not installed."""
    try:
        return version("offrec")
    except PackageNotFoundError:
        return "unknown"
