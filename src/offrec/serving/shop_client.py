"""Let the visitors of the simulated shop use a real server.

Lists come over HTTP and picks are sent back as events, so that the server's decision log can be compared with the true
reward.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from offrec.data.json_files import parse_json
from offrec.errors import InputError, RunError
from offrec.shop.players import Play, Player
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

Json = dict[str, Any]
SHOWN = 100  # earlier lists in a request; the server's default limit


class Client:
    """Send POST requests to a server over several connections.

    Args:
        address: The address, such as http://127.0.0.1:8000.
        token: The bearer token, if the server requires one.
        connections: The number of concurrent connections.

    Raises:
        InputError: If the address is not an http:// address.
    """

    def __init__(self, address: str, token: str | None = None, connections: int = 32) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or parts.hostname is None:
            raise InputError(f"{address!r} is not a server address; expected an address like http://127.0.0.1:8000.")
        self.address, self.host, self.port = address.rstrip("/"), parts.hostname, parts.port or 80
        self.headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self.connections = connections

    def post(self, path: str, bodies: Sequence[Json]) -> list[Json]:
        """Send requests concurrently.

        Args:
            path: The path of all requests.
            bodies: Their bodies.

        Returns:
            The responses, in the order of the bodies.

        Raises:
            RunError: If the server does not answer, or answers with an error.
        """
        n = min(self.connections, len(bodies))
        if not n:
            return []
        responses: list[Json] = [{}] * len(bodies)
        with ThreadPoolExecutor(n) as pool:
            parts = list(pool.map(lambda first: self._post_in_turn(path, bodies[first::n]), range(n)))
        for first, part in enumerate(parts):
            responses[first::n] = part
        return responses

    def _post_in_turn(self, path: str, bodies: Sequence[Json]) -> list[Json]:
        """Send requests one after the other over one connection."""
        responses = []
        with closing(HTTPConnection(self.host, self.port, timeout=60)) as connection:
            for body in bodies:
                try:
                    connection.request("POST", path, json.dumps(body), self.headers)
                    response = connection.getresponse()
                    responses.append(parse_json(response.read()))
                except (OSError, HTTPException, ValueError) as error:
                    raise RunError(
                        f"{self.address} does not answer ({error}); check that `offrec serve` is running there."
                    ) from error
                if response.status != 200:
                    raise RunError(f"{self.address}{path} answered {response.status}: {responses[-1].get('error')}")
        return responses


class RemotePlayer(Player):
    """A player of the shop whose lists come from a server.

    Args:
        dynamics: The shop's dynamics.
        address: The address of the server, such as http://127.0.0.1:8000.
        play: Whether lists are sampled or the k best items.
        policy: The name of the policy on the server; None for its default policy.
        token: The bearer token, if the server requires one.
        connections: The number of concurrent connections.

    Example:
        >>> shop = Shop.open("demo", seed=0)
        >>> shop.rollout(RemotePlayer(shop.dynamics, "http://127.0.0.1:8000"), 1000, seed=1)
    """

    def __init__(
        self,
        dynamics: Dynamics,
        address: str,
        play: Play = "sample",
        *,
        policy: str | None = None,
        token: str | None = None,
        connections: int = 32,
    ) -> None:
        super().__init__(dynamics)
        self.client, self.policy = Client(address, token, connections), policy
        self.name, self.play = policy or "served", play

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        self.picks: list[list[int]] = [[] for _ in range(sessions)]
        self.shown: list[list[Json]] = [[] for _ in range(sessions)]
        self.request_ids = [""] * sessions

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        responses = self.client.post("/v1/recommend", [self._request(row, step) for row in rows.tolist()])
        lists = [[row["item"] for row in response["items"]] for response in responses]
        shortest = min(map(len, lists), default=self.k)
        if shortest < self.k:
            raise RunError(f"{self.client.address} returned a list of {shortest} items; the shop shows {self.k}.")
        for row, items in zip(rows.tolist(), lists, strict=True):
            self.shown[row].append({"items": items, "picked": None})
        return torch.tensor(lists, device=self.dynamics.device)

    def _request(self, row: int, step: int) -> Json:
        self.request_ids[row] = f"{self.seed}-{row}-{step}"
        request = {"history": self.picks[row], "k": self.k, "sample": self.play == "sample", "policy": self.policy}
        request["shown"] = self.shown[row][-SHOWN:]
        return request | {"session_id": self._session_id(row), "request_id": self.request_ids[row]}

    def _session_id(self, row: int) -> str:
        return f"{self.seed}-{row}"

    def observe_step(self, rows: Tensor, result: Step) -> None:
        events: list[Json] = []
        for row, item, behaviour in zip(rows.tolist(), result.item.tolist(), result.behaviour.tolist(), strict=True):
            if behaviour < len(BEHAVIOURS):
                self.picks[row].append(item)
                self.shown[row][-1]["picked"] = item
                event = {"request_id": self.request_ids[row], "session_id": self._session_id(row), "item": item}
                events.append({**event, "behaviour": BEHAVIOURS[behaviour]})
        self.client.post("/v1/events", events)
