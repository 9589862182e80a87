"""Train one run from a TOML file. Needs torch, numpy and safetensors only.

    python -m offrec.runs RUN.toml

RUN.toml contains the options of a run and, at the top level, `dataset` and `out`. Every run writes such a file to its
folder as run.toml.
"""

import sys
from pathlib import Path

from offrec.errors import InputError, Interrupted, RunError
from offrec.runs import options
from offrec.runs.train import train


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m offrec.runs.train RUN.toml", file=sys.stderr)
        return 2
    try:
        flat = options.read_toml(Path(arguments[0]))
        missing = [key for key in ("dataset", "out") if key not in flat]
        if missing:
            raise InputError(f'{arguments[0]} does not say {missing[0]}; add a line {missing[0]} = "…" at its top.')
        dataset, out = flat.pop("dataset"), flat.pop("out")
        train(dataset, out, settings=flat, resume=Path(out, "run.json").exists())
    except InputError as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 2
    except (RunError, Interrupted) as error:
        print(f"offrec: {error}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
