"""`offrec export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json


@dataclass(frozen=True)
class Export:
    """Write a run as a model that ONNX Runtime serves without offrec and torch: histories in, the best k items out.

    Example: offrec export runs/sl --out model.onnx
    """

    run_: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A folder made by `offrec train`."""
    out: Path
    """The model's file, ending in .onnx; the item ids (.ids.json) and a description (.json) are written beside it."""
    format: Literal["onnx"] = "onnx"
    """The format."""
    force: bool = False
    """Replace what stands there."""
    json: bool = False
    """Print the description as JSON."""

    def run(self) -> None:
        from offrec.serving.export import export_onnx

        found = export_onnx(self.run_, self.out, force=self.force, console=console_for(self.json))
        if self.json:
            print_json(found)
            return
        same = found["agreement"]
        print(
            f"{self.out}: {found['policy']}, {found['items']:,} items, {found['bytes_of_weights'] / 1e6:.1f} MB of "
            f"weights. Same top {same['k']} as torch on {same['histories']} histories, scores within "
            f"{same['largest_difference']:.1g}."
        )
