"""The options of commands that can use a cluster."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offrec.commands.engines import RayOptions, parse_bytes
from offrec.commands.train import Train
from offrec.errors import InputError
from offrec.scale import ray_engine


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 1 << 29), ("2GB", 1 << 31), ("2g", 1 << 31), ("1.5 GiB", 3 << 29), ("64K", 1 << 16)]
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text, "--memory-limit") == size


@pytest.mark.parametrize("text", ["", "2", "GB", "-1GB", "2 apples", "1e9"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--memory-limit must be a size such as 512MB or 2GB; got"):
        parse_bytes(text, "--memory-limit")


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^--engine ray needs Ray, which is not installed; install it with `pip"):
        RayOptions().connect("ray")


def test_options_of_ray_need_the_engine() -> None:
    with pytest.raises(InputError, match="--ray-address, --ray-cpus and --ray-gpus need --engine ray"):
        RayOptions(ray_address="10.0.0.1:6379").connect("local")
    assert RayOptions().connect("local") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch": "ray"}, "--launch ray needs --ranks N, the number of processes; add it."),
        ({"launch": "ray", "ranks": 0}, "--ranks must be at least 1; got 0."),
        ({"launch": "ray", "ranks": 2, "max_restarts": -1}, "--max-restarts must be at least 0; got -1."),
        ({"launch": "ray", "ranks": 2, "seeds": "0,1"}, "--seeds cannot be used by several processes; leave it out,"),
        ({"launch": "ray", "ranks": 2}, "--launch ray needs Ray, which is not installed; install it with `pip"),
        ({"ranks": 2}, "--ranks needs --launch ray; add it or omit --ranks."),
        ({"max_restarts": 1}, "--max-restarts needs --launch ray; add it or omit --max-restarts."),
        ({"ray": RayOptions(ray_gpus=1.0)}, "--ray-address, --ray-cpus and --ray-gpus need --launch ray; add it"),
    ],
)
def test_impossible_launches_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "find_spec", lambda name: None)
    with pytest.raises(InputError) as raised:
        Train(tmp_path / "data", tmp_path / "run", **options).run()
    assert str(raised.value).startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RayOptions(ray_cpus=0.0), "--ray-cpus must be positive and --ray-gpus at least 0; got 0 and 0."),
        (RayOptions(ray_gpus=-1.0), "--ray-cpus must be positive and --ray-gpus at least 0; got 1 and -1."),
    ],
)
def test_impossible_resources_are_refused(options: RayOptions, message: str) -> None:
    with pytest.raises(InputError) as raised:
        options.connect("ray")
    assert str(raised.value) == message


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":6379"])
def test_addresses_need_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match="--ray-address must be HOST:PORT, such as"):
        ray_engine._check_answers(address)


def test_a_command_without_ray_writes_nothing(tmp_path: Path) -> None:
    # An empty package named ray would be found, so the module search is switched off instead.
    code = "import offrec.scale.ray_engine as e; e.find_spec = lambda name: None; import offrec.cli; offrec.cli.main()"
    words = ["prepare", "log.csv", "--split", "hash", "--engine", "ray", "--out", str(tmp_path / "data")]
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("offrec: --engine ray needs Ray, which is not installed;")
    assert not list(tmp_path.iterdir())
