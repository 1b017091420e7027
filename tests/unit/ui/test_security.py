"""Who may change something."""

from __future__ import annotations

from pathlib import Path

import pytest
from litestar import Litestar, get, post
from litestar.testing import TestClient

from stretto.errors import UsageError
from stretto.ui.security import Gate, check_listening, load_token

TOKEN = "0123456789abcdef"


@get(["/look", "/api/look", "/metrics"], sync_to_thread=False)
def look() -> str:
    return "seen"


@post("/change", sync_to_thread=False)
def change() -> str:
    return "changed"


def client(token: str | None) -> TestClient[Litestar]:
    return TestClient(Litestar([look, change], guards=[Gate(token)]), base_url="http://127.0.0.1:8888")


def test_with_a_token_only_who_has_it_changes_anything() -> None:
    with client(TOKEN) as served:
        assert served.get("/look").status_code == 200
        refused = served.post("/change")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert served.post("/change", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert served.post("/change", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 201


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"origin": "http://127.0.0.1:8888"}, 201),
        ({"origin": "http://127.0.0.1:8888", "sec-fetch-site": "same-origin"}, 201),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "rebound.example"}, 403),
        ({"host": "localhost:8888", "origin": "http://localhost:8888"}, 201),
        ({"host": "[::1]:8888"}, 201),
    ],
)
def test_without_a_token_only_this_machine_changes_anything(headers: dict[str, str], status: int) -> None:
    with client(None) as served:
        assert served.post("/change", headers=headers).status_code == status


def test_without_a_token_a_rebound_name_sees_nothing() -> None:
    with client(None) as served:
        assert served.get("/look", headers={"host": "rebound.example"}).status_code == 403


@pytest.mark.parametrize("path", ["/api/look", "/metrics"])
@pytest.mark.parametrize(
    ("site", "status"),
    [(None, 200), ("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403)],
)
def test_without_a_token_pages_of_other_sites_see_nothing(path: str, site: str | None, status: int) -> None:
    with client(None) as served:
        headers = {} if site is None else {"sec-fetch-site": site}
        assert served.get(path, headers=headers).status_code == status
        assert served.get("/look", headers=headers).status_code == 200, "a page can be linked to"


def test_without_a_token_it_listens_on_loopback_only() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_listening(host, None)
    check_listening("0.0.0.0", TOKEN)
    with pytest.raises(UsageError, match=r"listens on loopback only, not on 0\.0\.0\.0; .* --token-file"):
        check_listening("0.0.0.0", None)


def test_a_token_is_long_enough_and_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert load_token(path) == TOKEN
    for wrong in ("short", "two\nlines of some length", ""):
        path.write_text(wrong)
        with pytest.raises(UsageError, match="holds no token"):
            load_token(path)
