"""What pages of other sites can do with a server on loopback: nothing. And what responses reveal about its files."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_runs import write_run
from small_server import open_client

from offrec.errors import InputError
from offrec.serving.address import parse_hosts, request_checks
from offrec.serving.errors import without_folders
from offrec.serving.options import ServerOptions

EVENT = {"item": 1, "behaviour": "click"}
CROSS_SITE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a folder" / "run", list(range(60)))


@pytest.fixture
def client(run: Path, tmp_path: Path) -> Any:
    with open_client({"run": run}, log=tmp_path / "log", allow_hosts=("shop.example",)) as client:
        yield client


def statuses(client: httpx.Client, **headers: str) -> set[int]:
    """The statuses of a page, of a read and of two writes with these headers."""
    responses = [client.get(path, headers=headers) for path in ("/", "/healthz", "/metrics", "/v1/policies")]
    responses.append(client.post("/v1/events", json=EVENT, headers=headers))
    responses.append(client.post("/v1/reload", json={}, headers=headers))
    return {response.status_code for response in responses}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST:8000", "[::1]:8000", "shop.example", "shop.example:443"]
)
def test_names_of_the_server_are_answered(client: httpx.Client, host: str) -> None:
    assert statuses(client, host=host) == {200}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "", "[::2]"]
)
def test_other_names_are_refused(client: httpx.Client, host: str) -> None:
    """DNS rebinding: the name of a foreign page resolves to 127.0.0.1."""
    assert statuses(client, host=host) == {403}


def test_any_host_is_answered_on_an_address_with_a_token(run: Path) -> None:
    options = {"sources": {"run": run}, "token": "0123456789abcdef", "host": "0.0.0.0"}
    assert request_checks(ServerOptions(**options)).hosts is None
    restricted = request_checks(ServerOptions(**options, allow_hosts=("shop.example",)))
    assert restricted.hosts == {"localhost", "127.0.0.1", "::1", "0.0.0.0", "shop.example"}


def test_pages_of_other_origins_are_refused(client: httpx.Client) -> None:
    own = f"{client.base_url.host}:{client.base_url.port}"
    assert statuses(client, origin=f"http://{own}") == {200}
    assert statuses(client, origin="https://shop.example") == {200}, "a proxy may rewrite Host"
    for origin in ("http://evil.example", "null", f"http://{client.base_url.host}:1", f"http://{own}.evil", ""):
        assert statuses(client, origin=origin) == {403}, origin


def test_cross_site_requests_without_an_origin_are_refused(client: httpx.Client) -> None:
    assert statuses(client, **CROSS_SITE) == {403}
    assert statuses(client, **{**CROSS_SITE, "sec-fetch-site": "same-site"}) == {403}, "another port of localhost"
    assert statuses(client, **{"sec-fetch-site": "same-origin"}) == {200}
    assert statuses(client, **{"sec-fetch-site": "none"}) == {200}, "typed into the address bar"
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=link).status_code == 200, "a link from another page"
    assert client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    assert client.post("/v1/events", json=EVENT, headers=link).status_code == 403, "a form"


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/policies", "/nothing"])
def test_no_page_can_be_framed(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_no_response_contains_a_folder_of_the_server(client: httpx.Client, run: Path, tmp_path: Path) -> None:
    (run / "best.safetensors").write_bytes(b"damaged")
    responses = [client.post("/v1/reload", json={})]
    assert "run/best.safetensors" in responses[0].json()["error"], "the reason, without the folder"
    shutil.rmtree(run)
    responses.append(client.post("/v1/reload", json={}))
    assert [response.status_code for response in responses] == [409, 409]
    responses += [client.get(path) for path in ("/", "/docs", "/openapi.json", "/metrics", "/v1/policies", "/healthz")]
    for response in responses:
        for folder in (str(tmp_path), "a folder", str(Path.home()), "site-packages"):
            assert folder not in response.text, response.url


def test_a_sentence_with_an_unknown_path_is_not_shown() -> None:
    run = Path("/srv/my runs/live")
    for path in ("/etc/passwd", "'/root'", "(/x/y)", "at /"):
        assert without_folders(f"{run}/run.json is a link to {path}", run) is None
    assert without_folders(f"{run}/run.json has 3/4 items", run) == "live/run.json has 3/4 items"


@pytest.mark.parametrize("name", ["http://shop.example", "shop.example:80", "shop.example/x", "a b", "*.example", "-a"])
def test_allow_host_takes_only_host_names(name: str) -> None:
    with pytest.raises(InputError, match="--allow-host must contain host names without scheme and port; got"):
        parse_hosts(f"good.example,{name}")
    assert parse_hosts("Shop.example, ::1,") == ("shop.example", "::1")
