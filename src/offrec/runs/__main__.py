"""Train one run from a TOML file. This needs only torch, numpy and safetensors.

    python -m offrec.runs RUN.toml

RUN.toml contains the options of a run and, at the top level, `dataset` and `out`. Every run writes such a file to its
folder as run.toml.
"""

import sys
from pathlib import Path

from offrec.errors import InputError, Interrupted, RunError
from offrec.runs.option_text import read_toml
from offrec.runs.train import train


def main(arguments: list[str]) -> int:
    """Train the run that the file describes, or resume it; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m offrec.runs RUN.toml", file=sys.stderr)
        return 2
    try:
        settings = read_toml(Path(arguments[0]))
        missing = [key for key in ("dataset", "out") if key not in settings]
        if missing:
            raise InputError(f'{arguments[0]} has no {missing[0]}; add a line {missing[0]} = "…" at its top.')
        dataset, out = settings.pop("dataset"), settings.pop("out")
        train(dataset, out, settings=settings, resume=Path(out, "run.json").exists())
    except InputError as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 2
    except (RunError, Interrupted) as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
