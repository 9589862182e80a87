"""What is sent to the server and what it sends back: checked at the door, and the schemas of its OpenAPI page."""

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offrec.serving.errors import RequestError

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[str, Field(max_length=512)]
Item = Whole | Text
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Asked(BaseModel):
    """Strict: "3" is no number, 3.0 no whole one, and a field that nobody reads is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Recommend(Asked):
    history: list[Item] = Field([], description="Item ids, oldest first; none for a new visitor.")
    k: int = Field(10, ge=1, lt=2**31, description="How many items.")
    exclude: list[Item] = Field([], description="Items not to show.")
    exclude_seen: bool = Field(False, description="Do not show the items of the history either.")
    candidates: list[Item] | None = Field(None, description="Choose among these only; null: the whole catalogue.")
    policy: Name | None = Field(None, description="Which policy; null: the default one, see /v1/policies.")
    sample: bool = Field(
        False, description="Draw the list from the policy, one item after the other without replacement."
    )
    temperature: float | None = Field(
        None,
        ge=0.01,
        le=100,
        allow_inf_nan=False,
        description="Of a sampled list: above 1 evens chances out. Default 1.",
    )
    session_id: Name | None = Field(
        None, description="The visit it belongs to; without one the log cannot be learned from."
    )
    request_id: Name | None = Field(None, description="An id for this list, to be named in events; null: one is made.")
    logging_probability: bool = Field(False, description="Also tell what π̂_b, the estimate of the log's policy, gives.")
    log: bool = Field(True, description="Write it to the decision log, if there is one.")


class Event(Asked):
    item: Item = Field(description="What the visitor did something with.")
    behaviour: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="click, cart, buy …")
    request_id: Name | None = Field(None, description="The list it was picked from.")
    session_id: Name | None = Field(None, description="The visit it belongs to.")


class Reload(Asked):
    policy: Name | None = Field(None, description="Which policy to read again; null: all.")


Kind = TypeVar("Kind", bound=Asked)


class Shown(BaseModel):
    item: int | str
    score: float
    probability: float | None = Field(description="π(item | history); null for a policy that is no distribution.")
    position_probability: float | None = Field(None, description="Sampled lists: of this place, given those before it.")
    logging_probability: float | None = Field(None, description="π̂_b(item | history), where asked for.")


class Recommended(BaseModel):
    request_id: str
    policy: str
    fingerprint: str = Field(description="Of the run's options and weights.")
    items: list[Shown]
    log_probability: float | None = Field(description="Of the ordered list, if it was sampled: exact.")
    unknown_items: int = Field(description="How many ids of the history the catalogue does not know.")
    restricted: bool = Field(
        description="Items were excluded or given: the list is not from the policy's whole catalogue."
    )
    logged: bool


class Recorded(BaseModel):
    recorded: bool


class PolicyFacts(BaseModel):
    policy: str
    run: str
    learner: str
    fingerprint: str
    n_items: int
    item_id_type: str
    history_length: int
    stochastic: bool = Field(description="Whether it can be sampled.")
    has_logging_policy: bool = Field(description="Whether the run contains π̂_b, needed for logging_probability.")


class Policies(BaseModel):
    policies: list[PolicyFacts]
    default_policy: str
    limits: dict[str, int]
    decision_log: bool


class Items(BaseModel):
    items: list[int | str]


class Reloaded(BaseModel):
    reloaded: dict[str, str] = Field(description="Name → fingerprint now.")


class Status(BaseModel):
    status: str
    decision_log: str | None = Field(None, description="ok, or why the log cannot be written; null without --log.")


class Problem(BaseModel):
    error: str = Field(description="One sentence: what was found, what was expected.")


def read(kind: type[Kind], body: bytes) -> Kind:
    """The message in a body, or a refusal in one sentence."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    raise RequestError(400 if first["type"] == "json_invalid" else 422, _sentence(kind, first))


def _sentence(kind: type[Asked], error: Any) -> str:
    place, what, message = error["loc"], error["type"], str(error["msg"])
    if what == "json_invalid":
        return f"The body is no JSON ({message.removeprefix('Invalid JSON: ')}); send one object."
    if what == "extra_forbidden":
        return f"There is no field {str(place[-1])[:80]!r}; the fields are {', '.join(kind.model_fields)}."
    if what == "missing":
        return f"The field {place[-1]!r} is missing; the fields are {', '.join(kind.model_fields)}."
    if not place:
        return f"The body is {_shortened(error['input'])}; expected one object with {', '.join(kind.model_fields)}."
    union = place[-1] in ("int", "str", "constrained-int", "constrained-str") and len(place) > 1
    spelled = ""
    for part in place[:-1] if union else place:
        spelled += f"[{part}]" if isinstance(part, int) else f".{part}" if spelled else str(part)
    expected = "an id is a whole number of 64 bits or a text of at most 512 characters" if union else message.lower()
    return f"{spelled} is {_shortened(error['input'])}; {expected}."


def _shortened(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError):  # an integer of more digits than Python prints
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
