"""Load trained runs: the policy, its dataset, and the device to use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from offrec.algorithms.user_model import UserModel
from offrec.data.dataset import Dataset
from offrec.data.item_properties import ItemProperties
from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError, first_line
from offrec.models.agent import Agent
from offrec.models.item_features import ItemFeatures, make_features
from offrec.models.log_shape import LogShape
from offrec.models.network_policy import NetworkPolicy
from offrec.models.new_items import fold_features
from offrec.models.user_agent import UserModelAgent, build_user_agent
from offrec.runs.folder import read_item_ids, read_item_properties, read_run, run_id
from offrec.runs.options import RunOptions, build_options
from offrec.training import checkpoint
from offrec.types import Longs


def load(
    run: str | Path, device: str = "auto", *, new_items: str | Path | Sequence[str | Path] | None = None
) -> NetworkPolicy:
    """Load the best policy of a run. Only the run's folder is needed, not its dataset.

    Args:
        run: A folder that `offrec.train` wrote.
        device: "auto", "cpu", "cuda", "cuda:1", …
        new_items: Files with items that the run has never seen, with the columns of `prepare --items`. They are
            appended to the catalogue and scored by their features. Items that the run knows are skipped.

    Returns:
        The policy.

    Raises:
        InputError: The folder is not a run, is damaged, or needs a plug-in that is not installed; or new items are
            given for a run without item features.

    Example:
        >>> policy = offrec.load("runs/dc")
        >>> policy.recommend([12, 55, 9], k=10).items
    """
    stored, where = read_stored_run(Path(run)), pick_device(device)
    agent = stored.build(stored.facts["items"])
    agent.load_state_dict(stored.weights)
    if new_items is not None:
        stored = append_new_items(stored, new_items)
    fold_features(agent, stored.features)
    policy = NetworkPolicy(policy_name(stored.options), agent, stored.vocabulary, where, stored.facts["data_hash"])
    policy.source_shop, policy.item_properties = stored.facts.get("shop"), stored.properties
    policy.warnings = stored.warnings
    return policy


@dataclass(frozen=True)
class StoredRun:
    """The content of a run's folder: options, catalogue and the weights of the best checkpoint."""

    path: Path
    facts: dict[str, Any]  # the content of run.json
    options: RunOptions
    shape: LogShape
    vocabulary: Vocabulary
    weights: checkpoint.Tensors  # the state dict of the agent
    warnings: tuple[str, ...]
    properties: ItemProperties | None = None  # of the items, if the dataset had any
    features: ItemFeatures | None = None  # that the networks read

    @property
    def id(self) -> str:
        """The checksum of run.json."""
        return run_id(self.facts)

    def build(self, items: int) -> Agent | UserModelAgent:
        """Build the run's agent for a number of items, with initial weights."""
        return _untrained_agent(items, self.options, self.shape, self.features)


def read_stored_run(run: Path) -> StoredRun:
    """Read and verify the folder of a run.

    Raises:
        InputError: The folder is not a run, is damaged, or needs a plug-in that is not installed.
    """
    facts = read_run(run)
    options, shape = build_options(facts["options"]), LogShape(**facts["log"])
    path, vocabulary = run / "best.safetensors", read_item_ids(run, facts)
    stored_items = read_item_properties(run, facts)
    properties, seen = stored_items or (None, np.zeros(0, bool))
    features = make_features(properties, seen, options.network.features)
    tensors, stored = checkpoint.load(path, _expected_tensors(facts["items"], options, shape, features))
    if stored.get("run") != run_id(facts):
        raise InputError(f"{path} belongs to another run than run.json; train the run again.")
    weights = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{run} contains NaN or infinite weights ({name}); train it again.")
    warnings = _stored_warnings(path, stored)
    return StoredRun(run, facts, options, shape, vocabulary, weights, warnings, properties, features)


def append_new_items(stored: StoredRun, files: str | Path | Sequence[str | Path]) -> StoredRun:
    """Return a run whose catalogue has further items, which its weights do not have.

    Args:
        stored: The run.
        files: Tables of items with the columns of `prepare --items`. Items that the run knows are skipped.

    Raises:
        InputError: The run has no item features, or a file cannot be read or has none of their columns.
    """
    from offrec.data.item_files import absent_columns, encode_properties, read_item_rows, unseen_ids  # needs polars

    vocabulary, properties, features = stored.vocabulary, stored.properties, stored.features
    if properties is None or features is None:
        raise InputError(
            f"{stored.path} was trained without item features, so it cannot score new items; prepare its dataset with "
            "--items and train it again."
        )
    rows = read_item_rows([files] if isinstance(files, str | Path) else files, option="--new-items", like=properties)
    new_ids = unseen_ids(rows, vocabulary)
    if not len(new_ids):  # a server keeps its --new-items when a run that knows them replaces the old one
        return stored
    absent = absent_columns(rows, properties)
    warnings = stored.warnings
    if absent:
        warnings += (f"--new-items {rows.name} has no values of {', '.join(absent)}; they are unknown for new items.",)
    properties = properties.append(encode_properties(rows, Vocabulary(new_ids), like=properties))
    known = vocabulary.ids
    if isinstance(known, np.ndarray) and isinstance(new_ids, np.ndarray):
        ids: Longs | list[str] = np.concatenate([known, new_ids])
    else:
        ids = [*known, *new_ids]
    seen = np.pad(features.seen[:-1].cpu().numpy(), (0, len(new_ids)))
    features = ItemFeatures(properties, seen)
    return replace(stored, vocabulary=Vocabulary(ids), properties=properties, features=features, warnings=warnings)


def _stored_warnings(path: Path, stored: dict[str, Any]) -> tuple[str, ...]:
    progress = stored.get("progress")
    warnings = progress.get("warnings") if isinstance(progress, dict) else None
    if not isinstance(warnings, dict) or not all(isinstance(text, str) for text in warnings.values()):
        raise InputError(f"{path} does not contain the progress of its training; train the run again.")
    return tuple(warnings.values())


class _NoInitialValues(TorchFunctionMode):
    """Skips initial values, which have no effect on the meta device.

    For some of them torch would import its compiler, which takes seconds and 140 MB in every process that loads a run.
    Functions that are not listed here still work; they are only slower.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.randn, torch.rand):
            return torch.empty(*args, **kwargs)
        if func in (torch.arange, torch.tensor):  # few values, from which others are computed
            return func(*args, **{"device": "cpu", **kwargs})
        if func in (Tensor.normal_, Tensor.mul, Tensor.mul_) and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs)


def _expected_tensors(
    items: int, options: RunOptions, shape: LogShape, features: ItemFeatures | None = None
) -> checkpoint.Expected:
    """Return the shape and type of every tensor in a checkpoint, without allocating memory for the tensors.

    A file from elsewhere is compared with them before a network of its claimed size is built.
    """
    try:
        with torch.device("meta"), _NoInitialValues():
            agent = _untrained_agent(items, options, shape, features)
    except RuntimeError:  # a network that combines both kinds of tensors
        with torch.device("meta"):
            agent = _untrained_agent(items, options, shape, features)
    return {f"module.{name}": (tuple(one.shape), one.dtype) for name, one in agent.state_dict().items()}


def _untrained_agent(
    items: int, options: RunOptions, shape: LogShape, features: ItemFeatures | None = None
) -> Agent | UserModelAgent:
    if isinstance(options.learner, UserModel):
        return build_user_agent(items, options.learner, options.network, shape, features)
    return Agent(items, options.learner, options.network, options.critic, restored=True, features=features)


def policy_name(options: RunOptions) -> str:
    if isinstance(options.learner, UserModel):
        return options.algorithm
    return f"{options.algorithm}/{options.network.backbone}"


def open_dataset(run: str | Path, dataset: str | Path | None = None) -> Dataset:
    """Open the dataset on which a run was trained.

    Args:
        run: The run's folder.
        dataset: The new folder of the dataset, if it has moved.

    Returns:
        The dataset.

    Raises:
        InputError: The dataset does not exist, or is not the one that the run was trained on.
    """
    facts = read_run(Path(run))
    if dataset is None and not Path(facts["dataset"]).exists():
        raise InputError(f"The dataset of {run}, {facts['dataset']}, no longer exists; specify it with --dataset.")
    opened = Dataset.open(dataset or facts["dataset"])
    if opened.meta["data_hash"] != facts["data_hash"]:
        raise InputError(
            f"{run} was trained on a different dataset (fingerprint {facts['fingerprint']}) from {opened.path} "
            f"({opened.fingerprint}); use the dataset it was trained on."
        )
    return opened


def pick_device(name: str) -> torch.device:
    """Return the device with this name; "auto" is the first GPU, or the CPU if no GPU is available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("offrec does not compute there")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name} cannot be used here ({first_line(error)}); try --device cpu.") from error
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: operands of 10 bits, float32 accumulation
    return device
