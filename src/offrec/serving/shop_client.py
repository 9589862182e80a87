"""The simulated shop's visitors at a real server: lists come over HTTP, and what is picked goes back as events.

    shop.rollout(RemotePlayer(shop.dynamics, "http://127.0.0.1:8000"), 1000, seed=1)

So what the server's decision log says can be held against what the visitors truly earned.
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

from offrec.errors import InputError, RunError
from offrec.shop.players import Play, Player
from offrec.shop.visitors import BEHAVIOURS, Dynamics, Step, Visitors

Body = dict[str, Any]


class Server:
    """Posts to a server, over many connections at once."""

    def __init__(self, address: str, token: str | None = None, connections: int = 32) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or parts.hostname is None:
            raise InputError(f"{address!r} is no address of a server; expected one such as http://127.0.0.1:8000.")
        self.address, self.host, self.port = address.rstrip("/"), parts.hostname, parts.port or 80
        self.headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self.connections = connections

    def post(self, path: str, bodies: Sequence[Body]) -> list[Body]:
        """The answers, in the order of the bodies."""
        n = min(self.connections, len(bodies))
        if not n:
            return []
        found: list[Body] = [{}] * len(bodies)
        with ThreadPoolExecutor(n) as pool:
            parts = list(pool.map(lambda first: self._post(path, bodies[first::n]), range(n)))
        for first, part in enumerate(parts):
            found[first::n] = part
        return found

    def _post(self, path: str, bodies: Sequence[Body]) -> list[Body]:
        """One after the other, over one connection."""
        found = []
        with closing(HTTPConnection(self.host, self.port, timeout=60)) as connection:
            for body in bodies:
                try:
                    connection.request("POST", path, json.dumps(body), self.headers)
                    answer = connection.getresponse()
                    found.append(json.loads(answer.read()))
                except (OSError, HTTPException, ValueError) as error:
                    said = f"{self.address} does not answer ({error}); is `offrec serve` running there?"
                    raise RunError(said) from error
                if answer.status != 200:
                    raise RunError(f"{self.address}{path} answered {answer.status}: {found[-1].get('error')}")
        return found


class RemotePlayer(Player):
    """Whatever policy a server serves. `policy`: by name; None: its default one."""

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
        self.server, self.policy = Server(address, token, connections), policy
        self.name, self.play = policy or "served", play

    def begin(self, sessions: int, seed: int) -> None:
        super().begin(sessions, seed)
        self.picks: list[list[int]] = [[] for _ in range(sessions)]
        self.requests = [""] * sessions

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        found = self.server.post("/v1/recommend", [self._ask(row, step) for row in rows.tolist()])
        lists = [[shown["item"] for shown in answer["items"]] for answer in found]
        short = next((one for one in lists if len(one) < self.k), None)
        if short is not None:
            raise RunError(f"A list of {len(short)} items came from {self.server.address}; the shop shows {self.k}.")
        return torch.tensor(lists, device=self.dynamics.device)

    def _ask(self, row: int, step: int) -> Body:
        self.requests[row] = f"{self.seed}-{row}-{step}"
        asked = {"history": self.picks[row], "k": self.k, "sample": self.play == "sample", "policy": self.policy}
        return asked | {"session_id": self._session(row), "request_id": self.requests[row]}

    def _session(self, row: int) -> str:
        return f"{self.seed}-{row}"

    def came_of_it(self, rows: Tensor, found: Step) -> None:
        events: list[Body] = []
        for row, item, kind in zip(rows.tolist(), found.item.tolist(), found.behaviour.tolist(), strict=True):
            if kind < len(BEHAVIOURS):
                self.picks[row].append(item)
                facts = {"request_id": self.requests[row], "session_id": self._session(row), "item": item}
                events.append({**facts, "behaviour": BEHAVIOURS[kind]})
        self.server.post("/v1/events", events)
