"""Rounds in a simulated shop: a policy serves and writes a log, the next policy is trained on it and serves.

Example:
    >>> from offrec.rounds import RoundsOptions, run_rounds
    >>> results = run_rounds(RoundsOptions(seed=10, explore=("never", "blend:0.1")), "rounds")
    >>> results.last("never").trained.mean
"""

from offrec.rounds.options import RoundsOptions, WayOfExploring, parse_way
from offrec.rounds.results import Round, RoundsResults, read_results
from offrec.rounds.run import run_rounds

__all__ = ["Round", "RoundsOptions", "RoundsResults", "WayOfExploring", "parse_way", "read_results", "run_rounds"]
