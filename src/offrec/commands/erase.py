"""`offrec erase`: remove sessions from a decision log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from offrec.commands.printing import console_for, print_json


@dataclass(frozen=True)
class Erase:
    """Remove all records of sessions from a decision log, for example because a visitor asks for it.

    Example: offrec erase decisions --session visit-1
    """

    decisions: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DECISIONS")]
    """Folder of the decision log that `offrec serve` writes. The server may be running."""
    session: tuple[str, ...] = ()
    """Id of a session. May be repeated."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Erase the sessions and print how many records they had."""
        from offrec.serving.erasure import erase_sessions

        console = console_for(self.json)
        done = erase_sessions(self.decisions, self.session, console.line)
        if self.json:
            print_json({"records": done.records, "files": done.files})
        else:
            records = f"{done.records:,} record{'' if done.records == 1 else 's'}"
            files = f"{done.files:,} file{'' if done.files == 1 else 's'}"
            console.line(f"Erased: {records} in {files} of {self.decisions}.")
            if not done.records:
                console.line("No record has one of these session ids; check them if you expected some.")
