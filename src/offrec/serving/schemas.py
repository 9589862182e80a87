"""Request and response bodies of the HTTP API as pydantic models; FastAPI generates the OpenAPI document from them."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

MAX_REWARD = 1e9  # as in a log's reward column
IntegerId = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TextId = Annotated[str, Field(max_length=512)]
ItemId = IntegerId | TextId
Name = Annotated[str, Field(min_length=1, max_length=200)]
ListName = Annotated[str, Field(min_length=1, max_length=64)]
ListNames = ListName | Annotated[list[ListName], Field(max_length=8)]


@dataclass(frozen=True)
class RequestLimits:
    """Upper limits for one request."""

    k: int = 1000
    history: int = 1000
    exclude: int = 10_000
    candidates: int = 10_000
    shown: int = 100
    body_bytes: int = 1 << 20


class RequestBody(BaseModel):
    """Base of all request bodies. Strict: "3" and 3.0 are not integers, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ShownListBody(RequestBody):
    """A list that the visitor was shown earlier in the session."""

    items: list[ItemId] = Field(max_length=1000, description="The items, in order; empty for a pick from no list.")
    picked: ItemId | None = Field(None, description="The item that was picked; null if nothing was.")


class RecommendRequest(RequestBody):
    """Body of POST /v1/recommend."""

    history: list[ItemId] = Field([], description="Item ids, oldest first; empty for a new visitor.")
    shown: list[ShownListBody] = Field(
        [],
        description="The lists of the session so far, oldest first, with their picks. Policies that learn from ignored "
        "lists, such as the user model, use them. The picks must be the last items of `history`, which may be omitted.",
    )
    k: int = Field(10, ge=1, description="Number of items to return.")
    exclude: list[ItemId] = Field([], description="Items that must not be recommended.")
    exclude_seen: bool = Field(False, description="Also exclude the items of the history.")
    skip_recent: int | None = Field(
        None,
        ge=0,
        description="Rank this many of the last items of the history below all other items; null for the server's "
        "--skip-recent.",
    )
    candidates: list[ItemId] | None = Field(
        None, description="Recommend only these items; null for the whole catalogue."
    )
    allow: ListNames = Field(
        [], description="Recommend only items of this list that the server holds, see /v1/lists; of several: of all."
    )
    deny: ListNames = Field([], description="Recommend no item of this list, or of these lists.")
    policy: Name | None = Field(
        None,
        description="Name of the policy, see /v1/policies; null for the one that the server's --split assigns to the "
        "session, or the default policy.",
    )
    sample: bool = Field(
        False,
        description="Sample the list: from the policy, without replacement, or as the server's --explore says.",
    )
    temperature: float | None = Field(
        None,
        ge=0.01,
        le=100,
        allow_inf_nan=False,
        description="Temperature of a sampled list; values above 1 flatten the distribution. Default: 1.",
    )
    session_id: Name | None = Field(
        None, description="Id of the visit. Lists without it cannot be used for training or estimation."
    )
    request_id: Name | None = Field(
        None, description="Id of this list, to which events refer; null to let the server choose one."
    )
    probability: bool = Field(
        True,
        description="Return π(item | history) of each item. With false, a server on a CPU ranks large catalogues "
        "faster if the policy's `products` are int8. Sampled lists keep their exact probabilities.",
    )
    logging_probability: bool = Field(
        False, description="Also return π̂_b(item | history), the probability under the estimated logging policy."
    )
    log: bool = Field(True, description="Write the list to the decision log, if the server has one.")


class EventRequest(RequestBody):
    """Body of POST /v1/events."""

    item: ItemId = Field(description="The item that the visitor acted on.")
    behaviour: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="The kind of action: click, cart, buy, …"
    )
    request_id: Name | None = Field(None, description="Id of the list that the item was picked from.")
    session_id: Name | None = Field(None, description="Id of the visit.")
    reward: float | None = Field(
        None,
        ge=-MAX_REWARD,
        le=MAX_REWARD,
        allow_inf_nan=False,
        description="The event's reward, such as a price. `offrec prepare --format served --reward reward` reads it; "
        "without it, an event has the reward of its behaviour.",
    )


class ReloadRequest(RequestBody):
    """Body of POST /v1/reload."""

    policy: Name | None = Field(None, description="Name of the policy to reload; null for all policies.")


class ItemQuery(BaseModel):
    """Query parameters of GET /v1/items."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field("", max_length=200, description="Part of an item id, or words of a title; case is ignored.")
    limit: int = Field(20, ge=1, le=1000, description="Largest number of items to return.")
    policy: str | None = Field(
        None, max_length=200, description="Search the catalogue of this policy; default: the default policy."
    )


class RecommendedItem(BaseModel):
    """One item of a list."""

    item: int | str
    title: str | None = Field(None, description="Title of the item, if the items have titles.")
    score: float
    probability: float | None = Field(
        description="π(item | history); null for a policy that ranks by scores and is not a distribution, and if the "
        "request sets `probability` to false."
    )
    position_probability: float | None = Field(
        None, description="Sampled lists: probability of the item at this position, given the items before it."
    )
    logging_probability: float | None = Field(None, description="π̂_b(item | history), if it was requested.")


class RecommendResponse(BaseModel):
    """Response of POST /v1/recommend."""

    request_id: str
    policy: str
    fingerprint: str = Field(description="Hash of the run's options and weights.")
    items: list[RecommendedItem]
    log_probability: float | None = Field(
        description="Exact log probability of the ordered list; null if it was not sampled."
    )
    unknown_items: int = Field(description="Number of history ids that are not in the catalogue; they are ignored.")
    unknown_shown: int = Field(
        description="Number of ids in the lists of `shown` that are not in the catalogue; they are ignored."
    )
    restricted: bool = Field(
        description="Whether one of these was set: exclude, exclude_seen, skip_recent, candidates, allow, deny."
    )
    logged: bool = Field(description="Whether the list was written to the decision log.")


class EventResponse(BaseModel):
    """Response of POST /v1/events."""

    recorded: bool
    known_item: bool = Field(description="Whether a served policy knows the item. If not, check how it is spelled.")
    known_request: bool | None = Field(
        description="Whether the server logged a list with this request_id; null for an event without one. False is "
        "also the answer if the server was restarted since, or has logged more than 500,000 lists."
    )
    in_list: bool | None = Field(
        description="False if the list with this request_id did not contain the item. True if it did; long lists make "
        "a wrong true more likely (1 % with 10 items, 5 % with 20). Null if the server does not know the request_id."
    )


class PolicyDescription(BaseModel):
    """One served policy."""

    policy: str
    run: str
    learner: str
    fingerprint: str = Field(description="Hash of the run's options and weights.")
    n_items: int
    item_id_type: str = Field(description='"int" or "string".')
    history_length: int = Field(description="Number of most recent history items that the policy reads.")
    stochastic: bool = Field(description="Whether lists can be sampled from it.")
    learns_from_lists: bool = Field(description="Whether it uses `shown`.")
    has_logging_policy: bool = Field(description="Whether the run contains π̂_b, so that logging_probability works.")
    products: str = Field(
        description='"int8" if requests with `probability` false find the best items with int8 products, which '
        'are faster on this CPU; else "float32". The lists and scores are the same.'
    )


class PoliciesResponse(BaseModel):
    """Response of GET /v1/policies."""

    policies: list[PolicyDescription]
    default_policy: str
    split: dict[str, float] | None = Field(
        None, description="Share of the sessions of each policy, if requests without `policy` are split."
    )
    limits: dict[str, int]
    decision_log: bool = Field(description="Whether the server writes a decision log.")


class ItemsResponse(BaseModel):
    """Response of GET /v1/items."""

    items: list[int | str]
    titles: list[str | None] | None = Field(None, description="Title of each item, if the items have titles.")


class ListResponse(BaseModel):
    """Description of a list that the server holds."""

    name: str
    items: int = Field(description="Number of item ids, each counted once.")
    sha256: str = Field(description="Checksum of the ids, as they are stored.")
    updated: int = Field(description="When the list was set, in milliseconds since 1970.")


class ChangedListResponse(ListResponse):
    """Response of PUT /v1/lists/NAME."""

    known: dict[str, int] = Field(description="How many of the items each policy knows, by policy name.")


class ListItemsResponse(ListResponse):
    """Response of GET /v1/lists/NAME."""

    ids: list[int | str] = Field(description="A part of the ids: `limit` ids from number `offset` on.")


class ListsResponse(BaseModel):
    """Response of GET /v1/lists."""

    lists: list[ListResponse]


class DeletedResponse(BaseModel):
    """Response of DELETE /v1/lists/NAME."""

    deleted: str


class ListQuery(BaseModel):
    """Query parameters of GET /v1/lists/NAME."""

    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=2**31, description="Number of ids to skip.")
    limit: int = Field(100, ge=0, le=10_000, description="Largest number of ids to return.")


class NewListQuery(BaseModel):
    """Query parameters of PUT /v1/lists/NAME."""

    model_config = ConfigDict(extra="forbid")

    empty: bool = Field(False, description="Accept a list without ids, for example to clear a list that is denied.")


class ReloadResponse(BaseModel):
    """Response of POST /v1/reload."""

    reloaded: dict[str, str] = Field(description="The new fingerprint of every reloaded policy, by policy name.")


class HealthResponse(BaseModel):
    """Response of GET /healthz and GET /readyz."""

    status: str
    decision_log: str | None = Field(
        None, description='"ok", or the reason why it cannot be written; null for a server without a decision log.'
    )


class ErrorResponse(BaseModel):
    """Response of every request that fails."""

    error: str = Field(description="One sentence: what was received and what was expected.")


def recommend_request_model(limits: RequestLimits) -> type[RecommendRequest]:
    """Return `RecommendRequest` with the limits of a server as constraints.

    Args:
        limits: The limits.

    Returns:
        A subclass of the same name, so that the OpenAPI document shows the limits.
    """
    fields = RecommendRequest.model_fields

    def describe(name: str) -> str | None:
        return fields[name].description

    limited: dict[str, Any] = {
        "history": (list[ItemId], Field([], max_length=limits.history, description=describe("history"))),
        "shown": (list[ShownListBody], Field([], max_length=limits.shown, description=describe("shown"))),
        "k": (int, Field(min(10, limits.k), ge=1, le=limits.k, description=describe("k"))),
        "exclude": (list[ItemId], Field([], max_length=limits.exclude, description=describe("exclude"))),
        "candidates": (
            Annotated[list[ItemId], Field(max_length=limits.candidates)] | None,
            Field(None, description=describe("candidates")),
        ),
    }
    return create_model("RecommendRequest", __base__=RecommendRequest, __doc__=RecommendRequest.__doc__, **limited)
