"""Run the checks of sharded catalogues in worlds of 1 to 4 processes, and print their results as JSON.

This is a script: a process that has only imported torch can be forked safely, and one start serves all worlds.
"""

import json
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "scale"), str(TESTS / "models"), str(TESTS)]

import agent_checks  # noqa: E402
import catalogue_checks  # noqa: E402
import user_model_checks  # noqa: E402

from worlds import run_ranks  # noqa: E402

# All variants in a world of 2. Elsewhere: DC; SL with neighbours and rewards; DC with features, ranked by its critic.
VARIANTS = {1: (9,), 2: range(len(agent_checks.VARIANTS)), 3: (9, 13), 4: (19,)}


def main() -> None:
    warnings.simplefilter("ignore")
    results = {}
    for world in (1, 2, 3, 4):

        def check(rank: int, world: int = world) -> dict[str, object]:
            return {
                "functions": catalogue_checks.check_functions(rank, world),
                "lookup": catalogue_checks.check_lookup(rank, world),
                "random_rows": catalogue_checks.check_random_rows(rank, world),
                "agents": agent_checks.check_agents(rank, world, VARIANTS[world]),
                "user models": user_model_checks.check_user_models(rank, world),
            }

        results[world] = run_ranks(world, check)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
