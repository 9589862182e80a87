"""Measure what a user model earns if it knows the lists that a visitor has seen, and if it knows the picks alone.

    python benchmarks/shown_lists.py RUN DATASET… [--visitors 4000] [--out FILE]

Each RUN is a fitted user model and each DATASET the log of the simulated shop that it was fitted to: RUN DATASET RUN
DATASET … Servers get the lists as `"shown"` in requests; without them a policy knows the picks alone.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import offrec
from earnings_plan import PLAN
from evidence import world, write_results
from offrec.catalogue import Head
from offrec.data.dataset import Dataset
from offrec.models.user_agent import UserModelAgent, UserSessions
from offrec.shop import Shop


class PicksAlone(UserSessions):
    """Sessions of which only the picks are known, as in requests without `"shown"`."""

    def __init__(self, agent: UserModelAgent, rows: int, recent: Tensor | None = None) -> None:
        super().__init__(agent, rows, recent)
        self.recent = torch.full((rows, agent.options.history), agent.n_items, device=agent.x.device)

    @torch.no_grad()
    def head(self, rows: Tensor, allowed: Tensor | None = None, excluded: Tensor | None = None) -> Head:
        planner = self.agent.planner()
        posterior = planner.after_picks(self.recent[rows])
        patience = planner.patience_after_picks(self.recent[rows])
        return self.agent.planned_head(posterior, self.memory[rows], self.picks[rows], allowed, patience, excluded)

    @torch.no_grad()
    def observe(self, rows: Tensor, lists: Tensor, items: Tensor) -> None:
        super().observe(rows, lists, items)
        before, picked = self.recent[rows], items < self.agent.n_items
        self.recent[rows] = torch.where(picked[:, None], torch.cat([items[:, None], before[:, :-1]], 1), before)


class WithoutLists(UserModelAgent):
    """The same model; its sessions know the picks alone."""

    def start_sessions(self, rows: int, recent: Tensor | None = None) -> UserSessions:
        return PicksAlone(self, rows, recent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--visitors", type=int, default=PLAN.visitors)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, worlds = [], {}
    for run, data in zip(options.paths[::2], options.paths[1::2], strict=True):
        policy, shop = offrec.load(run, "cpu"), Shop.from_meta(Dataset.open(data).meta["shop"])
        agent = policy.agent
        assert isinstance(agent, UserModelAgent)
        row = {"world": shop.world.name, "seed": shop.seed, "visitors": options.visitors}
        for name, kind in (("shown", UserModelAgent), ("picks alone", WithoutLists)):
            agent.__class__ = kind
            reward = shop.rollout(policy, options.visitors, seed=PLAN.visitors_seed).reward
            row |= {name: reward.mean, f"{name}, half width": (reward.high - reward.low) / 2}
        rows.append(row)
        worlds[shop.world.name] = world(shop.world.name)
        print(json.dumps(row), flush=True)
    if options.out is not None:
        write_results(options.out, rows, worlds)


if __name__ == "__main__":
    main()
