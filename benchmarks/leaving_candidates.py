"""Compare candidates of the model of leaving on validation sessions, with and without impatience.

    python benchmarks/leaving_candidates.py RUN DATASET [--out FILE]

RUN is a fitted user model, DATASET the log of the simulated shop that it was fitted to. Attractiveness and interest
are those of the run. Each candidate is fitted by L-BFGS to the training sessions. Printed are the log-likelihood per
list of validation sessions, the estimated σ of impatience, and the regression of the true effects of items on the
fitted ones: a slope of 1 means that effects are neither over- nor underestimated.
"""

import argparse
import json
from pathlib import Path

import torch

import offrec
from evidence import world, write_results
from offrec.data.dataset import Dataset
from offrec.data.list_log import read_lists
from offrec.models.leaving_fit import LeavingFit
from offrec.models.user_agent import UserModelAgent
from offrec.shop import Shop

ITERATIONS = 60
ALIKE = -20.0  # log σ of visitors who do not differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset, agent = Dataset.open(options.dataset), offrec.load(options.run, "cpu").agent
    assert isinstance(agent, UserModelAgent)
    shop, device = Shop.from_meta(dataset.meta["shop"]), torch.device("cpu")
    memory, negatives = agent.learner.memory, agent.learner.negatives
    log, validation = (read_lists(dataset, split, memory, negatives, device) for split in ("train", "validation"))
    true = (shop.world.leave_slope * shop.dynamics.items.worth[:-1]).double()
    true = true - true.mean()
    rows = []
    for differs in (False, True):
        for name in agent.leaving_parameters:
            getattr(agent, name).data.zero_()
        agent.leave_base.data.fill_(-2.0)
        agent.log_impatience.data.fill_(-0.5 if differs else ALIKE)
        fit = _AlikeFit(agent, log) if not differs else LeavingFit(agent, log)
        for candidate in range(len(agent.leave_base)):
            fit.fit(candidate, ITERATIONS)
        with torch.no_grad():
            likelihood, worth = agent._leaving_likelihood(validation), agent.worth().double()
        for candidate in range(len(agent.leave_base)):
            fitted = worth[:, candidate] - worth[:, candidate].mean()
            weight = agent.grid_log_weight[:2, candidate]
            rows.append(
                {
                    "differs": differs,
                    "precision": float(agent.grid_precision[candidate]),
                    "decay": round(float((weight[1] - weight[0]).exp()), 2),
                    "likelihood": float(likelihood[candidate]),
                    "impatience": float(agent.log_impatience[candidate].detach().exp()) if differs else 0.0,
                    "slope": float((fitted @ true) / (fitted @ fitted)),
                    "correlation": float((fitted @ true) / (fitted.norm() * true.norm())),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        about = {"shop": {"world": shop.world.name, "seed": shop.seed}, "candidates": rows}
        write_results(options.out, about, {shop.world.name: world(shop.world.name)})


class _AlikeFit(LeavingFit):
    """Visitors who do not differ in impatience: σ is not fitted."""

    def evaluate(self, candidate, parameters):  # type: ignore[no-untyped-def]
        loss, gradients = super().evaluate(candidate, parameters)
        gradients[-1] = torch.zeros_like(gradients[-1])
        return loss, gradients


if __name__ == "__main__":
    main()
