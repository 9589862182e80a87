"""Extension points: registries filled by offrec itself and by other packages, and the fields of option classes."""

from offrec.plugins.fields import Bounds, bounds_of, check_bounds, option
from offrec.plugins.registry import Registry
from offrec.plugins.search import Range, SearchSpace, Settings

__all__ = ["Bounds", "Range", "Registry", "SearchSpace", "Settings", "bounds_of", "check_bounds", "option"]
