"""Learn recommendation policies offline from logged sessions.

import offrec

dataset = offrec.prepare("events.csv", format="events", out="data/shop")
policy = offrec.train(dataset, out="runs/sl")
print(offrec.evaluate(policy, dataset).metrics["all"]["NDCG@10"])
print(policy.recommend([12, 55, 9], k=10).items)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Idle threads should sleep, not spin: otherwise torch is many times slower on a busy machine. The variable must be set
# before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from offrec.algorithms import LearnerRecord, register_learner
    from offrec.backbones import BackboneRecord, register_backbone
    from offrec.baselines import BaselineRecord, baseline, register_baseline
    from offrec.data.dataset import Dataset
    from offrec.data.formats import FormatRecord, register_format
    from offrec.data.prepare import prepare
    from offrec.errors import InputError
    from offrec.estimation.certify import certify
    from offrec.estimation.estimate import estimate
    from offrec.estimation.outside import LoggedPolicy, TableColumns, estimate_table
    from offrec.evaluation import MetricRecord, evaluate, register_metric
    from offrec.policy import Policy
    from offrec.runs.loading import load
    from offrec.runs.train import train
    from offrec.serving.recommend_frame import recommend_table

__all__ = [
    "BackboneRecord",
    "BaselineRecord",
    "Dataset",
    "FormatRecord",
    "InputError",
    "LearnerRecord",
    "LoggedPolicy",
    "MetricRecord",
    "Policy",
    "TableColumns",
    "baseline",
    "certify",
    "estimate",
    "estimate_table",
    "evaluate",
    "load",
    "prepare",
    "recommend_table",
    "register_backbone",
    "register_baseline",
    "register_format",
    "register_learner",
    "register_metric",
    "train",
]

_MODULES = {
    "BackboneRecord": "offrec.backbones",
    "BaselineRecord": "offrec.baselines",
    "Dataset": "offrec.data.dataset",
    "FormatRecord": "offrec.data.formats",
    "InputError": "offrec.errors",
    "LearnerRecord": "offrec.algorithms",
    "LoggedPolicy": "offrec.estimation.outside",
    "MetricRecord": "offrec.evaluation",
    "Policy": "offrec.policy",
    "TableColumns": "offrec.estimation.outside",
    "baseline": "offrec.baselines",
    "certify": "offrec.estimation.certify",
    "estimate": "offrec.estimation.estimate",
    "estimate_table": "offrec.estimation.outside",
    "evaluate": "offrec.evaluation",
    "load": "offrec.runs.loading",
    "prepare": "offrec.data.prepare",
    "recommend_table": "offrec.serving.recommend_frame",
    "register_backbone": "offrec.backbones",
    "register_baseline": "offrec.baselines",
    "register_format": "offrec.data.formats",
    "register_learner": "offrec.algorithms",
    "register_metric": "offrec.evaluation",
    "train": "offrec.runs.train",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `prepare` needs no torch, and a minimal GPU image for training has no polars.
    if name not in _MODULES:
        raise AttributeError(f"module 'offrec' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
