"""What lets a cluster's processes, and nobody else, at its part of ZooKeeper: a user and a password.

ZooKeeper's digest scheme: who presents them may do everything with what was created under them, and who does
not may neither read nor change it. What was created without them before stays open to all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.security import make_digest_acl

from stretto.errors import UsageError
from stretto.process.private_files import require_private


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password of ZooKeeper's digest scheme."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Load credentials from a file of one line, ``user:password``, that only its owner can read."""
        require_private(path)
        try:
            user, _, password = path.read_text("utf-8").removesuffix("\n").partition(":")
        except UnicodeDecodeError:
            user = password = ""
        if not user or not password or not (user + password).isprintable():
            raise UsageError(f"{path} does not hold credentials of ZooKeeper: write one line, user:password")
        return cls(user, password)


def kazoo_options(credentials: Credentials | None) -> dict[str, Any]:
    """Options for a client that presents credentials, and lets only these at what it creates."""
    if credentials is None:
        return {}
    user, password = credentials.user, credentials.password
    return {
        "auth_data": [("digest", f"{user}:{password}")],
        "default_acl": [make_digest_acl(user, password, all=True)],
    }


def refusal(path: str) -> str:
    """The sentence for a process that ZooKeeper refuses a path to."""
    return (
        f"ZooKeeper refuses {path} to this process; "
        "give it the cluster's credentials with --zookeeper-credentials FILE"
    )
