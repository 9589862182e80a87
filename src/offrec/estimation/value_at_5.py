"""Q of the policy that logged: what a decision was followed by. It judges a policy in one pass over states, while a run
trains: by how much more its choices were worth to the visitors of the log than others.

    Q_b(s,a) ← G        the return that followed, no target network
    value@5 = mean over logged states of the mean Q_b of the policy's best five, or of as many as it allows

Fitted once and kept beside the dataset, DATASET/values/<key>/, as π̂_b is.
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
from offrec.data.dataset import Dataset
from offrec.data.files import publish_folder
from offrec.data.replay import automatic_batch_size
from offrec.data.transitions import Floats
from offrec.errors import InputError, first_line
from offrec.estimation import decision_values
from offrec.estimation.decision_values import DecisionValues, ValueOptions, with_history
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.evaluation import ScoredEvents
from offrec.evaluation.ranking import EvaluationSplit, is_scored
from offrec.logging_policy import cache
from offrec.models.network import evaluating
from offrec.policy import Policy
from offrec.training import checkpoint
from offrec.types import Batch

VERSION = 2
K = 5
METRIC = f"value@{K}"
GAMMA = 0.9  # where policies are compared by it: the same for all, whatever each was trained for
EPOCHS = 10  # more would learn the returns of single sessions by heart


class LoggingQ(DecisionValues):
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        return_to_go = batch.return_to_go / self.unit
        nothing = torch.zeros_like(return_to_go)
        return self.squared(batch, return_to_go, nothing, nothing, return_to_go)


def load_or_fit(
    dataset: Dataset, rewards: Floats, gamma: float, options: ValueOptions, device: torch.device, console: Console
) -> LoggingQ:
    """Of a dataset, from beside it or, the first time, fitted and left there."""
    decisions = LoggedDecisions.load(dataset, "train")
    mdp = decisions.mdp(rewards, gamma)
    batches = math.ceil(len(mdp.reward) / (options.batch_size or automatic_batch_size(len(mdp.reward))))
    options = replace(options, updates=min(options.updates, EPOCHS * max(1, batches)))
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        made = LoggingQ(decisions, options, decision_values.unit_of(mdp), gamma).to(device)
    about = _about(dataset, rewards, gamma, options)
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    home = dataset.path / "values"
    if not cache.is_complete(home / name):
        home = cache.writable_root(home, console, "the log's values")
        with cache.fit_lock(home / name, console, "the log's values"):
            if not cache.is_complete(home / name):
                console.line(f"fitting the values of the log's own decisions; to be kept in {home / name}")
                with publish_folder(home / name, replace=True) as folder:
                    decision_values.fit(made, decisions, mdp, console, "the log's values")
                    _keep(made, about, folder)
                return made
    _load(made, home / name)
    return made.eval()


def _about(dataset: Dataset, rewards: Floats, gamma: float, options: ValueOptions) -> dict[str, Any]:
    """All that shapes it."""
    return {
        "version": VERSION,
        "data_hash": dataset.meta["data_hash"],
        "train": list(dataset.meta["splits"]["train"]),
        "rewards": rewards.tolist(),
        "gamma": gamma,
        "options": {name: value for name, value in asdict(options).items() if name != "capture"},
    }


def _keep(made: LoggingQ, about: dict[str, Any], folder: Path) -> None:
    checkpoint.save(folder / "network.safetensors", made.critic.state_dict(), {"data_hash": about["data_hash"]})
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def _load(made: LoggingQ, folder: Path) -> None:
    try:
        made.critic.load_state_dict(checkpoint.load(folder / "network.safetensors")[0])
    except (RuntimeError, InputError) as error:
        raise InputError(
            f"The values in {folder} cannot be read ({first_line(error)}); remove the folder, and they are fitted anew."
        ) from error


def scorer(logged: LoggingQ, events: ScoredEvents) -> Callable[[Policy], float]:
    """value@5 on the scored events of a split, as often as one likes."""

    @torch.no_grad()
    def value(policy: Policy) -> float:
        total, rows = 0.0, 0
        with evaluating(logged):
            for batch in events.batches():
                scores, best = top_k(policy.head(batch), min(K, policy.n_items))
                allowed = scores > ALL_MASKED
                worth = (logged.critic(batch).at(best) * allowed).sum(1) / allowed.sum(1).clamp(min=1)
                total, rows = total + float(worth.double().sum()), rows + len(batch)
        return total / rows * logged.unit

    return value


def scorer_for(
    dataset: Dataset, split: EvaluationSplit, rewards: Floats, options: ValueOptions, like: Policy, console: Console
) -> Callable[[Policy], float] | None:
    """value@5 on a split of policies whose states are as long as `like`'s; None where the log has no event to learn it
    from, or the split none that counts.
    """
    counts = is_scored(dataset.split(split), dataset.protocol, dataset.train_counts)
    if not counts.any() or not dataset.split("train").events:
        return None
    logged = load_or_fit(dataset, rewards, GAMMA, with_history(options, like.history), like.device, console)
    return scorer(logged, ScoredEvents(dataset, split, like.history, like.device))
