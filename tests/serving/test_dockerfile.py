"""The Dockerfile's commands, outside of a container: what it copies exists, its server starts, is healthy and stops."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
from random_runs import write_run
from small_server import read_records, wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef"


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments, with continued lines joined and comments removed."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def argument(name: str) -> str:
    (value,) = [rest for instruction, rest in instructions() if instruction == name]
    return value


def test_only_known_instructions_occur_and_their_syntax_is_right() -> None:
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    for name, rest in instructions():
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
    assert argument("USER") == "offrec", "not root"


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name, rest in instructions():
        if name == "COPY":
            *sources, _ = shlex.split(rest)
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored


def test_the_versions_and_extras_that_are_installed_exist() -> None:
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    torch, package = (part.strip() for part in install.split("&&"))
    assert re.search(r"^torch==\d+\.\d+\.\d+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    for index, expected in (("", "pip install --no-cache-dir -c"), ("URL", "--no-cache-dir --index-url URL -c")):
        environment = {**os.environ, "TORCH_INDEX": index}
        done = subprocess.run(
            ["sh", "-c", f"echo {torch}"], env=environment, capture_output=True, text=True, check=True
        )
        assert expected in done.stdout
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"\.\[(\w+)\]", package))
    assert named
    assert named <= set(extras)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The container's command, with folders in tmp_path and a free port."""
    write_run(tmp_path / "runs" / "live", list(range(30)))
    for folder in json.loads(argument("VOLUME")):
        (tmp_path / folder.removeprefix("/")).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = json.loads(argument("ENTRYPOINT")) + json.loads(argument("CMD"))
    assert words[:2] == ["offrec", "serve"]
    assert words[words.index("--port") + 1] == argument("EXPOSE")
    words = [re.sub(r"(?<![\w.])/(?=runs|decisions|lists)", f"{tmp_path}/", word) for word in words]
    return [sys.executable, "-m", "offrec", *(port if word == argument("EXPOSE") else word for word in words[1:])]


def test_the_server_of_the_image_starts_is_healthy_and_stops(command: list[str], tmp_path: Path) -> None:
    port = command[command.index("--port") + 1]
    check = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    check = [sys.executable, *(word.replace(":8000/", f":{port}/") for word in check[1:])]
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0, "not healthy before it runs"
    environment = {**os.environ, "OFFREC_TOKEN": TOKEN}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200, 60)
        assert subprocess.run(check, capture_output=True, check=False).returncode == 0
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            assert client.put("/v1/lists/in-stock", json=[1, 2]).status_code == 200
            assert client.post("/v1/recommend", json={"allow": "in-stock", "policy": "live"}).status_code == 200
        server.send_signal(signal.SIGTERM)  # docker stop
        server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    assert (tmp_path / "lists" / "in-stock.list").exists()
    assert len(read_records(tmp_path / "decisions")[0]) == 1
    assert not list((tmp_path / "decisions").glob("*.open"))


def test_without_a_token_the_image_refuses_to_start(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OFFREC_TOKEN"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "OFFREC_TOKEN" in done.stderr
