"""The parts of an estimate that take long: passes over all decisions of a log, and fits of Q."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from offrec.console import Console
from offrec.estimation.collect import ColumnPass, Progress
from offrec.estimation.decision_values import ValueOptions, one_thread
from offrec.estimation.fitted_q import FittedQ, PolicyValues, collect_top_lists, fit_q
from offrec.estimation.list_policy import ListPolicy
from offrec.estimation.logged_decisions import LoggedDecisions
from offrec.estimation.options import EstimateOptions
from offrec.estimation.served_policy import ListProbabilities, list_probabilities
from offrec.estimation.session_lists import best_lists
from offrec.estimation.value_cache import describe_fit, load_or_fit
from offrec.policy import Policy
from offrec.types import Doubles, Floats


class LocalPasses:
    """Runs everything in this process. `offrec.estimation.partitioned` has the same functions for several machines."""

    _lists: tuple[Tensor, Tensor] | None = None

    def columns(self, one: ColumnPass, progress: Progress | None = None) -> Doubles:
        """[4, D] the columns of a pass."""
        columns, done = np.zeros((4, len(one.decisions))), 0
        for row, values in one.run(range(len(one.batches))):
            columns[:, row] = values
            done += len(row)
            if progress is not None:
                progress(done, len(one.decisions))
        return columns

    def best_lists(self, policy: Policy, decisions: LoggedDecisions, k: int) -> Tensor:
        """[D, k] the policy's best list at each decision, after all lists before it."""
        return best_lists(policy, decisions, k)

    def list_probabilities(
        self, list_policy: ListPolicy, decisions: LoggedDecisions, cluster: Tensor | None = None
    ) -> ListProbabilities:
        """Compute the probabilities of the logged lists and of their parts."""
        return list_probabilities(list_policy, decisions, cluster)

    def fitted_values(
        self,
        name: str,
        list_policy: ListPolicy,
        decisions: LoggedDecisions,
        rewards: Floats,
        options: EstimateOptions,
        fits: int,
        console: Console,
    ) -> list[PolicyValues]:
        """Return Q and V of the decisions by several fits: the first to all training sessions, others to resampled."""
        if list_policy.play != "topk":
            return [
                fit_number(name, list_policy, decisions, rewards, options, number, console).values(decisions)
                for number in range(fits)
            ]
        lists = self.top_lists(list_policy, decisions)
        return [
            load_or_fit_number(name, list_policy, decisions, rewards, options, number, lists, console)
            for number in range(fits)
        ]

    def top_lists(self, list_policy: ListPolicy, decisions: LoggedDecisions) -> tuple[Tensor, Tensor]:
        """Return what the policy of these passes shows at the training decisions [D, k] and at the evaluated ones.

        The lists are computed once.
        """
        if self._lists is None:
            train = LoggedDecisions.load(decisions.dataset, "train")
            self._lists = collect_top_lists(list_policy, train), collect_top_lists(list_policy, decisions)
        return self._lists


def describe_number(
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    number: int,
    lists: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    """Return everything that a fit for the top k depends on, see `describe_fit`."""
    settings = fit_options(options, number).with_history(list_policy.policy.history)
    shown = (lists[0].cpu().numpy(), lists[1].cpu().numpy())
    return describe_fit(decisions, rewards, options.gamma, settings, shown, number or None)


def load_or_fit_number(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    number: int,
    lists: tuple[Tensor, Tensor],
    console: Console,
) -> PolicyValues:
    """Load the values of a fit for the top k from the cache, or fit them and add them to the cache."""

    def fit() -> PolicyValues:
        with one_thread():
            fitted = fit_number(name, list_policy, decisions, rewards, options, number, console, lists[0])
            return fitted.values(decisions)

    description = describe_number(list_policy, decisions, rewards, options, number, lists)
    return load_or_fit(decisions.dataset, description, fit, console)


def fit_options(options: EstimateOptions, number: int) -> ValueOptions:
    """Return the options of a fit; each has its own seed."""
    return replace(options.values, seed=options.values.seed + number)


def fit_number(
    name: str,
    list_policy: ListPolicy,
    decisions: LoggedDecisions,
    rewards: Floats,
    options: EstimateOptions,
    number: int,
    console: Console,
    top_lists: Tensor | None = None,
) -> FittedQ:
    """Fit Q to all training sessions (number 0) or to resampled ones. `top_lists`: as in `fit_q`."""
    label = f"{name}: fitted Q" if number == 0 else f"{name}: refit {number} of {options.refits}"
    return fit_q(
        list_policy,
        decisions.dataset,
        rewards,
        options.gamma,
        fit_options(options, number),
        console,
        label=label,
        resample_seed=number or None,
        top_lists=top_lists,
    )
