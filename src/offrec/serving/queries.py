"""Translate requests to queries: check them against a policy, and replace item ids by indices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offrec.data.vocabulary import Vocabulary
from offrec.errors import InputError
from offrec.policy import Id, complete_history, encode_shown
from offrec.serving.engine import AllowedItems, Query, QueryResult
from offrec.serving.errors import RequestError
from offrec.serving.exploration import Blend
from offrec.serving.schemas import RecommendRequest
from offrec.serving.served_policy import ServedPolicy


@dataclass(frozen=True)
class UnknownItems:
    """The numbers of ids in a request that are not in the catalogue."""

    history: int
    shown: int  # in the lists of `shown`, without their picks, which are in the history


def _shown(request: RecommendRequest) -> list[tuple[list[Id], Id | None]]:
    return [(one.items, one.picked) for one in request.shown]


def with_complete_history(request: RecommendRequest) -> RecommendRequest:
    """Check that the picks of `shown` are the end of the history, or make them the history if it is empty."""
    try:
        history = complete_history(request.history, _shown(request))
    except InputError as error:
        raise RequestError(422, str(error)) from error
    return request if request.history else request.model_copy(update={"history": history})


def check_request(served: ServedPolicy, request: RecommendRequest, explore: Blend | None) -> None:
    """Check the fields that depend on the policy; pydantic has checked the others."""
    n_items = served.policy.n_items
    if request.k > n_items:
        raise RequestError(422, f"k is {request.k}; the catalogue of {served.name} has only {n_items} items.")
    if request.sample and not served.policy.stochastic and explore is None:
        raise RequestError(
            422,
            f"sample is true, but {served.name} has scores and no probabilities; set it to false, or start the server "
            "with --explore blend:0.1.",
        )
    if request.temperature is not None and explore is not None:
        raise RequestError(422, f"temperature has no effect with the server's --explore {explore}; omit it.")
    if request.temperature is not None and not request.sample:
        raise RequestError(422, "temperature applies to sampled lists only; set sample to true or omit temperature.")
    if request.logging_probability and not served.engine.has_logging_policy:
        raise RequestError(422, f"logging_probability is true, but the run of {served.name} contains no π̂_b.")


def list_names(value: str | list[str]) -> list[str]:
    """Return the names of lists in `allow` or `deny`."""
    return [value] if isinstance(value, str) else value


def build_query(
    vocabulary: Vocabulary, request: RecommendRequest, skip_recent: int, allowed: AllowedItems | None
) -> tuple[Query, UnknownItems]:
    """Translate item ids to indices; return the query and the numbers of unknown ids."""
    history, unknown_in_history = vocabulary.encode(request.history)
    unknown_in_shown = sum(vocabulary.encode(one.items)[1] for one in request.shown)
    excluded = set(vocabulary.encode(request.exclude)[0]) | (set(history) if request.exclude_seen else set())
    candidates: list[int] | None = None
    if request.candidates is not None:
        known = set(vocabulary.encode(request.candidates)[0])
        if not known:
            raise RequestError(422, "candidates contains no item of the catalogue; expected at least one.")
        candidates = sorted(known - excluded)
        if allowed is not None:
            mask = allowed.mask()
            candidates = [item for item in candidates if mask[item]]
    n_allowed = len(vocabulary) if allowed is None else allowed.count
    if candidates == [] or not n_allowed or len(excluded) == len(vocabulary):
        raise RequestError(422, "No item is left to recommend: every allowed item is excluded.")
    temperature = (request.temperature or 1.0) if request.sample else None
    return (
        Query(
            history,
            request.k,
            frozenset(excluded),
            candidates,
            temperature,
            request.logging_probability,
            skip_recent,
            allowed,
            encode_shown(vocabulary, _shown(request)),
            probabilities=request.probability,
        ),
        UnknownItems(unknown_in_history, unknown_in_shown),
    )


def describe_items(ids: list[Id], result: QueryResult, titles: list[str | None] | None) -> list[dict[str, Any]]:
    """Return the fields of `RecommendedItem` for each item."""
    rows = [{"item": item, "score": score, "probability": None} for item, score in zip(ids, result.scores, strict=True)]
    columns: dict[str, Sequence[Any] | None] = {
        "title": titles,
        "probability": result.probabilities,
        "position_probability": result.position_probabilities,
        "logging_probability": result.logging_probabilities,
    }
    for name, values in columns.items():
        for row, value in zip(rows, values or [], strict=False):
            row[name] = value
    return rows


def catalogue_id(vocabulary: Vocabulary, item: Id) -> Id:
    """Return an id as the catalogue spells it ("12" becomes 12); unknown ids are unchanged."""
    index = vocabulary.index(item)
    return item if index is None else vocabulary.id(index)
