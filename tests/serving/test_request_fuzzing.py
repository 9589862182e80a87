"""No request causes a server error: schemathesis generates requests from the OpenAPI document."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from random_runs import write_run
from small_server import open_client

from offrec.serving.decision_log import DecisionLogOptions

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzzing")
    runs = {"a": write_run(folder / "a", ["x", "y", "é", "12"]), "b": write_run(folder / "b", list(range(30)))}
    options = DecisionLogOptions(flush_seconds=0.05)
    with open_client(runs, log=folder / "log", log_options=options) as client:
        yield str(client.base_url).rstrip("/")


@pytest.mark.parametrize("examples", [5, pytest.param(300, marks=pytest.mark.all)])
def test_no_request_causes_a_server_error(address: str, examples: int, tmp_path: Path) -> None:
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    arguments = ["run", f"{address}/openapi.json", "--checks", CHECKS, "--max-examples", str(examples), "--seed", "1"]
    phases = ["--mode", "all", "--phases", "examples,coverage,fuzzing", "--no-color", "--generation-database", "none"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, *phases], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
