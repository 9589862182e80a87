"""The command line: which commands there are, and how their errors read."""

import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from offrec.commands.prepare import Prepare
from offrec.commands.printing import print_table
from offrec.commands.runs import Evaluate, Options, Recommend, Train
from offrec.commands.shop import Simulate, WriteShop
from offrec.console import Console
from offrec.errors import InputError, Interrupted, RunError


@dataclass(frozen=True)
class Demo:
    """A small log is made, prepared, learned from and evaluated beside the baselines."""

    out: Path = field(default=Path("demo"))
    """The folder for everything; an earlier demo there is replaced."""
    seed: int = 0
    """Seed of the log and of the run."""

    def run(self) -> None:
        from offrec.demo import demo

        demo(self.out, self.seed, Console(), print_table)


Command = (
    Annotated[Prepare, tyro.conf.subcommand("prepare")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Recommend, tyro.conf.subcommand("recommend")]
    | Annotated[WriteShop, tyro.conf.subcommand("shop")]
    | Annotated[Simulate, tyro.conf.subcommand("simulate")]
    | Annotated[Options, tyro.conf.subcommand("options")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
)


def main() -> None:
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `offrec … | head` is no error
    command: Any = tyro.cli(
        Command,
        prog="offrec",
        description="Recommendation policies learned offline from logged sessions.",
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
    )
    try:
        command.run()
    except InputError as error:
        sys.exit(_say(error, 2))
    except RunError as error:
        sys.exit(_say(error, 1))
    except (Interrupted, KeyboardInterrupt) as error:
        sys.exit(_say(str(error) or "Stopped.", 130))


def _say(error: object, code: int) -> int:
    print(f"offrec: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
