"""Extension points: registries filled by offrec itself and by other packages, and the fields of option classes."""

from offrec.plugins.checks import check_callable, check_count, check_family, check_presets, check_texts
from offrec.plugins.fields import Bounds, bounds_of, check_bounds, option
from offrec.plugins.registry import Registry
from offrec.plugins.search import PRESET_NAMES, Range, SearchSpace, Settings

__all__ = [
    "PRESET_NAMES",
    "Bounds",
    "Range",
    "Registry",
    "SearchSpace",
    "Settings",
    "bounds_of",
    "check_bounds",
    "check_callable",
    "check_count",
    "check_family",
    "check_presets",
    "check_texts",
    "option",
]
