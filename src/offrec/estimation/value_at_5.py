"""value@5: what a policy's best five items were worth to the visitors of the log.

    Q_b(s,a) ← G        the return that followed a logged decision; no target network
    value@5 = mean over logged states of the mean Q_b of the policy's top five, or of fewer if it allows fewer items

Q_b is the value of a choice under the logging policy. It is fitted once and cached in DATASET/values/<key>/. Scoring a
policy then needs one pass over the states, so runs can select checkpoints by value@5.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offrec.catalogue import top_k
from offrec.catalogue.head import ALL_MASKED
from offrec.console import Console
from offrec.data.arrays import hash_array
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.json_files import format_json, read_json, seal
from offrec.data.replay import automatic_batch_size
from offrec.data.schema import Anything, Table
from offrec.errors import InputError, first_line
from offrec.estimation.decision_values import DecisionValues, ValueOptions, fit_values, one_thread, return_unit
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.evaluation import ScoredEvents
from offrec.evaluation.scored_events import EvaluationSplit, is_scored
from offrec.logging_policy import cache
from offrec.models.network import eval_mode
from offrec.policy import Policy
from offrec.types import Batch, Floats

VERSION = 5
K = 5
METRIC = f"value@{K}"
GAMMA = 0.9  # the same for all compared policies, independent of their training options
MAX_EPOCHS = 10  # more epochs would memorise the returns of individual sessions
SUBJECT = "the values of logged decisions"


class LoggingQ(DecisionValues):
    """Q of the logging policy: the expected return after a logged decision."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        return_to_go = batch.return_to_go / self.unit
        zeros = torch.zeros_like(return_to_go)
        return self.squared_errors(batch, return_to_go, zeros, zeros, return_to_go)


def load_or_fit(
    dataset: Dataset, rewards: Floats, gamma: float, options: ValueOptions, device: torch.device, console: Console
) -> LoggingQ:
    """Load the logging policy's Q of a dataset from the cache, or fit it and add it to the cache."""
    decisions = LoggedDecisions.load(dataset, "train")
    mdp, options = decisions.transitions(rewards, gamma), _limit_epochs(options, len(decisions))
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        logging_q = LoggingQ(decisions, options, return_unit(mdp), gamma).to(device)
    description = _describe(dataset, rewards, gamma, options)
    key = _key(description)
    root = dataset.path / "values"
    if not cache.is_complete(root / key):
        root = cache.writable_root(root, console, SUBJECT)
        with cache.fit_lock(root / key, console, SUBJECT):
            if not cache.is_complete(root / key):
                console.line(f"Fitting {SUBJECT}; they will be cached in {root / key}")
                with publish_folder(root / key, replace=True) as folder, one_thread():
                    fit_values(logging_q, decisions, mdp, console, SUBJECT)
                    _write(logging_q, description, folder)
                return logging_q
    _read(logging_q, description, root / key)
    return logging_q.eval()


def is_cached(dataset: Dataset, rewards: Floats, gamma: float, options: ValueOptions) -> bool:
    """Return whether the cache contains the logging policy's Q of a dataset."""
    options = _limit_epochs(options, len(LoggedDecisions.load(dataset, "train")))
    return cache.is_complete(dataset.path / "values" / _key(_describe(dataset, rewards, gamma, options)))


def _limit_epochs(options: ValueOptions, decisions: int) -> ValueOptions:
    """Return the options with at most `MAX_EPOCHS` epochs of updates."""
    batches = math.ceil(decisions / (options.batch_size or automatic_batch_size(decisions)))
    return replace(options, updates=min(options.updates, MAX_EPOCHS * max(1, batches)))


def scorer(logging_q: LoggingQ, events: ScoredEvents) -> Callable[[Policy], float]:
    """Return a function that computes value@5 of a policy on the scored events of a split."""

    @torch.no_grad()
    def score(policy: Policy) -> float:
        total, rows = 0.0, 0
        with eval_mode(logging_q):
            for batch in events.batches():
                scores, items = top_k(policy.head(batch), min(K, policy.n_items))
                allowed = scores > ALL_MASKED
                value = (logging_q.critic(batch).at(items) * allowed).sum(1) / allowed.sum(1).clamp(min=1)
                total, rows = total + float(value.double().sum()), rows + len(batch)
        return total / rows * logging_q.unit

    return score


def scorer_for(
    dataset: Dataset, split: EvaluationSplit, rewards: Floats, options: ValueOptions, policy: Policy, console: Console
) -> Callable[[Policy], float] | None:
    """Return a function that computes value@5 of policies with the history length and device of `policy`.

    Returns:
        The function; None if the log has no training events or decisions, or the split has no scored events.
    """
    if not can_score(dataset, split):
        return None
    options = options.with_history(policy.history)
    logging_q = load_or_fit(dataset, rewards, GAMMA, options, policy.device, console)
    return scorer(logging_q, ScoredEvents(dataset, split, policy.history, policy.device))


def can_score(dataset: Dataset, split: EvaluationSplit) -> bool:
    """Return whether the log has training events and decisions, and the split has scored events."""
    scored = is_scored(dataset.split(split), dataset.protocol, dataset.train_counts > 0)
    train = LoggedDecisions.load(dataset, "train")
    return bool(scored.any()) and train.sessions.events > 0 and len(train) > 0


def _describe(dataset: Dataset, rewards: Floats, gamma: float, options: ValueOptions) -> dict[str, Any]:
    """Return everything that the fitted values depend on; its hash is the cache key."""
    return {
        "version": VERSION,
        "data_hash": dataset.meta["data_hash"],
        "train": list(dataset.meta["splits"]["train"]),
        "rewards": hash_array(rewards),
        "gamma": gamma,
        "options": {name: value for name, value in asdict(options).items() if name != "capture"},
    }


def _key(description: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:12]


def _write(logging_q: LoggingQ, description: dict[str, Any], folder: Path) -> None:
    cache.save_network(logging_q.critic, folder, _key(description))
    (folder / "about.json").write_text(format_json(description), encoding="utf-8")


def _read(logging_q: LoggingQ, description: dict[str, Any], folder: Path) -> None:
    try:
        stored = read_json(folder / "about.json", Table(others=Anything()), advice="fit the values again")
        if seal(stored) != seal(description):
            raise InputError("about.json describes other values")
        cache.load_network(logging_q.critic, folder, _key(description))
    except (OSError, ValueError, InputError) as error:
        raise InputError(
            f"{folder} cannot be read ({first_line(error)}); remove the folder to fit the values again."
        ) from error
