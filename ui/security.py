"""Who may change something through the REST interface.

With a token, whoever has it. Without one, only who sits at this machine: the server listens on loopback, and
a request that another site's page makes a browser send is refused, also one that only looks. It is known by
where it says it comes from, and by asking for a host that is not this one, as a rebound name does.
"""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from stretto.errors import UsageError
from stretto.process.private_files import require_private

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOLD = ("/api/", "/metrics")
"""Paths that tell about the cluster. The pages themselves may be linked to from anywhere."""
TOKEN_CHARACTERS_MIN = 16


def load_token(path: Path) -> str:
    """Read the token from a file; raises UsageError if the file holds none, or others can read it."""
    token = path.read_text().strip()
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{path} holds no token; write one line of {TOKEN_CHARACTERS_MIN} or more characters into it, "
            "for instance with: openssl rand -hex 32"
        )
    require_private(path)
    return token


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listening(host: str, token: str | None) -> None:
    """Raise UsageError if a server without a token would listen to other machines."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"without a token the UI listens on loopback only, not on {host}; give it one with --token-file"
        )


class Gate:
    """The guard of all routes: it refuses requests without the token, or from pages of other sites."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if self._token is None:
            _refuse_other_sites(connection)
        elif connection.scope.get("method") not in SAFE_METHODS:
            given = connection.headers.get("authorization", "")
            if not secrets.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise NotAuthorizedException(
                    detail="this changes something: send the token as 'Authorization: Bearer ...'",
                    headers={"WWW-Authenticate": "Bearer"},
                )


def _refuse_other_sites(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    host = connection.headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if not is_loopback(name):
        raise PermissionDeniedException(
            detail=f"without a token only this machine is served, as localhost, not as {name or 'nobody'}"
        )
    is_safe = connection.scope.get("method") in SAFE_METHODS
    if is_safe and not connection.url.path.startswith(TOLD):
        return
    # Whatever is no browser does not send it.
    if connection.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise PermissionDeniedException(detail="a page of another site is told nothing here")
    origin = connection.headers.get("origin")
    if not is_safe and origin is not None and origin.partition("://")[2] != host:
        raise PermissionDeniedException(detail="a page of another site may not change anything here")
