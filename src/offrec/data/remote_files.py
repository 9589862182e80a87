"""Find Parquet files in an object store. fsspec lists them; polars reads them, so no file is copied to a disk first."""

from pathlib import PurePosixPath
from typing import Any

from offrec.errors import InputError, first_line

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "file")  # what polars reads


def is_url(path: object) -> bool:
    """Return whether a source is a URL such as s3://bucket/log."""
    return isinstance(path, str) and "://" in path


def list_files(url: str) -> dict[str, tuple[str, int]]:
    """List the files under a URL.

    Args:
        url: The URL of a file, or of a folder, which is listed with its sub-folders.

    Returns:
        The URL and the size in bytes of each file, by its path relative to the folder, sorted.

    Raises:
        InputError: If the URL cannot be listed.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise InputError(f"{url} begins with {scheme}://, which cannot be read; expected {', '.join(SCHEMES)}.")
    try:
        import fsspec

        system, root = fsspec.core.url_to_fs(url)
        if system.isfile(root):
            return {PurePosixPath(root).name: (system.unstrip_protocol(root), int(system.size(root)))}
        entries: dict[str, dict[str, Any]] = system.find(root, detail=True)
    except ImportError as error:
        raise InputError(f"{url} needs a package that is not installed ({first_line(error)}).") from error
    except Exception as error:  # each store raises its own exceptions
        raise InputError(
            f"{url} cannot be listed ({first_line(error)}); check the URL and your credentials."
        ) from error
    if not entries:
        raise InputError(f"{url} does not exist or is empty; check the URL.")
    folder = root.rstrip("/") + "/"
    return {
        path.removeprefix(folder): (system.unstrip_protocol(path), int(entries[path]["size"]))
        for path in sorted(entries)
    }
