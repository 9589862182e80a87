"""Train one run from a TOML file. This needs only torch, numpy and safetensors.

    python -m offrec.runs RUN.toml

RUN.toml contains the options of a run and, at the top level, `dataset`, `out` and optionally `from`, the run to start
from. Every run writes such a file to its folder as run.toml.
"""

import sys
from pathlib import Path

from offrec.errors import InputError, exit_code
from offrec.runs.option_text import read_toml
from offrec.runs.train import train


def main(arguments: list[str]) -> int:
    """Train the run that the file describes, or resume it; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m offrec.runs RUN.toml", file=sys.stderr)
        return 2
    return exit_code(lambda: _train(Path(arguments[0])))


def _train(path: Path) -> None:
    settings = read_toml(path)
    missing = [key for key in ("dataset", "out") if key not in settings]
    if missing:
        raise InputError(f'{path} has no {missing[0]}; add a line {missing[0]} = "…" at its top.')
    dataset, out = str(settings.pop("dataset")), str(settings.pop("out"))
    start = settings.pop("from", None)
    train(dataset, out, settings=settings, start_from=start, resume=Path(out, "run.json").exists())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
