"""The protocol of results/earnings-plan.json: shops to tune on, shops to report on, and how both are measured.

    from earnings_plan import PLAN

    PLAN.reporting_seeds, PLAN.sessions["demo"], PLAN.visitors

Benchmarks read seeds, worlds and sizes from here, so that they measure the same shops.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "results/earnings-plan.json"


@dataclass(frozen=True)
class EarningsPlan:
    """Which shops are measured, and how.

    Args:
        tuning_seeds: Seeds of the shops on which settings are chosen.
        reporting_seeds: Seeds of the shops on which results are reported, once.
        worlds: Worlds with a full table.
        larger_worlds: Worlds in which only the yardsticks, the recommended learner and its twin are measured.
        sessions: Logged sessions per world.
        visitors: Visitors of a roll-out.
        visitors_seed: The seed of the visitors.
        skip_recent: The values of `skip_recent` from which each policy gets the better one.
        simple_policies: Policies that need no critic.
        series: The later series, on seeds of their own, by name: groups of policies, worlds, seeds and a device.
    """

    tuning_seeds: tuple[int, ...]
    reporting_seeds: tuple[int, ...]
    worlds: tuple[str, ...]
    larger_worlds: tuple[str, ...]
    sessions: dict[str, int]
    visitors: int
    visitors_seed: int
    skip_recent: tuple[int, ...]
    simple_policies: tuple[str, ...]
    series: dict[str, tuple[dict[str, Any], ...]]

    @staticmethod
    def read(file: Path = FILE) -> "EarningsPlan":
        """Read the protocol and check that no seed has two purposes."""
        plan: dict[str, Any] = json.loads(file.read_text())
        seeds = {name: tuple(of_purpose) for name, of_purpose in plan["seeds"].items() if isinstance(of_purpose, list)}
        if sum(map(len, seeds.values())) != len(set().union(*seeds.values())):
            raise ValueError(f"{file}: a seed has two purposes; each seed may be used for one only.")
        return EarningsPlan(
            tuning_seeds=seeds["tuning"],
            reporting_seeds=seeds["reporting"],
            worlds=tuple(plan["worlds"]["full_table"]),
            larger_worlds=tuple(plan["worlds"]["yardsticks_and_recommended_learner"]),
            sessions=plan["log"]["sessions"],
            visitors=plan["rollout"]["visitors"],
            visitors_seed=plan["rollout"]["seed"],
            skip_recent=tuple(plan["skip_recent"]["values"]),
            simple_policies=tuple(plan["simple_policies"]),
            series={
                name.removesuffix("_series"): tuple(part["groups"])
                for name, part in plan.items()
                if name.endswith("_series")
            },
        )

    def check_tuning(self, seeds: Iterable[int]) -> None:
        """Raise ValueError if a setting would be chosen on shops that are reported on."""
        wrong = sorted(set(seeds) - set(self.tuning_seeds))
        if wrong:
            raise ValueError(f"Seeds {wrong} are not tuning seeds; choose settings on {list(self.tuning_seeds)}.")


PLAN = EarningsPlan.read()
