"""`offrec serve` as it is typed: what it refuses before anything is served, and what docs/serving.md says to send."""

import re
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from random_runs import write_run
from small_server import client_of

from offrec.commands.runs import Recommend
from offrec.commands.serve import Serve
from offrec.errors import InputError
from offrec.serving import served_policy, server
from offrec.serving.decision_log import DecisionLogOptions
from offrec.serving.served_policy import named
from offrec.serving.service import Service

DOCUMENT = Path(__file__).parents[2] / "docs/serving.md"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", list(range(60)))


def test_what_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFREC_TOKEN", raising=False)

    def refused(match: str, runs: tuple[str, ...] = (str(run),), **options: Any) -> None:
        with pytest.raises(InputError, match=match):
            Serve(runs, **{"port": 0, **options}).run()

    refused("No run was given", ())
    refused("is not a run", (str(tmp_path),))
    refused("Two policies would be called 'run'", (str(run), str(run)))
    refused("set a token", host="0.0.0.0")
    refused("--max-k is 0; it must be above 0", max_k=0)
    refused("--flush-seconds is inf", flush_seconds=float("inf"))
    refused("--wait-ms is -1", wait_ms=-1.0)
    refused("device 'abacus' cannot be used", device="abacus")
    (run / "file").write_text("")
    refused("cannot be written", log=run / "file")
    refused("cannot be listened to", host="203.0.113.7", insecure=True)
    refused("--port is 70000", port=70_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("cannot be listened to .*in use", port=taken.getsockname()[1])
    monkeypatch.setenv("OFFREC_TOKEN", "short")
    refused("The token in OFFREC_TOKEN cannot be used")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delenv("OFFREC_TOKEN")
    refused(r"Serving needs uvicorn; pip install 'offrec\[serve\]'")


def test_policies_are_called_by_their_folder_or_as_told(tmp_path: Path) -> None:
    (tmp_path / "live").symlink_to(tmp_path)
    assert named((f"{tmp_path}/live", "new=runs/dc")) == {"live": tmp_path / "live", "new": Path("runs/dc")}


def test_a_table_and_a_history_do_not_mix(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="belong together"):
        Recommend(run, out=tmp_path / "x.csv").run()
    with pytest.raises(InputError, match="for one history"):
        Recommend(run, history="1", input=("x.csv",), out=tmp_path / "x.csv").run()


def test_what_the_document_says_to_send_works(run: Path, tmp_path: Path) -> None:
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("curl ")]
    assert len(lines) >= 7
    with client_of({"run": run}, log=tmp_path / "log", log_options=DecisionLogOptions()) as client:
        for line in lines:
            address, *rest = shlex.split(line)[1:]
            path = address.removeprefix("http://127.0.0.1:8000")
            if rest:
                assert rest[0] == "--json"
                answer = client.post(path, content=rest[1], headers={"content-type": "application/json"})
            else:
                answer = client.get(path)
            assert answer.status_code == 200, (line, answer.text)
        paths = set(re.findall(r"`(?:GET |POST )?(/(?:v1/)?\w+)`", DOCUMENT.read_text()))
        described = client.get("/openapi.json").json()["paths"]
        assert set(described) <= paths


def test_other_addresses_need_a_token(run: Path, tmp_path: Path) -> None:
    def check(**options: Any) -> None:
        server.check_address(server.ServerOptions({"run": run}, **options))

    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        check(host=host)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(InputError, match="set a token"):
            check(host=host)
        check(host=host, insecure=True)
        check(host=host, token="0123456789abcdef")
    for bad in ("short", "0123456789 abcdef", "0123456789abcdé" * 2):
        (tmp_path / "token").write_text(bad)
        with pytest.raises(InputError, match="cannot be used"):
            server.read_token(tmp_path / "token")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert server.read_token(tmp_path / "token") == "0123456789abcdef"
    with pytest.raises(InputError, match="cannot be read"):
        server.read_token(tmp_path / "none")


@pytest.mark.parametrize("asked", [False, True])
def test_a_reload_asked_for_while_loading_is_made_after_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], asked: bool
) -> None:
    """The first load is interrupted by SIGHUP, the server ends itself once it has loaded or reloaded."""
    real, loads = served_policy.load, []

    def load(*words: Any) -> served_policy.ServedPolicy:
        loads.append(words)
        if asked and len(loads) == 1:
            signal.raise_signal(signal.SIGHUP)
        return real(*words)

    def ends(service: Service, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 2.0)

    monkeypatch.setattr(served_policy, "load", load)
    monkeypatch.setattr(server, "_announce", ends)
    before = signal.getsignal(signal.SIGHUP)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    ended = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Serve((str(run),), port=0).run()
    finally:
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGTERM, ended)
    assert len(loads) == 1 + asked
    assert ("reloaded run" in capfd.readouterr().err) == asked
    assert signal.getsignal(signal.SIGHUP) == before
