"""Several servers: their decision logs are joined, and the examples of how to start them are valid."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from random_runs import write_run
from small_server import open_client

import offrec

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = {"compose.yaml": "compose", "kubernetes/deployment.yaml": "deployment", "kubernetes/service.yaml": "service"}


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text())


def validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads((EXAMPLES / "schemas" / f"{schema}.json").read_text()))


def test_decisions_of_two_servers_are_joined(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", list(range(20)))
    log = tmp_path / "decisions"
    with open_client({"run": run}, log=log, seed=0) as one, open_client({"run": run}, log=log, seed=1) as two:
        for visitor in range(12):
            history: list[int] = []
            for step, client in enumerate((one, two, one)):  # a balancer sends a session to any server
                ids = {"session_id": f"v{visitor}", "request_id": f"v{visitor}-{step}"}
                body = {"history": history, "k": 3, "sample": True, **ids}
                answer = client.post("/v1/recommend", json=body).raise_for_status().json()
                picked = answer["items"][step % 3]["item"]
                event = {"item": picked, "behaviour": "click", **ids}
                client.post("/v1/events", json=event).raise_for_status()
                history.append(picked)
    dataset = offrec.prepare(log, out=tmp_path / "data", format="served")
    assert dataset.meta["counts"]["sessions"] == 12
    assert dataset.meta["counts"]["events"] == 36
    assert dataset.decisions is not None
    assert len(dataset.decisions.log_propensity) == 36


@pytest.mark.parametrize("name", FILES)
def test_examples_are_valid(name: str) -> None:
    assert [error.message for error in validator(FILES[name]).iter_errors(read(name))] == []


def test_the_schemas_find_mistakes() -> None:
    compose = read("compose.yaml")
    for change in ({"replicas": 2}, {"deploy": {"replicas": "two"}}, {"volumes": ["runs"]}):
        wrong = copy.deepcopy(compose)
        wrong["services"]["offrec"] |= change
        assert not validator("compose").is_valid(wrong)
    deployment = read("kubernetes/deployment.yaml")
    del deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert not validator("deployment").is_valid(deployment)


def test_the_parts_of_the_manifests_belong_together() -> None:
    deployment, service = read("kubernetes/deployment.yaml"), read("kubernetes/service.yaml")
    template = deployment["spec"]["template"]
    assert (
        template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    )
    (container,) = template["spec"]["containers"]
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert service["spec"]["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}
