"""`offrec demo`."""

from dataclasses import dataclass, field
from pathlib import Path

from offrec.commands.printing import print_table
from offrec.console import Console


@dataclass(frozen=True)
class Demo:
    """Visitors come to the simulated shop, its log is learned from, every policy is judged by log and by truth."""

    out: Path = field(default=Path("demo"))
    """The folder for everything; an earlier demo there is replaced."""
    seed: int = 0
    """Seed of the shop, of the log and of the run."""

    def run(self) -> None:
        from offrec.demo import demo

        demo(self.out, self.seed, Console(), print_table)
