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
        second_seeds: Seeds of further shops, for defaults that changed after the reporting seeds were opened.
        third_seeds: The same, for defaults that changed after the second seeds were opened.
        fourth_seeds: The same, for defaults that changed after the third seeds were opened.
        fifth_seeds: The same, for defaults that changed after the fourth seeds were opened.
        sixth_seeds: The same, for defaults that changed after the fifth seeds were opened.
        spent_seeds: Seeds of shops whose results have influenced settings before; use them for tests only.
        worlds: Worlds with a full table.
        larger_worlds: Worlds in which only the yardsticks, the recommended learner and its twin are measured.
        sessions: Logged sessions per world.
        visitors: Visitors of a roll-out.
        visitors_seed: The seed of the visitors.
        skip_recent: The values of `skip_recent` from which each policy gets the better one.
        simple_policies: Policies that need no critic.
        series: What is measured on the second to sixth seeds: groups of policies, worlds, seeds and a device.
    """

    tuning_seeds: tuple[int, ...]
    reporting_seeds: tuple[int, ...]
    second_seeds: tuple[int, ...]
    third_seeds: tuple[int, ...]
    fourth_seeds: tuple[int, ...]
    fifth_seeds: tuple[int, ...]
    sixth_seeds: tuple[int, ...]
    spent_seeds: tuple[int, ...]
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
        purposes = ("tuning", "reporting", "second_series", "third_series", "fourth_series")
        purposes += ("fifth_series", "sixth_series", "spent")
        seeds = {name: tuple(plan["seeds"][name]) for name in purposes}
        if sum(map(len, seeds.values())) != len(set().union(*seeds.values())):
            raise ValueError(f"{file}: a seed has two purposes; each seed may be used for one only.")
        return EarningsPlan(
            *seeds.values(),
            worlds=tuple(plan["worlds"]["full_table"]),
            larger_worlds=tuple(plan["worlds"]["yardsticks_and_recommended_learner"]),
            sessions=plan["log"]["sessions"],
            visitors=plan["rollout"]["visitors"],
            visitors_seed=plan["rollout"]["seed"],
            skip_recent=tuple(plan["skip_recent"]["values"]),
            simple_policies=tuple(plan["simple_policies"]),
            series={
                name: tuple(plan[f"{name}_series"]["groups"])
                for name in ("second", "third", "fourth", "fifth", "sixth")
            },
        )

    def check_tuning(self, seeds: Iterable[int]) -> None:
        """Raise ValueError if a setting would be chosen on shops that are reported on."""
        wrong = sorted(set(seeds) - set(self.tuning_seeds))
        if wrong:
            raise ValueError(f"Seeds {wrong} are not tuning seeds; choose settings on {list(self.tuning_seeds)}.")


PLAN = EarningsPlan.read()
