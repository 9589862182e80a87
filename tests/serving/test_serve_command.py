"""`offrec serve` as it is typed: which options it refuses, and the requests that docs/how-to/serve.md shows."""

import argparse
import re
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import open_client

from offrec.commands.recommend import Recommend
from offrec.commands.serve import Serve
from offrec.errors import InputError
from offrec.serving import address, served_policy, server
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.options import ServerOptions

PAGE = Path(__file__).parents[2] / "docs/how-to/serve.md"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", list(range(60)))


def test_invalid_options_are_refused_by_name(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFREC_TOKEN", raising=False)

    def refuses(match: str, runs: tuple[str, ...] = (str(run),), **options: Any) -> None:
        with pytest.raises(InputError, match=match):
            Serve(runs, **{"port": 0, **options}).run()

    refuses("run folder", ())
    refuses("is not a run", (str(tmp_path),))
    refuses("name 'run'.*NAME=RUN", (str(run), str(run)))
    refuses("--dataset", baselines="recent")
    refuses("--host 0.0.0.0 .* token", host="0.0.0.0")
    refuses("--max-k must be positive; got 0", max_k=0)
    refuses("--flush-seconds .* inf", flush_seconds=float("inf"))
    refuses("--wait-ms .* -1", wait_ms=-1.0)
    refuses("abacus", device="abacus")
    (run / "file").write_text("")
    refuses("--log .*cannot be written", log=run / "file")
    refuses("--log .*cannot be written", log=run / "file", workers=2)
    refuses("--workers must be positive; got 0", workers=0)
    refuses("--allow-host .* 'shop.example:80'", allow_host="shop.example:80")
    refuses("--port 0 on host 203.0.113.7", host="203.0.113.7", insecure=True)
    refuses("--port .* 70000", port=70_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refuses("--port .*in use", port=taken.getsockname()[1])
    monkeypatch.setenv("OFFREC_TOKEN", "short")
    refuses("OFFREC_TOKEN")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delenv("OFFREC_TOKEN")
    refuses(r"uvicorn.*'offrec\[serve\]'")


def test_a_table_and_a_history_cannot_be_combined(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--input"):
        Recommend(run, out=tmp_path / "x.csv").run()
    with pytest.raises(InputError, match="--history"):
        Recommend(run, history="1", input=("x.csv",), out=tmp_path / "x.csv").run()


def send(client: httpx.Client, command: str, files: dict[str, str]) -> httpx.Response:
    """Send the request of a curl command."""
    parser = argparse.ArgumentParser()
    for flag in ("-X", "-H", "--json", "--data-binary"):
        parser.add_argument(flag)
    parser.add_argument("address")
    options = parser.parse_args(shlex.split(command)[1:])
    path = options.address.removeprefix("http://127.0.0.1:8000")
    body = options.json or files.get((options.data_binary or "").removeprefix("@"))
    kind = options.H.removeprefix("content-type: ") if options.H else "application/json"
    headers = {"content-type": kind} if body else {}
    return client.request(options.X or ("POST" if body else "GET"), path, content=body, headers=headers)


def test_the_requests_of_the_documentation_work(run: Path, tmp_path: Path) -> None:
    page = PAGE.read_text()
    pages = [page, PAGE.with_name("in-stock.md").read_text()]
    commands = [line for text in pages for line in text.splitlines() if line.startswith("curl ")]
    assert len(commands) >= 13
    with open_client({"run": run}, log=tmp_path / "log", log_options=DecisionLogOptions()) as client:
        for command in commands:
            response = send(client, command, {"stock.txt": "5\n7\n8\n"})
            assert response.status_code == 200, (command, response.text)
        paths = set(re.findall(r"(?<=[` ])(/(?:v1/)?\w+)[`/]", page))
        assert {path.removesuffix("/{name}") for path in client.get("/openapi.json").json()["paths"]} <= paths


def test_addresses_other_than_loopback_need_a_token(run: Path) -> None:
    def check(**options: Any) -> None:
        address.check_address(ServerOptions({"run": run}, **options))

    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        check(host=host)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(InputError, match=r"--host .* token"):
            check(host=host)
        check(host=host, insecure=True)
        check(host=host, token="0123456789abcdef")


def test_a_token_has_at_least_16_ascii_characters(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for bad in ("short", "0123456789 abcdef", "0123456789abcdé" * 2):
        file.write_text(bad)
        with pytest.raises(InputError, match=r"--token-file .* at least 16 ASCII characters"):
            address.read_token(file)
    file.write_text("0123456789abcdef\n")
    assert address.read_token(file) == "0123456789abcdef"
    with pytest.raises(InputError, match=r"--token-file .*cannot be read"):
        address.read_token(tmp_path / "none")


@pytest.mark.parametrize("hangs_up", [False, True])
def test_sighup_during_the_start_reloads_after_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hangs_up: bool
) -> None:
    """SIGHUP interrupts the first load; a timer ends the server once it has loaded or reloaded."""
    real, loads = served_policy.load_policy, []

    def load(*arguments: Any) -> served_policy.ServedPolicy:
        loads.append(arguments)
        if hangs_up and len(loads) == 1:
            signal.raise_signal(signal.SIGHUP)
        return real(*arguments)

    def start_timer(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 2.0)

    monkeypatch.setattr(served_policy, "load_policy", load)
    monkeypatch.setattr(server, "announce", start_timer)
    previous = signal.getsignal(signal.SIGHUP)
    on_alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    on_terminate = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Serve((str(run),), port=0).run()
    finally:
        signal.signal(signal.SIGALRM, on_alarm)
        signal.signal(signal.SIGTERM, on_terminate)
    assert len(loads) == 1 + hangs_up
    assert ("reloaded run" in capfd.readouterr().err) == hangs_up
    assert signal.getsignal(signal.SIGHUP) == previous
