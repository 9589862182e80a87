"""`offrec options`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from offrec.commands.printing import registered, registered_names


@dataclass(frozen=True)
class Options:
    """Print every option of a run as TOML, with its value in a preset, its help text and its bounds.

    Example: offrec options --algorithm dc --preset paper
    """

    algorithm: Annotated[str, registered("learner", "The learner; by default sl. One of")] = "sl"
    backbone: Annotated[str | None, registered("backbone", "The backbone; by default the preset's. One of")] = None
    preset: Literal["strong", "paper"] = "strong"
    """The preset."""
    names: bool = False
    """Print the names of all learners, backbones, baselines, formats and metrics instead, with those of plug-ins."""

    def run(self) -> None:
        from offrec.runs.option_text import describe_options
        from offrec.runs.options import resolve_options

        if self.names:
            print(registered_names())
            return
        settings = {"algorithm.name": self.algorithm, "preset": self.preset}
        settings |= {"network.backbone": self.backbone} if self.backbone else {}
        print(describe_options(resolve_options(settings, "events")), end="")
