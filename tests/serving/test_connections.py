"""Silent, slow and oversized clients: they are disconnected, and other clients are still answered."""

import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import ServerProcess, open_client, wait_until

from offrec.serving.options import ConnectionLimits

QUICK = ConnectionLimits(connections=50, header_bytes=4096, transfer_seconds=0.3, keep_alive_seconds=1.0)
JSON = b"content-type: application/json\r\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", list(range(60)))


@contextmanager
def open_server(run: Path, limits: ConnectionLimits = QUICK, **options: Any) -> Iterator[httpx.Client]:
    with open_client({"run": run}, connections=limits, **options) as client:
        yield client


def connect(client: httpx.Client | ServerProcess) -> socket.socket:
    url = httpx.URL(client.address) if isinstance(client, ServerProcess) else client.base_url
    connection = socket.create_connection((url.host, url.port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection, or for 10 seconds."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def recommend(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/recommend", json={"k": 3})


SLOW = {
    "silent": b"",
    "half a header": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "line feeds": b"\r\n",
    "half a body": b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"content-length: 100\r\n\r\n{",
    "endless chunks": b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n"
    + JSON
    + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    "body of another path": b"POST /healthz HTTP/1.1\r\nHost: localhost\r\ncontent-length: 100\r\n\r\n{",
}


def test_slow_requests_are_disconnected_although_they_send_bytes(run: Path) -> None:
    """A client that sends a byte from time to time gains no time."""
    with open_server(run) as client, ExitStack() as stack:
        connections = {name: stack.enter_context(connect(client)) for name in SLOW}
        for name, connection in connections.items():
            connection.sendall(SLOW[name])
        start, closed = time.monotonic(), {}
        while len(closed) < len(connections) and time.monotonic() < start + 10:
            for name, connection in connections.items():
                if name not in closed:
                    try:
                        if name != "silent":
                            connection.send(b"1\r\n \r\n" if "chunks" in name else b" ")
                        connection.settimeout(0.01)
                        if connection.recv(4096) == b"":
                            closed[name] = time.monotonic() - start
                    except TimeoutError:
                        pass
                    except OSError:
                        closed[name] = time.monotonic() - start
            time.sleep(0.02)
        assert set(closed) == set(SLOW)
        assert max(closed.values()) < 0.3 + 2.0 + 0.5 + 1.0  # limit, grace, sweep and a busy machine
        assert recommend(client).status_code == 200
        assert 'offrec_connections_closed_total{reason="time"} ' in client.get("/metrics").text


def test_a_slow_body_is_answered_with_408(run: Path) -> None:
    with open_server(run) as client, connect(client) as connection:
        connection.sendall(SLOW["half a body"])
        assert receive(connection).startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed_after_the_keep_alive_time(run: Path) -> None:
    with open_server(run) as client, connect(client) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        start = time.monotonic()
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
        assert 0.9 < time.monotonic() - start < 5


def test_a_client_that_does_not_read_is_disconnected(run: Path) -> None:
    """Its requests wait for the responses before them, and the server keeps only those."""
    with open_server(run) as client, connect(client) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with suppress(OSError):  # reset, broken pipe or time-out
            for _ in range(100_000):
                connection.sendall(request * 100)
        wait_until(lambda: "offrec_connections 1.0" in client.get("/metrics").text)
        assert recommend(client).status_code == 200


@pytest.mark.parametrize("pieces", [1, 100])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 5000,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 1000,
        b"GET /healthz?" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost",
        b"\r\n" * 2500,
    ],
    ids=["value", "fields", "path", "line feeds"],
)
def test_large_headers_are_refused(run: Path, head: bytes, pieces: int) -> None:
    with open_server(run, ConnectionLimits(header_bytes=4096)) as client, connect(client) as connection:
        data = head + b"\r\n\r\n"
        size = len(data) // pieces + 1
        try:
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
                time.sleep(0.0002)
        except OSError:
            pass  # the server answered and closed before the end
        response = receive(connection)
        if pieces == 1 or response:  # a reset can overtake the response
            assert response.startswith(b"HTTP/1.1 431 "), response
            assert json.loads(response.partition(b"\r\n\r\n")[2]) == {
                "error": "The headers are larger than the limit of 4,096 bytes."
            }


def test_headers_below_the_limit_and_large_bodies_are_accepted(run: Path) -> None:
    with open_server(run, ConnectionLimits(header_bytes=4096)) as client:
        assert client.get("/healthz", headers={"x": "a" * 3500}).status_code == 200
        padded = json.dumps({"k": 3}) + " " * 200_000
        for _ in range(3):  # on one connection
            response = client.post("/v1/recommend", content=padded, headers={"content-type": "application/json"})
            assert response.status_code == 200
        assert client.get("/healthz", headers={"x": "a" * 3500}).status_code == 200


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01"]
)
def test_other_protocols_get_400(run: Path, data: bytes) -> None:
    with open_server(run) as client, connect(client) as connection:
        connection.sendall(data)
        response = receive(connection)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert json.loads(response.partition(b"\r\n\r\n")[2]) == {"error": "The request is not valid HTTP."}


POST = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n" + JSON
BODY = b'{"k":3}'
ODD_REQUESTS = {  # → the status
    b"GET /healthz HTTP/1.1\r\n\r\n": 200,
    b"GET /healthz HTTP/1.0\r\n\r\n": 200,
    b"GET /healthz\r\n\r\n": 200,
    b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n": 400,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 400,
    b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET http://evil/v1/policies HTTP/1.1\r\nHost: evil\r\n\r\n": 403,
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n": 405,
    b"GET /v1/policies HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n": 200,
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n": 200,
    POST + b"Content-Length: -1\r\n\r\n" + BODY: 400,
    POST + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY: 400,
    POST + b"Content-Length: 10000000000\r\n\r\n" + BODY: 413,
    POST + b"Content-Length: 7\r\nContent-Length: 8\r\n\r\n" + BODY: 400,
    POST + b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n" + BODY + b"\r\n0\r\n\r\n": 400,
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY: 400,
    POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + BODY: 408,
    POST + b"Expect: 100-continue\r\nContent-Length: 7\r\n\r\n" + BODY: 100,
    POST + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\n" + BODY: 200,
    POST + b"Content-Length: 3\r\n\r\n" + BODY: 400,
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \xff\xfe\r\n\r\n": 200,
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
}


def test_odd_requests_cause_no_server_error(run: Path) -> None:
    limits = ConnectionLimits(transfer_seconds=0.3, keep_alive_seconds=0.3)
    with open_server(run, limits) as client, ExitStack() as stack:
        connections = {data: stack.enter_context(connect(client)) for data in ODD_REQUESTS}
        for data, connection in connections.items():
            connection.sendall(data)
        for data, status in ODD_REQUESTS.items():
            statuses = [int(text) for text in re.findall(rb"HTTP/1.1 (\d+)", receive(connections[data]))]
            assert statuses[:1] == [status], (data, statuses)
            assert max(statuses) < 500, data
        assert recommend(client).status_code == 200


def test_pipelined_requests_are_answered_in_order(run: Path) -> None:
    with open_server(run) as client, connect(client) as connection:
        paths = ["/healthz", "/nothing", "/readyz"] * 20
        requests = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n" for path in paths]
        connection.sendall("\r\n".join(requests).encode() + b"connection: close\r\n\r\n")
        received = receive(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"404", b"200"] * 20


def test_silent_connections_are_closed_before_those_that_sent_requests(run: Path) -> None:
    limits = ConnectionLimits(connections=20)
    with open_server(run, limits) as client, ExitStack() as stack:
        assert recommend(client).status_code == 200
        silent = [stack.enter_context(connect(client)) for _ in range(60)]
        wait_until(lambda: sum(map(is_closed, silent)) == 60 - 19)
        assert [is_closed(connection) for connection in silent] == [True] * 41 + [False] * 19, "the oldest first"
        pool = client._transport._pool.connections  # type: ignore[attr-defined]
        assert recommend(client).status_code == 200
        assert len(pool) == 1
        assert client._transport._pool.connections == pool, "on the same connection"  # type: ignore[attr-defined]
        assert 'offrec_connections_closed_total{reason="limit"} 41.0' in client.get("/metrics").text


def test_600_connections_do_not_stop_a_server_with_256_files(run: Path) -> None:
    """A third of them is silent, a third sends half a header and a third half a body."""

    def allow_few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with ServerProcess(run, preexec_fn=allow_few_files) as server, ExitStack() as stack:
        for number in range(600):
            sent = (b"", SLOW["half a header"], SLOW["half a body"])[number % 3]
            stack.enter_context(connect(server)).sendall(sent)
        times = []
        for _ in range(10):  # a new connection each
            start = time.monotonic()
            assert httpx.post(f"{server.address}/v1/recommend", json={"k": 3}).status_code == 200
            times.append(time.monotonic() - start)
        assert sorted(times)[5] < 1.0
    output = "".join(server.output)
    assert output.count("--max-connections 192 is reached; closed") == 1
    assert "--max-connections is reduced to 192: the system allows 256 open files" in output
    assert "Traceback" not in output
