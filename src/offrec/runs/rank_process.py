"""One rank of a run that `offrec train --launch ray` started: python -m offrec.runs.rank_process PARENT.

The environment is that of torchrun. Standard input contains the arguments of `train_ranked` as JSON.
"""

import sys
from pathlib import Path

from offrec.data.json_files import parse_json
from offrec.data.parent_process import end_with_parent
from offrec.runs.launch import train_ranked


def main() -> None:
    """Train the part of this rank."""
    end_with_parent(int(sys.argv[1]))
    given = parse_json(sys.stdin.read())
    train_ranked(
        Path(given["dataset"]),
        Path(given["out"]),
        settings=given["settings"],
        catalogue_ranks=given["catalogue_ranks"],
        resume=given["resume"],
        force=given["force"],
        track=tuple(given["track"]),
    )


if __name__ == "__main__":
    main()
