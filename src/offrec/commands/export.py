"""`offrec export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from offrec.commands.printing import console_for, print_json


@dataclass(frozen=True)
class Export:
    """Export a run as an ONNX model, which ONNX Runtime serves without offrec and torch.

    Example: offrec export runs/sl --out model.onnx
    """

    run_: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """Run folder from `offrec train`."""
    out: Path
    """File of the model, ending in .onnx. Item ids (.ids.json) and a description (.json) are written next to it."""
    format: Literal["onnx"] = "onnx"
    """File format."""
    force: bool = False
    """Replace existing files."""
    json: bool = False
    """Print the description as JSON."""

    def run(self) -> None:
        """Write the model and print how well it agrees with torch."""
        from offrec.serving.export import export_onnx

        description = export_onnx(self.run_, self.out, force=self.force, console=console_for(self.json))
        if self.json:
            print_json(description)
            return
        agreement = description["agreement"]
        print(
            f"{self.out}: {description['policy']}, {description['n_items']:,} items, "
            f"{description['weight_bytes'] / 1e6:.1f} MB of weights. Same top {agreement['k']} as torch on "
            f"{agreement['histories']} histories; scores differ by at most {agreement['largest_difference']:.1g}."
        )
