"""Load policies for serving. A policy is checked and must answer a probe before it serves requests."""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offrec.baselines import baseline
from offrec.data.dataset import Dataset
from offrec.data.sources import find
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.models.network_policy import NetworkPolicy
from offrec.policy import Policy
from offrec.runs import loading
from offrec.runs.folder import read_run
from offrec.serving.engine import Engine, Query
from offrec.serving.errors import without_folders
from offrec.training.sharded_checkpoint import index_path


@dataclass(frozen=True)
class Baseline:
    """A policy that needs no training and is computed from a dataset.

    Attributes:
        name: The name of the baseline.
        dataset: The folder made by `offrec prepare`.
    """

    name: str
    dataset: Path


Source = Path | Baseline  # a run folder, or a baseline on a dataset


@dataclass(frozen=True)
class ServedPolicy:
    """A loaded policy under the name that requests use.

    Attributes:
        name: The name in requests.
        origin: The run folder or baseline as it was named.
        source: The run folder, with links resolved, or the dataset of a baseline.
        policy: The policy.
        engine: Computes its lists.
        fingerprint: A hash of the options and weights, or of a baseline's dataset.
    """

    name: str
    origin: Source
    source: Path
    policy: Policy
    engine: Engine
    fingerprint: str

    def public_reason(self, reason: str) -> str:
        """Remove the folders of the policy's files from the reason of a failed reload, for the response."""
        path = self.origin.dataset if isinstance(self.origin, Baseline) else self.origin
        places = (Path(os.path.realpath(path)), path.absolute())
        return without_folders(reason, *places) or "the server's standard error has the reason"

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `PolicyDescription`."""
        return {
            "policy": self.name,
            "run": self.source.name,
            "learner": self.policy.name,
            "fingerprint": self.fingerprint,
            "n_items": self.policy.n_items,
            "item_id_type": "int" if self.policy.vocabulary.is_numeric else "string",
            "history_length": self.policy.history,
            "stochastic": self.policy.stochastic,
            "learns_from_lists": self.policy.learns_from_lists,
            "has_logging_policy": self.engine.has_logging_policy,
            "products": self.engine.products,
        }


def parse_sources(
    runs: tuple[str, ...], baselines: tuple[str, ...] = (), dataset: Path | None = None
) -> dict[str, Source]:
    """Read the policies from the command line.

    Args:
        runs: Run folders, each as `RUN` or `NAME=RUN`.
        baselines: Names of baselines.
        dataset: The dataset of the baselines.

    Returns:
        Name → source, in the given order.

    Raises:
        InputError: If two policies have the same name, or baselines have no dataset.
    """
    if baselines and dataset is None:
        raise InputError("--baselines needs a dataset to compute them from; add --dataset DATASET.")
    named: list[tuple[str, Source]] = []
    for argument in runs:
        name, _, folder = argument.rpartition("=")
        path = Path(folder if name else argument)
        named.append((name or path.absolute().name, path))  # the name of the link itself, because its target may change
    named += [(name, Baseline(name, dataset)) for name in baselines if dataset is not None]
    sources: dict[str, Source] = {}
    for name, source in named:
        if name in sources:
            raise InputError(f"Two policies have the name {name!r}; give them different names with NAME=RUN.")
        sources[name] = source
    return sources


def load_policy(
    name: str, source: Source, device: str, seed: int | None = None, new_items: tuple[str, ...] = ()
) -> ServedPolicy:
    """Load and check a policy.

    Args:
        name: The name that requests use.
        source: A run folder, or a baseline on a dataset.
        device: The torch device, or "auto".
        seed: The seed of sampled lists; None takes one from the operating system.
        new_items: Files with items that the run has never seen; see `offrec.load`. Baselines ignore them.

    Returns:
        The policy, which has answered a probe.

    Raises:
        InputError: If the run is damaged or recommends nothing to a new visitor.
    """
    if isinstance(source, Baseline):
        dataset = Dataset.open(source.dataset)
        policy = baseline(source.name, dataset, device=loading.pick_device(device))
        fingerprint = hashlib.sha256(repr((source.name, policy.data_hash)).encode()).hexdigest()[:12]
        folder = source.dataset.absolute()
    else:
        folder = Path(os.path.realpath(source))  # resolved once: a link that changes during loading would mix two runs
        policy = load_run(folder, device, new_items)
        fingerprint = _fingerprint(folder, policy.vocabulary, new_items)
    engine = Engine(policy, seed)
    policy.vocabulary.index(policy.vocabulary.id(0))  # builds the table of ids before the first request
    probes = [Query([], 1), Query([0], 1, temperature=1.0 if policy.stochastic else None)]
    for result in engine.rank(probes):
        if len(result.items) != 1 or not math.isfinite(result.scores[0]):
            raise InputError(f"{folder} recommends nothing to a new visitor; train it again.")
    return ServedPolicy(name, source, folder, policy, engine, fingerprint)


def load_run(folder: Path, device: str, new_items: tuple[str, ...] = ()) -> NetworkPolicy:
    """Load a run and check its weights and item ids.

    Args:
        folder: The run folder.
        device: The torch device, or "auto".
        new_items: Files with items that the run has never seen.

    Returns:
        The policy.

    Raises:
        InputError: If the run contains NaN or infinite weights, or item ids of another catalogue.
    """
    policy = loading.load(folder, device, new_items=new_items or None)
    for name, tensor in policy.agent.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{folder} contains NaN or infinite weights ({name}); train it again.")
    if len(policy.vocabulary) != policy.agent.n_items:
        raise InputError(
            f"{folder} has {len(policy.vocabulary)} item ids for {policy.agent.n_items} items; train it again."
        )
    return policy


def _fingerprint(run: Path, vocabulary: Vocabulary, new_items: tuple[str, ...]) -> str:
    """Return 12 hexadecimal digits that change with the weights, the options and new items."""
    facts = read_run(run)
    state = hashlib.sha256(repr((facts["data_hash"], sorted(facts["options"].items()))).encode())
    if new_items:
        state.update(repr([vocabulary.id(index) for index in range(facts["items"], len(vocabulary))]).encode())
    # The index of a checkpoint in several files contains their checksums.
    weights = next(path for path in (index_path(run / "best.safetensors"), run / "best.safetensors") if path.exists())
    files = [weights, *(source.path for source in (find(new_items) if new_items else ()))]
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                state.update(block)
    return state.hexdigest()[:12]
