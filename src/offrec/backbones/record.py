"""What offrec knows about a backbone besides its network. Each backbone's file declares one record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from offrec.plugins import Registry, SearchSpace, Settings

OnnxWriter = Callable[[Any, Any, str], str]  # (OnnxGraph, module, name of the inputs) → name of the outputs
Family = Literal["recurrent", "convolutional", "attention", "other"]


@dataclass(frozen=True)
class Sizes:
    """The network options that a backbone may read."""

    width: int
    layers: int
    dropout: float
    history: int  # the longest history that the backbone will see
    heads: int
    window: int


@dataclass(frozen=True)
class BackboneRecord:
    """A backbone as commands and reports see it.

    Args:
        name: The name after `--backbone`: "gru".
        label: The name in tables and figures: "GRU".
        build: Builds the module from its sizes. A causal module maps [N, L, d] to [N, L, d], and its output at t
            depends on the inputs up to t. Any other module maps a window [B, `module.window`, d], oldest item first,
            to [B, d]. The module has an attribute `causal`.
        help: One line that says what the backbone is.
        family: Decides which of the paper's tables the backbone is listed in.
        causal: Whether the module is causal. A causal backbone encodes a session once for all its events.
        reads: Which of the options layers, heads and window the backbone reads.
        presets: Settings that a preset adds for this backbone.
        search: The settings that `offrec tune` searches for this backbone.
        check: Returns a sentence that begins with the name of a network option if the sizes do not fit together.
        onnx: Writes what the module's `forward` does to an ONNX graph, for `offrec export`: (graph, module, name of the
            inputs) → name of the outputs, with the shapes that `build` describes. See
            `offrec.backbones.onnx_graph.OnnxGraph`. Without it, `offrec export` refuses the backbone.
    """

    name: str
    label: str
    build: Callable[[Sizes], nn.Module]
    help: str
    family: Family = "other"
    causal: bool = True
    reads: frozenset[str] = frozenset()
    presets: Mapping[str, Settings] = field(default_factory=dict)
    search: SearchSpace = field(default_factory=dict)
    check: Callable[[Sizes], str | None] | None = None
    onnx: OnnxWriter | None = None


BACKBONES: Registry[BackboneRecord] = Registry("backbone")


def register_backbone(record: BackboneRecord) -> BackboneRecord:
    """Make a backbone known to every command.

    Args:
        record: Its record.

    Returns:
        The same record.

    Raises:
        InputError: A backbone with this name exists.

    Example:
        >>> build = lambda sizes: Mine(sizes.width)
        >>> offrec.register_backbone(offrec.BackboneRecord("mine", "Mine", build, "My own backbone."))
    """
    return BACKBONES.register(record)
