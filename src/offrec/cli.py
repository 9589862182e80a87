"""The command line: which commands there are, and how their errors read."""

import signal
import sys
from typing import Annotated, Any

from offrec.console import plain_text
from offrec.errors import InputError, Interrupted, RunError


def main() -> None:
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `offrec … | head` is no error
    try:
        _command().run()
    except InputError as error:
        sys.exit(_say(error, 2))
    except RunError as error:
        sys.exit(_say(error, 1))
    except (Interrupted, KeyboardInterrupt) as error:
        sys.exit(_say(str(error) or "Stopped.", 130))


def commands() -> dict[str, type]:
    """Return the class of every command by its name, in the order of `offrec --help`."""
    # Imported here, so that Ctrl-C during the imports is handled like any other.
    from offrec.commands.demo import Demo
    from offrec.commands.estimate import Estimate
    from offrec.commands.export import Export
    from offrec.commands.prepare import Prepare
    from offrec.commands.runs import Evaluate, Options, Recommend, Train
    from offrec.commands.serve import Serve
    from offrec.commands.shop import Simulate, WriteShop
    from offrec.commands.studies import Compare, Report, Sweep, Tune

    return {
        "prepare": Prepare,
        "train": Train,
        "evaluate": Evaluate,
        "estimate": Estimate,
        "recommend": Recommend,
        "serve": Serve,
        "export": Export,
        "shop": WriteShop,
        "simulate": Simulate,
        "compare": Compare,
        "sweep": Sweep,
        "tune": Tune,
        "report": Report,
        "options": Options,
        "demo": Demo,
    }


def _command() -> Any:
    """Parse the command line and return the command to run."""
    import tyro

    union: Any = None
    for name, kind in commands().items():
        one = Annotated[kind, tyro.conf.subcommand(name)]  # type: ignore[valid-type]
        union = one if union is None else union | one
    return tyro.cli(
        union,
        prog="offrec",
        description="Recommendation policies learned offline from logged sessions.",
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
    )


def _say(error: object, code: int) -> int:
    print(plain_text(f"offrec: {error}"), file=sys.stderr)
    return code
