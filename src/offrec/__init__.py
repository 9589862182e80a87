"""offrec: recommendation policies learned offline from logged sessions.

import offrec

dataset = offrec.prepare("events.csv", format="events", out="data/shop")
policy = offrec.train(dataset, out="runs/sl")
print(offrec.evaluate(policy, dataset).metrics["all"]["NDCG@10"])
print(policy.recommend([12, 55, 9], k=10).items)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Waiting threads should sleep, not spin: beside other busy processes torch is otherwise many times slower. It must be
# said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from offrec.baselines import baseline
    from offrec.data.dataset import Dataset
    from offrec.data.prepare import prepare
    from offrec.errors import InputError
    from offrec.estimation.estimate import estimate
    from offrec.evaluation import evaluate
    from offrec.policy import Policy
    from offrec.runs.train import load, train

__all__ = ["Dataset", "InputError", "Policy", "baseline", "estimate", "evaluate", "load", "prepare", "train"]

_HOMES = {
    "Dataset": "offrec.data.dataset",
    "InputError": "offrec.errors",
    "Policy": "offrec.policy",
    "baseline": "offrec.baselines",
    "estimate": "offrec.estimation.estimate",
    "evaluate": "offrec.evaluation",
    "load": "offrec.runs.train",
    "prepare": "offrec.data.prepare",
    "train": "offrec.runs.train",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: preparing needs no torch, and training on a bare GPU image has no polars.
    if name not in _HOMES:
        raise AttributeError(f"module 'offrec' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
