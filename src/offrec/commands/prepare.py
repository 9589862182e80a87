"""`offrec prepare`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from offrec.commands.engines import EngineName, RayOptions, parse_bytes
from offrec.commands.printing import console_for, names_for_help, print_json, print_table, unset
from offrec.data.options import PrepareOptions


@dataclass(frozen=True)
class Prepare:
    """Turn a raw log into a dataset: a folder that every other command reads.

    Example: offrec prepare events.csv.gz --format retailrocket --protocol paper --out data/retailrocket
    """

    sources: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE [SOURCE …]", help_behavior_hint="")
    ]
    """Files, quoted globs or folders of Parquet files; files may be .gz, .zst or .zip. URLs such as s3://bucket/log
    name Parquet files or folders in an object store, which fsspec lists. A folder is read with its sub-folders, in the
    order of the paths; folders COLUMN=VALUE are columns. With `--format served`: the folder of the
    log."""
    out: Path
    """The folder to write."""
    options: Annotated[PrepareOptions, tyro.conf.arg(name="")]
    memory_limit: Annotated[str | None, unset("SIZE")] = None
    """With `--split hash`: use about this much memory, such as 2GB. The log is divided into partitions on disk, next to
    the dataset."""
    engine: EngineName = "local"
    """With `--split hash`: where to prepare partitions of the log. `ray` uses a Ray cluster, whose machines must have
    offrec and the sources; needs offrec[ray]."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
    force: bool = False
    """Replace an existing dataset. It remains until the new one is complete."""
    json: bool = False
    """Print dataset.json instead of a table."""

    def run(self) -> None:
        from offrec.data.prepare import prepare
        from offrec.data.statistics import rows

        limit = None if self.memory_limit is None else parse_bytes(self.memory_limit, "--memory-limit")
        engine = self.ray.connect(self.engine)
        console = console_for(self.json)
        with console.counter("reading, MB") as at:
            dataset = prepare(
                self.sources,
                out=self.out,
                options=self.options,
                force=self.force,
                progress=console.line,
                memory_limit=limit,
                engine=engine,
                on_read=lambda done, total: at(done >> 20, total >> 20) if total >> 20 else None,
            )
        if self.json:
            print_json(dataset.meta)
        else:
            title = f"{self.out}  fingerprint {dataset.fingerprint}"
            print_table(title, ["", ""], [list(row) for row in rows(dataset.meta)])


if names := names_for_help("format"):
    Prepare.__doc__ = f"{Prepare.__doc__}\n    Formats, those of plug-ins included: {names}."
