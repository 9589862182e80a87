"""`offrec prepare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from offrec.commands.printing import console_for, print_json, print_table
from offrec.data.options import PrepareOptions


@dataclass(frozen=True)
class Prepare:
    """Turn a raw log into a dataset: a folder that `train` and `evaluate` read.

    Example: offrec prepare events.csv.gz --format retailrocket --protocol paper --out data/retailrocket
    """

    sources: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE [SOURCE …]", help_behavior_hint="")
    ]
    """Files or quoted globs, plain or .gz, .zst, .zip; of `served`, the folder."""
    out: Path
    """The folder to write."""
    options: Annotated[PrepareOptions, tyro.conf.arg(name="")]
    force: bool = False
    """Replace the folder if it exists; the old one stays until the new one is whole."""
    json: bool = False
    """Print dataset.json instead of a table."""

    def run(self) -> None:
        from offrec.data.prepare import prepare
        from offrec.data.statistics import rows

        say = console_for(self.json).line
        dataset = prepare(self.sources, out=self.out, chosen=self.options, force=self.force, progress=say)
        if self.json:
            print_json(dataset.meta)
        else:
            print_table(f"{self.out}  {dataset.fingerprint}", ["", ""], [list(row) for row in rows(dataset.meta)])
