"""Draw the figure of docs/explanation/shop.md: what the shop's own policies earn and how many visitors stay."""

from pathlib import Path

import numpy as np

from offrec.shop.rollout import Rollout
from offrec.shop.store import SHOP_POLICIES, Shop

WIDTH = 7.0  # inches


def draw(shop: Shop, path: str | Path, sessions: int = 2000, seed: int = 0, steps: int = 40) -> list[Rollout]:
    """Roll out the shop's own policies, and draw the share of remaining visitors and the rewards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rollouts = [shop.rollout(name, sessions, seed=seed) for name in SHOP_POLICIES if name != "informed"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(WIDTH, WIDTH * 0.4), layout="constrained")
    for rollout in rollouts:
        share = [(rollout.steps > step).mean() for step in range(steps)]
        left.plot(np.arange(steps), share, label=rollout.policy)
    left.set(xlabel="lists shown", ylabel="share of visitors still there", yscale="log")
    left.legend(frameon=False)
    means = [rollout.reward for rollout in rollouts]
    names = [rollout.policy for rollout in rollouts]
    errors = [mean.high - mean.mean for mean in means]
    colours = [line.get_color() for line in left.get_lines()]
    right.bar(names, [mean.mean for mean in means], yerr=errors, color=colours, capsize=3)
    right.set(ylabel="true reward per session", title=f"{shop.world.name}, seed {shop.seed}")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return rollouts
