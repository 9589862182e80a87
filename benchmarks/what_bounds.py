"""Measure which part of a fitted user model limits what its plans earn in a simulated shop.

    python benchmarks/what_bounds.py RUN DATASET [--visitors 1000] [--variants fitted,true:taste,…] [--out FILE]

RUN is a fitted user model, DATASET the log of the simulated shop that it was fitted to. Four parts of the model are
replaced by the ground truth of the shop, one at a time or all but one:

    a       mean utility of each item, over visitors
    q       mean interest of each item in conversion, over visitors
    w       effect of each item on leaving
    taste   how utility and interest of an item differ between visitors: item vectors and types

`true:a+q` has true a and q, `personal:off` has no taste, `horizon:0` does not look ahead, `shown:20` plans with items
that were shown at least 20 times, `types:N` has N true types, and `shrunk:20` multiplies
fitted a, q and w of an item by n / (n + 20), where n is the number of lists (a) or picks (q, w) of the item.
`calibrated:fitted` replaces a, q and w by what a cubic regression of the true ones on the fitted ones predicts, and
`calibrated:counts` adds the numbers of lists and picks to the regressors. Each fifth of the items is predicted from the
others. It reads the ground truth, so it shows what a better shrinkage of the same estimates could gain.
"""

import argparse
import json
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import offrec
from earnings_plan import PLAN
from evidence import world, write_results
from offrec.data.dataset import Dataset
from offrec.data.list_log import read_lists
from offrec.models.user_agent import CALIBRATIONS, UserModelAgent
from offrec.shop import Shop

PARTS = ("a", "q", "w", "taste")
TRUE_TYPES = 512
FOLDS, RIDGE = 5, 0.1  # of the regression of the true effects on the fitted ones
NEVER = -20.0  # utility of items that must not be planned


@dataclass(frozen=True)
class Taste:
    """How visitors differ. The mean over types is part of a and q, so `types` have mean 0."""

    x: Tensor  # [A, d]
    types: Tensor  # [K, d]
    log_prior: Tensor  # [K]
    lag: Tensor  # [m]
    fading: Tensor  # [] log-odds of φ
    interest: float  # change of the log-odds of conversion per unit of match


@dataclass(frozen=True)
class Parts:
    """The parts of a user model in units of log-odds."""

    a: Tensor  # [A]
    none: Tensor  # []
    place: Tensor  # [k]
    q: Tensor  # [A]
    base: Tensor  # [b] log-odds of behaviours at q = 0
    w: Tensor  # [A]
    taste: Taste


def fitted_parts(agent: UserModelAgent) -> Parts:
    """Return the parts of a fitted model."""
    x, log_prior = agent.vectors(), agent.type_logit.log_softmax(0)
    mean = log_prior.exp() @ agent.types
    slope, match = float(agent.slopes().mean()), float(agent.match_conversion)
    return Parts(
        a=agent.centred() + x @ mean,
        none=agent.none,
        place=agent.place,
        q=slope * (agent.interest() + match * (x @ mean)),
        base=agent.behaviour_base,
        w=agent.worth()[:, int(agent.best)],
        taste=Taste(x, agent.types - mean, log_prior, agent.lag, agent.fading, slope * match),
    )


def true_parts(shop: Shop, behaviours: list[str], fitted: Parts, picks: Tensor, types: int) -> Parts:
    """Return the shop's parts; w has the mean of the fitted one, because the base rate of leaving is fitted."""
    knobs, items = shop.world, shop.dynamics.items
    visitors = shop.dynamics.arrive(types, seed=2_000_000_001).taste
    mean = visitors.mean(0)
    w = knobs.leave_slope * items.worth[:-1]
    share = picks / picks.sum()
    bases = {"cart": knobs.cart_base, "buy": knobs.buy_base}
    drift = knobs.drift * (1 - knobs.drift) ** torch.arange(len(fitted.taste.lag))
    match = items.taste[:-1] @ mean
    return Parts(
        a=items.attractiveness[:-1] + knobs.appeal * match,
        none=torch.tensor(float(knobs.none_utility or 0.0)),
        place=torch.zeros_like(fitted.place),
        q=knobs.quality_interest * items.quality[:-1] + knobs.match_interest * match,
        base=torch.tensor([bases[name] for name in behaviours[1:]]),
        w=w + share @ (fitted.w - w),
        taste=Taste(
            items.taste[:-1],
            knobs.appeal * (visitors - mean),
            torch.full((types,), 1.0 / types).log(),
            knobs.appeal * drift,
            torch.tensor(1 - knobs.drift).logit(),
            knobs.match_interest / knobs.appeal,
        ),
    )


def compose(agent: UserModelAgent, parts: Parts) -> UserModelAgent:
    """Return a copy of the model that has these parts."""
    made, slope = deepcopy(agent), float(agent.slopes().mean())
    made._planner = None

    def put(name: str, value: Tensor) -> None:
        setattr(made, name, nn.Parameter(value.detach().clone().float(), requires_grad=False))

    put("x", parts.taste.x)
    put("types", parts.taste.types)
    put("type_logit", parts.taste.log_prior)
    put("lag", parts.taste.lag)
    put("fading", parts.taste.fading)
    put("attractiveness", parts.a)
    put("none", parts.none - parts.a.mean())  # the model subtracts the mean of a
    put("place", parts.place)
    put("conversion_slope", torch.zeros(()))
    put("conversion_effect", parts.q)
    put("behaviour_base", parts.base)
    put("behaviour_slope", torch.ones_like(parts.base))
    put("match_conversion", torch.tensor(parts.taste.interest))
    put("seen_conversion", slope * agent.seen_conversion)
    put("leave_slopes", torch.zeros_like(agent.leave_slopes))
    effects = torch.zeros_like(agent.leave_effect)
    effects[:, int(agent.best)] = parts.w
    put("leave_effect", effects)
    generator = torch.Generator().manual_seed(0)
    for _ in range(CALIBRATIONS):
        made.statistics.copy_(made.planner().simulate(generator)[0])
    return made


def counts(dataset: Dataset, agent: UserModelAgent) -> tuple[Tensor, Tensor]:
    """Return how often each item was shown and picked in training sessions."""
    log = read_lists(dataset, "train", agent.learner.memory, agent.learner.negatives, torch.device("cpu"))
    rows = log.rows
    shown = rows.offered[rows.offered < agent.n_items]
    picked = rows.picked_item[rows.place > 0]
    return tuple(torch.bincount(items, minlength=agent.n_items).float() for items in (shown, picked))  # type: ignore[return-value]


def variant(name: str, agent: UserModelAgent, shop: Shop, dataset: Dataset) -> UserModelAgent:
    """Return the model of a variant, such as `true:a+q` or `true:a,personal:off`."""
    options = dict(part.partition(":")[::2] for part in name.split("/") if part != "fitted")
    if "leaving" in options:
        agent = deepcopy(agent)
        agent.best.fill_(int(options["leaving"]))
    fitted, (shown, picks) = fitted_parts(agent), counts(dataset, agent)
    true = true_parts(shop, list(dataset.behaviours), fitted, picks, int(options.get("types", TRUE_TYPES)))
    parts = fitted
    if "shrunk" in options:
        events = float(options["shrunk"])
        by_lists, by_picks = shown / (shown + 5 * events), picks / (picks + events)
        parts = replace(
            parts,
            a=_shrink(parts.a, by_lists, shown),
            q=_shrink(parts.q, by_picks, picks),
            w=_shrink(parts.w, by_picks, picks),
        )
    if "calibrated" in options:
        known = [parts.a, parts.q, parts.w]
        if options["calibrated"] == "counts":
            known += [(shown + 1).log(), (picks + 1).log()]
        parts = replace(
            parts,
            **{name: _calibrated(torch.stack(known, 1), getattr(parts, name), getattr(true, name)) for name in "aqw"},
        )
    taken: dict[str, Any] = {part: getattr(true, part) for part in PARTS if part in options.get("true", "").split("+")}
    if "a" in taken:
        taken |= {"none": true.none, "place": true.place}
    if "q" in taken:
        taken["base"] = true.base
    parts = replace(parts, **taken)
    if options.get("personal") == "off":
        parts = replace(parts, taste=replace(parts.taste, x=torch.zeros_like(parts.taste.x)))
    if "personal" in options and options["personal"] != "off":
        parts = replace(parts, taste=replace(parts.taste, x=parts.taste.x * float(options["personal"])))
    if "shown" in options:
        parts = replace(parts, a=torch.where(shown >= int(options["shown"]), parts.a, NEVER))
    made = compose(agent, parts)
    if options.get("horizon") == "0":
        made.learner = replace(made.learner, horizon=0)
    return made


def _calibrated(known: Tensor, fitted: Tensor, true: Tensor) -> Tensor:
    """Return the prediction of `true` [A] from columns [A, n], cross-fitted, with the mean difference of `fitted`."""
    known = known.clamp(known.quantile(0.002, 0), known.quantile(0.998, 0)).double()
    known = (known - known.mean(0)) / known.std(0)
    columns = [torch.ones(len(known), dtype=torch.double)]
    for degree in (1, 2, 3):
        columns += [known[:, list(one)].prod(1) for one in combinations_with_replacement(range(known.shape[1]), degree)]
    x, y, fold = torch.stack(columns, 1), true.double(), torch.arange(len(true)) % FOLDS
    predicted = torch.empty_like(y)
    for number in range(FOLDS):
        others = x[fold != number]
        normal = others.T @ others + RIDGE * torch.eye(x.shape[1], dtype=torch.double)
        weights = torch.linalg.solve(normal, others.T @ y[fold != number])
        predicted[fold == number] = x[fold == number] @ weights
    return predicted.float() + (fitted - true).mean()


def _shrink(values: Tensor, share: Tensor, weight: Tensor) -> Tensor:
    mean = (values * weight).sum() / weight.sum()
    return mean + share * (values - mean)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--visitors", type=int, default=1000)
    parser.add_argument("--variants", default="fitted,true:a,true:q,true:w,true:taste,true:a+q+w+taste")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset, policy = Dataset.open(options.dataset), offrec.load(options.run, "cpu")
    shop, agent = Shop.from_meta(dataset.meta["shop"]), policy.agent
    assert isinstance(agent, UserModelAgent)
    results = []
    for name in options.variants.split(","):
        started = time.time()
        policy.agent = variant(name, agent, shop, dataset)
        rollout = shop.rollout(policy, options.visitors, seed=PLAN.visitors_seed)
        expected = policy.agent.planner().simulate(torch.Generator().manual_seed(1))[1]
        result = {
            "variant": name,
            "reward": rollout.reward.mean,
            "half_width": (rollout.reward.high - rollout.reward.low) / 2,
        }
        result |= {"lists": float(rollout.steps.mean()), "picks": rollout.length.mean, "expected": expected}
        results.append(result)
        print(json.dumps(result), f"{time.time() - started:.0f} s", flush=True)
    if options.out is not None:
        about = {"shop": {"world": shop.world.name, "seed": shop.seed}, "variants": results}
        write_results(options.out, about, {shop.world.name: world(shop.world.name)})


if __name__ == "__main__":
    main()
