"""Metadata of backbones: names, presets and search spaces. Each backbone's module declares one record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import nn

from offrec.plugins import (
    Registry,
    SearchSpace,
    Settings,
    check_callable,
    check_family,
    check_presets,
    check_texts,
)

OnnxWriter = Callable[[Any, Any, str], str]  # (OnnxGraph, module, name of the inputs) → name of the outputs
Family = Literal["recurrent", "convolutional", "attention", "other"]
OPTIONAL_SIZES = ("layers", "heads", "window")


@dataclass(frozen=True)
class Sizes:
    """The network options that a backbone may read."""

    width: int
    layers: int
    dropout: float
    history: int  # length of the longest history
    heads: int
    window: int


@dataclass(frozen=True)
class BackboneRecord:
    """Metadata that commands and reports need about a backbone.

    Args:
        name: The value of `--backbone`, such as "gru".
        label: The name in tables and figures, such as "GRU".
        build: Builds the module from its sizes. A causal module maps [N, L, d] to [N, L, d], and its output at t
            depends only on the inputs up to t. Any other module maps a window [B, `module.window`, d], oldest item
            first, to [B, d].
        help: A one-line description.
        family: Determines which of the paper's tables lists the backbone.
        causal: Whether the module is causal. A causal backbone encodes a session once for all its events.
        reads: The options among layers, heads and window that the backbone reads.
        presets: Settings that each preset adds for this backbone.
        search: Settings that `offrec tune` searches for this backbone.
        check: Returns an error message that begins with the name of a network option, or None if the sizes are valid.
        onnx: Writes the module's `forward` to an ONNX graph, for `offrec export`: (graph, module, name of the inputs) →
            name of the outputs. The shapes are those of `build`. See `offrec.backbones.onnx_graph.OnnxGraph`. Without
            it, `offrec export` does not support the backbone.
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


def _check(record: BackboneRecord) -> str | None:
    return (
        check_texts(record, ("label", "help"))
        or check_family(record.family, get_args(Family))
        or check_presets(record.presets)
        or check_callable(record, "build")
        or _check_reads(record.reads)
    )


def _check_reads(reads: frozenset[str]) -> str | None:
    unknown = sorted(set(reads) - set(OPTIONAL_SIZES))
    return f"its reads may contain {', '.join(OPTIONAL_SIZES)}; got {unknown[0]!r}" if unknown else None


BACKBONES: Registry[BackboneRecord] = Registry("backbone", BackboneRecord, _check)


def register_backbone(record: BackboneRecord) -> BackboneRecord:
    """Register a backbone, so that every command accepts it.

    Args:
        record: The backbone's record.

    Returns:
        The same record.

    Raises:
        InputError: If the record is not valid, or another backbone has this name.

    Example:
        >>> build = lambda sizes: Mine(sizes.width)
        >>> offrec.register_backbone(offrec.BackboneRecord("mine", "Mine", build, "My own backbone."))
    """
    return BACKBONES.register(record)
