"""`offrec demo`."""

from dataclasses import dataclass, field
from pathlib import Path

from offrec.console import Console


@dataclass(frozen=True)
class Demo:
    """Simulate a shop, learn from its log, and compare what policies predict with what they earn."""

    out: Path = field(default=Path("demo"))
    """The folder for all files; an earlier demo there is replaced."""
    seed: int = 0
    """Seed of the shop, of the log and of the runs."""

    def run(self) -> None:
        from offrec.commands.demo_study import run_demo

        run_demo(self.out, self.seed, Console())
