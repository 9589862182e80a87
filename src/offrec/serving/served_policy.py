"""A run's folder as something that may be served: loaded, and found to answer, before anybody is sent to it."""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offrec.errors import InputError
from offrec.models.network_policy import NetworkPolicy
from offrec.runs import loading
from offrec.runs.folder import read_run
from offrec.serving.engine import Engine, Query


@dataclass(frozen=True)
class ServedPolicy:
    """A policy under the name it is asked for."""

    name: str
    run: Path
    policy: NetworkPolicy
    engine: Engine
    fingerprint: str  # of the run's options and weights

    def as_json(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "policy": self.name,
            "run": self.run.name,
            "learner": policy.name,
            "fingerprint": self.fingerprint,
            "n_items": policy.n_items,
            "item_id_type": "int" if policy.vocabulary.is_numeric else "string",
            "history_length": policy.history,
            "stochastic": policy.stochastic,
            "has_logging_policy": self.engine.knows_logging,
        }


def named(words: tuple[str, ...]) -> dict[str, Path]:
    """`RUN` or `NAME=RUN`: the runs by name, in their order."""
    found: dict[str, Path] = {}
    for word in words:
        name, _, folder = word.rpartition("=")
        path = Path(folder if name else word)
        name = name or path.absolute().name  # of a link its own: what it points to may change
        if name in found:
            raise InputError(f"Two policies would be called {name!r}; tell them apart with NAME=RUN.")
        found[name] = path
    return found


def load(name: str, run: Path, device: str, seed: int | None = None) -> ServedPolicy:
    """The policy of a run, refused unless its weights are numbers and it recommends something to a new visitor."""
    run = Path(os.path.realpath(run))  # once: a link switched meanwhile would mix two runs
    policy = loading.load(run, device)
    for weights, tensor in policy.agent.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{run} has weights that are no numbers ({weights}); train it again.")
    if len(policy.vocabulary) != policy.agent.n_items:
        raise InputError(
            f"{run} has {len(policy.vocabulary)} item ids for {policy.agent.n_items} items; train it again."
        )
    engine = Engine(policy, seed)
    policy.vocabulary.index(policy.vocabulary.id(0))  # builds its table of ids now, not in somebody's request
    asks = [Query([], 1), Query([0], 1, temperature=1.0)] if policy.stochastic else [Query([], 1), Query([0], 1)]
    for answer in engine.answer(asks):
        if len(answer.items) != 1 or not math.isfinite(answer.scores[0]):
            raise InputError(f"{run} recommends nothing to a new visitor; train it again.")
    return ServedPolicy(name, run, policy, engine, _fingerprint(run))


def _fingerprint(run: Path) -> str:
    """Twelve hexadecimal digits that change with the weights and with the options."""
    facts = read_run(run)
    state = hashlib.sha256(repr((facts["data_hash"], sorted(facts["options"].items()))).encode())
    with (run / "best.safetensors").open("rb") as file:
        while piece := file.read(1 << 24):
            state.update(piece)
    return state.hexdigest()[:12]
